//! Decisions of a running server.

use anyhow::Context as _;
use http::{Method, StatusCode};

use super::{Ask, Client};
use crate::decided::{Decided, Explained};

impl Client {
    /// Has a request decided and charged; the answer, and its text as the server wrote it.
    ///
    /// # Errors
    ///
    /// The server cannot be asked, or says what is wrong with the request.
    pub(crate) async fn check(&self, body: &str) -> anyhow::Result<(Decided, String)> {
        let ask = Ask { method: Method::POST, body: Some(body.to_owned()), ..Ask::get("/v1/check") };
        let (status, answer) = self.answer(ask).await?;
        match status {
            StatusCode::OK
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::FORBIDDEN
            | StatusCode::SERVICE_UNAVAILABLE => {}
            status => return Err(self.refusal(status, &answer)),
        }
        // The same statuses may be somebody else's, with a problem.
        let Ok(decided) = serde_json::from_slice(&answer) else { return Err(self.refusal(status, &answer)) };
        Ok((decided, text(answer)?))
    }

    /// Has a request explained; nothing is charged.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub(crate) async fn explain(&self, body: &str) -> anyhow::Result<(Explained, String)> {
        let ask = Ask { method: Method::POST, body: Some(body.to_owned()), ..Ask::get("/v1/explain") };
        self.explained(ask).await
    }

    /// Looks a decision up by its name.
    ///
    /// # Errors
    ///
    /// The server cannot be asked, or no longer knows it.
    pub(crate) async fn decision(&self, id: &str) -> anyhow::Result<(Explained, String)> {
        self.explained(Ask::get(format!("/v1/decisions/{id}"))).await
    }

    async fn explained(&self, ask: Ask<'_>) -> anyhow::Result<(Explained, String)> {
        let (status, answer) = self.answer(ask).await?;
        if !status.is_success() {
            return Err(self.refusal(status, &answer));
        }
        Ok((self.read(&answer)?, text(answer)?))
    }
}

fn text(answer: Vec<u8>) -> anyhow::Result<String> {
    let text = String::from_utf8(answer).context("the answer is not UTF-8")?;
    Ok(text.trim_end().to_owned())
}
