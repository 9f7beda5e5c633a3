//! A request whose keys lie in several slots of a Cluster: all or nothing in at most two round trips.
//!
//! ```text
//! charge every part, all at once ---> every part passes: done
//!                                '--> one refuses, or cannot be asked: undo those that passed, all at once
//! ```
//!
//! Until then the parts that passed are a reservation: others see them as charged. Whoever gives up on the request, or
//! is cancelled, leaves this to a task that goes on. A process that dies in between leaves the parts of that one request
//! charged; nothing is ever admitted twice for it. Rules on trial are charged on their own and stay charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use smallvec::SmallVec;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{Enforcement, Hit, Timestamp, Verdict, Verdicts};

use super::cluster::Cluster;
use super::part::Part;
use super::script::{Done, Reply, Verb};
use super::topology::Topology;
use super::{RedisStore, told};
use crate::store::StoreError;

/// What is sent for one part of a request.
#[derive(Debug)]
struct Calls {
    slot: u16,
    charge: Cmd,
    told: usize,
    /// Takes back what refuses nothing by itself, once it is told when that was charged.
    undo: Option<(Cmd, usize)>,
}

/// What came of the first round trip. The second is on its way where there has to be one.
#[derive(Debug)]
struct Reserved {
    replies: Vec<Result<Reply, StoreError>>,
    undone: Option<JoinHandle<Vec<Option<Done>>>>,
}

impl RedisStore {
    /// Does something to every part of a request.
    pub(super) async fn run_across(
        &self,
        verb: Verb,
        parts: &[Part<'_, '_>],
        verdicts: &mut Verdicts,
        deadline: Instant,
    ) -> Result<Timestamp, StoreError> {
        if verb == Verb::Charge {
            return self.charge_across(parts, verdicts, deadline).await;
        }
        let done = join_all(parts.iter().map(|part| self.ask(verb, part, deadline))).await;
        let done = all(members(parts), done)?;
        let mut gathered = Gathered::default();
        for (part, done) in parts.iter().zip(&done) {
            self.read(done, verb, part, done.passes, gathered.of(part))?;
        }
        gathered.tell(verdicts);
        Ok(latest(&done))
    }

