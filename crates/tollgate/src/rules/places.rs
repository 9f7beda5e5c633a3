//! Where a rules file says what, for programs that edit one and leave the rest of it as it is.

use std::ops::Range;

use tollgate_core::Draft;

use super::findings::Span;
use super::read::{self, Written};
use super::tree::{Node, Value, find};
use super::{RulesError, assemble, read_with};

/// The rules of a file and where they stand, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The list of rules: from its `[` or its first `-`.
    pub list: Range<usize>,
    /// Each rule.
    pub rules: Vec<Place>,
}

/// A rule and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The rule as written.
    pub draft: Draft,
    /// All of it. A rule that is not in brackets ends where the next thing begins, so comments may be in it.
    pub span: Range<usize>,
    /// Its fields; those that `<<` brings in stand elsewhere.
    pub fields: Vec<FieldPlace>,
}

/// A field and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPlace {
    /// The field.
    pub name: String,
    /// Its name.
    pub key: Range<usize>,
    /// What it says.
    pub value: Range<usize>,
}

/// Reads a rules file as [`parse_drafts`](super::parse_drafts) does, and says where each rule stands.
///
/// # Errors
///
/// What is wrong with the shape of the file.
pub fn places(source: &str, text: &str) -> Result<Places, RulesError> {
    let mut list = Range::default();
    let read = |root: &_, findings: &mut _| {
        list = rules_of(root);
        read::file(root, findings)
    };
    let rules = read_with(source, text, read, |rules, findings| {
        assemble::label(&rules, findings);
        Some(rules.into_iter().map(place).collect())
    })?;
    Ok(Places { list, rules })
}

fn rules_of(root: &Node<'_>) -> Range<usize> {
    match &root.value {
        Value::Map(entries) => find(entries, "rules").map_or_else(Range::default, |of| of.value.span.into()),
        _ => root.span.into(),
    }
}

fn place(rule: Written<'_>) -> Place {
    let field = |(name, key, value): (&str, Span, Span)| FieldPlace {
        name: name.to_owned(),
        key: key.into(),
        value: value.into(),
    };
    let fields = rule.fields().map(field).collect();
    Place { span: rule.span.into(), fields, draft: rule.draft }
}
