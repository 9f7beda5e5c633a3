//! `GET /v1/events`: what happens, as it happens (server-sent events).

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use futures_util::{FutureExt as _, stream};
use serde::Serialize;
use tollgate::{Descriptor, Micros};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::decisions::millis;
use super::problem::Problem;
use super::query::Query;
use crate::api::counted;
use crate::record::Recorded;
use crate::record::events::{Hangup, Hub, Kind, Listener, MOST_LISTENERS};
use crate::record::second_of;

/// Where events are heard.
pub(crate) const EVENTS: &str = "/v1/events";
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// How often the newest decision and the newest violation are told: 20 of each in a second.
const EVERY: Duration = Duration::from_millis(50);
/// A stream on which nothing happens says so, so that nobody takes it for dead.
const QUIET: Duration = Duration::from_secs(15);

/// Which events to hear.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only its schema is used")]
pub(super) struct EventsQuery {
    /// Some of `stats`, `decision`, `violation`, `rules`, `store`, with commas between them; all without it.
    only: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct StatsEvent {
    second: u64,
    allowed: u64,
    refused: u64,
    degraded: u64,
    p50_us: f64,
    p99_us: f64,
    store_up: bool,
}

#[derive(Debug, Serialize)]
struct DecisionEvent<'a> {
    decision_id: &'a str,
    at_ms: i64,
    outcome: &'static str,
    rule: Option<&'a str>,
    key: Option<String>,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ViolationEvent<'a> {
    at_ms: i64,
    decision_id: &'a str,
    rule: Option<&'a str>,
    key: Option<String>,
    user_id: Option<Cow<'a, str>>,
    ip: Option<Cow<'a, str>>,
    endpoint: Option<Cow<'a, str>>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct RulesEvent {
    version: Option<String>,
    count: usize,
    error: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct StoreEvent {
    up: bool,
    reason: Option<&'static str>,
}

/// Hear what happens, as it happens.
#[utoipa::path(get, path = "/v1/events", tag = "operating",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header, description = "what was heard last, to hear what was missed")),
    responses((status = 200, description = "server-sent events, until somebody hangs up", body = String,
            content_type = "text/event-stream"),
        (status = 400, description = "a parameter that does not fit"),
        (status = 503, description = "too many listen already")))]
pub(super) async fn events(
    State(app): State<App>,
    hangup: Option<Extension<Hangup>>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let query = Query::parse(&uri, &["only"])?;
    let kinds = kinds(query.text("only"))?;
    let last = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let Extension(hangup) = hangup.unwrap_or_default();
    let Some(listener) = app.events.listen(last, hangup) else {
        let detail = format!("{MOST_LISTENERS} clients listen already, all of them new; try again later");
        return Err(
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many listeners", detail).retry_after(5)
        );
    };
    if app.events.begin() {
        tokio::spawn(Watch::new(&app).run(app.downgraded()));
    }
    let stream = stream::unfold(listener, move |mut listener| {
        let kinds = kinds.clone();
        async move { heard(&mut listener, &kinds).await.map(|text| (Ok::<_, Infallible>(text), listener)) }
    });
    let mut response = Response::new(Body::from_stream(stream));
    let told = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // nginx would keep the events until there are many.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    response.headers_mut().extend(told);
    Ok(response)
}

/// The next event of interest, or a sign of life.
async fn heard(listener: &mut Listener, kinds: &[Kind]) -> Option<Bytes> {
    let of_interest = async {
        loop {
            let event = listener.next().await?;
            if kinds.contains(&event.kind) {
                return Some(event.text.clone());
            }
        }
    };
    match tokio::time::timeout(QUIET, of_interest).await {
        Ok(event) => event,
        Err(_) => Some(Bytes::from_static(b": nothing new\n\n")),
    }
}

fn kinds(only: Option<&str>) -> Result<Vec<Kind>, Problem> {
    let Some(only) = only else { return Ok(Kind::ALL.to_vec()) };
    let kind = |word: &str| {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == word.trim()).ok_or_else(|| {
            let all = Kind::ALL.map(Kind::as_str).join(", ");
            Problem::bad_query("only", format!("`only` is some of {all}, not `{word}`"))
        })
    };
    only.split(',').map(kind).collect()
}

/// What was told last, to see what is new.
struct Watch {
    hub: Arc<Hub>,
    decision: u64,
    violation: u64,
    second: u64,
    rules: RulesEvent,
    store: StoreEvent,
}

