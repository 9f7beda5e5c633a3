//! Which headers there are, and what they say.

use smallvec::SmallVec;

use super::partition::PartitionSecret;
use super::text::{push_integer, push_number, push_string};
use super::{HeaderField, RateLimitHeaders};
use crate::decision::{Decision, Status};
use crate::descriptor::Descriptor;
use crate::limit::{Algorithm, Limit};
use crate::ruleset::RuleSet;
use crate::tier::Tier;
use crate::time::{Micros, Timestamp};

/// The most bytes that the items of a list field take. Proxies have as little as 4 KiB for the whole head of an answer.
const MAX_LIST_BYTES: usize = 1 << 10;

/// How answers tell callers about their limits; one for all answers of a surface.
///
/// ```
/// use tollgate_core::{HeaderForm, HeaderSet, ResetForm};
///
/// let form = HeaderForm::new(HeaderSet::Default)
///     .with_reset(ResetForm::Delta) // X-RateLimit-Reset counts from now
///     .with_retry_jitter(5);        // Retry-After is up to five seconds later, so that not all return at once
/// # drop(form);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeaderForm {
    set: HeaderSet,
    reset: ResetForm,
    retry_jitter_s: u32,
    partition: Option<PartitionSecret>,
}

/// A set of headers that clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeaderSet {
    /// `X-RateLimit-*` for the limit that speaks, `RateLimit-Policy` and `RateLimit` for every enforcing one.
    #[default]
    Default,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, as draft-ietf-httpapi-ratelimit-headers-06 has them.
    Draft06,
    /// `X-RateLimit-Limit: 10, 10;w=1;name="per-ip"`, `-Remaining` and `-Reset`: draft 03, as Envoy writes it.
    Draft03,
    /// Nothing but `Retry-After`.
    None,
}

/// How `X-RateLimit-Reset` of the default set names an instant. The drafts count from now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ResetForm {
    /// Unix seconds.
    #[default]
    Unix,
    /// Seconds from now.
    Delta,
}

impl HeaderSet {
    /// Every set.
    pub const ALL: [HeaderSet; 4] =
        [HeaderSet::Default, HeaderSet::Draft06, HeaderSet::Draft03, HeaderSet::None];

    /// As configuration writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            HeaderSet::Default => "default",
            HeaderSet::Draft06 => "draft-06",
            HeaderSet::Draft03 => "draft-03",
            HeaderSet::None => "none",
        }
    }
}

impl ResetForm {
    /// Both.
    pub const ALL: [ResetForm; 2] = [ResetForm::Unix, ResetForm::Delta];

    /// As configuration writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            ResetForm::Unix => "unix",
            ResetForm::Delta => "delta",
        }
    }
}

impl HeaderForm {
    /// What everybody gets if nobody says otherwise.
    pub const DEFAULT: HeaderForm = HeaderForm::new(HeaderSet::Default);

    /// A set of headers in its plainest form.
    pub const fn new(set: HeaderSet) -> Self {
        HeaderForm { set, reset: ResetForm::Unix, retry_jitter_s: 0, partition: None }
    }

    /// Another set of headers, otherwise the same.
    #[must_use]
    pub fn with_set(self, set: HeaderSet) -> Self {
        HeaderForm { set, ..self }
    }

    /// The same with another way to say when a limit is as good as new.
    #[must_use]
    pub fn with_reset(self, reset: ResetForm) -> Self {
        HeaderForm { reset, ..self }
    }

    /// The same with `Retry-After` up to so many seconds later, never earlier: clients that were refused together do
    /// not return together.
    #[must_use]
    pub fn with_retry_jitter(self, seconds: u32) -> Self {
        HeaderForm { retry_jitter_s: seconds, ..self }
    }

    /// The same with `pk` in `RateLimit-Policy` and `RateLimit`: which bucket it is, as a hash under a secret.
    #[must_use]
    pub fn with_partition(self, secret: PartitionSecret) -> Self {
        HeaderForm { partition: Some(secret), ..self }
    }

