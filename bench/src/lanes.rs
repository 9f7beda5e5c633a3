//! Who takes part.

use tollgate_bench::contender::{Allow, Caller, Check, Quota, Row};
use tollgate_bench::peers::{Governor, MutexMap, Nothing, OneCell, Table};

use crate::measure::Drive;
use crate::workload::{Keys, Scenario};

pub(crate) const ROW: &str = "tollgate Store::run_now, 1 row";
pub(crate) const ONE_TIER: &str = "tollgate check, 1 tier";
pub(crate) const FOUR_TIERS: &str = "tollgate check, 4 tiers";
pub(crate) const GOVERNOR: &str = "governor 0.10.4 keyed";

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    /// Whether it tells callers apart. One that does not has nothing to say about many keys.
    pub(crate) keyed: bool,
    make: fn(Quota) -> Box<dyn Drive>,
}

/// A contender that knows every caller, and its twin with no tokens left.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) lane: Lane,
    endless: Box<dyn Drive>,
    spent: Box<dyn Drive>,
}

/// Everybody, in the order of the table.
pub(crate) const LANES: [Lane; 9] = [
    Lane { name: ROW, keyed: true, make: |quota| Box::new(Row::new(quota)) },
    Lane { name: "tollgate Gate::allow", keyed: true, make: |quota| Box::new(Allow::new(quota)) },
    Lane { name: ONE_TIER, keyed: true, make: |quota| Box::new(Check::one_tier(quota)) },
    Lane { name: FOUR_TIERS, keyed: true, make: |quota| Box::new(Check::four_tiers(quota)) },
    Lane { name: GOVERNOR, keyed: true, make: |quota| Box::new(Governor::new(quota)) },
    Lane { name: "Mutex<HashMap> token bucket", keyed: true, make: |quota| Box::new(MutexMap::new(quota)) },
    Lane { name: "floor: clock + one CAS", keyed: false, make: |quota| Box::new(OneCell::new(quota)) },
    Lane { name: "floor: clock + table look-up", keyed: true, make: |quota| Box::new(Table::new(quota)) },
    Lane { name: "the loop alone", keyed: true, make: |quota| Box::new(Nothing::new(quota)) },
];

impl Lane {
    /// Makes the contender and lets every caller in once.
    pub(crate) fn filled(&self, keys: Keys) -> Box<dyn Drive> {
        let contender = (self.make)(Quota::ENDLESS);
        let mut caller = Caller::new(0);
        for number in 0..keys.get() {
            caller.turn_into(number);
            contender.decide(&caller);
        }
        contender
    }
}

impl Runner {
    pub(crate) fn new(lane: Lane, keys: Keys) -> Self {
        let endless = if lane.keyed { lane.filled(keys) } else { (lane.make)(Quota::ENDLESS) };
        Runner { lane, endless, spent: (lane.make)(Quota::SPENT) }
    }

    /// The contender for a scenario, if it takes part.
    pub(crate) fn contender(&self, scenario: Scenario) -> Option<&dyn Drive> {
        match scenario {
            Scenario::Refused => Some(&*self.spent),
            _ if scenario.has_many_keys() && !self.lane.keyed => None,
            _ => Some(&*self.endless),
        }
    }
}
