//! What a caller of the service waits for.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use pin_project_lite::pin_project;
use tollgate::core::RateLimitHeaders;

use crate::body::ResponseBody;
use crate::headers::write_headers;

type Answered<R, E> = Result<Response<ResponseBody<R>>, E>;

pin_project! {
    /// The answer of a [`Tollgate`](crate::Tollgate) to be.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, R, E> {
        // The decision was there at once: nothing stands between the caller and the inner service.
        Passing { #[pin] inner: F, headers: Option<RateLimitHeaders> },
        Refused { text: Option<Response<Vec<u8>>> },
        // The store or a turn has to be waited for.
        Waiting { answer: Pin<Box<dyn Future<Output = Answered<R, E>> + Send>> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(crate) const fn passing(inner: F, headers: Option<RateLimitHeaders>) -> Self {
        ResponseFuture { state: State::Passing { inner, headers } }
    }

    pub(crate) const fn refused(response: Response<Vec<u8>>) -> Self {
        ResponseFuture { state: State::Refused { text: Some(response) } }
    }

    pub(crate) fn waiting(answer: impl Future<Output = Answered<R, E>> + Send + 'static) -> Self {
        ResponseFuture { state: State::Waiting { answer: Box::pin(answer) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Answered<R, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projected::Passing { inner, headers } => {
                let response = ready!(inner.poll(context))?;
                Poll::Ready(Ok(passed(response, headers.take())))
            }
            Projected::Refused { text } => {
                let response = text.take().expect("a future that is ready is not asked again");
                Poll::Ready(Ok(response.map(ResponseBody::refusal)))
            }
            Projected::Waiting { answer } => answer.as_mut().poll(context),
        }
    }
}

/// The inner service's answer, with what is left of the caller's limits.
pub(crate) fn passed<R>(
    mut response: Response<R>,
    headers: Option<RateLimitHeaders>,
) -> Response<ResponseBody<R>> {
    if let Some(values) = headers {
        write_headers(values, response.headers_mut());
    }
    response.map(ResponseBody::inner)
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
