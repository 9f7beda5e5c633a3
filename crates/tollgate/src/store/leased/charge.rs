//! A decision: what is held here first, because that is cheap to put back, then Redis for the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, timeout_at};
use tollgate_core::lease::{Call, Purse, ROUNDS, Step, Taken, Temper, is_lent};
use tollgate_core::limit::Algorithm;
use tollgate_core::rule::Consistency;
use tollgate_core::{Enforcement, Hit, Hits, Mark, Timestamp, Verdict, Verdicts};

use super::desk::{Desk, KeyHash, Outgoing};
use super::{Shared, is_local, temper};
use crate::store::StoreError;

/// What came of one hit here.
#[derive(Debug)]
pub(super) enum Part {
    /// It passes on what was held.
    Taken { hash: KeyHash, taken: Taken, verdict: Verdict },
    /// Redis refused the same a moment ago.
    Refused(Verdict),
    /// Redis decides.
    Exact,
}

/// What a request does next.
pub(super) enum Next {
    Call(Outgoing),
    Wait(OwnedNotified),
}

/// When a decision must be made, however often it waits. Its time runs from the first wait: what comes before that is
/// not worth a look at the clock.
#[derive(Debug, Default)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn of(&mut self, shared: &Shared) -> Instant {
        *self.0.get_or_insert_with(|| shared.redis.deadline())
    }
}

impl Part {
    fn refuses(&self, hit: &Hit<'_>) -> bool {
        matches!(self, Part::Refused(_)) && hit.enforcement == Enforcement::Enforce
    }
}

impl Shared {
    /// A request of one hit that is not exact.
    pub(super) async fn charge_one(
        self: &Arc<Self>,
        hit: &Hit<'_>,
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let hits = std::slice::from_ref(hit);
        let mut deadline = Deadline::default();
        let Some(temper) = temper(hit) else {
            return self.charge_shares(hits, verdicts, &mut deadline).await;
        };
        match self.take(hit, temper, &mut deadline).await? {
            Part::Taken { verdict, .. } | Part::Refused(verdict) => {
                verdicts.push(verdict);
                Ok(self.redis.redis_time())
            }
            Part::Exact => self.charge_exact(hits, verdicts, &mut deadline).await,
        }
    }

    /// Charges this node's shares, once it is known how many nodes there are.
    async fn charge_shares(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
        deadline: &mut Deadline,
    ) -> Result<Timestamp, StoreError> {
        if !hits.is_empty() && !self.shares.are_counted() {
            self.shares.counted(deadline.of(self)).await?;
        }
        self.counters.shares.fetch_add(hits.len() as u64, Ordering::Relaxed);
        self.shares.charge(hits, verdicts).await
    }

