//! Parts of a limit, for nodes that decide without a common store.

use std::num::NonZeroU32;

use super::{Algorithm, IntervalRefill, Limit, MAX_EXACT, MAX_PERIOD, Refill, gcd};
use crate::time::Micros;

/// The place of one node among those that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// How many come before it, by their ids; `None` where nodes are configured rather than counted.
    pub place: Option<u32>,
    /// How many there are.
    pub nodes: NonZeroU32,
}

impl Limit {
    /// One node's share of this limit where `nodes` of them cannot ask a common store: a bucket of a part of the
    /// size that fills at a part of the rate.
    ///
    /// Parts are rounded down, but a share holds at least one token, and gets one at least once in 366 days: so little
    /// cannot be divided.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use tollgate_core::Limit;
    ///
    /// let limit: Limit = "10/s burst 50".parse()?;
    /// assert_eq!(limit.share(NonZeroU32::new(4).unwrap()).to_string(), "10/4s burst 12");
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    #[must_use]
    pub fn share(&self, nodes: NonZeroU32) -> Self {
        let part = |whole: u64| whole / u64::from(nodes.get());
        self.divided(nodes, part, Some((1, MAX_PERIOD))).expect("every share has a least")
    }

    /// The share of one node, such that the shares of all of them add up to this limit; `None` where there is nothing
    /// left for it, because there are more nodes than tokens, or so few tokens in so long a time that not all get some.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use tollgate_core::Limit;
    /// use tollgate_core::limit::Rank;
    ///
    /// let limit: Limit = "10/s burst 50".parse()?;
    /// let nodes = NonZeroU32::new(4).unwrap();
    /// let bursts: Vec<u64> = (0..4)
    ///     .filter_map(|place| limit.share_of(Rank { place: Some(place), nodes }))
    ///     .map(|share| share.capacity())
    ///     .collect();
    /// assert_eq!(bursts, [13, 13, 12, 12]);
    /// # Ok::<(), tollgate_core::LimitError>(())
    /// ```
    ///
    /// A node that does not know its place gets [`share`](Self::share).
    pub fn share_of(&self, rank: Rank) -> Option<Self> {
        let Some(place) = rank.place else { return Some(self.share(rank.nodes)) };
        let nodes = u64::from(rank.nodes.get());
        let part = |whole: u64| whole / nodes + u64::from(u64::from(place) < whole % nodes);
        if part(self.capacity()) == 0 {
            return None;
        }
        self.divided(rank.nodes, part, None)
    }

    /// This limit with every number divided by `part`, and rates by the number of nodes; `least` is the refill of those
    /// for whom too little comes to be divided.
    fn divided(
        &self,
        nodes: NonZeroU32,
        part: impl Fn(u64) -> u64,
        least: Option<(u64, Micros)>,
    ) -> Option<Self> {
        let nodes = u64::from(nodes.get());
        let times = |period: Micros| Micros::new(period.get().saturating_mul(nodes));
        let of_each = |whole: u64| part(whole).max(1);
        let rounded = |count: u64, period: Micros| match part(count) {
            0 => least,
            part => Some((part, period)),
        };
        // The same count in a longer period is exact. Where the period would get too long, the count is rounded down,
        // and the capacity with it if the new rate leaves no room to be exact.
        let slower = |count: u64, period: Micros, capacity: u64| {
            let fits = |longer: Micros| longer <= MAX_PERIOD && count <= MAX_EXACT - longer.get();
            let exact = fits(times(period)).then(|| (count, times(period)));
            let (count, period) = exact.or_else(|| rounded(count, period))?;
            let g = gcd(count, period.get());
            let largest = (MAX_EXACT - count / g) / (period.get() / g);
            Some((count, period, of_each(capacity).min(largest)))
        };
        // A refill of fewer tokens than nodes comes to each of them one by one, and more rarely.
        let rarer = |count: u64, interval: Micros| {
            let longer = Micros::new(times(interval).get().div_ceil(count));
            let one = (count < nodes && longer <= MAX_PERIOD).then_some((1, longer));
            one.or_else(|| rounded(count, interval))
        };
        let share = match self.algorithm.clone() {
            Algorithm::TokenBucket(Refill { count, period, capacity, .. }) => {
                let (count, period, capacity) = slower(count, period, capacity)?;
                Self::token_bucket(count, period, capacity)
            }
            Algorithm::LeakyBucket { refill: Refill { count, period, capacity, .. }, free } => {
                let (count, period, capacity) = slower(count, period, capacity)?;
                Self::leaky_bucket(count, period, capacity - 1, part(free).min(capacity - 1))
            }
            Algorithm::TokenBucketInterval(IntervalRefill { count, interval, capacity, ticks }) => {
                let (count, interval) = rarer(count, interval)?;
                // So many small refills may take too long to be exact: then the share holds one refill.
                Self::interval(count, interval, of_each(capacity), ticks)
                    .or_else(|_| Self::interval(count, interval, count.min(of_each(capacity)), ticks))
            }
            Algorithm::FixedWindow { limit, window, phase } => {
                Self::fixed_window(of_each(limit), window, phase)
            }
            Algorithm::SlidingWindowLog { limit, window } => Self::sliding_window_log(of_each(limit), window),
            Algorithm::SlidingWindowCounter { limit, window, opens } => {
                Self::sliding_window_counter(of_each(limit), window, opens)
            }
        };
        Some(share.expect("a share's numbers are no larger than those of the limit, and exact"))
    }
}
