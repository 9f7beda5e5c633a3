//! The keyed 128-bit hash that stands for a key.
//!
//! Keys are not stored: two keys with one hash would share a bucket. The hash has two lanes of 64 bits, and both have to
//! collide. A lane multiplies 16 bytes at a time, 8 of them xored with what it has and 8 with a secret word, and keeps both
//! halves of the product. A caller who knew the secret word could cancel it, and with it everything before; so each lane
//! has a word and a start of its own, and all of them come from the system's random source.

use std::fmt;
use std::hash::Hasher;

use super::Key;
use crate::tier::KeyHash;

/// The seeds of the hash: one value per process, because hashes under different seeds cannot be compared.
pub struct KeySeeds([Lane; 2]);

#[derive(Clone, Copy)]
struct Lane {
    start: u64,
    secret: u64,
}

/// Set in the hash of a key without attributes, which all requests share: the memory store puts such keys in its highest
/// shards.
const SHARED: u64 = 0xf << 60;

/// Hashes one key on both lanes in one pass.
#[expect(missing_debug_implementations, reason = "its state depends on the seeds, which are secret")]
pub struct KeyHasher([Lane; 2]);

impl KeySeeds {
    /// Seeds made of four random words.
    pub const fn new(words: [u64; 4]) -> Self {
        let [first, second, third, fourth] = words;
        KeySeeds([Lane { start: first, secret: second }, Lane { start: third, secret: fourth }])
    }

    /// A hasher for anything else than a key, on the same lanes.
    pub const fn hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }

    /// The hash of a key. The rule's digest is mixed into the start of each lane, so that only the values are hashed.
    #[inline(always)] // the lanes stay in registers
    pub fn hash(&self, key: Key<'_>) -> KeyHash {
        let ([first, second], [one, other]) = (key.space.digest, self.0);
        let mut hasher = KeyHasher([
            Lane { start: folded(one.start ^ first, other.start ^ second), ..one },
            Lane { start: folded(one.start ^ second, other.start ^ first), ..other },
        ]);
        key.hash_values(&mut hasher);
        let [high, low] = hasher.0.map(|lane| lane.start);
        let high = if key.space.is_shared { high | SHARED } else { high };
        KeyHash(u128::from(high) << 64 | u128::from(low))
    }
}

/// Both halves of a product.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
const fn folded(one: u64, other: u64) -> u64 {
    let product = one as u128 * other as u128;
    product as u64 ^ (product >> 64) as u64
}

impl KeyHasher {
    #[inline]
    fn mix(&mut self, low: u64, high: u64) {
        for lane in &mut self.0 {
            lane.start = folded(lane.start ^ low, lane.secret ^ high);
        }
    }

    /// Mixes all blocks of 16 bytes in that are followed by more.
    #[inline(never)]
    fn mix_blocks<'b>(&mut self, mut bytes: &'b [u8]) -> &'b [u8] {
        while let Some((block, after)) = bytes.split_first_chunk().filter(|(_, after)| !after.is_empty()) {
            let block = u128::from_le_bytes(*block);
            self.mix(low(block), low(block >> 64));
            bytes = after;
        }
        bytes
    }
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        // The ends below are those of several lengths.
        self.write_u64(bytes.len() as u64);
        let rest = if bytes.len() > 16 { self.mix_blocks(bytes) } else { bytes };
        // The ends of the rest, which overlap unless it is as long as both.
        if let (Some(first), Some(last)) = (rest.first_chunk(), rest.last_chunk()) {
            self.mix(u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        } else if let (Some(first), Some(last)) = (rest.first_chunk(), rest.last_chunk()) {
            self.mix(u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into());
        } else if let [first, .., last] = rest {
            self.mix(u64::from(*first) | u64::from(rest[rest.len() / 2]) << 8, u64::from(*last));
        } else if let [only] = rest {
            self.mix(u64::from(*only), 0);
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.mix(number, 0);
    }

    /// 64 bits, from both lanes.
    fn finish(&self) -> u64 {
        self.0[0].start ^ self.0[1].start
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half is wanted")]
const fn low(block: u128) -> u64 {
    block as u64
}

/// Without the seeds, which are secret.
impl fmt::Debug for KeySeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySeeds").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn random() -> KeySeeds {
        // Different in every run: the property holds for all seeds.
        let word = || std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0);
        KeySeeds::new([word(), word(), word(), word()])
    }

    fn lanes(seeds: &KeySeeds, bytes: &[u8]) -> [u64; 2] {
        let mut hasher = seeds.hasher();
        hasher.write(bytes);
        hasher.0.map(|lane| lane.start)
    }

    #[test]
    fn keys_that_collide_in_one_lane_do_not_collide_in_the_other() {
        let seeds = random();
        for lane in [0, 1] {
            // 16 bytes whose last 8 cancel the secret of one lane.
            let cancelling =
                |number: u64| [number.to_le_bytes(), seeds.0[lane].secret.to_le_bytes()].concat();
            let hashes: Vec<[u64; 2]> = (0..100).map(|number| lanes(&seeds, &cancelling(number))).collect();
            let other: HashSet<u64> = hashes.iter().map(|hash| hash[1 - lane]).collect();
            assert!(hashes.iter().all(|hash| hash[lane] == hashes[0][lane]), "all collide in lane {lane}");
            assert_eq!(other.len(), 100, "none collides in the other");
        }
    }

    #[test]
    fn every_byte_counts_whatever_the_length() {
        let seeds = random();
        for length in 0..70_usize {
            let hash = |bytes: &[u8]| {
                let mut hasher = seeds.hasher();
                hasher.write(bytes);
                hasher.0.map(|lane| lane.start)
            };
            let bytes = vec![b'x'; length];
            let mut seen = HashSet::from([hash(&bytes), hash(&vec![b'x'; length + 1])]);
            for at in 0..length {
                let mut changed = bytes.clone();
                changed[at] = b'y';
                seen.insert(hash(&changed));
            }
            for each in 0..2 {
                let in_lane: HashSet<u64> = seen.iter().map(|lanes| lanes[each]).collect();
                assert_eq!(in_lane.len(), length + 2, "length {length}, lane {each}");
            }
        }
    }

    /// Shards take the highest bits, slots the lowest 32, tags the eight above those.
    #[test]
    fn numbered_keys_spread_over_shards_slots_and_tags() {
        let seeds = random();
        let names = (0..65_536).map(|number| format!("user:{number:07}"));
        let hashes: Vec<[u64; 2]> = names.map(|name| lanes(&seeds, name.as_bytes())).collect();
        for part in [
            |[high, _]: [u64; 2]| high >> 54,
            |[_, low]: [u64; 2]| ((low & 0xffff_ffff) * 1_024) >> 32,
            |[_, low]: [u64; 2]| low & 0x3ff,
            |[_, low]: [u64; 2]| (low >> 32) & 0xff,
        ] {
            let mut counts = std::collections::HashMap::<u64, u32>::new();
            hashes.iter().for_each(|hash| *counts.entry(part(*hash)).or_default() += 1);
            // At random, one of 1,024 places has 64 +- 8, so that nearly 20 standard deviations are allowed for.
            let (most, places) = (counts.values().max().unwrap(), counts.len());
            assert!(
                places >= 256 && *most <= (65_536 / u32::try_from(places).unwrap()) * 3,
                "{most} in {places}"
            );
        }
    }

    #[test]
    fn the_seeds_are_not_shown() {
        assert_eq!(format!("{:?}", random()), "KeySeeds { .. }");
    }
}
