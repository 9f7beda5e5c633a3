//! `[identify]`: where the facts about a request come from.

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use tollgate_tower::{Identify, IdentifyConfig, IdentifyError};
use toml::de::{DeTable, DeValue};

use super::file::{Mistakes, Spanned};

pub(super) const NAME: &str = "identify";
const KEYS: [&str; 6] = ["trusted_proxies", "forwarding_header", "headers", "api_key", "paths", "host"];

/// Reads the table; what is wrong with it goes to `mistakes`.
pub(super) fn read(text: &str, table: &Spanned<DeValue<'_>>, mistakes: &mut Mistakes) -> Identify {
    let nobody = Identify::new();
    let Some(keys) = table.get_ref().as_table().map(DeTable::keys) else {
        mistakes.kind(NAME, table, "a table");
        return nobody;
    };
    let mut all_known = true;
    for key in keys.filter(|key| !KEYS.contains(&&**key.get_ref())) {
        mistakes.unknown(key.span(), key.get_ref(), &KEYS);
        all_known = false;
    }
    if !all_known {
        return nobody;
    }
    let config = match IdentifyConfig::deserialize(table.clone().into_deserializer()) {
        Ok(config) => config,
        Err(error) => {
            mistakes.add(error.span().unwrap_or(table.span()), format!("{NAME}: {}", error.message()));
            return nobody;
        }
    };
    Identify::try_from(config).unwrap_or_else(|error| {
        mistakes.add(place(text, table, &error), error.to_string());
        nobody
    })
}

/// Where what is wrong is written.
fn place(text: &str, table: &Spanned<DeValue<'_>>, error: &IdentifyError) -> std::ops::Range<usize> {
    let said = match error {
        IdentifyError::Header { name } | IdentifyError::Attribute { name } => name,
        IdentifyError::Network { text } => text,
        _ => return paths(table).unwrap_or(table.span()),
    };
    // A table may go on behind its own braces, line by line: look from its beginning.
    let start = table.span().start;
    text[start..].find(said.as_str()).map_or(table.span(), |at| start + at..start + at + said.len())
}

fn paths(table: &Spanned<DeValue<'_>>) -> Option<std::ops::Range<usize>> {
    table.get_ref().get("paths").map(Spanned::span)
}
