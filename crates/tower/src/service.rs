//! The service: one request from its arrival to its answer.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use tollgate::core::RateLimitHeaders;
use tollgate::{Limiter, Micros, Store};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::headers::write_headers;
use crate::identify::Identify;
use crate::ids::DecisionIds;
use crate::patience::Patience;
use crate::refusal::{Protocol, Refusal};

/// How long a request is held if nobody says otherwise.
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
    pub(crate) patience: Patience,
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
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, T::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was found ready is the one to call; its clone has to be asked again.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let keeper = Arc::clone(&self.keeper);
        let (parts, body) = request.into_parts();
        Box::pin(async move {
            let headers = match keeper.admit(&parts).await {
                Ok(headers) => headers,
                Err(refusal) => {
                    return Ok(refusal.into_response(Protocol::of(&parts)).map(ResponseBody::refusal));
                }
            };
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(values) = headers {
                write_headers(values, response.headers_mut());
            }
            Ok(response.map(ResponseBody::inner))
        })
    }
}

impl<S: Store> Keeper<S> {
    pub(crate) fn new(limiter: Arc<Limiter<S>>) -> Self {
        Keeper {
            limiter,
            ids: Arc::new(DecisionIds::new()),
            identify: Arc::new(Identify::new()),
            cost: None,
            patience: Patience { max_wait: MAX_WAIT.into(), header: None },
        }
    }

    /// Identifies, checks and holds a request; answers what to tell the caller.
    async fn admit(&self, request: &Parts) -> Result<Option<RateLimitHeaders>, Refusal> {
        let (headers, delay) = self.check(request).await?;
        if delay > Micros::ZERO {
            self.limiter.clock().sleep(delay).await;
        }
        Ok(headers)
    }

    /// Nothing of the decision is kept while the request is held, its rules least of all.
    async fn check(&self, request: &Parts) -> Result<(Option<RateLimitHeaders>, Micros), Refusal> {
        let facts = self.identify.describe(request);
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        let answer = self.limiter.check_within(&facts, cost, self.patience.of(request)).await;
        let answer = answer.map_err(|error| Refusal::without_answer(&error))?;
        if !answer.allowed() {
            return Err(Refusal::of(&answer, self.ids.next()));
        }
        Ok((RateLimitHeaders::of(&answer, answer.rules(), answer.at()), answer.delay()))
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
            patience: self.patience.clone(),
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
        debug.field("identify", &self.identify).field("patience", &self.patience).finish_non_exhaustive()
    }
}
