//! The script, what is sent to it, and what its answer means.

use std::vec;

use redis::Value;
use smallvec::SmallVec;
use tollgate_core::algorithm::{Answer, Demand, Window, calendar_windows};
use tollgate_core::lease::{Call, LeasedBucket, Ledger, Loan};
use tollgate_core::limit::{Algorithm, AlgorithmName, Opening, Phase, Ticks};
use tollgate_core::{Enforcement, Hit, Limit, Mark, Micros, Timestamp, Verdict, Verdicts};

use super::state::{self, Fields};
use crate::store::window;

/// Decides a whole request.
pub(super) const CODE: &str = include_str!("charge.lua");

/// Beyond what any limit holds, and still exact in Lua.
const BEYOND: u64 = 1 << 53;

/// What is done to the buckets of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb<'m> {
    Charge,
    Peek,
    Refund,
    /// Of charges with these marks, one for each hit.
    Undo(&'m [Mark]),
    Reset,
}

impl Verb<'_> {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Verb::Charge => "charge",
            Verb::Peek => "peek",
            Verb::Refund => "refund",
            Verb::Undo(_) => "undo",
            Verb::Reset => "reset",
        }
    }
}

/// A hit as the script reads it. Windows of a calendar are those around an instant.
pub(super) fn pack(hit: &Hit<'_>, around: Timestamp, out: &mut Vec<u8>) {
    pack_parts(hit.limit, window(hit, hit.limit), hit.demand, hit.enforcement, around, out);
}

/// The same from what a hit is made of, but for its key.
pub(super) fn pack_parts(
    limit: &Limit,
    spread: Window,
    demand: Demand,
    enforcement: Enforcement,
    around: Timestamp,
    out: &mut Vec<u8>,
) {
    let calendar = match limit.algorithm() {
        Algorithm::FixedWindow { phase: Phase::Calendar(calendar), .. } => Some(calendar),
        _ => None,
    };
    // Seven is no state's tag: windows of a calendar are stored as any other.
    out.push(if calendar.is_some() { 7 } else { state::tag(limit.algorithm_name()) });
    out.push(u8::from(enforcement == Enforcement::Shadow));
    let Demand { cost, patience } = demand;
    let mut put = |number: u64| state::put(number.min(BEYOND).cast_signed(), out);
    put(cost);
    put(patience.get());
    match limit.algorithm() {
        Algorithm::TokenBucket(refill) => {
            [refill.capacity(), refill.rate(), refill.units(), 0].into_iter().for_each(put);
        }
        Algorithm::LeakyBucket { refill, free } => {
            [refill.capacity(), refill.rate(), refill.units(), *free].into_iter().for_each(put);
        }
        Algorithm::TokenBucketInterval(refill) => {
            let aligned = u64::from(refill.ticks() == Ticks::Aligned);
            [refill.count(), refill.interval().get(), refill.capacity(), aligned].into_iter().for_each(put);
        }
        Algorithm::FixedWindow { limit, phase: Phase::Calendar(calendar), .. } => {
            put(*limit);
            for border in calendar_windows(calendar, around) {
                state::put(border.as_micros(), out);
            }
        }
        Algorithm::FixedWindow { limit, window, phase } => {
            let offset = if let Window::Spread(offset) = spread { offset } else { Micros::ZERO };
            let first = u64::from(*phase == Phase::First);
            [*limit, window.get(), offset.get(), first].into_iter().for_each(put);
        }
        Algorithm::SlidingWindowLog { limit, window } => [*limit, window.get()].into_iter().for_each(put),
        Algorithm::SlidingWindowCounter { limit, window, opens } => {
            let first = u64::from(*opens == Opening::First);
            [*limit, window.get(), first].into_iter().for_each(put);
        }
    }
}

/// What the script answered.
#[derive(Debug)]
pub(super) enum Reply {
    /// It decided.
    Done(Done),
    /// Nothing was done: a calendar's windows did not reach to Redis' time, which is this.
    OtherTime(Timestamp),
}

/// A decision of the script.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) now: Timestamp,
    pub(super) passes: bool,
    pub(super) clock_steps: u64,
    pub(super) foreign: u64,
    stored: SmallVec<[Vec<u8>; 4]>,
}

impl Reply {
    /// Reads an answer that tells of so many buckets; none when it is not one.
    pub(super) fn read(value: Value, buckets: usize) -> Option<Self> {
        let Value::Array(elements) = value else { return None };
        let mut elements = elements.into_iter();
        let number = |elements: &mut vec::IntoIter<Value>| match elements.next() {
            Some(Value::Int(number)) => u64::try_from(number).ok(),
            _ => None,
        };
        let now = Timestamp::from_micros(number(&mut elements)?.cast_signed());
        if elements.len() == 0 {
            return Some(Reply::OtherTime(now));
        }
        let passes = number(&mut elements).filter(|passes| *passes <= 1)?;
        let (clock_steps, foreign) = (number(&mut elements)?, number(&mut elements)?);
        let stored: SmallVec<_> = elements
            .map(|element| match element {
                Value::BulkString(bytes) => Some(bytes),
                _ => None,
            })
            .collect::<Option<_>>()?;
        let done = Done { now, passes: passes == 1, clock_steps, foreign, stored };
        (done.stored.len() == buckets).then_some(Reply::Done(done))
    }
}

