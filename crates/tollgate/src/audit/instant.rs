//! Instants as people write them.

use tollgate_core::{Micros, Timestamp};

/// The units of a length of time, as limits have them.
const UNITS: [(&str, u64); 7] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
    ("week", 604_800_000_000),
];

/// A text that names no instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected how long ago, like `90s`, `15min`, `1h` or `7d`, or a time like `2026-11-15T12:00:00Z`")]
pub struct InstantError;

/// An instant in UTC, always with six digits of a second, so that it sorts as it reads.
pub fn instant_text(at: Timestamp) -> String {
    format!("{:.6}", jiff::Timestamp::from_microsecond(at.as_micros()).unwrap_or_default())
}

/// Reads a time like `2026-11-15T12:00:00Z`, or how long ago it was, like `1h`.
///
/// # Errors
///
/// It is neither.
pub fn instant(text: &str, now: Timestamp) -> Result<Timestamp, InstantError> {
    written(text).or_else(|| before(text, now)).ok_or(InstantError)
}

/// An instant that is written out.
pub(super) fn written(text: &str) -> Option<Timestamp> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_micros(at.as_microsecond()))
}

/// So long before now; what is before 1970 is 1970.
fn before(text: &str, now: Timestamp) -> Option<Timestamp> {
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let (_, each) = UNITS.into_iter().find(|(name, _)| *name == unit.trim_start())?;
    let ago = Micros::new(count.parse::<u64>().ok()?.saturating_mul(each));
    Some(Timestamp::from_micros(now.as_micros().saturating_sub_unsigned(ago.get()).max(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_out_or_counted_back() {
        let now = written("2026-11-15T12:00:00Z").unwrap();
        for (text, expected) in [
            ("2026-11-15T12:00:00+01:00", "2026-11-15T11:00:00.000000Z"),
            ("1h", "2026-11-15T11:00:00.000000Z"),
            ("90 s", "2026-11-15T11:58:30.000000Z"),
            ("15min", "2026-11-15T11:45:00.000000Z"),
            ("7d", "2026-11-08T12:00:00.000000Z"),
            ("1us", "2026-11-15T11:59:59.999999Z"),
            ("99999999999999999999week", ""),
            ("18446744073709551615week", "1970-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(instant(text, now).map(instant_text).unwrap_or_default(), expected, "{text}");
        }
        for text in ["", "h", "1", "1 fortnight", "-1h", "yesterday", "1h30min"] {
            assert_eq!(instant(text, now), Err(InstantError), "{text}");
        }
    }
}
