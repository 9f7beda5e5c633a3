//! `[identify]`: where the facts about a request come from. A flag or a variable replaces one line of the table.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use clap::ArgMatches;
use clap::builder::FalseyValueParser;
use clap::parser::ValueSource;
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use tollgate_tower::identify::{ApiKeyConfig, ForwardingHeader};
use tollgate_tower::{Identify, IdentifyConfig, IdentifyError};
use toml::de::{DeTable, DeValue};

use super::file::{Mistakes, Spanned};
use super::{From, Setting};

pub(super) const NAME: &str = "identify";
const KEYS: [&str; 6] = ["trusted_proxies", "forwarding_header", "headers", "api_key", "paths", "host"];
/// The flag of each key, as clap knows it.
const FLAGS: [&str; 6] = [
    "trusted_proxies",
    "forwarding_header",
    "identify_headers",
    "identify_api_key",
    "identify_paths",
    "identify_host",
];

/// The flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Forward-auth: the [identify] table")]
pub(crate) struct IdentifyArgs {
    /// Proxies that may ask for their clients: addresses and networks, with commas between them [default: those on
    /// this machine]
    #[arg(long, value_name = "NETWORKS", env = "TOLLGATE_TRUSTED_PROXIES")]
    trusted_proxies: Option<String>,
    /// The header in which they name their client
    #[arg(long, value_name = "HEADER", env = "TOLLGATE_FORWARDING_HEADER",
          value_parser = ["x-forwarded-for", "forwarded"])]
    forwarding_header: Option<String>,
    /// Headers that become attributes: x-user-id=user_id,x-plan=plan
    #[arg(long, value_name = "HEADER=ATTRIBUTE,…", env = "TOLLGATE_IDENTIFY_HEADERS")]
    identify_headers: Option<String>,
    /// The header that holds an API key, which becomes an attribute as a hash [default attribute: api_key]
    #[arg(long, value_name = "HEADER[=ATTRIBUTE]", env = "TOLLGATE_IDENTIFY_API_KEY")]
    identify_api_key: Option<String>,
    /// Path templates, with commas between them: /tenants/{tenant}/**
    #[arg(long, value_name = "TEMPLATES", env = "TOLLGATE_IDENTIFY_PATHS")]
    identify_paths: Option<String>,
    /// Make the host an attribute
    #[arg(long, env = "TOLLGATE_IDENTIFY_HOST", value_parser = FalseyValueParser::new())]
    identify_host: bool,
}

/// Whether a flag stands for a line of the table.
pub(super) fn has_flag(id: &str) -> bool {
    FLAGS.contains(&id)
}

/// Replaces the lines of the table for which a flag or a variable is given; what they are is added to `settings`.
///
/// # Errors
///
/// A value is not one for its flag.
pub(super) fn replace(
    mut table: IdentifyConfig,
    given: &ArgMatches,
    settings: &mut Vec<Setting>,
) -> anyhow::Result<Identify> {
    for (key, flag) in KEYS.into_iter().zip(FLAGS) {
        let name = flag.replace('_', "-");
        let from = match given.value_source(flag) {
            Some(ValueSource::CommandLine) => From::Flag,
            Some(ValueSource::EnvVariable) => From::Environment(format!("TOLLGATE_{}", flag.to_uppercase())),
            _ => continue,
        };
        let value = match key {
            "host" => given.get_flag(flag).to_string(),
            _ => given.get_one::<String>(flag).cloned().unwrap_or_default(),
        };
        set(&mut table, key, &value).with_context(|| format!("--{name}"))?;
        let key = format!("{NAME}.{key}");
        settings.retain(|setting| setting.key != key);
        settings.push(Setting { key, value: Some(value), from });
    }
    Ok(Identify::try_from(table)?)
}

fn set(table: &mut IdentifyConfig, key: &str, value: &str) -> anyhow::Result<()> {
    match key {
        "trusted_proxies" => table.trusted_proxies = list(value).map(str::to_owned).collect(),
        "forwarding_header" => {
            table.forwarding_header = match value {
                "forwarded" => ForwardingHeader::Forwarded,
                _ => ForwardingHeader::XForwardedFor,
            }
        }
        "headers" => table.headers = list(value).map(pair).collect::<anyhow::Result<BTreeMap<_, _>>>()?,
        "api_key" => {
            let (header, attribute) = value.split_once('=').unwrap_or((value, "api_key"));
            let (header, attribute) = (header.trim().to_owned(), attribute.trim().to_owned());
            table.api_key = Some(ApiKeyConfig { header, attribute, hashed: true });
        }
        "paths" => table.paths = list(value).map(str::to_owned).collect(),
        _ => table.host = value == "true",
    }
    // The table from the file is valid, so what is wrong now is this value.
    Identify::try_from(table.clone()).map(drop)?;
    Ok(())
}

/// What stands between commas; an empty text is an empty list.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn pair(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('=') {
        Some((header, attribute)) => Ok((header.trim().to_owned(), attribute.trim().to_owned())),
        None => bail!("`{text}`: write a header and its attribute, as in x-user-id=user_id"),
    }
}

/// Reads the table; what is wrong with it goes to `mistakes`.
pub(super) fn read(text: &str, table: &Spanned<DeValue<'_>>, mistakes: &mut Mistakes) -> IdentifyConfig {
    let nobody = IdentifyConfig::default();
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
    if let Err(error) = Identify::try_from(config.clone()) {
        mistakes.add(place(text, table, &error), error.to_string());
    }
    config
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
