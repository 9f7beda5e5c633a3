//! The limits that packed states refer to by a small number.
//!
//! A state of 16 bytes has no room for the numbers it was written under, but needs them: to convert when a rule
//! changes, and to tell when it is as good as new. There are few distinct limits, so each is kept once and
//! named by its place. Places are found by hashing and never freed; when the table is full, states carry
//! their limit along.

use std::sync::OnceLock;

use tollgate_core::Limit;

/// How many distinct limits are kept; states have 16 bits to name them.
const PLACES: LimitId = 1 << 14;
/// How far from its home a limit is looked for.
const REACH: usize = 32;

/// The name of a limit within one store.
pub(super) type LimitId = u16;

#[derive(Debug)]
pub(super) struct Limits {
    places: Box<[OnceLock<Box<Limit>>]>,
}

impl Limits {
    pub(super) fn new() -> Self {
        Limits { places: (0..PLACES).map(|_| OnceLock::new()).collect() }
    }

    /// The name of a limit, given when it is first seen; `None` when there is no place left near its home.
    #[inline]
    pub(super) fn id(&self, limit: &Limit) -> Option<LimitId> {
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are the home")]
        let home = limit.digest() as LimitId;
        (0..REACH).find_map(|step| {
            #[expect(clippy::cast_possible_truncation, reason = "steps are few and the table wraps")]
            let place = home.wrapping_add(step as LimitId) % PLACES;
            let kept = self.places[usize::from(place)].get_or_init(|| Box::new(limit.clone()));
            (**kept == *limit).then_some(place)
        })
    }

    /// The limit of a name that [`id`](Self::id) gave.
    #[inline]
    pub(super) fn get(&self, id: LimitId) -> &Limit {
        self.places[usize::from(id)].get().expect("states only hold names that were given")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::Micros;

    #[test]
    fn a_limit_has_one_name_and_a_name_one_limit() {
        let limits = Limits::new();
        let names: Vec<LimitId> = (1..=10_000)
            .map(|count| limits.id(&Limit::new(count, Micros::new(1_000_000)).unwrap()).unwrap())
            .collect();
        for (count, name) in (1..).zip(names) {
            let limit = Limit::new(count, Micros::new(1_000_000)).unwrap();
            assert_eq!(limits.id(&limit), Some(name));
            assert_eq!(limits.get(name), &limit);
        }
    }

    #[test]
    fn a_full_table_gives_no_name_and_never_a_wrong_one() {
        let limits = Limits::new();
        let refused = (1..=100_000_u64)
            .map(|count| Limit::new(count, Micros::new(1_000_000)).unwrap())
            .filter(|limit| limits.id(limit).is_none_or(|name| limits.get(name) != limit))
            .count();
        assert!(refused >= 100_000 - usize::from(PLACES));
    }
}
