//! The token that a server asks for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use http::HeaderValue;

use super::Client;

/// How to show a server who asks.
#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// The token to show to a server: the first one in this file, which may be the server's own
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// A server by its address, shown the token.
    ///
    /// # Errors
    ///
    /// The address is none, or the file has no token. Nothing of what is in it is repeated.
    pub(crate) fn client(&self, url: &str) -> anyhow::Result<Client> {
        let authorization = self.token_file.as_deref().map(bearer).transpose()?;
        Ok(Client { authorization, ..Client::new(url)? })
    }
}

fn bearer(path: &Path) -> anyhow::Result<HeaderValue> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read the token file {}", path.display()))?;
    let lines = text.lines().map(str::trim);
    let token = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(without_role).next();
    let token = token.with_context(|| format!("{} has no token; put one on a line", path.display()))?;
    let sane = token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(sane, "{}: a token has visible characters only and no blanks", path.display());
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A server's file says what a token may do before it.
fn without_role(line: &str) -> &str {
    line.strip_prefix("read:").or_else(|| line.strip_prefix("write:")).unwrap_or(line)
}
