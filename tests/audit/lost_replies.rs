//! The connection breaks after an insert was executed and before anybody was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tollgate::audit::ViolationLog;
use tollgate::sql::Database;

use crate::databases::Fresh;
use crate::recorded::{PATIENCE, Recorded, in_the_table};

/// What PostgreSQL says when rows were inserted.
const INSERTED: &[u8] = b"INSERT 0 ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_inserted_without_an_answer_is_neither_lost_nor_written_twice() {
    let fresh = Fresh::postgres().await;
    let swallowed = Arc::new(AtomicUsize::new(0));
    let url = proxy(&fresh.postgres.as_ref().unwrap().url(), Arc::clone(&swallowed)).await;
    let recorded = Recorded::with_room(20_000);
    let writer = recorded.writer(ViolationLog::new(Database::open(&url).await.unwrap()));
    for user in 0..10_000 {
        recorded.refuse(&user.to_string(), 2);
    }
    recorded.settled().await;
    let stats = writer.shutdown(PATIENCE).await;
    assert!(swallowed.load(Ordering::Relaxed) >= 3, "the answer to the first try of each batch was lost");
    assert_eq!((stats.written, stats.dropped, stats.pending), (20_000, 0, 0));
    assert_eq!(in_the_table(&fresh.database).await, (10_000, 20_000));
}

/// Stands between us and a server, and breaks every other connection on which rows were inserted, in place of the
/// answer.
async fn proxy(server: &str, swallowed: Arc<AtomicUsize>) -> String {
    let address = server.split(['@', '/']).find(|part| part.starts_with("127.0.0.1:")).unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = server.replace(&address, &listener.local_addr().unwrap().to_string());
    tokio::spawn(async move {
        let seen = Arc::new(AtomicUsize::new(0));
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&address).await.unwrap();
            let (seen, swallowed) = (Arc::clone(&seen), Arc::clone(&swallowed));
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let asking =
                    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                let mut reply = vec![0; 64 << 10];
                while let Ok(length @ 1..) = from_server.read(&mut reply).await {
                    let inserted = reply[..length].windows(INSERTED.len()).any(|part| part == INSERTED);
                    if inserted && seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                        swallowed.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                    if to_client.write_all(&reply[..length]).await.is_err() {
                        break;
                    }
                }
                asking.abort();
            });
        }
    });
    url
}
