//! What the suites share: an independent model of the semantics, traces to compare stores with it, and real servers.

pub mod model;
pub mod postgres;
pub mod trace;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A fresh folder under the system's temporary one.
///
/// # Panics
///
/// It cannot be made.
pub fn scratch(what: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tollgate-{what}-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    folder
}

/// Waits for a state, looking again and again.
///
/// # Panics
///
/// It did not come in time.
pub fn poll_until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let clock = tollgate::Clock::system();
    let deadline = clock.now().after(patience.into());
    while !is_so() {
        assert!(clock.now() < deadline, "waited {patience:?} until {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
