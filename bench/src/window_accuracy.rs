//! How often is the sliding window counter wrong, compared with the exact log on the same requests?
//!
//! The counter estimates the requests of the last window from two counts. Two comparisons, both with the algorithms that
//! tollgate runs (`core::algorithm`), in virtual time and from a seed: the same counts on every machine.
//!
//! **As a meter**, the definition under which a large operator published its figures (0.003 % of the requests wrong, a mean
//! rate error of 6 %, no source refused wrongly): every request counts, whether or not it is refused. After each request the
//! counter's estimate and the exact number of requests of its source in the last window are known. The request is over
//! the limit if that number exceeds the limit. A decision is wrong if the two numbers disagree about that. The rate
//! error is `|estimate - exact| / exact`, its mean is over all requests. A source is refused wrongly if the estimate
//! exceeded the limit at some request and the exact number never did; allowed wrongly, the other way around.
//!
//! **As a limiter**, which is what a rule does: only admitted requests count. A counter and a log decide the same requests,
//! each on its own history, and their decisions are compared one by one. After the first difference the histories differ
//! too, so under constant overload many decisions differ while both admit about the same number: that number is
//! reported, and the most that the counter admitted in any window.

use std::collections::VecDeque;
use std::fmt;

use tollgate::core::algorithm::{Bucket, Demand, State, Window};
use tollgate::{Limit, Micros, Rule, Timestamp};

/// The limit of every source.
const LIMIT: u64 = 100;
const MINUTE_US: i64 = 60_000_000;
/// Time before which nothing happens: whole windows since the epoch.
const START_US: i64 = 1_000_000 * MINUTE_US;
const SEED: u64 = 0x005e_ed0f_c0de;

/// Who sends requests, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// A source's share is the inverse of its rank.
    Zipf,
    /// Every source sends half the limit on average, at random instants.
    HalfTheLimit,
    /// Every source sends the limit on average, at random instants.
    AtTheLimit,
    /// Bursts of 1 to 150 requests 10 ms apart, and pauses of up to two minutes.
    Bursty,
    /// The limit within a second before or after the beginning of each window: where the counter knows least.
    Boundary,
}

impl Workload {
    /// Every workload.
    pub const ALL: [Workload; 5] =
        [Workload::Zipf, Workload::HalfTheLimit, Workload::AtTheLimit, Workload::Bursty, Workload::Boundary];

    const fn name(self) -> &'static str {
        match self {
            Workload::Zipf => "zipf, s = 1",
            Workload::HalfTheLimit => "uniform, half the limit",
            Workload::AtTheLimit => "uniform, at the limit",
            Workload::Bursty => "bursty",
            Workload::Boundary => "boundary",
        }
    }

    /// The number of sources for a number of requests in about ten windows; at the boundaries, a hundred.
    fn sources(self, requests: usize) -> usize {
        let requests_of_each = match self {
            Workload::Zipf => 37,
            Workload::HalfTheLimit | Workload::Bursty => 500,
            Workload::AtTheLimit => 1_000,
            Workload::Boundary => 10_000,
        };
        (requests / requests_of_each).max(1)
    }

    /// Tells `each` of the source and the instant of every request. Those of one source are in their order.
    fn send(self, requests: usize, mut each: impl FnMut(usize, i64)) {
        let mut random = Random(SEED);
        let sources = self.sources(requests);
        match self {
            Workload::Zipf => {
                let mut sum = 0.0;
                let mut share = |rank: u32| {
                    sum += 1.0 / f64::from(rank);
                    sum
                };
                let sums: Vec<f64> = (1..=u32::try_from(sources).expect("a rank")).map(&mut share).collect();
                for at in evenly(requests) {
                    let point = random.fraction() * sum;
                    each(sums.partition_point(|upto| *upto < point).min(sources - 1), at);
                }
            }
            Workload::HalfTheLimit | Workload::AtTheLimit => {
                for at in evenly(requests) {
                    each(random.below(sources), at);
                }
            }
            Workload::Bursty => {
                for source in 0..sources {
                    let (mut at, mut left) = (START_US + random.up_to(MINUTE_US), requests / sources);
                    while left > 0 {
                        let burst = (1 + random.below(150)).min(left);
                        for _ in 0..burst {
                            each(source, at);
                            at += 10_000;
                        }
                        left -= burst;
                        at += random.up_to(2 * MINUTE_US);
                    }
                }
            }
            Workload::Boundary => {
                let burst = usize::try_from(LIMIT).expect("a small number");
                for source in 0..sources {
                    let mut boundary = START_US + MINUTE_US;
                    for _ in 0..requests / sources / burst {
                        let mut instants: Vec<i64> =
                            (0..burst).map(|_| boundary - 1_000_000 + random.up_to(2_000_000)).collect();
                        instants.sort_unstable();
                        instants.into_iter().for_each(|at| each(source, at));
                        boundary += MINUTE_US;
                    }
                }
            }
        }
    }
}

