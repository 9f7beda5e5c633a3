//! The data directory: what tollgate keeps for itself on this machine.

use std::env;
use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::database::own;
use crate::source::own_url;
use crate::terminal::remark;
use crate::words::quoted;

#[derive(Debug, clap::Args)]
pub(crate) struct DataArgs {
    /// Where tollgate keeps its own database and the last good rules of others
    /// [default: $XDG_DATA_HOME/tollgate, ~/.local/share/tollgate or ./tollgate-data]
    #[arg(long = "data-dir", value_name = "DIR", env = "TOLLGATE_DATA_DIR")]
    folder: Option<PathBuf>,
}

impl DataArgs {
    /// The directory, made if it is missing, for its owner only.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub(crate) fn folder(&self) -> io::Result<PathBuf> {
        let folder = self.path();
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(folder)
    }

    /// Where it is, or would be made.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| usual(env::var_os))
    }

    /// What it is called, for messages.
    pub(crate) fn shown(&self) -> String {
        self.path().display().to_string()
    }

    /// The flag that names it, where it is not the usual one.
    pub(crate) fn flag(&self) -> String {
        let quoted = |folder: &Path| format!(" --data-dir {}", quoted(&folder.to_string_lossy()));
        self.folder.as_deref().map_or_else(String::new, quoted)
    }

    /// The database in it, if a server made one, as commands read it while no server runs. Says on standard error that it is
    /// read.
    pub(crate) fn database(&self) -> Option<String> {
        let path = Some(own(self)).filter(|path| path.exists())?;
        remark(&format!("no server is running; reading {}", path.display()));
        Some(own_url(&path))
    }
}

/// Where programs keep their data, according to the environment.
fn usual(variable: impl Fn(&'static str) -> Option<OsString>) -> PathBuf {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| Path::new("tollgate-data").to_owned(), |data| data.join("tollgate"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_where_data_is_kept() {
        let with = |known: &'static [(&str, &str)]| {
            usual(move |name| {
                known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
            })
        };
        assert_eq!(with(&[("XDG_DATA_HOME", "/data"), ("HOME", "/home/me")]), Path::new("/data/tollgate"));
        assert_eq!(
            with(&[("XDG_DATA_HOME", "relative"), ("HOME", "/home/me")]),
            Path::new("/home/me/.local/share/tollgate")
        );
        assert_eq!(with(&[]), Path::new("tollgate-data"));
    }
}
