//! The keyed 128-bit hash that stands for a key.
//!
//! Keys are not stored: two keys with one hash would share a bucket. The hash has two lanes of 64 bits, and both have to
//! collide. foldhash seeds every hasher of a process with one shared seed, made of addresses and the time: an input that
//! cancels a word of it collides in every hasher, and so in both lanes. Here each lane has a shared seed and a start
//! of its own, all of them from the system's random source.

use std::fmt;
use std::hash::{Hash, Hasher};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// The seeds of the hash, for as long as hashes are compared.
pub(crate) struct KeySeeds([Lane; 2]);

struct Lane {
    start: u64,
    shared: SharedSeed,
}

/// Hashes one key on both lanes in one pass.
pub(crate) struct KeyHasher<'s>([FoldHasher<'s>; 2]);

impl KeySeeds {
    /// New seeds.
    ///
    /// # Panics
    ///
    /// The system has no random source. A `HashMap` of the standard library panics then too.
    pub(crate) fn random() -> Self {
        let word = || getrandom::u64().expect("the system has a random source");
        KeySeeds([Lane::new(word(), word()), Lane::new(word(), word())])
    }

    #[inline]
    pub(crate) fn hasher(&self) -> KeyHasher<'_> {
        KeyHasher(self.0.each_ref().map(|lane| FoldHasher::with_seed(lane.start, &lane.shared)))
    }

    /// The hash of a key.
    #[inline]
    pub(crate) fn hash(&self, key: &impl Hash) -> u128 {
        let mut hasher = self.hasher();
        key.hash(&mut hasher);
        let [high, low] = hasher.0.map(|lane| lane.finish());
        u128::from(high) << 64 | u128::from(low)
    }
}

impl Lane {
    fn new(start: u64, shared: u64) -> Self {
        Lane { start, shared: SharedSeed::from_u64(shared) }
    }
}

impl Hasher for KeyHasher<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|lane| lane.write(bytes));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0.iter_mut().for_each(|lane| lane.write_u64(number));
    }

    /// 64 bits, from both lanes.
    fn finish(&self) -> u64 {
        self.0[0].finish() ^ self.0[1].finish()
    }
}

/// Without the seeds, which are secret.
impl fmt::Debug for KeySeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySeeds").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The words of a shared seed, which only its debug form shows.
    pub(crate) fn words(seed: &SharedSeed) -> Vec<u64> {
        let shown = format!("{seed:?}");
        let list = shown.split(['[', ']']).nth(1).expect("a list of words");
        list.split(", ").map(|word| word.parse().expect("a word")).collect()
    }

    /// 16 bytes whose last 8 cancel the word that foldhash multiplies them with: the hash does not depend on the first 8.
    pub(crate) fn cancelling(seed: &SharedSeed, number: u64) -> [u8; 16] {
        let tail = words(seed)[1];
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        bytes[8..].copy_from_slice(&tail.to_ne_bytes());
        bytes
    }

    /// Bytes that are written as they are.
    struct Raw([u8; 16]);

    impl Hash for Raw {
        fn hash<H: Hasher>(&self, state: &mut H) {
            state.write(&self.0);
        }
    }

    fn lanes(seeds: &KeySeeds, bytes: [u8; 16]) -> [u64; 2] {
        let hash = seeds.hash(&Raw(bytes));
        [hash >> 64, hash & u128::from(u64::MAX)].map(|half| u64::try_from(half).expect("64 bits"))
    }

    #[test]
    fn keys_that_collide_in_one_lane_do_not_collide_in_the_other() {
        let seeds = KeySeeds::random();
        for lane in [0, 1] {
            let hashes: Vec<[u64; 2]> =
                (0..100).map(|number| lanes(&seeds, cancelling(&seeds.0[lane].shared, number))).collect();
            let mut other: Vec<u64> = hashes.iter().map(|hash| hash[1 - lane]).collect();
            other.sort_unstable();
            other.dedup();
            assert!(hashes.iter().all(|hash| hash[lane] == hashes[0][lane]), "all collide in lane {lane}");
            assert_eq!(other.len(), 100, "none collides in the other");
        }
    }

    #[test]
    fn no_two_seeds_are_the_same() {
        let mut all: Vec<u64> = (0..10)
            .flat_map(|_| KeySeeds::random().0)
            .flat_map(|lane| [lane.start].into_iter().chain(words(&lane.shared)))
            .chain(words(SharedSeed::global_random()))
            .collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn the_seeds_are_not_shown() {
        assert_eq!(format!("{:?}", KeySeeds::random()), "KeySeeds { .. }");
    }
}