    /// The headers of a decision made at `now`; none where no limit applied or the request is invalid. Without the
    /// request nothing says which bucket it was.
    ///
    /// A rule that fails open reports a full limit that resets now. A denial reports a limit of 0, and a rule that fails
    /// closed that nothing remains; neither has a reset, because no wait is known to help.
    pub fn headers(
        &self,
        decision: &Decision,
        rules: &RuleSet,
        request: Option<&Descriptor<'_>>,
        now: Timestamp,
    ) -> Option<RateLimitHeaders> {
        let binding = decision.binding_limit().filter(|_| decision.status() != Status::Invalid)?;
        let has_reset = !matches!(decision.status(), Status::Denied | Status::Unavailable);
        let mut writer = Writer {
            text: String::with_capacity(64 + 128 * decision.tiers().len()),
            fields: SmallVec::new(),
            request,
            partition: self.partition.as_ref(),
        };
        let listed = listed(decision, binding);
        let verdict = binding.verdict();
        let delta = decision.reset_after().ceil_secs();
        match self.set {
            HeaderSet::Default => {
                let reset = match self.reset {
                    ResetForm::Unix => unix_secs(now.after(decision.reset_after())),
                    ResetForm::Delta => delta,
                };
                writer.number(HeaderField::XLimit, verdict.limit);
                writer.number(HeaderField::XRemaining, verdict.remaining);
                if has_reset {
                    writer.number(HeaderField::XReset, reset);
                }
                writer.policies_and_states(rules, &listed);
            }
            HeaderSet::Draft06 => {
                writer.number(HeaderField::Limit, verdict.limit);
                writer.number(HeaderField::Remaining, verdict.remaining);
                if has_reset {
                    writer.number(HeaderField::Reset, delta);
                }
            }
            HeaderSet::Draft03 => {
                push_number(&mut writer.text, verdict.limit);
                writer.text.push_str(", ");
                if writer.items(rules, &listed, Writer::old_policy) == 0 {
                    writer.text.truncate(writer.text.len() - ", ".len());
                }
                writer.end(HeaderField::XLimit);
                writer.number(HeaderField::XRemaining, verdict.remaining);
                if has_reset {
                    writer.number(HeaderField::XReset, delta);
                }
            }
            HeaderSet::None => {}
        }
        let retry_after = self.retry_after(decision, rules, now);
        Some(RateLimitHeaders { text: writer.text, fields: writer.fields, retry_after })
    }

    /// Whole seconds, at least 1, and not before the speaking limit has anything to give.
    fn retry_after(&self, decision: &Decision, rules: &RuleSet, now: Timestamp) -> Option<u64> {
        if decision.allowed() {
            return None;
        }
        let binding = decision.binding_limit()?;
        let more_after = binding.verdict().more_after(rules.rule(binding.rule).limit());
        let wait = decision.retry_after()?.max(more_after.unwrap_or(Micros::ZERO));
        Some(wait.ceil_secs().max(1).saturating_add(self.jitter(now)))
    }

    /// A part of the jitter that the microsecond of the refusal decides: even, and the same for the same input.
    fn jitter(&self, now: Timestamp) -> u64 {
        let mixed = now.as_micros().cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed % (u64::from(self.retry_jitter_s) + 1)
    }
}

/// The enforcing tiers, the binding limit first: what does not fit into a header is cut from the end.
fn listed<'d>(decision: &'d Decision, binding: &Tier) -> SmallVec<[&'d Tier; 4]> {
    let mut listed: SmallVec<[&Tier; 4]> = decision.tiers().iter().filter(|tier| tier.enforces()).collect();
    if let Some(place) = listed.iter().position(|tier| std::ptr::eq(*tier, binding)) {
        listed[..=place].rotate_right(1);
    }
    listed
}

fn unix_secs(at: Timestamp) -> u64 {
    Micros::new(u64::try_from(at.as_micros()).unwrap_or(0)).ceil_secs()
}

