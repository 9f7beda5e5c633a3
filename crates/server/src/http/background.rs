//! Work that takes long: a few at a time, on threads that decide nothing, and only while its client waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use super::problem::Problem;

/// Replays and previews in progress, their bodies included. Each may take seconds and some 100 MB.
const MAX_IN_PROGRESS: usize = 2;

/// The places for such work.
#[derive(Debug, Clone)]
pub(super) struct Background(Arc<Semaphore>);

/// The place of one request. It is taken before the body is read, because bodies are large.
#[derive(Debug)]
pub(super) struct BackgroundPlace {
    _place: OwnedSemaphorePermit,
}

/// Whether the client still waits.
#[derive(Debug)]
pub(super) struct Cancelled(Arc<AtomicBool>);

impl Default for Background {
    fn default() -> Self {
        Background(Arc::new(Semaphore::new(MAX_IN_PROGRESS)))
    }
}

impl Background {
    pub(super) fn place(&self) -> Result<BackgroundPlace, Problem> {
        let place = Arc::clone(&self.0).try_acquire_owned();
        place.map(|place| BackgroundPlace { _place: place }).map_err(|_| {
            let detail = format!("at most {MAX_IN_PROGRESS} replays and previews are in progress; try again");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many replays in progress", detail)
                .retry_after(1)
        })
    }
}

impl FromRequestParts<App> for BackgroundPlace {
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, app: &App) -> Result<Self, Problem> {
        app.background.place()
    }
}

impl BackgroundPlace {
    /// Does the work, which has to stop when it is cancelled: when this future is dropped, because the client has gone. The
    /// place is free when the work has stopped.
    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&Cancelled) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let _cancel = CancelOnDrop(Arc::clone(&is_cancelled));
        let done = tokio::task::spawn_blocking(move || {
            let _place = self;
            work(&Cancelled(is_cancelled))
        });
        done.await.map_err(|_| Problem::interrupted())?
    }
}

impl Cancelled {
    /// To be asked often.
    pub(super) fn check(&self) -> Result<(), Problem> {
        if self.0.load(Ordering::Relaxed) { Err(Problem::interrupted()) } else { Ok(()) }
    }
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_stops_when_its_client_leaves_and_only_then_its_place_is_free() {
        let background = Background::default();
        let others: Vec<_> = (1..MAX_IN_PROGRESS).map(|_| background.place().unwrap()).collect();
        let (begun, has_begun) = oneshot::channel();
        let (stopped, has_stopped) = oneshot::channel();
        let place = background.place().unwrap();
        let work = tokio::spawn(place.run(move |cancelled| {
            begun.send(()).unwrap();
            while cancelled.check().is_ok() {
                std::thread::yield_now();
            }
            stopped.send(()).unwrap();
            Ok(())
        }));
        has_begun.await.unwrap();
        let problem = background.place().unwrap_err();
        assert!(String::from_utf8(problem.to_json()).unwrap().contains("too many replays in progress"));
        work.abort();
        has_stopped.await.expect("the work sees that it is cancelled");
        drop(others);
    }
}
