//! Every primary of a Cluster.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use redis::{ConnectionInfo, Value};

use super::checks::{Role, count};
use super::probe::{CLOCK_OFF_US, Probe, millis};
use super::{Demands, Finding, examine_one, reason};
use crate::store::redis::slots::{self, SLOTS};
use crate::store::redis::{RedisBuilder, at};

/// The slots of each primary, by its address.
type Primaries = BTreeMap<(String, u16), Vec<RangeInclusive<u16>>>;

/// Asks the first seed that answers for the others, and examines every primary.
pub(super) async fn examine(
    redis: &RedisBuilder,
    seeds: &[ConnectionInfo],
    demands: &Demands,
) -> Vec<Finding> {
    let mut failed = Vec::new();
    for seed in seeds {
        match look(redis, seed).await {
            Ok((primaries, coverage)) => {
                let mut findings = vec![covered(&primaries), coverage];
                let (nodes, clocks) = examine_nodes(redis, seed, &primaries, demands).await;
                findings.extend(worst(nodes));
                findings.push(clocks);
                return findings;
            }
            Err(finding) => failed.push(finding),
        }
    }
    failed
}

/// Who has which slots, and what happens to the rest when somebody is lost.
async fn look(redis: &RedisBuilder, seed: &ConnectionInfo) -> Result<(Primaries, Finding), Finding> {
    let (mut probe, _) = Probe::connect(redis, seed.clone()).await?;
    let no_cluster = |error: &redis::RedisError| {
        Finding::fail("slots", reason::words(error))
            .with_advice("name nodes of a Cluster, and permit CLUSTER SLOTS")
    };
    let answer: Value = probe.ask(&["CLUSTER", "SLOTS"]).await.map_err(|error| no_cluster(&error))?;
    let host = match seed.addr() {
        redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    };
    let mut primaries = Primaries::new();
    for range in slots::read(&answer, host).unwrap_or_default() {
        primaries.entry((range.host, range.port)).or_default().push(range.first..=range.last);
    }
    let coverage = match probe.setting("cluster-require-full-coverage").await.as_deref() {
        Some("no") => Finding::ok("coverage", "the other shards go on when one is lost"),
        Some(_) => Finding::warn("coverage", "when one shard is lost, no shard answers").with_advice(
            "CONFIG SET cluster-require-full-coverage no on every node: then only its keys degrade",
        ),
        None => Finding::ok("coverage", "whether one lost shard stops all is not shown"),
    };
    Ok((primaries, coverage))
}

fn covered(primaries: &Primaries) -> Finding {
    let covered: usize = primaries.values().flatten().map(ExactSizeIterator::len).sum();
    let number = u64::try_from(primaries.len()).unwrap_or(0);
    let found = format!(
        "{covered} of {SLOTS} covered by {}",
        count(number, "primary").replace("primarys", "primaries")
    );
    if covered == usize::from(SLOTS) {
        return Finding::ok("slots", found);
    }
    Finding::fail("slots", found)
        .with_advice("see `redis-cli --cluster check`: keys of the others cannot be counted")
}

/// Everything that is found at every primary, and how far their clocks are apart.
async fn examine_nodes(
    redis: &RedisBuilder,
    seed: &ConnectionInfo,
    primaries: &Primaries,
    demands: &Demands,
) -> (Vec<Finding>, Finding) {
    let mut findings = Vec::new();
    let mut ahead = Vec::new();
    for ((host, port), slots) in primaries {
        let node = at(seed, host, *port);
        let found = examine_one(redis, node, Role::Member(slots), demands).await;
        ahead.extend(found.iter().filter_map(|finding| finding.numbers.get("ahead_us").copied()));
        let name =
            |finding: Finding| Finding { found: format!("{host}:{port}: {}", finding.found), ..finding };
        findings.extend(found.into_iter().map(name));
    }
    (findings, apart(&ahead))
}

/// How far clocks are apart. Each bucket lives by its own node's.
fn apart(ahead_us: &[i64]) -> Finding {
    let most = ahead_us.iter().max().zip(ahead_us.iter().min()).map_or(0, |(most, least)| most - least);
    let found = format!("at most {} apart", millis(most));
    let finding = if most.unsigned_abs() <= CLOCK_OFF_US {
        Finding::ok("clocks", found)
    } else {
        Finding::warn("clocks", found)
            .with_advice("after a failover windows move by as much; run NTP on every node")
    };
    finding.with_number("apart_us", most)
}

/// Of each check the worst that was found, in the order of the checks.
fn worst(findings: Vec<Finding>) -> Vec<Finding> {
    let mut worst: Vec<Finding> = Vec::new();
    for finding in findings {
        match worst.iter_mut().find(|known| known.check == finding.check) {
            Some(known) if known.level < finding.level => *known = finding,
            Some(_) => {}
            None => worst.push(finding),
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn of_every_check_the_worst_is_told() {
        let found = [
            Finding::ok("role", "a: fine"),
            Finding::ok("memory", "a: fine"),
            Finding::warn("role", "b: so so"),
            Finding::fail("role", "c: bad"),
        ];
        let told = worst(found.into());
        let told: Vec<_> = told.iter().map(|finding| (finding.check, finding.level)).collect();
        assert_eq!(told, [("role", Level::Fail), ("memory", Level::Ok)]);
    }

    #[test]
    fn slots_that_nobody_has_are_a_failure() {
        let mut primaries = Primaries::from([(("a".to_owned(), 1), vec![0..=16_382])]);
        assert_eq!(covered(&primaries).level, Level::Fail);
        primaries.insert(("b".to_owned(), 1), vec![16_383..=16_383]);
        assert_eq!(covered(&primaries).found, "16384 of 16384 covered by 2 primaries");
    }

    #[test]
    fn clocks_more_than_a_second_apart_are_a_warning() {
        assert_eq!(apart(&[-500_000, 500_000]).level, Level::Ok);
        assert_eq!(apart(&[0, 1_000_001]).level, Level::Warn);
        assert_eq!(apart(&[]).level, Level::Ok);
    }
}
