//! The JSON of a line, read without copying what it says.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use tollgate_core::limit::MAX_EXACT;
use tollgate_core::{Descriptor, Timestamp};

use super::event::{Event, MAX_ATTRIBUTES, Op};

/// The names of the fields of a line.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Field {
    TUs,
    Op,
    Cost,
    Attributes,
    Rules,
}

/// Reads the fields of a line into an event, in place: an event is too large to be handed from hand to hand ten
/// million times. Answers the rules, if there are any.
pub(super) struct Fields<'e, 'a>(pub(super) &'e mut Event<'a>);

impl<'de: 'a, 'a> DeserializeSeed<'de> for Fields<'_, 'a> {
    type Value = Option<&'a RawValue>;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Fields<'_, 'a> {
    type Value = Option<&'a RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Fields(event) = self;
        let (mut at, mut op, mut cost, mut attributes, mut rules) = (None, None, None, None, None);
        while let Some(field) = map.next_key()? {
            match field {
                Field::TUs => once(&mut at, "t_us", map.next_value::<Whole>()?.0)?,
                Field::Op => once(&mut op, "op", map.next_value::<Word<'a>>()?.0)?,
                Field::Cost => once(&mut cost, "cost", map.next_value::<Whole>()?.0)?,
                Field::Attributes => {
                    once(&mut attributes, "attributes", ())?;
                    map.next_value_seed(Attributes(&mut event.request))?;
                }
                Field::Rules => once(&mut rules, "rules", map.next_value()?)?,
            }
        }
        let at = at.ok_or_else(|| A::Error::missing_field("t_us"))?;
        event.at = Timestamp::from_micros(at.cast_signed());
        event.op = op.unwrap_or(event.op);
        event.cost = cost.unwrap_or(event.cost);
        Ok(rules)
    }
}

/// Takes a field's value, unless it had one.
#[inline]
fn once<T, E: serde::de::Error>(place: &mut Option<T>, field: &'static str, value: T) -> Result<(), E> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(E::duplicate_field(field)),
    }
}

/// A whole number that every store represents exactly.
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeVisitor)
    }
}

struct WholeVisitor;

impl Visitor<'_> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {MAX_EXACT}")
    }

    #[inline]
    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Whole, E> {
        if number > MAX_EXACT {
            return Err(E::invalid_value(Unexpected::Unsigned(number), &self));
        }
        Ok(Whole(number))
    }
}

/// The word for what happens.
struct Word<'a>(Op<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Word<'a> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(OpVisitor).map(Word)
    }
}

struct OpVisitor;

impl<'de> Visitor<'de> for OpVisitor {
    type Value = Op<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one of \"check\", \"peek\", \"refund\", \"reset\", \"rules\"")
    }

    fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Op<'de>, E> {
        Ok(match word {
            "check" => Op::Check,
            "peek" => Op::Peek,
            "refund" => Op::Refund,
            "reset" => Op::Reset,
            "rules" => Op::Rules("[]"), // until the field of that name is read
            _ => return Err(E::invalid_value(Unexpected::Str(word), &self)),
        })
    }
}

/// Reads the facts about a request, in the line's own bytes where they need no decoding.
struct Attributes<'e, 'a>(&'e mut Descriptor<'a>);

impl<'de: 'a, 'a> DeserializeSeed<'de> for Attributes<'_, 'a> {
    type Value = ();

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Attributes<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of attributes like {\"user_id\": \"42\"}")
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Attributes(request) = self;
        let mut count = 0;
        while let Some(Name(name)) = map.next_key()? {
            if request.get(&name).is_some() {
                return Err(A::Error::custom(format_args!("attribute `{name}` is given twice")));
            }
            count += 1;
            if count > MAX_ATTRIBUTES {
                return Err(A::Error::custom(format_args!("more than {MAX_ATTRIBUTES} attributes")));
            }
            let raw: &'de RawValue = map.next_value()?;
            match scalar(raw.get()) {
                Some(value) => request.set(name, value),
                None => {
                    let expected = "expected a string, a number, true or false";
                    return Err(A::Error::custom(format_args!("attribute `{name}`: {expected}")));
                }
            }
        }
        Ok(())
    }
}

/// The value of an attribute as text: a number as it is written.
#[inline]
fn scalar(raw: &str) -> Option<Cow<'_, str>> {
    match raw.as_bytes().first()? {
        b'"' if raw.contains('\\') => serde_json::from_str(raw).ok().map(Cow::Owned),
        b'"' => raw.get(1..raw.len() - 1).map(Cow::Borrowed),
        b'-' | b'0'..=b'9' | b't' | b'f' => Some(Cow::Borrowed(raw)),
        _ => None,
    }
}

/// The name of an attribute.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an attribute")
    }

    #[inline]
    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}
