//! From a tree to drafts: the shape of a rules file.

use tollgate_core::Draft;
use tollgate_core::suggest::closest;

use super::errors::{Finding, Findings, Span, clip};
use super::fields;
use super::yaml::{Entry, Node, Value, find};

/// A rule as written, and where each part of it stands.
pub(super) struct Written<'t> {
    pub(super) draft: Draft,
    /// The name, or the key of an unnamed rule.
    pub(super) label: Option<String>,
    /// All of the rule.
    pub(super) span: Span,
    /// Where to point when the whole rule is meant.
    pub(super) head: Span,
    entries: Vec<Entry<'t>>,
    /// Fields that are reported already.
    broken: Vec<&'static str>,
}

impl<'t> Written<'t> {
    /// What was written for a field.
    pub(super) fn value(&self, field: &str) -> Option<&Node<'t>> {
        find(&self.entries, field).map(|entry| &entry.value)
    }

    /// Whether a field was reported already.
    pub(super) fn is_broken(&self, field: &str) -> bool {
        self.broken.contains(&field)
    }
}

/// The rules of a whole file: a mapping with `rules`.
pub(super) fn file<'t>(root: Node<'t>, findings: &mut Findings) -> Vec<Written<'t>> {
    let list = match root.value {
        Value::Map(entries) => top_level(entries, findings),
        // The rules themselves, most likely: report it, and read them.
        Value::List(_) => {
            let finding = Finding::new(root.span, "the file begins with a list, not with `rules:`");
            findings.add(finding.help("write `rules:` on a line of its own above the list"));
            Some(root)
        }
        Value::Broken => None,
        _ if root.is_null() => {
            let finding = Finding::new(root.span, "the file is empty");
            findings
                .add(finding.help("write `rules:` and a list of rules below it, or `rules: []` for none"));
            None
        }
        _ => {
            let finding = Finding::new(root.span, format!("a rules file is a mapping, not {}", root.kind()));
            findings.add(finding.help("begin it with `rules:` and a list of rules below it"));
            None
        }
    };
    list.map_or_else(Vec::new, |list| self::list(list, findings))
}

/// Checks the fields around the rules, of which there is only the one.
fn top_level<'t>(entries: Vec<Entry<'t>>, findings: &mut Findings) -> Option<Node<'t>> {
    let mut explained = false;
    for entry in entries.iter().filter(|entry| entry.key.text() != Some("rules")) {
        let name = entry.key.text().unwrap_or_default();
        let near = closest(name, ["rules"]);
        let of_a_rule = Draft::field(name).is_some();
        explained |= near.is_some() || of_a_rule;
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None if of_a_rule => "it belongs to a rule: write it in an item of the list `rules`".to_owned(),
            None => "a rules file has one field, `rules`".to_owned(),
        };
        findings.add(Finding::new(entry.key.span, format!("unknown field `{}`", clip(name))).help(help));
    }
    let place = entries.first().map_or_else(Span::default, |entry| entry.key.span);
    let rules = entries.into_iter().find(|entry| entry.key.text() == Some("rules")).map(|entry| entry.value);
    if rules.is_none() && !explained {
        let finding = Finding::new(place, "the field `rules` is missing");
        findings.add(finding.help("write `rules:` and a list of rules below it"));
    }
    rules
}

/// The rules of a list.
pub(super) fn list<'t>(node: Node<'t>, findings: &mut Findings) -> Vec<Written<'t>> {
    match node.value {
        Value::List(items) => {
            let mut rules = Vec::with_capacity(items.len());
            for item in items {
                if findings.is_full() {
                    break;
                }
                rules.extend(rule(item, findings));
            }
            rules
        }
        Value::Broken => Vec::new(),
        _ => {
            let finding = Finding::new(node.span, format!("the rules are a list, not {}", node.kind()));
            findings.add(finding.help("begin each rule with `- `, or write `[]` for no rules"));
            Vec::new()
        }
    }
}

/// One rule.
pub(super) fn rule<'t>(node: Node<'t>, findings: &mut Findings) -> Option<Written<'t>> {
    let head = node.head();
    let entries = match node.value {
        Value::Map(entries) => entries,
        Value::Broken => return None,
        _ => {
            let finding = Finding::new(node.span, format!("a rule is a mapping, not {}", node.kind()));
            findings.add(finding.help("write it like `{ key: \"user:{user_id}\", limit: 100/min }`"));
            return None;
        }
    };
    let mark = findings.len();
    let mut rule = Written {
        draft: Draft::default(),
        label: None,
        span: node.span,
        head,
        entries: Vec::new(),
        broken: Vec::new(),
    };
    for entry in &entries {
        field(&mut rule, entry, findings);
    }
    rule.entries = entries;
    let key_given = rule.value("key").is_some_and(|value| !value.is_null());
    if !key_given && !rule.is_broken("key") {
        let finding = Finding::new(rule.head, "the field `key` is missing");
        findings.add(finding.help("write one like `key: user:{user_id}`, `key: ip:{ip}` or `key: global`"));
        rule.broken.push("key");
    }
    let written = [rule.draft.name.as_ref(), Some(&rule.draft.key)];
    rule.label = written.into_iter().flatten().find(|text| !text.is_empty()).map(|text| clip(text));
    if let Some(label) = &rule.label {
        findings.label_since(mark, label);
    }
    Some(rule)
}

/// Reads one field into the draft, and remembers if that went wrong.
fn field<'t>(rule: &mut Written<'t>, entry: &Entry<'t>, findings: &mut Findings) {
    let name = entry.key.text().unwrap_or_default();
    if let Some(field) = Draft::field(name) {
        let mark = findings.len();
        fields::read(&mut rule.draft, field, &entry.value, findings);
        if findings.len() > mark || matches!(entry.value.value, Value::Broken) {
            rule.broken.push(field.name);
        }
        return;
    }
    let near = closest(name, Draft::names());
    // The field that was meant is known, so it is not reported as missing.
    rule.broken.extend(near);
    let help = match near {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("a rule has the fields {}", Draft::names().collect::<Vec<_>>().join(", ")),
    };
    findings.add(Finding::new(entry.key.span, format!("unknown field `{}`", clip(name))).help(help));
}
