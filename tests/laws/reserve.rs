//! Reserve and settle: at one instant it is a check of what the work took in truth.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::core::algorithm::State;
use tollgate::{
    Bounds, Clock, Descriptor, Limit, Limiter, MemoryStore, Micros, Request, Rule, RuleSet, Store as _,
    Timestamp, Verdict,
};
use tollgate_tests::trace::{any_limit, now};

use crate::config;

const DAY: Micros = Micros::new(86_400_000_000);

/// A limiter without rules, one limit that comes along, and a past.
struct Desk {
    limiter: Limiter<MemoryStore>,
    own: Arc<RuleSet>,
}

impl Desk {
    fn new(limit: &Limit, past: &[(u64, u64)]) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_000_000_000));
        let store = MemoryStore::with(clock.clone(), Bounds::default());
        let own = RuleSet::of(Rule::ad_hoc(limit.clone()));
        let desk = Desk { limiter: Limiter::new(RuleSet::default(), store), own: Arc::new(own) };
        for (wait, cost) in past {
            desk.check(cost % (limit.capacity() + 1));
            clock.advance(Micros::new(*wait));
        }
        desk
    }

    fn request<'a>(&'a self, request: &'a Descriptor<'a>) -> Request<'a, MemoryStore> {
        self.limiter.request(request).rules(Arc::clone(&self.own))
    }

    fn check(&self, cost: u64) -> bool {
        now(self.request(&Rule::naming("job")).cost(cost).check()).allowed()
    }

    /// Whether so much could be reserved, and was settled with that much.
    fn reserve_and_settle(&self, cost: u64, actual: u64) -> Option<tollgate::Settled> {
        let request = Rule::naming("job");
        let reserved = self.request(&request).cost(cost).reserve(DAY);
        let id = now(reserved).unwrap().reservation?;
        let settled = now(self.limiter.settle(id, actual)).unwrap();
        let again = now(self.limiter.settle(id, actual / 2)).unwrap();
        assert_eq!(again, tollgate::Settled { already_settled: true, ..settled });
        Some(settled)
    }

    fn state(&self) -> (Option<State>, Verdict) {
        let request = Rule::naming("job");
        let rule = self.own.rule(0);
        let answer = now(self.request(&request).cost(0).peek());
        let state = now(self.limiter.store().inspect(rule, rule.key(&request))).unwrap();
        (state, *answer.tiers()[0].verdict())
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    #[test]
    fn reserving_and_settling_at_one_instant_is_a_check_of_what_it_took(
        limit in any_limit(),
        past in prop::collection::vec((0..2_000_000_u64, any::<u64>()), 0..6),
        (cost, actual) in (any::<u64>(), any::<u64>()),
    ) {
        let (cost, actual) = (1 + cost % (limit.capacity() + 1), actual % (limit.capacity() + 2));
        let (settled, checked) = (Desk::new(&limit, &past), Desk::new(&limit, &past));
        let before = settled.state();
        match settled.reserve_and_settle(cost, actual) {
            None => prop_assert_eq!(settled.state(), before),
            Some(settlement) if settlement.unpaid == 0 => {
                prop_assert!(checked.check(actual), "{} fits", actual);
                let (after, expected) = (settled.state(), checked.state());
                prop_assert_eq!(after.1, expected.1);
                // A check of nothing writes nothing; what was given back has its instant.
                if actual > 0 {
                    prop_assert_eq!(after.0, expected.0);
                }
            }
            Some(settlement) => {
                prop_assert!(actual > cost && !checked.check(actual));
                prop_assert_eq!(settlement.charged + settlement.unpaid, actual - cost);
                prop_assert_eq!(settled.state().1.remaining, 0);
            }
        }
    }
}