/// A bucket while the answer is read: what core makes of what was stored, or the numbers of a log.
#[derive(Debug)]
enum Seen<'h> {
    Bucket { bucket: LeasedBucket<'h>, known: bool, asked_before: u64 },
    Log(Verdict),
}

impl Done {
    /// How much a settlement or a debit moved. None when the answer makes no sense.
    pub(super) fn moved(&self) -> Option<u64> {
        str::from_utf8(self.stored.first()?).ok()?.parse().ok()
    }

    /// The verdict on each hit: what core says to what was stored, at the script's instant.
    ///
    /// `same` tells which earlier hit has the same key. Of a request over several slots each has a call of its own, and
    /// `stands` says what came of all. None when the answer makes no sense.
    pub(super) fn verdicts<'h>(
        &self,
        verb: Verb<'_>,
        hits: &[&Hit<'h>],
        same: impl Fn(usize) -> Option<usize>,
        stands: bool,
        verdicts: &mut Verdicts,
    ) -> Option<()> {
        let mut seen: SmallVec<[Seen<'h>; 4]> = SmallVec::new();
        let mut asked: SmallVec<[(usize, Answer); 4]> = SmallVec::new();
        for (index, hit) in hits.iter().enumerate() {
            // Each hit of a log has its numbers; any other bucket is opened once.
            let is_log = hit.limit.algorithm_name() == AlgorithmName::SlidingWindowLog;
            let place = match same(index) {
                Some(earlier) if !is_log => asked[earlier].0,
                _ => {
                    seen.push(self.see(hit, self.stored.get(index).map_or(&[], Vec::as_slice))?);
                    seen.len() - 1
                }
            };
            asked.push((place, seen[place].ask(verb, hit)));
        }
        let refuses = |(hit, (place, answer)): (&&Hit<'_>, &(usize, Answer))| {
            hit.enforcement == Enforcement::Enforce && !seen[*place].allows(*answer)
        };
        let decides = matches!(verb, Verb::Charge | Verb::Peek);
        if decides && hits.iter().zip(&asked).any(refuses) == self.passes {
            return None; // the script and core disagree: neither is to be believed
        }
        for (index, (hit, (place, answer))) in hits.iter().zip(&asked).enumerate() {
            seen[*place].settle(verb, index, hit, *answer, stands);
        }
        verdicts.extend(asked.iter().map(|(place, answer)| seen[*place].verdict(*answer)));
        Some(())
    }

    /// What an undo of a charge names that this was the answer to; none when the answer makes no sense.
    pub(super) fn mark(&self, index: usize, limit: &Limit, window: Window) -> Option<Mark> {
        let stored = self.stored.get(index)?;
        let verdict = match limit.algorithm() {
            Algorithm::SlidingWindowLog { .. } if !stored.is_empty() => log_numbers(limit, stored)?,
            _ => open(limit, stored, self.now, window).0.verdict(Answer::Pass { delay: Micros::ZERO }),
        };
        Some(verdict.mark)
    }

    fn see<'h>(&self, hit: &Hit<'h>, stored: &[u8]) -> Option<Seen<'h>> {
        if let Algorithm::SlidingWindowLog { .. } = hit.limit.algorithm()
            && !stored.is_empty()
        {
            return log_numbers(hit.limit, stored).map(Seen::Log);
        }
        let (bucket, known) = open(hit.limit, stored, self.now, window(hit, hit.limit));
        Some(Seen::Bucket { bucket, known, asked_before: 0 })
    }
}

