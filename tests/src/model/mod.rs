//! The limits once more, written to be believed: what every store should have answered.
//!
//! This is a second reading of the semantics that shares no line with `core`. It keeps debt as a fraction of
//! a token, every living entry of a log, and every key forever; for the sliding counter, where the code under
//! test has a formula for a wait, it looks for the first instant at which the answer changes. A test replays
//! one trace here and in a store and compares every field.
//!
//! The algorithms are `Bucket`s, one file each. What they have in common is here: all or nothing, clock
//! steps, changed numbers, and what is written when.

mod fixed_window;
mod interval;
mod leaky;
mod sliding_counter;
mod sliding_log;
mod token_bucket;
mod windows;

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use fixed_window::FixedWindow;
use interval::Interval;
use leaky::Leaky;
use sliding_counter::SlidingCounter;
use sliding_log::SlidingLog;
use token_bucket::TokenBucket;

/// A clock that is behind the last write by this much or less is jitter; beyond it, it was set back.
const JITTER_US: i128 = 1_000_000;

/// Usage above the limit in use is kept for at most this long after the last write.
const EXCESS_LIFETIME_US: i128 = 366 * 86_400_000_000;

/// One limit's numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// How the limit counts, and up to what.
    pub algorithm: Algorithm,
}

/// How a limit counts. Another variant on the same key starts anew; other numbers keep what was used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the numbers of the semantics, under their own names")]
pub enum Algorithm {
    /// Tokens come back continuously.
    TokenBucket { rate: u64, period_us: u64, capacity: u64 },
    /// Tokens come back several at a time, on ticks.
    Interval { refill: u64, interval_us: u64, capacity: u64, aligned: bool },
    /// Requests queue and leave at a steady pace; `free` of them without waiting.
    Leaky { rate: u64, period_us: u64, queue: u64, free: u64 },
    /// A count that starts over with every window. A calendar phase brings its own length of window.
    FixedWindow { limit: u64, window_us: u64, phase: Phase },
    /// Every request is remembered for one window.
    SlidingLog { limit: u64, window_us: u64 },
    /// Two counts stand for a sliding window. The phase is `Epoch` or `First`.
    SlidingCounter { limit: u64, window_us: u64, phase: Phase },
}

/// Where windows begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// At the epoch's multiples of the window.
    Epoch,
    /// With the first take.
    First,
    /// At the epoch's multiples of the window plus the key's own share of it.
    Spread {
        /// The hash of the key, already reduced modulo the window.
        phase_us: u64,
    },
    /// At midnight of a place.
    Calendar {
        /// Which midnights.
        unit: CalendarUnit,
        /// A name of the tz database, such as `Europe/Berlin`.
        time_zone: String,
    },
}

/// The length of a calendar window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

/// One key's part in a request.
///
/// Hits that share a key should also share the spec and `shadow`: a key belongs to one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Names the bucket.
    pub key: String,
    /// The numbers in force now, which may differ from those the bucket was last written with.
    pub spec: Spec,
    /// Tokens the request takes.
    pub cost: u64,
    /// Charged on its own, never a reason to refuse.
    pub shadow: bool,
}

/// A charge that is settled later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// What was charged.
    pub hit: Hit,
    /// When that was, or, of a bucket that refills, from when on it is repaid. Rounded down.
    pub since_us: i128,
}

/// One bucket's answer. Waits are in microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this hit fits, whatever the others of the request say.
    pub allowed: bool,
    /// The most the limit can hold.
    pub limit: u64,
    /// The largest cost that would be admitted now.
    pub remaining: u64,
    /// The least wait after which the same hit fits; `None` is never.
    pub retry_after: Option<u64>,
    /// The least wait after which the bucket is as good as new.
    pub reset_after: u64,
    /// How long an allowed request has to wait its turn.
    pub delay: u64,
}

/// Every key's bucket. Nothing is ever forgotten.
#[derive(Debug, Clone, Default)]
pub struct Model {
    states: HashMap<String, State>,
    /// How often a bucket's instants were moved because the clock had been set back.
    pub clock_steps: u64,
}

impl Model {
    /// A model that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Charges all enforcing hits or none of them, and every shadow hit that fits.
    pub fn check(&mut self, now_us: u64, hits: &[Hit]) -> Vec<Verdict> {
        let mut verdicts = self.peek(now_us, hits);
        let passes = hits.iter().zip(&verdicts).all(|(hit, verdict)| hit.shadow || verdict.allowed);
        for (hit, verdict) in hits.iter().zip(&mut verdicts) {
            let charged = if hit.shadow { verdict.allowed } else { passes };
            if charged {
                *verdict = self.charge(now_us, hit);
            } else if hit.cost > 0 {
                self.write_clock_step(now_us, hit);
            }
        }
        verdicts
    }

