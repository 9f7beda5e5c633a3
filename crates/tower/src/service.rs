//! The service: one request from its arrival to its answer.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use tollgate::core::{HeaderForm, RateLimitHeaders};
use tollgate::{Answer, Descriptor, Limiter, Micros, Store};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::{ResponseFuture, passed};
use crate::identify::Identify;
use crate::ids::DecisionIds;
use crate::patience::Patience;
use crate::refusal::{Protocol, Refusal};
use crate::reservation::{Desk, Reservation, desk};

/// How long a request is held by default.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// A service behind the gate; [`TollgateLayer`](crate::TollgateLayer) makes it.
pub struct Tollgate<T, S> {
    inner: T,
    keeper: Arc<Keeper<S>>,
}

/// What all services of a layer share: everything but the service.
pub(crate) struct Keeper<S> {
    limiter: Arc<Limiter<S>>,
    ids: Arc<DecisionIds>,
    pub(crate) identify: Arc<Identify>,
    pub(crate) cost: Option<Arc<CostOf>>,
    pub(crate) headers: HeaderForm,
    pub(crate) patience: Patience,
    reserve: Option<Reserve>,
}

/// That requests reserve, for how long, and where they are settled.
#[derive(Clone)]
struct Reserve {
    ttl: Micros,
    desk: Arc<Desk>,
}

type CostOf = dyn Fn(&Parts) -> u64 + Send + Sync;

impl<T, S> Tollgate<T, S> {
    pub(crate) const fn new(inner: T, keeper: Arc<Keeper<S>>) -> Self {
        Tollgate { inner, keeper }
    }
}

impl<T, S, B, R> Service<Request<B>> for Tollgate<T, S>
where
    T: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    T::Future: Send,
    S: Store,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = T::Error;
    type Future = ResponseFuture<T::Future, R, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let cost = self.keeper.cost_of(&parts);
        let checked = match self.keeper.check_now(&parts, cost) {
            Some(Ok(Pass { headers, delay: Micros::ZERO, reservation })) => {
                leave(reservation, &mut parts);
                return ResponseFuture::passing(self.inner.call(Request::from_parts(parts, body)), headers);
            }
            Some(Err(refusal)) => {
                return ResponseFuture::refused(refusal.into_response(Protocol::of(&parts)));
            }
            checked => checked,
        };
        // The service that was found ready is the one to call; its clone has to be asked again.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let keeper = Arc::clone(&self.keeper);
        ResponseFuture::waiting(async move {
            let checked = match checked {
                Some(checked) => checked,
                None => keeper.check(&parts, cost).await,
            };
            let Pass { headers, delay, reservation } = match checked {
                Ok(pass) => pass,
                Err(refusal) => {
                    return Ok(refusal.into_response(Protocol::of(&parts)).map(ResponseBody::refusal));
                }
            };
            if delay > Micros::ZERO {
                keeper.limiter.clock().sleep(delay).await;
            }
            leave(reservation, &mut parts);
            Ok(passed(inner.call(Request::from_parts(parts, body)).await?, headers))
        })
    }
}

/// Leaves a reservation where the handler finds it.
fn leave(reservation: Option<Reservation>, request: &mut Parts) {
    if let Some(reservation) = reservation {
        request.extensions.insert(reservation);
    }
}

/// What an admitted request is told, and how long it is held. The decision itself, and the rules that made it, are not
/// kept meanwhile.
struct Pass {
    headers: Option<RateLimitHeaders>,
    delay: Micros,
    reservation: Option<Reservation>,
}

impl<S: Store> Keeper<S> {
    pub(crate) fn new(limiter: Arc<Limiter<S>>) -> Self {
        Keeper {
            limiter,
            ids: Arc::new(DecisionIds::new()),
            identify: Arc::new(Identify::new()),
            cost: None,
            headers: HeaderForm::DEFAULT,
            patience: Patience { max_wait: MAX_WAIT.into(), header: None },
            reserve: None,
        }
    }

