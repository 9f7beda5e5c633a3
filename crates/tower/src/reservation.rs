//! A request whose handler knows later what it took.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use http_body::Body;
use tollgate::{Limiter, ReservationId, SettleError, Settled, Store};

use crate::counted::Counted;

type Settling = Pin<Box<dyn Future<Output = Result<Settled, SettleError>> + Send>>;

/// Where reservations are settled; what store is behind it is of no interest to a handler.
pub(crate) type Desk = dyn Fn(ReservationId, u64) -> Settling + Send + Sync;

/// What a request reserved, in its extensions: [`TollgateLayer::reserve`](crate::TollgateLayer::reserve) puts it there.
///
/// Clones are the same reservation, and only the first settlement counts. Whoever drops it unsettled has spent what was
/// reserved.
#[derive(Clone)]
pub struct Reservation {
    id: Option<ReservationId>,
    reserved: u64,
    desk: Arc<Desk>,
}

impl Reservation {
    pub(crate) fn new(id: Option<ReservationId>, reserved: u64, desk: &Arc<Desk>) -> Self {
        Reservation { id, reserved, desk: Arc::clone(desk) }
    }

    /// What was reserved.
    pub const fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Its name, for somebody else who settles. None where there is nothing to settle: no limit applies, or the store is
    /// away.
    pub const fn id(&self) -> Option<ReservationId> {
        self.id
    }

    /// Settles with what the request took in truth, as [`Limiter::settle`] does; nothing comes of it where there is
    /// nothing to settle.
    ///
    /// # Errors
    ///
    /// Its time is over and all of it is spent, or the store gave no answer.
    pub async fn settle(&self, actual: u64) -> Result<Option<Settled>, SettleError> {
        match self.id {
            None => Ok(None),
            Some(id) => (self.desk)(id, actual).await.map(Some),
        }
    }

    /// A body that is counted as it streams, and settles with the sum when it ends or fails.
    ///
    /// `count` says what each piece of data took. The end is told to the client once it is settled; if that fails, a
    /// warning is logged. A client that goes away before has spent what was reserved.
    pub fn count<B, F>(self, body: B, count: F) -> Counted<B, F>
    where
        B: Body,
        F: FnMut(&B::Data) -> u64,
    {
        Counted::new(self, body, count)
    }
}

/// Where the reservations of a limiter are settled.
pub(crate) fn desk<S: Store>(limiter: &Arc<Limiter<S>>) -> Arc<Desk> {
    let limiter = Arc::clone(limiter);
    Arc::new(move |id, actual| {
        let limiter = Arc::clone(&limiter);
        Box::pin(async move { limiter.settle(id, actual).await })
    })
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever knows the name may settle: it is not for logs.
        f.debug_struct("Reservation").field("reserved", &self.reserved).finish_non_exhaustive()
    }
}