    /// Says what [`check`](Self::check) would, with the numbers of the buckets as they are. Writes nothing.
    #[must_use]
    pub fn peek(&self, now_us: u64, hits: &[Hit]) -> Vec<Verdict> {
        let mut verdicts: Vec<Verdict> = Vec::with_capacity(hits.len());
        for (index, hit) in hits.iter().enumerate() {
            // What earlier hits of this request would have taken from the same bucket. An enforcing hit
            // counts even when it does not fit: the request needs room for all. A shadow hit does not.
            let earlier = hits[..index].iter().zip(&verdicts);
            let taken_before = earlier
                .filter(|(other, _)| other.key == hit.key && other.shadow == hit.shadow)
                .filter(|(other, verdict)| !other.shadow || verdict.allowed)
                .map(|(other, _)| i128::from(other.cost))
                .sum();
            verdicts.push(self.view(now_us, hit).answer(taken_before, hit.cost.into()));
        }
        verdicts
    }

    /// Gives the cost back, to buckets that exist and no further than full.
    pub fn refund(&mut self, now_us: u64, hits: &[Hit]) -> Vec<Verdict> {
        hits.iter().map(|hit| self.refund_one(now_us, hit)).collect()
    }

    /// As [`check`](Self::check) where every hit lives in a place of its own: each is charged on its own, and if one is
    /// refused, what the others hold is returned at once. The numbers are the same. A bucket that would have given what
    /// another refused is written, where otherwise it would not be.
    pub fn check_apart(&mut self, now_us: u64, hits: &[Hit]) -> Vec<Verdict> {
        let verdicts = self.peek(now_us, hits);
        let passes = hits.iter().zip(&verdicts).all(|(hit, verdict)| hit.shadow || verdict.allowed);
        let answers = self.check(now_us, hits);
        for (hit, verdict) in hits.iter().zip(&verdicts) {
            if !passes && !hit.shadow && verdict.allowed && hit.cost > 0 {
                self.hold_and_return(now_us, hit);
            }
        }
        answers
    }

    /// The charges that a request of these hits makes, if it passes.
    pub fn charges(&self, now_us: u64, hits: &[Hit]) -> Vec<Charge> {
        let verdicts = self.peek(now_us, hits);
        if hits.iter().zip(&verdicts).any(|(hit, verdict)| !hit.shadow && !verdict.allowed) {
            return Vec::new();
        }
        let charged = hits.iter().zip(&verdicts).filter(|(hit, verdict)| verdict.allowed && hit.cost > 0);
        charged
            .map(|(hit, _)| Charge {
                hit: hit.clone(),
                since_us: self.view(now_us, hit).state.bucket().repaid_from(),
            })
            .collect()
    }

    /// Settles charges of one cost with another: gives the rest back, or charges what is missing as far as it fits. Answers
    /// what did not fit, of the hit with the most.
    pub fn settle(&mut self, now_us: u64, charges: &[Charge], actual: u64) -> u64 {
        let unpaid = charges.iter().map(|charge| self.settle_one(now_us, charge, actual));
        unpaid.max().unwrap_or(0)
    }

    fn settle_one(&mut self, now_us: u64, Charge { hit, since_us }: &Charge, actual: u64) -> u64 {
        let mut view = self.view(now_us, hit);
        let bucket = view.state.bucket_mut();
        if actual <= hit.cost {
            let unused = i128::from(hit.cost - actual);
            if unused > 0 && view.is_stored && bucket.take_out(unused, hit.cost.into(), *since_us) {
                self.write_less(hit, &view);
            }
            return 0;
        }
        let missing = i128::from(actual - hit.cost);
        let fits = missing.min(bucket.remaining().max(0));
        if fits > 0 {
            bucket.take(fits);
            self.clock_steps += u64::from(view.stepped.is_some());
            self.states.insert(hit.key.clone(), view.state.clone());
        }
        if hit.shadow { 0 } else { u64::try_from(missing - fits).expect("no more than what is missing") }
    }

    /// Forgets the key.
    pub fn reset(&mut self, key: &str) {
        self.states.remove(key);
    }

    fn charge(&mut self, now_us: u64, hit: &Hit) -> Verdict {
        let mut view = self.view(now_us, hit);
        let delay = view.state.bucket().delay();
        if hit.cost > 0 {
            view.state.bucket_mut().take(hit.cost.into());
            self.clock_steps += u64::from(view.stepped.is_some());
            self.states.insert(hit.key.clone(), view.state.clone());
        }
        view.verdict(true, Some(0), delay)
    }

