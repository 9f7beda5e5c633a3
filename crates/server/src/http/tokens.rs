//! Bearer tokens: lines `name:role:secret` of a file.
//!
//! Only digests are kept, and a token that is presented is compared with every one of them in constant time.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::reload::Reloadable;

/// Shorter secrets can be guessed.
const MIN_SECRET: usize = 16;
const MAX_NAME: usize = 64;
const MAX_TOKENS: usize = 1_000;
/// The bytes of a secret that the server makes.
const SECRET_BYTES: usize = 32;

/// What a token allows, and what a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Decisions.
    Check,
    /// Decisions, refunds and settlements.
    Settle,
    /// Whatever only shows state.
    Read,
    /// Everything.
    Write,
}

impl Role {
    const ALL: [Role; 4] = [Role::Check, Role::Settle, Role::Read, Role::Write];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Role::Check => "check",
            Role::Settle => "settle",
            Role::Read => "read",
            Role::Write => "write",
        }
    }

    /// The roles that a route accepts which needs this one, in words.
    pub(super) const fn accepted(self) -> &'static str {
        match self {
            Role::Check => "`check`, `settle` or `write`",
            Role::Settle => "`settle` or `write`",
            Role::Read => "`read` or `write`",
            Role::Write => "`write`",
        }
    }

    pub(super) fn allows(self, needed: Role) -> bool {
        self == Role::Write || self == needed || (self == Role::Settle && needed == Role::Check)
    }
}

/// Why a token file is refused. Nothing of its contents is repeated.
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
    /// It is missing and cannot be created.
    #[error("cannot create the token file {}", path.display())]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Other users can read it.
    #[error(
        "other users can read the token file {} (mode {mode:03o}); its tokens may be known to them: replace them and run \
         `chmod 600 {}`",
        path.display(), path.display()
    )]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There is no token in it.
    #[error("{source_name} has no token; write one on each line, as name:role:secret")]
    Empty {
        /// Which.
        source_name: String,
    },
    /// A line is not a token.
    #[error(
        "{source_name}:{line}: expected name:role:secret, where the name has up to {MAX_NAME} letters, digits and `-_.@`, the \
         role is check, settle, read or write, and the secret has at least {MIN_SECRET} visible characters without a colon; \
         make one with `openssl rand -hex 32`"
    )]
    Invalid {
        /// Which file.
        source_name: String,
        /// Which line.
        line: usize,
    },
    /// There are too many.
    #[error("{source_name} has more than {MAX_TOKENS} tokens")]
    TooMany {
        /// Which.
        source_name: String,
    },
}

/// Tokens, of a file that may change while the server runs.
#[derive(Debug, Clone)]
pub struct Tokens(Arc<Reloadable<Vec<Token>>>);

/// The digest of a secret.
pub(super) type Digest = [u8; 32];

/// A token without its secret.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) name: Arc<str>,
    pub(super) role: Role,
    pub(super) digest: Digest,
}

impl Tokens {
    /// The tokens of these lines. Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    ///
    /// A line is not a token, or there is none.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        Ok(Tokens(Reloadable::fixed(parse("the token list", text)?)))
    }

    /// The tokens of a file, which is read again within a second of a change. While it is missing or invalid, none of its
    /// tokens is known. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// The file cannot be read, users outside its group can read it, or it is not a list of tokens.
    pub fn file(path: &Path) -> Result<Self, TokenError> {
        Self::follow(path, 0o007) // a mounted secret belongs to a group
    }

    /// The same for the file of one user, readable by nobody else. If it is missing, it is created with one token,
    /// `admin:write:` and a random secret.
    ///
    /// # Errors
    ///
    /// As [`Tokens::file`], or the file cannot be created.
    pub fn own_file(path: &Path) -> Result<Self, TokenError> {
        create(path).map_err(|source| TokenError::Create { path: path.to_owned(), source })?;
        Self::follow(path, 0o077)
    }

    fn follow(path: &Path, exposed: u32) -> Result<Self, TokenError> {
        let file = path.to_owned();
        let read = move || parse(&file.display().to_string(), &read(&file, exposed)?);
        Reloadable::new("tokens", vec![path.to_owned()], read, || Some(Vec::new())).map(Tokens)
    }

    /// The token with this digest. All are compared, whichever it is: the time it takes says nothing.
    pub(super) fn find(&self, digest: &Digest) -> Option<Token> {
        let tokens = self.0.get();
        let matching = tokens.iter().filter(|token| bool::from(token.digest.ct_eq(digest)));
        matching.fold(None, |found, token| found.or(Some(token))).cloned()
    }

    /// The first token with this role.
    pub(super) fn with_role(&self, role: Role) -> Option<Token> {
        self.0.get().iter().find(|token| token.role == role).cloned()
    }
}

pub(super) fn digest(secret: &[u8]) -> Digest {
    Sha256::digest(secret).into()
}

/// A new secret of so many random bytes, as text.
pub(super) fn secret<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(hex::encode(bytes))
}