    /// Undoes each hit where and when it was charged.
    pub(super) async fn undo_each(
        &self,
        hits: &[Hit<'_>],
        charged: &[Verdict],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let parts = Part::of(hits, &self.prefix, self.topology.spread());
        // A call of the script names one instant.
        let calls: Vec<(Timestamp, Part<'_, '_>)> =
            parts.iter().flat_map(|part| by_instant(part, charged)).collect();
        let deadline = self.deadline();
        let done = join_all(calls.iter().map(|(at, part)| self.ask(Verb::Undo(*at), part, deadline))).await;
        let lost = done.iter().filter(|done| done.is_err()).count();
        self.stranded.fetch_add(u64::try_from(lost).unwrap_or(0), Ordering::Relaxed);
        let done = all(calls.iter().map(|(_, part)| &part.members[..]), done)?;
        let mut gathered = Gathered::default();
        for ((at, part), done) in calls.iter().zip(&done) {
            self.read(done, Verb::Undo(*at), part, true, gathered.of(part))?;
        }
        gathered.tell(verdicts);
        if done.is_empty() { Ok(self.clock.now()) } else { Ok(latest(&done)) }
    }

    async fn charge_across(
        &self,
        parts: &[Part<'_, '_>],
        verdicts: &mut Verdicts,
        deadline: Instant,
    ) -> Result<Timestamp, StoreError> {
        let Topology::Cluster(cluster) = &self.topology else { return Err(StoreError::Unreachable) };
        // Again once, when the calendar windows that were sent are not those of Redis' clock.
        for _ in 0..2 {
            // What is known to be away need not be reserved elsewhere first.
            let away = |part: &Part<'_, '_>| match cluster.is_down(part.slot) {
                true => Err(StoreError::Unreachable.unsent()),
                false => Ok(()),
            };
            all(members(parts), parts.iter().map(away).collect())?;
            let calls = parts.iter().map(|part| self.calls(part)).collect();
            let reserve =
                reserve(Arc::clone(cluster), calls, deadline, self.deadline, Arc::clone(&self.stranded));
            // In a task of its own: whoever gives up does not leave it half done.
            let reserved = tokio::spawn(reserve).await.map_err(|_| StoreError::Unreachable)?;
            if let Some(at) = self.conclude(parts, reserved, deadline, verdicts).await? {
                return Ok(at);
            }
        }
        Err(StoreError::Unreachable)
    }

    fn calls(&self, part: &Part<'_, '_>) -> Calls {
        let enforcing = part.only(|hit| hit.enforcement == Enforcement::Enforce && hit.demand.cost > 0);
        let injected = self.clock.injected();
        let around = injected.unwrap_or_else(|| self.redis_time());
        let undo = || {
            let undo = enforcing.command(&self.sha, Verb::Undo(Timestamp::default()), injected, around);
            (undo, enforcing.hits.len())
        };
        Calls {
            slot: part.slot,
            charge: self.call(Verb::Charge, part),
            told: told(Verb::Charge, part),
            undo: (!enforcing.hits.is_empty()).then(undo),
        }
    }

    /// The verdicts of a request, and the latest instant of its parts; none when a calendar has to be sent anew.
    async fn conclude(
        &self,
        parts: &[Part<'_, '_>],
        reserved: Reserved,
        deadline: Instant,
        verdicts: &mut Verdicts,
    ) -> Result<Option<Timestamp>, StoreError> {
        let Reserved { replies, undone } = reserved;
        let answers = all(members(parts), replies);
        // What was reserved must be free again before it is asked for again, as it will be without what is lost.
        let patience = if answers.is_err() { deadline + self.deadline } else { deadline };
        let undone = match undone {
            Some(undone) => timeout_at(patience, undone).await.map_or(Vec::new(), Result::unwrap_or_default),
            None => Vec::new(),
        };
        let mut done = Vec::with_capacity(parts.len());
        for answer in answers? {
            match answer {
                Reply::Done(one) => {
                    self.note(&one);
                    done.push(one);
                }
                Reply::OtherTime(now) => self.note_time(now),
            }
        }
        if done.len() < parts.len() {
            return Ok(None);
        }
        let stands = done.iter().all(|done| done.passes);
        let mut gathered = Gathered::default();
        for (part, done) in parts.iter().zip(&done) {
            self.read(done, Verb::Charge, part, stands, gathered.of(part))?;
            if stands && part.hits.iter().any(|hit| hit.demand.cost > 0) {
                self.topology.wrote(part.slot);
            }
        }
        for (part, undone) in parts.iter().zip(undone) {
            self.correct_logs(part, undone, &mut gathered)?;
        }
        gathered.tell(verdicts);
        Ok(Some(latest(&done)))
    }

    /// The numbers of logs are those that the script told, of the charge; after an undo it tells them again.
    fn correct_logs(
        &self,
        part: &Part<'_, '_>,
        undone: Option<Done>,
        gathered: &mut Gathered,
    ) -> Result<(), StoreError> {
        let Some(done) = undone else { return Ok(()) };
        self.note(&done);
        let enforcing = part.only(|hit| hit.enforcement == Enforcement::Enforce && hit.demand.cost > 0);
        let mut after = Verdicts::new();
        self.read(&done, Verb::Undo(done.now), &enforcing, true, &mut after)?;
        for ((place, hit), verdict) in enforcing.members.iter().zip(&enforcing.hits).zip(after) {
            if hit.limit.algorithm_name() == AlgorithmName::SlidingWindowLog {
                gathered.set(*place, verdict);
            }
        }
        Ok(())
    }
}

/// Charges all parts at once, and begins to undo those that passed if not all did.
async fn reserve(
    cluster: Arc<Cluster>,
    calls: Vec<Calls>,
    deadline: Instant,
    patience: Duration,
    stranded: Arc<AtomicU64>,
) -> Reserved {
    let charge = |calls: &Calls| {
        let (slot, told) = (calls.slot, calls.told);
        let (cluster, command) = (Arc::clone(&cluster), calls.charge.clone());
        async move { cluster.call(slot, &command, deadline, |value| Reply::read(value, told)).await }
    };
    let replies = join_all(calls.iter().map(charge)).await;
    let passed = |reply: &Result<Reply, StoreError>| match reply {
        Ok(Reply::Done(done)) if done.passes => Some(done.now),
        _ => None,
    };
    let passed: Vec<Option<Timestamp>> = replies.iter().map(passed).collect();
    let stands = passed.iter().all(Option::is_some);
    let undo_all = async move {
        let deadline = Instant::now() + patience;
        let undo = |(calls, at): (Calls, Option<Timestamp>)| {
            let (cluster, stranded) = (Arc::clone(&cluster), Arc::clone(&stranded));
            async move {
                let (mut command, told) = calls.undo?;
                command.arg(at?.as_micros());
                let undone =
                    cluster.call(calls.slot, &command, deadline, |value| Reply::read(value, told)).await;
                match undone {
                    Ok(Reply::Done(done)) => return Some(done),
                    // A clock that was set just now by more than a window of a calendar.
                    Ok(Reply::OtherTime(_)) => tracing::warn!("a part of a refused request stays charged"),
                    Err(error) => tracing::warn!("a part of a refused request stays charged: {error}"),
                }
                stranded.fetch_add(1, Ordering::Relaxed);
                None
            }
        };
        join_all(calls.into_iter().zip(passed).map(undo)).await
    };
    let undone = (!stands).then(|| tokio::spawn(undo_all));
    Reserved { replies, undone }
}

/// The hits of a part, by when they were charged.
fn by_instant<'r, 'h>(part: &Part<'r, 'h>, charged: &[Verdict]) -> Vec<(Timestamp, Part<'r, 'h>)> {
    let at = |place: usize| charged.get(place).map_or(Timestamp::default(), |verdict| verdict.at);
    let mut instants: Vec<Timestamp> = part.members.iter().map(|place| at(*place)).collect();
    instants.sort_unstable();
    instants.dedup();
    let these = |instant: Timestamp| {
        let mut members = part.members.iter();
        (instant, part.only(|_| members.next().is_some_and(|place| at(*place) == instant)))
    };
    instants.into_iter().map(these).collect()
}

/// The places in the request of each part.
fn members<'p>(parts: &'p [Part<'_, '_>]) -> impl Iterator<Item = &'p [usize]> {
    parts.iter().map(|part| &part.members[..])
}

