//! A running server, over its HTTP API: its rules here, its decisions in `decisions`.

mod decisions;
mod reach;
mod stats;

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use http::header::{AUTHORIZATION, CONTENT_TYPE, IF_MATCH};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tollgate::core::Draft;
use tollgate::core::rule::Mode;

use crate::rules::{Change, Edit, Entry, EntryBody, conflict, from_json};

pub(crate) use reach::{Address, ReachArgs};
pub(crate) use stats::{FailurePolicy, Stats};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// More than the largest set of rules has.
const MAX_BYTES: usize = 256 << 20;
/// The most changes that a server lists at once.
const PAGE: u32 = 100;

/// A server, by its address.
#[derive(Debug)]
pub(crate) struct Client {
    base: String,
    shown: String,
    authorization: Option<HeaderValue>,
    http: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, String>,
}

#[derive(Debug, Deserialize)]
struct RulesBody {
    source: String,
    writable: bool,
    rules: Vec<EntryBody>,
}

#[derive(Debug, Deserialize)]
struct HistoryBody {
    history: Vec<ChangeBody>,
    next: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct ChangeBody {
    id: i64,
    rule_id: i64,
    at: String,
    who: String,
    action: String,
    before: Option<Box<RawValue>>,
    after: Option<Box<RawValue>>,
}

#[derive(Debug, Deserialize)]
struct Undone {
    entry: Option<EntryBody>,
}

/// What a server says when it does not do what it was asked to.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: String,
    detail: String,
    errors: Vec<RuleProblem>,
    current: Option<EntryBody>,
}

#[derive(Debug, Deserialize)]
struct RuleProblem {
    rule: Option<String>,
    message: String,
}

/// One question.
struct Ask<'a> {
    method: Method,
    path: String,
    who: Option<&'a str>,
    version: Option<i64>,
    body: Option<String>,
}

impl<'a> Ask<'a> {
    fn get(path: impl Into<String>) -> Self {
        Ask { method: Method::GET, path: path.into(), who: None, version: None, body: None }
    }

    fn change(method: Method, path: String, who: &'a str) -> Self {
        Ask { method, path, who: Some(who), version: None, body: None }
    }
}

