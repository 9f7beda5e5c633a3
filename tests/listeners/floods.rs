//! Clients that are slow, that come in numbers, or send too much.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tollgate_server::ListenerLimits;
use tollgate_tests::poll::until;

use crate::server::{Options, Running, ask, check, impatient, read_to_end};

#[tokio::test]
async fn whoever_does_not_finish_the_head_of_a_request_is_cut_off_and_others_are_served() {
    let server = Running::start(Options { limits: impatient(), ..Options::default() }).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = server.connect().await;
        stream.write_all(b"POST /v1/check HTTP/1.1\r\nhost: loc").await.unwrap();
        slow.push(stream);
    }
    slow.push(server.connect().await); // and one that says nothing at all
    assert!(server.serves().await);
    for mut stream in slow {
        read_to_end(&mut stream).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_client_of_http_2_that_does_not_finish_its_preface_is_cut_off() {
    let server = Running::start(Options { limits: impatient(), ..Options::default() }).await;
    for begun in ["PRI ", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        let mut stream = server.connect().await;
        stream.write_all(begun.as_bytes()).await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, "", "it could not read an answer of HTTP/1");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_answered_408() {
    let server = Running::start(Options { limits: impatient(), ..Options::default() }).await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        .await
        .unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(
        answer.contains("application/problem+json") && answer.contains("the request took too long"),
        "{answer}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_full_listener_answers_livez_and_says_so_to_others_until_a_place_is_free() {
    let limits = ListenerLimits { connections: 3, ..ListenerLimits::default() };
    let server = Running::start(Options { limits, ..Options::default() }).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = server.connect().await;
        let request = check("").replace("connection: close\r\n", "");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        held.push(stream);
    }
    let full = server.ask(&check("")).await;
    assert!(full.starts_with("HTTP/1.1 503") && full.contains("too many connections"), "{full}");
    assert!(full.contains("\r\nretry-after: 1\r\n") && full.contains("\r\nconnection: close\r\n"), "{full}");
    let alive = server.ask("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(alive.starts_with("HTTP/1.1 200 OK") && alive.ends_with("\r\n\r\nok\n"), "{alive}");
    held.pop();
    until("the place to be free", async || server.serves().await.then_some(())).await;
    server.stop().await;
}

#[tokio::test]
async fn heads_beyond_16_kib_are_431_and_bodies_beyond_64_kib_are_413() {
    let server = Running::start(Options::default()).await;
    // Just as much as is too much: what is left unread when it hangs up could cost us the answer.
    let mut head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nx-long: ".to_owned();
    head.push_str(&"a".repeat((16 << 10) - head.len()));
    let answer = server.ask(&head).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let body = format!(r#"{{"attributes": {{"user_id": "{}"}}}}"#, "a".repeat(64 << 10));
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = server.ask(&request).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(server.serves().await);
    server.stop().await;
}

/// Also where the client sends far more than is read, and on a connection that was used before.
#[tokio::test]
async fn a_head_that_cannot_be_parsed_is_answered_with_a_problem_and_the_chosen_status() {
    let server = Running::start(Options::default()).await;
    let authz = "GET /v1/authz?deny_status=403 HTTP/1.1\r\nhost: localhost\r\n";
    let many: String = (0..101).map(|n| format!("x-{n}: {n}\r\n")).collect();
    let before = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for (head, more, line, real) in [
        ("GET / HTTP/1.1\r\n", format!("x: {}\r\n\r\n", "a".repeat(100 << 10)), "431 ", None),
        ("GET / HTTP/1.1\r\n", format!("{many}\r\n"), "431 ", None),
        ("GET / HTTP/1.1\r\n", "x: a\u{1}b\r\n\r\n".to_owned(), "400 ", None),
        (authz, format!("x: {}\r\n\r\n", "a".repeat(100 << 10)), "403 ", Some("431")),
        (authz, format!("{many}\r\n"), "403 ", Some("431")),
        (authz, "x: a\u{1}b\r\n\r\n".to_owned(), "403 ", Some("400")),
    ] {
        for is_used in [false, true] {
            let mut stream = server.connect().await;
            if is_used {
                stream.write_all(before.as_bytes()).await.unwrap();
                let mut answer = Vec::new();
                while !answer.ends_with(b"ok\n") {
                    assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "an answer");
                }
            }
            let answer = ask(stream, &format!("{head}{more}")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {line}")), "{head} {is_used}: {answer}");
            assert!(answer.contains("\r\ncontent-type: application/problem+json\r\n"), "{answer}");
            let told = answer.lines().find_map(|line| line.strip_prefix("tollgate-status: "));
            assert_eq!(told, real, "{answer}");
            let problem: serde_json::Value =
                serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
            assert_eq!(problem["status"].to_string(), real.unwrap_or(line.trim()), "{answer}");
        }
    }
    assert!(server.serves().await);
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_http_is_refused_and_harms_nobody() {
    let server = Running::start(Options::default()).await;
    for garbage in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "*1000000000\r\n",
        "\u{16}\u{3}\u{1}",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
    ] {
        let mut stream = server.connect().await;
        stream.write_all(garbage.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{garbage:?}: {answer}");
    }
    let smuggled = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut stream = server.connect().await;
    stream.write_all(smuggled.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(!answer.contains("\r\n\r\nok\n"), "the second request was never one: {answer}");
    assert!(server.serves().await);
    server.stop().await;
}

/// How long each takes is measured in `bench/`; here everybody is answered while the flood stands.
#[tokio::test]
async fn while_a_flood_of_slow_clients_stands_others_are_answered() {
    let server = Running::start(Options::default()).await;
    let begun = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{";
    let mut flood = Vec::new();
    for number in 0..400 {
        let mut stream = server.connect().await;
        // Silent, in the middle of a line, in the middle of a body, in the middle of the preface of HTTP/2.
        let said = [&b""[..], b"POST /v1/che", begun.as_bytes(), b"PRI * HTTP/2.0\r\n\r\nSM"][number % 4];
        stream.write_all(said).await.unwrap();
        flood.push(stream);
    }
    for round in 0..50 {
        for stream in flood.iter_mut().skip(round % 4).step_by(4) {
            let _ = stream.write_all(b" ").await; // who is cut off already is no help to the flood
        }
        assert!(server.serves().await, "round {round}");
    }
    drop(flood);
    server.stop().await;
}
