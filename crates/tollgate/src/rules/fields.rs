//! The values of a rule's fields: what counts as text, a number, a list.

use tollgate_core::Draft;
use tollgate_core::rule::CostDraft;

use super::errors::{Finding, Findings, clip};
use super::yaml::{Node, Value, is_numeric};

/// Reads a value into its field. Nothing written is the same as no field.
pub(super) fn read(draft: &mut Draft, field: &'static str, node: &Node<'_>, findings: &mut Findings) {
    if node.is_null() || matches!(node.value, Value::Broken) {
        return;
    }
    let result = match field {
        "name" => text(node, field).map(|text| draft.name = Some(text)),
        "key" => text(node, field).map(|text| draft.key = text),
        "plan" => text(node, field).map(|text| draft.plan = Some(text)),
        "limit" => text(node, field).map(|text| draft.limit = Some(text)),
        "algorithm" => text(node, field).map(|text| draft.algorithm = Some(text)),
        "window" => text(node, field).map(|text| draft.window = Some(text)),
        "time_zone" => text(node, field).map(|text| draft.time_zone = Some(text)),
        "aligned" => boolean(node, field).map(|yes| draft.aligned = Some(yes)),
        "when" => conditions(draft, node, findings),
        "cost" => cost(node).map(|cost| draft.cost = Some(cost)),
        "missing" => text(node, field).map(|text| draft.missing = Some(text)),
        "consistency" => text(node, field).map(|text| draft.consistency = Some(text)),
        "on_store_failure" => text(node, field).map(|text| draft.on_store_failure = Some(text)),
        "mode" => text(node, field).map(|text| draft.mode = Some(text)),
        "action" => text(node, field).map(|text| draft.action = Some(text)),
        "replaces" => {
            draft.replaces = texts(node, "the name of a rule", findings).unwrap_or_default();
            Ok(())
        }
        "ipv6_prefix" => whole_number(node, field).map(|bits| draft.ipv6_prefix = Some(bits)),
        "description" => text(node, field).map(|text| draft.description = Some(text)),
        _ => unreachable!("`Draft::FIELDS` has no `{field}`"),
    };
    if let Err(finding) = result {
        findings.add(finding);
    }
}

fn text(node: &Node<'_>, field: &str) -> Result<String, Finding> {
    node.text().map(str::to_owned).ok_or_else(|| {
        let example = example(field);
        let quotes = match node.value {
            Value::Map(_) => "; a value that begins with `{` needs quotes",
            _ => "",
        };
        Finding::new(node.span, format!("`{field}` takes text, not {}", node.kind()))
            .help(format!("write it like `{field}: {example}`{quotes}"))
    })
}

/// What the text of a field looks like.
fn example(field: &str) -> &'static str {
    match field {
        "name" => "per-user",
        "key" => "user:{user_id}",
        "plan" => "free",
        "limit" => "100/min burst 20",
        "algorithm" => "token_bucket",
        "window" => "epoch",
        "time_zone" => "Europe/Berlin",
        "missing" => "skip",
        "consistency" => "exact",
        "on_store_failure" => "open",
        "mode" => "enforce",
        "action" => "deny",
        _ => "a few words",
    }
}

fn boolean(node: &Node<'_>, field: &str) -> Result<bool, Finding> {
    match &node.value {
        Value::Plain(text) if matches!(&**text, "true" | "True" | "TRUE") => Ok(true),
        Value::Plain(text) if matches!(&**text, "false" | "False" | "FALSE") => Ok(false),
        _ => {
            let finding = Finding::new(node.span, format!("`{field}` is true or false, not {}", shown(node)));
            Err(finding.help(format!("write `{field}: true` or `{field}: false`, without quotes")))
        }
    }
}

fn whole_number(node: &Node<'_>, field: &str) -> Result<u64, Finding> {
    match &node.value {
        // A number beyond 64 bits is out of every range, which core says best.
        Value::Plain(text) if is_digits(text) => Ok(text.parse().unwrap_or(u64::MAX)),
        _ => {
            let finding =
                Finding::new(node.span, format!("`{field}` is a whole number, not {}", shown(node)));
            Err(finding.help(format!("write it like `{field}: 56`, without quotes")))
        }
    }
}

/// A number of times, or the name of an attribute. What only looks like a number is neither.
fn cost(node: &Node<'_>) -> Result<CostDraft, Finding> {
    match &node.value {
        Value::Plain(text) if is_digits(text) => Ok(CostDraft::Times(text.parse().unwrap_or(u64::MAX))),
        Value::Plain(text) | Value::Quoted(text)
            if !is_numeric(text) && !matches!(&**text, "true" | "false") =>
        {
            Ok(CostDraft::Attribute(text.to_string()))
        }
        _ => {
            let message =
                format!("`cost` is a whole number or the name of an attribute, not {}", shown(node));
            Err(Finding::new(node.span, message).help("write `cost: 2` or `cost: tokens`"))
        }
    }
}

/// Attribute to value, or to a list of values.
fn conditions(draft: &mut Draft, node: &Node<'_>, findings: &mut Findings) -> Result<(), Finding> {
    let Value::Map(entries) = &node.value else {
        let finding = Finding::new(node.span, format!("`when` takes conditions, not {}", shown(node)));
        return Err(finding.help("write attribute and value, like `when: { method: [GET, POST] }`"));
    };
    for entry in entries.iter() {
        let attribute = entry.key.text().unwrap_or_default();
        // Values that could not be read leave a gap that core would misunderstand.
        if let Some(values) = texts(&entry.value, "a value", findings) {
            draft.when.insert(attribute.to_owned(), values);
        }
    }
    Ok(())
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

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
