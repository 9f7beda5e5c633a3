//! The layer around a service that is called by hand: what passes, what does not, and what each is told.

#![allow(clippy::unwrap_used, reason = "a test that is surprised stops there")]

mod support;

use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use http::{HeaderName, Request, Response, StatusCode};
use serde_json::{Value, json};
use tollgate::core::algorithm::State;
use tollgate::core::{HeaderForm, HeaderSet, Key, PartitionSecret, ResetForm};
use tollgate::plans::{PlanOptions, Plans};
use tollgate::{
    Bounds, Call, Clock, Descriptor, Limiter, MemoryStore, Micros, Outcome, ReservationId, Rule, SettleError,
    Settled, Store, StoreError, Timestamp, rules,
};
use tollgate_tower::{Identify, MaxWait, TollgateLayer};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use support::{Behind, Inner, from, limiter, send};

const RULES: &str = r#"
  - { name: per-address, key: "ip:{ip}", limit: 10/s burst 2 }
  - { name: everybody, key: global, limit: 1000/s burst 2000 }
  - { name: watched, key: "endpoint:{endpoint}", limit: 1/min, mode: shadow }
  - { name: banned, key: "ip:{ip}", action: deny, when: { ip: [198.51.100.0/24] } }
"#;

#[tokio::test]
async fn allowed_answers_have_every_header_and_the_inner_body() {
    let (limiter, _) = limiter(RULES);
    let inner = Inner::default();
    let service = inner.behind(&TollgateLayer::new(limiter));
    let answer = send(&service, from("203.0.113.7", "/a")).await;
    assert_eq!((answer.status, &*answer.body), (StatusCode::OK, &b"ok"[..]));
    assert_eq!(answer.header("x-ratelimit-limit"), "2");
    assert_eq!(answer.header("x-ratelimit-remaining"), "1");
    assert_eq!(answer.header("x-ratelimit-reset"), "1800000001");
    assert_eq!(answer.header("ratelimit-policy"), r#""per-address";q=2;w=1, "everybody";q=2000;w=2"#);
    assert_eq!(answer.header("ratelimit"), r#""per-address";r=1;t=1, "everybody";r=1999;t=1"#);
    assert_eq!(answer.header("retry-after"), "");
    assert_eq!(inner.calls(), 1);
}

#[tokio::test]
async fn headers_come_in_the_form_that_the_layer_is_told() {
    let told = async |form: HeaderForm| {
        let (limiter, _) = limiter(RULES);
        let service = Inner::default().behind(&TollgateLayer::new(limiter).headers(form));
        let mut answer = send(&service, from("203.0.113.7", "/a")).await;
        for _ in 0..2 {
            answer = send(&service, from("203.0.113.7", "/a")).await;
        }
        answer
    };
    let delta = told(HeaderForm::DEFAULT.with_reset(ResetForm::Delta)).await;
    assert_eq!(delta.header("x-ratelimit-reset"), "1");
    let old = told(HeaderForm::new(HeaderSet::Draft06)).await;
    assert_eq!((old.header("ratelimit-remaining"), old.header("x-ratelimit-limit")), ("0", ""));
    let older = told(HeaderForm::new(HeaderSet::Draft03)).await;
    let policies = r#"2, 2;w=1;name="per-address", 2000;w=2;name="everybody""#;
    assert_eq!((older.header("x-ratelimit-limit"), older.header("ratelimit")), (policies, ""));
    let none = told(HeaderForm::new(HeaderSet::None)).await;
    assert!(none.headers.keys().all(|name| !name.as_str().contains("ratelimit")), "{none:?}");
    let partition = HeaderForm::DEFAULT.with_partition(PartitionSecret::new(b"sixteen bytes or").unwrap());
    let partition = told(partition).await;
    let state = partition.header("ratelimit");
    assert!(state.starts_with(r#""per-address";r=0;t=1;pk=:"#) && !state.contains("203.0"), "{state}");
    for answer in [delta, old, older, none, partition] {
        assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    }
}

#[tokio::test]
async fn a_plan_that_was_looked_up_has_the_partition_of_one_that_was_named() {
    let rules = rules::parse("rules.yaml", "rules: [{ key: 'plan:{plan}', limit: 10/s }]").unwrap();
    let plans = Plans::new(PlanOptions::new("pro"), |_| async { Ok(None) });
    let form = HeaderForm::DEFAULT.with_partition(PartitionSecret::new(b"sixteen bytes or").unwrap());
    let identify = Identify::new().header("x-user", "user_id").unwrap().header("x-plan", "plan").unwrap();
    let layer = TollgateLayer::new(Limiter::new(rules, MemoryStore::new()).with_plans(plans));
    let service = Inner::default().behind(&layer.headers(form).identify(identify));
    let user = || from("203.0.113.7", "/").header("x-user", "42");
    let named = send(&service, user().header("x-plan", "pro")).await;
    let other = send(&service, user().header("x-plan", "free")).await;
    let looked_up = send(&service, user()).await;
    assert_eq!(looked_up.header("ratelimit-policy"), named.header("ratelimit-policy"));
    assert_ne!(looked_up.header("ratelimit-policy"), other.header("ratelimit-policy"));
}

#[tokio::test]
async fn a_refusal_is_429_with_headers_and_a_problem_and_the_inner_service_hears_nothing() {
    let (limiter, clock) = limiter(RULES);
    let inner = Inner::default();
    let service = inner.behind(&TollgateLayer::new(limiter));
    for _ in 0..2 {
        assert_eq!(send(&service, from("203.0.113.7", "/a")).await.status, StatusCode::OK);
    }
    let answer = send(&service, from("203.0.113.7", "/a")).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.header("x-ratelimit-remaining"), "0");
    assert_eq!(answer.header("ratelimit"), r#""per-address";r=0;t=1, "everybody";r=1998;t=1"#);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let mut problem = answer.json();
    let id = problem.as_object_mut().unwrap().remove("decision_id").unwrap();
    assert_eq!(id.as_str().unwrap().len(), 24);
    assert_eq!(
        problem,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "quota exceeded",
            "status": 429,
            "detail": "the limit `per-address` is used up; try again in 100 ms",
            "violated-policies": ["per-address"],
            "retry_after_ms": 100,
        })
    );
    assert_eq!(inner.calls(), 2);
    clock.advance(Micros::new(100_000));
    assert_eq!(send(&service, from("203.0.113.7", "/a")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn every_refusing_limit_is_a_violated_policy() {
    let (limiter, _) = limiter(
        r#"
  - { name: a, key: "ip:{ip}", limit: 1/s }
  - { name: b, key: global, limit: 1/min }
  - { name: c, key: "global:c", limit: 5/s }
"#,
    );
    let service = Inner::default().behind(&TollgateLayer::new(limiter));
    send(&service, from("203.0.113.7", "/")).await;
    let problem = send(&service, from("203.0.113.7", "/")).await.json();
    assert_eq!(problem["violated-policies"], json!(["a", "b"]));
    assert_eq!(problem["retry_after_ms"], 60_000, "the longest wait");
}

#[tokio::test]
async fn a_denied_caller_gets_403_and_a_limit_of_zero() {
    let (limiter, _) = limiter(RULES);
    let inner = Inner::default();
    let service = inner.behind(&TollgateLayer::new(limiter));
    let answer = send(&service, from("198.51.100.9", "/")).await;
    assert_eq!((answer.status, inner.calls()), (StatusCode::FORBIDDEN, 0));
    assert_eq!((answer.header("x-ratelimit-limit"), answer.header("x-ratelimit-remaining")), ("0", "0"));
    assert_eq!(answer.header("ratelimit-policy"), r#""banned";q=0"#);
    assert_eq!(answer.header("ratelimit"), r#""banned";r=0"#);
    for absent in ["x-ratelimit-reset", "retry-after"] {
        assert!(!answer.headers.contains_key(absent), "{answer:?}");
    }
    let problem = answer.json();
    assert_eq!(
        (&problem["retry_after_ms"], &problem["violated-policies"]),
        (&Value::Null, &json!(["banned"]))
    );
}

#[tokio::test]
async fn a_cost_above_the_limit_has_no_retry_after() {
    let (limiter, _) = limiter(RULES);
    let service = Inner::default().behind(&TollgateLayer::new(limiter).cost(|request| {
        request.headers.get("x-items").and_then(|items| items.to_str().ok()?.parse().ok()).unwrap_or(1)
    }));
    let answer = send(&service, from("203.0.113.7", "/").header("x-items", "3")).await;
    assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, ""));
    assert_eq!(answer.json()["retry_after_ms"], Value::Null);
    let answer = send(&service, from("203.0.113.7", "/").header("x-items", "2")).await;
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (StatusCode::OK, "0"));
}

#[tokio::test]
async fn an_invalid_cost_attribute_is_400_and_charges_nothing() {
    let (limiter, _) = limiter(
        r#"
  - { name: model-tokens, key: "ip:{ip}", limit: 10000/h, cost: tokens }
  - { name: requests, key: "ip:{ip}", limit: 5/h }"#,
    );
    let inner = Inner::default();
    let identify = || Identify::new().header("x-tokens", "tokens").unwrap();
    let layer = TollgateLayer::new(limiter).identify(identify());
    let reserving = layer.clone().reserve(Duration::from_secs(60));
    for service in [inner.behind(&layer), inner.behind(&reserving)] {
        for tokens in ["-5000", "1e308", "0", "many"] {
            let request = || from("203.0.113.7", "/").header("x-tokens", tokens);
            let answer = send(&service, request()).await;
            assert_eq!((answer.status, inner.calls()), (StatusCode::BAD_REQUEST, 0), "{tokens}");
            assert_eq!(answer.header("content-type"), "application/problem+json");
            assert_eq!((answer.header("retry-after"), answer.header("x-ratelimit-limit")), ("", ""));
            let problem = answer.json();
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("`tokens`") && detail.contains("`model-tokens`"), "{detail}");
            let grpc = send(&service, request().header("content-type", "application/grpc")).await;
            assert_eq!((grpc.status, grpc.header("grpc-status")), (StatusCode::OK, "3"), "invalid argument");
        }
    }
    let answer = send(&inner.behind(&layer), from("203.0.113.7", "/").header("x-tokens", "5e3")).await;
    assert_eq!(answer.header("ratelimit"), r#""requests";r=4;t=720, "model-tokens";r=5000;t=1"#);
}

#[tokio::test]
async fn no_limit_no_headers() {
    let (limiter, _) = limiter(r#"  - { key: "tenant:{tenant}", limit: 1/s }"#);
    let service = Inner::default().behind(&TollgateLayer::new(limiter));
    let answer = send(&service, from("203.0.113.7", "/")).await;
    assert!(answer.status == StatusCode::OK && answer.headers.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn what_a_service_behind_says_about_its_limits_is_kept() {
    let (limiter, _) = limiter(r#"  - { name: ours, key: global, limit: 10/s }"#);
    let service = TollgateLayer::new(limiter).layer(service_fn(async |_: Request<Body>| {
        let response = Response::builder()
            .header("ratelimit-policy", r#""theirs";q=5;w=1"#)
            .header("ratelimit", r#""theirs";r=4;t=1"#)
            .header("x-ratelimit-limit", "5")
            .header("x-ratelimit-remaining", "4")
            .header("retry-after", "7");
        Ok::<_, Infallible>(response.body(Body::empty()).unwrap())
    }));
    let answer = send(&service, from("203.0.113.7", "/")).await;
    let all = |name: &str| {
        answer.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(all("ratelimit-policy"), [r#""theirs";q=5;w=1"#, r#""ours";q=10;w=1"#]);
    assert_eq!(all("ratelimit"), [r#""theirs";r=4;t=1"#, r#""ours";r=9;t=1"#]);
    assert_eq!(all("x-ratelimit-limit"), ["10"]);
    assert_eq!(all("x-ratelimit-remaining"), ["9"]);
    assert_eq!(all("retry-after"), ["7"]);
}

const QUEUE: &str = r#"  - { name: queue, key: global, limit: 10/s queue 5 }"#;

/// Lets everything that can go on go on.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_leaky_bucket_holds_requests_until_their_turn() {
    let (limiter, clock) = limiter(QUEUE);
    let inner = Inner::default();
    let service = inner.behind(&TollgateLayer::new(limiter));
    let held: Vec<_> = (0..3)
        .map(|_| tokio::spawn(service.clone().oneshot(from("203.0.113.7", "/").body(Body::empty()).unwrap())))
        .collect();
    settle().await;
    assert_eq!(inner.calls(), 1, "the first leaves at once");
    clock.advance(Micros::new(99_999));
    settle().await;
    assert_eq!(inner.calls(), 1);
    clock.advance(Micros::new(1));
    settle().await;
    assert_eq!(inner.calls(), 2);
    clock.advance(Micros::new(100_000));
    for one in held {
        assert_eq!(one.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    assert_eq!(inner.calls(), 3);
}

#[tokio::test]
async fn a_turn_after_the_callers_deadline_is_refused_at_once_and_charged_nothing() {
    let (limiter, _) = limiter(QUEUE);
    let inner = Inner::default();
    let layer = TollgateLayer::new(Arc::clone(&limiter))
        .max_wait(Duration::from_millis(99))
        .timeout_header(HeaderName::from_static("x-timeout-ms"));
    let service = inner.behind(&layer);
    assert_eq!(send(&service, from("203.0.113.7", "/")).await.status, StatusCode::OK);
    for _ in 0..9 {
        let answer = send(&service, from("203.0.113.7", "/")).await;
        assert_eq!((answer.status, answer.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    }
    let state = limiter.request(&Descriptor::new()).peek().await;
    assert_eq!(state.remaining(), Some(5), "only the first was charged");

    let patient = inner.behind(&layer.max_wait(Duration::from_secs(1)));
    for impatient in [
        from("203.0.113.7", "/").header("x-timeout-ms", "99"),
        from("203.0.113.7", "/").extension(MaxWait(Duration::from_millis(99))),
        from("203.0.113.7", "/").version(http::Version::HTTP_2).header("grpc-timeout", "99m"),
    ] {
        assert_eq!(send(&patient, impatient).await.status, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(inner.calls(), 1);
}

#[tokio::test]
async fn who_leaves_while_held_has_spent_the_place_and_nothing_else() {
    let (limiter, clock) = limiter(QUEUE);
    let inner = Inner::default();
    let service = inner.behind(&TollgateLayer::new(Arc::clone(&limiter)));
    assert_eq!(send(&service, from("203.0.113.7", "/")).await.status, StatusCode::OK);
    let witness = Arc::new(());
    let request = from("203.0.113.7", "/").extension(Arc::clone(&witness)).body(Body::empty()).unwrap();
    let mut held = Box::pin(service.clone().oneshot(request));
    let pending = poll_fn(|context: &mut Context<'_>| Poll::Ready(held.as_mut().poll(context).is_pending()));
    assert!(pending.await, "it waits for its turn");
    drop(held);
    assert_eq!(Arc::strong_count(&witness), 1, "nothing of the request is kept");
    assert_eq!(inner.calls(), 1);
    let next = limiter.request(&Descriptor::new()).peek().await;
    assert_eq!((next.remaining(), next.delay()), (Some(4), Micros::new(200_000)));
    clock.advance(Micros::new(600_000));
    assert_eq!(send(&service, from("203.0.113.7", "/")).await.status, StatusCode::OK);
}

/// A service that must be found ready before it is called, and forgets that when it is cloned.
#[derive(Default)]
struct Shy {
    ready: bool,
    busy: Arc<AtomicBool>,
}

impl Clone for Shy {
    fn clone(&self) -> Self {
        Shy { ready: false, busy: Arc::clone(&self.busy) }
    }
}

impl Service<Request<Body>> for Shy {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        if self.busy.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        std::future::ready(if std::mem::take(&mut self.ready) {
            Err("its own error")
        } else {
            Err("not ready")
        })
    }
}

async fn is_as_ready_as_what_is_behind<S: Store>(layer: TollgateLayer<S>) {
    let shy = Shy::default();
    let mut service = layer.layer(shy.clone());
    shy.busy.store(true, Ordering::SeqCst);
    let ready = poll_fn(|context| Poll::Ready(service.poll_ready(context).is_ready())).await;
    assert!(!ready, "a busy service makes a busy gate");
    shy.busy.store(false, Ordering::SeqCst);
    for _ in 0..3 {
        let request = from("203.0.113.7", "/").body(Body::empty()).unwrap();
        let error = service.ready().await.unwrap().call(request).await.unwrap_err();
        assert_eq!(error, "its own error", "the service that was found ready is the one called");
    }
}

#[tokio::test]
async fn readiness_and_errors_are_the_inner_services() {
    is_as_ready_as_what_is_behind(TollgateLayer::new(limiter(r#"  - { key: global, limit: 10/s }"#).0)).await;
    // And where the store has to be waited for.
    let rules = rules::parse("rules.yaml", "rules: [{ key: global, limit: 1/s }]").unwrap();
    is_as_ready_as_what_is_behind(TollgateLayer::new(Limiter::new(rules, Gone(Clock::system())))).await;
}

/// A store that is never reachable.
struct Gone(Clock);

impl Store for Gone {
    async fn run(&self, call: &mut Call<'_>) -> Timestamp {
        for tier in call.tiers.iter_mut().filter(|tier| tier.is_pending()) {
            tier.outcome = Outcome::Lost(StoreError::Unreachable);
        }
        self.0.now()
    }
    async fn inspect(&self, _: &Rule, _: Key<'_>) -> Result<Option<State>, StoreError> {
        Err(StoreError::Unreachable)
    }
    async fn settle(&self, _: ReservationId, _: u64) -> Result<Settled, SettleError> {
        Err(StoreError::Unreachable.into())
    }
    fn clock(&self) -> &Clock {
        &self.0
    }
}

fn unix_secs() -> u64 {
    u64::try_from(Clock::system().now().as_micros()).unwrap() / 1_000_000
}

/// A service behind one rule whose store is never reachable.
fn without_store(inner: &Inner, policy: &str) -> Behind {
    let rule = format!("rules: [{{ name: r, key: global, limit: 2/h, on_store_failure: {policy} }}]");
    let rules = rules::parse("rules.yaml", &rule).unwrap();
    inner.behind(&TollgateLayer::new(Limiter::new(rules, Gone(Clock::system()))))
}

#[tokio::test]
async fn a_rule_that_fails_closed_answers_503_and_never_429() {
    let inner = Inner::default();
    let service = without_store(&inner, "closed");
    let answer = send(&service, from("203.0.113.7", "/")).await;
    assert_eq!((answer.status, inner.calls()), (StatusCode::SERVICE_UNAVAILABLE, 0));
    let problem = answer.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!((&problem["retry_after_ms"], &problem["violated-policies"]), (&json!(1_000), &Value::Null));
    assert_eq!((answer.header("x-ratelimit-limit"), answer.header("x-ratelimit-remaining")), ("2", "0"));
    assert_eq!(answer.header("ratelimit"), r#""r";r=0"#);
    assert!(!answer.headers.contains_key("x-ratelimit-reset"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), "1");
    let answer = send(&service, from("203.0.113.7", "/").header("content-type", "application/grpc")).await;
    assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, "14"));
}

#[tokio::test]
async fn a_rule_that_fails_open_lets_everybody_pass_and_a_local_one_a_share() {
    let inner = Inner::default();
    let open = without_store(&inner, "open");
    for _ in 0..9 {
        let before = unix_secs();
        let answer = send(&open, from("203.0.113.7", "/")).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!((answer.header("x-ratelimit-limit"), answer.header("x-ratelimit-remaining")), ("2", "2"));
        let reset: u64 = answer.header("x-ratelimit-reset").parse().unwrap();
        assert!((before..=unix_secs() + 1).contains(&reset), "now, rounded up: {answer:?}");
        assert_eq!(answer.header("ratelimit-policy"), r#""r";q=2;w=3600"#);
        assert_eq!(answer.header("ratelimit"), r#""r";r=2"#, "a full limit has no `t`");
        assert!(!answer.headers.contains_key("retry-after"), "{answer:?}");
    }
    let local = without_store(&inner, "local");
    for expected in [200, 200, 429] {
        assert_eq!(send(&local, from("203.0.113.7", "/")).await.status, expected);
    }
    assert_eq!(inner.calls(), 11);
}

#[tokio::test]
async fn shares_have_no_more_room_than_they_are_given() {
    let rule = "rules: [{ name: r, key: 'ip:{ip}', limit: 1/h, on_store_failure: local }]";
    let rules = rules::parse("rules.yaml", rule).unwrap();
    let limiter = Limiter::new(rules, Gone(Clock::system()));
    let limiter = limiter.with_local_bounds(Bounds { buckets: 64, bytes: 1 << 20 });
    let inner = Inner::default();
    let service = inner.behind(&TollgateLayer::new(limiter));
    for host in 0..200 {
        send(&service, from(&format!("203.0.113.{host}"), "/")).await;
    }
    assert!((1..100).contains(&inner.calls()), "who finds no room shares a bucket: {}", inner.calls());
}

#[tokio::test]
async fn grpc_callers_get_trailers_only() {
    let (limiter, _) = limiter(RULES);
    let inner = Inner::default();
    let service = inner.behind(&TollgateLayer::new(limiter).identify(Identify::new()));
    let call = |kind: &str| from("203.0.113.7", "/pkg.Service/Method").header("content-type", kind);
    for _ in 0..2 {
        send(&service, call("application/grpc")).await;
    }
    for (kind, answered) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("Application/gRPC;x=y", "application/grpc"),
        ("application/grpc-web-text", "application/grpc-web+proto"),
    ] {
        let answer = send(&service, call(kind)).await;
        assert_eq!((answer.status, answer.header("grpc-status")), (StatusCode::OK, "8"), "{kind}");
        assert_eq!((answer.header("content-type"), answer.body.len()), (answered, 0));
        assert_eq!(answer.header("grpc-message"), "the limit `per-address` is used up; try again in 100 ms");
        assert_eq!(answer.header("x-ratelimit-limit"), "2");
        assert!(!answer.header("grpc-status-details-bin").is_empty());
    }
    let denied = from("198.51.100.9", "/").header("content-type", "application/grpc");
    assert_eq!(send(&service, denied).await.header("grpc-status"), "7");
    assert_eq!(inner.calls(), 2);
}
