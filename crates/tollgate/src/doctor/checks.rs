//! What the server says about itself, judged.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::Finding;
use crate::store::redis::slots::slot;

/// The oldest that are supported.
const REDIS: (u32, u32) = (7, 0);
const VALKEY: (u32, u32) = (7, 2);
/// The share of the memory beyond which to worry, in percent.
const NEARLY_FULL: u64 = 80;

/// What a server is meant to be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Role<'r> {
    /// The one there is.
    Alone,
    /// The primary that sentinels name.
    Named,
    /// A node of a Cluster, which has these slots.
    Member(&'r [RangeInclusive<u16>]),
}

impl Role<'_> {
    /// Whether a key lies there.
    pub(super) fn has(self, key: &str) -> bool {
        match self {
            Role::Alone | Role::Named => true,
            Role::Member(slots) => slots.iter().any(|range| range.contains(&slot(key.as_bytes()))),
        }
    }
}

/// The answer to `INFO`, by name.
#[derive(Debug)]
pub(super) struct Info(HashMap<String, String>);

impl Info {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Info(pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect())
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }

    /// How many bytes a replica has not confirmed: `slave0:ip=…,port=…,state=online,offset=14,lag=0`.
    fn replica_lag(&self, number: u64) -> u64 {
        let line = self.get(&format!("slave{number}"));
        let offset = line.split(',').find_map(|pair| pair.strip_prefix("offset="));
        let offset = offset.and_then(|offset| offset.parse().ok()).unwrap_or(0);
        self.number("master_repl_offset").saturating_sub(offset)
    }
}

pub(super) fn version(info: &Info) -> Finding {
    let (name, version, least) = match info.get("server_name") {
        "valkey" => ("Valkey", info.get("valkey_version"), VALKEY),
        _ => ("Redis", info.get("redis_version"), REDIS),
    };
    let found = format!("{name} {version}");
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if (major, minor) >= least {
        return Finding::ok("version", found);
    }
    Finding::fail("version", found).with_advice(format!("use {name} {}.{} or later", least.0, least.1))
}

pub(super) fn role(info: &Info, role: Role<'_>) -> Finding {
    if info.get("loading") == "1" {
        return Finding::fail("role", "still reading its data set").with_advice("wait until it has");
    }
    if info.get("cluster_enabled") == "1" && !matches!(role, Role::Member(_)) {
        return Finding::fail("role", "a node of a Cluster, which has only its own slots")
            .with_advice("name the Cluster: redis-cluster://HOST:PORT");
    }
    if info.get("role") == "master" {
        return primary(info, role);
    }
    let primary = format!("{}:{}", info.get("master_host"), info.get("master_port"));
    Finding::fail("role", format!("a replica of {primary}, which takes no writes"))
        .with_advice(format!("name the primary: redis://{primary}"))
}

/// A primary, and how far its replicas are behind.
fn primary(info: &Info, role: Role<'_>) -> Finding {
    let replicas = info.number("connected_slaves");
    let behind = (0..replicas).map(|number| info.replica_lag(number)).max().unwrap_or(0);
    let lag = if replicas == 0 { String::new() } else { format!(", at most {} behind", bytes(behind)) };
    let found = format!("primary, {}{lag}", count(replicas, "replica"));
    let finding = match role {
        Role::Named | Role::Member(_) if replicas == 0 => Finding::warn("role", found)
            .with_advice("no replica can be promoted when it is lost; give it one"),
        _ => Finding::ok("role", found),
    };
    finding.with_number("replicas", signed(replicas)).with_number("lag_bytes", signed(behind))
}

pub(super) fn eviction(info: &Info) -> Finding {
    let policy = info.get("maxmemory_policy");
    match (policy, info.number("maxmemory")) {
        ("noeviction", _) => Finding::ok("eviction", "noeviction: nothing is dropped"),
        // Every key of ours has a time to live, so all that begin with volatile mean us too.
        (_, 0) => {
            Finding::warn("eviction", format!("{policy}, which would drop buckets if maxmemory were set"))
                .with_advice(KEEP_BUCKETS)
        }
        _ => Finding::warn("eviction", format!("{policy}: drops buckets when memory is full"))
            .with_advice(KEEP_BUCKETS),
    }
}

const KEEP_BUCKETS: &str =
    "a dropped bucket starts full: CONFIG SET maxmemory-policy noeviction, or a Redis for tollgate alone";

pub(super) fn memory(info: &Info) -> Finding {
    let (used, most) = (info.number("used_memory"), info.number("maxmemory"));
    let used_words = bytes(used);
    let finding = match most {
        0 => Finding::ok("memory", format!("{used_words} used, no maxmemory")),
        _ if used >= most => Finding::fail("memory", format!("{used_words} of {} used: full", bytes(most)))
            .with_advice(MORE_ROOM),
        _ if used.saturating_mul(100) / most >= NEARLY_FULL => {
            Finding::warn("memory", format!("{used_words} of {} used", bytes(most))).with_advice(MORE_ROOM)
        }
        _ => Finding::ok("memory", format!("{used_words} of {} used", bytes(most))),
    };
    finding.with_number("used_bytes", signed(used)).with_number("max_bytes", signed(most))
}

