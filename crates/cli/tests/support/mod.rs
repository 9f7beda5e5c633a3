//! A server as a process of its own, and what it says on standard error.

#![allow(dead_code, reason = "not every suite needs all of it")]

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, mem};

use tollgate_tests::poll::PATIENCE;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::signals::Signal;
use tollgate_tests::token;

pub(crate) struct Served {
    process: Child,
    pub(crate) http: String,
    pub(crate) admin: String,
    pub(crate) greeting: String,
    data: PathBuf,
    scratch: Scratch,
}

impl Served {
    /// Starts a server on a free port and waits until it says where.
    pub(crate) fn start(args: &[&str]) -> Self {
        let scratch = Scratch::new("served");
        let (ready, log) = (scratch.path().join("ready.json"), scratch.path().join("log"));
        let given = args.iter().position(|arg| *arg == "--data-dir").map(|at| PathBuf::from(args[at + 1]));
        let data = given.unwrap_or_else(|| scratch.path().join("data"));
        let mut process = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--http", "127.0.0.1:0", "--ready-file"])
            .arg(&ready)
            .args(["--admin", "127.0.0.1:0"].iter().filter(|_| !args.contains(&"--admin")))
            .args(args)
            .env("TOLLGATE_DATA_DIR", &data)
            .current_dir(scratch.path())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        // The greeting is written after the ready file.
        let mut greeting = String::new();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        while !greeting.contains("store ") {
            let read = out.read_line(&mut greeting).unwrap();
            assert!(read > 0, "the server ended: {greeting}{}", fs::read_to_string(&log).unwrap());
        }
        let ready: serde_json::Value = serde_json::from_slice(&fs::read(&ready).unwrap()).unwrap();
        let [http, admin] = ["http", "admin"].map(|name| ready[name].as_str().unwrap().to_owned());
        Served { process, http, admin, greeting, data, scratch }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its data directory, where commands find it.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.send("GET", path, "", "")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        self.send("POST", path, "", body)
    }

    /// One request on a connection of its own, with further lines in its head, and the whole answer. It shows the server's own
    /// token where none is in the head.
    pub(crate) fn send(&self, method: &str, path: &str, head: &str, body: &str) -> String {
        let mut connection = connect(self.plane_of(path));
        let token = if head.contains("authorization") { String::new() } else { token::lines(&self.data) };
        connection.write(method, path, &format!("connection: close\r\n{token}{head}"), body).unwrap();
        let mut answer = String::new();
        connection.0.read_to_string(&mut answer).unwrap();
        answer
    }

    /// A connection for one request after the other.
    pub(crate) fn keep_alive(&self) -> Connection {
        connect(&self.http)
    }

    /// The address that serves a path.
    pub(crate) fn plane_of(&self, path: &str) -> &str {
        if is_data(path) { &self.http } else { &self.admin }
    }

    /// Stops the server and reads its log.
    pub(crate) fn stop(mut self) -> String {
        Signal::Terminate.send(self.pid());
        assert!(self.process.wait().unwrap().success());
        fs::read_to_string(self.scratch.path().join("log")).unwrap()
    }

    /// Waits for a server that was told to stop.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the data plane serves a path.
pub(crate) fn is_data(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or(path);
    path.starts_with("/v1/check")
        || path.starts_with("/v1/authz")
        || ["/v1/peek", "/v1/refund", "/v1/reserve", "/v1/settle", "/livez", "/readyz"].contains(&path)
}

fn connect(address: &str) -> Connection {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Connection(BufReader::new(stream))
}

pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Sends a request and reads its answer.
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<String> {
        self.write(method, path, "", body)?;
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut answer)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let length = answer.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body)?;
        answer.push_str(&String::from_utf8(mem::take(&mut body)).unwrap());
        Ok(answer)
    }

    fn write(&mut self, method: &str, path: &str, head: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {length}\r\n\r\n{body}"
        );
        self.0.get_mut().write_all(request.as_bytes())
    }
}

pub(crate) fn status(answer: &str) -> u16 {
    answer
        .get(9..12)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

pub(crate) fn body(answer: &str) -> String {
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}
