//! The scripts, what is sent to them, and what their answers mean.
//!
//! One packed string goes in and one comes out. The answer has the state of each bucket after the operation; the numbers
//! that callers receive are read from it by `core`. Nothing is decided twice.

use std::ops::Range;
use std::sync::LazyLock;

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tollgate_core::algorithm::{Answer, Demand, Window, calendar_windows};
use tollgate_core::lease::{Grant, Lease, LeaseCall, ParentBucket};
use tollgate_core::limit::{Algorithm, AlgorithmName, Opening, Phase, Ticks};
use tollgate_core::{Enforcement, Growth, Limit, Micros, Op, Timestamp, Verdict};

use super::state::{self, Fields};

/// A script. Each has the parts it needs, so that a plain charge does not create the functions of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    /// Charge, peek, hold, refund and reset of buckets that are not logs.
    Charge,
    /// The same with logs.
    ChargeLogs,
    /// Ends holds.
    Finish,
    /// Settlements of reservations, and debits.
    Settle,
    /// Leases.
    Lend,
    /// Membership.
    Nodes,
}

/// Operations of the scripts beyond [`Op`]: take the costs out, and end that in one of two ways.
pub(super) const HOLD: u8 = 5;
pub(super) const SPEND: u8 = 6;
pub(super) const RELEASE: u8 = 7;
/// Operations of [`Script::Settle`]: settle a reservation; charge as much of the cost as there is room for.
pub(super) const SETTLE: u8 = 8;
pub(super) const DEBIT: u8 = 9;
/// Beyond what any limit holds, and still exact in Lua.
pub(super) const BEYOND: u64 = 1 << 53;
/// The time is injected, the request is refused elsewhere, there is a record: bits of the flags.
const INJECTED: u8 = 1;
const REFUSED: u8 = 2;
const RECORD: u8 = 4;
/// The bytes of a log's numbers.
const LOG_NUMBERS: usize = 35;

impl Script {
    pub(super) const ALL: [Script; 6] =
        [Script::Charge, Script::ChargeLogs, Script::Finish, Script::Settle, Script::Lend, Script::Nodes];

    pub(super) const fn code(self) -> &'static str {
        macro_rules! part {
            ($name:literal) => {
                include_str!(concat!("lua/", $name, ".lua"))
            };
        }
        // In a block of their own, the functions of a change cost a charge nothing.
        macro_rules! change {
            () => {
                concat!("if op == 3 or op == 4 then\n", part!("change"), "end\n")
            };
        }
        match self {
            Script::Charge => concat!(part!("buckets"), change!(), part!("record"), part!("charge")),
            Script::ChargeLogs => {
                concat!(part!("buckets"), part!("log"), change!(), part!("record"), part!("charge"))
            }
            Script::Finish => concat!(part!("buckets"), part!("log"), part!("record"), part!("finish")),
            Script::Settle => concat!(part!("buckets"), part!("log"), part!("record"), part!("settle")),
            Script::Lend => concat!(part!("buckets"), part!("log"), part!("lend")),
            Script::Nodes => part!("nodes"),
        }
    }

    pub(super) fn sha(self) -> &'static str {
        static SHAS: LazyLock<[String; Script::ALL.len()]> = LazyLock::new(|| {
            Script::ALL.map(|script| redis::Script::new(script.code()).get_hash().to_owned())
        });
        &SHAS[self as usize]
    }

    /// Whether a command makes later calls unnecessary, or frees what others wait for: leases, and the ends of holds. Such
    /// commands are few, and are sent also while too many decisions wait.
    pub(super) fn relieves_the_store(command: &Cmd) -> bool {
        let called = command.args_iter().nth(1);
        let calls = |script: Script| matches!(called, Some(redis::Arg::Simple(sha)) if sha == script.sha().as_bytes());
        calls(Script::Lend) || calls(Script::Finish)
    }

    /// A call of the script with some keys and a packed input.
    pub(super) fn call<'k>(self, keys: impl Iterator<Item = &'k [u8]>, input: &[u8]) -> Cmd {
        let keys: SmallVec<[&[u8]; 8]> = keys.collect();
        let mut call = Cmd::with_capacity(4 + keys.len(), 80 + 40 * keys.len() + input.len());
        call.arg("EVALSHA").arg(self.sha()).arg(keys.len());
        for key in keys {
            call.arg(key);
        }
        call.arg(input);
        call
    }
}

