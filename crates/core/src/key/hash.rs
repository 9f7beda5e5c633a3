//! The keyed 128-bit hash that stands for a key.
//!
//! Keys are not stored: two keys with one hash would share a bucket. The hash has two lanes of 64 bits, and both have to
//! collide. foldhash seeds every hasher of a process with one shared seed, made of addresses and the time: an input that
//! cancels a word of it collides in every hasher, and so in both lanes. Here each lane has a shared seed and a start
//! of its own. The caller takes all of them from the system's random source.

use std::fmt;
use std::hash::{Hash, Hasher};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use super::Key;
use crate::tier::KeyHash;

/// The seeds of the hash: one value per process, because hashes under different seeds cannot be compared.
pub struct KeySeeds([Lane; 2]);

struct Lane {
    start: u64,
    shared: SharedSeed,
}

/// Set in the hash of a key without attributes, which all requests share: the memory store puts such keys in its highest
/// shards.
const SHARED: u64 = 0xf << 60;

/// Hashes one key on both lanes in one pass.
#[expect(missing_debug_implementations, reason = "its state depends on the seeds, which are secret")]
pub struct KeyHasher<'s>([FoldHasher<'s>; 2]);

impl KeySeeds {
    /// Seeds made of four random words.
    pub fn new(words: [u64; 4]) -> Self {
        let [first, second, third, fourth] = words;
        KeySeeds([Lane::new(first, second), Lane::new(third, fourth)])
    }

    /// A hasher for anything else than a key, on the same lanes.
    pub fn hasher(&self) -> KeyHasher<'_> {
        KeyHasher(self.0.each_ref().map(|lane| FoldHasher::with_seed(lane.start, &lane.shared)))
    }

    /// The hash of a key. The rule's digest is mixed into the start of each lane, so that only the values are hashed.
    #[inline]
    pub fn hash(&self, key: Key<'_>) -> KeyHash {
        let ([first, second], [one, other]) = (key.space.digest, &self.0);
        let starts = [
            folded(one.start ^ first, other.start ^ second),
            folded(one.start ^ second, other.start ^ first),
        ];
        let mut hasher = KeyHasher([
            FoldHasher::with_seed(starts[0], &one.shared),
            FoldHasher::with_seed(starts[1], &other.shared),
        ]);
        for value in key.values() {
            value.hash(&mut hasher);
        }
        let [high, low] = hasher.0.map(|lane| lane.finish());
        let high = if key.space.is_shared { high | SHARED } else { high };
        KeyHash(u128::from(high) << 64 | u128::from(low))
    }
}

/// Both halves of a product. A difference of digests is then no difference of starts that is known without the seeds.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
const fn folded(one: u64, other: u64) -> u64 {
    let product = one as u128 * other as u128;
    product as u64 ^ (product >> 64) as u64
}

impl Lane {
    fn new(start: u64, shared: u64) -> Self {
        Lane { start, shared: SharedSeed::from_u64(shared) }
    }
}

impl Hasher for KeyHasher<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let [one, other] = &mut self.0;
        one.write(bytes);
        other.write(bytes);
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let [one, other] = &mut self.0;
        one.write_u64(number);
        other.write_u64(number);
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
mod tests {
    use super::*;

    /// The words of a shared seed, which only its debug form shows.
    fn words(seed: &SharedSeed) -> Vec<u64> {
        let shown = format!("{seed:?}");
        let list = shown.split(['[', ']']).nth(1).expect("a list of words");
        list.split(", ").map(|word| word.parse().expect("a word")).collect()
    }

    /// 16 bytes whose last 8 cancel the word that foldhash multiplies them with: the hash does not depend on the first 8.
    fn cancelling(seed: &SharedSeed, number: u64) -> [u8; 16] {
        let tail = words(seed)[1];
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        bytes[8..].copy_from_slice(&tail.to_ne_bytes());
        bytes
    }

    fn random() -> KeySeeds {
        // Different in every run: the property holds for all seeds.
        let word = || std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0);
        KeySeeds::new([word(), word(), word(), word()])
    }

    fn lanes(seeds: &KeySeeds, bytes: [u8; 16]) -> [u64; 2] {
        let mut hasher = seeds.hasher();
        hasher.write(&bytes);
        hasher.0.map(|lane| lane.finish())
    }

    #[test]
    fn keys_that_collide_in_one_lane_do_not_collide_in_the_other() {
        let seeds = random();
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
            .flat_map(|_| random().0)
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
        assert_eq!(format!("{:?}", random()), "KeySeeds { .. }");
    }
}
