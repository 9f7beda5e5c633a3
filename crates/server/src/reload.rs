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
        let (mut seen, mut failed) = (stamp(&files), false);
        let current = Self::fixed(read()?);
        let weak = Arc::downgrade(&current);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            loop {
                ticks.tick().await;
                let Some(current) = weak.upgrade() else { return };
                let now = stamp(&files);
                if now == seen && !failed {
                    continue;
                }
                let is_change = now != seen;
                seen = now;
                match read() {
                    Ok(value) => {
                        failed = false;
                        current.0.store(Arc::new(value));
                        tracing::info!("{what}: the files changed and were read again");
                    }
                    // The cause may be gone without another change, such as too many open files, so it is tried again.
                    Err(error) => {
                        failed = true;
                        let error: &(dyn std::error::Error + 'static) = &error;
                        let effect = match otherwise() {
                            Some(value) => {
                                current.0.store(Arc::new(value));
                                "all of them are refused"
                            }
                            None => "keeping the previous ones",
                        };
                        if is_change {
                            tracing::warn!(error, "{what}: reload failed; {effect}");
                        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_read_that_fails_for_a_moment_is_repeated() {
        let file = std::env::temp_dir().join(format!("tollgate-reload-{}", std::process::id()));
        std::fs::write(&file, "a").unwrap();
        let reads = AtomicU32::new(0);
        let read = move || match reads.fetch_add(1, Ordering::Relaxed) {
            1 => Err(std::io::Error::other("too many open files")),
            number => Ok(number),
        };
        let value = Reloadable::new("numbers", vec![file.clone()], read, || Some(99)).unwrap();
        std::fs::write(&file, "changed").unwrap();
        let is = async |expected: u32| {
            while **value.get() != expected {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let both = async {
            is(99).await;
            is(2).await;
        };
        tokio::time::timeout(Duration::from_secs(60), both).await.unwrap();
        std::fs::remove_file(&file).unwrap();
    }
}
