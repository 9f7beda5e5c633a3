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
use tollgate_core::algorithm::Window;
use tollgate_core::limit::AlgorithmName;
use tollgate_core::{Enforcement, Hit, Limit, Mark, Timestamp, Verdict, Verdicts};

use super::cluster::Cluster;
use super::part::{Part, add_marks};
use super::script::{Done, Reply, Verb};
use super::topology::Topology;
use super::{RedisStore, told};
use crate::store::{StoreError, window};

/// What is sent for one part of a request.
#[derive(Debug)]
struct Calls {
    slot: u16,
    charge: Cmd,
    told: usize,
    /// Takes back what refuses nothing by itself, once it is told what that was charged with.
    undo: Option<Undo>,
}

/// What takes back the enforcing hits of a part.
#[derive(Debug)]
struct Undo {
    command: Cmd,
    /// Their places in the part, and what their marks are computed from.
    charged: SmallVec<[(usize, Limit, Window); 2]>,
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
        verb: Verb<'_>,
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
        let marks = |part: &Part<'_, '_>| -> SmallVec<[Mark; 4]> {
            let mark = |place: &usize| charged.get(*place).map_or(Mark::default(), |verdict| verdict.mark);
            part.members.iter().map(mark).collect()
        };
        let marks: SmallVec<[SmallVec<[Mark; 4]>; 1]> = parts.iter().map(marks).collect();
        let deadline = self.deadline();
        let undo = |(part, marks)| self.ask(Verb::Undo(marks), part, deadline);
        let done = join_all(parts.iter().zip(marks.iter().map(|marks| &marks[..])).map(undo)).await;
        let lost = done.iter().filter(|done| done.is_err()).count();
        self.stranded.fetch_add(u64::try_from(lost).unwrap_or(0), Ordering::Relaxed);
        let done = all(members(&parts), done)?;
        let mut gathered = Gathered::default();
        for ((part, marks), done) in parts.iter().zip(&marks).zip(&done) {
            self.read(done, Verb::Undo(marks), part, true, gathered.of(part))?;
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
        let mut told = Gathered::default();
        let mut charged = self.reserve_all(cluster, parts, deadline, &mut told).await;
        if let Ok(None) = charged {
            // Again once, when the calendar windows that were sent are not those of Redis' clock.
            let undecided = parts.iter().map(|part| told.missing(part)).filter(|part| !part.hits.is_empty());
            let undecided: SmallVec<[Part<'_, '_>; 2]> = undecided.collect();
            charged = self.reserve_all(cluster, &undecided, deadline, &mut told).await;
        }
        match charged {
            Ok(Some(at)) => {
                told.tell(verdicts);
                Ok(at)
            }
            Ok(None) => Err(StoreError::Unreachable),
            Err(error) => Err(error.with_decided(told.by_place())),
        }
    }

    /// Charges every part or none, and answers the latest instant; none when a calendar has to be sent anew. Whenever that
    /// comes to nothing, what is on trial has been decided all the same.
    async fn reserve_all(
        &self,
        cluster: &Arc<Cluster>,
        parts: &[Part<'_, '_>],
        deadline: Instant,
        told: &mut Gathered,
    ) -> Result<Option<Timestamp>, StoreError> {
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
        self.conclude(parts, reserved, deadline, told).await
    }

    fn calls(&self, part: &Part<'_, '_>) -> Calls {
        let enforcing = part.only(|hit| hit.enforcement == Enforcement::Enforce && hit.demand.cost > 0);
        let injected = self.clock.injected();
        let around = injected.unwrap_or_else(|| self.redis_time());
        let undo = || Undo {
            command: enforcing.command(&self.sha, Verb::Undo(&[]), injected, around),
            charged: part
                .places_of(&enforcing)
                .map(|(at, hit)| (at, hit.limit.clone(), window(hit, hit.limit)))
                .collect(),
        };
        Calls {
            slot: part.slot,
            charge: self.call(Verb::Charge, part),
            told: told(Verb::Charge, part),
            undo: (!enforcing.hits.is_empty()).then(undo),
        }
    }

