//! `[headers]`: how answers tell callers about their limits.

use std::fs;
use std::path::Path;

use tollgate::core::suggest::closest;
use tollgate::core::{HeaderForm, HeaderSet, PartitionSecret, ResetForm};
use toml::de::DeValue;

use super::file::{Mistakes, Spanned, whole};

pub(super) const NAME: &str = "headers";
const KEYS: [&str; 4] = ["form", "reset", "retry_jitter_s", "partition_secret_file"];
/// Nobody should wait longer than that for nothing.
const LONGEST_JITTER: u32 = 3_600;

/// Reads the table; what is wrong with it goes to `mistakes`.
pub(super) fn read(table: &Spanned<DeValue<'_>>, mistakes: &mut Mistakes) -> HeaderForm {
    let Some(entries) = table.get_ref().as_table() else {
        mistakes.kind(NAME, table, "a table");
        return HeaderForm::DEFAULT;
    };
    let (mut set, mut reset, mut form) = (HeaderSet::Default, None, HeaderForm::DEFAULT);
    for (key, value) in entries.iter() {
        match &**key.get_ref() {
            "form" => {
                set = word(value, "form", HeaderSet::ALL, HeaderSet::as_str, mistakes).unwrap_or_default()
            }
            "reset" => {
                reset = word(value, "reset", ResetForm::ALL, ResetForm::as_str, mistakes)
                    .map(|reset| (reset, value));
            }
            "retry_jitter_s" => form = form.with_retry_jitter(jitter(value, mistakes)),
            "partition_secret_file" => {
                if let Some(secret) = secret(value, mistakes) {
                    form = form.with_partition(secret);
                }
            }
            unknown => mistakes.unknown(key.span(), unknown, &KEYS),
        }
    }
    if let Some((ResetForm::Unix, value)) = reset
        && matches!(set, HeaderSet::Draft06 | HeaderSet::Draft03)
    {
        let said = format!("reset: {} counts seconds from now; leave `reset` out", set.as_str());
        mistakes.add(value.span(), said);
    }
    form.with_set(set).with_reset(reset.map(|(reset, _)| reset).unwrap_or_default())
}

/// One of a few words.
fn word<T: Copy, const N: usize>(
    value: &Spanned<DeValue<'_>>,
    key: &str,
    all: [T; N],
    as_str: fn(T) -> &'static str,
    mistakes: &mut Mistakes,
) -> Option<T> {
    let words = all.map(as_str);
    let Some(said) = value.get_ref().as_str() else {
        mistakes.kind(key, value, &format!("one of {}", words.join(", ")));
        return None;
    };
    let found = all.into_iter().find(|one| as_str(*one) == said);
    if found.is_none() {
        let help = closest(said, words).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        mistakes.add(value.span(), format!("{key}: `{said}` is not one of {}{help}", words.join(", ")));
    }
    found
}

fn jitter(value: &Spanned<DeValue<'_>>, mistakes: &mut Mistakes) -> u32 {
    let number = value.get_ref().as_integer().and_then(whole).and_then(|number| u32::try_from(number).ok());
    number.filter(|number| *number <= LONGEST_JITTER).unwrap_or_else(|| {
        mistakes
            .add(value.span(), format!("retry_jitter_s: expected a whole number from 0 to {LONGEST_JITTER}"));
        0
    })
}

fn secret(value: &Spanned<DeValue<'_>>, mistakes: &mut Mistakes) -> Option<PartitionSecret> {
    let Some(path) = value.get_ref().as_str() else {
        mistakes.kind("partition_secret_file", value, "a path");
        return None;
    };
    let read = fs::read(Path::new(path)).map_err(|error| format!("cannot read {path}: {error}"));
    let secret = read.and_then(|bytes| {
        PartitionSecret::new(bytes.trim_ascii()).map_err(|error| format!("{path}: {error}"))
    });
    secret.map_err(|said| mistakes.add(value.span(), format!("partition_secret_file: {said}"))).ok()
}
