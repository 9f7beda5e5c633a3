//! What an answer means, or the lack of one.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::doctor::reason;
use crate::store::StoreError;

/// What a node says to a command.
#[derive(Debug)]
pub(super) enum Outcome<T> {
    /// It did it.
    Done(T),
    /// It did nothing.
    Elsewhere(Redirect),
}

/// Why a node of a Cluster did nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot belongs to that node.
    Moved(String),
    /// The key is on its way to that node, or there already.
    Ask(String),
    /// It may work in a moment.
    Later(StoreError),
}

impl Redirect {
    pub(super) fn of(error: &RedisError) -> Option<Self> {
        let ErrorKind::Server(kind) = error.kind() else { return None };
        let node = || error.redirect_node().map(|(address, _)| address.to_owned());
        match kind {
            ServerErrorKind::Moved => node().map(Redirect::Moved),
            ServerErrorKind::Ask => node().map(Redirect::Ask),
            ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::BusyLoading => {
                Some(Redirect::Later(StoreError::rejected(error.code().unwrap_or_default())))
            }
            _ => None,
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Refusal {
    NoConnection(StoreError),
    Redis(RedisError),
}

/// Why a command failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Whether the connection is of no more use.
    pub(super) broken: bool,
    /// What went wrong and what to do about it, in the words of `doctor`, where more is known than the error says.
    pub(super) detail: Option<String>,
}

impl Failure {
    pub(super) const fn quick(error: StoreError) -> Self {
        Failure { error, broken: false, detail: None }
    }

    /// A connection that is of no more use.
    pub(super) const fn broken(detail: Option<String>) -> Self {
        Failure { error: StoreError::Unreachable, broken: true, detail }
    }

    /// The same, with the server that it is about.
    pub(super) fn at(self, server: &str) -> Self {
        let detail = self.detail.map(|detail| format!("{server}: {detail}"));
        Failure { detail, ..self }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        // Rights that are missing within the script are no NOPERM of their own.
        let missing_rights = |detail: &str| {
            detail.contains("ACL failure in script") || detail.contains("user executing the script can't")
        };
        let code = match error.detail() {
            Some(detail) if missing_rights(detail) => "NOPERM",
            _ => error.code().unwrap_or_default(),
        };
        let detail = Some(reason::in_full(&error));
        let (error, broken) = match error.kind() {
            // Whoever answers this is no primary any more: resolve the address again.
            ErrorKind::Server(ServerErrorKind::ReadOnly) => (StoreError::rejected(code), true),
            ErrorKind::Server(_) | ErrorKind::Extension => (StoreError::rejected(code), false),
            ErrorKind::AuthenticationFailed => (StoreError::rejected("NOAUTH"), true),
            _ => (StoreError::Unreachable, true),
        };
        Failure { error, broken, detail }
    }
}
