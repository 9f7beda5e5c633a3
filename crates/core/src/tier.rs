//! A tier: one rule's part in a request, from matching to the answer.
//!
//! Matching makes one row per rule that counts the request. A store gives the rows their outcomes, the failure policy
//! answers for rows that the store lost, and the same rows are the tiers of the decision.

use smallvec::SmallVec;

use crate::limit::{Algorithm, Limit};
use crate::rule::FailurePolicy;
use crate::ruleset::RuleIndex;
use crate::time::{Micros, Timestamp};

/// What is done to the buckets of a request. The number is the first byte of the script's call, the name is that of the
/// trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Charge every bucket if all of them admit the request.
    Charge = 1,
    /// Answer what a charge would, and write nothing.
    Peek = 2,
    /// Give the cost back, never beyond full.
    Refund = 3,
    /// Delete the buckets.
    Reset = 4,
}

/// One rule's part in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tier {
    /// The rule, in the set that the decision holds.
    pub rule: RuleIndex,
    /// Whether its refusal refuses the request.
    pub enforcement: Enforcement,
    /// Tokens.
    pub cost: u64,
    /// The hash of the key of its bucket.
    pub hash: KeyHash,
    /// What has become of it.
    pub outcome: Outcome,
    /// Whether the lease calls of this node report the cost as demand.
    pub is_reported: bool,
}

/// The rows of one request; the usual handful is stored inline.
pub type Tiers = SmallVec<[Tier; 4]>;

/// The keyed 128-bit hash of a key. Within one process, equal hashes mean equal keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u128);

/// Whether a refusal counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// It refuses the request.
    Enforce,
    /// It is recorded; the bucket is charged independently, and the request is not refused.
    Shadow,
}

/// What has become of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No store has answered yet.
    Pending,
    /// The bucket's answer.
    Decided(Verdict),
    /// The bucket admits the request, and the cost is taken; final only when the store is told whether the request
    /// passes.
    Held {
        /// The answer if it passes.
        if_passed: Verdict,
        /// What holds the cost.
        holder: Holder,
    },
    /// The store gave no answer for this row.
    Lost(StoreError),
    /// The answer of the rule's failure policy.
    Instead {
        /// What answered. The numbers of `Open` are those of an unused bucket.
        policy: FailurePolicy,
        /// Its answer.
        verdict: Verdict,
        /// Why the store gave none.
        error: StoreError,
    },
}

/// What holds the cost of a row until the request is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A hold on the ledger of the bucket: its boundary.
    Hold(Timestamp),
    /// A charge of this node's share: the instant from which time repays it.
    Share(Timestamp),
    /// A lease on this node: its epoch.
    Lease(u64),
}

/// What one bucket answers to a request. `remaining` and `reset_after` describe the bucket after the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Whether this bucket admits the request.
    pub allowed: bool,
    /// The most it ever holds: capacity, the window's limit, or queue + 1.
    pub limit: u64,
    /// The largest cost it would admit now. Rounds down.
    pub remaining: u64,
    /// The shortest wait after which the same request would pass if no other request is charged; zero when allowed,
    /// `None` when waiting does not help.
    pub retry_after: Option<Micros>,
    /// The shortest wait after which the bucket equals a fresh one.
    pub reset_after: Micros,
    /// How long an admitted request must be held before it continues (leaky buckets).
    pub delay: Micros,
    /// What [`more_after`](Self::more_after) is computed from.
    pub growth: Growth,
}

/// When `remaining` grows. Only headers ask for it, so it is computed when they are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// Never: it is at its largest.
    Full,
    /// After this wait.
    After(Micros),
    /// When time has repaid enough of this debt of a continuous bucket, in the units of its limit.
    Debt(u64),
}

/// Why a store gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It did not answer before the decision's deadline. It may have charged the request all the same.
    #[error("the store did not answer in time")]
    Timeout,
    /// The connection broke, or the answer is invalid. The store may have charged the request all the same.
    #[error("the store cannot be reached")]
    Unreachable,
    /// It is known to be unavailable, or no connection was made in time: nothing was sent.
    #[error("the store is unavailable, and nothing was sent: {reason}")]
    Unavailable {
        /// Why: one of [`REASONS`](Self::REASONS).
        reason: &'static str,
    },
    /// Too many decisions wait for it already.
    #[error("too many decisions wait for the store")]
    Overloaded,
    /// It answered with an error: `OOM`, `READONLY`, `NOAUTH` and the like.
    #[error("the store refuses to decide: {code}")]
    Rejected {
        /// The first word of its answer.
        code: &'static str,
    },
}

impl Op {
    /// The name in traces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Op::Charge => "check",
            Op::Peek => "peek",
            Op::Refund => "refund",
            Op::Reset => "reset",
        }
    }

    /// Whether it asks buckets whether they admit the cost.
    pub const fn decides(self) -> bool {
        matches!(self, Op::Charge | Op::Peek)
    }
}

impl Enforcement {
    /// The word in answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Enforcement::Enforce => "enforce",
            Enforcement::Shadow => "shadow",
        }
    }
}

impl Tier {
    /// A row that no store has answered yet.
    #[inline]
    pub const fn new(rule: RuleIndex, enforcement: Enforcement, cost: u64, hash: KeyHash) -> Self {
        Tier { rule, enforcement, cost, hash, outcome: Outcome::Pending, is_reported: false }
    }

    /// Whether no store has answered yet.
    #[inline]
    pub const fn is_pending(&self) -> bool {
        matches!(self.outcome, Outcome::Pending)
    }

