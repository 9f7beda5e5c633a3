//! What a request costs under a rule.

use crate::limit::MAX_EXACT;

/// Longer values are cut when an error shows them, in characters.
const SHOWN: usize = 64;

/// What a request costs under a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostRule {
    /// A multiple of the request's own cost.
    Times(u64),
    /// The value of an attribute, or the request's own cost if the request does not have that attribute.
    Attribute(Box<str>),
}

/// A request that no rule can charge: the attribute that has its cost is present and is not a whole number from 1 to
/// [`MAX_EXACT`].
///
/// Such a request is invalid in the same way as one with a negative `cost`. It is not a decision of any limit: no bucket
/// is asked, nothing is charged to any rule, and no wait helps. A cost of 0 is invalid too, because a check of cost 0
/// passes a used-up limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "attribute `{attribute}` is `{value}`, and rule `{rule}` takes the cost from it; send a whole number from 1 to {MAX_EXACT}"
)]
pub struct InvalidCost {
    /// The label of the rule.
    pub rule: String,
    /// The attribute that the rule takes the cost from.
    pub attribute: String,
    /// The value of the attribute; only the beginning of a long one.
    pub value: String,
}

impl InvalidCost {
    #[cold]
    pub(super) fn new(rule: &str, attribute: &str, value: &str) -> Box<Self> {
        let mut shown: String = value.chars().take(SHOWN).collect();
        if shown.len() < value.len() {
            shown.push('…');
        }
        Box::new(InvalidCost { rule: rule.to_owned(), attribute: attribute.to_owned(), value: shown })
    }
}

/// Reads a cost: a decimal number as JSON writes it, whose value is whole and from 1 to [`MAX_EXACT`]. `5000`, `5000.0`
/// and `5e3` are the same cost.
#[inline]
pub(super) fn read(text: &str) -> Option<u64> {
    let cost = match digits(text) {
        true => text.parse().ok(),
        false => with_exponent(text),
    };
    cost.filter(|cost| (1..=MAX_EXACT).contains(cost))
}

/// A number with a fraction, an exponent or both, if its value is whole. No floating point is involved, so a number
/// that a float cannot represent is not taken for its neighbour.
fn with_exponent(text: &str) -> Option<u64> {
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if digits(fraction) => (whole, fraction.trim_end_matches('0')),
        Some(_) => return None,
        None => (number, ""),
    };
    if !digits(whole) {
        return None;
    }
    let all = format!("{whole}{fraction}");
    let significant = all.trim_end_matches('0');
    let zeros = i64::try_from(all.len() - significant.len()).ok()?;
    let power = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(zeros)?;
    let scale = 10_u64.checked_pow(u32::try_from(power).ok()?)?;
    significant.parse::<u64>().ok()?.checked_mul(scale)
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_of_a_whole_number_is_read() {
        for (text, cost) in [
            ("1", 1),
            ("007", 7),
            ("5000", 5_000),
            ("5000.0", 5_000),
            ("5000.000", 5_000),
            ("5e3", 5_000),
            ("5E+3", 5_000),
            ("0.5e4", 5_000),
            ("1.25e2", 125),
            ("50000e-1", 5_000),
            ("50000.0e-1", 5_000),
            ("9007199254740991", MAX_EXACT),
            ("9007199254740.991e3", MAX_EXACT),
            ("9007199254740991.0", MAX_EXACT),
        ] {
            assert_eq!(read(text), Some(cost), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_whole_number_from_1_to_the_largest_cost_is_not_read() {
        for text in [
            "",
            " ",
            "5000 ",
            " 5000",
            "+5",
            "-5000",
            "-0",
            "0",
            "00",
            "0.0",
            "0e9",
            "1.5",
            "1e-1",
            "12e-1",
            "1.5e0",
            ".5e1",
            "5.",
            "5.e3",
            "e3",
            "5e",
            "5e+",
            "5e 3",
            "5e3e3",
            "5.0.0",
            "1e308",
            "1e400",
            "0x10",
            "1_000",
            "1,000",
            "NaN",
            "Infinity",
            "true",
            "٣",
            "9007199254740992",
            "9007199254740991.5",
            "9007199254740992.0",
            "18446744073709551615",
            "18446744073709551616",
            "1e99999999999999999999",
            "1e-99999999999999999999",
            "1e9223372036854775807",
            "1.5e-9223372036854775808",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_long_value_is_cut_where_it_is_shown() {
        let error = InvalidCost::new("r", "tokens", &"ä".repeat(100));
        assert_eq!(error.value, format!("{}…", "ä".repeat(SHOWN)));
    }
}