    fn refund_one(&mut self, now_us: u64, hit: &Hit) -> Verdict {
        let mut view = self.view(now_us, hit);
        if hit.cost > 0 && view.is_stored {
            view.state.bucket_mut().give_back(hit.cost.into());
            self.write_less(hit, &view);
        }
        view.verdict(true, Some(0), 0)
    }

    /// Writes the bucket as it is after a hold and its return, both now: with the time until now credited. What is held is
    /// not used, so a bucket of which only excess is left keeps its ticks.
    fn hold_and_return(&mut self, now_us: u64, hit: &Hit) {
        let view = self.view(now_us, hit);
        self.write_less(hit, &view);
    }

    /// Writes a bucket of which something was given back.
    fn write_less(&mut self, hit: &Hit, view: &View) {
        self.clock_steps += u64::from(view.stepped.is_some());
        if view.state.bucket().is_new() {
            self.states.remove(&hit.key);
        } else {
            self.states.insert(hit.key.clone(), view.state.clone());
        }
    }

    /// The one thing a refusal may write.
    fn write_clock_step(&mut self, now_us: u64, hit: &Hit) {
        if let Some(stepped) = self.view(now_us, hit).stepped {
            self.clock_steps += 1;
            self.states.insert(hit.key.clone(), stepped);
        }
    }

    /// The hit's bucket as it stands now, in the numbers of the hit.
    fn view(&self, now_us: u64, hit: &Hit) -> View {
        let now = i128::from(now_us);
        let spec = &hit.spec.algorithm;
        let Some(mut state) = self.states.get(&hit.key).and_then(|state| state.adopt(spec)) else {
            return View { state: State::open(spec, now), is_stored: false, stepped: None, behind: 0 };
        };
        let mut stepped = None;
        if state.bucket().last() - now > JITTER_US {
            state.bucket_mut().step_back(now);
            stepped = Some(state.clone());
        }
        let at = now.max(state.bucket().last());
        state.bucket_mut().advance(at);
        if state.bucket().is_new() {
            state = State::open(spec, at); // as good as new is new: no phase, no anchor
        }
        View { state, is_stored: true, stepped, behind: at - now }
    }
}

/// One bucket at the instant of a request.
struct View {
    /// Decayed to now, or to its last write when now is a little behind that.
    state: State,
    /// Whether something was stored under the key, for this algorithm.
    is_stored: bool,
    /// What is to be written even by a refusal: the bucket with its instants moved, not decayed.
    stepped: Option<State>,
    /// By how much now is behind the instant the state is computed at.
    behind: i128,
}

impl View {
    /// What a check of `cost` would say after `taken_before`, with the numbers of the bucket as it is.
    fn answer(&self, taken_before: i128, cost: i128) -> Verdict {
        let bucket = self.state.bucket();
        let needed = taken_before + cost;
        if cost == 0 || needed <= bucket.remaining() {
            let mut taken = self.state.clone();
            taken.bucket_mut().take(taken_before);
            return self.verdict(true, Some(0), taken.bucket().delay());
        }
        let retry_after = (needed <= bucket.limit()).then(|| bucket.wait_for(needed));
        self.verdict(false, retry_after, 0)
    }

    fn verdict(&self, allowed: bool, retry_after: Option<i128>, delay: i128) -> Verdict {
        let bucket = self.state.bucket();
        // Waits are counted from the instant of computing; the clock has to get there first.
        let from_now = |wait: i128| if wait == 0 { 0 } else { wait + self.behind };
        Verdict {
            allowed,
            limit: unsigned(bucket.limit()),
            remaining: unsigned(bucket.remaining().max(0)),
            retry_after: retry_after.map(|wait| unsigned(from_now(wait))),
            reset_after: unsigned(from_now(bucket.reset_after())),
            delay: unsigned(delay),
        }
    }
}

