//! Decimal numbers as the databases have them: exact, with at most six decimals.

use std::fmt;
use std::str::FromStr;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use tollgate_core::limit::MAX_EXACT;

const DECIMALS: usize = 6;
const MILLION: u32 = 1_000_000;
/// A number with decimals is smaller than this. It then has at most 15 digits, which a double (the only fractional number
/// of SQLite and of JSON readers) represents without loss.
const FRACTIONS_BELOW: u64 = 1_000_000_000;

/// A number that is not negative and has at most six decimals: the `rate_per_second` of a rule, the tokens in a bucket.
///
/// ```
/// use tollgate::Decimal;
///
/// let rate: Decimal = "2.50".parse()?;
/// assert_eq!(rate.to_string(), "2.5");
/// assert_eq!("0.1234567".parse::<Decimal>().unwrap_err().nearest.unwrap().to_string(), "0.123457");
/// # Ok::<(), tollgate::DecimalError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Decimal {
    whole: u64,
    millionths: u32,
}

/// A text that is not such a number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a number from 0 to {MAX_EXACT} with at most {DECIMALS} decimals (none from {FRACTIONS_BELOW} on){}", .nearest.map(|nearest| format!("; the nearest accepted value is {nearest}")).unwrap_or_default())]
pub struct DecimalError {
    /// What was given, as far as it is shown.
    pub text: String,
    /// The nearest accepted number, if the text is a number at all.
    pub nearest: Option<Decimal>,
}

impl Decimal {
    /// `count / period`, if that has at most six decimals.
    pub fn ratio(count: u64, period: u64) -> Option<Self> {
        let period =
            u32::try_from(period).ok().filter(|period| *period > 0 && MILLION.is_multiple_of(*period))?;
        let (whole, rest) = (count / u64::from(period), count % u64::from(period));
        let millionths = u32::try_from(rest).ok()? * (MILLION / period);
        Decimal { whole, millionths }.accepted()
    }

    /// So many millionths; decimals that such a large number cannot have are cut off.
    pub fn from_millionths(millionths: u128) -> Self {
        let million = u128::from(MILLION);
        let whole = u64::try_from(millionths / million).unwrap_or(u64::MAX).min(MAX_EXACT);
        let rest = u32::try_from(millionths % million).unwrap_or(0);
        Decimal { whole, millionths: if whole < FRACTIONS_BELOW { rest } else { 0 } }
    }

    /// The number in millionths.
    pub fn millionths(self) -> u128 {
        u128::from(self.whole) * u128::from(MILLION) + u128::from(self.millionths)
    }

    /// The number as a fraction in lowest terms: 2.5 is `(5, 2)`.
    pub fn fraction(self) -> (u64, u64) {
        let (mut gcd, mut rest) = (MILLION, self.millionths);
        while rest != 0 {
            (gcd, rest) = (rest, gcd % rest);
        }
        let denominator = u64::from(MILLION / gcd);
        (self.whole * denominator + u64::from(self.millionths / gcd), denominator)
    }

    fn accepted(self) -> Option<Self> {
        let is_exact = self.millionths == 0 || self.whole < FRACTIONS_BELOW;
        (self.whole <= MAX_EXACT && is_exact).then_some(self)
    }
}

impl From<u32> for Decimal {
    fn from(whole: u32) -> Self {
        Decimal { whole: whole.into(), millionths: 0 }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.millionths == 0 {
            return write!(f, "{}", self.whole);
        }
        let decimals = format!("{:06}", self.millionths);
        write!(f, "{}.{}", self.whole, decimals.trim_end_matches('0'))
    }
}

impl FromStr for Decimal {
    type Err = DecimalError;

    fn from_str(text: &str) -> Result<Self, DecimalError> {
        exact(text).ok_or_else(|| DecimalError {
            text: text.chars().take(40).collect(),
            nearest: text.parse().ok().and_then(nearest),
        })
    }
}