const MORE_ROOM: &str = "raise maxmemory, or remove what others keep there: a full Redis refuses to count";

/// `save` is what `CONFIG GET save` says, if that may be asked.
pub(super) fn persistence(info: &Info, save: Option<&str>) -> Finding {
    if info.get("rdb_last_bgsave_status") == "err" || info.get("aof_last_write_status") == "err" {
        return Finding::fail("persistence", "the last write to disk failed")
            .with_advice("make room on the disk, see the server's log: it may refuse all writes until then");
    }
    match (info.get("aof_enabled"), save) {
        ("1", _) => {
            Finding::ok("persistence", "append-only file: a crash forgets what appendfsync left unwritten")
        }
        (_, Some("")) => Finding::ok("persistence", "none: a restart forgets every bucket")
            .with_advice("each key may then spend one capacity again; appendonly yes keeps more"),
        (_, Some(_)) => Finding::ok("persistence", "snapshots: a crash forgets what came after the last")
            .with_advice("each key may then spend one capacity again; appendonly yes keeps more"),
        (_, None) => {
            Finding::ok("persistence", "no append-only file; whether there are snapshots is not shown")
                .with_advice("after a restart each key may spend one capacity again")
        }
    }
}

/// So many of something.
pub(super) fn count(number: u64, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// A size in the largest unit that leaves a whole part: `1.4 MB`.
fn bytes(number: u64) -> String {
    let (unit, name) = match number {
        0..1_000 => return format!("{number} B"),
        1_000..1_000_000 => (1_000, "kB"),
        1_000_000..1_000_000_000 => (1_000_000, "MB"),
        _ => (1_000_000_000, "GB"),
    };
    format!("{}.{} {name}", number / unit, number % unit * 10 / unit)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn info(text: &str) -> Info {
        Info::parse(&text.replace(' ', "\r\n"))
    }

    #[test]
    fn redis_from_7_0_and_valkey_from_7_2_are_supported() {
        for (text, level) in [
            ("redis_version:7.0.0", Level::Ok),
            ("redis_version:8.2.1", Level::Ok),
            ("redis_version:6.2.14", Level::Fail),
            ("redis_version:10.0.0", Level::Ok),
            ("redis_version:7.2.4 server_name:valkey valkey_version:7.2.0", Level::Ok),
            ("redis_version:7.2.4 server_name:valkey valkey_version:7.1.9", Level::Fail),
            ("", Level::Fail),
        ] {
            assert_eq!(version(&info(text)).level, level, "{text}");
        }
    }

    #[test]
    fn only_a_primary_that_has_its_data_will_do() {
        let alone = |text: &str| role(&info(text), Role::Alone);
        assert_eq!(alone("role:master connected_slaves:0").found, "primary, 0 replicas");
        let one = "role:master connected_slaves:1 master_repl_offset:114 slave0:ip=h,port=1,state=online,offset=100,lag=0";
        assert_eq!(alone(one).found, "primary, 1 replica, at most 14 B behind");
        let of_many = |text: &str| role(&info(text), Role::Member(&[])).level;
        assert_eq!(of_many("role:master connected_slaves:0 cluster_enabled:1"), Level::Warn);
        for text in [
            "role:slave master_host:h master_port:1",
            "role:master loading:1",
            "role:master cluster_enabled:1",
        ] {
            assert_eq!(alone(text).level, Level::Fail, "{text}");
        }
    }

    #[test]
    fn every_policy_that_could_drop_a_bucket_is_a_warning() {
        assert_eq!(eviction(&info("maxmemory_policy:noeviction maxmemory:100")).level, Level::Ok);
        for policy in ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"] {
            for maxmemory in [0, 100] {
                let finding = eviction(&info(&format!("maxmemory_policy:{policy} maxmemory:{maxmemory}")));
                assert_eq!(finding.level, Level::Warn);
                assert!(finding.found.contains(policy) && finding.advice.is_some());
            }
        }
    }

    #[test]
    fn memory_is_a_warning_before_it_is_full() {
        let level = |used| memory(&info(&format!("used_memory:{used} maxmemory:1000"))).level;
        assert_eq!([level(799), level(800), level(1_000)], [Level::Ok, Level::Warn, Level::Fail]);
        assert_eq!(memory(&info("used_memory:1400000 maxmemory:0")).found, "1.4 MB used, no maxmemory");
    }

    #[test]
    fn a_disk_that_cannot_be_written_is_a_failure() {
        assert_eq!(persistence(&info("rdb_last_bgsave_status:err"), None).level, Level::Fail);
        assert!(persistence(&info("aof_enabled:0"), Some("")).found.starts_with("none"));
        assert!(persistence(&info("aof_enabled:0"), Some("3600 1")).found.starts_with("snapshots"));
        assert!(persistence(&info("aof_enabled:1"), None).found.starts_with("append-only"));
    }
}
