//! The rules of a file: read, and changed without touching the rest of it.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use tollgate::core::Draft;
use tollgate::core::rule::Mode;
use tollgate::rules::{self, Places};

use super::book::{Edit, Entry};
use super::fields::without_places;
use super::place::Access;
use super::text::{self, Changes};
use super::yaml;
use crate::load;

/// A rules file.
#[derive(Debug)]
pub(super) struct FileBook {
    path: PathBuf,
    access: Access,
}

impl FileBook {
    pub(super) fn new(path: &Path, access: Access) -> Self {
        FileBook { path: path.to_owned(), access }
    }

    /// What errors call it.
    pub(super) fn shown(&self) -> String {
        load::name(&self.path)
    }

    /// The rules as written. They make a set, or this says all that is wrong.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or everything that is wrong with it.
    pub(super) fn drafts(&self) -> anyhow::Result<Vec<Draft>> {
        Ok(drafts(&self.shown(), &self.text()?)?)
    }

    /// The text. A file that is about to be made may be missing.
    fn text(&self) -> anyhow::Result<String> {
        match load::text(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.access == Access::Make => {
                Ok(yaml::file([]))
            }
            read => read.map_err(|error| {
                let way_out = "name another with --rules, or leave it out for the built-in starter set";
                anyhow!("cannot read the rules {}: {error}; {way_out}", self.shown())
            }),
        }
    }

    /// Makes all these changes or none, and gives back the rules that were added or changed.
    ///
    /// # Errors
    ///
    /// The set would be invalid, the file cannot be written, or a change would touch what is not to be changed.
    pub(super) fn apply(&self, edits: Vec<Edit>) -> anyhow::Result<Vec<Entry>> {
        ensure!(!load::is_stdin(&self.path), "standard input cannot be changed; name a file with --rules");
        let name = self.shown();
        let before = self.text()?;
        let places = rules::places(&name, &before)?;
        let (changes, touched) = changes(&places, edits)?;
        let wanted = changes.result(&places);
        let after = text::attempts(&before, &places, &changes)
            .into_iter()
            .find(|after| rules::parse_drafts(&name, after).is_ok_and(|drafts| drafts == wanted))
            .with_context(|| {
                format!("{name} is written in a way that this cannot change safely; {BY_HAND}")
            })?;
        // Nobody has seen the new text: what is wrong with it is told without its lines.
        if let Err(error) = rules::parse(&name, &after) {
            drafts(&name, &before)?; // it was wrong before
            bail!(without_places(&error));
        }
        self.write(&after).with_context(|| format!("cannot write {name}"))?;
        Ok(touched.into_iter().map(Entry::of).collect())
    }

    /// Puts the new text in the place of the old: whoever reads meanwhile sees one of the two.
    fn write(&self, text: &str) -> io::Result<()> {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone()); // through a link
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}.new", std::process::id()));
        let written = fs::File::create_new(&beside).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            if let Ok(data) = fs::metadata(&path) {
                file.set_permissions(data.permissions())?;
            }
            file.sync_all()?;
            fs::rename(&beside, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&beside); // it may not be there
        }
        written
    }
}

const BY_HAND: &str = "change it with an editor and try it with `tollgate rules lint`, or keep rules in a database \
                       (`tollgate rules import --rules sqlite://rules.db FILE`)";

fn drafts(name: &str, text: &str) -> Result<Vec<Draft>, rules::RulesError> {
    let set = rules::parse(name, text)?;
    Ok(set.rules().iter().map(|rule| rule.draft().clone()).collect())
}

/// What becomes of each rule, and those that are new or different.
fn changes(places: &Places, edits: Vec<Edit>) -> anyhow::Result<(Changes, Vec<Draft>)> {
    let mut changes = Changes::default();
    let mut touched = Vec::new();
    let labels = places.rules.iter().map(|place| Entry::of(place.draft.clone()).label().to_owned());
    let known: HashMap<String, usize> = labels.zip(0..).collect();
    for edit in edits {
        let (entry, draft) = match edit {
            Edit::Add(draft) => {
                touched.push(draft.clone());
                changes.added.push(draft);
                continue;
            }
            Edit::Remove(entry) => (entry, None),
            Edit::Update(entry, draft) => (entry, Some(draft)),
            Edit::Enable(entry) if !entry.is_off() => continue,
            Edit::Enable(entry) => switched(entry, None),
            Edit::Disable(entry) => switched(entry, Some(Mode::Off.as_str().to_owned())),
        };
        let place = known.get(entry.label()).filter(|place| places.rules[**place].draft == entry.draft);
        let place = *place.with_context(|| {
            format!("the rule `{}` was changed or removed meanwhile; try again", entry.label())
        })?;
        touched.extend(draft.clone());
        changes.changed.insert(place, draft);
    }
    Ok((changes, touched))
}

fn switched(entry: Box<Entry>, mode: Option<String>) -> (Box<Entry>, Option<Draft>) {
    let draft = Draft { mode, ..entry.draft.clone() };
    (entry, Some(draft))
}
