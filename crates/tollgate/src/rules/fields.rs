//! The values of a rule's fields: what counts as text, a number, a list.

use std::collections::BTreeMap;

use tollgate_core::Draft;
use tollgate_core::rule::{FieldInfo, FieldKind, FieldValue};

use super::errors::{Finding, Findings, clip};
use super::yaml::{Node, Value, is_numeric};

/// Reads a value into its field. Nothing written is the same as no field.
pub(super) fn read(draft: &mut Draft, field: &FieldInfo, node: &Node<'_>, findings: &mut Findings) {
    if node.is_null() || matches!(node.value, Value::Broken) {
        return;
    }
    let value = match field.kind {
        FieldKind::Boolean => boolean(node, field),
        FieldKind::Number { .. } => whole_number(node, field),
        FieldKind::Cost => cost(node),
        FieldKind::Texts => match texts(node, "the name of a rule", findings) {
            Some(texts) => Ok(FieldValue::Texts(texts)),
            None => return,
        },
        FieldKind::Conditions => conditions(node, field, findings),
        _ => text(node, field),
    };
    match value {
        Ok(value) => draft.set(field.name, value),
        Err(finding) => findings.add(finding),
    }
}

fn text(node: &Node<'_>, FieldInfo { name, example, .. }: &FieldInfo) -> Result<FieldValue, Finding> {
    node.text().map(|text| FieldValue::Text(text.to_owned())).ok_or_else(|| {
        let quotes = match node.value {
            Value::Map(_) => "; a value that begins with `{` needs quotes",
            _ => "",
        };
        Finding::new(node.span, format!("`{name}` takes text, not {}", node.kind()))
            .help(format!("write it like `{name}: {example}`{quotes}"))
    })
}

fn boolean(node: &Node<'_>, FieldInfo { name, .. }: &FieldInfo) -> Result<FieldValue, Finding> {
    match &node.value {
        Value::Plain(text) if matches!(&**text, "true" | "True" | "TRUE") => Ok(FieldValue::Boolean(true)),
        Value::Plain(text) if matches!(&**text, "false" | "False" | "FALSE") => {
            Ok(FieldValue::Boolean(false))
        }
        _ => {
            let finding = Finding::new(node.span, format!("`{name}` is true or false, not {}", shown(node)));
            Err(finding.help(format!("write `{name}: true` or `{name}: false`, without quotes")))
        }
    }
}

fn whole_number(node: &Node<'_>, FieldInfo { name, example, .. }: &FieldInfo) -> Result<FieldValue, Finding> {
    number(node).ok_or_else(|| {
        let finding = Finding::new(node.span, format!("`{name}` is a whole number, not {}", shown(node)));
        finding.help(format!("write it like `{name}: {example}`, without quotes"))
    })
}

/// A number of times, or the name of an attribute. What only looks like a number is neither.
fn cost(node: &Node<'_>) -> Result<FieldValue, Finding> {
    match &node.value {
        Value::Plain(text) | Value::Quoted(text)
            if !is_numeric(text) && !matches!(&**text, "true" | "false") =>
        {
            Ok(FieldValue::Text(text.to_string()))
        }
        _ => number(node).ok_or_else(|| {
            let message =
                format!("`cost` is a whole number or the name of an attribute, not {}", shown(node));
            Finding::new(node.span, message).help("write `cost: 2` or `cost: tokens`")
        }),
    }
}

fn number(node: &Node<'_>) -> Option<FieldValue> {
    match &node.value {
        // A number beyond 64 bits is out of every range, which core reports.
        Value::Plain(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(FieldValue::Number(text.parse().unwrap_or(u64::MAX)))
        }
        _ => None,
    }
}

/// Attribute to value, or to a list of values.
fn conditions(
    node: &Node<'_>,
    FieldInfo { name, example, .. }: &FieldInfo,
    findings: &mut Findings,
) -> Result<FieldValue, Finding> {
    let Value::Map(entries) = &node.value else {
        let finding = Finding::new(node.span, format!("`{name}` takes conditions, not {}", shown(node)));
        return Err(finding.help(format!("write attribute and value, like `{name}: {example}`")));
    };
    let mut conditions = BTreeMap::new();
    for entry in entries {
        let attribute = entry.key.text().unwrap_or_default();
        // Values that could not be read leave a gap that core would misunderstand.
        if let Some(values) = texts(&entry.value, "a value", findings) {
            conditions.insert(attribute.to_owned(), values);
        }
    }
    Ok(FieldValue::Conditions(conditions))
}

/// A text, or a list of texts; nothing when one of them is wrong.
fn texts(node: &Node<'_>, what: &str, findings: &mut Findings) -> Option<Vec<String>> {
    let items = match &node.value {
        Value::List(items) => &items[..],
        _ if node.is_null() => &[],
        _ => std::slice::from_ref(node),
    };
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        match item.text() {
            Some(text) if !item.is_null() => texts.push(text.to_owned()),
            Some(_) => {
                let finding = Finding::new(item.span, format!("{what} is missing in this list"));
                findings.add(finding.help("drop the item, or put quotes around the text `null`"));
            }
            None if matches!(item.value, Value::Broken) => {}
            None => {
                let finding = Finding::new(item.span, format!("{what} is text, not {}", item.kind()));
                findings.add(finding.help("write one, or a list of them like `[a, b]`"));
            }
        }
    }
    (texts.len() == items.len()).then_some(texts)
}

/// The value in the words of an error: a scalar as written, anything else by its kind.
fn shown(node: &Node<'_>) -> String {
    match &node.value {
        Value::Plain(text) => format!("`{}`", clip(text)),
        Value::Quoted(text) => format!("the text `\"{}\"`", clip(text)),
        _ => node.kind().to_owned(),
    }
}
