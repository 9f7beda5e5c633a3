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
use tollgate_tests::signals::Signal;
use tollgate_tests::token;

use crate::application::Application;

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Nginx,
    /// nginx, configured as the ingress controller configures it.
    IngressNginx,
    /// A plain `proxy_pass`, of everything.
    PlainNginx,
    Caddy,
    Haproxy,
}

impl Kind {
    /// Those that let an operator choose what happens while tollgate gives no answer.
    pub(crate) const WITH_A_CHOICE: [Kind; 3] = [Kind::Nginx, Kind::Caddy, Kind::Haproxy];
}

/// What to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) kind: Kind,
    pub(crate) rules: &'a str,
    /// With the timeouts of the page. Otherwise they are long, because on a busy machine an answer that comes late passes.
    pub(crate) timeouts: bool,
    /// With the other failure choice.
    pub(crate) fail_closed: bool,
    /// What else is changed in the files of the page.
    pub(crate) changes: &'a [(&'a str, &'a str)],
    /// More flags of `tollgate serve`.
    pub(crate) flags: &'a [&'a str],
    /// Where something else answers in the place of tollgate.
    pub(crate) instead: Option<&'a str>,
}

impl Setup<'_> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Setup {
            kind,
            rules: "rules: [{ name: per-address, key: 'ip:{ip}', limit: 1/h }]",
            timeouts: false,
            fail_closed: false,
            changes: &[],
            flags: &[],
            instead: None,
        }
    }
}

/// Both end with it.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    process: Child,
    tollgate: Option<Child>,
    folder: Scratch,
}

/// What a page is to be adapted to.
struct Place<'a> {
    setup: &'a Setup<'a>,
    folder: &'a Path,
    port: u16,
    tollgate: &'a str,
    application: &'a str,
}

/// What the ingress controller's template makes of the annotations on the page.
const INGRESS: &str = "
server {
    listen 80;
    location = /_external-auth {
        internal;
        proxy_pass_request_body off;
        proxy_set_header Content-Length \"\";
        proxy_set_header X-Forwarded-Proto \"\";
        proxy_method GET;
        proxy_set_header Host tollgate.default.svc.cluster.local;
        proxy_set_header X-Original-URL $scheme://$http_host$request_uri;
        proxy_set_header X-Original-Method $request_method;
        proxy_set_header X-Sent-From nginx-ingress-controller;
        proxy_set_header X-Real-IP $remote_addr;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_set_header X-Auth-Request-Redirect $request_uri;
        proxy_pass_request_headers on;
        proxy_http_version 1.1;
        proxy_set_header Connection \"\";
        proxy_pass http://127.0.0.1:8080/v1/authz?deny_status=403;
    }
    location / {
        auth_request /_external-auth;
        proxy_pass http://127.0.0.1:3000;
    }
}
";

/// A proxy that passes everything on to the data plane.
const PASS_EVERYTHING: &str =
    "server {\n    listen 80;\n    location / { proxy_pass http://127.0.0.1:8080; }\n}\n";

/// What a system's own nginx.conf has around a site.
const AROUND_NGINX: &str = "daemon off;\nmaster_process off;\npid nginx.pid;\nerror_log stderr;\nevents {}\nhttp {\naccess_log off;\n\
     client_body_temp_path b;\nproxy_temp_path p;\nfastcgi_temp_path f;\nuwsgi_temp_path u;\nscgi_temp_path s;\n";

impl Place<'_> {
    /// A block of a page, for these ports and folders instead of the usual ones.
    fn adapt(&self, block: &str) -> String {
        let folder = self.folder.display().to_string();
        let mut block = block
            .replace("127.0.0.1:8080", self.tollgate)
            .replace("127.0.0.1:3000", self.application)
            .replace("listen 80;", &format!("listen 127.0.0.1:{};", self.port))
            .replace("bind :80", &format!("bind 127.0.0.1:{}", self.port))
            .replacen(":80 {", &format!("http://:{} {{\n\tbind 127.0.0.1", self.port), 1)
            .replace("/etc/nginx", &folder)
            .replace("/etc/haproxy", &folder);
        if !self.setup.timeouts {
            for setting in ["proxy_read_timeout         ", "timeout server ", "response_header_timeout "] {
                block = block.replace(&format!("{setting}1s"), &format!("{setting}15s"));
            }
            block = block.replace("250ms", "15s").replace("inter 1s fall 2", "inter 2s fall 8");
        }
        if self.setup.fail_closed {
            let handler =
                format!("\t\thandle @no_answer {{\n\t\t\treverse_proxy {}\n\t\t}}\n", self.application);
            block = block
                .replace("if ($tollgate_no_answer) { return 204; }", "")
                .replace("local FAIL_OPEN = true", "local FAIL_OPEN = false")
                .replace(&handler, "");
        }
        for (from, to) in self.setup.changes {
            block = block.replace(from, to);
        }
        block
    }

    /// Writes the files of the page, and says how the proxy is started with them.
    fn configure(&self) -> (Command, &'static str) {
        match self.setup.kind {
            Kind::Nginx => {
                let included = self.adapt(&file("nginx.md", "/etc/nginx/conf.d/tollgate.conf"));
                let site = self.adapt(&block("nginx.md", "nginx"));
                fs::create_dir(self.folder.join("tollgate")).unwrap();
                for name in ["tollgate/server.conf", "tollgate/location.conf"] {
                    self.write(name, &self.adapt(&file("nginx.md", &format!("/etc/nginx/{name}"))));
                }
                self.nginx(&format!("{included}{site}"))
            }
            Kind::IngressNginx => self.nginx(&self.adapt(INGRESS)),
            Kind::PlainNginx => self.nginx(&self.adapt(PASS_EVERYTHING)),
            Kind::Caddy => {
                let text = self.adapt(&block("caddy.md", "caddyfile"));
                self.write("Caddyfile", &format!("{{\n\tadmin off\n\tauto_https off\n}}\n{text}"));
                let mut command = Command::new("caddy");
                command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
                let home = self.folder;
                command.env("HOME", home).env("XDG_DATA_HOME", home).env("XDG_CONFIG_HOME", home);
                (command, "caddy")
            }
            Kind::Haproxy => {
                let between = format!("127.0.0.1:{}", free_port());
                for name in ["tollgate.lua", "haproxy.cfg"] {
                    let text = self.adapt(&file("haproxy.md", &format!("/etc/haproxy/{name}")));
                    self.write(name, &text.replace("127.0.0.1:8079", &between));
                }
                let mut command = Command::new("haproxy");
                command.args(["-db", "-f", "haproxy.cfg"]);
                (command, "haproxy")
            }
        }
    }

    fn nginx(&self, text: &str) -> (Command, &'static str) {
        self.write("nginx.conf", &format!("{AROUND_NGINX}{text}}}\n"));
        let mut command = Command::new("nginx");
        command.args(["-c", "nginx.conf", "-e", "stderr", "-p"]).arg(self.folder);
        (command, "nginx")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).unwrap();
    }
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide").join(name);
    fs::read_to_string(&path).unwrap()
}

