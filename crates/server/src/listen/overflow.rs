//! Connections beyond the places of a listener: `GET /livez` is answered, everything else is told that the server is full.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use bytes::BytesMut;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tollgate::Timestamp;

use super::head::MAX_HEAD_BYTES;
use crate::http::Problem;

/// Time for one such connection.
const OVERFLOW_TIMEOUT: Duration = Duration::from_secs(2);
/// How a probe begins.
pub(super) const PROBE: &[u8] = b"GET /livez ";
const ALIVE: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: 3\r\n\r\nok\n";

/// Answers one request and closes the connection.
pub(super) async fn answer(stream: TcpStream, tls: Option<Arc<ServerConfig>>, now: Timestamp) {
    let answered = async {
        match tls {
            None => answer_on(stream, now).await,
            Some(tls) => match TlsAcceptor::from(tls).accept(stream).await {
                Ok(stream) => answer_on(stream, now).await,
                Err(error) => tracing::debug!(%error, "TLS handshake failed"),
            },
        }
    };
    // Late clients are closed without an answer: others wait for this place.
    let _ = timeout(OVERFLOW_TIMEOUT, answered).await;
}

async fn answer_on(mut stream: impl AsyncRead + AsyncWrite + Unpin, now: Timestamp) {
    let mut read = BytesMut::with_capacity(1 << 10);
    while read.len() < MAX_HEAD_BYTES && !read.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read_buf(&mut read).await {
            Ok(1..) => {}
            _ => return,
        }
    }
    let mut answer = Vec::new();
    match read.starts_with(PROBE) {
        true => answer.extend_from_slice(ALIVE),
        false => full().write_last(now, &mut answer),
    }
    let written = async {
        stream.write_all(&answer).await?;
        stream.shutdown().await?;
        // Until the client closes its side: closed with unread bytes, the connection would be reset.
        while stream.read_buf(&mut read).await? > 0 {
            read.clear();
        }
        std::io::Result::Ok(())
    };
    let _ = written.await; // the client has gone
}

fn full() -> Problem {
    let detail = "all connections of this listener are in use";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections", detail).retry_after(1)
}
