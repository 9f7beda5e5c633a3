//! The layer: a limiter, and how requests meet it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::request::Parts;
use tollgate::core::HeaderForm;
use tollgate::{Limiter, Store};
use tower_layer::Layer;

use crate::identify::Identify;
use crate::service::{Keeper, Tollgate};

/// Limits every request to the services it goes around.
///
/// A request is [identified](Identify), checked and, if it may pass, handed on; the answer gets `X-RateLimit-*`,
/// `RateLimit-Policy` and `RateLimit`. A request that may not pass never reaches the inner service: the caller gets
/// 429 with `Retry-After` and `application/problem+json`, 403 where a rule denies it, 503 where the store gave no
/// answer and a rule fails closed. Callers of gRPC get `RESOURCE_EXHAUSTED`, `PERMISSION_DENIED` or `UNAVAILABLE`,
/// with `google.rpc.RetryInfo`.
///
/// **Waiting.** Leaky buckets hold requests until their turn. A request whose turn would come after
/// [`max_wait`](Self::max_wait), or after its own deadline, is refused at once and charged nothing. A client that
/// goes away while it is held has spent its place in the queue: others were told to wait behind it.
///
/// **Place.** Readiness is the inner service's. A permit that `poll_ready` took there, of a concurrency limit, say,
/// is kept while a request is held; put such layers inside this one only where that is wanted.
pub struct TollgateLayer<S> {
    keeper: Arc<Keeper<S>>,
}

impl<S: Store> TollgateLayer<S> {
    /// A layer over a limiter, which may be shared with other layers.
    ///
    /// Requests are known by the peer's address, path and method until [`identify`](Self::identify) says more.
    pub fn new(limiter: impl Into<Arc<Limiter<S>>>) -> Self {
        TollgateLayer { keeper: Arc::new(Keeper::new(limiter.into())) }
    }

    /// How the facts about a request are found.
    #[must_use]
    pub fn identify(self, identify: Identify) -> Self {
        self.change(|keeper| keeper.identify = Arc::new(identify))
    }

    /// What a request costs; 1 if nobody says. A cost of 0 passes, and reads the numbers.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.change(|keeper| keeper.cost = Some(Arc::new(cost)))
    }

    /// Reserves the [cost](Self::cost) of a request, which is an estimate then, and leaves a
    /// [`Reservation`](crate::Reservation) in its extensions, to be settled within `ttl` (from a millisecond to a day) with
    /// what it took in truth.
    ///
    /// A request that could pass, but whose reservation the store does not keep, is charged nothing and answered 503.
    #[must_use]
    pub fn reserve(self, ttl: Duration) -> Self {
        self.change(|keeper| keeper.reserve_for(ttl.into()))
    }

    /// Which headers tell callers about their limits, and in which form; the [default set](HeaderForm::DEFAULT) if nobody
    /// says.
    #[must_use]
    pub fn headers(self, form: HeaderForm) -> Self {
        self.change(|keeper| keeper.headers = form)
    }

    /// The longest a request is held for its turn; 30 s if nobody says. [`Duration::ZERO`] holds nobody.
    ///
    /// A request has less patience where the extension [`MaxWait`](crate::MaxWait), `grpc-timeout` or the
    /// [`timeout_header`](Self::timeout_header) says so.
    #[must_use]
    pub fn max_wait(self, wait: Duration) -> Self {
        self.change(|keeper| keeper.patience.max_wait = wait.into())
    }

    /// The header in which callers say how many milliseconds they are ready to wait.
    #[must_use]
    pub fn timeout_header(self, name: HeaderName) -> Self {
        self.change(|keeper| keeper.patience.header = Some(name))
    }

    fn change(mut self, change: impl FnOnce(&mut Keeper<S>)) -> Self {
        change(Arc::make_mut(&mut self.keeper));
        self
    }
}

impl<S, T> Layer<T> for TollgateLayer<S> {
    type Service = Tollgate<T, S>;

    fn layer(&self, inner: T) -> Tollgate<T, S> {
        Tollgate::new(inner, Arc::clone(&self.keeper))
    }
}

impl<S> Clone for TollgateLayer<S> {
    fn clone(&self) -> Self {
        TollgateLayer { keeper: Arc::clone(&self.keeper) }
    }
}

impl<S> fmt::Debug for TollgateLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollgateLayer").field("keeper", &self.keeper).finish()
    }
}
