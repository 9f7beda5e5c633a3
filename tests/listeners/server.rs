//! A server in this process, and raw bytes to talk to it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tollgate::{AnyStore, Limiter, MemoryStore, rules};
use tollgate_server::{Access, App, Config, Endpoint, ListenerLimits, RulesHome, Server, TlsFiles};
use tollgate_tests::poll::PATIENCE;

const RULES: &str = r#"
rules:
  - { name: per-user, key: "user:{user_id}", limit: 1000000/s }
  - { name: banned, key: global, when: { banned: "*" }, action: deny }
  - { name: held, key: global, when: { endpoint: /held }, limit: 5/s queue 5, algorithm: leaky_bucket }
  - { name: model-tokens, key: "tenant:{tenant}", limit: 10000 every 1d, cost: tokens }
"#;

/// A server on a free port of this machine.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// How to start it.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) access: Access,
    pub(crate) limits: ListenerLimits,
    /// Where to listen; 127.0.0.1 by default.
    pub(crate) ip: Option<IpAddr>,
}

impl Running {
    pub(crate) async fn start(options: Options) -> Self {
        let store = AnyStore::from(MemoryStore::new());
        let limiter = Limiter::new(rules::parse("rules.yaml", RULES).unwrap(), store);
        let app =
            App::new(Arc::new(limiter), RulesHome::Fixed("code".to_owned())).with_access(options.access);
        let free = SocketAddr::new(options.ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), 0);
        let config = Config { tls: options.tls, limits: options.limits, ..Config::new(free, free) };
        let server = Server::bind(&config, app).await.unwrap();
        let Endpoint::Tcp(admin) = *server.admin() else { unreachable!("it is bound to an address") };
        let address = server.http();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async { drop(stopped.await) }));
        Running { address, admin, stop, task }
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// The same to the admin plane.
    pub(crate) async fn connect_admin(&self) -> TcpStream {
        TcpStream::connect(self.admin).await.unwrap()
    }

    /// The same on the admin plane.
    pub(crate) async fn ask_admin(&self, request: &str) -> String {
        ask(self.connect_admin().await, request).await
    }

    /// One request on a connection of its own, and the whole answer.
    pub(crate) async fn ask(&self, request: &str) -> String {
        ask(self.connect().await, request).await
    }

    /// Whether an ordinary check is answered.
    pub(crate) async fn serves(&self) -> bool {
        self.ask(&check("")).await.starts_with("HTTP/1.1 200 OK")
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

/// A check, with further lines in its head.
pub(crate) fn check(head: &str) -> String {
    let body = r#"{"attributes": {"user_id": "42"}}"#;
    let length = body.len();
    format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}content-length: {length}\r\n\r\n{body}"
    )
}

pub(crate) async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    // A server that has answered already may have hung up.
    let _ = stream.write_all(request.as_bytes()).await;
    read_to_end(&mut stream).await
}

/// Everything that comes until the other side hangs up.
pub(crate) async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    let read = async {
        let mut chunk = [0; 4096];
        // A connection that is cut is at its end too.
        while let Ok(count @ 1..) = stream.read(&mut chunk).await {
            answer.extend_from_slice(&chunk[..count]);
        }
    };
    timeout(PATIENCE, read).await.expect("the server hangs up");
    String::from_utf8_lossy(&answer).into_owned()
}

/// A server that does not wait long for its clients.
pub(crate) fn impatient() -> ListenerLimits {
    let soon = Duration::from_secs(1); // not sooner: a busy machine has to send its requests within it
    ListenerLimits {
        handshake: soon,
        head: soon,
        idle: soon,
        request: soon,
        unread: soon,
        farewell: soon,
        grace: soon,
        drain: soon,
        ..ListenerLimits::default()
    }
}
