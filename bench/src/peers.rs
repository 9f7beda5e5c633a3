//! What tollgate is compared with: another limiter, the one everybody writes first, and the floors.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use foldhash::quality::RandomState;
use governor::DefaultKeyedRateLimiter;

use crate::contender::{Caller, Contender, Quota};

/// governor, keyed by `String`, as its documentation sets it up.
#[derive(Debug)]
pub struct Governor(DefaultKeyedRateLimiter<String>);

impl Governor {
    /// With this quota.
    pub fn new(quota: Quota) -> Self {
        let [per_hour, burst] =
            [quota.per_hour, quota.burst].map(|number| NonZeroU32::new(number).expect("not zero"));
        Governor(DefaultKeyedRateLimiter::keyed(governor::Quota::per_hour(per_hour).allow_burst(burst)))
    }
}

impl Contender for Governor {
    #[inline]
    fn decide(&self, caller: &Caller) -> bool {
        self.0.check_key(caller.name()).is_ok()
    }
}

/// A token bucket per key in the standard library's map behind its mutex.
#[derive(Debug)]
pub struct MutexMap {
    buckets: Mutex<HashMap<String, Tokens>>,
    per_second: f64,
    burst: f64,
}

#[derive(Debug)]
struct Tokens {
    left: f64,
    counted: Instant,
}

impl MutexMap {
    /// With this quota.
    pub fn new(quota: Quota) -> Self {
        let per_second = f64::from(quota.per_hour) / 3_600.0;
        MutexMap { buckets: Mutex::default(), per_second, burst: f64::from(quota.burst) }
    }
}

impl Contender for MutexMap {
    #[inline]
    fn decide(&self, caller: &Caller) -> bool {
        let mut buckets = self.buckets.lock().expect("nobody panics with it");
        let now = now();
        let Some(bucket) = buckets.get_mut(caller.name()) else {
            buckets.insert(caller.name().clone(), Tokens { left: self.burst - 1.0, counted: now });
            return true;
        };
        let earned = now.saturating_duration_since(bucket.counted).as_secs_f64() * self.per_second;
        bucket.left = (bucket.left + earned).min(self.burst);
        bucket.counted = now;
        let allowed = bucket.left >= 1.0;
        if allowed {
            bucket.left -= 1.0;
        }
        allowed
    }
}

/// Floor: the clock, and one compare-and-swap on one cell that everybody shares.
#[derive(Debug)]
pub struct OneCell {
    cell: AtomicU64,
    pace: Pace,
}

impl OneCell {
    /// With this quota.
    pub fn new(quota: Quota) -> Self {
        OneCell { cell: AtomicU64::new(0), pace: Pace::new(quota) }
    }
}

impl Contender for OneCell {
    #[inline]
    fn decide(&self, _: &Caller) -> bool {
        let now = self.pace.now();
        let mut paid_until = self.cell.load(Ordering::Relaxed);
        while let Some(next) = self.pace.next(paid_until, now) {
            match self.cell.compare_exchange_weak(paid_until, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => paid_until = other,
            }
        }
        false
    }

    fn refill_shared(&self) {
        self.cell.store(0, Ordering::Relaxed);
    }
}

/// Floor: the clock, one hash of the key, one slot of 32 bytes read and written. It neither locks nor tells keys
/// apart, so with two threads it loses updates: it is what a look-up costs, not a limiter.
#[derive(Debug)]
pub struct Table {
    slots: Vec<[AtomicU64; 4]>,
    seed: RandomState,
    pace: Pace,
}

impl Table {
    /// Two to the power of 20 slots, 32 MiB.
    pub fn new(quota: Quota) -> Self {
        let slots = std::iter::repeat_with(Default::default).take(1 << 20).collect();
        Table { slots, seed: RandomState::default(), pace: Pace::new(quota) }
    }
}

impl Contender for Table {
    #[inline]
    fn decide(&self, caller: &Caller) -> bool {
        let now = self.pace.now();
        let [_, _, _, slot] = &self.slots[self.place(caller)];
        let next = self.pace.next(slot.load(Ordering::Relaxed), now);
        if let Some(next) = next {
            slot.store(next, Ordering::Relaxed);
        }
        next.is_some()
    }
}

impl Table {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked to the number of slots")]
    fn place(&self, caller: &Caller) -> usize {
        self.seed.hash_one(caller.name()) as usize & (self.slots.len() - 1)
    }
}

/// What everybody pays: writing the caller's name, and calling a contender. The answer is always the same.
#[derive(Debug)]
pub struct Nothing {
    allows: bool,
}

impl Nothing {
    /// Allows everything if the quota has anything to give after the first.
    pub fn new(quota: Quota) -> Self {
        Nothing { allows: quota.burst > 1 }
    }
}

impl Contender for Nothing {
    #[inline]
    fn decide(&self, caller: &Caller) -> bool {
        std::hint::black_box(caller.name());
        self.allows
    }
}

/// The arithmetic of a token bucket in one number: until when everything taken is paid for.
#[derive(Debug)]
struct Pace {
    start: Instant,
    interval_ns: u64,
    burst_ns: u64,
}

impl Pace {
    fn new(quota: Quota) -> Self {
        let interval_ns = 3_600_000_000_000 / u64::from(quota.per_hour);
        Pace { start: now(), interval_ns, burst_ns: interval_ns * u64::from(quota.burst) }
    }

    #[inline]
    fn now(&self) -> u64 {
        let elapsed = now() - self.start;
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }

    #[inline]
    fn next(&self, paid_until: u64, now: u64) -> Option<u64> {
        let next = paid_until.max(now) + self.interval_ns;
        (next - now <= self.burst_ns).then_some(next)
    }
}

#[inline]
#[expect(clippy::disallowed_methods, reason = "peers read the clock themselves")]
fn now() -> Instant {
    Instant::now()
}
