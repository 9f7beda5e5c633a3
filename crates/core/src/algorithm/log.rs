//! Sliding window log: every admitted request counts for exactly one window.

use std::collections::VecDeque;

use super::{Answer, signed, until};
use crate::time::{Micros, Timestamp};

/// What a sliding window log remembers: its entries, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// Admitted requests, at most one per instant.
    pub entries: VecDeque<Entry>,
    /// What all the entries cost together.
    pub sum: u64,
    /// The last write.
    pub last: Timestamp,
}

/// One admitted request, or several of the same microsecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// When it was admitted.
    pub at: Timestamp,
    /// What it cost.
    pub cost: u32,
}

impl Log {
    /// Counts the two newest entries as one, at the later instant: shorter, and never too generous.
    pub fn merge_newest(&mut self) {
        if self.entries.len() >= 2
            && let Some(newest) = self.entries.pop_back()
            && let Some(before) = self.entries.back_mut()
        {
            *before = Entry { at: newest.at, cost: before.cost + newest.cost };
            self.entries.shrink_to_fit();
        }
    }

    pub(super) fn shift(&mut self, by: i64) {
        self.last = Timestamp::from_micros(self.last.as_micros() + by);
        for entry in &mut self.entries {
            entry.at = Timestamp::from_micros(entry.at.as_micros() + by);
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Account {
    limit: u64,
    window: i64,
    log: Log,
    /// Entries that no longer count; they go when something is written.
    dead: usize,
    /// What the entries that still count cost together.
    alive: u64,
    at: i64,
}

impl Account {
    pub(super) fn open(limit: u64, window: Micros, log: Log, at: i64) -> Self {
        let window = signed(window);
        let dead = log.entries.partition_point(|entry| entry.at.as_micros() <= at - window);
        let gone: u64 = log.entries.iter().take(dead).map(|entry| u64::from(entry.cost)).sum();
        Account { limit, window, dead, alive: log.sum - gone, log, at }
    }

    pub(super) fn close(self) -> Log {
        self.log
    }

    pub(super) fn written(&mut self) {
        self.log.entries.drain(..self.dead);
        self.dead = 0;
        self.log.sum = self.alive;
        self.log.last = Timestamp::from_micros(self.at);
    }

    fn living(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.log.entries.iter().skip(self.dead)
    }

    fn leaves_after(&self, entry: &Entry) -> u64 {
        until(entry.at.as_micros() + self.window, self.at)
    }
}

impl super::Account for Account {
    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn ask(&self, cost: u64) -> Answer {
        if cost > self.limit {
            return Answer::Never;
        }
        if cost <= self.remaining() {
            return Answer::Pass { delay: Micros::ZERO };
        }
        let mut to_leave = self.alive + cost - self.limit;
        for entry in self.living() {
            match to_leave.checked_sub(u64::from(entry.cost)) {
                Some(left) if left > 0 => to_leave = left,
                _ => return Answer::Wait(Micros::new(self.leaves_after(entry))),
            }
        }
        Answer::Never // unreachable: without any entry the cost fits, and the sum is that of the entries
    }

    fn take(&mut self, cost: u64) {
        self.written();
        let cost = u32::try_from(cost).expect("a log's limit is at most 10,000");
        self.log.sum += u64::from(cost);
        self.alive = self.log.sum;
        match self.log.entries.back_mut() {
            Some(newest) if newest.at.as_micros() == self.at => newest.cost += cost,
            _ => self.log.entries.push_back(Entry { at: Timestamp::from_micros(self.at), cost }),
        }
    }

    fn refund(&mut self, cost: u64) {
        self.written();
        let mut left = cost.min(self.alive);
        self.log.sum -= left;
        self.alive = self.log.sum;
        while let Some(newest) = self.log.entries.back_mut().filter(|_| left > 0) {
            let part = left.min(u64::from(newest.cost));
            left -= part;
            newest.cost -= u32::try_from(part).expect("no more than the entry's cost");
            if newest.cost == 0 {
                self.log.entries.pop_back();
            }
        }
    }

    fn give_back(&mut self, unused: u64, _: u64, since: Timestamp) -> bool {
        if since.as_micros() <= self.at - self.window {
            return false;
        }
        let first = self.log.entries.partition_point(|entry| entry.at < since).max(self.dead);
        let Some(entry) = self.log.entries.get_mut(first).filter(|entry| entry.at == since) else {
            return false;
        };
        let given = unused.min(u64::from(entry.cost));
        entry.cost -= u32::try_from(given).expect("no more than the entry's cost");
        self.alive -= given;
        self.log.entries.retain(|entry| entry.cost > 0);
        self.written();
        true
    }

    fn repaid_from(&self, _: u64) -> Timestamp {
        Timestamp::from_micros(self.at)
    }

    fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.alive)
    }

    fn reset_after(&self) -> u64 {
        self.living().next_back().map_or(0, |newest| self.leaves_after(newest))
    }
}