    /// A request of several hits: all are charged or none is.
    pub(super) async fn charge_all(
        self: &Arc<Self>,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
    ) -> Result<Timestamp, StoreError> {
        let mut deadline = Deadline::default();
        let local: Hits<'_> = of(hits, Consistency::Local);
        let mut shared_out = Verdicts::new();
        let charged = self.charge_shares(&local, &mut shared_out, &mut deadline).await;
        charged.map_err(|error| error.at(&places(hits, is_local), hits.len()))?;
        let mut refused = refuses(&local, &shared_out);
        let mut parts: SmallVec<[Part; 4]> = SmallVec::new();
        // Once one cannot be asked, nobody waits for another; each is looked at again without it.
        let mut failed = None;
        for (place, hit) in hits.iter().enumerate() {
            let part = match temper(hit) {
                Some(temper) if failed.is_none() && (!refused || hit.enforcement == Enforcement::Shadow) => {
                    self.take(hit, temper, &mut deadline).await.unwrap_or_else(|error| {
                        failed = Some((error, place));
                        Part::Exact
                    })
                }
                _ => Part::Exact,
            };
            refused |= part.refuses(hit);
            parts.push(part);
        }
        let is_left = |place: &usize| matches!(parts[*place], Part::Exact) && !is_local(&hits[*place]);
        let left: SmallVec<[usize; 4]> = (0..hits.len()).filter(is_left).collect();
        let exact: Hits<'_> = left.iter().map(|place| hits[*place].clone()).collect();
        let mut decided = Verdicts::new();
        let asked = match failed {
            // What was not asked is not lost where it may live elsewhere.
            Some((error, place)) if self.redis.spans_nodes() => Err(error.at(&[place], hits.len())),
            Some((error, _)) => Err(error.at(&left, hits.len())),
            None if exact.is_empty() => Ok(self.redis.redis_time()),
            None => {
                let decided = match refused {
                    true => self.numbers(&exact, &mut decided, deadline.of(self)).await,
                    false => self.charge_exact(&exact, &mut decided, &mut deadline).await,
                };
                decided.map_err(|error| error.at(&left, hits.len()))
            }
        };
        let passes = asked.is_ok() && !refused && !refuses(&exact, &decided);
        if !passes {
            self.put_back(hits, &parts);
            self.shares.put_back(&local, &mut shared_out).await;
        }
        let at = asked.map_err(|error| error.with_decided(on_trial(hits, &parts, &shared_out)))?;
        let (mut decided, mut shared_out) = (decided.into_iter(), shared_out.into_iter());
        for (hit, part) in hits.iter().zip(parts) {
            verdicts.push(match part {
                Part::Taken { verdict, .. } => {
                    let kept = passes || hit.enforcement == Enforcement::Shadow;
                    if kept { verdict } else { put_back(verdict, hit) }
                }
                Part::Refused(verdict) => verdict,
                Part::Exact if is_local(hit) => shared_out.next().expect("a verdict on every share"),
                Part::Exact => decided.next().expect("a verdict on every hit"),
            });
        }
        Ok(at)
    }

