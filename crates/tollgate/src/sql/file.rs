//! The file of an SQLite database: whether it is there, is the one that was opened, and can be written.
//!
//! SQLite treats an empty file as a new database, and continues to write to a file that was deleted or replaced. Either would
//! lose rules silently, so both are errors here.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::DatabaseError;

/// What is wrong with the file of an SQLite database, and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileProblem {
    /// It has no bytes.
    Empty,
    /// It is gone, but its write-ahead log is there.
    LogOnly,
    /// It is something else, or damaged.
    NotADatabase,
    /// It was deleted or moved after it was opened.
    Deleted,
    /// Another file was put in its place after it was opened.
    Replaced,
    /// It cannot be written.
    ReadOnly(io::Error),
    /// Its folder, in which SQLite keeps the write-ahead log, cannot be written.
    ReadOnlyFolder(io::Error),
    /// The disk is full.
    Full,
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileProblem::Empty => f.write_str(
                "it is empty (0 bytes), as after a copy that failed; restore it from a backup, or delete it and the files \
                 with `-wal` and `-shm` after its name to begin with a new database",
            ),
            FileProblem::LogOnly => f.write_str(
                "it is missing, but its log is there, the file with `-wal` after its name; restore the database from a \
                 backup, or delete the log too to begin with a new database",
            ),
            FileProblem::NotADatabase => f.write_str(
                "it is not an SQLite database, or it is damaged; restore it from a backup, or name another file",
            ),
            FileProblem::Deleted => f.write_str(
                "it was deleted or moved while it was in use, and nothing that is written now would be kept; stop \
                 tollgate, put the file back or restore it from a backup, and start again",
            ),
            FileProblem::Replaced => f.write_str(
                "it was replaced by another file while it was in use, and nothing that is written now would be kept; \
                 restart tollgate to use the new file",
            ),
            FileProblem::ReadOnly(error) => write!(
                f,
                "it cannot be written: {error}; make it writable for the user that runs tollgate, or name another"
            ),
            FileProblem::ReadOnlyFolder(error) => write!(
                f,
                "its folder cannot be written: {error}; make it writable for the user that runs tollgate, or name \
                 another"
            ),
            FileProblem::Full => f.write_str("the disk is full; free some space and try again"),
        }
    }
}

/// A file, and which one it was when it was opened.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// Device and inode.
    opened: OnceLock<(u64, u64)>,
}

impl DatabaseFile {
    /// The file as it is now.
    pub(super) fn new(path: &Path) -> Self {
        let file = DatabaseFile { path: path.to_owned(), opened: OnceLock::new() };
        let _ = file.verify(); // if it is missing, the first query says so
        file
    }

    /// Whether the file is still the one that was opened.
    pub(super) fn verify(&self) -> Result<(), DatabaseError> {
        let problem = match fs::metadata(&self.path) {
            Ok(found) if found.len() == 0 => FileProblem::Empty,
            Ok(found) => {
                let now = (found.dev(), found.ino());
                if *self.opened.get_or_init(|| now) == now {
                    return Ok(());
                }
                FileProblem::Replaced
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.opened.get().is_some() => {
                FileProblem::Deleted
            }
            Err(_) => return Ok(()), // what SQLite says is more to the point
        };
        Err(self.error(problem, None))
    }

    /// The error of a query or a connection, where the file is to blame.
    pub(super) fn explain(&self, source: sqlx::Error) -> Result<DatabaseError, sqlx::Error> {
        if let Err(error) = self.verify() {
            return Ok(error);
        }
        let problem = match result(&source) {
            Some(READONLY | CANTOPEN | IOERR) => self.cannot_be_written(),
            Some(FULL) => Some(FileProblem::Full),
            Some(CORRUPT | NOTADB) => Some(FileProblem::NotADatabase),
            _ => None,
        };
        match problem {
            Some(problem) => Ok(self.error(problem, Some(source))),
            None => Err(source),
        }
    }

    /// The error of opening it.
    pub(super) fn cannot_open(&self, source: sqlx::Error) -> DatabaseError {
        self.explain(source).unwrap_or_else(|source| DatabaseError::Read { path: self.path.clone(), source })
    }

    /// Whether it and its folder can be written. SQLite itself says so only at the first write.
    pub(super) fn verify_writable(&self) -> Result<(), DatabaseError> {
        match self.cannot_be_written() {
            Some(problem) => Err(self.error(problem, None)),
            None => Ok(()),
        }
    }

    /// Why it or its folder cannot be written, if that is so.
    fn cannot_be_written(&self) -> Option<FileProblem> {
        let probe = self.beside("probe");
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&probe) {
            Ok(_) => drop(fs::remove_file(probe)),
            Err(error) => return Some(FileProblem::ReadOnlyFolder(error)),
        }
        let file = OpenOptions::new().write(true).open(&self.path);
        file.err().filter(|error| error.kind() != io::ErrorKind::NotFound).map(FileProblem::ReadOnly)
    }

    /// Whether a database can begin here: nothing is there, nor was there before.
    pub(super) fn is_new(&self) -> Result<bool, DatabaseError> {
        self.verify()?;
        match fs::metadata(&self.path) {
            Ok(_) => return Ok(false),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.cannot_make(error)),
            Err(_) => {}
        }
        let log = with_suffix(&self.path, "-wal");
        if fs::metadata(log).is_ok_and(|log| log.len() > 0) {
            return Err(self.error(FileProblem::LogOnly, None));
        }
        Ok(true)
    }

    /// A new file under another name, for its owner only; SQLite gives its logs the mode of the file they belong to.
    pub(super) fn unfinished(&self) -> Result<PathBuf, DatabaseError> {
        let path = self.beside("new");
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        made.map(|_| path).map_err(|error| self.cannot_make(error))
    }

    /// Gives a finished database its name, unless another process was faster.
    pub(super) fn finish(&self, unfinished: &Path) -> Result<(), DatabaseError> {
        let linked = match fs::hard_link(unfinished, &self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(_) => return fs::rename(unfinished, &self.path).map_err(|error| self.cannot_make(error)),
            linked => linked,
        };
        let _ = fs::remove_file(unfinished);
        linked.map_err(|error| self.cannot_make(error))
    }

    /// A name in the same folder that nothing has.
    fn beside(&self, what: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{:016x}.{what}", RandomState::new().hash_one(what)))
    }

    fn cannot_make(&self, source: io::Error) -> DatabaseError {
        DatabaseError::File { path: self.path.clone(), source }
    }

    fn error(&self, problem: FileProblem, source: Option<sqlx::Error>) -> DatabaseError {
        DatabaseError::Unusable { path: self.path.clone(), problem, source }
    }
}

/// Whether SQLite refuses to write.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    result(error) == Some(READONLY)
}

/// SQLite's result code, without what extends it.
fn result(error: &sqlx::Error) -> Option<u32> {
    let code: u32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

// Result codes of SQLite.
const READONLY: u32 = 8;
const IOERR: u32 = 10;
const CORRUPT: u32 = 11;
const FULL: u32 = 13;
const CANTOPEN: u32 = 14;
const NOTADB: u32 = 26;
