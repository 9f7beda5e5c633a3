//! The contenders: tollgate's ways to decide whether a caller may pass.

use std::fmt;
use std::future::Future;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::core::{Draft, Enforcement};
use tollgate::{
    AnyStore, Call, Descriptor, Gate, Limit, Limiter, MemoryStore, Op, Rule, RuleSet, Store, Tier, Tiers,
    key_seeds,
};

/// Decides about callers, one token each.
pub trait Contender: fmt::Debug + Sync {
    /// Whether this caller may pass.
    fn decide(&self, caller: &Caller) -> bool;

    /// Makes the buckets full that all callers share: many slices together would use them up on a fast machine.
    fn refill_shared(&self) {}

    /// The bytes it says it holds, if it keeps count.
    fn bytes(&self) -> Option<usize> {
        None
    }
}

/// Who asks: `user:0000042`, number 42.
#[derive(Debug, Clone)]
pub struct Caller {
    name: String,
    number: u32,
}

/// The same limit for everybody who is compared.
#[derive(Debug, Clone, Copy)]
pub struct Quota {
    /// Tokens that come back in an hour.
    pub per_hour: u32,
    /// The most tokens.
    pub burst: u32,
}

impl Caller {
    /// The caller of this number, of at most seven digits.
    pub fn new(number: u32) -> Self {
        let mut caller = Caller { name: String::with_capacity(16), number };
        caller.turn_into(number);
        caller
    }

    /// Writes another caller's name into the same buffer.
    #[inline]
    pub fn turn_into(&mut self, number: u32) {
        let mut digits = *b"0000000";
        let mut rest = number;
        for digit in digits.iter_mut().rev() {
            *digit += u8::try_from(rest % 10).expect("one digit");
            rest /= 10;
        }
        self.number = number;
        self.name.clear();
        self.name.push_str("user:");
        self.name.push_str(str::from_utf8(&digits).expect("digits"));
    }

    /// The key: 12 characters.
    #[inline]
    pub const fn name(&self) -> &String {
        &self.name
    }

    /// An address of their own.
    #[inline]
    pub const fn address(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | self.number))
    }

    /// What a server knows about the request once it has read it.
    #[inline]
    pub fn request(&self) -> Descriptor<'_> {
        Descriptor::new()
            .with("user_id", self.name.as_str())
            .with_ip(self.address())
            .with("endpoint", black_box("/api/search")) // or the compiler would check it
            .with("method", black_box("GET"))
    }
}

impl Quota {
    /// The largest burst that 100/h may have: nobody is refused, and no bucket becomes full again meanwhile.
    pub const ENDLESS: Quota = Quota { per_hour: 100, burst: 250_000_000 };
    /// Nothing is left after the first request.
    pub const SPENT: Quota = Quota { per_hour: 1, burst: 1 };

    /// As a token bucket.
    pub fn limit(self) -> Limit {
        let (count, burst) = (u64::from(self.per_hour), u64::from(self.burst));
        Limit::token_bucket(count, Duration::from_secs(3_600), burst).expect("in range")
    }

    /// For a bucket that everybody shares.
    const fn for_all(self) -> Quota {
        Quota { per_hour: self.per_hour * 10, burst: self.burst * 10 }
    }

    fn rule(self, key: &str) -> Draft {
        let limit = format!("{}/h burst {}", self.per_hour, self.burst);
        Draft { key: key.to_owned(), limit: Some(limit), ..Draft::default() }
    }
}

/// `Store::run_now` with one row, whose key is hashed for each decision.
#[derive(Debug)]
pub struct Row {
    store: MemoryStore,
    rules: RuleSet,
}

impl Row {
    /// An empty store and this quota.
    pub fn new(quota: Quota) -> Self {
        Row { store: MemoryStore::new(), rules: RuleSet::of(Rule::ad_hoc(quota.limit())) }
    }
}

impl Contender for Row {
    #[inline]
    fn decide(&self, caller: &Caller) -> bool {
        let request = Rule::naming(caller.name().as_str());
        let hash = key_seeds().hash(self.rules.rule(0).key(&request));
        let mut tiers = Tiers::from_iter([Tier::new(0, Enforcement::Enforce, 1, hash)]);
        let at = self.store.run_now(&mut Call::new(Op::Charge, &self.rules, &request, &mut tiers));
        at.is_some() && tiers[0].verdict().allowed
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.store.stats().bytes)
    }
}

/// `Gate::allow`: one limit without rules.
#[derive(Debug)]
pub struct Allow(Gate<MemoryStore>);

impl Allow {
    /// An empty store and this quota.
    pub fn new(quota: Quota) -> Self {
        Allow(Gate::new(quota.limit(), MemoryStore::new()))
    }
}

impl Contender for Allow {
    #[inline]
    fn decide(&self, caller: &Caller) -> bool {
        now(self.0.allow(caller.name())).allowed()
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.store().stats().bytes)
    }
}

/// `Limiter::check` by rules, with the store chosen at run time, as a server has it. Describing the request is
/// part of it.
#[derive(Debug)]
pub struct Check(Limiter);

impl Check {
    /// One rule matches: per user.
    pub fn one_tier(quota: Quota) -> Self {
        Self::with([quota.rule("user:{user_id}")])
    }

    /// Four rules match: per user, per endpoint, per address, and one for everybody.
    pub fn four_tiers(quota: Quota) -> Self {
        let shared = quota.for_all();
        Self::with([
            quota.rule("user:{user_id}"),
            shared.rule("endpoint:/api/search"),
            quota.rule("ip:{ip}"),
            shared.rule("global"),
        ])
    }

    fn with(drafts: impl IntoIterator<Item = Draft>) -> Self {
        let rules = drafts.into_iter().map(|draft| draft.build().expect("a good rule")).collect();
        Check(Limiter::new(RuleSet::new(rules).expect("a good set"), MemoryStore::new().into()))
    }
}

impl Contender for Check {
    #[inline]
    fn decide(&self, caller: &Caller) -> bool {
        let request = caller.request();
        now(self.0.check(&request)).allowed()
    }

    fn bytes(&self) -> Option<usize> {
        match self.0.store() {
            AnyStore::Memory(store) => Some(store.stats().bytes),
            _ => None,
        }
    }
}

/// Waits for a future that never waits: a store in memory answers at once.
#[inline]
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}
