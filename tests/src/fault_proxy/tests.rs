use std::io::ErrorKind;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::connection::GIANT;
use super::*;

/// A server that sends back what it is sent, and the way to it through a proxy.
struct Echo {
    proxy: FaultProxy,
    server: JoinHandle<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = client.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        Echo { proxy: FaultProxy::start(port).await, server }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.proxy.port())).await.unwrap()
    }

    /// A connection that has been through once, so that both ends are known to be up.
    async fn connected(&self) -> TcpStream {
        let mut stream = self.connect().await;
        assert_eq!(ask(&mut stream, b"hello").await, b"hello");
        stream
    }

    /// Waits until a request has reached the server.
    async fn reached(&self, bytes: u64) {
        poll::until("the request to arrive", async || (self.proxy.to_server() >= bytes).then_some(())).await;
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn ask(stream: &mut TcpStream, words: &[u8]) -> Vec<u8> {
    stream.write_all(words).await.unwrap();
    read(stream, words.len()).await
}

async fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut answer = vec![0; length];
    tokio::time::timeout(poll::PATIENCE, stream.read_exact(&mut answer)).await.expect("in time").unwrap();
    answer
}

/// Everything up to the end of the connection, and whether that was a reset.
async fn rest(stream: &mut TcpStream) -> (Vec<u8>, Option<ErrorKind>) {
    let mut answer = Vec::new();
    let end = tokio::time::timeout(poll::PATIENCE, stream.read_to_end(&mut answer)).await.expect("in time");
    (answer, end.err().map(|error| error.kind()))
}

/// Whether nothing comes for a while. It can only miss a fault, never see one that is not there.
async fn is_silent(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    tokio::time::timeout(Duration::from_millis(50), stream.read(&mut byte)).await.is_err()
}

#[tokio::test]
async fn bytes_pass_and_are_counted() {
    let echo = Echo::start().await;
    let _first = echo.connected().await;
    let mut second = echo.connected().await;
    assert_eq!(ask(&mut second, b"again").await, b"again");
    assert_eq!((echo.proxy.accepted(), echo.proxy.open()), (2, 2));
    assert_eq!((echo.proxy.to_server(), echo.proxy.to_client()), (15, 15));
    drop(second);
    poll::until("one to be closed", async || (echo.proxy.open() == 1).then_some(())).await;
}

#[tokio::test]
async fn a_delayed_reply_arrives_later_and_at_once_when_the_delay_is_lifted() {
    let echo = Echo::start().await;
    let mut stream = echo.connected().await;
    let delay = Duration::from_millis(60);
    echo.proxy.set(Mode::Delay(delay)).await;
    let asked = Instant::now();
    assert_eq!(ask(&mut stream, b"late").await, b"late");
    assert!(asked.elapsed() >= delay);

    echo.proxy.set(Mode::Delay(Duration::from_secs(3_600))).await;
    stream.write_all(b"never").await.unwrap();
    echo.reached(14).await;
    echo.proxy.set(Mode::Pass).await;
    assert_eq!(read(&mut stream, 5).await, b"never");
}

#[tokio::test]
async fn nothing_leaves_a_black_hole_until_it_heals() {
    let echo = Echo::start().await;
    let mut old = echo.connected().await;
    echo.proxy.set(Mode::Blackhole).await;
    old.write_all(b"one").await.unwrap();
    let mut new = echo.connect().await;
    new.write_all(b"two").await.unwrap();
    assert!(is_silent(&mut old).await && is_silent(&mut new).await);
    assert_eq!(echo.proxy.to_server(), 5, "requests do not pass either");
    echo.proxy.set(Mode::Pass).await;
    assert_eq!(read(&mut old, 3).await, b"one");
    assert_eq!(read(&mut new, 3).await, b"two");
}

