//! Rules files: from YAML to a [`RuleSet`], or to everything that is wrong with it.
//!
//! ```text
//! text --yaml--> tree --read--> drafts --assemble--> RuleSet
//!            everything wrong on the way --errors--> RulesError
//! ```
//!
//! Each stage continues after a mistake, so that an operator sees all of them together, each with its line, a caret and
//! what to write. Only text that is not YAML stops the reading. Values are text as written: `user_id: [666, "666"]` is
//! twice the same, and `plan: 1.50` is the plan `1.50`. JSON is YAML, so a JSON body is read the same way.
//!
//! Anchors, aliases and merge keys are errors. Whatever the text, reading it is bounded in size, depth and number of values.
//!
//! This works on the parser's events rather than through serde, which stops at the first mistake and reads
//! `1.50` as `1.5`.

mod assemble;
#[cfg(feature = "sql")]
mod book;
#[cfg(feature = "sql")]
mod database;
mod errors;
mod fields;
mod file;
mod follow;
mod read;
mod render;
mod row;
mod rows;
mod snapshot;
mod source;
#[cfg(test)]
mod tests;
mod yaml;

use tollgate_core::{Draft, Rule, RuleSet};

use errors::Findings;
use read::Written;
use yaml::Node;

#[cfg(feature = "sql")]
pub use book::{BookError, Change, Edit, RuleBook};
#[cfg(feature = "sql")]
pub use database::DatabaseSource;
pub use errors::{Problem, RulesError};
pub use file::FileSource;
pub use follow::{Follower, Refresher, RulesReport, RulesStatus};
pub use render::Style;
pub use row::{RuleRow, UnreadableColumn};
pub use rows::{RowProblem, RowsError};
pub use snapshot::SnapshotFile;
pub use source::{Loaded, RuleSource, SourceError};

/// The rules to begin with where none are given: `examples/rules/starter.yaml`.
pub const STARTER: &str = include_str!("starter.yaml");

/// Reads a rules file; `source` is what errors call it.
///
/// ```
/// # use tollgate::rules;
/// let rules = rules::parse("rules.yaml", "rules: [{ key: 'user:{user_id}', limit: 10/s burst 50 }]")?;
/// assert_eq!(rules.rules()[0].label(), "user:{user_id} 1s");
///
/// let error = rules::parse("rules.yaml", "rules: [{ key: global, limt: 10/s }]").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "rules.yaml:1:24: rule `global`: unknown field `limt`; did you mean `limit`?",
/// );
/// # Ok::<(), rules::RulesError>(())
/// ```
///
/// # Errors
///
/// Everything that is wrong with the file.
pub fn parse(source: &str, text: &str) -> Result<RuleSet, RulesError> {
    read_with(source, text, read::file, assemble::set)
}

/// Reads a bare list of rules, such as the `rules` of a trace line or of a JSON body.
///
/// # Errors
///
/// Everything that is wrong with the list.
pub fn parse_list(source: &str, text: &str) -> Result<RuleSet, RulesError> {
    read_with(source, text, read::list, assemble::set)
}

/// Reads a single rule, such as a JSON body.
///
/// # Errors
///
/// Everything that is wrong with the rule. What it replaces is the set's business.
pub fn parse_rule(source: &str, text: &str) -> Result<Rule, RulesError> {
    let read = |node, findings: &mut _| read::rule(node, findings).into_iter().collect();
    read_with(source, text, read, |mut rules: Vec<Written<'_>>, findings| {
        let rule = rules.first_mut().and_then(|rule| assemble::build(rule, findings));
        assemble::label(&rules, findings);
        rule
    })
}

/// Reads a rules file without building its rules: fields and types are checked, what they say is not.
///
/// # Errors
///
/// What is wrong with the shape of the file.
pub fn parse_drafts(source: &str, text: &str) -> Result<Vec<Draft>, RulesError> {
    read_with(source, text, read::file, |rules, findings| {
        assemble::label(&rules, findings);
        Some(rules.into_iter().map(|rule| rule.draft).collect())
    })
}

/// Loads, reads and finishes a text, and turns whatever was found into an error.
fn read_with<'t, T>(
    source: &str,
    text: &'t str,
    read: impl FnOnce(Node<'t>, &mut Findings) -> Vec<Written<'t>>,
    finish: impl FnOnce(Vec<Written<'t>>, &mut Findings) -> Option<T>,
) -> Result<T, RulesError> {
    let mut findings = Findings::default();
    let read = yaml::load(text, &mut findings).map(|root| read(root, &mut findings));
    let finished = read.and_then(|rules| finish(rules, &mut findings));
    match finished {
        Some(finished) if findings.is_empty() => Ok(finished),
        _ => Err(RulesError::new(source, text, findings)),
    }
}