    /// Takes a hit's cost from what is held, borrowing more if the key is hot.
    #[inline]
    async fn take(
        self: &Arc<Self>,
        hit: &Hit<'_>,
        temper: Temper,
        deadline: &mut Deadline,
    ) -> Result<Part, StoreError> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(Part::Exact);
        }
        let hash = self.desks.hash(&hit.key);
        let mut asked = None;
        for _ in 0..ROUNDS {
            match self.look(hash, hit, temper, &mut asked) {
                Ok(part) => return Ok(part),
                Err(Next::Wait(over)) => is_over(over, deadline.of(self)).await?,
                Err(Next::Call(outgoing)) if is_lent(hit.limit) => {
                    self.call(outgoing, deadline.of(self)).await?;
                }
                Err(Next::Call(outgoing)) => {
                    let patience = hit.demand.patience;
                    match self.call_for_places(outgoing, patience, deadline.of(self)).await? {
                        Some(part) => return Ok(part),
                        None => break, // too little room for a block: perhaps there is for one
                    }
                }
            }
        }
        Ok(self.counted(Part::Exact))
    }

    /// One look at what is held. The first of a request also counts it, and is when it asked.
    #[inline]
    fn look(
        self: &Arc<Self>,
        hash: KeyHash,
        hit: &Hit<'_>,
        temper: Temper,
        asked: &mut Option<Timestamp>,
    ) -> Result<Part, Next> {
        let mut shard = self.desks.shard(hash);
        let Some(desk) = Desk::of(&mut shard, hash, hit, self) else {
            return Ok(self.counted(Part::Exact)); // there are too many keys
        };
        // Under the lock, so that whoever was stopped before it does not spend what has ended since.
        let now = self.now();
        match desk.purse.ask(hit.demand, temper, asked, now) {
            Step::Pass(taken, verdict) => {
                let renewal = desk.renewal(hash, hit, self, now);
                drop(shard);
                if let Some(renewal) = renewal {
                    self.send_in_background(renewal);
                }
                let verdict = Verdict { mark: mark(hit, &verdict, self.redis.redis_time()), ..verdict };
                Ok(self.counted(Part::Taken { hash, taken, verdict }))
            }
            Step::Refuse(verdict) => Ok(self.counted(Part::Refused(verdict))),
            Step::Exact => Ok(self.counted(Part::Exact)),
            Step::Call => Err(Next::Call(desk.call(hash, hit, self, now))),
            Step::Wait => Err(Next::Wait(Arc::clone(&desk.over).notified_owned())),
        }
    }

    /// Counts what became of a hit.
    #[inline]
    pub(super) fn counted(&self, part: Part) -> Part {
        let counter = match part {
            Part::Taken { .. } => &self.counters.local,
            Part::Refused(_) => &self.counters.remembered,
            Part::Exact => &self.counters.exact,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        part
    }

    /// Sends a call in a task of its own: whoever gives up the request does not give up the call.
    pub(super) async fn call(
        self: &Arc<Self>,
        outgoing: Outgoing,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let call = tokio::spawn(Arc::clone(self).send_by(outgoing, deadline));
        call.await.unwrap_or(Err(StoreError::Unreachable))
    }

    /// Sends a call that no decision waits for.
    pub(super) async fn send(self: Arc<Self>, outgoing: Outgoing) -> Result<(), StoreError> {
        let deadline = self.redis.deadline();
        self.send_by(outgoing, deadline).await
    }

    /// Sends a call and tells the desk, and whoever waits there, what came of it.
    async fn send_by(self: Arc<Self>, outgoing: Outgoing, deadline: Instant) -> Result<(), StoreError> {
        let Outgoing { hash, place, call } = outgoing;
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let answer = self.redis.lease(&place, &call, deadline).await;
        self.over(hash, &call, &answer, |purse, answer, now| match answer {
            Some((loan, verdict)) => purse.lent(&call, *loan, verdict, now),
            None => purse.gave_up(&call, now),
        });
        answer.map(drop)
    }

    /// A call is over: tells the desk, and whoever waits there.
    pub(super) fn over<T, U>(
        &self,
        hash: KeyHash,
        call: &Call,
        answer: &Result<T, StoreError>,
        tell: impl FnOnce(&mut Purse, &T, Timestamp) -> U,
    ) -> Option<U> {
        let mut shard = self.desks.shard(hash);
        let desk = shard.get_mut(&hash)?;
        let now = self.now();
        let told = match answer {
            Ok(answer) => Some(tell(&mut desk.purse, answer, now)),
            Err(_) => {
                self.counters.failed_calls.fetch_add(1, Ordering::Relaxed);
                desk.purse.gave_up(call, now);
                None
            }
        };
        desk.over.notify_waiters();
        told
    }

    pub(super) fn send_in_background(self: &Arc<Self>, outgoing: Outgoing) {
        // What fails is counted, and the next request asks again.
        drop(tokio::spawn(Arc::clone(self).send(outgoing)));
    }

    /// Lets Redis decide, and remembers what it refused.
    async fn charge_exact(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
        deadline: &mut Deadline,
    ) -> Result<Timestamp, StoreError> {
        let before = verdicts.len();
        let at = self.redis.charge_by(deadline.of(self), hits, verdicts).await?;
        for (hit, verdict) in hits.iter().zip(&verdicts[before..]) {
            if !verdict.allowed && temper(hit).is_some() {
                let hash = self.desks.hash(&hit.key);
                let mut shard = self.desks.shard(hash);
                if let Some(desk) = shard.get_mut(&hash).filter(|desk| desk.is_under(hit)) {
                    desk.purse.refused(hit.demand, *verdict, self.now());
                }
            }
        }
        Ok(at)
    }

    /// The numbers of hits in a request that is refused already. Those on trial are charged all the same.
    async fn numbers(
        &self,
        hits: &[Hit<'_>],
        verdicts: &mut Verdicts,
        deadline: Instant,
    ) -> Result<Timestamp, StoreError> {
        let at = self.redis.peek_by(deadline, hits, verdicts).await?;
        let trial: Hits<'_> =
            hits.iter().filter(|hit| hit.enforcement == Enforcement::Shadow).cloned().collect();
        if !trial.is_empty() {
            let mut charged = Verdicts::new();
            self.redis.charge_by(deadline, &trial, &mut charged).await?;
            let places = hits.iter().zip(verdicts.iter_mut());
            let on_trial = places.filter(|(hit, _)| hit.enforcement == Enforcement::Shadow);
            on_trial.zip(charged).for_each(|((_, verdict), charged)| *verdict = charged);
        }
        Ok(at)
    }

    /// The request does not pass: what its enforcing hits took goes back.
    fn put_back(&self, hits: &[Hit<'_>], parts: &[Part]) {
        for (hit, part) in hits.iter().zip(parts).filter(|(hit, _)| hit.enforcement == Enforcement::Enforce) {
            let Part::Taken { hash, taken, .. } = part else { continue };
            let mut shard = self.desks.shard(*hash);
            if let Some(desk) = shard.get_mut(hash).filter(|desk| desk.is_under(hit)) {
                desk.purse.put_back(*taken);
            }
        }
    }
}

/// Waits until a call is over that somebody else has made.
pub(super) async fn is_over(over: OwnedNotified, deadline: Instant) -> Result<(), StoreError> {
    timeout_at(deadline, over).await.map_err(|_| StoreError::Timeout.unsent())
}

/// Where such hits stand in a request.
pub(super) fn places(hits: &[Hit<'_>], such: impl Fn(&Hit<'_>) -> bool) -> SmallVec<[usize; 4]> {
    (0..hits.len()).filter(|place| such(&hits[*place])).collect()
}

/// The hits of one consistency.
pub(super) fn of<'h>(hits: &[Hit<'h>], consistency: Consistency) -> Hits<'h> {
    hits.iter().filter(|hit| hit.key.space().consistency() == consistency).cloned().collect()
}

