//! Waiting for a state without guessing how long it takes.

use std::time::Duration;

use tollgate::{Clock, Micros};

/// Longer than anything takes on a machine that is merely busy.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long to leave alone what is not there yet.
const PAUSE: Micros = Micros::new(2_000);

/// Asks again and again until there is an answer, at most for [`PATIENCE`].
///
/// # Panics
///
/// There is none, with `what` was waited for.
pub async fn until<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, ask).await
}

/// As [`until`], with a deadline of its own. What is there at the last moment counts.
///
/// # Panics
///
/// As [`until`].
pub async fn within<T>(patience: Duration, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let clock = Clock::system();
    let deadline = clock.now().after(patience.into());
    loop {
        let last = clock.now() >= deadline;
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(!last, "waited {patience:?} in vain for {what}");
        clock.sleep(PAUSE).await;
    }
}

/// Waits for a state on a thread that has nothing else to do.
///
/// # Panics
///
/// It did not come in time.
pub fn blocking(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let clock = Clock::system();
    let deadline = clock.now().after(patience.into());
    while !is_so() {
        assert!(clock.now() < deadline, "waited {patience:?} in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_comes_later_is_found() {
        let mut asked = 0;
        let answer = until("the third answer", async || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(answer.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "in vain for godot")]
    async fn an_answer_that_never_comes_is_named() {
        within(Duration::from_millis(5), "godot", async || None::<()>).await;
    }
}