/// What every part answered; else why one did not, and the places of all hits that had no answer. In doubt about one of
/// them, it is so about all.
fn all<'p, T>(
    parts: impl Iterator<Item = &'p [usize]>,
    answers: Vec<Result<T, StoreError>>,
) -> Result<Vec<T>, StoreError> {
    let mut failed: Option<(StoreError, Vec<usize>)> = None;
    let mut good = Vec::with_capacity(answers.len());
    for (members, answer) in parts.zip(answers) {
        match answer {
            Ok(answer) => good.push(answer),
            Err(error) => {
                let (why, lost) = failed.get_or_insert_with(|| (error.clone(), Vec::new()));
                lost.extend_from_slice(members);
                if error.is_in_doubt() && !why.is_in_doubt() {
                    *why = error;
                }
            }
        }
    }
    match failed {
        None => Ok(good),
        Some((error, lost)) => Err(StoreError::Part { error: Box::new(error), lost }),
    }
}

fn latest(done: &[Done]) -> Timestamp {
    done.iter().map(|done| done.now).max().unwrap_or_default()
}

/// Verdicts by their place in the request.
#[derive(Debug, Default)]
struct Gathered {
    places: SmallVec<[usize; 4]>,
    verdicts: Verdicts,
}

impl Gathered {
    /// Where the verdicts of a part belong, in its order.
    fn of(&mut self, part: &Part<'_, '_>) -> &mut Verdicts {
        self.places.extend_from_slice(&part.members);
        &mut self.verdicts
    }

    fn set(&mut self, place: usize, verdict: Verdict) {
        if let Some(at) = self.places.iter().position(|other| *other == place) {
            self.verdicts[at] = verdict;
        }
    }

    /// All of them in the order of the request.
    fn tell(self, verdicts: &mut Verdicts) {
        let mut both: SmallVec<[(usize, Verdict); 4]> = self.places.into_iter().zip(self.verdicts).collect();
        both.sort_unstable_by_key(|(place, _)| *place);
        verdicts.extend(both.into_iter().map(|(_, verdict)| verdict));
    }
}
