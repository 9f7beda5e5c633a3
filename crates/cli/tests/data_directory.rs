//! What becomes of a data directory, or of the database in it, that is not as it was left.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::Served;
use tollgate_tests::poll;
use tollgate_tests::scratch::Scratch;
use tollgate_tests::signals::Signal;

/// A user that owns nothing.
const NOBODY: u32 = 65_534;
const RULE: &str = r#"{"name": "mine", "key": "global", "limit": "5/2s burst 9"}"#;

fn serve(data: &Path) -> Served {
    Served::start(&["--data-dir", data.to_str().unwrap()])
}

/// What a server that does not start says, in one line.
fn refusal(command: &mut Command, data: &Path) -> String {
    let output =
        command.args(["serve", "--http", ":0", "--admin", ":0", "--data-dir"]).arg(data).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(!told.contains("password"), "{told}");
    told.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn tollgate() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
}

/// A data directory in which a server has run, with a rule of its own.
fn used() -> (Scratch, PathBuf) {
    let scratch = Scratch::new("data");
    let data = scratch.path().join("data");
    let served = serve(&data);
    let added = served.post("/v1/rules", RULE);
    assert!(added.starts_with("HTTP/1.1 201"), "{added}");
    served.stop();
    (scratch, data)
}

/// Deletes the database with its logs.
fn delete(data: &Path) {
    for name in ["tollgate.db", "tollgate.db-wal", "tollgate.db-shm"] {
        let _ = fs::remove_file(data.join(name));
    }
}

#[test]
fn an_empty_database_is_refused_and_begins_anew_once_it_is_deleted() {
    let (_scratch, data) = used();
    let database = data.join("tollgate.db");
    fs::write(&database, "").unwrap();
    let told = refusal(&mut tollgate(), &data);
    assert!(told.contains("tollgate.db: it is empty (0 bytes)") && told.contains("delete it"), "{told}");
    assert_eq!(fs::metadata(&database).unwrap().len(), 0, "it was left as it is");
    delete(&data);
    let served = serve(&data);
    assert!(served.greeting.contains("a starter set"), "{}", served.greeting);
    served.stop();
    for entry in fs::read_dir(&data).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let kept = name.starts_with("tollgate.db") || ["token", "server.lock"].contains(&&*name);
        assert!(kept, "{name} was left behind");
    }
    assert_eq!(fs::metadata(database).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_file_that_is_not_a_database_and_a_log_without_one_are_refused() {
    let (_scratch, data) = used();
    let database = data.join("tollgate.db");
    fs::write(&database, "rules: []\n".repeat(1_000)).unwrap();
    let told = refusal(&mut tollgate(), &data);
    assert!(told.contains("it is not an SQLite database, or it is damaged; restore it"), "{told}");
    delete(&data);
    fs::write(data.join("tollgate.db-wal"), "frames").unwrap();
    let told = refusal(&mut tollgate(), &data);
    assert!(
        told.contains("it is missing, but its log is there") && told.contains("delete the log too"),
        "{told}"
    );
    assert!(!database.exists());
}

#[test]
fn writes_to_a_database_that_was_deleted_replaced_or_emptied_are_refused() {
    for (what, told, way_out) in [
        ("deleted", "deleted or moved", "put the file back or restore it"),
        ("replaced", "replaced by another", "restart tollgate"),
        ("emptied", "it is empty", "restore it from a backup"),
    ] {
        let (_scratch, data) = used();
        let database = data.join("tollgate.db");
        let served = serve(&data);
        let added = served.post("/v1/rules", r#"{"name": "before", "key": "global", "limit": "7/s"}"#);
        assert!(added.starts_with("HTTP/1.1 201"), "{added}");
        match what {
            "deleted" => fs::remove_file(&database).unwrap(),
            "replaced" => {
                fs::copy(&database, data.join("copy")).unwrap();
                fs::rename(data.join("copy"), &database).unwrap();
            }
            _ => fs::write(&database, "").unwrap(),
        }
        let answer = served.post("/v1/rules", r#"{"name": "after", "key": "global", "limit": "7/s"}"#);
        assert!(answer.starts_with("HTTP/1.1 503"), "{what}: {answer}");
        assert!(answer.contains(told) && answer.contains(way_out), "{what}: {answer}");
        // Decisions go on with the rules there are.
        let check = served.post("/v1/check", r#"{"attributes": {"user_id": "42"}}"#);
        assert!(check.starts_with("HTTP/1.1 200"), "{what}: {check}");
        let log = served.stop();
        assert!(log.contains(told), "{what}: {log}");
    }
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named() {
    let (scratch, data) = used();
    for name in ["server.lock", "token"] {
        fs::remove_file(data.join(name)).unwrap(); // which are only ours
    }
    // Root may write everywhere, so the server runs as somebody else, from where that user finds it.
    let is_root = fs::metadata(&data).unwrap().uid() == 0;
    let program = scratch.path().join("tollgate");
    fs::copy(env!("CARGO_BIN_EXE_tollgate"), &program).unwrap();
    let unprivileged = || {
        let mut command = Command::new(&program);
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&data.join("tollgate.db"), 0o444);
    mode(&data, 0o555);
    let told = refusal(&mut unprivileged(), &data);
    let named = format!("the data directory {} cannot be written", data.display());
    assert!(told.contains(&named) && told.contains("--data-dir"), "{told}");

    // Only the file.
    mode(&data, 0o777);
    let told = refusal(&mut unprivileged(), &data);
    assert!(told.contains(&named) && told.contains("it cannot be written: Permission denied"), "{told}");

    // Nothing is there yet, and nothing can be made.
    delete(&data);
    mode(&data, 0o555);
    let told = refusal(&mut unprivileged(), &data);
    assert!(told.contains(&named) && told.contains("Permission denied"), "{told}");
    mode(scratch.path(), 0o755);
    let told = refusal(&mut unprivileged(), &data.join("deeper"));
    assert!(told.contains("cannot make the data directory") && told.contains("--data-dir"), "{told}");
    mode(&data, 0o755);
}

#[test]
fn options_of_serve_work_without_the_word_serve() {
    let scratch = Scratch::new("no-serve");
    let ready = scratch.path().join("ready.json");
    let mut process = tollgate()
        .args(["--color", "never", "--http", ":0", "--admin", ":0", "--ready-file"])
        .arg(&ready)
        .arg("--data-dir")
        .arg(scratch.path().join("data"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    poll::blocking("the server is up", poll::PATIENCE, || {
        fs::read_to_string(&ready).is_ok_and(|text| text.contains(r#""http":"127.0.0.1:"#))
    });
    Signal::Terminate.send(process.id());
    assert!(process.wait().unwrap().success());

    let output = tollgate().args(["--htpp", ":9000"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && told.contains("--http"), "{told}");
    let output = tollgate().args(["--http", "nowhere"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && told.contains("`:8080` for 127.0.0.1:8080"), "{told}");

    // The overview stays an overview.
    let help = String::from_utf8(tollgate().arg("--help").output().unwrap().stdout).unwrap();
    assert!(help.contains("[COMMAND]") && help.contains("tollgate --http :9000"), "{help}");
    assert!(help.lines().count() < 35 && !help.contains("--ready-file"), "{help}");
}
