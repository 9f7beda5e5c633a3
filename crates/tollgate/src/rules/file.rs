//! A rules file that is read again when it changes.
//!
//! The folder is watched rather than the file: editors and deployments put a new file in the old one's place, and
//! Kubernetes swaps a link beside it. Where nothing can be watched, looking every other second is enough.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use super::source::{Loaded, SourceError, off_thread};

/// More than any rules file has; the reader of rules has the last word.
const MAX_BYTES: u64 = 65 << 20;
/// How often the file is looked at, whatever was or was not heard of it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A file that was just touched is read when nobody has touched it for so long.
const SETTLE: Duration = Duration::from_millis(30);
/// So often at most: a file that is written all the time is read all the same.
const SETTLE_TRIES: u32 = 10;

/// A rules file, watched.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    shown: String,
    touched: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    /// What the file looked like when it was last read.
    seen: Option<Look>,
}

/// Enough of a file to tell that it is another, without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Look {
    device: u64,
    inode: u64,
    modified_ns: (i64, i64),
    bytes: u64,
}

impl FileSource {
    pub(super) fn new(path: PathBuf) -> Self {
        let shown = path.display().to_string();
        let touched = Arc::new(Notify::new());
        let watcher = watcher(Arc::clone(&touched));
        FileSource { path, shown, touched, watcher, watched: BTreeSet::new(), seen: None }
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) async fn load(&mut self, known: Option<&str>) -> Result<Option<Loaded>, SourceError> {
        self.watch();
        self.seen = look(&self.path);
        let (path, shown, known) = (self.path.clone(), self.shown.clone(), known.map(str::to_owned));
        off_thread(move || read(&path, &shown, known.as_deref())).await?
    }

    pub(super) async fn changed(&mut self) {
        loop {
            tokio::select! {
                () = self.touched.notified() => self.settle().await,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if look(&self.path) != self.seen {
                return;
            }
        }
    }

    /// Waits until whoever is writing has finished.
    async fn settle(&self) {
        for _ in 0..SETTLE_TRIES {
            if tokio::time::timeout(SETTLE, self.touched.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Watches the file's folder, and the folder of what it is a link to.
    fn watch(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let target = fs::canonicalize(&self.path).ok();
        let folders = [Some(self.path.as_path()), target.as_deref()];
        for folder in folders.into_iter().flatten().map(folder) {
            if self.watched.contains(&folder) {
                continue;
            }
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.watched.insert(folder)),
                Err(error) => {
                    tracing::warn!(folder = %folder.display(), %error, "cannot watch the rules' folder; looking at the file every 2 s");
                }
            }
        }
    }
}

fn watcher(touched: Arc<Notify>) -> Option<RecommendedWatcher> {
    let heard = move |event: notify::Result<notify::Event>| {
        // Our own reading is an event too.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            touched.notify_one();
        }
    };
    notify::recommended_watcher(heard)
        .inspect_err(|error| tracing::warn!(%error, "cannot watch files; looking at the rules every 2 s"))
        .ok()
}

fn folder(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
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
    let hash = Sha256::digest(text.as_bytes());
    let version: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
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
