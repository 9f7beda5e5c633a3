//! Sentinels, the primary they name, and the clocks of its replicas.

use std::collections::{BTreeSet, HashMap};

use redis::ConnectionInfo;

use super::checks::{Role, count};
use super::clocks::Clocks;
use super::probe::Probe;
use super::{Demands, Finding, examine_one, reason};
use crate::store::redis::{RedisBuilder, at};

/// What one sentinel says.
struct Said {
    primary: (String, u16),
    replicas: Result<Vec<(String, u16)>, String>,
    quorum: Result<String, String>,
}

/// Asks every sentinel, examines whom they name, and compares the clocks of all who may be promoted. A sentinel keeps no
/// limits, and does not answer `TIME`.
pub(super) async fn examine(
    redis: &RedisBuilder,
    sentinels: &[ConnectionInfo],
    name: &str,
    node: &ConnectionInfo,
    demands: &Demands,
) -> Vec<Finding> {
    let mut said = Vec::new();
    let mut silent = Vec::new();
    for sentinel in sentinels {
        match ask(redis, sentinel, name).await {
            Ok(answer) => said.push(answer),
            Err(finding) => silent.push((sentinel.addr().to_string(), finding)),
        }
    }
    let Some(first) = said.first() else {
        return silent.into_iter().map(|(address, finding)| of_sentinel(&address, finding)).collect();
    };
    let (host, port) = first.primary.clone();
    let mut findings = vec![agreement(&said, &silent, sentinels.len()), quorum(&said)];
    let primary = examine_one(redis, at(node, &host, port), Role::Named, demands).await;
    let mut clocks = Clocks::default();
    clocks.note(format!("{host}:{port}"), &primary);
    let known: BTreeSet<&(String, u16)> =
        said.iter().filter_map(|said| said.replicas.as_ref().ok()).flatten().collect();
    for (host, port) in known.into_iter().filter(|replica| **replica != first.primary) {
        clocks.ask(redis, at(node, host, *port)).await;
    }
    if let Some(why) = said.iter().find_map(|said| said.replicas.as_ref().err()) {
        clocks.miss("what replicas there are".to_owned(), why.clone());
    }
    findings.extend(primary);
    findings.push(clocks.judged());
    findings
}

async fn ask(redis: &RedisBuilder, sentinel: &ConnectionInfo, name: &str) -> Result<Said, Finding> {
    let (mut probe, _) = Probe::connect(redis, sentinel.clone()).await?;
    let primary: Option<(String, u16)> = probe
        .ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name])
        .await
        .map_err(|error| reason::unreachable(&error))?;
    let unknown = || {
        let (found, way_out) = reason::unknown_primary(name);
        Finding::fail("sentinels", found).with_advice(way_out)
    };
    let primary = primary.ok_or_else(unknown)?;
    let replicas = probe.ask::<Vec<HashMap<String, String>>>(&["SENTINEL", "REPLICAS", name]).await;
    let address =
        |facts: &HashMap<String, String>| Some((facts.get("ip")?.clone(), facts.get("port")?.parse().ok()?));
    let replicas = replicas.map(|replicas| replicas.iter().filter_map(address).collect());
    let replicas = replicas.map_err(|error| reason::words(&error));
    let quorum = probe.ask::<String>(&["SENTINEL", "CKQUORUM", name]).await;
    Ok(Said { primary, replicas, quorum: quorum.map_err(|error| reason::words(&error)) })
}

/// Whether all answer, and with one voice.
fn agreement(said: &[Said], silent: &[(String, Finding)], all: usize) -> Finding {
    let (host, port) = &said[0].primary;
    let found = format!("{} of {all} answer: the primary is {host}:{port}", said.len());
    if said.iter().any(|other| other.primary != said[0].primary) {
        return Finding::warn("sentinels", format!("{found}, but not all say so"))
            .with_advice("a promotion is under way, or a sentinel is cut off; ask again in a moment");
    }
    match silent.first() {
        None => Finding::ok("sentinels", found),
        Some((address, why)) => Finding::warn("sentinels", found)
            .with_advice(format!("{address}: {}; a promotion needs a majority of them", why.found)),
    }
}

/// Whether they could agree on a promotion.
fn quorum(said: &[Said]) -> Finding {
    let able = said.iter().filter(|said| said.quorum.is_ok()).count();
    let able = u64::try_from(able).unwrap_or(0);
    match said.iter().find_map(|said| said.quorum.as_ref().err()) {
        None => Finding::ok("quorum", format!("{} can have a replica promoted", count(able, "sentinel"))),
        Some(why) => Finding::fail("quorum", why.clone())
            .with_advice("bring sentinels back, or lower the quorum: no replica is promoted without one"),
    }
}

/// Why a sentinel cannot be used.
fn of_sentinel(address: &str, finding: Finding) -> Finding {
    Finding { found: format!("sentinel {address}: {}", finding.found), ..finding }
}