/// The first block in a language of a page of the guide.
fn block(name: &str, language: &str) -> String {
    let text = page(name);
    let (_, rest) =
        text.split_once(&format!("```{language}\n")).unwrap_or_else(|| panic!("{name}: no {language}"));
    rest.split_once("\n```").unwrap().0.to_owned() + "\n"
}

/// The block that a page shows as the content of a file.
fn file(name: &str, path: &str) -> String {
    let text = page(name);
    let (_, rest) = text.split_once(&format!("\n`{path}`")).unwrap_or_else(|| panic!("{name}: no {path}"));
    let (_, rest) = rest.split_once("\n```").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    rest.split_once("\n```").unwrap().0.to_owned() + "\n"
}

impl Proxy {
    /// Starts tollgate, then the proxy, and waits until both answer.
    pub(crate) async fn start(setup: &Setup<'_>, application: &Application) -> Self {
        let folder = Scratch::new("proxy");
        let (tollgate, address) = match setup.instead {
            Some(address) => (None, address.to_owned()),
            None => {
                let (tollgate, address) = start_tollgate(setup, folder.path()).await;
                (Some(tollgate), address)
            }
        };
        let port = free_port();
        let application = &application.address;
        let place = Place { setup, folder: folder.path(), port, tollgate: &address, application };
        let (mut command, package) = place.configure();
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
        self.assert_running();
        tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_ok()
    }

    /// Fails where the proxy has ended, with what it said.
    pub(crate) fn assert_running(&mut self) {
        let ended = self.process.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", self.read("proxy.log"));
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap()
    }

    pub(crate) fn stop_tollgate(&mut self) {
        let tollgate = self.tollgate.as_mut().unwrap();
        tollgate.kill().unwrap();
        tollgate.wait().unwrap();
    }

    pub(crate) fn signal_tollgate(&self, signal: Signal) {
        signal.send(self.tollgate.as_ref().unwrap().id());
    }

    /// What tollgate has logged.
    pub(crate) fn tollgate_log(&self) -> String {
        self.read("tollgate.log")
    }

    /// The port of one of tollgate's listeners.
    pub(crate) fn listener(&self, name: &str) -> u16 {
        let ready: serde_json::Value =
            serde_json::from_slice(&fs::read(self.folder.path().join("ready.json")).unwrap()).unwrap();
        ready[name].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// Lines of a head that show tollgate its own token.
    pub(crate) fn token_lines(&self) -> String {
        token::lines(&self.folder.path().join("data"))
    }

    /// One of tollgate's metrics.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let port = self.listener("metrics");
        let head = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let text = send(port, Ipv4Addr::LOCALHOST, head).await;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name}: {text}")).trim().parse().unwrap()
    }
}

async fn start_tollgate(setup: &Setup<'_>, folder: &Path) -> (Child, String) {
    fs::write(folder.join("rules.yaml"), setup.rules).unwrap();
    let ready = folder.join("ready.json");
    let tollgate = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
        .args(["--rules", "rules.yaml", "--ready-file"])
        .arg(&ready)
        .args(setup.flags)
        .env("TOLLGATE_DATA_DIR", folder.join("data"))
        .env("NO_COLOR", "1")
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(File::create(folder.join("tollgate.log")).unwrap())
        .spawn()
        .unwrap();
    let said = poll::until("a tollgate that is ready", async || fs::read_to_string(&ready).ok()).await;
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    (tollgate, said["http"].as_str().unwrap().to_owned())
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for child in [Some(&mut self.process), self.tollgate.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The whole answer to a request that a client with this address sends.
pub(crate) async fn ask(port: u16, from: Ipv4Addr, line: &str, lines: &str) -> String {
    send(port, from, &format!("{line} HTTP/1.1\r\nhost: example.com\r\nconnection: close\r\n{lines}\r\n"))
        .await
}

/// The whole answer to these bytes.
pub(crate) async fn send(port: u16, from: Ipv4Addr, head: &str) -> String {
    let exchange = async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let mut stream = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await.unwrap();
        // A proxy may answer, and close, before it has read everything.
        let _ = stream.write_all(head.as_bytes()).await;
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
