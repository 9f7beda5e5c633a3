//! The seeds of the hash that stands for a key.

use std::sync::OnceLock;

use tollgate_core::KeySeeds;

/// The seeds of this process: a row's hash serves every store, the violation queue and the counts of top keys.
///
/// # Panics
///
/// The system has no random source. A `HashMap` of the standard library panics then too.
#[inline]
pub fn key_seeds() -> &'static KeySeeds {
    static SEEDS: OnceLock<KeySeeds> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let word = || getrandom::u64().expect("the system has a random source");
        KeySeeds::new([word(), word(), word(), word()])
    })
}
