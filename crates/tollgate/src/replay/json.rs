//! A step as a line of JSON, written without allocating.

use std::fmt::{self, Write as _};

use tollgate_core::{Decision, Enforcement, Micros, Tier, Verdict};

use super::Step;
use crate::limiter::Answer;

impl Step<'_, '_> {
    /// Appends the step as one JSON object, without a newline.
    #[inline]
    pub fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"t_us\":");
        number(out, self.event.at.as_micros().unsigned_abs());
        out.extend_from_slice(b",\"op\":\"");
        out.extend_from_slice(self.event.op.as_str().as_bytes());
        out.push(b'"');
        if let Some(answer) = &self.answer {
            self.write_answer(answer, out);
        }
        out.push(b'}');
    }

    fn write_answer(&self, answer: &Answer, out: &mut Vec<u8>) {
        let decision: &Decision = answer;
        let numbers = Numbers {
            allowed: decision.allowed(),
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            delay: decision.delay(),
        };
        self.write_numbers(numbers, out);
        out.extend_from_slice(b",\"rule\":");
        match answer.rule() {
            Some(label) => string(out, label),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"limits\":[");
        for (place, tier) in decision.tiers().iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            self.write_tier(answer, tier, out);
        }
        out.push(b']');
    }

    fn write_tier(&self, answer: &Answer, tier: &Tier, out: &mut Vec<u8>) {
        let rule = answer.rules().rule(tier.rule);
        out.extend_from_slice(b"{\"rule\":");
        string(out, rule.label());
        out.extend_from_slice(b",\"key\":\"");
        // Writing to memory never fails.
        let _ = write!(Escaped(out), "{}", rule.key(&self.event.request));
        out.push(b'"');
        self.write_numbers(tier.verdict.into(), out);
        out.extend_from_slice(match tier.enforcement {
            Enforcement::Enforce => b",\"mode\":\"enforce\"}",
            Enforcement::Shadow => b",\"mode\":\"shadow\"}",
        });
    }

    fn write_numbers(&self, numbers: Numbers, out: &mut Vec<u8>) {
        let Numbers { allowed, limit, remaining, retry_after, reset_after, delay } = numbers;
        let passes = self.event.op.always_passes();
        out.extend_from_slice(if allowed || passes { b",\"allowed\":true" } else { b",\"allowed\":false" });
        out.extend_from_slice(b",\"limit\":");
        number_or_null(out, limit);
        out.extend_from_slice(b",\"remaining\":");
        number_or_null(out, remaining);
        out.extend_from_slice(b",\"retry_after_us\":");
        number_or_null(out, if passes { Some(0) } else { retry_after.map(Micros::get) });
        out.extend_from_slice(b",\"reset_after_us\":");
        number(out, reset_after.get());
        out.extend_from_slice(b",\"delay_us\":");
        number(out, if passes { 0 } else { delay.get() });
    }
}

/// What a decision and a verdict have in common.
struct Numbers {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after: Option<Micros>,
    reset_after: Micros,
    delay: Micros,
}

impl From<Verdict> for Numbers {
    #[inline]
    fn from(verdict: Verdict) -> Self {
        Numbers {
            allowed: verdict.allowed,
            limit: Some(verdict.limit),
            remaining: Some(verdict.remaining),
            retry_after: verdict.retry_after,
            reset_after: verdict.reset_after,
            delay: verdict.delay,
        }
    }
}

#[inline]
fn number_or_null(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

/// Decimal digits, from the last to the first; most numbers of an answer have one or two.
#[inline]
fn number(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0_u8; 20];
    let mut first = digits.len();
    while value >= 10 {
        first -= 1;
        digits[first] = digit(value % 10);
        value /= 10;
    }
    if first == digits.len() {
        return out.push(digit(value));
    }
    first -= 1;
    digits[first] = digit(value);
    out.extend_from_slice(&digits[first..]);
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a digit is less than ten")]
const fn digit(value: u64) -> u8 {
    b'0' + value as u8
}

#[inline]
fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escaped(out, text);
    out.push(b'"');
}

#[inline]
fn escaped(out: &mut Vec<u8>, text: &str) {
    if text.bytes().any(needs_escape) { escape(out, text) } else { out.extend_from_slice(text.as_bytes()) }
}

#[inline]
const fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

#[cold]
fn escape(out: &mut Vec<u8>, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => out.push(byte),
        }
    }
}

/// Formats into the inside of a JSON string.
struct Escaped<'o>(&'o mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    #[inline]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escaped(self.0, text);
        Ok(())
    }

    #[inline]
    fn write_char(&mut self, character: char) -> fmt::Result {
        escaped(self.0, character.encode_utf8(&mut [0; 4]));
        Ok(())
    }
}
