//! One request to a limiter, with its settings.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate_core::{Descriptor, Micros, Op, RuleSet, StoreError, Timestamp};

use crate::limiter::{Answer, Deciding, Limiter, Recording};
use crate::reserve::{ReserveError, Reserved};
use crate::store::{AnyStore, Store};

/// One request: what it costs, how long it may wait, and by which rules it is decided. Made by [`Limiter::request`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Descriptor, Limiter, MemoryStore, rules};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 10/s burst 50 }]")?;
/// let limiter = Limiter::new(rules, MemoryStore::new());
/// let user = Descriptor::new().with("user_id", "42");
///
/// let answer = limiter.request(&user).cost(5).max_wait(Duration::from_millis(200)).check().await;
/// assert_eq!(answer.remaining(), Some(45));
/// limiter.request(&user).cost(5).refund().await?;
/// assert_eq!(limiter.request(&user).peek().await.remaining(), Some(50));
/// # Ok(()) }
/// ```
pub struct Request<'a, S = AnyStore> {
    pub(crate) limiter: &'a Limiter<S>,
    pub(crate) descriptor: &'a Descriptor<'a>,
    pub(crate) cost: u64,
    pub(crate) max_wait: Micros,
    pub(crate) rules: Option<Arc<RuleSet>>,
    pub(crate) caller: Option<&'a str>,
}

impl<'a, S: Store> Request<'a, S> {
    /// A request of cost 1 that may wait for any time, decided by the limiter's rules.
    #[inline]
    pub(crate) const fn new(limiter: &'a Limiter<S>, descriptor: &'a Descriptor<'a>) -> Self {
        Request { limiter, descriptor, cost: 1, max_wait: Micros::MAX, rules: None, caller: None }
    }

    /// The same with this cost. A cost of 0 passes and charges nothing.
    #[must_use]
    #[inline]
    pub fn cost(self, cost: u64) -> Self {
        Request { cost, ..self }
    }

    /// The same, refused and charged nothing where a leaky bucket would delay it for longer.
    #[must_use]
    #[inline]
    pub fn max_wait(self, max_wait: impl Into<Micros>) -> Self {
        Request { max_wait: max_wait.into(), ..self }
    }

    /// The same by other rules than the limiter's, over the same buckets. A refusal is not recorded as a violation.
    #[must_use]
    pub fn rules(self, rules: impl Into<Arc<RuleSet>>) -> Self {
        Request { rules: Some(rules.into()), ..self }
    }

    /// The same with the name of the caller: one caller may have at most a sixteenth of all unsettled
    /// [reservations](Self::reserve).
    #[must_use]
    pub fn caller(self, caller: &'a str) -> Self {
        Request { caller: Some(caller), ..self }
    }

    /// Decides the request and charges its cost if it is allowed.
    ///
    /// While the store is unavailable, each rule's `on_store_failure` decides, and the answer says so
    /// ([`Decision::degraded`](crate::Decision::degraded)). A request whose cost attribute is invalid is refused, and the
    /// answer says why ([`Decision::invalid_cost`](crate::Decision::invalid_cost)).
    #[inline]
    pub fn check(self) -> impl Future<Output = Answer> + use<'a, S> {
        Deciding::new(self, Op::Charge, Recording::Refusals, None)
    }

    /// As [`check`](Self::check), without waiting; `None`, and nothing done, where the store or a plan has to be waited for.
    #[inline]
    pub fn check_now(self) -> Option<Answer> {
        if self.limiter.store().waits() {
            return None;
        }
        // Only the plan can be waited for here, and that is before anything is charged.
        match pin!(self.check()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }

    /// Answers what [`check`](Self::check) would, and charges nothing.
    pub fn peek(self) -> impl Future<Output = Answer> + use<'a, S> {
        Deciding::new(self, Op::Peek, Recording::Nothing, None)
    }

    /// Gives the cost back to every limit that matches the request. Nothing is given back where the cost is invalid.
    ///
    /// # Errors
    ///
    /// The store gave no answer. It may have given the cost back all the same.
    pub async fn refund(self) -> Result<Answer, StoreError> {
        self.limiter.change(self, Op::Refund).await
    }

    /// Deletes every bucket of the request, also where a rule denies or exempts it.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn reset(self) -> Result<Answer, StoreError> {
        self.limiter.change(self, Op::Reset).await
    }

    /// As [`check`](Self::check), and keeps what was charged for `ttl` (from a millisecond to a day), so that it can be
    /// [settled](Limiter::settle) with the true cost. The cost is at least 1.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Descriptor, Limiter, MemoryStore, rules};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 1000/h }]")?;
    /// let limiter = Limiter::new(rules, MemoryStore::new());
    /// let user = Descriptor::new().with("user_id", "42");
    ///
    /// let reserved = limiter.request(&user).cost(300).reserve(Duration::from_secs(60)).await?;
    /// assert_eq!(reserved.answer.remaining(), Some(700));
    /// let id = reserved.reservation.ok_or("nothing was reserved")?;
    ///
    /// let settled = limiter.settle(id, 120).await?; // it took less
    /// assert_eq!((settled.refunded, settled.charged), (180, 0));
    /// assert_eq!(limiter.request(&user).peek().await.remaining(), Some(880));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The request costs nothing, or there is no room for its record. It is charged nothing.
    pub async fn reserve(self, ttl: impl Into<Micros>) -> Result<Reserved, ReserveError> {
        self.limiter.reserve(self, ttl.into()).await
    }

    /// Waits until the request may pass, charges it and holds it for its delay; for background jobs and batches.
    ///
    /// Returns a refusal, charging nothing, as soon as it is certain that the request cannot pass before `deadline`. A
    /// future that is dropped while it waits for a leaky bucket's delay has spent its place in the queue.
    pub async fn until_allowed(self, deadline: Timestamp) -> Answer {
        self.limiter.until_allowed(self, deadline).await
    }
}

impl<S> Clone for Request<'_, S> {
    fn clone(&self) -> Self {
        Request { rules: self.rules.clone(), ..*self }
    }
}

impl<S> fmt::Debug for Request<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { descriptor, cost, max_wait, .. } = self;
        let mut shown = f.debug_struct("Request");
        shown.field("descriptor", descriptor).field("cost", cost).field("max_wait", max_wait);
        shown.finish_non_exhaustive()
    }
}