    pub(crate) fn reserve_for(&mut self, ttl: Micros) {
        self.reserve = Some(Reserve { ttl, desk: desk(&self.limiter) });
    }

    /// Identifies a request and checks it.
    async fn check(&self, request: &Parts, cost: u64) -> Result<Pass, Refusal> {
        let descriptor = self.identify.describe(request);
        let max_wait = self.patience.of(request);
        let asked = self.limiter.request(&descriptor).max_wait(max_wait);
        let (answer, reservation) = match &self.reserve {
            None => (asked.cost(cost).check().await, None),
            Some(reserve) => {
                let caller = descriptor.text("user_id").or_else(|| descriptor.text("ip"));
                let asked = caller.iter().fold(asked, |asked, caller| asked.caller(caller));
                self.reserve(reserve, asked, cost).await?
            }
        };
        self.pass(&answer, &descriptor, reservation)
    }

    /// The same without waiting, so that no future is allocated; `None`, and nothing done, where the store has to be waited
    /// for or a reservation has to be kept.
    #[inline]
    fn check_now(&self, request: &Parts, cost: u64) -> Option<Result<Pass, Refusal>> {
        if self.reserve.is_some() || self.limiter.store().waits() {
            return None; // before the request is described, which would be done again
        }
        let descriptor = self.identify.describe(request);
        let max_wait = self.patience.of(request);
        let answer = self.limiter.request(&descriptor).cost(cost).max_wait(max_wait).check_now()?;
        Some(self.pass(&answer, &descriptor, None))
    }

    fn cost_of(&self, request: &Parts) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(request))
    }

    /// What becomes of a request that was decided.
    #[expect(
        clippy::result_large_err,
        reason = "a refusal is as common as a pass, and a box would be an allocation"
    )]
    fn pass(
        &self,
        answer: &Answer,
        descriptor: &Descriptor<'_>,
        reservation: Option<Reservation>,
    ) -> Result<Pass, Refusal> {
        let decided = answer.request(descriptor);
        let headers = self.headers.headers(answer, answer.rules(), Some(&decided), answer.at());
        if !answer.allowed() {
            return Err(Refusal::of(answer, headers, self.ids.next()));
        }
        Ok(Pass { headers, delay: answer.delay(), reservation })
    }

    /// Checks a request that is settled later. It takes at least 1 until then, whatever its estimate.
    async fn reserve(
        &self,
        Reserve { ttl, desk }: &Reserve,
        asked: tollgate::Request<'_, S>,
        cost: u64,
    ) -> Result<(Answer, Option<Reservation>), Refusal> {
        let cost = cost.max(1);
        let reserved = asked.cost(cost).reserve(*ttl).await;
        let reserved = reserved.map_err(|error| Refusal::unkept(&error, self.ids.next()))?;
        Ok((reserved.answer, Some(Reservation::new(reserved.reservation, cost, desk))))
    }
}

impl<T: Clone, S> Clone for Tollgate<T, S> {
    fn clone(&self) -> Self {
        Tollgate { inner: self.inner.clone(), keeper: Arc::clone(&self.keeper) }
    }
}

impl<S> Clone for Keeper<S> {
    fn clone(&self) -> Self {
        Keeper {
            limiter: Arc::clone(&self.limiter),
            ids: Arc::clone(&self.ids),
            identify: Arc::clone(&self.identify),
            cost: self.cost.clone(),
            headers: self.headers.clone(),
            patience: self.patience.clone(),
            reserve: self.reserve.clone(),
        }
    }
}

impl<T: fmt::Debug, S> fmt::Debug for Tollgate<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tollgate").field("inner", &self.inner).field("keeper", &self.keeper).finish()
    }
}

impl<S> fmt::Debug for Keeper<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Keeper");
        debug.field("identify", &self.identify).field("headers", &self.headers);
        debug.field("patience", &self.patience).finish_non_exhaustive()
    }
}
