//! Where rules are kept, so that each command is written once: a file, which is only read, a database or a running
//! server.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollgate::Rule;
use tollgate::core::Draft;
use tollgate::core::rule::Mode;
use tollgate::core::suggest::closest;
use tollgate::rules::{self, BookError, RuleBook, RuleRow};

use super::fields::{changes, from_json};
use super::yaml::braces;
use crate::client::Client;
use crate::load;

/// Where rules are kept.
#[derive(Debug)]
pub(super) enum Book {
    /// The rules that are used where none are given.
    Starter,
    File(PathBuf),
    Database(RuleBook),
    Server(Box<Client>),
}

/// A rule and what its place knows about it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// None in a file.
    pub(crate) rule_id: Option<i64>,
    /// None in a file.
    pub(crate) version: Option<i64>,
    /// When it was last changed.
    pub(crate) updated_at: Option<String>,
    pub(crate) draft: Draft,
    /// What it makes, or why it makes none.
    pub(crate) rule: Result<Rule, String>,
    /// What of its row cannot be read, so that `draft` is not all of it.
    pub(crate) unreadable: Option<String>,
}

/// One change to make. Rules are as they were looked at: whoever was faster is not overwritten.
#[derive(Debug)]
pub(crate) enum Edit {
    Add(Draft),
    Update(Box<Entry>, Draft),
    Remove(Box<Entry>),
    Enable(Box<Entry>),
    Disable(Box<Entry>),
}

/// One change that was made.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) id: i64,
    pub(crate) rule_id: i64,
    pub(crate) at: String,
    pub(crate) who: String,
    pub(crate) action: String,
    pub(crate) before: Option<Draft>,
    pub(crate) after: Option<Draft>,
}

/// A rule as JSON, the same as the HTTP API has it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EntryBody {
    rule_id: Option<i64>,
    version: Option<i64>,
    #[serde(default)]
    updated_at: Option<String>,
    label: String,
    active: bool,
    rule: Box<RawValue>,
}

impl Entry {
    /// A rule that stands nowhere else.
    pub(crate) fn of(draft: Draft) -> Self {
        let rule = draft.clone().build().map_err(|errors| {
            let said =
                |error: &tollgate::core::rule::FieldError| format!("{}: {}", error.field.name, error.problem);
            errors.iter().map(said).collect::<Vec<_>>().join("; ")
        });
        Entry { rule_id: None, version: None, updated_at: None, draft, rule, unreadable: None }
    }

    /// What commands and lists call it.
    pub(crate) fn label(&self) -> &str {
        match &self.rule {
            Ok(rule) => rule.label(),
            Err(_) => self.draft.name.as_deref().unwrap_or(&self.draft.key),
        }
    }

    /// The label with its number and version, where it has them.
    pub(crate) fn title(&self) -> String {
        match (self.rule_id, self.version) {
            (Some(rule_id), Some(version)) => {
                format!("{} (rule {rule_id}, version {version})", self.label())
            }
            _ => self.label().to_owned(),
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.draft.mode.as_deref() == Some(Mode::Off.as_str())
    }

    /// As JSON.
    ///
    /// # Errors
    ///
    /// None: a rule is text.
    pub(crate) fn body(&self) -> serde_json::Result<EntryBody> {
        Ok(EntryBody {
            rule_id: self.rule_id,
            version: self.version,
            updated_at: self.updated_at.clone(),
            label: self.label().to_owned(),
            active: !self.is_off(),
            rule: serde_json::value::to_raw_value(&self.draft)?,
        })
    }
}

impl EntryBody {
    /// The rule that `shown` gave.
    ///
    /// # Errors
    ///
    /// It has fields that no rule has.
    pub(crate) fn entry(self, shown: &str) -> anyhow::Result<Entry> {
        let draft = from_json(shown, self.rule.get())?;
        let EntryBody { rule_id, version, updated_at, .. } = self;
        Ok(Entry { rule_id, version, updated_at, ..Entry::of(draft) })
    }
}

impl From<&RuleRow> for Entry {
    fn from(row: &RuleRow) -> Self {
        let entry = Entry::of(row.draft());
        let columns: Vec<String> = row.unreadable.iter().map(ToString::to_string).collect();
        let unreadable = (!columns.is_empty()).then(|| columns.join("; "));
        Entry {
            rule_id: Some(row.rule_id),
            version: Some(row.version),
            updated_at: Some(row.updated_at.clone()),
            rule: unreadable.clone().map_or(entry.rule, Err),
            unreadable,
            draft: entry.draft,
        }
    }
}

impl Change {
    /// The rule's label, as it is or was.
    pub(crate) fn label(&self) -> String {
        let draft = self.after.as_ref().or(self.before.as_ref());
        draft.map_or_else(String::new, |draft| Entry::of(draft.clone()).label().to_owned())
    }
}

impl From<rules::Change> for Change {
    fn from(change: rules::Change) -> Self {
        let draft = |row: Option<RuleRow>| row.map(|row| row.draft());
        let (before, after) = (draft(change.before), draft(change.after));
        Change {
            id: change.history_id,
            rule_id: change.rule_id,
            at: change.changed_at,
            who: change.changed_by,
            action: action(before.as_ref(), after.as_ref()).to_owned(),
            before,
            after,
        }
    }
}

fn action(before: Option<&Draft>, after: Option<&Draft>) -> &'static str {
    let is_off = |draft: &Draft| draft.mode.as_deref() == Some(Mode::Off.as_str());
    match (before, after) {
        (None, _) => "add",
        (_, None) => "remove",
        (Some(before), Some(after)) => match &changes(before, after)[..] {
            [only] if only.field == "mode" && is_off(after) => "disable",
            [only] if only.field == "mode" && is_off(before) => "enable",
            _ => "edit",
        },
    }
}

