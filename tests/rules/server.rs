//! A server over the rules of a database, asked over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tollgate::audit::ViolationLog;
use tollgate::rules::{Follower, RuleBook, RuleSource};
use tollgate::sql::Database;
use tollgate::{AnyStore, Limiter, MemoryStore};
use tollgate_server::{Access, App, Config, Endpoint, RulesHome, Server, Tokens};

/// The server gives up on a request after 30 s.
const ANSWERED_WITHIN: Duration = Duration::from_secs(40);

const SECRET: &str = "0123456789abcdef";

/// A server on a free port, until it is dropped.
pub(crate) struct Running {
    http: SocketAddr,
    admin: SocketAddr,
    pub(crate) limiter: Arc<Limiter<AnyStore>>,
    _stop: oneshot::Sender<()>,
}

impl Running {
    pub(crate) async fn start(url: &str) -> Self {
        let (rules, follower) = Follower::start(RuleSource::database(url)).await.unwrap();
        let limiter = Arc::new(Limiter::new(rules, AnyStore::from(MemoryStore::new())));
        let database = Database::later(url).unwrap();
        let home = RulesHome::Database {
            book: RuleBook::new(database.clone()),
            status: follower.status(),
            refresher: follower.refresher(),
        };
        tokio::spawn(follower.run(Arc::clone(&limiter)));
        let free = "127.0.0.1:0".parse().unwrap();
        let tokens = Tokens::parse(&format!("tester:write:{SECRET}\n")).unwrap();
        let app = App::new(Arc::clone(&limiter), home)
            .with_violations(ViolationLog::new(database))
            .with_access(Access { tokens: vec![tokens], hosts: Vec::new() });
        let server = Server::bind(&Config::new(free, free), app).await.unwrap();
        let Endpoint::Tcp(admin) = *server.admin() else { unreachable!("it is bound to an address") };
        let http = server.http();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(server.run(async { drop(stopped.await) }));
        Running { http, admin, limiter, _stop: stop }
    }

    /// The status and the body of an answer. A change is of the rule as it is, whatever its version.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let address = if path.starts_with("/v1/check") { self.http } else { self.admin };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nif-match: *\r\nauthorization: Bearer {SECRET}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            address,
            body.len()
        );
        let answer = async {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::time::timeout(ANSWERED_WITHIN, answer).await.expect("the server answers");
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// The body of an answer with this status.
    pub(crate) async fn expect(&self, wanted: u16, method: &str, path: &str, body: &str) -> Value {
        let (status, answer) = self.ask(method, path, body).await;
        assert_eq!(status, wanted, "{method} {path} {body}: {answer}");
        answer
    }
}
