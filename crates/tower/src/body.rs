//! The body of an answer: the inner service's, or ours.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// What [`Tollgate`](crate::Tollgate) answers with: the inner service's body as it is, or the text of a refusal.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        source: Source<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = Projected]
    enum Source<B> {
        Inner { #[pin] body: B },
        // Gone once it was handed over.
        Refusal { text: Vec<u8> },
    }
}

impl<B> ResponseBody<B> {
    pub(crate) const fn inner(body: B) -> Self {
        ResponseBody { source: Source::Inner { body } }
    }

    pub(crate) const fn refusal(text: Vec<u8>) -> Self {
        ResponseBody { source: Source::Refusal { text } }
    }
}

impl<B: Body> Body for ResponseBody<B>
where
    B::Data: From<Vec<u8>>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project().source.project() {
            Projected::Inner { body } => body.poll_frame(context),
            Projected::Refusal { text } if text.is_empty() => Poll::Ready(None),
            Projected::Refusal { text } => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text).into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Inner { body } => body.is_end_stream(),
            Source::Refusal { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Inner { body } => body.size_hint(),
            Source::Refusal { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
