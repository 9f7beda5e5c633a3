//! Calls to a store as a limiter makes them, for suites that test stores.

use tollgate::core::{Draft, Mark, RuleIndex};
use tollgate::{
    Answer, Call, Descriptor, Limit, Op, Outcome, Rule, RuleSet, Store, StoreError, Tier, Tiers, Verdict,
    key_seeds,
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

/// Runs an operation on rows and ends it: every row then has its answer, and after a charge its mark.
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
    let mut call = Call::new(op, rules, request, tiers);
    call.is_reservation = op == Op::Charge;
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
        self.run_row(store, op, row(&self.rules, 0, &self.request, cost)).await
    }

    /// Gives back a charge of this cost, by its mark.
    ///
    /// # Errors
    ///
    /// The store gave no answer.
    pub async fn undo<S: Store>(&self, store: &S, cost: u64, mark: Mark) -> Result<Tier, StoreError> {
        let tier = Tier { mark, ..row(&self.rules, 0, &self.request, cost) };
        self.run_row(store, Op::Undo, tier).await
    }

    async fn run_row<S: Store>(&self, store: &S, op: Op, tier: Tier) -> Result<Tier, StoreError> {
        let mut tiers = Tiers::from_iter([tier]);
        run(store, op, &self.rules, &self.request, &mut tiers).await?;
        Ok(tiers[0])
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
