//! Bearer tokens: who may look, and who may change.
//!
//! Only hashes are kept, and a token that is shown is compared with every one of them in constant time. So many wrong ones
//! may come from one address, then the next is told to wait. A right one passes all the same: many callers may share an
//! address, and none of them may shut the others out. That no token can be guessed is up to its length.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tollgate::{Gate, MemoryStore, Micros};

use crate::kept::Kept;

/// Shorter ones can be guessed.
const SHORTEST: usize = 16;
/// More lines than this are no list of tokens.
const MOST: usize = 1_000;
/// Wrong tokens from one address.
const TRIES: &str = "10/min burst 10";

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// To look.
    Read,
    /// To look and to change.
    Write,
}

/// Why a token file is of no use. Nothing of what is in it is repeated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It cannot be read.
    #[error("cannot read the token file {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no token in it.
    #[error("{} has no token; put one on each line, as `openssl rand -hex 32` makes them", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// A token is too short, or not of characters that a header can carry.
    #[error(
        "{}:{line}: a token has at least {SHORTEST} visible characters and no blanks; make one with `openssl rand -hex 32`",
        path.display()
    )]
    Weak {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
    /// There are too many.
    #[error("{} has more than {MOST} tokens", path.display())]
    Many {
        /// Which.
        path: PathBuf,
    },
}

/// The tokens of a file, which may change while the server runs.
#[derive(Debug, Clone)]
pub struct Tokens {
    known: Arc<Kept<Vec<Known>>>,
    tries: Arc<Gate<MemoryStore>>,
}

#[derive(Debug)]
struct Known {
    hash: [u8; 32],
    role: Role,
}

/// What came of the token that a caller showed, or did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Known(Role),
    None,
    Wrong,
    /// Too many wrong ones came from there.
    Wait(Micros),
}

impl Tokens {
    /// The tokens of a file: one on each line, `read:` or `write:` before it, write where nothing is. Empty lines and
    /// those that begin with `#` say nothing. The file is read again within a second of a change; while it is missing or no
    /// list of tokens, none is known. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no list of tokens.
    pub fn of(path: &Path) -> Result<Self, TokenError> {
        let file = path.to_owned();
        let known = Kept::new("tokens", vec![file.clone()], move || load(&file), || Some(Vec::new()))?;
        let limit = TRIES.parse().expect("a limit that is a constant");
        Ok(Tokens { known, tries: Arc::new(Gate::new(limit, MemoryStore::new())) })
    }