impl Book {
    /// What to call it; no password in it.
    pub(super) fn shown(&self) -> String {
        match self {
            Book::Starter => "the built-in starter set".to_owned(),
            Book::File(path) => load::name(path),
            Book::Database(book) => book.database().shown().to_owned(),
            Book::Server(client) => client.shown().to_owned(),
        }
    }

    /// Every rule.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub(super) async fn list(&self) -> anyhow::Result<Vec<Entry>> {
        match self {
            Book::Starter => entries("starter.yaml", rules::STARTER),
            Book::File(path) => entries(&load::name(path), &file_text(path)?),
            Book::Database(book) => Ok(book.list().await?.iter().map(Entry::from).collect()),
            Book::Server(client) => client.list().await,
        }
    }

    /// A rule by its label, name or number.
    ///
    /// # Errors
    ///
    /// There is none, and which was probably meant; or several.
    pub(super) async fn find(&self, name: &str) -> anyhow::Result<Entry> {
        find(self.list().await?, name)
    }

    /// Makes all these changes, and gives back the rules that were added or changed.
    ///
    /// In a database it is all or none; a server is asked for one after the other.
    ///
    /// # Errors
    ///
    /// They would make the set invalid, somebody else was faster, or the place cannot be written.
    pub(super) async fn apply(&self, who: &str, edits: Vec<Edit>) -> anyhow::Result<Vec<Entry>> {
        match self {
            Book::Starter => bail!(NOWHERE),
            Book::File(path) => bail!(file_is_read_only(&load::name(path))),
            Book::Server(client) => client.apply(who, edits).await,
            Book::Database(book) => {
                let edits = edits.into_iter().map(of_a_database).collect::<anyhow::Result<_>>()?;
                let changed = book.apply(who, edits).await.map_err(explain)?;
                Ok(changed.iter().map(Entry::from).collect())
            }
        }
    }

    /// What was changed, the newest first.
    ///
    /// # Errors
    ///
    /// A file keeps no history, or the place cannot be asked.
    pub(super) async fn history(&self, rule_id: Option<i64>, limit: u32) -> anyhow::Result<Vec<Change>> {
        match self {
            Book::Starter | Book::File(_) => bail!(NO_HISTORY),
            Book::Database(book) => {
                Ok(book.history(rule_id, limit).await?.into_iter().map(Change::from).collect())
            }
            Book::Server(client) => client.history(rule_id, limit).await,
        }
    }

    /// Brings a rule back to what it was before a change; none if that was its beginning.
    ///
    /// # Errors
    ///
    /// There is no such change, the rule was changed since, or as [`history`](Self::history).
    pub(super) async fn undo(&self, who: &str, id: i64) -> anyhow::Result<Option<Entry>> {
        match self {
            Book::Starter | Book::File(_) => bail!(NO_HISTORY),
            Book::Database(book) => Ok(book.undo(who, id).await.map_err(explain)?.as_ref().map(Entry::from)),
            Book::Server(client) => client.undo(who, id).await,
        }
    }
}

