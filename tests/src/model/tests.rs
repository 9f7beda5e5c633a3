//! What holds for the model whatever the algorithm, and the helpers of every algorithm's own tests.

use super::{Algorithm, Hit, Model, Phase, Spec, Verdict};

const S: u64 = 1_000_000;

/// One key of a model of its own, and the numbers it is asked with.
#[derive(Debug, Clone)]
pub(super) struct Key {
    model: Model,
    pub(super) spec: Spec,
}

impl Key {
    pub(super) fn new(spec: Spec) -> Self {
        Self { model: Model::new(), spec }
    }

    fn hit(&self, cost: u64) -> Hit {
        Hit { key: "key".into(), spec: self.spec.clone(), cost, shadow: false }
    }

    pub(super) fn check(&mut self, now_us: u64, cost: u64) -> Verdict {
        self.check_all(now_us, &[cost]).remove(0)
    }

    pub(super) fn check_all(&mut self, now_us: u64, costs: &[u64]) -> Vec<Verdict> {
        let hits: Vec<Hit> = costs.iter().map(|cost| self.hit(*cost)).collect();
        self.model.check(now_us, &hits)
    }

    pub(super) fn peek(&self, now_us: u64, cost: u64) -> Verdict {
        self.model.peek(now_us, &[self.hit(cost)]).remove(0)
    }

    pub(super) fn refund(&mut self, now_us: u64, cost: u64) -> Verdict {
        let hit = self.hit(cost);
        self.model.refund(now_us, &[hit]).remove(0)
    }

    pub(super) fn is_stored(&self) -> bool {
        self.model.states.contains_key("key")
    }

    pub(super) fn clock_steps(&self) -> u64 {
        self.model.clock_steps
    }
}

pub(super) fn allowed(limit: u64, remaining: u64, reset_after: u64) -> Verdict {
    Verdict { allowed: true, limit, remaining, retry_after: Some(0), reset_after, delay: 0 }
}

pub(super) fn refused(limit: u64, remaining: u64, retry_after: u64, reset_after: u64) -> Verdict {
    Verdict { allowed: false, limit, remaining, retry_after: Some(retry_after), reset_after, delay: 0 }
}

pub(super) fn never(limit: u64, remaining: u64, reset_after: u64) -> Verdict {
    Verdict { allowed: false, limit, remaining, retry_after: None, reset_after, delay: 0 }
}

fn bucket(capacity: u64) -> Spec {
    Spec { algorithm: Algorithm::TokenBucket { rate: 1, period_us: S, capacity } }
}

fn window(limit: u64, phase: Phase) -> Spec {
    Spec { algorithm: Algorithm::FixedWindow { limit, window_us: 10 * S, phase } }
}

fn hit(key: &str, spec: Spec, cost: u64, shadow: bool) -> Hit {
    Hit { key: key.into(), spec, cost, shadow }
}

#[test]
fn a_hit_that_fits_is_not_charged_when_another_is_refused() {
    let mut model = Model::new();
    let hits = [hit("a", bucket(5), 2, false), hit("b", window(1, Phase::Epoch), 2, false)];
    assert_eq!(model.check(10 * S, &hits), [allowed(5, 5, 0), never(1, 1, 0)]);
    assert_eq!(model.peek(10 * S, &hits[..1]), [allowed(5, 5, 0)]);
    assert_eq!(model.check(10 * S, &hits[..1]), [allowed(5, 3, 2 * S)]);
}

#[test]
fn shadow_hits_stand_alone() {
    let mut model = Model::new();
    let hits = [hit("a", bucket(5), 6, false), hit("b", bucket(5), 2, true), hit("c", bucket(1), 2, true)];
    assert_eq!(model.check(0, &hits), [never(5, 5, 0), allowed(5, 3, 2 * S), never(1, 1, 0)]);
    let hits = [hit("a", bucket(5), 1, false), hit("c", bucket(1), 2, true)];
    assert_eq!(model.check(0, &hits), [allowed(5, 4, S), never(1, 1, 0)]);
}

#[test]
fn two_hits_on_one_key_need_room_for_both() {
    let mut key = Key::new(bucket(5));
    assert_eq!(key.check_all(0, &[2, 4]), [allowed(5, 5, 0), never(5, 5, 0)]);
    assert_eq!(key.check_all(0, &[2, 1]), [allowed(5, 3, 2 * S), allowed(5, 2, 3 * S)]);
    assert_eq!(key.check_all(0, &[1, 3]), [allowed(5, 2, 3 * S), refused(5, 2, 2 * S, 3 * S)]);
    assert_eq!(key.check_all(0, &[3, 1]), [refused(5, 2, S, 3 * S), refused(5, 2, 2 * S, 3 * S)]);
}

#[test]
fn a_cost_of_nothing_is_allowed_and_creates_nothing() {
    let mut key = Key::new(bucket(5));
    assert_eq!(key.check(0, 0), allowed(5, 5, 0));
    assert!(!key.is_stored());
    key.check(0, 5);
    key.spec = bucket(1);
    assert_eq!(key.check(0, 0), allowed(1, 0, S));
}

#[test]
fn reset_forgets_the_key() {
    let mut key = Key::new(bucket(5));
    key.check(0, 5);
    key.model.reset("key");
    assert_eq!(key.check(0, 5), allowed(5, 0, 5 * S));
}