    /// Who shows what.
    pub(super) async fn look(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Shown {
        let Some(token) = bearer(headers) else { return Shown::None };
        if let Some(role) = self.role(token) {
            return Shown::Known(role);
        }
        let from = peer.map_or_else(|| "nobody knows".to_owned(), |peer| network(peer).to_string());
        let tries = self.tries.allow(&from).await;
        match tries.allowed() {
            true => Shown::Wrong,
            false => Shown::Wait(tries.retry_after().unwrap_or(Micros::ZERO)),
        }
    }

    /// Whether a token for so much is shown. Nobody learns anything by it that asking for a decision would not tell, and
    /// there each wrong token is counted.
    pub(super) fn knows(&self, headers: &HeaderMap, role: Role) -> bool {
        bearer(headers).and_then(|token| self.role(token)) >= Some(role)
    }

    /// A name for the token that is shown, if it is known: a part of its hash.
    pub(super) fn name(&self, headers: &HeaderMap) -> Option<String> {
        let token = bearer(headers).filter(|token| self.role(token).is_some())?;
        let hash: [u8; 32] = Sha256::digest(token).into();
        Some(hash[..8].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn role(&self, token: &[u8]) -> Option<Role> {
        let shown: [u8; 32] = Sha256::digest(token).into();
        // All of them, whichever it is: how long it takes says nothing.
        let matching = |role: Option<Role>, known: &Known| {
            if bool::from(known.hash.ct_eq(&shown)) { role.max(Some(known.role)) } else { role }
        };
        self.known.get().iter().fold(None, matching)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A client with one address of IPv6 has a /64 of them.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

fn load(path: &Path) -> Result<Vec<Known>, TokenError> {
    let text =
        fs::read_to_string(path).map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
    let lines = (1..).zip(text.lines().map(str::trim));
    let known = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            Known::read(line).ok_or_else(|| TokenError::Weak { path: path.to_owned(), line: number })
        })
        .collect::<Result<Vec<_>, _>>()?;
    match known.len() {
        0 => Err(TokenError::Empty { path: path.to_owned() }),
        1..=MOST => Ok(known),
        _ => Err(TokenError::Many { path: path.to_owned() }),
    }
}

impl Known {
    fn read(line: &str) -> Option<Self> {
        let (role, token) = match line.split_once(':') {
            Some(("read", token)) => (Role::Read, token),
            Some(("write", token)) => (Role::Write, token),
            _ => (Role::Write, line),
        };
        let strong = token.len() >= SHORTEST && token.bytes().all(|byte| byte.is_ascii_graphic());
        strong.then(|| Known { hash: Sha256::digest(token).into(), role })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const READ: &str = "read-0123456789abcdef";
    const WRITE: &str = "write-0123456789abcdef";

    /// A token file, deleted with this.
    struct File(PathBuf);

    impl Drop for File {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn file(text: &str) -> File {
        let name = hex::encode(&Sha256::digest(text)[..8]);
        let path = std::env::temp_dir().join(format!("tollgate-tokens-{name}-{}", std::process::id()));
        fs::write(&path, text).unwrap();
        File(path)
    }

    async fn shown(tokens: &Tokens, authorization: Option<&str>, from: &str) -> Shown {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        tokens.look(&headers, Some(from.parse().unwrap())).await
    }

    #[tokio::test]
    async fn a_token_has_the_role_that_its_line_says() {
        let path = file(&format!("# ours\n\nread:{READ}\n{WRITE}\nwrite:other-{WRITE}\n"));
        let tokens = Tokens::of(&path.0).unwrap();
        let of = async |text: &str| shown(&tokens, Some(text), "192.0.2.1").await;
        assert_eq!(of(&format!("Bearer {READ}")).await, Shown::Known(Role::Read));
        assert_eq!(of(&format!("bearer {WRITE}")).await, Shown::Known(Role::Write));
        assert_eq!(of(&format!("Bearer other-{WRITE}")).await, Shown::Known(Role::Write));
        assert_eq!(of(&format!("Bearer read:{READ}")).await, Shown::Wrong);
        assert_eq!(of("Basic abc").await, Shown::None);
        assert_eq!(shown(&tokens, None, "192.0.2.1").await, Shown::None);
    }

    #[tokio::test]
    async fn after_ten_wrong_tokens_from_one_network_the_next_has_to_wait_and_a_right_one_has_not() {
        let path = file(&format!("{WRITE}\n"));
        let tokens = Tokens::of(&path.0).unwrap();
        for number in 0..10 {
            let from = format!("2001:db8::{number}");
            assert_eq!(shown(&tokens, Some("Bearer wrong"), &from).await, Shown::Wrong);
        }
        assert!(matches!(shown(&tokens, Some("Bearer wrong"), "2001:db8::99").await, Shown::Wait(_)));
        assert_eq!(shown(&tokens, Some("Bearer wrong"), "2001:db9::1").await, Shown::Wrong);
        let right = format!("Bearer {WRITE}");
        assert_eq!(shown(&tokens, Some(&right), "2001:db8::99").await, Shown::Known(Role::Write));
    }

    #[tokio::test]
    async fn a_file_that_is_no_list_of_tokens_is_refused_without_repeating_it() {
        let refused = |text: &str| {
            let path = file(text);
            Tokens::of(&path.0).unwrap_err().to_string()
        };
        assert!(refused("# none\n").contains("has no token"));
        let told = refused(&format!("{WRITE}\nread:hunter2\n"));
        assert!(told.contains(":2: a token has at least 16") && !told.contains("hunter2"), "{told}");
        assert!(refused("sixteen characters with blanks").contains(":1:"));
    }
}