    /// Whether its refusal refuses the request.
    #[inline]
    pub fn enforces(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// The answer, if there is one.
    #[inline]
    pub const fn answer(&self) -> Option<&Verdict> {
        match &self.outcome {
            Outcome::Decided(verdict)
            | Outcome::Held { if_passed: verdict, .. }
            | Outcome::Instead { verdict, .. } => Some(verdict),
            Outcome::Pending | Outcome::Lost(_) => None,
        }
    }

    /// The answer of a row of a decision.
    ///
    /// # Panics
    ///
    /// The row has no answer yet.
    #[inline]
    pub fn verdict(&self) -> &Verdict {
        self.answer().expect("every row of a decision has an answer")
    }

    /// The policy that answered instead of the store, if the store gave no answer.
    #[inline]
    pub const fn instead(&self) -> Option<FailurePolicy> {
        match self.outcome {
            Outcome::Instead { policy, .. } => Some(policy),
            _ => None,
        }
    }

    /// Whether it refuses the request.
    #[inline]
    pub fn refuses(&self) -> bool {
        self.enforces() && self.answer().is_some_and(|verdict| !verdict.allowed)
    }
}

impl Verdict {
    /// The verdict of a rule that blocks outright: nothing is left and waiting does not help.
    pub const DENIED: Verdict = Verdict {
        allowed: false,
        limit: 0,
        remaining: 0,
        retry_after: None,
        reset_after: Micros::ZERO,
        delay: Micros::ZERO,
        growth: Growth::Full,
    };

    /// The verdict of a rule that admits everything while its bucket is unknown.
    pub const fn open(limit: u64) -> Verdict {
        Verdict {
            allowed: true,
            limit,
            remaining: limit,
            retry_after: Some(Micros::ZERO),
            reset_after: Micros::ZERO,
            delay: Micros::ZERO,
            growth: Growth::Full,
        }
    }

    /// The verdict of a rule that admits nothing while its bucket is unknown; the same request may be tried again after
    /// the wait.
    pub const fn closed(limit: u64, retry_after: Micros) -> Verdict {
        Verdict {
            allowed: false,
            limit,
            remaining: 0,
            retry_after: Some(retry_after),
            reset_after: Micros::ZERO,
            delay: Micros::ZERO,
            growth: Growth::Full,
        }
    }

    /// The wait until `remaining` grows; `None` when it is at its largest. `limit` is the one that the verdict is of.
    pub fn more_after(&self, limit: Option<&Limit>) -> Option<Micros> {
        match (self.growth, limit.map(Limit::algorithm)) {
            (Growth::After(wait), _) => Some(wait),
            (
                Growth::Debt(debt),
                Some(Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. }),
            ) if self.remaining < refill.capacity() => {
                let room = (refill.capacity() - self.remaining - 1) * refill.units();
                Some(Micros::new(debt.saturating_sub(room).div_ceil(refill.rate())))
            }
            _ => None,
        }
    }

    /// The same verdict for a reader that does not have its limit.
    #[must_use]
    pub fn resolved(self, limit: Option<&Limit>) -> Verdict {
        let growth = self.more_after(limit).map_or(Growth::Full, Growth::After);
        Verdict { growth, ..self }
    }

    /// The verdict of a bucket of this limit that admitted a cost which was given back.
    #[must_use]
    pub fn given_back(self, cost: u64, limit: Option<&Limit>) -> Verdict {
        let growth = match (self.growth, limit.map(Limit::algorithm)) {
            (
                Growth::Debt(debt),
                Some(Algorithm::TokenBucket(refill) | Algorithm::LeakyBucket { refill, .. }),
            ) => Growth::Debt(debt.saturating_sub(cost.saturating_mul(refill.units()))),
            (growth, _) => growth,
        };
        Verdict { remaining: self.remaining.saturating_add(cost).min(self.limit), growth, ..self }
    }
}

impl StoreError {
    /// Every word that [`reason`](Self::reason) can return.
    pub const REASONS: [&str; 4] = ["timeout", "unreachable", "overloaded", "rejected"];

    /// Words with which a Redis refuses.
    const REJECTIONS: [&str; 15] = [
        "BUSY",
        "CLUSTERDOWN",
        "CROSSSLOT",
        "ERR",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOAUTH",
        "NOPERM",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
        "WRONGPASS",
    ];

    /// A store that refused with this word; an unknown word counts as `ERR`.
    pub fn rejected(code: &str) -> Self {
        let code = Self::REJECTIONS.into_iter().find(|known| *known == code).unwrap_or("ERR");
        StoreError::Rejected { code }
    }

    /// The same error for a request that was never sent.
    #[must_use]
    pub fn unsent(self) -> Self {
        if self.is_in_doubt() { StoreError::Unavailable { reason: self.reason() } } else { self }
    }

    /// Whether the request may have been charged. Where this is false, it certainly was not.
    pub const fn is_in_doubt(&self) -> bool {
        match self {
            StoreError::Timeout | StoreError::Unreachable => true,
            StoreError::Unavailable { .. } | StoreError::Overloaded | StoreError::Rejected { .. } => false,
        }
    }

    /// One of a few words, for answers and metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            StoreError::Unavailable { reason } => reason,
            StoreError::Timeout => "timeout",
            StoreError::Unreachable => "unreachable",
            StoreError::Overloaded => "overloaded",
            StoreError::Rejected { .. } => "rejected",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_sent_or_was_rejected_is_certainly_not_charged() {
        let unsent = StoreError::Timeout.unsent();
        assert_eq!((unsent.reason(), unsent.is_in_doubt()), ("timeout", false));
        assert_eq!(StoreError::rejected("OOM").unsent(), StoreError::rejected("OOM"));
        for (error, in_doubt) in [
            (StoreError::Timeout, true),
            (StoreError::Unreachable, true),
            (StoreError::Overloaded, false),
            (StoreError::rejected("OOM"), false),
        ] {
            assert_eq!(error.is_in_doubt(), in_doubt, "{error:?}");
        }
    }
}
