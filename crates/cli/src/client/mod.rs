//! The HTTP API: of a running server, or in this process over rules from elsewhere. Commands do not know which.

mod connect;
mod reach;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper_rustls::HttpsConnector;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tollgate::{Bounds, Clock, Limiter, MemoryStore, RuleSet};
use tollgate_server::api::{Decision, Problem};
use tollgate_server::{App, InProcess, RulesHome};

use connect::Connector;
pub(crate) use reach::{Address, Plane, ReachArgs, ServerArgs, login_link};

/// How long a server may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// More than the largest set of rules has.
const MAX_BYTES: usize = 256 << 20;

/// The API somewhere.
#[derive(Debug)]
pub(crate) struct Client {
    shown: String,
    transport: Transport,
}

#[derive(Debug)]
enum Transport {
    Http(Box<Http>),
    InProcess(InProcess),
}

/// A running server.
#[derive(Debug)]
struct Http {
    base: String,
    authorization: Option<HeaderValue>,
    client: hyper_util::client::legacy::Client<HttpsConnector<Connector>, String>,
}

#[derive(Debug, Deserialize)]
struct LoginLink {
    path: String,
}

/// An answer that is not a success.
#[derive(Debug, thiserror::Error)]
#[error("{told}")]
pub(crate) struct Refused {
    told: String,
    /// What the API says, where it says anything.
    pub(crate) problem: Box<Problem>,
    pub(crate) status: StatusCode,
}

impl Client {
    /// The API of an application in this process.
    pub(crate) fn in_process(app: App, shown: impl Into<String>) -> Self {
        Client { shown: shown.into(), transport: Transport::InProcess(InProcess::new(app, &actor())) }
    }

    /// What to call it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether it is a running server.
    pub(crate) const fn is_server(&self) -> bool {
        matches!(self.transport, Transport::Http(_))
    }

    /// The text at a path.
    ///
    /// # Errors
    ///
    /// It cannot be reached, or answers with an error.
    pub(crate) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let (status, body) = self.answer(Method::GET, path, String::new()).await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        ensure!(status.is_success(), "{} answers {status}: {}", self.shown, text.trim_end());
        Ok(text)
    }

    /// A link that signs in to the dashboard.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text).
    pub(crate) async fn login_link(&self) -> anyhow::Result<String> {
        let link: LoginLink = self.post("/v1/login-link", &serde_json::json!({})).await?;
        Ok(login_link(&self.shown, &link.path))
    }

    /// The JSON at a path.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text).
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.read(self.answer(Method::GET, path, String::new()).await?)
    }

    /// The answer to a JSON body.
    ///
    /// # Errors
    ///
    /// As [`text`](Self::text).
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        self.read(self.answer(Method::POST, path, serde_json::to_string(body)?).await?)
    }

    /// The answer to a check, whatever it is.
    ///
    /// # Errors
    ///
    /// It cannot be reached, or the request is wrong.
    pub(crate) async fn check(&self, body: &impl Serialize) -> anyhow::Result<Decision<'static>> {
        let (status, body) = self.answer(Method::POST, "/v1/check", serde_json::to_string(body)?).await?;
        let decides = [
            StatusCode::OK,
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::FORBIDDEN,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        // A proxy in between may have the same statuses.
        match serde_json::from_slice(&body) {
            Ok(decision) if decides.contains(&status) => Ok(decision),
            _ => Err(self.refusal(status, &body).into()),
        }
    }

    fn read<T: DeserializeOwned>(&self, (status, body): (StatusCode, Vec<u8>)) -> anyhow::Result<T> {
        if !status.is_success() {
            return Err(self.refusal(status, &body).into());
        }
        serde_json::from_slice(&body)
            .with_context(|| format!("{} answers, but not as a tollgate of this version does", self.shown))
    }

    fn refusal(&self, status: StatusCode, body: &[u8]) -> Refused {
        let shown = &self.shown;
        let problem: Box<Problem> = serde_json::from_slice(body).unwrap_or_default();
        let mistakes = problem.errors.iter().flatten().map(|mistake| match &mistake.rule {
            Some(rule) => format!("{shown}: rule `{rule}`: {}", mistake.message),
            None => format!("{shown}: {}", mistake.message),
        });
        let mistakes: Vec<String> = mistakes.collect();
        let is_anonymous = matches!(&self.transport, Transport::Http(http) if http.authorization.is_none());
        let told = match [&problem.detail, &problem.title].into_iter().find(|told| !told.is_empty()) {
            _ if !mistakes.is_empty() => mistakes.join("\n"),
            _ if status == StatusCode::UNAUTHORIZED && is_anonymous => format!(
                "{shown} needs a token: name a token file with --token-file, or the data directory of a server on this \
                 machine with --data-dir"
            ),
            Some(told) => format!("{shown}: {told}"),
            None => format!("{shown} answers {status}; is it a tollgate of this version?"),
        };
        Refused { told, problem, status }
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> anyhow::Result<(StatusCode, Vec<u8>)> {
        let request = Request::builder().method(method);
        let request = request.header(CONTENT_TYPE, "application/json");
        match &self.transport {
            Transport::InProcess(api) => {
                let answer = api.send(request.uri(path).body(body)?).await?;
                Ok((answer.status(), answer.into_body().to_vec()))
            }
            Transport::Http(http) => {
                let mut request = request.uri(format!("{}{path}", http.base));
                if let Some(authorization) = &http.authorization {
                    request = request.header(AUTHORIZATION, authorization);
                }
                match tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(http, request.body(body)?)).await {
                    Ok(answer) => answer,
                    Err(_) => bail!("{} gave no answer within {ANSWER_TIMEOUT:?}", self.shown),
                }
            }
        }
    }

    async fn exchange(&self, http: &Http, request: Request<String>) -> anyhow::Result<(StatusCode, Vec<u8>)> {
        let answer = http.client.request(request).await.map_err(|error| self.unreachable(error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
        let body = body.map_err(|error| anyhow!("the answer of {} broke off: {error}", self.shown))?;
        Ok((status, body.to_bytes().to_vec()))
    }

    fn unreachable(&self, error: hyper_util::client::legacy::Error) -> anyhow::Error {
        let error = anyhow::Error::from(error);
        let way_out = match error.chain().find_map(of_tls) {
            Some(rustls::Error::InvalidCertificate(_)) => "name the authority to trust with --server-ca",
            Some(rustls::Error::AlertReceived(_)) => {
                "if it asks for a certificate, show one with --server-cert and --server-key"
            }
            Some(rustls::Error::InvalidMessage(_)) => "if it does not speak TLS, write http://",
            _ => "is `tollgate serve` running there? name another with --server",
        };
        error.context(format!("cannot reach {}; {way_out}", self.shown))
    }
}

/// An application for this process that decides by these rules. Nothing was counted before, and time stands still: answers do
/// not depend on the machine's speed.
pub(crate) fn app(rules: RuleSet, home: RulesHome) -> App {
    let now = Clock::manual(Clock::system().now());
    let store = MemoryStore::with(now, Bounds::default());
    App::new(Arc::new(Limiter::new(rules, store.into())), home)
}

/// A text as a part of a path or a query.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Who changes rules: the user of this terminal.
fn actor() -> String {
    let name = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_graphic).take(100).collect();
    if name.is_empty() { "cli".to_owned() } else { name }
}

/// The error of TLS, however deep it is wrapped.
fn of_tls<'e>(cause: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    match cause.downcast_ref().and_then(std::io::Error::get_ref) {
        Some(inner) => of_tls(inner),
        None => cause.downcast_ref(),
    }
}