/// The text so far.
struct Writer<'a, 'd> {
    text: String,
    fields: SmallVec<[(HeaderField, usize); 5]>,
    request: Option<&'a Descriptor<'d>>,
    partition: Option<&'a PartitionSecret>,
}

impl Writer<'_, '_> {
    fn number(&mut self, field: HeaderField, value: u64) {
        push_number(&mut self.text, value);
        self.end(field);
    }

    fn end(&mut self, field: HeaderField) {
        self.fields.push((field, self.text.len()));
    }

    /// `RateLimit-Policy` and `RateLimit` with the same items: as many of the tiers as fit into both. Neither field is
    /// there if the first tier does not fit.
    fn policies_and_states(&mut self, rules: &RuleSet, tiers: &[&Tier]) {
        if tiers.is_empty() {
            return;
        }
        let start = self.text.len();
        let policies = self.items(rules, tiers, Writer::policy);
        let policies_end = self.text.len();
        let states = self.items(rules, &tiers[..policies], Writer::state);
        if states < tiers.len() {
            self.text.truncate(start);
            return self.policies_and_states(rules, &tiers[..states]);
        }
        self.fields.push((HeaderField::Policy, policies_end));
        self.end(HeaderField::State);
    }

    /// One item for each tier, up to the first that does not fit; how many there are.
    fn items(&mut self, rules: &RuleSet, tiers: &[&Tier], item: fn(&mut Self, &RuleSet, &Tier)) -> usize {
        let start = self.text.len();
        for (place, tier) in tiers.iter().enumerate() {
            let end = self.text.len();
            if place > 0 {
                self.text.push_str(", ");
            }
            item(self, rules, tier);
            if self.text.len() - start > MAX_LIST_BYTES {
                self.text.truncate(end);
                return place;
            }
        }
        tiers.len()
    }

    /// `"per-user";q=50;w=5`
    fn policy(&mut self, rules: &RuleSet, tier: &Tier) {
        let rule = rules.rule(tier.rule);
        push_string(&mut self.text, rule.label_in(self.request));
        push_integer(&mut self.text, ";q=", tier.verdict().limit);
        if let Some(window) = rule.limit().and_then(window_secs) {
            push_integer(&mut self.text, ";w=", window);
        }
        self.partition_key(rules, tier);
    }

    /// `"per-user";r=12;t=1`
    fn state(&mut self, rules: &RuleSet, tier: &Tier) {
        let rule = rules.rule(tier.rule);
        push_string(&mut self.text, rule.label_in(self.request));
        push_integer(&mut self.text, ";r=", tier.verdict().remaining);
        if let Some(more_after) = tier.verdict().more_after(rule.limit()) {
            push_integer(&mut self.text, ";t=", more_after.ceil_secs());
        }
        self.partition_key(rules, tier);
    }

    /// `50;w=5;name="per-user"`; a rule without a name says none.
    fn old_policy(&mut self, rules: &RuleSet, tier: &Tier) {
        let rule = rules.rule(tier.rule);
        push_number(&mut self.text, tier.verdict().limit);
        if let Some(window) = rule.limit().and_then(window_secs) {
            push_integer(&mut self.text, ";w=", window);
        }
        if let Some(name) = &rule.draft().name {
            self.text.push_str(";name=");
            push_string(&mut self.text, name);
        }
    }

    /// `;pk=:cHsdsRa894==:`
    fn partition_key(&mut self, rules: &RuleSet, tier: &Tier) {
        if let (Some(secret), Some(request)) = (self.partition, self.request) {
            secret.push(&mut self.text, rules.rule(tier.rule), request);
        }
    }
}

/// The window of a policy in whole seconds; none below one second, where only the quota says something.
fn window_secs(limit: &Limit) -> Option<u64> {
    let window = limit.time_to_full();
    let is_window = !matches!(
        limit.algorithm(),
        Algorithm::TokenBucket(_) | Algorithm::TokenBucketInterval(_) | Algorithm::LeakyBucket { .. }
    );
    (!is_window || window.get() >= 1_000_000).then(|| window.ceil_secs())
}
