//! How far the clocks of several nodes are apart.

use redis::ConnectionInfo;

use super::checks::count;
use super::probe::{MAX_CLOCK_OFFSET_US, Probe, millis};
use super::{Finding, Level, reason};
use crate::store::redis::RedisBuilder;

/// What nodes say the time is. Each bucket lives by the clock of its node, and by another's after a failover.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    /// How far each is ahead of ours, in microseconds.
    ahead_us: Vec<(String, i64)>,
    /// Who does not tell, and why.
    silent: Vec<(String, String)>,
}

impl Clocks {
    /// Asks a node.
    pub(super) async fn ask(&mut self, redis: &RedisBuilder, node: ConnectionInfo) {
        let address = node.addr().to_string();
        let ahead = match Probe::connect(redis, node).await {
            Ok((mut probe, _)) => probe.ahead().await.map_err(|error| reason::words(&error)),
            Err(finding) => Err(finding.found),
        };
        match ahead {
            Ok((ahead_us, _)) => self.ahead_us.push((address, ahead_us)),
            Err(why) => self.miss(address, why),
        }
    }

    /// Takes note of what was found at a node that was examined.
    pub(super) fn note(&mut self, address: String, found: &[Finding]) {
        match found.iter().find_map(|finding| finding.numbers.get("ahead_us")) {
            Some(ahead_us) => self.ahead_us.push((address, *ahead_us)),
            None => {
                let failed = found.iter().find(|finding| finding.level == Level::Fail);
                self.miss(address, failed.map_or(String::new(), |finding| finding.found.clone()));
            }
        }
    }

    /// Records a node that does not answer, and why.
    pub(super) fn miss(&mut self, who: String, why: String) {
        self.silent.push((who, why));
    }

    /// What that means.
    pub(super) fn judged(&self) -> Finding {
        let ahead_us = |(_, ahead_us): &&(String, i64)| *ahead_us;
        let (first, last) =
            (self.ahead_us.iter().min_by_key(ahead_us), self.ahead_us.iter().max_by_key(ahead_us));
        let apart_us = first.zip(last).map_or(0, |(first, last)| last.1 - first.1);
        let asked = u64::try_from(self.ahead_us.len() + self.silent.len()).unwrap_or(0);
        let apart = format!("{}, at most {} apart", count(asked, "node"), millis(apart_us));
        let finding = match (first.zip(last), self.silent.first()) {
            (Some((first, last)), _) if apart_us.unsigned_abs() > MAX_CLOCK_OFFSET_US => {
                Finding::warn("clocks", format!("{apart}: {} is behind {}", first.0, last.0))
                    .with_advice("after a failover windows move by as much; run NTP on every node")
            }
            (_, Some((address, why))) => Finding::warn(
                "clocks",
                format!("{apart}, but {} not tell", do_not(self.silent.len())),
            )
            .with_advice(format!(
                "{address}: {why}; see that it is up and permit TIME: once promoted, it counts by its clock"
            )),
            _ => Finding::ok("clocks", apart),
        };
        finding.with_number("apart_us", apart_us).with_number("nodes", i64::try_from(asked).unwrap_or(0))
    }
}

/// So many do something not.
fn do_not(number: usize) -> String {
    format!("{number} {}", if number == 1 { "does" } else { "do" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(ahead_us: &[i64]) -> Clocks {
        let named = |(number, ahead_us): (usize, &i64)| (format!("h{number}:1"), *ahead_us);
        Clocks { ahead_us: ahead_us.iter().enumerate().map(named).collect(), silent: Vec::new() }
    }

    #[test]
    fn clocks_more_than_a_second_apart_are_a_warning_that_names_them() {
        assert_eq!(clocks(&[-500_000, 500_000]).judged().level, Level::Ok);
        let apart = clocks(&[0, 1_000_001, -3]).judged();
        assert_eq!(apart.level, Level::Warn);
        assert_eq!(apart.found, "3 nodes, at most 1000.00 ms apart: h2:1 is behind h1:1");
        assert_eq!(apart.numbers["apart_us"], 1_000_004);
        assert_eq!(clocks(&[]).judged().level, Level::Ok);
    }

    #[test]
    fn a_node_that_does_not_tell_is_a_warning_that_says_why() {
        let mut clocks = clocks(&[0, 10]);
        clocks.note("h9:1".to_owned(), &[Finding::fail("reachable", "connection refused")]);
        let judged = clocks.judged();
        assert_eq!((judged.level, judged.numbers["nodes"]), (Level::Warn, 3));
        assert_eq!(judged.found, "3 nodes, at most 0.01 ms apart, but 1 does not tell");
        assert!(judged.advice.is_some_and(|advice| advice.starts_with("h9:1: connection refused")));
    }
}
