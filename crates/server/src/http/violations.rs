//! `GET /v1/violations`: refusals on record, newest first, a page at a time.

use std::net::IpAddr;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use tollgate::Timestamp;
use tollgate::audit::{Cursor, MAX_PAGE, ViolationFilter, ViolationPage, instant};
use utoipa::ToSchema;

use super::App;
use super::problem::Problem;
use super::query::Query;

const KNOWN: [&str; 8] = ["user_id", "ip", "endpoint", "rule", "since", "until", "cursor", "limit"];

/// A page of violations in the document.
#[derive(ToSchema)]
#[schema(as = ViolationPage)]
#[expect(dead_code, reason = "only its schema is used")]
struct PageBody {
    violations: Vec<ViolationBody>,
    /// What to give as `cursor` for the next page.
    #[schema(required)]
    next: Option<String>,
}

/// A violation in the document: refusals of one bucket within one second.
#[derive(ToSchema)]
#[schema(as = Violation)]
#[expect(dead_code, reason = "only its schema is used")]
struct ViolationBody {
    violation_id: i64,
    bucket_key: String,
    #[schema(required)]
    user_id: Option<String>,
    #[schema(required)]
    ip_address: Option<String>,
    #[schema(required)]
    endpoint: Option<String>,
    requested_at: String,
    /// What the bucket had left when the first of them asked, with at most 6 decimals.
    tokens_at_time: f64,
    #[schema(required)]
    rule_id: Option<i64>,
    rule_name: String,
    count: u64,
}

/// List refusals on record, the newest first.
#[utoipa::path(get, operation_id = "list_violations", path = "/v1/violations", tag = "operating",
    params(
        ("user_id" = Option<String>, Query, description = "whose"),
        ("ip" = Option<String>, Query, description = "from where"),
        ("endpoint" = Option<String>, Query, description = "for what"),
        ("rule" = Option<String>, Query, description = "by which rule"),
        ("since" = Option<String>, Query, description = "not before: a time, or how long ago (`1h`)"),
        ("until" = Option<String>, Query, description = "before: a time, or how long ago"),
        ("cursor" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<i64>, Query, minimum = 1, maximum = 1000, description = "how many at most; 100 without it")),
    responses(
        (status = 200, description = "a page", body = PageBody),
        (status = 400, description = "a parameter that does not fit"),
        (status = 404, description = "none are recorded"),
        (status = 503, description = "the database gave no answer"),
    ))]
pub(super) async fn list(State(app): State<App>, uri: Uri) -> Result<Json<ViolationPage>, Problem> {
    let filter = filter(&Query::parse(&uri, &KNOWN)?, app.limiter.clock().now())?;
    let Some(log) = &*app.violations else {
        return Err(Problem::missing("no violations are recorded: this server has no database"));
    };
    log.find(&filter).await.map(Json).map_err(|error| Problem::database(&error))
}

fn filter(query: &Query, now: Timestamp) -> Result<ViolationFilter, Problem> {
    let usual = ViolationFilter::default();
    let owned = |name| query.text(name).map(str::to_owned);
    let most = i64::try_from(MAX_PAGE).unwrap_or(i64::MAX);
    let limit = query.number("limit", 1..=most)?.and_then(|limit| usize::try_from(limit).ok());
    let address = |text: &str| text.parse::<IpAddr>().map(|address| address.to_string());
    let ip = read(query, "ip", |text| address(text).map_err(|_| "expected an IP address"))?;
    Ok(ViolationFilter {
        user_id: owned("user_id"),
        ip,
        endpoint: owned("endpoint"),
        rule: owned("rule"),
        since: read(query, "since", |text| instant(text, now))?,
        until: read(query, "until", |text| instant(text, now))?,
        cursor: read(query, "cursor", str::parse::<Cursor>)?,
        limit: limit.unwrap_or(usual.limit),
    })
}

/// A parameter that is more than text.
fn read<T, E: std::fmt::Display>(
    query: &Query,
    name: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<Option<T>, Problem> {
    let Some(text) = query.text(name) else { return Ok(None) };
    read(text).map(Some).map_err(|error| Problem::bad_query(name, format!("`{name}`: {error}, not `{text}`")))
}
