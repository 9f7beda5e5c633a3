//! Values made from files, made anew when the files change: certificates and tokens are renewed without a restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, Guard};

/// How often the files are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// A value made from files, and what it is while they make no sense.
#[derive(Debug)]
pub(crate) struct Kept<T>(ArcSwap<T>);

/// What tells that a file was replaced: when it was written, and how long it is.
type Stamp = Vec<Option<(SystemTime, u64)>>;

impl<T: Send + Sync + 'static> Kept<T> {
    /// Makes the value, and again whenever one of `files` changes, until it is dropped. While the files cannot be read or
    /// make no sense, the value is `otherwise()`, or the last good one if that is `None`. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// The files make no sense now.
    pub(crate) fn new<E: std::error::Error + Send + 'static>(
        what: &'static str,
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + 'static,
        otherwise: impl Fn() -> Option<T> + Send + 'static,
    ) -> Result<Arc<Self>, E> {
        let mut seen = stamp(&files);
        let kept = Arc::new(Kept(ArcSwap::from_pointee(make()?)));
        let weak = Arc::downgrade(&kept);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(PERIOD);
            loop {
                ticks.tick().await;
                let Some(kept) = weak.upgrade() else { return };
                let now = stamp(&files);
                if now == seen {
                    continue;
                }
                seen = now;
                match make() {
                    Ok(value) => {
                        kept.0.store(Arc::new(value));
                        tracing::info!("{what}: the files changed and were read again");
                    }
                    Err(error) => {
                        let error: &(dyn std::error::Error + 'static) = &error;
                        let effect = match otherwise() {
                            Some(value) => {
                                kept.0.store(Arc::new(value));
                                "all of them are refused"
                            }
                            None => "the last good ones stay in use",
                        };
                        tracing::warn!(error, "{what}: the files cannot be used; {effect}");
                    }
                }
            }
        });
        Ok(kept)
    }

    /// The value.
    pub(crate) fn get(&self) -> Guard<Arc<T>> {
        self.0.load()
    }
}

fn stamp(files: &[PathBuf]) -> Stamp {
    let of = |file: &PathBuf| {
        let about = Path::metadata(file).ok()?;
        Some((about.modified().ok()?, about.len()))
    };
    files.iter().map(of).collect()
}
