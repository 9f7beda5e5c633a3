//! Values read from files and read again when the files change: certificates and tokens are replaced without a restart.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

/// How often the files are looked at. A change is in effect within a second.
const PERIOD: Duration = Duration::from_millis(500);

/// A value read from files.
#[derive(Debug)]
pub(crate) struct Reloadable<T>(ArcSwap<T>);

/// What tells that a file was replaced, written to or given other permissions: device, inode, time of the last change, length.
type Stamp = Vec<Option<(u64, u64, i64, i64, u64)>>;

impl<T: Send + Sync + 'static> Reloadable<T> {
    /// A value that does not change.
    pub(crate) fn fixed(value: T) -> Arc<Self> {
        Arc::new(Reloadable(ArcSwap::from_pointee(value)))
    }

    /// Reads the value now, and again whenever one of `files` changes, until it is dropped. While the files are invalid, the
    /// value is `otherwise()`, or the last good one if that is `None`. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// The files are invalid now.
    pub(crate) fn new<E: std::error::Error + Send + 'static>(
        what: &'static str,
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<T, E> + Send + 'static,
        otherwise: impl Fn() -> Option<T> + Send + 'static,
    ) -> Result<Arc<Self>, E> {
        let mut seen = stamp(&files);
        let current = Self::fixed(read()?);
        let weak = Arc::downgrade(&current);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            loop {
                ticks.tick().await;
                let Some(current) = weak.upgrade() else { return };
                let now = stamp(&files);
                if now == seen {
                    continue;
                }
                seen = now;
                match read() {
                    Ok(value) => {
                        current.0.store(Arc::new(value));
                        tracing::info!("{what}: the files changed and were read again");
                    }
                    Err(error) => {
                        let error: &(dyn std::error::Error + 'static) = &error;
                        let effect = match otherwise() {
                            Some(value) => {
                                current.0.store(Arc::new(value));
                                "all of them are refused"
                            }
                            None => "keeping the previous ones",
                        };
                        tracing::warn!(error, "{what}: reload failed; {effect}");
                    }
                }
            }
        });
        Ok(current)
    }

    /// The value.
    pub(crate) fn get(&self) -> Guard<Arc<T>> {
        self.0.load()
    }
}

fn stamp(files: &[PathBuf]) -> Stamp {
    let of = |file: &PathBuf| {
        let about = Path::metadata(file).ok()?;
        Some((about.dev(), about.ino(), about.ctime(), about.ctime_nsec(), about.len()))
    };
    files.iter().map(of).collect()
}