/// What is the same for all rows of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    /// An [`Op`], or one of the constants above.
    pub(super) op: u8,
    /// Whether a row that has an outcome refuses the request.
    pub(super) refused: bool,
    pub(super) injected: Option<Timestamp>,
    pub(super) max_wait: Micros,
    /// The calendar windows around this instant are sent.
    pub(super) around: Timestamp,
    /// How long a hold is out at least, unless it is ended.
    pub(super) lease_time: Micros,
}

impl Header {
    /// The header as the scripts read it.
    pub(super) fn input(&self, rows: usize, has_record: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + 60 * rows);
        out.push(self.op);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let injected = flag(self.injected.is_some(), INJECTED);
        out.push(injected | flag(self.refused, REFUSED) | flag(has_record, RECORD));
        state::put(self.injected.unwrap_or_default().as_micros(), &mut out);
        state::put(self.max_wait.get().min(BEYOND).cast_signed(), &mut out);
        out
    }

    /// The lease time of a hold as the script reads it.
    pub(super) fn lease_time_bytes(&self) -> [u8; 4] {
        u32::try_from(self.lease_time.get()).unwrap_or(u32::MAX).to_le_bytes()
    }
}

/// Bits of a row's mode.
const SHADOW: u8 = 1;
const REPORTED: u8 = 2;

/// Appends a row: algorithm, mode, cost, and five numbers of the limit.
pub(super) fn put_row(
    limit: &Limit,
    window: Window,
    (enforcement, is_reported): (Enforcement, bool),
    cost: u64,
    around: Timestamp,
    out: &mut Vec<u8>,
) {
    let mut algorithm = state::tag(limit.algorithm_name());
    let number = |number: u64| number.min(BEYOND).cast_signed();
    let numbers: [i64; 5] = match limit.algorithm() {
        Algorithm::TokenBucket(refill) => {
            let (units, code) = (refill.units(), state::units_code(refill.units()));
            [refill.capacity(), refill.rate(), units, code, 0].map(number)
        }
        Algorithm::LeakyBucket { refill, free } => {
            let (units, code) = (refill.units(), state::units_code(refill.units()));
            [refill.capacity(), refill.rate(), units, code, *free].map(number)
        }
        Algorithm::TokenBucketInterval(refill) => {
            let aligned = u64::from(refill.ticks() == Ticks::Aligned);
            [refill.count(), refill.interval().get(), refill.capacity(), aligned, 0].map(number)
        }
        Algorithm::FixedWindow { limit, phase: Phase::Calendar(calendar), .. } => {
            algorithm = 7; // not a tag of a state: windows of a calendar are stored like any other
            let [a, b, c, d] = calendar_windows(calendar, around).map(Timestamp::as_micros);
            [number(*limit), a, b, c, d]
        }
        Algorithm::FixedWindow { limit, window: length, phase } => {
            let offset = if let Window::Spread(offset) = window { offset } else { Micros::ZERO };
            [*limit, length.get(), offset.get(), u64::from(*phase == Phase::First), 0].map(number)
        }
        Algorithm::SlidingWindowLog { limit, window } => [*limit, window.get(), 0, 0, 0].map(number),
        Algorithm::SlidingWindowCounter { limit, window, opens } => {
            [*limit, window.get(), u64::from(*opens == Opening::First), 0, 0].map(number)
        }
    };
    out.push(algorithm);
    let shadow = if enforcement == Enforcement::Shadow { SHADOW } else { 0 };
    out.push(shadow | if is_reported { REPORTED } else { 0 });
    state::put(number(cost), out);
    numbers.into_iter().for_each(|number| state::put(number, out));
}

/// What a script answered.
#[derive(Debug)]
pub(super) enum Reply<T> {
    /// It did what it was asked.
    Done(Ran, T),
    /// Nothing was done: the windows of a calendar did not reach to Redis' time, which is this.
    OtherTime(Timestamp),
}

/// When a script ran, and what it came across.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) now: Timestamp,
    pub(super) clock_steps: u64,
    pub(super) foreign: u64,
}

/// Every bucket after the operation.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) ran: Ran,
    bytes: Vec<u8>,
    rows: SmallVec<[DoneRow; 4]>,
}

/// One bucket in an answer.
#[derive(Debug)]
struct DoneRow {
    allowed: bool,
    state: Range<usize>,
    /// Where the cost is held: when it counts as spent.
    boundary: Option<Timestamp>,
}

