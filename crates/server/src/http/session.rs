//! `/v1/session` and `/v1/login-link`: signing in to the dashboard, and out.

use std::io;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::header::{ORIGIN, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::ask::Sent;
use super::auth::{Caller, Unlabelled, cookie_name, peer, sends_json, session_cookie, unauthorized};
use super::problem::{Problem, Problems};
use super::sessions::{CODE_LIFETIME, Kind, SESSION_LIFETIME};
use super::tokens::digest;

/// What somebody signs in with: one of the two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Login {
    /// The code of a login link; it is valid once.
    code: Option<String>,
    /// The secret of a token.
    token: Option<String>,
}

/// Who is signed in.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionBody {
    /// The name of the token.
    name: String,
    /// Its role: `read` or `write`.
    role: &'static str,
}

/// A code to sign in with.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LoginLink {
    /// The path of the dashboard with the code.
    path: String,
    expires_in_ms: u64,
}

impl From<&Caller> for SessionBody {
    fn from(caller: &Caller) -> Self {
        SessionBody { name: caller.name.to_string(), role: caller.role.as_str() }
    }
}

/// Sign in to the dashboard.
///
/// Exchanges the code of a login link, or a token, for a session cookie that is valid for 12 hours and ends with its token.
#[utoipa::path(post, operation_id = "sign_in", path = "/v1/session", tag = "operating", request_body = Login,
    responses(
        (status = 200, description = "signed in; the cookie is in `Set-Cookie`", body = SessionBody),
        (status = 401, description = "the code is used up or expired, or the token is not known"),
        (status = 403, description = "sent by a page of another origin, or a token without the role `read` or `write`"),
        (status = 415, description = "not JSON"),
        (status = 421, description = "sent to a host name that is not this server's"),
        (status = 429, description = "too many wrong tokens came from this address"),
        Problems,
    ))]
pub(super) async fn sign_in(
    State(app): State<App>,
    parts: Parts,
    Sent(body): Sent,
) -> Result<Response, Problem> {
    let Parts { method, uri, headers, extensions, .. } = &parts;
    sends_json(method, headers)?;
    app.auth.require_own_page(method, headers, uri, Unlabelled::Accepted)?;
    let example = "{\"code\": \"…\"} or {\"token\": \"…\"}";
    let (token, wrong) = match Problem::parse::<Login>(&body, example)? {
        Login { code: Some(code), token: None } => {
            let used = "the login link is used up or expired; `tollgate dashboard` prints a new one";
            (app.auth.sessions.take(Kind::Code, &code), used)
        }
        Login { code: None, token: Some(token) } => {
            (Some(digest(token.as_bytes())), "the token is not known here; look for it in the token file")
        }
        _ => return Err(Problem::bad_body("", format!("expected {example}"))),
    };
    let Some(caller) = token.and_then(|token| app.auth.token(&token)) else {
        return Err(app.auth.wrong_secret(peer(extensions), unauthorized(wrong)).await);
    };
    if !caller.role.allows(super::tokens::Role::Read) {
        let detail = format!(
            "the token `{}` has the role `{}`; the dashboard needs one with the role {}",
            caller.name,
            caller.role,
            super::tokens::Role::Read.accepted()
        );
        return Err(Problem::new(StatusCode::FORBIDDEN, "not with this token", detail));
    }
    let session = app.auth.sessions.issue(Kind::Session, caller.token).map_err(no_randomness)?;
    let cookie = cookie(headers, uri, &session, SESSION_LIFETIME.ceil_secs());
    Ok(([(SET_COOKIE, cookie)], Json(SessionBody::from(&caller))).into_response())
}

/// Ask who is signed in.
#[utoipa::path(get, operation_id = "get_session", path = "/v1/session", tag = "operating",
    responses((status = 200, description = "the token that the request stands for", body = SessionBody)))]
pub(super) async fn session(Extension(caller): Extension<Caller>) -> Json<SessionBody> {
    Json(SessionBody::from(&caller))
}

/// Sign out of the dashboard.
#[utoipa::path(delete, operation_id = "sign_out", path = "/v1/session", tag = "operating",
    responses(
        (status = 204, description = "the session, if there was one, has ended"),
        (status = 403, description = "sent by a page of another origin"),
        (status = 421, description = "sent to a host name that is not this server's"),
    ))]
pub(super) async fn sign_out(
    State(app): State<App>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    app.auth.require_own_page(&Method::DELETE, &headers, &uri, Unlabelled::Accepted)?;
    if let Some(session) = session_cookie(&headers, &uri) {
        app.auth.sessions.take(Kind::Session, session);
    }
    Ok((StatusCode::NO_CONTENT, [(SET_COOKIE, cookie(&headers, &uri, "", 0))]).into_response())
}

/// Make a login link for the token of the request.
#[utoipa::path(post, operation_id = "login_link", path = "/v1/login-link", tag = "operating",
    responses((status = 200, description = "a path of the dashboard that signs in once, within 10 minutes", body = LoginLink)))]
pub(super) async fn login_link(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<LoginLink>, Problem> {
    let path = app.login_path(caller.token).map_err(no_randomness)?;
    Ok(Json(LoginLink { path, expires_in_ms: CODE_LIFETIME.ceil_millis() }))
}

impl App {
    /// A path of the dashboard that signs in as the server's own token, once and within 10 minutes; none without such a token.
    #[must_use]
    pub fn own_login_path(&self) -> Option<String> {
        self.login_path(self.auth.own_token()?).ok()
    }

    fn login_path(&self, token: super::tokens::Digest) -> io::Result<String> {
        // Behind the `#`, it is in no request and so in no log of a proxy.
        Ok(format!("/#/login/{}", self.auth.sessions.issue(Kind::Code, token)?))
    }
}

/// A page served over https, here or by a proxy in front, says so in its origin.
fn cookie(headers: &HeaderMap, uri: &Uri, session: &str, max_age: u64) -> HeaderValue {
    let is_https = headers.get(ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https:"));
    let secure = if is_https { "; Secure" } else { "" };
    let name = cookie_name(headers, uri);
    let text = format!("{name}={session}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(text).expect("a name and a secret of plain characters")
}

fn no_randomness(error: io::Error) -> Problem {
    tracing::error!(%error, "the system has no random numbers");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "no random numbers",
        "the system has no random numbers; try again",
    )
}
