//! A proxy and a tollgate beside it, with ports that are free.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tollgate_tests::poll;
use tollgate_tests::ports::free_port;
use tollgate_tests::scratch::Scratch;

use crate::application::Application;

/// Both end with it.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    process: Child,
    tollgate: Child,
    folder: Scratch,
}

/// What a page is to be adapted to.
struct Place<'a> {
    port: u16,
    tollgate: &'a str,
    application: &'a str,
}

impl Place<'_> {
    /// A block of a page, for these ports instead of the usual ones.
    fn adapt(&self, block: &str) -> String {
        block
            .replace("127.0.0.1:8080", self.tollgate)
            .replace("127.0.0.1:3000", self.application)
            .replace("listen 80;", &format!("listen 127.0.0.1:{};", self.port))
            .replace("bind :80", &format!("bind 127.0.0.1:{}", self.port))
            .replacen(":80 {", &format!("http://:{} {{\n\tbind 127.0.0.1", self.port), 1)
    }
}

/// The first block in a language of a page of the guide.
fn block(page: &str, language: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (_, rest) =
        text.split_once(&format!("```{language}\n")).unwrap_or_else(|| panic!("{page}: no {language}"));
    rest.split_once("\n```").unwrap().0.to_owned() + "\n"
}

impl Proxy {
    pub(crate) async fn nginx(rules: &str, application: &Application) -> Self {
        let server = block("nginx.md", "nginx");
        Self::start(rules, application, async |folder, place| {
            // What a system's own nginx.conf has around it.
            let around = "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n\
                          client_body_temp_path b;\nproxy_temp_path p;\nfastcgi_temp_path f;\nuwsgi_temp_path u;\n\
                          scgi_temp_path s;\n";
            fs::write(folder.join("nginx.conf"), format!("{around}{}}}\n", place.adapt(&server))).unwrap();
            let mut command = Command::new("nginx");
            command.args(["-c", "nginx.conf", "-e", "stderr", "-p"]).arg(folder);
            (command, "nginx")
        })
        .await
    }

    pub(crate) async fn caddy(rules: &str, application: &Application) -> Self {
        let file = block("caddy.md", "caddyfile");
        Self::start(rules, application, async |folder, place| {
            let text = format!("{{\n\tadmin off\n\tauto_https off\n}}\n{}", place.adapt(&file));
            fs::write(folder.join("Caddyfile"), text).unwrap();
            let mut command = Command::new("caddy");
            command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
            command.env("HOME", folder).env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
            (command, "caddy")
        })
        .await
    }

    pub(crate) async fn haproxy(rules: &str, application: &Application) -> Self {
        let (lua, config) = (block("haproxy.md", "lua"), block("haproxy.md", "haproxy"));
        Self::start(rules, application, async |folder, place| {
            fs::write(folder.join("tollgate.lua"), place.adapt(&lua)).unwrap();
            let script = folder.join("tollgate.lua").display().to_string();
            let text = place.adapt(&config).replace("/etc/haproxy/tollgate.lua", &script);
            fs::write(folder.join("haproxy.cfg"), text).unwrap();
            let mut command = Command::new("haproxy");
            command.args(["-db", "-f", "haproxy.cfg"]);
            (command, "haproxy")
        })
        .await
    }

    /// Starts tollgate, then the proxy that `command` makes, and waits until both answer.
    async fn start(
        rules: &str,
        application: &Application,
        command: impl AsyncFnOnce(&Path, Place<'_>) -> (Command, &'static str),
    ) -> Self {
        let folder = Scratch::new("proxy");
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let ready = folder.path().join("ready.json");
        let tollgate = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--http", "127.0.0.1:0", "--rules", "rules.yaml", "--ready-file"])
            .arg(&ready)
            .env("TOLLGATE_DATA_DIR", folder.path().join("data"))
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = poll::until("a tollgate that is ready", async || fs::read_to_string(&ready).ok()).await;
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let port = free_port();
        let place =
            Place { port, tollgate: said["http"].as_str().unwrap(), application: &application.address };
        let (mut command, package) = command(folder.path(), place).await;
        let log = File::create(folder.path().join("proxy.log")).unwrap();
        let process = command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{package} does not start: {error}; the Debian package is `{package}`")
            });
        let mut proxy = Proxy { port, process, tollgate, folder };
        poll::until("a proxy that listens", async || proxy.listens().await.then_some(())).await;
        proxy
    }

    async fn listens(&mut self) -> bool {
        let ended = self.process.try_wait().unwrap();
        assert!(
            ended.is_none(),
            "{ended:?}: {}",
            fs::read_to_string(self.folder.path().join("proxy.log")).unwrap()
        );
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_ok()
    }

    pub(crate) fn stop_tollgate(&mut self) {
        self.tollgate.kill().unwrap();
        self.tollgate.wait().unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for child in [&mut self.process, &mut self.tollgate] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The whole answer to a request that a client with this address sends.
pub(crate) async fn ask(port: u16, from: Ipv4Addr, line: &str, lines: &str) -> String {
    let exchange = async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let mut stream = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.unwrap();
        let head = format!("{line} HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\n{lines}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(poll::PATIENCE, exchange).await.expect("an answer")
}

pub(crate) fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no status: {answer}"))
}

/// A header's value, or nothing.
pub(crate) fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let head = answer.split("\r\n\r\n").next().unwrap_or_default();
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
}
