//! The last good rules of a database, kept on disk for a start while the database is down.
//!
//! ```text
//! {"source": "postgres://db/rules", "version": "42", "rules": 7}
//! {"rule_id": 1, "key_pattern": "user:{user_id}", …}      one line for each rule
//! ```
//!
//! Readable by its owner only. It is written to another file and renamed, so it is whole; it is used only if the source and
//! the number of rules agree.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tollgate_core::RuleSet;

use super::row::RuleRow;
use super::rows::Builder;
use super::source::Loaded;

/// Where the last good rules are kept.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    path: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    source: String,
    version: String,
    rules: usize,
}

impl SnapshotFile {
    /// Keeps them in this file, whose folder must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SnapshotFile { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the rules of a source. This takes long.
    pub(super) fn write(&self, source: &str, version: &str, rules: &RuleSet) -> io::Result<()> {
        let unfinished = self.path.with_extension("unfinished");
        let file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        let mut out = BufWriter::new(file);
        let (source, version) = (source.to_owned(), version.to_owned());
        serde_json::to_writer(&mut out, &Header { source, version, rules: rules.rules().len() })?;
        for rule in rules.rules() {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, &RuleRow::from(rule))?;
        }
        out.write_all(b"\n")?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(unfinished, &self.path)
    }

    /// The rules that were last written for a source, or why they cannot be used. This takes long.
    pub(super) fn read(&self, source: &str) -> Result<Loaded, String> {
        let text = fs::read_to_string(&self.path).map_err(|error| error.to_string())?;
        let mut lines = text.lines();
        let header: Header =
            serde_json::from_str(lines.next().unwrap_or_default()).map_err(|error| error.to_string())?;
        if header.source != source {
            return Err(format!("it is of {}, not of {source}", header.source));
        }
        let mut builder = Builder::default();
        lines.for_each(|line| builder.add(&RuleRow::from_json(line.as_bytes())));
        let rules = builder.finish(source).map_err(|error| error.to_string())?;
        if rules.rules().len() != header.rules {
            return Err(format!("it has {} rules of {}", rules.rules().len(), header.rules));
        }
        Ok(Loaded { rules, version: header.version })
    }
}