/// The number, if it is one: `10`, `2.5`, `2.500000000`.
fn exact(text: &str) -> Option<Decimal> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let significant = decimals.trim_end_matches('0');
    if !is_digits(whole) || !is_digits(decimals) || significant.len() > DECIMALS {
        return None;
    }
    let millionths = format!("{significant:0<DECIMALS$}").parse().ok()?;
    Decimal { whole: whole.parse().ok()?, millionths }.accepted()
}

/// The nearest number that is accepted and is not zero, which no rate may be.
fn nearest(number: f64) -> Option<Decimal> {
    if number.is_nan() {
        return None;
    }
    let decimals = if number < 1e9 { DECIMALS } else { 0 };
    #[expect(clippy::cast_precision_loss, reason = "2^53 - 1 is a double")]
    let number = number.clamp(1e-6, MAX_EXACT as f64);
    exact(&format!("{number:.decimals$}"))
}

/// A JSON number with all its decimals.
impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.millionths {
            0 => self.whole.serialize(to),
            _ => RawValue::from_string(self.to_string()).map_err(serde::ser::Error::custom)?.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Number;

        impl Visitor<'_> for Number {
            type Value = Decimal;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number with at most {DECIMALS} decimals")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Decimal, E> {
                number.to_string().parse().map_err(E::custom)
            }

            // A double prints as the shortest decimal that reads as this double.
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Decimal, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        text.parse::<Decimal>().map_or_else(|error| error.to_string(), |number| number.to_string())
    }

    #[test]
    fn a_number_with_at_most_6_decimals_is_read_exactly() {
        for (text, canonical) in [
            ("10", "10"),
            ("2.5", "2.5"),
            ("2.500000000", "2.5"),
            ("0.1", "0.1"),
            ("0.000001", "0.000001"),
            ("0", "0"),
            ("007.0", "7"),
            ("999999999.999999", "999999999.999999"),
            ("9007199254740991.000", "9007199254740991"),
        ] {
            assert_eq!(read(text), canonical, "{text}");
            let number: Decimal = text.parse().unwrap();
            let json = serde_json::to_string(&number).unwrap();
            assert_eq!(json, canonical);
            assert_eq!(serde_json::from_str::<Decimal>(&json).unwrap(), number);
            assert_eq!(Decimal::from_millionths(number.millionths()), number);
        }
    }

    #[test]
    fn anything_else_is_an_error_with_the_nearest_accepted_value() {
        for (text, nearest) in [
            ("0.1234567", "0.123457"),
            ("0.3333333333333333333333333", "0.333333"),
            ("0.0000001", "0.000001"),
            ("-3", "0.000001"),
            ("1234567890.5", "1234567890"),
            ("1234567891.5", "1234567892"),
            ("9007199254740992", "9007199254740991"),
            ("123456789012345678901234567890", "9007199254740991"),
            ("1e3", "1000"),
            (".5", "0.5"),
            ("5.", "5"),
            ("+5", "5"),
        ] {
            assert!(
                read(text).ends_with(&format!("the nearest accepted value is {nearest}")),
                "{}",
                read(text)
            );
        }
        for text in ["", "x", "NaN", "1.2.3", "0x10"] {
            assert_eq!(text.parse::<Decimal>().unwrap_err().nearest, None, "{text}");
        }
    }

    #[test]
    fn a_number_is_a_fraction_in_lowest_terms_and_back() {
        for (text, fraction) in [
            ("10", (10, 1)),
            ("2.5", (5, 2)),
            ("0.5", (1, 2)),
            ("0.05", (1, 20)),
            ("0.000001", (1, 1_000_000)),
            ("0.123457", (123_457, 1_000_000)),
            ("0.015625", (1, 64)),
        ] {
            let number: Decimal = text.parse().unwrap();
            assert_eq!(number.fraction(), fraction, "{text}");
            assert_eq!(Decimal::ratio(fraction.0, fraction.1), Some(number), "{text}");
        }
        assert_eq!(Decimal::ratio(1, 3), None);
        assert_eq!(Decimal::ratio(1, 0), None);
        assert_eq!(Decimal::ratio(2_000_000_001, 2), None);
    }
}
