//! The JSON of a line, read without copying what it says.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use tollgate_core::Timestamp;

use super::event::{Event, Op};
use crate::json::{AttributesInto, Whole};

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
                    map.next_value_seed(AttributesInto(&mut event.request))?;
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