const NOWHERE: &str = "the built-in rules cannot be changed; say where yours are: --rules sqlite://rules.db, \
                       --rules postgres://user@host/name, or --server http://127.0.0.1:8081";
const NO_HISTORY: &str = "a file keeps no history; a database does (--rules sqlite://rules.db or postgres://user@host/name), \
                          and `tollgate rules import` takes a file there";

/// Why a command that changes rules does not change a rules file, and what to do instead.
pub(super) fn file_is_read_only(name: &str) -> String {
    format!(
        "{name} is a file, and this command changes rules in a database or in a server; edit the file, which a running \
         server loads within a second, or use --server http://127.0.0.1:8081, or move the rules to a database with \
         `tollgate rules import {name} --rules sqlite://rules.db`"
    )
}

fn file_text(path: &Path) -> anyhow::Result<String> {
    load::text(path).map_err(|error| {
        let way_out = "name another with --rules, or leave it out for the built-in starter set";
        anyhow!("cannot read the rules {}: {error}; {way_out}", load::name(path))
    })
}

/// The rules of a text. They make a set, or the error says everything that is wrong.
fn entries(name: &str, text: &str) -> anyhow::Result<Vec<Entry>> {
    Ok(rules::parse(name, text)?.rules().iter().map(|rule| Entry::of(rule.draft().clone())).collect())
}

/// The rule that a label, a name or a number means.
pub(super) fn find(entries: Vec<Entry>, name: &str) -> anyhow::Result<Entry> {
    let number: Option<i64> = name.parse().ok();
    let is_called = |entry: &Entry| entry.label() == name || entry.draft.name.as_deref() == Some(name);
    let is_numbered = |entry: &Entry| number.is_some() && entry.rule_id == number;
    let by_label: Vec<&Entry> = entries.iter().filter(|entry| is_called(entry)).collect();
    let by_number = entries.iter().find(|entry| is_numbered(entry));
    match (&by_label[..], by_number) {
        ([one], None) => Ok((*one).clone()),
        ([one], Some(other)) if one.rule_id == other.rule_id => Ok((*one).clone()),
        ([], Some(one)) => Ok(one.clone()),
        ([], None) => Err(unknown(name, entries.iter().map(Entry::label))),
        _ => bail!("several rules are called `{name}`; name one by another name or by its number"),
    }
}

/// That there is no such rule, and which was probably meant.
pub(super) fn unknown<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> anyhow::Error {
    let way_out = match closest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`tollgate rules list` shows their names".to_owned(),
    };
    anyhow!("there is no rule `{name}`; {way_out}")
}

fn of_a_database(edit: Edit) -> anyhow::Result<rules::Edit> {
    let known = |entry: &Entry| entry.rule_id.zip(entry.version).context("the rule has no number yet");
    Ok(match edit {
        Edit::Add(draft) => rules::Edit::Add(draft),
        Edit::Update(entry, draft) => {
            let (rule_id, version) = known(&entry)?;
            // The draft has the row's other fields, and would drop what cannot be read.
            if let Some(columns) = entry.unreadable {
                bail!("rule {rule_id} is not a rule: {columns}; correct the row with SQL, or remove it");
            }
            rules::Edit::Update { rule_id, version, draft }
        }
        Edit::Remove(entry) => {
            let (rule_id, version) = known(&entry)?;
            rules::Edit::Remove { rule_id, version }
        }
        Edit::Enable(entry) => rules::Edit::Enable { rule_id: known(&entry)?.0 },
        Edit::Disable(entry) => rules::Edit::Disable { rule_id: known(&entry)?.0 },
    })
}

fn explain(error: BookError) -> anyhow::Error {
    let said = error.to_string();
    match error {
        BookError::Conflict { yours, theirs, .. } => {
            let draft = |row: Option<Box<RuleRow>>| row.map(|row| row.draft());
            conflict(&said, draft(yours).as_ref(), draft(theirs).as_ref())
        }
        error => error.into(),
    }
}

/// That somebody was faster, with what both want.
pub(crate) fn conflict(said: &str, yours: Option<&Draft>, theirs: Option<&Draft>) -> anyhow::Error {
    let rule = |draft: Option<&Draft>| draft.map_or_else(|| "none".to_owned(), braces);
    anyhow!("{said}\n  yours:  {}\n  theirs: {}", rule(yours), rule(theirs))
}