#[tokio::test]
async fn a_forgotten_connection_is_silent_for_ever_and_a_new_one_is_not() {
    let echo = Echo::start().await;
    let mut old = echo.connected().await;
    echo.proxy.set(Mode::Forget).await;
    let mut new = echo.connect().await;
    new.write_all(b"two").await.unwrap();
    assert!(is_silent(&mut new).await);
    echo.proxy.set(Mode::Pass).await;
    old.write_all(b"one").await.unwrap();
    assert!(is_silent(&mut old).await && is_silent(&mut new).await);
    echo.connected().await;
    drop((old, new));
    poll::until("all to be closed", async || (echo.proxy.open() == 0).then_some(())).await;
}

#[tokio::test]
async fn open_connections_are_reset_at_once_and_new_ones_when_they_are_accepted() {
    let echo = Echo::start().await;
    let mut old = echo.connected().await;
    echo.proxy.set(Mode::Reset).await;
    assert_eq!(rest(&mut old).await.1, Some(ErrorKind::ConnectionReset));
    let mut new = echo.connect().await;
    assert_eq!(rest(&mut new).await.1, Some(ErrorKind::ConnectionReset));
    echo.proxy.set(Mode::Pass).await;
    echo.connected().await;
}

#[tokio::test]
async fn nobody_listens_while_connections_are_refused() {
    let echo = Echo::start().await;
    let mut old = echo.connected().await;
    echo.proxy.set(Mode::Refuse).await;
    assert_eq!(rest(&mut old).await.1, Some(ErrorKind::ConnectionReset));
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, echo.proxy.port())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    echo.proxy.set(Mode::Pass).await;
    echo.connected().await;
}

#[tokio::test]
async fn a_reply_is_cut_where_it_was_said() {
    let echo = Echo::start().await;
    let mut stream = echo.connected().await;
    echo.proxy.set(Mode::CutAfter(3)).await;
    stream.write_all(b"truncated").await.unwrap();
    assert_eq!(rest(&mut stream).await.0, b"tru");

    // The server has the request, the client not a byte of the reply.
    let mut stream = echo.connect().await;
    echo.proxy.set(Mode::CutAfter(0)).await;
    let before = echo.proxy.to_server();
    stream.write_all(b"executed").await.unwrap();
    assert_eq!(rest(&mut stream).await.0, b"");
    assert_eq!(echo.proxy.to_server(), before + 8);
}

#[tokio::test]
async fn a_lost_reply_never_arrives_and_its_connection_does_not_survive() {
    let echo = Echo::start().await;
    let mut old = echo.connected().await;
    let mut idle = echo.connected().await;
    echo.proxy.set(Mode::DropReplies).await;
    old.write_all(b"lost").await.unwrap();
    echo.reached(14).await;
    assert!(is_silent(&mut old).await);
    echo.proxy.set(Mode::Pass).await;
    assert_eq!(rest(&mut old).await, (Vec::new(), Some(ErrorKind::ConnectionReset)));
    assert_eq!(ask(&mut idle, b"still here").await, b"still here");
}

#[tokio::test]
async fn another_answer_comes_instead_of_the_servers() {
    let echo = Echo::start().await;
    let mut stream = echo.connected().await;
    echo.proxy.set(Mode::GARBAGE).await;
    stream.write_all(b"PING\r\n").await.unwrap();
    assert_eq!(read(&mut stream, 9).await, b"HTTP/1.1 ");
    assert_eq!(echo.proxy.to_server(), 11, "the server got the request");
}

#[tokio::test]
async fn a_giant_reply_has_no_end_until_the_mode_changes() {
    let echo = Echo::start().await;
    let mut stream = echo.connected().await;
    echo.proxy.set(Mode::Giant).await;
    stream.write_all(b"PING\r\n").await.unwrap();
    let start = read(&mut stream, 4 << 20).await;
    assert!(start.starts_with(GIANT));
    echo.proxy.set(Mode::Pass).await;
    assert_eq!(rest(&mut stream).await.1, Some(ErrorKind::ConnectionReset));
}
