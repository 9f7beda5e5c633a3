//! Law 9: tiers are charged all or none, in any order.

use std::num::NonZeroU32;

use proptest::prelude::*;
use tollgate::core::RuleIndex;
use tollgate::core::algorithm::State;
use tollgate::core::limit::{Algorithm, Rank};
use tollgate::{
    Bounds, Clock, Descriptor, Limit, MemoryStore, Micros, Op, RuleSet, Store as _, Tiers, Timestamp, Verdict,
};
use tollgate_tests::rows::{row, rule, run};
use tollgate_tests::trace::{any_limit, interval, leaky, now, token_bucket};

use crate::config;

struct World {
    store: MemoryStore,
    clock: Clock,
    rules: RuleSet,
    request: Descriptor<'static>,
}

impl World {
    fn new(limits: &[Limit]) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_000_000_000));
        let rules = limits.iter().enumerate();
        let rules = rules.map(|(tier, limit)| rule(&format!("tier {tier}"), "global", limit));
        World {
            store: MemoryStore::with(clock.clone(), Bounds::default()),
            clock,
            rules: RuleSet::new(rules.collect()).unwrap(),
            request: Descriptor::new(),
        }
    }

    fn check(&self, order: &[RuleIndex], costs: &[u64]) -> Vec<(RuleIndex, Verdict)> {
        let cost = |tier: RuleIndex| costs[usize::try_from(tier).unwrap()];
        let mut tiers: Tiers =
            order.iter().map(|tier| row(&self.rules, *tier, &self.request, cost(*tier))).collect();
        now(run(&self.store, Op::Charge, &self.rules, &self.request, &mut tiers)).unwrap();
        let mut answers: Vec<_> = tiers.iter().map(|tier| (tier.rule, *tier.verdict())).collect();
        answers.sort_by_key(|(tier, _)| *tier);
        answers
    }

    fn states(&self) -> Vec<Option<State>> {
        let rules = self.rules.rules().iter();
        rules.map(|rule| now(self.store.inspect(rule, rule.key(&self.request))).unwrap()).collect()
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn law_9_all_or_none_in_any_order(
        limits in prop::collection::vec(any_limit(), 2..6),
        requests in prop::collection::vec((0..2_000_000_u64, prop::collection::vec(0..6_u64, 6), any::<u64>()), 1..30),
    ) {
        let (forward, shuffled) = (World::new(&limits), World::new(&limits));
        let order: Vec<RuleIndex> = (0..).zip(&limits).map(|(tier, _)| tier).collect();
        for (wait, costs, shuffle) in requests {
            forward.clock.advance(Micros::new(wait));
            shuffled.clock.advance(Micros::new(wait));
            let mut other = order.clone();
            other.rotate_left(usize::try_from(shuffle % 6).unwrap() % limits.len());
            if shuffle & 64 == 64 {
                other.reverse();
            }
            let before = forward.states();
            let answers = forward.check(&order, &costs);
            prop_assert_eq!(&answers, &shuffled.check(&other, &costs));
            prop_assert_eq!(forward.states(), shuffled.states());
            if answers.iter().any(|(_, verdict)| !verdict.allowed) {
                prop_assert_eq!(forward.states(), before);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(256))]

    /// Shares are limits, no larger than their part but for the least of one, whatever is shared among however many.
    #[test]
    fn a_limit_of_any_size_can_be_shared_among_any_number(
        limit in any_limit(),
        (count, period, burst) in (1..1_u64 << 40, 1..366 * 86_400_000_000_u64, 1..1_u64 << 45),
        nodes in prop_oneof![1..20_u32, 1..100_000_u32],
    ) {
        let large = Limit::token_bucket(count, Micros::new(period), burst).ok();
        for limit in [Some(limit), large].into_iter().flatten() {
            let share = limit.share(NonZeroU32::new(nodes).expect("from 1"));
            prop_assert!(share.capacity() <= (limit.capacity() / u64::from(nodes)).max(1), "{} of {}", share, limit);
        }
    }

    /// All shares together hold what the limit does, less only where so much cannot be divided exactly, and no more comes
    /// back to them.
    #[test]
    fn shares_add_up_to_the_limit(
        limit in any_limit(),
        (count, period, burst) in (1..1_u64 << 20, 1..366 * 86_400_000_000_u64, 1..1_u64 << 20),
        nodes in prop_oneof![1..20_u32, 1..2_000_u32],
    ) {
        let nodes = NonZeroU32::new(nodes).expect("from 1");
        let large = Limit::token_bucket(count, Micros::new(period), burst).ok();
        for limit in [Some(limit), large].into_iter().flatten() {
            let shares: Vec<Limit> =
                (0..nodes.get()).filter_map(|place| limit.share_of(Rank { place: Some(place), nodes })).collect();
            let together = |what: fn(&Limit) -> u128| shares.iter().map(what).sum::<u128>();
            prop_assert!(together(capacity) <= capacity(&limit), "{:?} of {}", shares, limit);
            if nodes.get() <= 16 && limit.period() <= A_DAY && limit.capacity() <= 1_000_000 {
                prop_assert_eq!(together(capacity), capacity(&limit), "{:?} of {}", shares, limit);
            }
            prop_assert!(together(in_the_long_run) <= in_the_long_run(&limit), "{:?} of {}", shares, limit);
        }
    }

    /// The same of those that do not know their places, but for the least that each of them has.
    #[test]
    fn shares_of_a_bucket_fill_no_faster_than_it_does(
        limit in prop_oneof![token_bucket(), interval(), leaky()],
        nodes in prop_oneof![1..20_u32, 1..100_000_u32],
    ) {
        let share = limit.share(NonZeroU32::new(nodes).expect("from 1"));
        let together = u128::from(nodes) * in_the_long_run(&share);
        let least = u128::from(nodes) * A_TOKEN_A_YEAR;
        prop_assert!(together <= in_the_long_run(&limit).max(least), "{} of {}", share, limit);
    }
}

/// A thousand times the longest period.
const LONG_RUN: u128 = 1_000 * 366 * 86_400_000_000;
const A_TOKEN_A_YEAR: u128 = 1_000;
const A_DAY: Micros = Micros::new(86_400_000_000);

fn capacity(limit: &Limit) -> u128 {
    u128::from(limit.capacity())
}

/// What comes back in a very long time.
fn in_the_long_run(limit: &Limit) -> u128 {
    match limit.algorithm() {
        Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. } => {
            LONG_RUN * u128::from(refill.rate()) / u128::from(refill.units())
        }
        Algorithm::TokenBucketInterval(refill) => {
            LONG_RUN * u128::from(refill.count()) / u128::from(refill.interval().get())
        }
        _ => LONG_RUN * capacity(limit) / u128::from(limit.period().get()),
    }
}
