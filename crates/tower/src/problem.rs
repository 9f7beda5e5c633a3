//! Errors as `application/problem+json`: what is wrong, where, and what was expected.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use tollgate::core::rule::InvalidCost;
use tollgate::{Answer, Micros, ReserveError, Status, Tier};

/// A limit is used up.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
/// The store gave no answer, and a rule fails closed.
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The body of an answer that is no success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "code")]
    status: StatusCode,
    detail: String,
    /// Where in the body, as in `attributes.user_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(flatten)]
    violation: Option<Violation>,
}

/// What a refusal says beyond other problems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Violation {
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    policies: Vec<String>,
    /// Null when no wait helps.
    retry_after_ms: Option<u64>,
    decision_id: String,
}

fn code<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    /// A problem of the usual kind, which its status tells.
    pub fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Problem { kind: "about:blank", title, status, detail: detail.into(), path: None, violation: None }
    }

    /// The same problem, with where in the request's body it is.
    #[must_use]
    pub fn at(self, path: impl Into<String>) -> Self {
        Problem { path: Some(path.into()), ..self }
    }

    /// A decision that does not admit its request, and the id of the decision.
    pub fn refusal(answer: &Answer, decision_id: String) -> Self {
        if let Some(error) = answer.invalid_cost() {
            return Self::invalid_cost(error);
        }
        let problem = match answer.status() {
            Status::Denied => Self::new(StatusCode::FORBIDDEN, "denied", "a rule denies this request"),
            Status::Unavailable => Problem {
                kind: REDUCED_CAPACITY,
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "no decision", unavailable(answer))
            },
            Status::Allowed | Status::Refused | Status::Invalid => Problem {
                kind: QUOTA_EXCEEDED,
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, "quota exceeded", exceeded(answer))
            },
        };
        let violation = Violation {
            policies: violated(answer),
            retry_after_ms: answer.retry_after().map(Micros::ceil_millis),
            decision_id,
        };
        Problem { violation: Some(violation), ..problem }
    }

    /// A request whose cost attribute is invalid. It is not a decision, so it has no name and violates no policy.
    pub fn invalid_cost(error: &InvalidCost) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "the cost is invalid", error.to_string())
    }

    /// A request that could have passed, but not be settled, and the name of the decision.
    pub(crate) fn unkept(error: &ReserveError, retry_after: Micros, decision_id: String) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "no reservation", error.to_string());
        let retry_after_ms = Some(retry_after.ceil_millis());
        let violation = Violation { policies: Vec::new(), retry_after_ms, decision_id };
        Problem { kind: REDUCED_CAPACITY, violation: Some(violation), ..problem }
    }

    /// The status it is answered with.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Where in the request it is, if that is known.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// What is wrong, for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The answer.
    pub fn into_response(self) -> Response<Vec<u8>> {
        // Text and numbers: there is nothing in it that JSON cannot say.
        let mut response = Response::new(serde_json::to_vec(&self).unwrap_or_default());
        *response.status_mut() = self.status;
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// Every rule that refused; none where the store gave no answer.
fn violated(answer: &Answer) -> Vec<String> {
    let refused = |tier: &&Tier| tier.refuses() && answer.status() != Status::Unavailable;
    let label = |tier: &Tier| answer.rules().rule(tier.rule).label().to_owned();
    answer.tiers().iter().filter(refused).map(label).collect()
}

fn unavailable(answer: &Answer) -> String {
    let reason = answer.degraded().map_or("unknown", |degraded| degraded.reason);
    format!("the store gave no answer ({reason}), and a rule lets nothing pass without one")
}

/// Which limit it is, and what to do about it.
fn exceeded(answer: &Answer) -> String {
    let rule = answer.rule().unwrap_or_default();
    match answer.retry_after().map(Micros::ceil_millis) {
        Some(wait) => format!("the limit `{rule}` is used up; try again in {wait} ms"),
        None => format!("this request costs more than the limit `{rule}` ever has to give"),
    }
}
