//! The locks and atomics of the memory store; under `--cfg shuttle` those of the model checker, which tries the ways
//! in which threads can interleave (`tests/model-check`).

#[cfg(not(shuttle))]
pub(crate) use {
    parking_lot::{Mutex, MutexGuard},
    std::sync::atomic::{AtomicBool, Ordering},
};

#[cfg(shuttle)]
pub(crate) use {
    checked::Mutex,
    shuttle::sync::MutexGuard,
    shuttle::sync::atomic::{AtomicBool, Ordering},
};

#[cfg(shuttle)]
mod checked {
    use shuttle::sync::MutexGuard;

    /// The checker's lock with the shape of the real one: nobody survives a panic to find it poisoned.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread panics while it holds a lock")
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