impl Client {
    /// What to call it.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// The text at a path.
    ///
    /// # Errors
    ///
    /// The server cannot be asked, or answers with an error.
    pub(crate) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let (status, body) = self.answer(Ask::get(path)).await?;
        let text = String::from_utf8_lossy(&body).into_owned();
        ensure!(status.is_success(), "{} answers {status}: {}", self.shown, text.trim_end());
        Ok(text)
    }

    /// Every rule.
    ///
    /// # Errors
    ///
    /// The server cannot be asked.
    pub(crate) async fn list(&self) -> anyhow::Result<Vec<Entry>> {
        let body: RulesBody = self.ask(Ask::get("/v1/rules")).await?;
        body.rules.into_iter().map(|entry| entry.entry(&self.shown)).collect()
    }

    /// Makes these changes one after the other, and gives back the rules that were added or changed.
    ///
    /// # Errors
    ///
    /// The server refuses one; how many were made before it is told.
    pub(crate) async fn apply(&self, who: &str, edits: Vec<Edit>) -> anyhow::Result<Vec<Entry>> {
        let body: RulesBody = self.ask(Ask::get("/v1/rules")).await?;
        ensure!(
            body.writable,
            "the rules of {} come from {}; change them there, the server follows",
            self.shown,
            body.source
        );
        let (mut changed, all) = (Vec::new(), edits.len());
        for (made, edit) in edits.into_iter().enumerate() {
            let entry = self.make(who, edit).await.map_err(|error| match (made, all) {
                (_, 1) => error,
                (made, all) => error.context(format!("{made} of {all} changes were made")),
            })?;
            changed.extend(entry);
        }
        Ok(changed)
    }

    async fn make(&self, who: &str, edit: Edit) -> anyhow::Result<Option<Entry>> {
        let to = |method, entry: &Entry| {
            let rule_id = entry.rule_id.with_context(|| format!("{} gave the rule no number", self.shown))?;
            let ask = Ask::change(method, format!("/v1/rules/{rule_id}"), who);
            anyhow::Ok(Ask { version: entry.version, ..ask })
        };
        let mut yours = None;
        let ask = match &edit {
            Edit::Add(draft) => {
                let ask = Ask::change(Method::POST, "/v1/rules".to_owned(), who);
                Ask { body: Some(serde_json::to_string(draft)?), ..ask }
            }
            Edit::Update(entry, draft) => {
                yours = Some(draft);
                Ask { body: Some(serde_json::to_string(draft)?), ..to(Method::PUT, entry)? }
            }
            Edit::Remove(entry) => to(Method::DELETE, entry)?,
            Edit::Disable(entry) if entry.is_off() => return Ok(Some(Entry::clone(entry))),
            Edit::Enable(entry) if !entry.is_off() => return Ok(Some(Entry::clone(entry))),
            Edit::Disable(entry) => {
                let body = json!({ "mode": Mode::Off.as_str() }).to_string();
                Ask { body: Some(body), ..to(Method::PATCH, entry)? }
            }
            Edit::Enable(entry) => {
                let body = json!({ "mode": self.mode_before(entry).await? }).to_string();
                Ask { body: Some(body), ..to(Method::PATCH, entry)? }
            }
        };
        let removes = ask.method == Method::DELETE;
        let (status, body) = self.answer(ask).await?;
        match status {
            StatusCode::PRECONDITION_FAILED => Err(self.conflict(&body, yours)),
            status if !status.is_success() => Err(self.refusal(status, &body)),
            _ if removes => Ok(None),
            _ => self.read::<EntryBody>(&body)?.entry(&self.shown).map(Some),
        }
    }

    /// The mode that a rule had before it was switched off.
    async fn mode_before(&self, entry: &Entry) -> anyhow::Result<Option<String>> {
        let is_off = |draft: &Option<Draft>| {
            draft.as_ref().is_some_and(|draft| draft.mode.as_deref() == Some(Mode::Off.as_str()))
        };
        let changes = self.history(entry.rule_id, PAGE).await?;
        let switched = changes.into_iter().find(|change| is_off(&change.after) && !is_off(&change.before));
        Ok(switched.and_then(|change| change.before?.mode))
    }

    /// What was changed, the newest first.
    ///
    /// # Errors
    ///
    /// The server cannot be asked.
    pub(crate) async fn history(&self, rule_id: Option<i64>, limit: u32) -> anyhow::Result<Vec<Change>> {
        let (mut changes, mut before) = (Vec::new(), None);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        while changes.len() < limit {
            let page = (limit - changes.len()).min(PAGE as usize);
            let mut path = format!("/v1/rules/history?limit={page}");
            path.extend(rule_id.map(|rule_id| format!("&rule_id={rule_id}")));
            path.extend(before.map(|before: i64| format!("&before={before}")));
            let body: HistoryBody = self.ask(Ask::get(path)).await?;
            for change in body.history {
                changes.push(self.change(change)?);
            }
            before = body.next;
            if before.is_none() {
                break;
            }
        }
        Ok(changes)
    }

    fn change(&self, change: ChangeBody) -> anyhow::Result<Change> {
        let draft =
            |json: Option<Box<RawValue>>| json.map(|json| from_json(&self.shown, json.get())).transpose();
        let ChangeBody { id, rule_id, at, who, action, before, after } = change;
        Ok(Change { id, rule_id, at, who, action, before: draft(before)?, after: draft(after)? })
    }

    /// Brings a rule back to what it was before a change.
    ///
    /// # Errors
    ///
    /// There is no such change, or the rule was changed since.
    pub(crate) async fn undo(&self, who: &str, id: i64) -> anyhow::Result<Option<Entry>> {
        let ask = Ask::change(Method::POST, format!("/v1/rules/history/{id}/undo"), who);
        let undone: Undone = self.ask(ask).await?;
        undone.entry.map(|entry| entry.entry(&self.shown)).transpose()
    }

    /// Whether these rules would make a set.
    ///
    /// # Errors
    ///
    /// They would not, and why.
    pub(crate) async fn preview(&self, drafts: &[Draft]) -> anyhow::Result<()> {
        let body = json!({ "rules": drafts }).to_string();
        let ask = Ask { method: Method::POST, body: Some(body), ..Ask::get("/v1/rules/preview") };
        self.ask::<Value>(ask).await.map(|_| ())
    }

    async fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>) -> anyhow::Result<T> {
        let (status, body) = self.answer(ask).await?;
        match status {
            StatusCode::PRECONDITION_FAILED => Err(self.conflict(&body, None)),
            status if !status.is_success() => Err(self.refusal(status, &body)),
            _ => self.read(&body),
        }
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> anyhow::Result<T> {
        serde_json::from_slice(body)
            .with_context(|| format!("{} answers, but not as a tollgate of this version does", self.shown))
    }

    async fn answer(&self, ask: Ask<'_>) -> anyhow::Result<(StatusCode, Vec<u8>)> {
        let mut request = Request::builder().method(ask.method).uri(format!("{}{}", self.base, ask.path));
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(who) = ask.who {
            request = request.header("tollgate-actor", who);
        }
        if let Some(version) = ask.version {
            request = request.header(IF_MATCH, format!("\"{version}\""));
        }
        if ask.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(ask.body.unwrap_or_default())?;
        let exchange = async {
            let answer = self.http.request(request).await.map_err(|error| self.unreachable(error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
            let body = body.map_err(|error| anyhow!("the answer of {} broke off: {error}", self.shown))?;
            Ok((status, body.to_bytes().to_vec()))
        };
        match tokio::time::timeout(PATIENCE, exchange).await {
            Ok(answer) => answer,
            Err(_) => bail!("{} gave no answer within {PATIENCE:?}", self.shown),
        }
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

    fn refusal(&self, status: StatusCode, body: &[u8]) -> anyhow::Error {
        let Problem { title, detail, errors, .. } = serde_json::from_slice(body).unwrap_or_default();
        if !errors.is_empty() {
            let line = |RuleProblem { rule, message }: &RuleProblem| match rule {
                Some(rule) => format!("{}: rule `{rule}`: {message}", self.shown),
                None => format!("{}: {message}", self.shown),
            };
            return anyhow!(errors.iter().map(line).collect::<Vec<_>>().join("\n"));
        }
        match [detail, title].into_iter().find(|said| !said.is_empty()) {
            Some(said) => anyhow!("{}: {said}", self.shown),
            None => anyhow!("{} answers {status}; is it a tollgate of this version?", self.shown),
        }
    }

    fn conflict(&self, body: &[u8], yours: Option<&Draft>) -> anyhow::Error {
        let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
        let theirs = problem.current.and_then(|current| current.entry(&self.shown).ok());
        let said = match problem.detail.as_str() {
            "" => "somebody changed the rule meanwhile; look at it and try again",
            said => said,
        };
        conflict(said, yours, theirs.as_ref().map(|theirs| &theirs.draft))
    }
}

/// What TLS did not like, however deep it is wrapped.
fn of_tls<'e>(cause: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    match cause.downcast_ref().and_then(std::io::Error::get_ref) {
        Some(inner) => of_tls(inner),
        None => cause.downcast_ref(),
    }
}
