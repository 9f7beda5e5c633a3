//! The server that runs over a data directory. There is at most one, and commands on the same machine find it by itself.
//!
//! ```text
//! server.lock   locked for as long as the server runs, whatever ends it
//! server.json   where it listens; without the lock it is left over from a server that was killed
//! token         a token that may do everything, made at the first start
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// A command that looks whether a server runs holds the lock for a moment.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A server that runs on this machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LocalServer {
    pub(crate) pid: u32,
    /// Where decisions are answered, as in `http://127.0.0.1:8080`.
    pub(crate) http: String,
    /// Where the dashboard and the admin API are.
    pub(crate) admin: String,
}

impl LocalServer {
    /// The server that runs over a data directory.
    pub(crate) fn find(folder: &Path) -> Option<Self> {
        let lock = File::open(folder.join(LOCK)).ok()?;
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => {}
            Ok(()) | Err(TryLockError::Error(_)) => return None,
        }
        serde_json::from_slice(&fs::read(folder.join(ADDRESSES)).ok()?).ok()
    }
}

const LOCK: &str = "server.lock";
const ADDRESSES: &str = "server.json";
const TOKEN: &str = "token";

/// The file with the server's own token.
pub(crate) fn token_file(folder: &Path) -> PathBuf {
    folder.join(TOKEN)
}

/// The right to serve over a data directory, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    folder: PathBuf,
    _lock: File,
}

impl Claim {
    /// Claims a data directory.
    ///
    /// # Errors
    ///
    /// A server runs over it, or it cannot be written.
    pub(crate) async fn new(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(LOCK);
        let open = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = open.with_context(|| {
            format!(
                "the data directory {} cannot be written; make it writable, or name another with --data-dir",
                folder.display()
            )
        })?;
        for _ in 0..LOCK_TRIES {
            match lock.try_lock() {
                Ok(()) => {
                    // What a killed server left there must not be taken for ours.
                    let _ = fs::remove_file(folder.join(ADDRESSES));
                    return Ok(Claim { folder: folder.to_owned(), _lock: lock });
                }
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_PAUSE).await,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
        let other = LocalServer::find(folder)
            .map_or_else(String::new, |other| format!(" (process {}, {})", other.pid, other.admin));
        bail!(
            "another server{other} runs over the data directory {}; stop it, or name another directory with --data-dir",
            folder.display()
        )
    }

    /// Says where the server listens.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn publish(&self, server: &LocalServer) -> anyhow::Result<()> {
        let path = self.folder.join(ADDRESSES);
        let write = || {
            let unfinished = path.with_extension("unfinished");
            let mut file =
                File::options().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
            serde_json::to_writer(&mut file, server)?;
            file.flush()?;
            fs::rename(unfinished, &path) // no reader sees half of it
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        match fs::remove_file(self.folder.join(ADDRESSES)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(%error, "cannot remove server.json");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_tests::scratch::Scratch;

    use super::*;

    #[tokio::test]
    async fn a_server_that_starts_does_not_answer_to_the_addresses_of_one_that_was_killed() {
        let folder = Scratch::new("claim");
        let killed = r#"{"pid": 1, "http": "http://127.0.0.1:1", "admin": "http://127.0.0.1:2"}"#;
        fs::write(folder.path().join(ADDRESSES), killed).unwrap();
        let claim = Claim::new(folder.path()).await.unwrap();
        assert!(LocalServer::find(folder.path()).is_none(), "it listens nowhere yet");
        let here = LocalServer { pid: 2, http: "http://127.0.0.1:3".to_owned(), admin: "unix:a".to_owned() };
        claim.publish(&here).unwrap();
        assert_eq!(LocalServer::find(folder.path()).unwrap().pid, 2);
    }
}