/// Writes a temporary file and links it, so that no reader sees half of it and a file that exists stays.
fn create(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let unfinished = path.with_extension(format!("{}", std::process::id()));
    let _ = fs::remove_file(&unfinished);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    writeln!(file, "admin:{}:{}", Role::Write.as_str(), secret::<SECRET_BYTES>()?)?;
    file.sync_all()?;
    let linked = fs::hard_link(&unfinished, path);
    fs::remove_file(&unfinished)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

fn read(path: &Path, exposed: u32) -> Result<String, TokenError> {
    let unreadable = |source| TokenError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(unreadable)?;
    let mode = file.metadata().map_err(unreadable)?.mode() & 0o777;
    if mode & exposed != 0 {
        return Err(TokenError::Exposed { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

fn parse(source_name: &str, text: &str) -> Result<Vec<Token>, TokenError> {
    let source_name = || source_name.to_owned();
    let lines = (1..).zip(text.lines().map(str::trim));
    let tokens = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            Token::parse(line).ok_or_else(|| TokenError::Invalid { source_name: source_name(), line: number })
        })
        .collect::<Result<Vec<_>, _>>()?;
    match tokens.len() {
        0 => Err(TokenError::Empty { source_name: source_name() }),
        1..=MAX_TOKENS => Ok(tokens),
        _ => Err(TokenError::TooMany { source_name: source_name() }),
    }
}

impl Token {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ':');
        let (name, role, secret) = (parts.next()?, parts.next()?, parts.next()?);
        let role = Role::ALL.into_iter().find(|known| known.as_str() == role)?;
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        let named = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_name);
        let is_secret = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        let strong = secret.len() >= MIN_SECRET && secret.bytes().all(is_secret);
        (named && strong).then(|| Token { name: name.into(), role, digest: digest(secret.as_bytes()) })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const SECRET: &str = "0123456789abcdef";

    /// A folder, deleted with this.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn folder(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tollgate-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    #[test]
    fn a_token_has_the_name_and_the_role_of_its_line() {
        let tokens = Tokens::parse(&format!(
            "# ours\n\n  app:check:a-{SECRET}\nbatch@host:settle:b-{SECRET}\nboard:read:c-{SECRET}\nops:write:d-{SECRET}\n"
        ))
        .unwrap();
        for (prefix, name, role) in [
            ("a", "app", Role::Check),
            ("b", "batch@host", Role::Settle),
            ("c", "board", Role::Read),
            ("d", "ops", Role::Write),
        ] {
            let token = tokens.find(&digest(format!("{prefix}-{SECRET}").as_bytes())).unwrap();
            assert_eq!((&*token.name, token.role), (name, role));
        }
        assert!(tokens.find(&digest(SECRET.as_bytes())).is_none());
    }

    #[test]
    fn write_allows_everything_settle_also_checks_and_the_others_only_themselves() {
        let allowed =
            |role: Role| Role::ALL.into_iter().filter(|needed| role.allows(*needed)).collect::<Vec<_>>();
        assert_eq!(allowed(Role::Check), [Role::Check]);
        assert_eq!(allowed(Role::Settle), [Role::Check, Role::Settle]);
        assert_eq!(allowed(Role::Read), [Role::Read]);
        assert_eq!(allowed(Role::Write), Role::ALL);
        for needed in Role::ALL {
            for role in Role::ALL {
                assert_eq!(
                    needed.accepted().contains(role.as_str()),
                    role.allows(needed),
                    "{role} for {needed}"
                );
            }
        }
    }

    #[test]
    fn a_line_that_is_not_a_token_is_refused_without_repeating_it() {
        assert!(Tokens::parse("# none\n").unwrap_err().to_string().contains("has no token"));
        for line in [
            format!("{SECRET}{SECRET}"),
            format!("read:{SECRET}"),
            "ops:write:hunter2".to_owned(),
            format!("ops:root:{SECRET}"),
            format!(":read:{SECRET}"),
            format!("two words:read:{SECRET}"),
            format!("ops:read:{SECRET}:{SECRET}"),
            "ops:read:sixteen characters".to_owned(),
        ] {
            let said = Tokens::parse(&format!("a:read:{SECRET}\n{line}\n")).unwrap_err().to_string();
            assert!(said.contains(":2: expected name:role:secret"), "{said}");
            assert!(!said.contains("hunter2") && !said.contains(SECRET), "{said}");
        }
    }

    #[tokio::test]
    async fn the_first_start_creates_a_write_token_that_only_its_owner_can_read_and_later_ones_keep_it() {
        let folder = folder("own-token");
        let path = folder.0.join("token");
        Tokens::own_file(&path).unwrap();
        let line = fs::read_to_string(&path).unwrap();
        let secret = line.trim_end().strip_prefix("admin:write:").unwrap();
        assert_eq!(secret.len(), 2 * SECRET_BYTES);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Tokens::own_file(&path).unwrap();
        assert_eq!(again.find(&digest(secret.as_bytes())).unwrap().role, Role::Write);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing is left over");
    }

    #[tokio::test]
    async fn a_file_that_others_can_read_is_refused_with_what_to_do() {
        let folder = folder("exposed-token");
        let path = folder.0.join("token");
        fs::write(&path, format!("a:read:{SECRET}\n")).unwrap();
        for (mode, own, given) in
            [(0o600, true, true), (0o400, true, true), (0o640, false, true), (0o604, false, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Tokens::own_file(&path).is_ok(), own, "{mode:o}");
            assert_eq!(Tokens::file(&path).is_ok(), given, "{mode:o}");
        }
        let said = Tokens::file(&path).unwrap_err().to_string();
        assert!(said.contains("mode 604") && said.contains("chmod 600"), "{said}");
    }
}
