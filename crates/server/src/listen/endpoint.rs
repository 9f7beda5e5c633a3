//! What a listener is bound to: an address, or the path of a Unix socket.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::{backlog, slow_reader};

/// Where a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An address; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket at a path, for its owner only.
    Unix(PathBuf),
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Endpoint::Tcp(address)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => address.fmt(f),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    /// The path is removed when this is dropped.
    Unix(UnixListener, SocketFile),
}

#[derive(Debug)]
pub(super) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "cannot remove the socket");
        }
    }
}

impl Socket {
    pub(super) async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                slow_reader::bound_unsent_bytes(&listener);
                Ok(Socket::Tcp(listener))
            }
            Endpoint::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                let file = SocketFile(path.clone());
                fs::set_permissions(path, Permissions::from_mode(0o600))?;
                Ok(Socket::Unix(listener, file))
            }
        }
    }

    /// Where it is; the port is the one that was taken.
    pub(super) fn endpoint(&self) -> io::Result<Endpoint> {
        match self {
            Socket::Tcp(listener) => Ok(Endpoint::Tcp(listener.local_addr()?)),
            Socket::Unix(_, file) => Ok(Endpoint::Unix(file.0.clone())),
        }
    }

    /// Begins a stop. Returns how long nothing may arrive before the backlog is empty.
    pub(super) fn refuse_handshakes(&self) -> Duration {
        match self {
            Socket::Tcp(listener) => backlog::refuse_handshakes(listener),
            Socket::Unix(..) => backlog::UNFILTERED,
        }
    }

    /// The next connection. The peer of a Unix socket is a process of this machine.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Socket::Tcp(listener) => listener.accept().await,
            Socket::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((as_tcp(stream)?, (Ipv4Addr::LOCALHOST, 0).into()))
            }
        }
    }
}

/// The kernel reads, writes and shuts down both kinds of stream with the same calls, so that connections need only one type.
fn as_tcp(stream: UnixStream) -> io::Result<TcpStream> {
    let stream = std::net::TcpStream::from(OwnedFd::from(stream.into_std()?));
    TcpStream::from_std(stream)
}

/// Removes the socket of a server that was killed. One that answers stays, and so does a file of another kind, to which a
/// connection is refused as well.
async fn remove_stale(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        return Ok(()); // nothing is there, or `bind` says that it is taken
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}