/// The instants of requests at one rate, ten windows long.
fn evenly(requests: usize) -> impl Iterator<Item = i64> {
    let all = i64::try_from(requests).expect("a number of requests");
    (0..all).map(move |number| START_US + number * (10 * MINUTE_US) / all)
}

/// What the comparison found in one workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Accuracy {
    workload: Workload,
    /// Sources that sent anything.
    sources: u64,
    requests: u64,
    /// As a meter: requests over the limit, by the exact number.
    over: u64,
    wrongly_allowed: u64,
    wrongly_refused: u64,
    /// The sum of the rate errors of all requests.
    rate_error: f64,
    sources_refused_wrongly: u64,
    sources_allowed_wrongly: u64,
    /// As a limiter: decisions in which counter and log differ.
    differing: u64,
    admitted_by_counter: u64,
    admitted_by_log: u64,
    /// The most requests that the counter admitted in any window of one source.
    peak: u64,
    /// Sources that the counter refused at some time and the log never.
    sources_only_counter_refused: u64,
}

impl Accuracy {
    /// Compares on about this number of requests of a workload.
    pub fn measure(workload: Workload, requests: usize) -> Self {
        let limits = Limits::new();
        let mut sources: Vec<Source> = Vec::new();
        sources.resize_with(workload.sources(requests), Source::default);
        let mut found = Accuracy::nothing(workload);
        workload.send(requests, |source, at| sources[source].send(&limits, at, &mut found));
        for source in sources.iter().filter(|source| source.sent) {
            found.sources += 1;
            found.sources_refused_wrongly += u64::from(source.estimate_over && !source.exact_over);
            found.sources_allowed_wrongly += u64::from(source.exact_over && !source.estimate_over);
            found.sources_only_counter_refused += u64::from(source.counter_refused && !source.log_refused);
        }
        found
    }

    const fn nothing(workload: Workload) -> Self {
        Accuracy {
            workload,
            sources: 0,
            requests: 0,
            over: 0,
            wrongly_allowed: 0,
            wrongly_refused: 0,
            rate_error: 0.0,
            sources_refused_wrongly: 0,
            sources_allowed_wrongly: 0,
            differing: 0,
            admitted_by_counter: 0,
            admitted_by_log: 0,
            peak: 0,
            sources_only_counter_refused: 0,
        }
    }

    /// The mean rate error.
    fn mean_rate_error(&self) -> f64 {
        self.rate_error / precise(self.requests)
    }
}

/// The limits that are compared.
struct Limits {
    counter: Limit,
    log: Limit,
    /// A counter that refuses nothing.
    meter: Limit,
}

impl Limits {
    fn new() -> Self {
        let limit = |limit: String, algorithm: &str| -> Limit {
            let draft = tollgate::core::Draft {
                key: "global".to_owned(),
                limit: Some(limit),
                algorithm: Some(algorithm.to_owned()),
                ..Default::default()
            };
            let rule: Rule = draft.build().expect("a valid rule");
            rule.limit().cloned().expect("a rule with a limit")
        };
        Limits {
            counter: limit(format!("{LIMIT}/min"), "sliding_window_counter"),
            log: limit(format!("{LIMIT}/min"), "sliding_window_log"),
            meter: limit(format!("{}/min", 1_u64 << 31), "sliding_window_counter"),
        }
    }
}

