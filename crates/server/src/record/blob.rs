//! A decision as bytes: lengths and what they are of, numbers at their full width.

use std::fmt;

use tollgate::core::rule::FailurePolicy;
use tollgate::core::{Enforcement, Growth, Value};
use tollgate::{Micros, Rule, Tier, Verdict};

/// The most bytes kept of a name or a key; callers choose what is in them.
const LONGEST: usize = 256;
/// Stands for a wait that is none: no wait helps, or nothing more comes.
const NEVER: u64 = u64::MAX;

/// Appends to a buffer, up to a bound.
#[derive(Debug)]
pub(super) struct Writer<'b> {
    bytes: &'b mut Vec<u8>,
    room: usize,
    cut: bool,
}

impl<'b> Writer<'b> {
    pub(super) const fn new(bytes: &'b mut Vec<u8>, room: usize) -> Self {
        Writer { bytes, room, cut: false }
    }

    /// Whether anything was left out or shortened.
    pub(super) const fn cut(&self) -> bool {
        self.cut
    }

    pub(super) fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// The beginning of a text.
    pub(super) fn text(&mut self, text: &str) {
        let kept = &text[..text.floor_char_boundary(LONGEST)];
        self.cut |= kept.len() < text.len();
        self.whole_text(kept);
    }

    /// A text that means nothing when it is cut.
    pub(super) fn whole_text(&mut self, text: &str) {
        match u16::try_from(text.len()) {
            Ok(length) if text.len() <= self.room => {
                self.bytes.extend_from_slice(&length.to_le_bytes());
                self.bytes.extend_from_slice(text.as_bytes());
            }
            // There is no room for it, so that the whole entry is taken back.
            _ => self.bytes.resize(self.room + 1, 0),
        }
    }

    /// A value of an attribute, as text.
    pub(super) fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::Borrowed(text) => self.whole_text(text),
            Value::Owned(text) => self.whole_text(text),
            Value::Ip(address) => {
                use fmt::Write as _;
                let _ = write!(self.shown(), "{address}"); // an address is shorter than the bound
            }
        }
    }

    /// Takes whatever is formatted as one text, and its beginning if it is long.
    pub(super) fn shown(&mut self) -> Shown<'_, 'b> {
        let length_at = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        Shown { writer: self, length_at }
    }

    /// A verdict and what it counted for.
    pub(super) fn tier(&mut self, tier: &Tier, rule: &Rule) {
        let Verdict { allowed, limit, remaining, retry_after, reset_after, delay, .. } = *tier.verdict();
        let more_after = tier.verdict().more_after(rule.limit());
        let flags = u8::from(allowed)
            | u8::from(tier.enforcement == Enforcement::Shadow) << 1
            | match tier.instead() {
                None => 0,
                Some(FailurePolicy::Open) => 1,
                Some(FailurePolicy::Closed) => 2,
                Some(FailurePolicy::Local) => 3,
            } << 2;
        self.bytes.push(flags);
        let wait = |wait: Option<Micros>| wait.map_or(NEVER, Micros::get);
        for number in [limit, remaining, wait(retry_after), reset_after.get(), delay.get(), wait(more_after)]
        {
            self.number(number);
        }
    }

    /// Entries one after the other, as many as there is room for.
    pub(super) fn list<T>(
        &mut self,
        entries: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        let count_at = self.bytes.len();
        self.bytes.push(0);
        let mut count = 0_u8;
        for entry in entries {
            let start = self.bytes.len();
            write(self, entry);
            if self.bytes.len() > self.room || count == u8::MAX {
                self.bytes.truncate(start);
                self.cut = true;
                break;
            }
            count += 1;
        }
        self.bytes[count_at] = count;
    }
}

/// Formats into a text of the buffer.
#[derive(Debug)]
pub(super) struct Shown<'w, 'b> {
    writer: &'w mut Writer<'b>,
    length_at: usize,
}

impl fmt::Write for Shown<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let start = self.length_at + 2;
        let left = LONGEST - (self.writer.bytes.len() - start);
        let part = &text[..text.floor_char_boundary(left)];
        self.writer.bytes.extend_from_slice(part.as_bytes());
        let length = u16::try_from(self.writer.bytes.len() - start).unwrap_or(u16::MAX);
        self.writer.bytes[self.length_at..start].copy_from_slice(&length.to_le_bytes());
        if part.len() < text.len() {
            self.writer.cut = true;
            return Err(fmt::Error);
        }
        Ok(())
    }
}

/// Reads back what a [`Writer`] wrote.
#[derive(Debug)]
pub(super) struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    pub(super) const fn new(bytes: &'b [u8]) -> Self {
        Reader(bytes)
    }

    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        let length = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
        str::from_utf8(self.take(usize::from(length))?).ok()
    }

    pub(super) fn tier(&mut self) -> Option<(Verdict, Enforcement, Option<FailurePolicy>)> {
        let flags = *self.take(1)?.first()?;
        let wait = |reader: &mut Self| reader.number().map(Micros::new);
        let (limit, remaining) = (self.number()?, self.number()?);
        let (retry_after, reset_after) = (wait(self)?, wait(self)?);
        let (delay, more_after) = (wait(self)?, wait(self)?);
        let never = |wait: Micros| (wait.get() != NEVER).then_some(wait);
        let verdict = Verdict {
            allowed: flags & 1 == 1,
            limit,
            remaining,
            retry_after: never(retry_after),
            reset_after,
            delay,
            growth: never(more_after).map_or(Growth::Full, Growth::After),
        };
        let enforcement = if flags & 2 == 2 { Enforcement::Shadow } else { Enforcement::Enforce };
        let instead = match flags >> 2 {
            1 => Some(FailurePolicy::Open),
            2 => Some(FailurePolicy::Closed),
            3 => Some(FailurePolicy::Local),
            _ => None,
        };
        Some((verdict, enforcement, instead))
    }

    pub(super) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = *self.take(1)?.first()?;
        (0..count).map(|_| read(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use tollgate::core::KeyHash;
    use tollgate::{Outcome, StoreError};

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let verdict = Verdict { growth: Growth::After(Micros::new(7)), ..Verdict::open(9) };
        let (policy, error) = (FailurePolicy::Local, StoreError::Timeout);
        let outcome = Outcome::Instead { policy, verdict, error };
        let tier = Tier { outcome, ..Tier::new(0, Enforcement::Shadow, 1, KeyHash(0)) };
        let rule = Rule::ad_hoc("9/s".parse().unwrap());
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, 4_096);
        writer.text("näme");
        write!(writer.shown(), "{}-{}", 1, 2).unwrap();
        writer.tier(&tier, &rule);
        writer.list(["a", "b"], |writer, text| writer.whole_text(text));
        assert!(!writer.cut());
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.text(), reader.text()), (Some("näme"), Some("1-2")));
        assert_eq!(reader.tier(), Some((verdict, Enforcement::Shadow, Some(FailurePolicy::Local))));
        assert_eq!(reader.list(Reader::text), Some(vec!["a", "b"]));
        assert_eq!(reader.number(), None);
    }

    #[test]
    fn what_finds_no_room_is_left_out_and_said_so() {
        let long = "ä".repeat(70_000);
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, 4_096);
        writer.text(&long);
        assert!(writer.cut());
        let entries = ["x", &long, "y"].map(Value::Borrowed);
        writer.list(&entries, |writer, value| writer.value(value));
        assert!(bytes.len() <= 4_096);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.text().map(str::len), Some(256));
        assert_eq!(reader.list(Reader::text), Some(vec!["x"]), "what follows a gap is left out too");
    }
}
