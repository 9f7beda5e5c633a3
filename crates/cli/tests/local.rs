//! One server over a data directory, and commands on the same machine that find it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Output};

use support::{Served, status};
use tollgate_tests::scratch::Scratch;
use tollgate_tests::signals::Signal;

fn tollgate(data: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(words).env_clear().env("TOLLGATE_DATA_DIR", data).output().unwrap()
}

/// The exit code, standard output and standard error.
fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn serve(data: &Path) -> Served {
    Served::start(&["--data-dir", data.to_str().unwrap()])
}

#[test]
fn a_second_server_over_a_data_directory_refuses_to_start_and_says_why() {
    let served = Served::start(&[]);
    let second = tollgate(served.data(), &["serve", "--http", ":0", "--admin", ":0"]);
    let (code, _, told) = said(&second);
    assert_eq!(code, Some(2), "{told}");
    let other = format!("another server (process {}, http://{}) runs over", served.pid(), served.admin);
    assert!(told.contains(&other) && told.contains("--data-dir"), "{told}");
    assert_eq!(status(&served.get("/v1/rules")), 200, "the first goes on");
}

#[test]
fn commands_find_the_running_server_and_say_so_and_read_the_database_without_one() {
    let scratch = Scratch::new("local");
    let data = scratch.path().join("data");
    let (code, listed, told) = said(&tollgate(&data, &["rules", "list"]));
    assert!(code == Some(0) && told.contains("using the built-in starter set"), "{told}");
    assert!(listed.contains("per-user-free") && !data.exists(), "{listed}");

    let served = serve(&data);
    let file = data.join("server.json");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let asking = format!("asking the server at http://{}\n", served.admin);
    let (code, _, told) =
        said(&tollgate(&data, &["rules", "add", "--name", "mine", "--key", "global", "--limit", "5/s"]));
    assert_eq!((code, told), (Some(0), asking.clone()));
    for words in [&["rules", "list"][..], &["explain"], &["rules", "history"]] {
        let (code, out, told) = said(&tollgate(&data, words));
        assert_eq!((code, told), (Some(0), asking.clone()), "{words:?}");
        assert!(out.contains("mine"), "{words:?}: {out}");
    }
    assert!(said(&tollgate(&data, &["rules", "history", "--json"])).1.contains(r#""who":"admin""#));
    let (code, _, told) = said(&tollgate(&data, &["check"]));
    assert_eq!((code, told), (Some(0), format!("asking the server at http://{}\n", served.http)));
    let (code, link, _) = said(&tollgate(&data, &["dashboard"]));
    assert_eq!(code, Some(0));
    assert!(link.starts_with(&format!("http://{}/#/login/", served.admin)), "{link}");
    served.stop();
    assert!(!file.exists());

    let (code, listed, told) = said(&tollgate(&data, &["rules", "list"]));
    assert!(code == Some(0) && told.contains("no server is running; reading"), "{told}");
    assert!(listed.contains("mine"), "{listed}");
    let (code, _, told) = said(&tollgate(&data, &["dashboard"]));
    assert!(code == Some(2) && told.contains("no server runs over the data directory"), "{told}");
}

#[test]
fn what_a_killed_server_leaves_behind_is_ignored() {
    let scratch = Scratch::new("killed");
    let data = scratch.path().join("data");
    let served = serve(&data);
    Signal::Kill.send(served.pid());
    served.wait();
    assert!(data.join("server.json").exists());
    let (code, _, told) = said(&tollgate(&data, &["rules", "list"]));
    assert!(code == Some(0) && told.contains("no server is running; reading"), "{told}");
    // A process that has its number by now is no server over this directory either.
    let text = fs::read_to_string(data.join("server.json")).unwrap();
    let mut left: serde_json::Value = serde_json::from_str(&text).unwrap();
    left["pid"] = std::process::id().into();
    fs::write(data.join("server.json"), left.to_string()).unwrap();
    let (_, _, told) = said(&tollgate(&data, &["rules", "list"]));
    assert!(told.contains("no server is running"), "{told}");
    serve(&data).stop();
}

#[test]
fn a_token_that_others_can_read_keeps_the_server_from_starting() {
    let scratch = Scratch::new("exposed");
    let data = scratch.path().join("data");
    serve(&data).stop();
    let token = data.join("token");
    assert_eq!(fs::metadata(&token).unwrap().mode() & 0o777, 0o600);
    fs::set_permissions(&token, fs::Permissions::from_mode(0o640)).unwrap();
    let (code, _, told) = said(&tollgate(&data, &["serve", "--http", ":0", "--admin", ":0"]));
    assert!(code == Some(2) && told.contains("chmod 600"), "{told}");
}

#[test]
fn the_admin_plane_on_a_unix_socket_is_found_by_commands_and_is_for_its_user_only() {
    let scratch = Scratch::new("socket");
    let (data, socket) = (scratch.path().join("data"), scratch.path().join("admin.sock"));
    let admin = format!("unix:{}", socket.display());
    let serve = || Served::start(&["--data-dir", data.to_str().unwrap(), "--admin", &admin]);
    let served = serve();
    assert_eq!(served.admin, admin, "in the ready file");
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    let (code, _, told) =
        said(&tollgate(&data, &["rules", "add", "--name", "mine", "--key", "global", "--limit", "5/s"]));
    assert_eq!((code, told), (Some(0), format!("asking the server at {admin}\n")));
    let named = tollgate(&scratch.path().join("other"), &["rules", "list", "--server", &admin]);
    let (code, _, told) = said(&named);
    assert!(code == Some(2) && told.contains("token"), "no token was named: {told}");
    let (_, link, _) = said(&tollgate(&data, &["dashboard"]));
    assert!(link.starts_with("http://localhost:8081/#/login/"), "{link}");
    assert!(link.contains(&format!("ssh -L 8081:{}", socket.display())), "{link}");

    let second = tollgate(&scratch.path().join("second"), &["serve", "--http", ":0", "--admin", &admin]);
    let (code, _, told) = said(&second);
    assert!(code == Some(2) && told.contains("is another program there?"), "{told}");

    let file = scratch.path().join("rules.yaml");
    fs::write(&file, "rules: []").unwrap();
    let taken = format!("unix:{}", file.display());
    let third = tollgate(&scratch.path().join("third"), &["serve", "--http", ":0", "--admin", &taken]);
    assert_eq!(said(&third).0, Some(2));
    assert_eq!(fs::read_to_string(&file).unwrap(), "rules: []", "only sockets are replaced");

    // The socket of a server that was killed is no obstacle, and one that stops removes its own.
    Signal::Kill.send(served.pid());
    served.wait();
    assert!(socket.exists());
    let served = serve();
    let (code, listed, _) = said(&tollgate(&data, &["rules", "list"]));
    assert!(code == Some(0) && listed.contains("mine"), "{listed}");
    served.stop();
    assert!(!socket.exists());
}
