//! The one place that reads clocks.

#![expect(clippy::disallowed_methods, reason = "this is where the clocks are read")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tollgate_core::{Micros, Timestamp};

/// How often the wall clock is compared with the monotonic one.
const CHECK_EVERY_US: u64 = 1_000_000;
/// Readings of ticks and wall clock that are further apart say nothing about each other.
const PROMPT_US: u64 = 100;
/// A difference beyond this is more than jitter of the reading: the ticks drifted, or the wall clock was set.
const DRIFT_US: u64 = 1_000;

/// The system's clock that runs since boot and does not stop while the machine sleeps: a lease that ended during a sleep
/// must not look alive afterwards. Linux has `CLOCK_BOOTTIME` for it, because its `CLOCK_MONOTONIC` stops.
#[cfg(all(feature = "redis", any(target_os = "linux", target_os = "android")))]
const SINCE_BOOT: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On macOS `CLOCK_MONOTONIC` is that clock: it goes on during sleep (`CLOCK_UPTIME_RAW` is the one that stops), and there is
/// no `CLOCK_BOOTTIME`. Other systems have no clock in common that is known to go on; theirs may stop during sleep.
#[cfg(all(feature = "redis", not(any(target_os = "linux", target_os = "android"))))]
const SINCE_BOOT: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// Tells the time: microseconds since the Unix epoch.
///
/// The system's clock counts the processor's ticks, which is cheap and monotonic, anchored to Unix time. Once a
/// second the anchor is checked against the wall clock: drift beyond a millisecond is corrected, and a wall clock
/// that was set shows up as one step, which every bucket knows how to take. A manual clock stands still until it is
/// told otherwise; clones share it.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    System(Arc<Anchor>),
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct Anchor {
    ticks: quanta::Clock,
    /// Ticks when the clock was made.
    start: u64,
    /// How far the wall clock is said to be wrong.
    off_us: i64,
    /// Unix time when `start` was.
    unix_at_start: AtomicI64,
    /// When to look at the wall clock again, counted from `start`.
    check_at: AtomicU64,
}

#[derive(Debug, Default)]
struct Manual {
    now: AtomicI64,
    turned: Notify,
    evicts: bool,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Clock::system_off_by(0)
    }

    /// The clock of a system that is wrong by so much, ahead or behind: what a node of a badly kept fleet has.
    pub fn system_off_by(off_us: i64) -> Self {
        let ticks = quanta::Clock::new();
        let anchor = Anchor {
            start: ticks.raw(),
            ticks,
            off_us,
            unix_at_start: AtomicI64::new(unix_micros().saturating_add(off_us)),
            check_at: AtomicU64::new(CHECK_EVERY_US),
        };
        Clock(Kind::System(Arc::new(anchor)))
    }

    /// A clock that stands at `now` until it is turned.
    pub fn manual(now: Timestamp) -> Self {
        let manual = Manual { now: AtomicI64::new(now.as_micros()), ..Manual::default() };
        Clock(Kind::Manual(Arc::new(manual)))
    }

    /// A manual clock under which stores forget as they do under the system's. Only ever turn it forwards.
    pub fn manual_with_eviction(now: Timestamp) -> Self {
        let now = AtomicI64::new(now.as_micros());
        Clock(Kind::Manual(Arc::new(Manual { now, evicts: true, ..Manual::default() })))
    }

    /// Whether buckets that are as good as new may be dropped. Not where time is injected: the clock may go back
    /// to when they were not.
    pub fn allows_eviction(&self) -> bool {
        match &self.0 {
            Kind::System(_) => true,
            Kind::Manual(manual) => manual.evicts,
        }
    }

    /// The time where it is injected, rather than the system's. A store that has a clock of its own goes by this one
    /// then.
    pub fn injected(&self) -> Option<Timestamp> {
        match &self.0 {
            Kind::System(_) => None,
            Kind::Manual(_) => Some(self.now()),
        }
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::System(anchor) => anchor.now(),
            Kind::Manual(manual) => Timestamp::from_micros(manual.now.load(Ordering::Acquire)),
        }
    }

    /// Nanoseconds on a stopwatch that runs since the clock was made, for telling how long something took. A manual
    /// clock stands still here too.
    #[inline]
    pub fn stopwatch_nanos(&self) -> u64 {
        match &self.0 {
            Kind::System(anchor) => anchor.ticks.delta_as_nanos(anchor.start, anchor.ticks.raw()),
            Kind::Manual(manual) => {
                u64::try_from(manual.now.load(Ordering::Acquire)).unwrap_or(0).saturating_mul(1_000)
            }
        }
    }

    /// The time since this machine was started, that which it slept included: it never stands still and never jumps, so
    /// what was promised for a while can be counted on it. On a manual clock, its time.
    #[cfg(feature = "redis")]
    pub(crate) fn since_boot(&self) -> Timestamp {
        match &self.0 {
            Kind::System(_) => {
                let time = rustix::time::clock_gettime(SINCE_BOOT);
                Timestamp::from_micros(time.tv_sec.saturating_mul(1_000_000) + time.tv_nsec / 1_000)
            }
            Kind::Manual(_) => self.now(),
        }
    }

    /// Turns a manual clock to `now`, forwards or back.
    ///
    /// # Panics
    ///
    /// On the system's clock, which nobody turns.
    pub fn set(&self, now: Timestamp) {
        let Kind::Manual(manual) = &self.0 else { panic!("only a manual clock can be set") };
        manual.now.store(now.as_micros(), Ordering::Release);
        manual.turned.notify_waiters();
    }

    /// Turns a manual clock forwards.
    ///
    /// # Panics
    ///
    /// As [`Clock::set`].
    pub fn advance(&self, by: impl Into<Micros>) {
        self.set(self.now().after(by.into()));
    }

    /// Waits until so much time has passed; on a manual clock until it was turned that far.
    pub async fn sleep(&self, wait: Micros) {
        match &self.0 {
            Kind::System(_) => tokio::time::sleep(wait.as_duration()).await,
            Kind::Manual(manual) => {
                let until = self.now().after(wait);
                loop {
                    let turned = manual.turned.notified();
                    if self.now() >= until {
                        return;
                    }
                    turned.await;
                }
            }
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::system()
    }
}

