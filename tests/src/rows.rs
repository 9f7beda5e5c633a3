//! Calls to a store as a limiter makes them, for suites that test stores.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::core::{Draft, RuleIndex};
use tollgate::{
    Answer, Call, Descriptor, Limit, Micros, Op, Outcome, Reservation, ReservationId, Rule, RuleSet, Store,
    StoreError, Tier, Tiers, Verdict, key_seeds,
};

/// The rule of a limit; its name tells its buckets from those of other rules.
///
/// # Panics
///
/// The name or the key is invalid.
pub fn rule(name: &str, key: &str, limit: &Limit) -> Rule {
    let draft = Draft { name: Some(name.to_owned()), key: key.to_owned(), ..Draft::from(limit) };
    let rule = draft.build().expect("a valid rule");
    assert_eq!(rule.limit(), Some(limit), "a limit that is written down is the same limit");
    rule
}

/// The row of one rule of a set for a request, whether or not the rule matches it.
pub fn row(rules: &RuleSet, rule: RuleIndex, request: &Descriptor<'_>, cost: u64) -> Tier {
    let hash = key_seeds().hash(rules.rule(rule).key(request));
    Tier::new(rule, rules.rule(rule).enforcement(), cost, hash)
}

/// Runs an operation on rows and ends it: every row then has its answer.
///
/// # Errors
///
/// The store gave no answer for a row.
pub async fn run<S: Store>(
    store: &S,
    op: Op,
    rules: &RuleSet,
    request: &Descriptor<'_>,
    tiers: &mut Tiers,
) -> Result<(), StoreError> {
    run_call(store, Call::new(op, rules, request, tiers)).await
}

/// Charges rows of one cost each, to be settled later; answers what to settle, if anything was charged.
///
/// # Errors
///
/// The store gave no answer for a row.
pub async fn reserve<S: Store>(
    store: &S,
    rules: &RuleSet,
    request: &Descriptor<'_>,
    tiers: &mut Tiers,
    cost: u64,
) -> Result<Option<ReservationId>, StoreError> {
    let id = ReservationId::from_bits(NEXT_ID.fetch_add(1, Ordering::Relaxed).into());
    let ttl = Micros::new(1 << 60);
    let mut reservation = Reservation::new(id, cost, ttl, None);
    store.claim_reservation(&reservation).expect("there is room");
    let mut call = Call::new(Op::Charge, rules, request, tiers);
    call.reservation = Some(&mut reservation);
    run_call(store, call).await?;
    if !reservation.is_recorded {
        store.drop_reservation(id);
    }
    Ok(reservation.is_recorded.then_some(reservation.id))
}

/// Reservations of one process have different ids.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

async fn run_call<S: Store>(store: &S, mut call: Call<'_>) -> Result<(), StoreError> {
    store.run(&mut call).await;
    let lost = call.tiers.iter().find_map(|tier| match tier.outcome {
        Outcome::Lost(error) => Some(error),
        _ => None,
    });
    let passes = lost.is_none() && !call.refuses();
    store.finish(&mut call, passes);
    lost.map_or(Ok(()), Err)
}

/// One bucket: a limit without rules, and a key.
#[derive(Debug)]
pub struct OneBucket {
    rules: RuleSet,
    request: Descriptor<'static>,
}

impl OneBucket {
    /// The bucket of this key under this limit.
    pub fn new(limit: &Limit, key: &str) -> Self {
        OneBucket { rules: RuleSet::of(Rule::ad_hoc(limit.clone())), request: Rule::naming(key.to_owned()) }
    }

    /// Its rule.
    pub fn rule(&self) -> &Rule {
        self.rules.rule(0)
    }

    /// The request that names it.
    pub const fn request(&self) -> &Descriptor<'static> {
        &self.request
    }

    /// Runs an operation on it.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn run<S: Store>(&self, store: &S, op: Op, cost: u64) -> Result<Tier, StoreError> {
        let mut tiers = Tiers::from_iter([row(&self.rules, 0, &self.request, cost)]);
        run(store, op, &self.rules, &self.request, &mut tiers).await?;
        Ok(tiers[0])
    }

    /// Charges it, to be settled later.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn reserve<S: Store>(
        &self,
        store: &S,
        cost: u64,
    ) -> Result<(Tier, Option<ReservationId>), StoreError> {
        let mut tiers = Tiers::from_iter([row(&self.rules, 0, &self.request, cost)]);
        let id = reserve(store, &self.rules, &self.request, &mut tiers, cost).await?;
        Ok((tiers[0], id))
    }

    /// Charges it in a request of which another row was lost, so that it is only held.
    pub async fn hold<S: Store>(&self, store: &S, cost: u64) -> Tier {
        let held = row(&self.rules, 0, &self.request, cost);
        let lost = Tier { outcome: Outcome::Lost(StoreError::Timeout), ..held };
        let mut tiers = Tiers::from_iter([held, lost]);
        store.run(&mut Call::new(Op::Charge, &self.rules, &self.request, &mut tiers)).await;
        tiers[0]
    }

    /// Ends what a row holds.
    pub fn finish<S: Store>(&self, store: &S, held: Tier, passes: bool) -> Tier {
        let mut tiers = Tiers::from_iter([held]);
        store.finish(&mut Call::new(Op::Charge, &self.rules, &self.request, &mut tiers), passes);
        tiers[0]
    }
}

/// What the store itself answered.
pub trait Stored {
    /// The verdict of the store about the only limit of a request.
    ///
    /// # Errors
    ///
    /// The store gave no answer, and the failure policy decided.
    fn stored(&self) -> Result<Verdict, StoreError>;
}

impl Stored for Answer {
    fn stored(&self) -> Result<Verdict, StoreError> {
        match (self.store_error(), self.tiers()) {
            (Some(error), _) => Err(error),
            (None, [tier]) => Ok(*tier.verdict()),
            (None, tiers) => panic!("{} limits matched, not one", tiers.len()),
        }
    }
}
