//! The JSON Schema of a rules file, for editors and for people who generate files.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;
use tollgate_core::Draft;

/// A rules file.
#[derive(JsonSchema)]
#[schemars(title = "tollgate rules", deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct File {
    /// The rules, in any order.
    rules: Vec<Draft>,
}

/// The JSON Schema of a rules file, as it ships in `docs/reference/rules.schema.json`.
pub fn schema() -> Value {
    SchemaGenerator::new(SchemaSettings::draft2020_12()).into_root_schema_for::<File>().to_value()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::super::errors::Findings;
    use super::super::yaml::{self, Node, load};
    use super::*;

    #[test]
    fn the_schema_accepts_the_examples_and_nothing_misspelt() {
        let examples = [
            include_str!("../../../../examples/rules/starter.yaml"),
            include_str!("../../../../examples/rules/every-field.yaml"),
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
                    return fits(root.pointer(path).unwrap(), value);
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
                "minLength" => {
                    value.as_str().is_none_or(|text| text.len() as u64 >= wanted.as_u64().unwrap())
                }
                "maxLength" => {
                    value.as_str().is_none_or(|text| text.len() as u64 <= wanted.as_u64().unwrap())
                }
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
}
