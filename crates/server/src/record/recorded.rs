//! A decision as it is remembered.

use tollgate::core::rule::FailurePolicy;
use tollgate::core::{Degraded, Enforcement};
use tollgate::{Descriptor, Micros, Status, Timestamp, Verdict};

/// A decision of a while ago.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) id: String,
    pub(crate) at: Timestamp,
    pub(crate) cost: u64,
    pub(crate) status: Status,
    pub(crate) degraded: Option<Degraded>,
    pub(crate) delay: Micros,
    /// The index of the binding limit's tier.
    pub(crate) binding: Option<usize>,
    /// Which set of rules decided it.
    pub(crate) generation: u64,
    /// Whether something of it was too long to be kept.
    pub(crate) cut: bool,
    pub(crate) tiers: Vec<RecordedTier>,
    pub(crate) attributes: Vec<(String, String)>,
}

/// One rule's part in it.
#[derive(Debug, Clone)]
pub(crate) struct RecordedTier {
    pub(crate) rule: String,
    pub(crate) key: String,
    pub(crate) scope: String,
    pub(crate) plan: Option<String>,
    /// What the rule took the request's cost for.
    pub(crate) cost: u64,
    pub(crate) verdict: Verdict,
    pub(crate) enforcement: Enforcement,
    pub(crate) instead: Option<FailurePolicy>,
    /// The limit and its algorithm, where they came with the request.
    pub(crate) limit: Option<String>,
    pub(crate) algorithm: Option<String>,
}

impl Recorded {
    /// The tier whose numbers are the decision's.
    pub(crate) fn binding_limit(&self) -> Option<&RecordedTier> {
        self.binding.and_then(|binding| self.tiers.get(binding))
    }

    /// The request that was decided.
    pub(crate) fn request(&self) -> Descriptor<'_> {
        let mut request = Descriptor::new();
        for (name, value) in &self.attributes {
            request.set(name, value);
        }
        request
    }

    /// The value of an attribute.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether it was decided without rules.
    pub(crate) fn is_ad_hoc(&self) -> bool {
        self.tiers.iter().any(|tier| tier.limit.is_some())
    }
}
