//! The charge that proves that a Redis takes charges.

use redis::Cmd;
use tollgate_core::algorithm::Demand;
use tollgate_core::limit::MAX_LOG_ENTRIES;
use tollgate_core::{Enforcement, Hit, Limit, Micros, Space, Timestamp};

use super::part::{Part, Spread};
use super::script::Verb;
use super::slots::SLOTS;

/// How many names to try for one in a given slot.
const MOST_NAMES: u32 = 4 * SLOTS as u32;

/// A charge of buckets of our own, in a slot that will do. It is never refused, so it always writes, and a log is among
/// them: that uses every kind of command.
pub(super) fn probe(sha: &str, prefix: &str, will_do: &dyn Fn(u16) -> bool) -> Cmd {
    let second = Micros::new(1_000_000);
    let limits = [Limit::new(1_000_000, second), Limit::sliding_window_log(MAX_LOG_ENTRIES, second)]
        .map(|limit| limit.expect("both are in range"));
    let spaces = limits.each_ref().map(Space::ad_hoc);
    let demand = Demand { cost: 1, patience: Micros::MAX };
    for number in 0..MOST_NAMES {
        let name = if number == 0 { "tollgate probe".to_owned() } else { format!("tollgate probe {number}") };
        let hit = |(limit, space)| {
            let space: &Space = space;
            Hit { key: space.named(&name), limit, demand, enforcement: Enforcement::Enforce }
        };
        let hits: Vec<Hit<'_>> = limits.iter().zip(&spaces).map(hit).collect();
        // Both keys have the same tag.
        let parts = Part::of(&hits, prefix, Spread::Slots);
        if parts.iter().all(|part| will_do(part.slot)) || number + 1 == MOST_NAMES {
            return parts[0].command(sha, Verb::Charge, None, Timestamp::default());
        }
    }
    unreachable!("the last name is taken in any case")
}
