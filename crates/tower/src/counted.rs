//! A body that settles when it ends.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::reservation::Reservation;

pin_project! {
    /// A body whose cost is counted as it streams; [`Reservation::count`] makes it.
    ///
    /// Its length is not told beforehand: a server that knows it does not wait for the end.
    pub struct Counted<B: Body, F> {
        #[pin]
        body: B,
        count: F,
        counted: u64,
        reservation: Reservation,
        stage: Stage<B::Error>,
    }
}

/// How far it is.
enum Stage<E> {
    Streaming,
    /// All there was has arrived; an error is told once it is settled.
    Settling {
        settling: Pin<Box<dyn Future<Output = ()> + Send>>,
        error: Option<E>,
    },
    Over,
}

impl<B: Body, F> Counted<B, F> {
    pub(crate) const fn new(reservation: Reservation, body: B, count: F) -> Self {
        Counted { body, count, counted: 0, reservation, stage: Stage::Streaming }
    }
}

impl<B, F> Body for Counted<B, F>
where
    B: Body,
    F: FnMut(&B::Data) -> u64,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        loop {
            match this.stage {
                Stage::Streaming => match ready!(this.body.as_mut().poll_frame(context)) {
                    Some(Ok(frame)) => {
                        let cost = frame.data_ref().map_or(0, &mut *this.count);
                        *this.counted = this.counted.saturating_add(cost);
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    ended => {
                        let settling = Box::pin(settle(this.reservation.clone(), *this.counted));
                        *this.stage = Stage::Settling { settling, error: ended.and_then(Result::err) };
                    }
                },
                Stage::Settling { settling, error } => {
                    ready!(settling.as_mut().poll(context));
                    let error = error.take();
                    *this.stage = Stage::Over;
                    return Poll::Ready(error.map(Err));
                }
                Stage::Over => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.body.size_hint().lower());
        hint
    }
}

/// The answer is on its way already: whoever reads the log is all there is to tell.
async fn settle(reservation: Reservation, counted: u64) {
    if let Err(error) = reservation.settle(counted).await {
        let error: &(dyn std::error::Error + 'static) = &error;
        tracing::warn!(error, "a request whose answer is over was not settled");
    }
}

impl<B: Body, F> fmt::Debug for Counted<B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted").field("counted", &self.counted).finish_non_exhaustive()
    }
}