#[test]
fn another_algorithm_starts_anew_when_it_writes() {
    let mut key = Key::new(bucket(5));
    key.check(100 * S, 5);
    key.spec = window(3, Phase::Epoch);
    assert_eq!(key.check(50 * S, 4), never(3, 3, 0));
    assert_eq!(key.refund(50 * S, 1), allowed(3, 3, 0));
    assert_eq!(key.clock_steps(), 0);
    key.spec = bucket(5);
    assert_eq!(key.peek(100 * S, 1), refused(5, 0, S, 5 * S)); // still there
    key.spec = window(3, Phase::Epoch);
    assert_eq!(key.check(100 * S, 1), allowed(3, 2, 10 * S));
    key.spec = bucket(5);
    assert_eq!(key.peek(100 * S, 5), allowed(5, 5, 0));
}

#[test]
fn a_step_back_is_written_by_every_hit_that_costs_something() {
    let mut model = Model::new();
    let hits = [hit("a", bucket(5), 5, false), hit("b", bucket(5), 1, false), hit("c", bucket(5), 1, true)];
    model.check(100 * S, &hits);
    model.check(50 * S, &hits); // refused by a
    assert_eq!(model.clock_steps, 3);
    model.refund(40 * S, &[hit("b", bucket(5), 1, false), hit("c", bucket(5), 0, false)]);
    assert_eq!(model.clock_steps, 4);
}

#[test]
fn near_the_epoch_instants_may_become_negative() {
    let interval = Algorithm::Interval { refill: 1, interval_us: 10 * S, capacity: 2, aligned: false };
    let mut key = Key::new(Spec { algorithm: interval });
    key.check(20 * S, 1);
    key.check(29 * S, 1);
    assert_eq!(key.check(0, 1), refused(2, 0, S, 11 * S)); // anchored at -9 s
    assert_eq!(key.check(S, 1), allowed(2, 0, 20 * S));
}

/// A small generator of numbers, so that the traces below are the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn spec(&mut self, algorithm: u64) -> Spec {
        let (rate, period_us) = (1 + self.roll(7), 1 + self.roll(40));
        let (limit, window_us) = (1 + self.roll(9), 1 + self.roll(50));
        let phase = [Phase::Epoch, Phase::First, Phase::Spread { phase_us: self.roll(window_us) }];
        let pick = usize::try_from(self.roll(3)).unwrap();
        let algorithm = match algorithm {
            0 => Algorithm::TokenBucket { rate, period_us, capacity: limit },
            1 => Algorithm::Leaky { rate, period_us, queue: limit - 1, free: self.roll(3) },
            2 => {
                let aligned = self.roll(2) == 0;
                Algorithm::Interval { refill: rate, interval_us: period_us, capacity: limit, aligned }
            }
            3 => Algorithm::FixedWindow { limit, window_us, phase: phase[pick].clone() },
            4 => Algorithm::SlidingLog { limit, window_us },
            _ => Algorithm::SlidingCounter { limit, window_us, phase: phase[pick % 2].clone() },
        };
        Spec { algorithm }
    }
}

#[test]
fn the_laws_hold_on_random_traces() {
    let mut dice = Dice(1);
    for trace in 0..600 {
        let mut key = Key::new(dice.spec(trace % 6));
        let mut now = 5 * S;
        for _ in 0..60 {
            now = match dice.roll(20) {
                0 => now - dice.roll(30),
                1 => now - S - 1 - dice.roll(30),
                2 => now + dice.roll(300),
                _ => now + dice.roll(20),
            };
            now = now.max(3 * S);
            if dice.roll(12) == 0 {
                key.spec = dice.spec(trace % 6);
            }
            let cost = dice.roll(11);
            if dice.roll(6) == 0 {
                key.refund(now, cost);
            }
            laws_of_one_check(&mut key, now, cost);
        }
    }
}

fn laws_of_one_check(key: &mut Key, now: u64, cost: u64) {
    let before = key.peek(now, cost);
    let verdict = key.check(now, cost);
    let context = format!("{key:?} at {now}: {verdict:?}");
    assert_eq!(verdict.allowed, cost <= before.remaining || cost == 0, "{context}");
    assert_eq!((verdict.allowed, verdict.retry_after), (before.allowed, before.retry_after), "{context}");
    assert_eq!(verdict.delay, before.delay, "{context}");
    if !verdict.allowed {
        assert_eq!(verdict, before, "{context}");
        match verdict.retry_after {
            None => assert!(cost > verdict.limit, "{context}"),
            Some(wait) => {
                assert!(!key.peek(now + wait - 1, cost).allowed, "{context}");
                assert!(key.peek(now + wait, cost).allowed, "{context}");
            }
        }
    } else if cost > 0 {
        assert!(verdict.remaining + cost <= verdict.limit, "{context}");
        refund_restores(key, now, cost, &before);
    }
    let numbers = key.peek(now, 1);
    if cost > 0 && numbers.reset_after > 0 {
        assert_ne!(key.peek(now + numbers.reset_after - 1, 1).reset_after, 0, "{context}");
    }
    if cost > 0 {
        let rested = key.peek(now + numbers.reset_after, numbers.limit);
        assert_eq!((rested.remaining, rested.reset_after), (numbers.limit, 0), "{context}");
    }
}

fn refund_restores(key: &Key, now: u64, cost: u64, before: &Verdict) {
    let mut undone = key.clone();
    let refunded = undone.refund(now, cost);
    let numbers = |verdict: &Verdict| (verdict.remaining, verdict.reset_after);
    assert_eq!(numbers(&refunded), numbers(before), "{key:?} at {now}");
}
