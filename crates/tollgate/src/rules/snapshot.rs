//! The last good rules of a database, kept on disk for a start while the database is down.
//!
//! ```text
//! {"source": "postgres://db/rules", "version": "42"}
//! {"rule_id": 1, "key_pattern": "user:{user_id}", …}      one line for each rule
//! sha256 9f86d081…                                        of everything above
//! ```
//!
//! Readable by its owner only, written beside and moved into place, and believed only if the sum agrees and the source
//! is the same.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tollgate_core::RuleSet;

use super::row::RuleRow;
use super::rows::Builder;
use super::source::{Loaded, SourceError, off_thread};

/// Where the last good rules are kept.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    path: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    source: String,
    version: String,
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

    /// Writes rules down and gives them back.
    pub(super) async fn write(
        &self,
        source: &str,
        version: &str,
        rules: RuleSet,
    ) -> Result<(RuleSet, io::Result<()>), SourceError> {
        let header = Header { source: source.to_owned(), version: version.to_owned() };
        let path = self.path.clone();
        off_thread(move || {
            let written = write(&path, &header, &rules);
            (rules, written)
        })
        .await
    }

    /// The rules that were last written for a source. A file that is damaged or of another source is none.
    pub(super) async fn read(&self, source: &str) -> Result<Option<Loaded>, SourceError> {
        let (path, source) = (self.path.clone(), source.to_owned());
        off_thread(move || {
            let why = match read(&path, &source) {
                Ok(loaded) => return Some(loaded),
                Err(why) => why,
            };
            tracing::warn!(file = %path.display(), why, "no rules were kept that could be used");
            None
        })
        .await
    }
}

fn write(path: &Path, header: &Header, rules: &RuleSet) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    let mut out = Summed { out: BufWriter::new(file), sum: Sha256::new() };
    serde_json::to_writer(&mut out, header)?;
    out.write_all(b"\n")?;
    for rule in rules.rules() {
        serde_json::to_writer(&mut out, &RuleRow::from(rule))?;
        out.write_all(b"\n")?;
    }
    let Summed { mut out, sum } = out;
    writeln!(out, "sha256 {}", hex(&sum.finalize()))?;
    out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file: File| file.sync_all())?;
    fs::rename(unfinished, path)
}

fn read(path: &Path, source: &str) -> Result<Loaded, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let (body, sum) = text.trim_end().rsplit_once('\n').ok_or("the file is cut off")?;
    let sum = sum.strip_prefix("sha256 ").ok_or("the file is cut off")?;
    let body = &text[..=body.len()];
    if hex(&Sha256::digest(body.as_bytes())) != sum {
        return Err("its sum does not agree with what is in it".to_owned());
    }
    let mut lines = body.lines();
    let header: Header =
        serde_json::from_str(lines.next().unwrap_or_default()).map_err(|error| error.to_string())?;
    if header.source != source {
        return Err(format!("it is of {}, not of {source}", header.source));
    }
    let mut builder = Builder::default();
    for line in lines {
        builder.add(&serde_json::from_str(line).map_err(|error| error.to_string())?);
    }
    let rules = builder.finish(source).map_err(|error| error.to_string())?;
    Ok(Loaded { rules, version: header.version })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sums what it passes on.
struct Summed<W> {
    out: W,
    sum: Sha256,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