impl Watch {
    fn new(app: &App) -> Self {
        Watch {
            hub: Arc::clone(&app.events),
            decision: app.recorder.recorded(),
            violation: app.recorder.newest_violation(),
            second: second_of(app.limiter.clock().now()),
            rules: RulesEvent::of(app),
            store: StoreEvent::of(app),
        }
    }

    /// Looks around now and then, until the server stops or is gone.
    async fn run(mut self, app: super::WeakApp) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let hub = Arc::clone(&self.hub);
        let mut closing = std::pin::pin!(hub.closing());
        loop {
            tokio::select! {
                _ = ticks.tick() => match app.upgrade() {
                    Some(app) => self.look(&app),
                    None => return,
                },
                () = &mut closing => return,
            }
        }
    }

    fn look(&mut self, app: &App) {
        let (newest, violation) = (app.recorder.recorded(), app.recorder.newest_violation());
        if newest != self.decision
            && let Some(recorded) = app.recorder.get(newest)
        {
            self.decision = newest;
            self.hub.publish(Kind::Decision, &DecisionEvent::of(&recorded, &recorded.request()));
        }
        if violation != self.violation
            && let Some(recorded) = app.recorder.get(violation)
        {
            self.violation = violation;
            self.hub.publish(Kind::Violation, &ViolationEvent::of(&recorded, &recorded.request()));
        }
        let now = app.limiter.clock().now();
        if second_of(now) != self.second {
            self.hub.publish(Kind::Stats, &StatsEvent::of(app, self.second));
            self.second = second_of(now);
            self.look_around(app);
        }
    }

    /// What changes rarely.
    fn look_around(&mut self, app: &App) {
        let (rules, store) = (RulesEvent::of(app), StoreEvent::of(app));
        if rules != self.rules {
            self.hub.publish(Kind::Rules, &rules);
            self.rules = rules;
        }
        if store != self.store {
            self.hub.publish(Kind::Store, &store);
            self.store = store;
        }
        self.hub.drop_stragglers();
    }
}

impl StatsEvent {
    fn of(app: &App, second: u64) -> Self {
        let counts = app.recorder.second(second);
        let latency = app.recorder.latency(app.limiter.clock().now());
        StatsEvent {
            second,
            allowed: counts.allowed,
            refused: counts.refused,
            degraded: counts.degraded,
            p50_us: latency.p50,
            p99_us: latency.p99,
            store_up: StoreEvent::of(app).up,
        }
    }
}

impl<'a> DecisionEvent<'a> {
    fn of(recorded: &'a Recorded, request: &'a Descriptor<'_>) -> Self {
        let (answer, rule) = (&recorded.answer, recorded.binding_rule());
        DecisionEvent {
            decision_id: recorded.id(),
            at_ms: millis(answer.at()),
            outcome: answer.status().as_str(),
            rule: rule.map(|rule| rule.label_in(Some(request))),
            key: rule.map(|rule| rule.key(request).to_string()),
            remaining: answer.binding_limit().and_then(counted),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
        }
    }
}

impl<'a> ViolationEvent<'a> {
    fn of(recorded: &'a Recorded, request: &'a Descriptor<'_>) -> Self {
        let rule = recorded.binding_rule();
        ViolationEvent {
            at_ms: millis(recorded.answer.at()),
            decision_id: recorded.id(),
            rule: rule.map(|rule| rule.label_in(Some(request))),
            key: rule.map(|rule| rule.key(request).to_string()),
            user_id: request.text("user_id"),
            ip: request.text("ip"),
            endpoint: request.text("endpoint"),
        }
    }
}

impl RulesEvent {
    fn of(app: &App) -> Self {
        let report = app.report();
        RulesEvent {
            version: report.as_ref().map(|report| report.version.clone()),
            count: app.limiter.rules().rules().len(),
            error: report.and_then(|report| report.error),
        }
    }
}

impl StoreEvent {
    fn of(app: &App) -> Self {
        match app.limiter.store().redis() {
            Some(store) if !store.stats().up => {
                let why = store.ready().now_or_never().and_then(Result::err);
                StoreEvent { up: false, reason: Some(why.map_or("unreachable", |error| error.reason())) }
            }
            _ => StoreEvent { up: true, reason: None },
        }
    }
}