impl Anchor {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed = self.elapsed_us();
        if elapsed >= self.check_at.load(Ordering::Relaxed) {
            self.check();
        }
        let unix_at_start = self.unix_at_start.load(Ordering::Relaxed);
        Timestamp::from_micros(unix_at_start.saturating_add_unsigned(elapsed))
    }

    fn elapsed_us(&self) -> u64 {
        self.ticks.delta_as_nanos(self.start, self.ticks.raw()) / 1_000
    }

    /// Compares the wall clock with the ticks. Whoever comes first does it; the others go on with the old anchor.
    #[cold]
    fn check(&self) {
        let before_us = self.elapsed_us();
        let wall_us = unix_micros().saturating_add(self.off_us);
        self.compare(before_us, wall_us, self.elapsed_us());
    }

    /// Re-anchors when the wall clock, read between two readings of the ticks, is not where it should be. A thread
    /// that was stopped in between has learnt nothing: it could only move the clock to where it is not.
    fn compare(&self, before_us: u64, wall_us: i64, after_us: u64) {
        if after_us - before_us > PROMPT_US {
            return;
        }
        self.check_at.store(after_us + CHECK_EVERY_US, Ordering::Relaxed);
        let anchor = wall_us.saturating_sub_unsigned(after_us);
        if anchor.abs_diff(self.unix_at_start.load(Ordering::Relaxed)) > DRIFT_US {
            self.unix_at_start.store(anchor, Ordering::Relaxed);
        }
    }
}

fn unix_micros() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_on_a_manual_clock_wakes_when_it_is_turned_far_enough() {
        let clock = Clock::manual(Timestamp::from_micros(0));
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Micros::new(10)).await }
        });
        clock.advance(Micros::new(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        while !sleeper.is_finished() {
            clock.advance(Micros::new(1));
            tokio::task::yield_now().await;
        }
    }

    /// There is no toolchain for macOS to compile with here, so what only Linux has is looked for in the text.
    #[test]
    fn what_only_linux_has_is_used_only_where_it_is_compiled_for_linux() {
        let text = include_str!("clock.rs");
        let mut before = "";
        for line in text.lines().take_while(|line| !line.starts_with("mod tests")) {
            let is_code = !line.trim_start().starts_with("//");
            if is_code && line.contains("Boottime") {
                assert!(
                    before.starts_with("#[cfg(") && before.contains("target_os = \"linux\""),
                    "{before}\n{line}"
                );
            }
            before = line;
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn the_clock_since_boot_runs_with_the_stopwatch() {
        let clock = Clock::system();
        let (boot, watch) = (clock.since_boot(), clock.stopwatch_nanos());
        while clock.stopwatch_nanos() - watch < 2_000_000 {
            std::hint::spin_loop();
        }
        assert!(
            clock.since_boot().as_micros() - boot.as_micros() >= 1_000,
            "two milliseconds on the stopwatch"
        );
    }

    #[test]
    fn only_a_prompt_reading_moves_the_anchor_and_only_beyond_jitter() {
        let Clock(Kind::System(anchor)) = Clock::system() else { unreachable!() };
        let at_start = anchor.unix_at_start.load(Ordering::Relaxed);
        let moved = |before_us, off_us: i64, after_us: u64| {
            anchor.unix_at_start.store(at_start, Ordering::Relaxed);
            anchor.compare(before_us, at_start + after_us.cast_signed() + off_us, after_us);
            anchor.unix_at_start.load(Ordering::Relaxed) - at_start
        };
        assert_eq!(moved(5_000_000, 999, 5_000_010), 0, "jitter");
        assert_eq!(moved(5_000_000, 3_600_000_000, 5_000_010), 3_600_000_000, "set forward");
        assert_eq!(moved(5_000_000, -2_000_000, 5_000_010), -2_000_000, "set back");
        assert_eq!(moved(5_000_000, -2_000_000, 7_000_000), 0, "stopped between the readings");
    }

    #[test]
    fn a_wall_clock_that_was_set_shows_at_the_next_check() {
        let Clock(Kind::System(anchor)) = Clock::system() else { unreachable!() };
        let honest = anchor.now();
        anchor.unix_at_start.fetch_sub(3_600_000_000, Ordering::Relaxed);
        assert!(anchor.now() < honest);
        anchor.check_at.store(0, Ordering::Relaxed);
        // A reading that was interrupted does not count; on a busy machine that may happen a few times.
        assert!((0..1_000_000).any(|_| anchor.now() >= honest));
    }
}
