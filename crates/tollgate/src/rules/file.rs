//! A rules file that is read again when it changes.
//!
//! The file is looked at twice a second. Links are followed, so that a file that was replaced, or a link that Kubernetes
//! swaps beside it, is another file by its inode.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::source::{Loaded, SourceError, off_thread};

/// More than any rules file has; the reader of rules has its own bound.
const MAX_BYTES: u64 = 65 << 20;
/// How often the file is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A rules file that is followed.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    shown: String,
    /// What the file looked like before it was last read.
    seen: Option<Look>,
    /// Whether to read it once more: a write within the resolution of its time stamp does not show.
    read_again: bool,
}

/// Enough of a file to tell that it has changed, without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    device: u64,
    inode: u64,
    modified_ns: (i64, i64),
    bytes: u64,
}

impl FileSource {
    pub(super) fn new(path: PathBuf) -> Self {
        FileSource { shown: path.display().to_string(), path, seen: None, read_again: false }
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) async fn load(&mut self, known: Option<&str>) -> Result<Option<Loaded>, SourceError> {
        let now = look(&self.path);
        self.read_again = now != self.seen;
        self.seen = now;
        let (path, shown, known) = (self.path.clone(), self.shown.clone(), known.map(str::to_owned));
        off_thread(move || read(&path, &shown, known.as_deref())).await?
    }

    pub(super) async fn changed(&mut self) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            if self.read_again || look(&self.path) != self.seen {
                return;
            }
        }
    }
}

fn look(path: &Path) -> Option<Look> {
    let file = fs::metadata(path).ok()?;
    Some(Look {
        device: file.dev(),
        inode: file.ino(),
        modified_ns: (file.mtime(), file.mtime_nsec()),
        bytes: file.len(),
    })
}

fn read(path: &Path, shown: &str, known: Option<&str>) -> Result<Option<Loaded>, SourceError> {
    let text = text(path).map_err(|source| SourceError::Read { shown: shown.to_owned(), source })?;
    let version = hex::encode(&Sha256::digest(text.as_bytes())[..6]);
    if known == Some(&version) {
        return Ok(None);
    }
    Ok(Some(Loaded { rules: super::parse(shown, &text)?, version }))
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