/// Whether an enforcing hit is refused.
fn refuses(hits: &[Hit<'_>], verdicts: &Verdicts) -> bool {
    hits.iter()
        .zip(verdicts)
        .any(|(hit, verdict)| !verdict.allowed && hit.enforcement == Enforcement::Enforce)
}

/// What was said here to hits on trial, by their places; `shared_out` to those that have a share.
fn on_trial(hits: &[Hit<'_>], parts: &[Part], shared_out: &Verdicts) -> Vec<(usize, Verdict)> {
    let mut shared_out = shared_out.iter();
    let said = hits.iter().zip(parts).map(|(hit, part)| match part {
        Part::Taken { verdict, .. } | Part::Refused(verdict) => Some(*verdict),
        Part::Exact if hit.key.space().consistency() == Consistency::Local => shared_out.next().copied(),
        Part::Exact => None,
    });
    let said = said.enumerate().filter(|(place, _)| hits[*place].enforcement == Enforcement::Shadow);
    said.filter_map(|(place, verdict)| Some((place, verdict?))).collect()
}

/// Where a charge on what was held stands, no later than where the store will put it: behind all that was used when it
/// lent. What is undone by this is never more than what time has not given back.
fn mark(hit: &Hit<'_>, verdict: &Verdict, now: Timestamp) -> Mark {
    match hit.limit.algorithm() {
        Algorithm::LeakyBucket { .. } => Mark::at(now.after(verdict.delay)),
        Algorithm::SlidingWindowLog { .. } => Mark::since(now),
        // Ticks pay from the one before a charge.
        Algorithm::TokenBucketInterval(_) => verdict.mark,
        _ if verdict.mark.at > now => verdict.mark,
        _ => Mark::at(now),
    }
}

/// The verdict of a bucket that would have let pass what was put back.
pub(super) fn put_back(verdict: Verdict, hit: &Hit<'_>) -> Verdict {
    let remaining = verdict.remaining.saturating_add(hit.demand.cost).min(verdict.limit);
    Verdict { remaining, ..verdict }
}
