//! The JSON Schema of a rules file, `docs/reference/rules.schema.json`: made from the table of fields, and tested against
//! the examples.

use std::path::Path;

use serde_json::{Map, Value, json};
use tollgate_core::Draft;
use tollgate_core::rule::{FieldInfo, FieldKind};

use super::super::errors::Findings;
use super::super::yaml::{self, Node, load};

/// The schema, from the table of fields.
fn schema() -> Value {
    let properties: Map<String, Value> =
        Draft::FIELDS.iter().map(|field| (field.name.to_owned(), property(field))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tollgate rules",
        "description": "A rules file.",
        "type": "object",
        "additionalProperties": false,
        "required": ["rules"],
        "properties": {
            "rules": {
                "description": "The rules, in any order.",
                "type": "array",
                "items": { "$ref": "#/$defs/Rule" },
            },
        },
        "$defs": {
            "Rule": {
                "description": "One rule: whom it applies to and what it allows.",
                "type": "object",
                "additionalProperties": false,
                "required": ["key"],
                "properties": properties,
            },
            "OneOrMany": {
                "description": "A value or a list of values. Numbers and booleans are compared as text.",
                "anyOf": [
                    { "$ref": "#/$defs/Scalar" },
                    { "type": "array", "items": { "$ref": "#/$defs/Scalar" } },
                ],
            },
            "Scalar": { "type": ["string", "number", "boolean"] },
        },
    })
}

fn property(field: &FieldInfo) -> Value {
    let mut property = match field.kind {
        FieldKind::Name => json!({ "type": ["string", "null"], "minLength": 1, "maxLength": 128 }),
        FieldKind::Word(words) => json!({ "type": ["string", "null"], "enum": words }),
        FieldKind::Boolean => json!({ "type": ["boolean", "null"] }),
        FieldKind::Number { min, max } => {
            json!({ "type": ["integer", "null"], "minimum": min, "maximum": max })
        }
        FieldKind::Cost => json!({ "type": ["integer", "string", "null"], "minimum": 1 }),
        FieldKind::Texts => json!({ "$ref": "#/$defs/OneOrMany" }),
        FieldKind::Conditions => {
            json!({ "type": "object", "additionalProperties": { "$ref": "#/$defs/OneOrMany" } })
        }
        _ if field.name == "key" => json!({ "type": "string" }),
        _ => json!({ "type": ["string", "null"] }),
    };
    property["description"] = json!(field.description);
    property
}

#[test]
fn the_schema_accepts_the_examples_and_nothing_misspelt() {
    let examples = [
        include_str!("../../../../../examples/rules/starter.yaml"),
        include_str!("../../../../../examples/rules/every-field.yaml"),
    ];
    let root = schema();
    for example in examples {
        let json = as_json(&load(example, &mut Findings::default()).unwrap());
        assert_eq!(check(&root, &root, &json), Ok(()));
    }
    let refused = [
        json!({ "rules": [{ "key": "global", "limt": "1/s" }] }),
        json!({ "rules": [{ "key": "global", "algorithm": "magic" }] }),
        json!({ "rules": [{ "key": "global", "when": { "ip": [["x"]] } }] }),
        json!({ "rules": [{ "limit": "1/s" }] }),
        json!({ "rulez": [] }),
    ];
    for file in refused {
        assert!(check(&root, &root, &file).is_err(), "{file}");
    }
}

#[test]
fn the_schema_in_the_docs_is_this_one() {
    let ours = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/rules.schema.json");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&file, &ours).unwrap();
    }
    let theirs = std::fs::read_to_string(&file).unwrap();
    assert_eq!(theirs, ours, "run this test with TOLLGATE_BLESS=1 to write it anew");
}

/// What an editor makes of YAML.
fn as_json(node: &Node<'_>) -> Value {
    match &node.value {
        yaml::Value::List(items) => items.iter().map(as_json).collect(),
        yaml::Value::Map(entries) => {
            entries.iter().map(|entry| (entry.key.text().unwrap(), as_json(&entry.value))).collect()
        }
        yaml::Value::Quoted(text) => json!(text),
        yaml::Value::Plain(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        yaml::Value::Broken => panic!("an example is broken"),
    }
}

/// As much of JSON Schema as this schema uses; a validator would be forty crates.
fn check(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let fits = |schema: &Value, value: &Value| check(root, schema, value);
    for (keyword, wanted) in schema.as_object().unwrap() {
        let holds = match keyword.as_str() {
            "$ref" => {
                let path = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                fits(root.pointer(path).unwrap(), value).is_ok()
            }
            "type" => match wanted {
                Value::Array(types) => types.iter().any(|name| is_a(value, name)),
                name => is_a(value, name),
            },
            "enum" => wanted.as_array().unwrap().contains(value),
            "anyOf" => wanted.as_array().unwrap().iter().any(|one| fits(one, value).is_ok()),
            "required" => {
                wanted.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "items" => {
                value.as_array().into_iter().flatten().try_for_each(|item| fits(wanted, item)) == Ok(())
            }
            "properties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    wanted.get(name).map_or(Ok(()), |schema| fits(schema, value))?;
                }
                true
            }
            "additionalProperties" => {
                let known = |name: &str| schema.pointer(&format!("/properties/{name}")).is_some();
                let mut others = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
                others.all(|(_, value)| *wanted != json!(false) && fits(wanted, value).is_ok())
            }
            "minimum" => value.as_f64() >= wanted.as_f64() || !value.is_number(),
            "maximum" => value.as_f64() <= wanted.as_f64() || !value.is_number(),
            "minLength" => value.as_str().is_none_or(|text| text.len() as u64 >= wanted.as_u64().unwrap()),
            "maxLength" => value.as_str().is_none_or(|text| text.len() as u64 <= wanted.as_u64().unwrap()),
            "$defs" | "$schema" | "title" | "description" | "default" | "format" => true,
            unknown => panic!("teach this test `{unknown}`"),
        };
        if !holds {
            return Err(format!("`{keyword}` refuses {value}"));
        }
    }
    Ok(())
}

fn is_a(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        unknown => panic!("teach this test `{unknown}`"),
    }
}
