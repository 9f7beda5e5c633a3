//! `tollgate.toml`: from text to values, with the place of everything that is wrong.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use tollgate::core::HeaderForm;
use tollgate::core::suggest::closest;
use tollgate::rules::RulesError;
use tollgate_tower::IdentifyConfig;
use toml::de::{DeTable, DeValue};

use super::{Flag, LIST_DELIMITER, flags, headers, identify, text};
use crate::load;

/// A value and where it is.
pub(super) type Spanned<T> = toml::Spanned<T>;

/// A configuration file without mistakes.
#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) identify: IdentifyConfig,
    pub(super) headers: HeaderForm,
    /// Values of flags, by key.
    values: BTreeMap<String, String>,
    /// What the tables say, as it is written.
    sections: Vec<(String, String)>,
}

/// Everything found to be wrong so far: where, and "what is wrong; what to write".
#[derive(Debug, Default)]
pub(super) struct Mistakes(Vec<(Range<usize>, String)>);

impl Mistakes {
    pub(super) fn add(&mut self, place: Range<usize>, said: impl Into<String>) {
        self.0.push((place, said.into()));
    }

    /// A name that nobody knows.
    pub(super) fn unknown(&mut self, place: Range<usize>, name: &str, known: &[&str]) {
        let help = match closest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", known.join(", ")),
        };
        self.add(place, format!("unknown key `{name}`; {help}"));
    }

    /// A value of the wrong kind.
    pub(super) fn kind(&mut self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) {
        let said = format!("{key}: expected {expected}, not a value of type {}", value.get_ref().type_str());
        self.add(value.span(), said);
    }
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or everything that is wrong with it.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        Ok(Self::parse(&load::name(path), &text(path)?)?)
    }

    pub(super) fn parse(name: &str, text: &str) -> Result<Self, RulesError> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let mut mistakes = Mistakes::default();
        for error in errors {
            mistakes.add(error.span().unwrap_or_default(), error.message());
        }
        let mut file = File {
            name: name.to_owned(),
            identify: IdentifyConfig::default(),
            headers: HeaderForm::DEFAULT,
            values: BTreeMap::new(),
            sections: Vec::new(),
        };
        if mistakes.0.is_empty() {
            file.take(text, table.get_ref(), &mut mistakes);
        }
        if mistakes.0.is_empty() { Ok(file) } else { Err(RulesError::in_text(name, text, mistakes.0)) }
    }

    fn take(&mut self, text: &str, table: &DeTable<'_>, mistakes: &mut Mistakes) {
        let flags = flags();
        let keys: Vec<String> = flags.iter().map(Flag::key).collect();
        let known: Vec<&str> =
            keys.iter().map(String::as_str).chain([identify::NAME, headers::NAME]).collect();
        for (key, value) in table.iter() {
            let name = key.get_ref().as_ref();
            match flags.iter().find(|flag| flag.key() == name) {
                Some(flag) => {
                    self.values.extend(flag.read(value, mistakes).map(|value| (name.to_owned(), value)))
                }
                None if name == identify::NAME => self.identify = identify::read(text, value, mistakes),
                None if name == headers::NAME => self.headers = headers::read(value, mistakes),
                None => mistakes.unknown(key.span(), name, &known),
            }
            for (inner, value) in value.get_ref().as_table().into_iter().flat_map(DeTable::iter) {
                let written = text[value.span()].split_whitespace().collect::<Vec<_>>().join(" ");
                self.sections.push((format!("{name}.{}", inner.get_ref()), written));
            }
        }
    }

    /// What the file says of a flag.
    pub(super) fn value(&self, flag: &Flag) -> Option<&str> {
        self.values.get(&flag.key()).map(String::as_str)
    }

    /// What it says that no flag could, as it is written there.
    pub(super) fn sections(&self) -> impl Iterator<Item = (String, String)> {
        self.sections.iter().cloned()
    }

    /// How much it says.
    pub(super) fn len(&self) -> usize {
        self.values.len() + self.sections.len()
    }
}

impl Flag {
    /// The text of a value, if it is one for this flag.
    fn read(&self, value: &Spanned<DeValue<'_>>, mistakes: &mut Mistakes) -> Option<String> {
        let text = match value.get_ref() {
            DeValue::Boolean(switch) if self.is_a_switch() => return Some(switch.to_string()),
            _ if self.is_a_switch() => {
                mistakes.kind(&self.key(), value, "true or false");
                return None;
            }
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => {
                whole(number).map_or_else(|| number.to_string(), |number| number.to_string())
            }
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Array(values) if self.is_a_list() => {
                let texts: Option<Vec<&str>> = values.iter().map(|value| value.get_ref().as_str()).collect();
                match texts {
                    Some(texts) => texts.join(LIST_DELIMITER),
                    None => {
                        mistakes.kind(&self.key(), value, "strings");
                        return None;
                    }
                }
            }
            _ => {
                mistakes.kind(&self.key(), value, "a string or a number");
                return None;
            }
        };
        match self.complaint(&text) {
            None => Some(text),
            Some(complaint) => {
                mistakes.add(value.span(), format!("{}: {complaint}", self.key()));
                None
            }
        }
    }
}

/// A whole number, however it is written.
pub(super) fn whole(number: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}
