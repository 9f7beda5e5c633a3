//! Sessions of the dashboard, and the one-time codes of login links.
//!
//! Both stand for a token and end with it: a session whose token is removed is refused with the next request.

use std::io;

use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;
use tollgate::{Clock, Micros, Timestamp};

use super::tokens::{Digest, digest, secret};

/// How long a login link is valid.
pub(super) const CODE_LIFETIME: Micros = Micros::new(10 * 60 * 1_000_000);
/// How long a session is valid.
pub(super) const SESSION_LIFETIME: Micros = Micros::new(12 * 3_600 * 1_000_000);
/// Of each kind and token; beyond it, the oldest ends. So no token ends the sessions of another.
const MAX_ENTRIES: usize = 64;

/// What a secret is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To be exchanged once for a session.
    Code,
    /// To be sent with every request.
    Session,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    secret: Digest,
    token: Digest,
    ends: Timestamp,
}

/// Those that are valid, the oldest first.
#[derive(Debug)]
pub(super) struct Sessions {
    clock: Clock,
    entries: Mutex<Vec<Entry>>,
}

impl Sessions {
    pub(super) const fn new(clock: Clock) -> Self {
        Sessions { clock, entries: Mutex::new(Vec::new()) }
    }

    /// A new secret that stands for a token.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub(super) fn issue(&self, kind: Kind, token: Digest) -> io::Result<String> {
        let (text, lifetime) = match kind {
            Kind::Code => (secret::<16>()?, CODE_LIFETIME),
            Kind::Session => (secret::<32>()?, SESSION_LIFETIME),
        };
        let ends = self.clock.now().after(lifetime);
        let mut entries = self.entries.lock();
        let now = self.clock.now();
        entries.retain(|entry| entry.ends > now);
        let is_alike = |entry: &Entry| entry.kind == kind && entry.token == token;
        if entries.iter().filter(|entry| is_alike(entry)).count() >= MAX_ENTRIES {
            let oldest = entries.iter().position(is_alike);
            oldest.map(|at| entries.remove(at));
        }
        entries.push(Entry { kind, secret: digest(text.as_bytes()), token, ends });
        Ok(text)
    }

    /// The token that a session stands for.
    pub(super) fn token(&self, session: &str) -> Option<Digest> {
        let entries = self.entries.lock();
        Self::find(&entries, Kind::Session, session, self.clock.now()).map(|at| entries[at].token)
    }

    /// Ends a session, or uses a code up: the token that it stood for.
    pub(super) fn take(&self, kind: Kind, secret: &str) -> Option<Digest> {
        let (mut entries, now) = (self.entries.lock(), self.clock.now());
        entries.retain(|entry| entry.ends > now);
        Self::find(&entries, kind, secret, now).map(|at| entries.remove(at).token)
    }

    /// All are compared, whichever it is: the time it takes says nothing.
    fn find(entries: &[Entry], kind: Kind, secret: &str, now: Timestamp) -> Option<usize> {
        let presented = digest(secret.as_bytes());
        let matching = entries.iter().enumerate().filter(|(_, entry)| {
            bool::from(entry.secret.ct_eq(&presented)) && entry.kind == kind && entry.ends > now
        });
        matching.fold(None, |found, (at, _)| found.or(Some(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Digest = [7; 32];

    fn sessions() -> (Clock, Sessions) {
        let clock = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
        (clock.clone(), Sessions::new(clock))
    }

    #[test]
    fn a_code_is_used_once_and_is_not_a_session() {
        let (_, sessions) = sessions();
        let code = sessions.issue(Kind::Code, TOKEN).unwrap();
        assert_eq!(sessions.token(&code), None);
        assert_eq!(sessions.take(Kind::Session, &code), None);
        assert_eq!(sessions.take(Kind::Code, &code), Some(TOKEN));
        assert_eq!(sessions.take(Kind::Code, &code), None);
    }

    #[test]
    fn codes_end_after_ten_minutes_and_sessions_after_twelve_hours() {
        let (clock, sessions) = sessions();
        let start = clock.now();
        let (code, session) =
            (sessions.issue(Kind::Code, TOKEN).unwrap(), sessions.issue(Kind::Session, TOKEN).unwrap());
        clock.set(start.after(CODE_LIFETIME));
        assert_eq!(sessions.take(Kind::Code, &code), None);
        clock.set(start.after(SESSION_LIFETIME.saturating_sub(Micros::new(1))));
        assert_eq!(sessions.token(&session), Some(TOKEN));
        clock.set(start.after(SESSION_LIFETIME));
        assert_eq!(sessions.token(&session), None);
    }

    #[test]
    fn beyond_the_maximum_the_oldest_of_the_same_kind_and_token_ends() {
        let (_, sessions) = sessions();
        let code = sessions.issue(Kind::Code, TOKEN).unwrap();
        let other = sessions.issue(Kind::Session, [8; 32]).unwrap();
        let first = sessions.issue(Kind::Session, TOKEN).unwrap();
        let second = sessions.issue(Kind::Session, TOKEN).unwrap();
        for _ in 2..=MAX_ENTRIES {
            sessions.issue(Kind::Session, TOKEN).unwrap();
        }
        assert_eq!((sessions.token(&first), sessions.token(&second)), (None, Some(TOKEN)));
        assert_eq!(sessions.take(Kind::Code, &code), Some(TOKEN));
        assert_eq!(sessions.token(&other), Some([8; 32]));
    }
}