    /// What came of every part: its verdicts where all have one, else of those that have, what is on trial.
    async fn conclude(
        &self,
        parts: &[Part<'_, '_>],
        reserved: Reserved,
        deadline: Instant,
        told: &mut Gathered,
    ) -> Result<Option<Timestamp>, StoreError> {
        let Reserved { replies, undone } = reserved;
        // What was reserved must be free again before it is asked for again, as it will be without what is lost.
        let patience = if replies.iter().any(Result::is_err) { deadline + self.deadline } else { deadline };
        let undone = match undone {
            Some(undone) => timeout_at(patience, undone).await.map_or(Vec::new(), Result::unwrap_or_default),
            None => Vec::new(),
        };
        for reply in replies.iter().flatten() {
            match reply {
                Reply::Done(done) => self.note(done),
                Reply::OtherTime(now) => self.note_time(*now),
            }
        }
        let done: Vec<Option<&Done>> = replies.iter().map(done).collect();
        let Some(done) = done.iter().copied().collect::<Option<Vec<&Done>>>() else {
            for (part, done) in parts.iter().zip(done).filter_map(|(part, done)| Some((part, done?))) {
                let mut verdicts = Verdicts::new();
                self.read(done, Verb::Charge, part, false, &mut verdicts)?;
                told.add_on_trial(part, &verdicts);
            }
            return all(members(parts), replies).map(|_| None);
        };
        let stands = done.iter().all(|done| done.passes);
        for (part, done) in parts.iter().zip(&done) {
            self.read(done, Verb::Charge, part, stands, told.of(part))?;
            if stands && part.hits.iter().any(|hit| hit.demand.cost > 0) {
                self.topology.wrote(part.slot);
            }
        }
        for (part, undone) in parts.iter().zip(undone) {
            self.correct_logs(part, undone, told)?;
        }
        Ok(done.iter().map(|done| done.now).max())
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
        self.read(&done, Verb::Undo(&[]), &enforcing, true, &mut after)?;
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
    let stands = replies.iter().all(|reply| done(reply).is_some_and(|done| done.passes));
    let undos = || {
        let passed = |reply| done(reply).filter(|done| done.passes);
        let both = calls.into_iter().zip(&replies);
        both.map(|(calls, reply)| Some((calls.slot, calls.undo?.of(passed(reply)?)))).collect::<Vec<_>>()
    };
    let undone =
        (!stands).then(|| tokio::spawn(undo_all(cluster, undos(), Instant::now() + patience, stranded)));
    Reserved { replies, undone }
}

/// Undoes what was charged in some of the parts, all at once.
async fn undo_all(
    cluster: Arc<Cluster>,
    undos: Vec<Option<(u16, (Cmd, usize))>>,
    deadline: Instant,
    stranded: Arc<AtomicU64>,
) -> Vec<Option<Done>> {
    let undo = |undo: Option<(u16, (Cmd, usize))>| {
        let (cluster, stranded) = (&cluster, &stranded);
        async move {
            let (slot, (command, told)) = undo?;
            match cluster.call(slot, &command, deadline, |value| Reply::read(value, told)).await {
                Ok(Reply::Done(done)) => return Some(done),
                // A clock that was set just now by more than a window of a calendar.
                Ok(Reply::OtherTime(_)) => tracing::warn!("a part of a refused request stays charged"),
                Err(error) => tracing::warn!("a part of a refused request stays charged: {error}"),
            }
            stranded.fetch_add(1, Ordering::Relaxed);
            None
        }
    };
    join_all(undos.into_iter().map(undo)).await
}

impl Undo {
    /// The call, given the answer to the charge, and of how many buckets it tells.
    fn of(self, charge: &Done) -> (Cmd, usize) {
        let Undo { mut command, charged } = self;
        let mark = |(at, limit, window): &(usize, Limit, Window)| charge.mark(*at, limit, *window);
        let marks: SmallVec<[Mark; 4]> = charged.iter().map(|one| mark(one).unwrap_or_default()).collect();
        add_marks(&mut command, &marks);
        (command, marks.len())
    }
}

/// What a part decided.
fn done(reply: &Result<Reply, StoreError>) -> Option<&Done> {
    match reply {
        Ok(Reply::Done(done)) => Some(done),
        _ => None,
    }
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
        Some((error, lost)) => Err(StoreError::part(error, lost)),
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

    /// The verdicts of a part, as far as they stand on their own.
    fn add_on_trial(&mut self, part: &Part<'_, '_>, verdicts: &Verdicts) {
        for ((place, hit), verdict) in part.members.iter().zip(&part.hits).zip(verdicts) {
            if hit.enforcement == Enforcement::Shadow {
                self.places.push(*place);
                self.verdicts.push(*verdict);
            }
        }
    }

    /// What of a part has no verdict yet.
    fn missing<'r, 'h>(&self, part: &Part<'r, 'h>) -> Part<'r, 'h> {
        let mut members = part.members.iter();
        part.only(|_| members.next().is_some_and(|place| !self.places.contains(place)))
    }

    fn by_place(self) -> impl Iterator<Item = (usize, Verdict)> {
        self.places.into_iter().zip(self.verdicts)
    }

    fn set(&mut self, place: usize, verdict: Verdict) {
        if let Some(at) = self.places.iter().position(|other| *other == place) {
            self.verdicts[at] = verdict;
        }
    }

    /// All of them in the order of the request.
    fn tell(self, verdicts: &mut Verdicts) {
        let mut both: SmallVec<[(usize, Verdict); 4]> = self.by_place().collect();
        both.sort_unstable_by_key(|(place, _)| *place);
        verdicts.extend(both.into_iter().map(|(_, verdict)| verdict));
    }
}
