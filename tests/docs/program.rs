//! The programs the docs talk about, as the build left them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

use tollgate_tests::poll;

/// Where the docs say the server listens.
const DOCUMENTED: &str = "127.0.0.1:8080";
const DOCUMENTED_ADMIN: &str = "127.0.0.1:8081";
/// Where they say its data is.
const DOCUMENTED_DATA: &str = "~/.local/share/tollgate";

/// The folder of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the tests stand in the project")
}

/// The folder of what was built together with this test.
pub(crate) fn built() -> PathBuf {
    let this = env::current_exe().expect("this program has a path");
    let built = this.ancestors().nth(2).expect("target/PROFILE/deps/this").to_owned();
    for (program, package) in [
        ("tollgate", ["-p", "tollgate-cli", "--bins"]),
        ("examples/until_allowed", ["-p", "tollgate", "--examples"]),
    ] {
        // `cargo test --workspace` has built them all; a run of this test alone has not.
        if !built.join(program).exists() {
            build(&built, &package);
        }
    }
    built
}

fn build(built: &Path, package: &[&str]) {
    let profile = match built.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", profile])
        .args(package)
        .env("CARGO_TARGET_DIR", built.parent().expect("target/PROFILE"))
        .current_dir(root())
        .status();
    assert!(status.expect("cargo starts").success(), "{package:?} does not build");
}

/// A folder that goes away with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("tollgate-docs-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a writable temporary folder");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server on a free port, stopped when it is dropped.
pub(crate) struct Server {
    child: Child,
    http: String,
    admin: String,
    /// Its ready file and its data.
    scratch: Scratch,
}

impl Server {
    /// Starts it in a folder, so that it finds the rules there.
    pub(crate) async fn start(args: &[&str], folder: &Path) -> Self {
        let scratch = Scratch::new();
        let ready = scratch.0.join("ready.json");
        let mut child = Command::new(built().join("tollgate"))
            .args(["serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ready-file"])
            .arg(&ready)
            .args(args)
            .env_remove("TOLLGATE_DATA_DIR")
            .env("XDG_DATA_HOME", scratch.0.join("share"))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let text = poll::until("the server to be ready", async || {
            let ended = child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            fs::read_to_string(&ready).ok()
        })
        .await;
        let ready: serde_json::Value = serde_json::from_str(&text).expect("addresses as JSON");
        let [http, admin] =
            ["http", "admin"].map(|name| ready[name].as_str().expect("an address").to_owned());
        Server { child, http, admin, scratch }
    }

    /// A command of the docs, sent to this server.
    pub(crate) fn here(&self, command: &str) -> String {
        let here = command.replace(DOCUMENTED, &self.http).replace(DOCUMENTED_ADMIN, &self.admin);
        here.replace(DOCUMENTED_DATA, &self.data().display().to_string())
    }

    /// Where programs keep their data: as on a machine of its own.
    pub(crate) fn share(&self) -> PathBuf {
        self.scratch.0.join("share")
    }

    /// Its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.share().join("tollgate")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
