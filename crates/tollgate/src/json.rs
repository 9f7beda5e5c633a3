//! The facts of a request as JSON has them: read once for every surface, so that the same request has the same keys
//! in a trace and over HTTP.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use tollgate_core::Descriptor;
use tollgate_core::limit::MAX_EXACT;

/// The most attributes a request may have.
pub const MAX_ATTRIBUTES: usize = 64;

/// The facts of a request: a flat object of strings, numbers and booleans.
#[derive(Debug, Default)]
pub struct Attributes<'a>(pub Descriptor<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut request = Descriptor::new();
        AttributesInto(&mut request).deserialize(deserializer)?;
        Ok(Attributes(request))
    }
}

/// Reads the facts about a request, in the line's own bytes where they need no decoding.
#[derive(Debug)]
pub struct AttributesInto<'e, 'a>(pub &'e mut Descriptor<'a>);

impl<'de: 'a, 'a> DeserializeSeed<'de> for AttributesInto<'_, 'a> {
    type Value = ();

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for AttributesInto<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of attributes like {\"user_id\": \"42\"}")
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let AttributesInto(request) = self;
        let mut count = 0;
        while let Some(Name(name)) = map.next_key()? {
            if request.get(&name).is_some() {
                return Err(A::Error::custom(format_args!("attribute `{name}` is given twice")));
            }
            count += 1;
            if count > MAX_ATTRIBUTES {
                return Err(A::Error::custom(format_args!("more than {MAX_ATTRIBUTES} attributes")));
            }
            match map.next_value() {
                Ok(Scalar(value)) if is_address(&name) && value.parse::<IpAddr>().is_err() => {
                    let expected = "expected an IP address, without port or zone";
                    return Err(A::Error::custom(format_args!(
                        "attribute `{name}`: {expected}, not `{value}`"
                    )));
                }
                Ok(Scalar(value)) => request.set(name, value),
                Err(error) => return Err(A::Error::custom(format_args!("attribute `{name}`: {error}"))),
            }
        }
        Ok(())
    }
}

/// Whether an attribute is the client's address, which has one form: any other would be a bucket of its own.
#[inline]
fn is_address(name: &str) -> bool {
    name == "ip" || name == "ip_address"
}

/// The value of an attribute as text: a number as it is written.
struct Scalar<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Scalar<'de> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?;
        let value = scalar(raw.get()).map(Scalar);
        value.ok_or_else(|| D::Error::custom("expected a string, a number, true or false"))
    }
}

/// A JSON string, number or boolean as text, the latter two as they are written.
#[inline]
pub(crate) fn scalar(raw: &str) -> Option<Cow<'_, str>> {
    match raw.as_bytes().first()? {
        b'"' if raw.contains('\\') => serde_json::from_str(raw).ok().map(Cow::Owned),
        b'"' => raw.get(1..raw.len() - 1).map(Cow::Borrowed),
        b'-' | b'0'..=b'9' | b't' | b'f' => Some(Cow::Borrowed(raw)),
        _ => None,
    }
}

/// The name of an attribute.
#[derive(Deserialize)]
#[serde(transparent)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// A whole number that every store represents exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole(pub u64);

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
