//! Every primary of a Cluster, and the clocks of all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use redis::{ConnectionInfo, Value};

use super::checks::{Role, count};
use super::clocks::Clocks;
use super::probe::Probe;
use super::{Demands, Finding, examine_one, reason};
use crate::store::redis::slots::{self, SLOTS};
use crate::store::redis::{RedisBuilder, at};

/// The slots of each primary, by its address.
type Primaries = BTreeMap<(String, u16), Vec<RangeInclusive<u16>>>;

/// Who is there, as a node tells it.
struct Nodes {
    primaries: Primaries,
    replicas: BTreeSet<(String, u16)>,
    coverage: Finding,
}

/// Asks the first seed that answers for the others, and examines every primary; every replica for its clock.
pub(super) async fn examine(
    redis: &RedisBuilder,
    seeds: &[ConnectionInfo],
    demands: &Demands,
) -> Vec<Finding> {
    let mut failed = Vec::new();
    for seed in seeds {
        match look(redis, seed).await {
            Ok(nodes) => {
                let mut clocks = Clocks::default();
                let found = examine_primaries(redis, seed, &nodes.primaries, demands, &mut clocks).await;
                for (host, port) in &nodes.replicas {
                    clocks.ask(redis, at(seed, host, *port)).await;
                }
                let mut findings = vec![covered(&nodes.primaries), nodes.coverage];
                findings.extend(worst(found));
                findings.push(clocks.judged());
                return findings;
            }
            Err(finding) => failed.push(finding),
        }
    }
    failed
}

/// The slots of each primary, and whether the others answer when one is lost.
async fn look(redis: &RedisBuilder, seed: &ConnectionInfo) -> Result<Nodes, Finding> {
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
    let (mut primaries, mut replicas) = (Primaries::new(), BTreeSet::new());
    for range in slots::read(&answer, host).unwrap_or_default() {
        primaries.entry((range.host, range.port)).or_default().push(range.first..=range.last);
        replicas.extend(range.replicas);
    }
    let coverage = match probe.setting("cluster-require-full-coverage").await.as_deref() {
        Some("no") => Finding::ok("coverage", "the other shards go on when one is lost"),
        Some(_) => Finding::warn("coverage", "when one shard is lost, no shard answers").with_advice(
            "CONFIG SET cluster-require-full-coverage no on every node: then only its keys degrade",
        ),
        None => Finding::ok("coverage", "whether one lost shard stops all is not shown"),
    };
    Ok(Nodes { primaries, replicas, coverage })
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

/// Everything that is found at every primary.
async fn examine_primaries(
    redis: &RedisBuilder,
    seed: &ConnectionInfo,
    primaries: &Primaries,
    demands: &Demands,
    clocks: &mut Clocks,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((host, port), slots) in primaries {
        let node = at(seed, host, *port);
        let found = examine_one(redis, node, Role::Member(slots), demands).await;
        clocks.note(format!("{host}:{port}"), &found);
        let name =
            |finding: Finding| Finding { found: format!("{host}:{port}: {}", finding.found), ..finding };
        findings.extend(found.into_iter().map(name));
    }
    findings
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
    fn slots_without_a_primary_are_a_failure() {
        let mut primaries = Primaries::from([(("a".to_owned(), 1), vec![0..=16_382])]);
        assert_eq!(covered(&primaries).level, Level::Fail);
        primaries.insert(("b".to_owned(), 1), vec![16_383..=16_383]);
        assert_eq!(covered(&primaries).found, "16384 of 16384 covered by 2 primaries");
    }
}
