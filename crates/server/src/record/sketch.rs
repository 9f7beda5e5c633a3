//! Who is refused most, in constant memory: the space-saving sketch.
//!
//! A few hundred keys have a count each. A key that is not among them takes the place of the one with the least, and
//! inherits its count as what it may not deserve. So a count is never too low, and too high by no more than `extra`;
//! whoever makes up more than one in so many refusals is certainly there.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;
use tollgate::core::Key;

use crate::api::TopRefused;

/// How many keys are counted.
const PLACES: usize = 256;
/// The most bytes that are shown of a key or a rule; callers choose what is in them.
const LONGEST: usize = 256;

/// Counts refusals by rule and key.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    hasher: RandomState,
    /// Where a hash of rule and key is counted.
    places: HashMap<u64, usize, RandomState>,
    counts: Vec<Count>,
}

#[derive(Debug, Default)]
struct Count {
    hash: u64,
    refused: u64,
    extra: u64,
    key: String,
    rule: String,
}

impl Sketch {
    pub(super) fn note(&mut self, rule: &str, key: &Key<'_>) {
        let hash = self.hasher.hash_one((key, rule));
        if let Some(place) = self.places.get(&hash) {
            self.counts[*place].refused += 1;
            return;
        }
        let place = self.free_place();
        self.places.insert(hash, place);
        let count = &mut self.counts[place];
        (count.hash, count.extra, count.refused) = (hash, count.refused, count.refused + 1);
        for text in [&mut count.key, &mut count.rule] {
            text.clear();
        }
        let _ = write!(Beginning(&mut count.key), "{key}"); // an error is where it was cut
        let _ = write!(Beginning(&mut count.rule), "{rule}");
    }

    /// A place that nobody has: a new one, or that of the key with the least.
    fn free_place(&mut self) -> usize {
        let least = self.counts.iter().enumerate().min_by_key(|(_, count)| count.refused);
        match least.filter(|_| self.counts.len() == PLACES) {
            Some((place, old)) => {
                self.places.remove(&old.hash);
                place
            }
            None => {
                self.counts.push(Count::default());
                self.counts.len() - 1
            }
        }
    }

    /// The keys that were refused most, the most refused first.
    pub(super) fn top(&self, most: usize) -> Vec<TopRefused> {
        let mut counts: Vec<&Count> = self.counts.iter().collect();
        counts.sort_by(|a, b| b.refused.cmp(&a.refused).then_with(|| a.key.cmp(&b.key)));
        let top = |count: &Count| TopRefused {
            key: count.key.clone(),
            rule: count.rule.clone(),
            refused: count.refused,
            at_least: count.refused - count.extra,
        };
        counts.into_iter().take(most).map(top).collect()
    }
}

/// Formats into a text until that is long enough.
struct Beginning<'s>(&'s mut String);

impl fmt::Write for Beginning<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let part = &text[..text.floor_char_boundary(LONGEST - self.0.len())];
        self.0.push_str(part);
        if part.len() < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Descriptor;
    use tollgate::core::{KeyPattern, Space};

    use super::*;

    #[test]
    fn whoever_is_refused_much_is_found_among_very_many_and_the_bounds_hold() {
        let space = Space::new(&[], KeyPattern::parse("user:{user_id}").unwrap(), 64);
        let mut sketch = Sketch::default();
        let mut note = |user: &str| {
            sketch.note("per-user", &space.key(&Descriptor::new().with("user_id", user)));
        };
        for n in 0..100_000_u32 {
            note(&n.to_string());
            if n % 20 == 0 {
                note("greedy");
            }
        }
        let top = sketch.top(50);
        assert_eq!((top.len(), top[0].key.as_str(), top[0].rule.as_str()), (50, "user:greedy", "per-user"));
        assert!(top[0].at_least <= 5_000 && top[0].refused >= 5_000, "{:?}", top[0]);
        assert!(top.iter().all(|one| one.at_least <= one.refused));
        assert_eq!(sketch.counts.len(), PLACES);
    }
}
