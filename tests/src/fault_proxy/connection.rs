//! One connection through the proxy.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Counters, Mode, Modes};

/// How much is read at once.
const CHUNK: usize = 64 << 10;
/// How many chunks may be on their way back.
const IN_FLIGHT: usize = 1_024;
/// The head of a reply that promises half a gigabyte, the most that Redis ever sends in one piece.
pub(super) const GIANT: &[u8] = b"$536870912\r\n";

/// Counts a connection as open while it lives.
struct Open(Arc<Counters>);

impl Open {
    fn new(counters: Arc<Counters>) -> Self {
        counters.open.fetch_add(1, Ordering::Relaxed);
        Open(counters)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a connection ends for the client.
enum End {
    Closed,
    Reset,
}

pub(super) async fn connection(
    mut client: TcpStream,
    server: SocketAddr,
    mode: Modes,
    counters: Arc<Counters>,
) {
    let open = Open::new(counters.clone());
    let end = match TcpStream::connect(server).await {
        Err(_) => End::Reset, // as if the server itself were not there
        Ok(server) => serve(&mut client, server, mode, &counters).await,
    };
    if matches!(end, End::Reset) {
        let _ = client.set_zero_linger();
    }
    drop(client);
    drop(open);
}

/// Carries bytes both ways until somebody has had enough.
async fn serve(client: &mut TcpStream, mut server: TcpStream, mode: Modes, counters: &Counters) -> End {
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let (arrived, replies) = mpsc::channel(IN_FLIGHT);
    let forgotten = forgotten(mode.clone());
    let replies = Replies { replies, client: to_client, mode: mode.clone(), counters };
    let end = tokio::select! {
        biased;
        end = broken(mode.clone()) => Some(end),
        () = forgotten => None,
        end = requests(from_client, to_server, mode.clone(), counters) => Some(end),
        () = collect(from_server, arrived) => Some(End::Closed),
        end = replies.run() => Some(end.unwrap_or(End::Closed)),
    };
    match end {
        Some(end) => end,
        None => silence(client, mode).await,
    }
}

/// Waits until the mode says that connections are forgotten.
async fn forgotten(mut mode: Modes) {
    if mode.wait_for(|mode| *mode == Mode::Forget).await.is_err() {
        pending().await
    }
}

/// Hears the client out and answers nothing until it gives up.
async fn silence(client: &mut TcpStream, mode: Modes) -> End {
    let mut nowhere = tokio::io::sink();
    tokio::select! {
        end = broken(mode) => end,
        _ = tokio::io::copy(client, &mut nowhere) => End::Closed,
    }
}

/// Waits until the mode says that no connection lives.
async fn broken(mut mode: Modes) -> End {
    match mode.wait_for(|mode| matches!(mode, Mode::Reset | Mode::Refuse)).await {
        Ok(_) => End::Reset,
        Err(_) => End::Closed,
    }
}

async fn requests(
    mut client: ReadHalf<'_>,
    mut server: WriteHalf<'_>,
    mut mode: Modes,
    counters: &Counters,
) -> End {
    let mut chunk = vec![0; CHUNK];
    loop {
        let Ok(length @ 1..) = client.read(&mut chunk).await else { return End::Closed };
        tokio::select! {
            let_through = mode.wait_for(|mode| *mode != Mode::Blackhole) => {
                if let_through.is_err() {
                    return End::Closed;
                }
            }
            () = gone(&mut client) => return End::Closed,
        }
        if server.write_all(&chunk[..length]).await.is_err() {
            return End::Closed;
        }
        counters.to_server.fetch_add(length as u64, Ordering::Relaxed);
    }
}

/// Waits until the client has closed the connection and sent nothing more.
async fn gone(client: &mut ReadHalf<'_>) {
    if let Ok(1..) = client.peek(&mut [0]).await {
        pending().await
    }
}

/// Notes when each piece of a reply arrived.
async fn collect(mut server: ReadHalf<'_>, arrived: mpsc::Sender<(Instant, Vec<u8>)>) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(length @ 1..) = server.read(&mut chunk).await {
        if arrived.send((Instant::now(), chunk[..length].to_vec())).await.is_err() {
            return;
        }
    }
    drop(arrived);
    // What is on its way still has to arrive; then the connection is closed.
    pending::<()>().await;
}

/// The way back.
struct Replies<'a> {
    replies: mpsc::Receiver<(Instant, Vec<u8>)>,
    client: WriteHalf<'a>,
    mode: Modes,
    counters: &'a Counters,
}

impl Replies<'_> {
    /// Sends replies, or what becomes of them. Ends with an error when the client is gone.
    async fn run(mut self) -> io::Result<End> {
        let mut passed = 0;
        let mut lost_one = false;
        loop {
            let mut mode = self.mode.clone();
            let (at, chunk) = tokio::select! {
                biased;
                _ = mode.wait_for(|mode| *mode != Mode::DropReplies), if lost_one => return Ok(End::Reset),
                chunk = self.replies.recv() => match chunk {
                    Some(chunk) => chunk,
                    None => return Ok(End::Closed),
                },
            };
            if self.mode.has_changed().unwrap_or(false) {
                passed = 0;
            }
            match self.settled(at).await {
                Mode::Answer(bytes) => self.send(bytes).await?,
                Mode::Giant => return self.never_end().await,
                Mode::DropReplies => lost_one = true,
                Mode::CutAfter(limit) => {
                    let left = usize::try_from(limit - passed).unwrap_or(usize::MAX).min(chunk.len());
                    self.send(&chunk[..left]).await?;
                    passed += left as u64;
                    if passed == limit {
                        return Ok(End::Closed);
                    }
                }
                _ => self.send(&chunk).await?,
            }
        }
    }

    /// The mode that decides about a piece which arrived at `at`, once it may go on.
    async fn settled(&mut self, at: Instant) -> Mode {
        loop {
            let mode = *self.mode.borrow_and_update();
            let until = match mode {
                Mode::Blackhole | Mode::Reset | Mode::Refuse => None,
                Mode::Delay(delay) => Some(at + delay),
                _ => return mode,
            };
            tokio::select! {
                () = wait(until) => return mode,
                _ = self.mode.changed() => {}
            }
        }
    }

    async fn never_end(&mut self) -> io::Result<End> {
        self.send(GIANT).await?;
        let mut mode = self.mode.clone();
        let nothing = vec![b'0'; CHUNK];
        loop {
            tokio::select! {
                biased;
                _ = mode.changed() => return Ok(End::Reset),
                sent = self.send(&nothing) => sent?,
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.client.write_all(bytes).await?;
        self.counters.to_client.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// Waits until then, or for ever.
async fn wait(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => pending().await,
    }
}
