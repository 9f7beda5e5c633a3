//! The preface of HTTP/2: what a client of it sends first.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// So many bytes tell it from every request of HTTP/1.
const METHOD_BYTES: usize = "PRI ".len();

/// Settings and a GOAWAY with `ENHANCE_YOUR_CALM`: no request of this connection was processed, so all can be repeated.
pub(super) const NO_MEMORY: &[u8] =
    &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11];

/// Whether a connection that begins like this is one of HTTP/2.
pub(super) fn is_whole(read: &[u8]) -> bool {
    read.starts_with(PREFACE)
}

/// Whether more of a preface is to come. hyper waits for it without a timer, so it is given whole prefaces only.
pub(super) fn is_partial(read: &[u8]) -> bool {
    read.len() < PREFACE.len() && PREFACE.starts_with(read)
}

/// The same where it cannot be a request of HTTP/1, so no answer of HTTP/1 would be understood.
pub(super) fn is_certain(read: &[u8]) -> bool {
    read.len() >= METHOD_BYTES && is_partial(read)
}

/// Reads as much as a preface. hyper rejects what is not one.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    let mut read = BytesMut::zeroed(PREFACE.len());
    stream.read_exact(&mut read).await?;
    Ok(read.freeze())
}
