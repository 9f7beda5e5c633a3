//! A PostgreSQL of the test's own: its own data directory, a free port, gone when the test is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::poll;
use crate::ports::Port;
use crate::scratch::Scratch;

/// Starting takes a second or two; a busy machine may take its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Dropping it stops the server and removes its data.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    port: Port,
    process: Option<Child>,
}

impl Postgres {
    /// Makes a data directory and starts a server on it.
    ///
    /// # Panics
    ///
    /// PostgreSQL is not installed, or does not start.
    pub fn start() -> Self {
        let programs = programs();
        let folder = Scratch::new("postgres").keep();
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(&folder));
        }
        let mut initdb = as_postgres(&programs.join("initdb"));
        run(initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"]).arg(folder.join("data")));
        let mut server = Postgres { programs, folder, port: Port::reserve(), process: None };
        server.resume();
        server
    }

    /// Where it is: `postgres://postgres@127.0.0.1:54321/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port())
    }

    /// The port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port.get()
    }

    /// Starts the server again on the same port and data.
    ///
    /// # Panics
    ///
    /// It does not start.
    pub fn resume(&mut self) {
        let mut postgres = as_postgres(&self.programs.join("postgres"));
        postgres
            .arg("-D")
            .arg(self.folder.join("data"))
            .args([
                "-p",
                &self.port().to_string(),
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "fsync=off",
                "-c",
            ])
            .arg(format!("unix_socket_directories={}", self.folder.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.process = Some(postgres.spawn().expect("initdb ran, so postgres is there"));
        poll::blocking("PostgreSQL accepts connections", PATIENCE, || {
            self.status().is_some_and(|(_, up)| up)
        });
    }

    /// Ends the server at once, as a crash would: `kill -QUIT`.
    ///
    /// # Panics
    ///
    /// It does not end.
    pub fn crash(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        if let Some((pid, _)) = self.status() {
            run(Command::new("kill").args(["-QUIT", &pid]));
        }
        process.wait().expect("it is our child");
        let _ = fs::remove_file(self.folder.join("data/postmaster.pid"));
    }

    /// The server's process, and whether it is up.
    fn status(&self) -> Option<(String, bool)> {
        let text = fs::read_to_string(self.folder.join("data/postmaster.pid")).ok()?;
        let pid = text.lines().next()?.trim().to_owned();
        Some((pid, text.lines().any(|line| line.trim() == "ready")))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.crash();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The folder of initdb and postgres; Debian keeps them out of the path.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let installed =
        versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists());
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let mut found: Vec<PathBuf> = installed.collect();
    found.sort();
    found
        .pop()
        .or_else(|| std::env::split_paths(&in_path).find(|bin| bin.join("initdb").exists()))
        .expect("these tests need PostgreSQL: apt-get install postgresql")
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("every system has `id`");
    output.stdout.starts_with(b"0\n")
}

/// PostgreSQL refuses to run as root.
fn as_postgres(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
