//! Requests that are settled by who answers them.

#![allow(clippy::unwrap_used, reason = "a test that is surprised stops there")]

mod support;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use serde_json::json;
use tollgate::{Clock, Descriptor, Limiter, MemoryStore, SettleError};
use tollgate_tower::{Reservation, TollgateLayer};
use tower::util::BoxCloneService;
use tower::{Layer as _, ServiceExt as _, service_fn};

use support::{Behind, Inner, from, limiter, send};

const RULES: &str = "  - { name: tokens, key: global, limit: 100/d }";

/// A service behind a layer that reserves 60 for a minute, and answers with what is made of the reservation.
fn behind(
    limiter: &Arc<Limiter<MemoryStore>>,
    answer: impl Fn(Reservation) -> Body + Clone + Send + 'static,
) -> Behind {
    let layer = TollgateLayer::new(Arc::clone(limiter)).cost(|_| 60).reserve(Duration::from_secs(60));
    BoxCloneService::new(layer.layer(service_fn(move |request: Request<Body>| {
        let reservation = request.extensions().get::<Reservation>().unwrap().clone();
        let body = answer(reservation);
        async move { Ok(Response::new(body)) }
    })))
}

async fn call(service: &Behind) -> Response<tollgate_tower::ResponseBody<Body>> {
    let request = from("203.0.113.7", "/").body(Body::empty()).unwrap();
    service.clone().oneshot(request).await.unwrap()
}

async fn remaining(limiter: &Limiter<MemoryStore>) -> u64 {
    limiter.request(&Descriptor::new()).peek().await.remaining().unwrap()
}

/// So many pieces, and then an end or an error.
struct Pieces(u64, Option<&'static str>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.0 == 0 {
            return Poll::Ready(self.1.take().map(|error| Err(std::io::Error::other(error))));
        }
        self.0 -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"word ")))))
    }
}

#[tokio::test]
async fn a_body_that_ends_settles_with_what_it_had() {
    let (limiter, _) = limiter(RULES);
    let service = behind(&limiter, |reservation| Body::new(reservation.count(Pieces(12, None), |_| 1)));
    let response = call(&service).await;
    assert_eq!(response.headers()["x-ratelimit-remaining"], "40");
    assert_eq!(remaining(&limiter).await, 40);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!((body.len(), remaining(&limiter).await), (60, 88));
}

#[tokio::test]
async fn a_body_that_fails_settles_with_what_came_and_then_fails() {
    let (limiter, _) = limiter(RULES);
    let service = behind(&limiter, |reservation| {
        Body::new(reservation.count(Pieces(5, Some("the upstream is gone")), |_| 1))
    });
    let error = call(&service).await.into_body().collect().await.unwrap_err();
    assert_eq!((error.to_string().as_str(), remaining(&limiter).await), ("the upstream is gone", 95));
}

#[tokio::test]
async fn a_body_that_nobody_reads_to_its_end_has_spent_all() {
    let (limiter, _) = limiter(RULES);
    let service = behind(&limiter, |reservation| Body::new(reservation.count(Pieces(12, None), |_| 1)));
    let mut body = call(&service).await.into_body();
    assert!(body.frame().await.is_some());
    drop(body);
    assert_eq!(remaining(&limiter).await, 40);
    let refused = call(&service).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_handler_settles_once() {
    let (limiter, clock): (_, Clock) = limiter(RULES);
    let (to, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let service = behind(&limiter, move |reservation| {
        to.send(reservation).unwrap();
        Body::empty()
    });
    call(&service).await;
    let reservation = kept.recv().await.unwrap();
    assert!(reservation.reserved() == 60 && reservation.id().is_some());
    assert_eq!(reservation.settle(10).await.unwrap().unwrap().refunded, 50);
    assert!(reservation.clone().settle(60).await.unwrap().unwrap().already_settled);
    assert_eq!(remaining(&limiter).await, 90);

    call(&service).await;
    let late = kept.recv().await.unwrap();
    clock.advance(Duration::from_secs(60));
    assert_eq!(late.settle(0).await, Err(SettleError::Gone));
    assert!(!format!("{late:?}").contains(&late.id().unwrap().to_string()), "whoever knows it may settle");
}

#[tokio::test]
async fn where_no_limit_applies_there_is_nothing_to_settle() {
    let (limiter, _) = limiter("  - { name: tokens, key: 'user:{user_id}', limit: 100/d }");
    let (to, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let service = behind(&limiter, move |reservation| {
        to.send(reservation).unwrap();
        Body::empty()
    });
    assert_eq!(call(&service).await.status(), StatusCode::OK);
    assert_eq!(kept.recv().await.unwrap().settle(7).await, Ok(None));
}

#[tokio::test]
async fn a_reservation_that_cannot_be_kept_is_503_and_charged_nothing() {
    let (limiter, _) = limiter("  - { name: tokens, key: 'ip:{ip}', limit: 1000000/d }");
    let other = Descriptor::new().with("ip", "192.0.2.1");
    while limiter.request(&other).reserve(Duration::from_secs(60)).await.is_ok() {}
    let layer = TollgateLayer::new(Arc::clone(&limiter)).reserve(Duration::from_secs(60));
    let inner = Inner::default();
    let answer = send(&inner.behind(&layer), from("203.0.113.7", "/")).await;
    assert_eq!((answer.status, inner.calls()), (StatusCode::SERVICE_UNAVAILABLE, 0));
    assert_eq!(answer.header("retry-after"), "1");
    let problem = answer.json();
    assert_eq!((&problem["title"], &problem["retry_after_ms"]), (&json!("no reservation"), &json!(1_000)));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("there are 100000 unsettled reservations"), "{detail}");
    let address = Descriptor::new().with("ip", "203.0.113.7");
    assert_eq!(limiter.request(&address).peek().await.remaining(), Some(1_000_000));
}