/// What an algorithm remembers about one key, at the instant `last`.
trait Bucket {
    /// The instant of the last write, or the one [`advance`](Self::advance) computed.
    fn last(&self) -> i128;
    /// Moves every instant so that `last` becomes `now`, without crediting any time.
    fn step_back(&mut self, now: i128);
    /// Lets time pass until `at`, which is not before `last`.
    fn advance(&mut self, at: i128);
    /// Whether nothing that is remembered matters any more.
    fn is_new(&self) -> bool;
    /// The most it can ever hold.
    fn limit(&self) -> i128;
    /// The largest cost that fits now; negative when a lowered limit is exceeded already.
    fn remaining(&self) -> i128;
    /// The least wait after which `cost` fits. Asked only when it does not fit now but fits a new bucket.
    fn wait_for(&self, cost: i128) -> i128;
    /// The least wait after which the bucket is as good as new.
    fn reset_after(&self) -> i128;
    /// How long the next request would have to wait its turn.
    fn delay(&self) -> i128 {
        0
    }
    /// Counts `cost` as used now.
    fn take(&mut self, cost: i128);
    /// Counts `cost` as not used after all.
    fn give_back(&mut self, cost: i128);
    /// Counts the unused part of a price that was taken as not used after all, as far as it still counts; whether it does.
    fn take_out(&mut self, unused: i128, price: i128, since: i128) -> bool;
    /// From when on what is taken now is repaid.
    fn repaid_from(&self) -> i128 {
        self.last()
    }
}

/// The bucket of any algorithm.
#[derive(Debug, Clone)]
enum State {
    TokenBucket(TokenBucket),
    Interval(Interval),
    Leaky(Leaky),
    FixedWindow(FixedWindow),
    SlidingLog(SlidingLog),
    SlidingCounter(SlidingCounter),
}

impl State {
    /// A bucket of which nothing was ever used, asked at `at`.
    fn open(spec: &Algorithm, at: i128) -> Self {
        match *spec {
            Algorithm::TokenBucket { rate, period_us, capacity } => {
                Self::TokenBucket(TokenBucket::open(rate, period_us, capacity, at))
            }
            Algorithm::Interval { refill, interval_us, capacity, aligned } => {
                Self::Interval(Interval::open(refill, interval_us, capacity, aligned, at))
            }
            Algorithm::Leaky { rate, period_us, queue, free } => {
                Self::Leaky(Leaky::open(rate, period_us, queue, free, at))
            }
            Algorithm::FixedWindow { limit, window_us, ref phase } => {
                Self::FixedWindow(FixedWindow::open(limit, window_us, phase, at))
            }
            Algorithm::SlidingLog { limit, window_us } => {
                Self::SlidingLog(SlidingLog::open(limit, window_us, at))
            }
            Algorithm::SlidingCounter { limit, window_us, ref phase } => {
                Self::SlidingCounter(SlidingCounter::open(limit, window_us, phase, at))
            }
        }
    }

    /// The same use under the numbers of `spec`, before any time passes; `None` under another algorithm.
    fn adopt(&self, spec: &Algorithm) -> Option<Self> {
        let empty = Self::open(spec, self.bucket().last());
        match (self, empty) {
            (Self::TokenBucket(old), Self::TokenBucket(new)) => Some(Self::TokenBucket(old.adopt(new))),
            (Self::Interval(old), Self::Interval(new)) => Some(Self::Interval(old.adopt(new))),
            (Self::Leaky(old), Self::Leaky(new)) => Some(Self::Leaky(old.adopt(new))),
            (Self::FixedWindow(old), Self::FixedWindow(new)) => Some(Self::FixedWindow(old.adopt(new))),
            (Self::SlidingLog(old), Self::SlidingLog(new)) => Some(Self::SlidingLog(old.adopt(new))),
            (Self::SlidingCounter(old), Self::SlidingCounter(new)) => {
                Some(Self::SlidingCounter(old.adopt(new)))
            }
            _ => None,
        }
    }

    fn bucket(&self) -> &dyn Bucket {
        match self {
            Self::TokenBucket(bucket) => bucket,
            Self::Interval(bucket) => bucket,
            Self::Leaky(bucket) => bucket,
            Self::FixedWindow(bucket) => bucket,
            Self::SlidingLog(bucket) => bucket,
            Self::SlidingCounter(bucket) => bucket,
        }
    }

    fn bucket_mut(&mut self) -> &mut dyn Bucket {
        match self {
            Self::TokenBucket(bucket) => bucket,
            Self::Interval(bucket) => bucket,
            Self::Leaky(bucket) => bucket,
            Self::FixedWindow(bucket) => bucket,
            Self::SlidingLog(bucket) => bucket,
            Self::SlidingCounter(bucket) => bucket,
        }
    }
}

fn unsigned(number: i128) -> u64 {
    u64::try_from(number).expect("limits and waits are not negative and fit 64 bits for every valid limit")
}

/// The greatest multiple of `step` at or before `instant`, which may be negative.
fn floor_to(instant: i128, step: i128) -> i128 {
    instant.div_euclid(step) * step
}