/// What is known of one source.
#[derive(Default)]
struct Source {
    meter: Option<State>,
    counter: Option<State>,
    log: Option<State>,
    /// The instants of the requests of the last window, and of those that the counter admitted.
    requests: VecDeque<i64>,
    admitted: VecDeque<i64>,
    sent: bool,
    exact_over: bool,
    estimate_over: bool,
    counter_refused: bool,
    log_refused: bool,
}

impl Source {
    fn send(&mut self, limits: &Limits, at: i64, found: &mut Accuracy) {
        self.sent = true;
        found.requests += 1;
        self.meter(limits, at, found);
        self.limit(limits, at, found);
    }

    /// Every request counts.
    fn meter(&mut self, limits: &Limits, at: i64, found: &mut Accuracy) {
        decide(&limits.meter, &mut self.meter, at);
        let opened = Bucket::open(&limits.meter, self.meter.clone(), Timestamp::from_micros(at), Window::Own);
        let estimate = limits.meter.capacity() - opened.remaining();
        let exact = count(&mut self.requests, at);
        found.rate_error += precise(estimate.abs_diff(exact)) / precise(exact);
        let (estimate_over, exact_over) = (estimate > LIMIT, exact > LIMIT);
        found.over += u64::from(exact_over);
        found.wrongly_allowed += u64::from(exact_over && !estimate_over);
        found.wrongly_refused += u64::from(estimate_over && !exact_over);
        self.estimate_over |= estimate_over;
        self.exact_over |= exact_over;
    }

    /// Only admitted requests count.
    fn limit(&mut self, limits: &Limits, at: i64, found: &mut Accuracy) {
        let by_counter = decide(&limits.counter, &mut self.counter, at);
        let by_log = decide(&limits.log, &mut self.log, at);
        if by_counter {
            found.peak = found.peak.max(count(&mut self.admitted, at));
        }
        found.differing += u64::from(by_counter != by_log);
        found.admitted_by_counter += u64::from(by_counter);
        found.admitted_by_log += u64::from(by_log);
        self.counter_refused |= !by_counter;
        self.log_refused |= !by_log;
    }
}

/// Asks a bucket for one token and takes it if it is there.
fn decide(limit: &Limit, state: &mut Option<State>, at: i64) -> bool {
    let mut bucket = Bucket::open(limit, state.take(), Timestamp::from_micros(at), Window::Own);
    let allowed = bucket.ask(Demand { cost: 1, max_wait: Micros::MAX }).allowed();
    if allowed {
        bucket.take(1);
    }
    *state = bucket.close();
    allowed
}

/// Adds an instant, and counts those of the window that ends with it.
fn count(instants: &mut VecDeque<i64>, at: i64) -> u64 {
    while instants.front().is_some_and(|first| *first <= at - MINUTE_US) {
        instants.pop_front();
    }
    instants.push_back(at);
    instants.len() as u64
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
const fn precise(count: u64) -> f64 {
    count as f64
}

/// Both comparisons as tables.
#[derive(Debug)]
pub struct Tables<'a>(pub &'a [Accuracy]);

