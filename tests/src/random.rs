//! Numbers from a seed: the same on every machine.

/// A stream of random numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `least` up to, but not including, `end`.
    pub fn between(&mut self, least: i64, end: i64) -> i64 {
        least + (self.next() % end.abs_diff(least).max(1)).cast_signed()
    }

    /// True so many times in a thousand.
    pub fn permille(&mut self, chance: u64) -> bool {
        self.next() % 1_000 < chance
    }

    /// A place in a list that is so long.
    pub fn below(&mut self, length: usize) -> usize {
        usize::try_from(self.next() % length as u64).expect("below a length")
    }

    /// One of these.
    pub fn choose<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
