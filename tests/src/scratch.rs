//! Folders that go away with the test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// A folder of its own, removed when it is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes the folder.
    ///
    /// # Panics
    ///
    /// The temporary folder is not writable.
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("tollgate-{name}-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a writable temporary folder");
        Scratch(path)
    }

    /// Leaves it to the system to remove it, as a folder of somebody who may outlive us needs.
    pub fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