impl Seen<'_> {
    fn ask(&mut self, verb: Verb<'_>, hit: &Hit<'_>) -> Answer {
        match self {
            Seen::Bucket { bucket, asked_before, .. } if verb == Verb::Charge || verb == Verb::Peek => {
                let Demand { cost, patience } = hit.demand;
                let sum = if cost == 0 { 0 } else { cost.saturating_add(*asked_before) };
                let answer = bucket.ask(Demand { cost: sum, patience });
                if answer.allowed() || hit.enforcement == Enforcement::Enforce {
                    *asked_before = asked_before.saturating_add(cost);
                }
                answer
            }
            _ => Answer::Pass { delay: Micros::ZERO },
        }
    }

    /// Does to the bucket what the script did.
    fn settle(&mut self, verb: Verb<'_>, index: usize, hit: &Hit<'_>, answer: Answer, stands: bool) {
        let Seen::Bucket { bucket, known, .. } = self else { return };
        let charged = answer.allowed() && (stands || hit.enforcement == Enforcement::Shadow);
        match verb {
            Verb::Charge if charged => bucket.take(hit.demand.cost),
            Verb::Refund if *known => bucket.refund(hit.demand.cost),
            Verb::Undo(marks) if *known => {
                marks.get(index).map(|mark| bucket.undo(hit.demand.cost, *mark));
            }
            _ => {}
        }
    }

    fn allows(&self, answer: Answer) -> bool {
        match self {
            Seen::Log(verdict) => verdict.allowed,
            Seen::Bucket { .. } => answer.allowed(),
        }
    }

    fn verdict(&self, answer: Answer) -> Verdict {
        match self {
            Seen::Log(verdict) => *verdict,
            Seen::Bucket { bucket, .. } => bucket.verdict(answer),
        }
    }
}

/// What core makes of what was stored, and whether it was anything.
fn open<'l>(limit: &'l Limit, stored: &[u8], now: Timestamp, window: Window) -> (LeasedBucket<'l>, bool) {
    let (state, ledger) = match state::decode_leased(limit.algorithm_name(), stored) {
        Some((state, ledger)) => (Some(state), ledger),
        None => (None, Ledger::default()),
    };
    let known = state.is_some();
    (LeasedBucket::open(limit, state, ledger, now, window), known)
}

/// What the script answered to a call for a lease.
#[derive(Debug)]
pub(super) enum LeaseReply {
    /// It decided: the loan, unless the call came too late, and the bucket as it was.
    Done { done: Done, loan: Option<Loan> },
    /// As [`Reply::OtherTime`].
    OtherTime(Timestamp),
}

impl LeaseReply {
    pub(super) fn read(value: Value) -> Option<Self> {
        let Value::Array(mut elements) = value else { return None };
        if elements.len() == 1 {
            let Reply::OtherTime(now) = Reply::read(Value::Array(elements), 1)? else { return None };
            return Some(LeaseReply::OtherTime(now));
        }
        let numbers: SmallVec<[i64; 3]> = elements
            .drain(elements.len().checked_sub(3)?..)
            .filter_map(|element| if let Value::Int(number) = element { Some(number) } else { None })
            .collect();
        let [granted, kept, term] = numbers.as_slice() else { return None };
        let Reply::Done(done) = Reply::read(Value::Array(elements), 1)? else { return None };
        let number = |number: &i64| u64::try_from(*number).ok();
        let loan = match number(term) {
            Some(term) => {
                Some(Loan { granted: number(granted)?, kept: number(kept)?, term: Micros::new(term) })
            }
            None => None,
        };
        Some(LeaseReply::Done { done, loan })
    }
}

impl Done {
    /// The verdict on a charge of one bucket that is no log. None when the answer makes no sense.
    pub(super) fn verdict_on_charge(&self, limit: &Limit, window: Window, demand: Demand) -> Option<Verdict> {
        let stored = self.stored.first().map_or(&[][..], Vec::as_slice);
        let (mut bucket, _) = open(limit, stored, self.now, window);
        let answer = bucket.ask(demand);
        if answer.allowed() {
            bucket.take(demand.cost);
        }
        (answer.allowed() == self.passes).then(|| bucket.verdict(answer))
    }

    /// The verdict on the request that waited for a loan: what core says. None when the answer makes no sense.
    pub(super) fn verdict_on_loan(
        &self,
        limit: &Limit,
        window: Window,
        call: &Call,
        loan: Loan,
    ) -> Option<Verdict> {
        let stored = self.stored.first().map_or(&[][..], Vec::as_slice);
        if limit.algorithm_name() == AlgorithmName::SlidingWindowLog && !stored.is_empty() {
            return log_numbers(limit, stored);
        }
        let (mut bucket, _) = open(limit, stored, self.now, window);
        if bucket.lend(call) != Some(loan) {
            return None; // the script and core disagree: neither is to be believed
        }
        Some(bucket.verdict_on_loan(call, loan))
    }
}

fn log_numbers(limit: &Limit, bytes: &[u8]) -> Option<Verdict> {
    let mut fields = Fields(bytes);
    let (_, allowed, remaining) = (fields.byte()?, fields.byte()? == 1, fields.number()?);
    let mut wait = || fields.signed().map(|wait| u64::try_from(wait).ok().map(Micros::new));
    let (retry_after, reset_after, more_after) = (wait()?, wait()?.unwrap_or(Micros::ZERO), wait()?);
    let mark = Mark::at(Timestamp::from_micros(fields.signed()?));
    let (limit, delay) = (limit.capacity(), Micros::ZERO);
    Some(Verdict { allowed, limit, remaining, retry_after, reset_after, delay, more_after, mark })
}