/// What happened to a bucket that a script answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Its state is what it was, or the operation does not ask it anything.
    None,
    /// It was charged.
    Charged,
    /// Its cost is held, and will be spent.
    Spent,
    /// Its cost is held, and will be returned.
    Returned,
}

/// Splits an answer into when it ran and the rest; `None` if it is not an answer of a script.
fn read<T>(value: Value, rest: impl FnOnce(Ran, &[u8]) -> Option<T>) -> Option<Reply<T>> {
    let Value::BulkString(bytes) = value else { return None };
    let mut fields = Fields(&bytes);
    let now = fields.instant()?;
    if fields.0.is_empty() {
        return Some(Reply::OtherTime(now));
    }
    let (clock_steps, foreign) = (fields.two_bytes()?.into(), fields.two_bytes()?.into());
    let ran = Ran { now, clock_steps, foreign };
    rest(ran, fields.0).map(|rest| Reply::Done(ran, rest))
}

/// The answer to the end of holds: how many had reached their boundary.
pub(super) fn read_ended(value: Value) -> Option<Reply<u64>> {
    read(value, |_, rest| Fields(rest).two_bytes().map(u64::from))
}

/// The answer to a debit: how much was charged.
pub(super) fn read_debited(value: Value) -> Option<Reply<u64>> {
    read(value, |_, rest| Fields(rest).number())
}

/// The answer to a settlement: the record.
pub(super) fn read_settled(value: Value) -> Option<Reply<Vec<u8>>> {
    read(value, |_, rest| Some(rest.to_vec()))
}

/// The answer about membership: how many nodes there are, and how many have a smaller id.
pub(super) fn read_nodes(value: Value) -> Option<(u32, u32)> {
    let Value::BulkString(bytes) = value else { return None };
    let mut fields = Fields(bytes.get(7..)?);
    Some((fields.short()?, fields.short()?))
}

/// The answer to a call for a lease.
pub(super) fn read_lease(value: Value, call: &LeaseCall) -> Option<Reply<(Done, Option<Lease>)>> {
    read(value, |ran, rest| {
        let (row, lease) = rest.split_at_checked(rest.len().checked_sub(26)?)?;
        let mut fields = Fields(lease);
        let (kind, ends) = (fields.byte()?, fields.instant()?);
        let (content, capacity, rate) = (fields.number()?, fields.number()?, fields.short()?.into());
        let lease = |starts| Some(Lease { starts, ends, content, capacity, rate });
        let lease = match kind {
            0 => None,
            1 => lease(None),
            _ => lease(call.boundary),
        };
        Some((Done::new(ran, row, 1, false)?, lease))
    })
}

impl Done {
    /// Reads the answer about so many buckets; `None` if it is not one.
    pub(super) fn read(value: Value, rows: usize, is_hold: bool) -> Option<Reply<Self>> {
        read(value, |ran, rest| Done::new(ran, rest, rows, is_hold))
    }

    fn new(ran: Ran, bytes: &[u8], count: usize, is_hold: bool) -> Option<Self> {
        let mut rows = SmallVec::with_capacity(count);
        let mut place = 0;
        while place < bytes.len() {
            let mut fields = Fields(&bytes[place..]);
            let (allowed, length) = (fields.byte()? == 1, usize::from(fields.two_bytes()?));
            let state = place + 3..place + 3 + length;
            place = state.end;
            let mut boundary = None;
            if is_hold {
                let instant = Fields(bytes.get(place..)?).instant()?;
                boundary = (instant != Timestamp::from_micros(0)).then_some(instant);
                place += 7;
            }
            rows.push(DoneRow { allowed, state, boundary });
        }
        (rows.len() == count && place == bytes.len()).then(|| Done { ran, bytes: bytes.to_vec(), rows })
    }

    /// Whether a bucket admits its cost.
    pub(super) fn allows(&self, row: usize) -> bool {
        self.rows[row].allowed
    }

    /// When the cost of a row counts as spent, where it is held.
    pub(super) fn boundary(&self, row: usize) -> Option<Timestamp> {
        self.rows[row].boundary
    }

    fn state(&self, row: usize) -> &[u8] {
        self.bytes.get(self.rows[row].state.clone()).unwrap_or_default()
    }