impl fmt::Display for Tables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0;
        writeln!(f, "As a meter: every request counts.\n")?;
        writeln!(
            f,
            "| workload | requests | sources | over the limit | wrong decisions | wrongly allowed | wrongly refused | \
             mean rate error | sources refused wrongly | sources allowed wrongly |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|---|")?;
        for found in all {
            let wrong = found.wrongly_allowed + found.wrongly_refused;
            writeln!(
                f,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                found.workload.name(),
                grouped(found.requests),
                grouped(found.sources),
                Share(found.over, found.requests),
                Share(wrong, found.requests),
                grouped(found.wrongly_allowed),
                grouped(found.wrongly_refused),
                format_args!("{:.2} %", 100.0 * found.mean_rate_error()),
                grouped(found.sources_refused_wrongly),
                grouped(found.sources_allowed_wrongly),
            )?;
        }
        writeln!(f, "\nAs a limiter: only admitted requests count.\n")?;
        writeln!(
            f,
            "| workload | decisions that differ | admitted by the counter | by the log | difference | most admitted in a \
             window, of {LIMIT} | sources refused by the counter only |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for found in all {
            let (counter, log) = (precise(found.admitted_by_counter), precise(found.admitted_by_log));
            writeln!(
                f,
                "| {} | {} | {} | {} | {:+.3} % | {} | {} |",
                found.workload.name(),
                Share(found.differing, found.requests),
                grouped(found.admitted_by_counter),
                grouped(found.admitted_by_log),
                100.0 * (counter - log) / log,
                found.peak,
                grouped(found.sources_only_counter_refused),
            )?;
        }
        Ok(())
    }
}

/// A part of a whole in per cent.
struct Share(u64, u64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.4} %", 100.0 * precise(self.0) / precise(self.1))
    }
}

/// `1,234,567`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// SplitMix64.
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a bound");
        let product = u128::from(self.next()) * u128::from(bound);
        usize::try_from(product >> 64).expect("below the bound")
    }

    fn up_to(&mut self, bound: i64) -> i64 {
        let bound = usize::try_from(bound).expect("a positive bound");
        i64::try_from(self.below(bound + 1)).expect("up to the bound")
    }

    /// At least 0 and less than 1.
    fn fraction(&mut self) -> f64 {
        precise(self.next() >> 11) / precise(1 << 53)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: usize = 60_000;

    #[test]
    fn the_same_requests_give_the_same_figures() {
        for workload in Workload::ALL {
            assert_eq!(Accuracy::measure(workload, FEW / 10), Accuracy::measure(workload, FEW / 10));
        }
    }

    #[test]
    fn requests_well_below_the_limit_are_never_refused() {
        let found = Accuracy::measure(Workload::HalfTheLimit, FEW);
        assert_eq!((found.requests, found.sources, found.over), (FEW as u64, 120, 0));
        assert_eq!((found.wrongly_refused, found.sources_refused_wrongly, found.differing), (0, 0, 0));
        assert_eq!((found.admitted_by_counter, found.admitted_by_log), (FEW as u64, FEW as u64));
    }

    #[test]
    fn a_burst_at_each_boundary_gets_past_the_counter_and_not_past_the_log() {
        let found = Accuracy::measure(Workload::Boundary, FEW);
        assert!(found.wrongly_allowed > 0 && found.differing > 0, "{found:?}");
        assert!(found.peak > LIMIT && found.peak <= 2 * LIMIT, "{found:?}");
    }

    #[test]
    fn an_even_rate_is_estimated_within_one_request() {
        let limits = Limits::new();
        let mut source = Source::default();
        let mut found = Accuracy::nothing(Workload::AtTheLimit);
        for number in 0..1_000 {
            let before = found.rate_error;
            source.send(&limits, START_US + number * MINUTE_US / 90, &mut found);
            let exact = precise(source.requests.len() as u64);
            assert!((found.rate_error - before) * exact <= 1.000_001, "request {number}");
        }
        assert_eq!((found.wrongly_allowed, found.wrongly_refused, found.differing), (0, 0, 0));
    }

    #[test]
    fn a_rate_above_the_limit_is_refused_by_both() {
        for workload in [Workload::Zipf, Workload::AtTheLimit, Workload::Bursty] {
            let found = Accuracy::measure(workload, FEW);
            let wrong = found.wrongly_allowed + found.wrongly_refused;
            assert!(found.over > 0 && wrong < found.over, "{found:?}");
            assert!(found.admitted_by_counter < found.requests && found.admitted_by_log < found.requests);
        }
    }
}