    fn open<'l>(&self, row: usize, limit: &'l Limit, window: Window) -> ParentBucket<'l> {
        let (state, ledger) = state::decode_leased(limit.algorithm_name(), self.state(row)).unzip();
        ParentBucket::open(limit, state, ledger.flatten(), self.ran.now, window)
    }

    /// The verdict of a bucket, read from its state.
    pub(super) fn verdict(
        &self,
        row: usize,
        (limit, window): (&Limit, Window),
        op: Op,
        demand: Demand,
        effect: Effect,
    ) -> Verdict {
        let allowed = self.allows(row);
        if limit.algorithm_name() == AlgorithmName::SlidingWindowLog {
            let numbers = self.state(row);
            let spent = if effect == Effect::Spent { LOG_NUMBERS.min(numbers.len()) } else { 0 };
            return log_numbers(limit, allowed, &numbers[spent..]).0;
        }
        let mut bucket = self.open(row, limit, window);
        let is_queue = limit.algorithm_name() == AlgorithmName::LeakyBucket;
        let boundary = self.boundary(row).unwrap_or_default();
        let passes = Answer::Pass { delay: Micros::ZERO };
        // A request that was charged or held is delayed by what was owed before it.
        let answer = match effect {
            _ if !op.decides() => passes,
            Effect::None => bucket.ask(demand),
            Effect::Charged if is_queue => {
                let mut before = bucket.clone();
                before.refund(demand.cost);
                before.ask(demand)
            }
            Effect::Charged => passes,
            Effect::Spent | Effect::Returned => {
                let mut before = bucket.clone();
                before.release(demand.cost, boundary);
                let answer = if is_queue { before.ask(demand) } else { passes };
                if effect == Effect::Returned {
                    bucket = before;
                } else {
                    bucket.spend(demand.cost, boundary);
                }
                answer
            }
        };
        // The script has decided; core only has the numbers.
        let answer = match answer {
            // Never 0, which a client would take for a pass.
            Answer::Pass { .. } if !allowed => Answer::Wait(Micros::new(1)),
            Answer::Wait(_) | Answer::Never if allowed => passes,
            answer => answer,
        };
        bucket.verdict(answer)
    }

    /// What a node is told with its lease.
    pub(super) fn grant(&self, limit: &Limit, window: Window, lease: Option<Lease>) -> Grant {
        if limit.algorithm_name() == AlgorithmName::SlidingWindowLog {
            let (verdict, at) = log_numbers(limit, self.allows(0), self.state(0));
            let wait = verdict.retry_after.unwrap_or(Micros::MAX);
            let Verdict { remaining, reset_after, .. } = verdict;
            return Grant { now: self.ran.now, at, lease, remaining, wait, reset_after };
        }
        self.open(0, limit, window).grant_of(lease)
    }
}

/// The verdict of a log, of which the script has the numbers, and the instant of the bucket.
fn log_numbers(limit: &Limit, allowed: bool, bytes: &[u8]) -> (Verdict, Timestamp) {
    let mut fields = Fields(bytes);
    let remaining = fields.number().unwrap_or(limit.capacity());
    let mut wait = || fields.signed().and_then(|wait| u64::try_from(wait).ok()).map(Micros::new);
    let (retry_after, reset_after, more_after) = (wait(), wait().unwrap_or(Micros::ZERO), wait());
    let at = fields.instant().unwrap_or_default();
    let retry_after = if allowed { Some(Micros::ZERO) } else { retry_after };
    let growth = more_after.map_or(Growth::Full, Growth::After);
    let (limit, delay) = (limit.capacity(), Micros::ZERO);
    (Verdict { allowed, limit, remaining, retry_after, reset_after, delay, growth }, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_in_the_order_of_their_hashes() {
        for (place, script) in Script::ALL.into_iter().enumerate() {
            assert_eq!(script as usize, place);
            assert_eq!(script.sha(), redis::Script::new(script.code()).get_hash());
        }
    }

    #[test]
    fn answer_with_another_number_of_rows_or_cut_short_is_none() {
        let mut bytes = Vec::new();
        state::put(1_000, &mut bytes);
        bytes.extend_from_slice(&[0, 0, 0, 0]);
        bytes.extend_from_slice(&[1, 2, 0, 7, 7]);
        let answer = |bytes: &[u8], rows| Done::read(Value::BulkString(bytes.to_vec()), rows, false);
        assert!(matches!(answer(&bytes, 1), Some(Reply::Done(_, done)) if done.allows(0)));
        assert!(answer(&bytes, 2).is_none());
        assert!(answer(&bytes[..bytes.len() - 1], 1).is_none());
        assert!(matches!(answer(&bytes[..7], 1), Some(Reply::OtherTime(_))));
    }
}
