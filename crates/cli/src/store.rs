//! The store that the command line names.

use std::fs;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tollgate::{AnyStore, Bounds, Clock, MemoryStore, RedisBuilder, RedisStore};

/// The store in this process.
const MEMORY: &str = "memory";
/// How large it may be: less holds nobody, and more no machine has.
const SIZES: RangeInclusive<u64> = 1 << 20..=1 << 40;

/// Where buckets live, and how to get there.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Where buckets live: `memory`, or the URL of a Redis or Valkey (redis://, rediss://, unix://, redis-sentinel://,
    /// redis-cluster://)
    #[arg(long, value_name = "URL", env = "TOLLGATE_STORE", default_value = MEMORY, hide_env_values = true)]
    store: String,
    /// What our keys in Redis begin with
    #[arg(long, value_name = "PREFIX", env = "TOLLGATE_KEY_PREFIX", default_value = "tg")]
    key_prefix: String,
    /// How long a decision waits for Redis before the rules' on_store_failure decides
    #[arg(long, value_name = "MS", env = "TOLLGATE_STORE_DEADLINE_MS", default_value = "50",
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    store_deadline_ms: u64,
    /// The authority to trust for rediss://, as PEM; the system's without it
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_CA")]
    store_ca: Option<PathBuf>,
    /// The certificate to show for rediss://, as PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_CERT", requires = "store_key")]
    store_cert: Option<PathBuf>,
    /// The certificate's key, as PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_STORE_KEY", requires = "store_cert")]
    store_key: Option<PathBuf>,
}

/// How much the store in memory may hold.
#[derive(Debug, clap::Args)]
pub(crate) struct MemoryArgs {
    /// The most that buckets in memory may take, such as 512MiB, also those of this node's share where Redis is the store;
    /// when it is full, new keys share a bucket
    #[arg(long, value_name = "SIZE", env = "TOLLGATE_STORE_MEMORY", default_value = "1GiB", value_parser = bytes)]
    store_memory: u64,
}

/// How many share the limits.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// How many nodes share the limits, at least; `consistency: local` and `on_store_failure: local` count against
    /// limit / nodes
    #[arg(long, value_name = "N", env = "TOLLGATE_NODES", default_value = "1")]
    pub(crate) nodes: NonZeroU32,
}

impl StoreArgs {
    /// The store, connected.
    ///
    /// # Errors
    ///
    /// A URL or a certificate that makes no sense. A Redis that is away is no error: rules say what happens then.
    pub(crate) async fn open(&self, memory: &MemoryArgs) -> anyhow::Result<AnyStore> {
        Ok(match self.redis()? {
            Some(builder) => AnyStore::Redis(builder.connect().await?),
            None => AnyStore::Memory(MemoryStore::with(Clock::system(), memory.bounds())),
        })
    }

    /// The Redis, unless it is the store in memory.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub(crate) fn redis(&self) -> anyhow::Result<Option<RedisBuilder>> {
        if self.store == MEMORY {
            return Ok(None);
        }
        if !self.store.contains("://") {
            bail!("--store is neither `memory` nor a URL such as redis://127.0.0.1:6379"); // it may hold a password
        }
        let mut builder = RedisStore::builder(&self.store)
            .key_prefix(&self.key_prefix)
            .deadline(Duration::from_millis(self.store_deadline_ms));
        if let Some(path) = &self.store_ca {
            builder = builder.ca(pem(path)?);
        }
        match (&self.store_cert, &self.store_key) {
            (Some(chain), Some(key)) => builder = builder.client_certificate(pem(chain)?, pem(key)?),
            (None, None) => {}
            _ => bail!("--store-cert and --store-key go together; give both or none"),
        }
        Ok(Some(builder))
    }

    /// What our keys begin with.
    pub(crate) fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    /// How long a decision may take.
    pub(crate) const fn deadline(&self) -> Duration {
        Duration::from_millis(self.store_deadline_ms)
    }

    /// The store as it may be shown: without a password.
    pub(crate) fn shown(&self) -> String {
        match self.redis() {
            Ok(Some(builder)) => builder.shown(),
            _ => MEMORY.to_owned(),
        }
    }
}

impl MemoryArgs {
    /// With as many buckets to the byte as usual.
    pub(crate) fn bounds(&self) -> Bounds {
        let usual = Bounds::default();
        let bytes = usize::try_from(self.store_memory).unwrap_or(usize::MAX);
        Bounds { buckets: bytes / (usual.bytes / usual.buckets), bytes }
    }
}

/// A size: `1GiB`, `512MiB`, `1048576`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let each = match unit.trim_start() {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => 0,
    };
    let bytes = number.parse().ok().and_then(|number: u64| number.checked_mul(each));
    bytes
        .filter(|bytes| SIZES.contains(bytes))
        .ok_or_else(|| "expected a size from 1MiB to 1024GiB, such as 512MiB".to_owned())
}

fn pem(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_and_ends() {
        for (text, size) in
            [("1GiB", 1 << 30), ("512 MiB", 512 << 20), ("1048576", 1 << 20), ("1024GiB", 1 << 40)]
        {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in
            ["", "GiB", "1", "1023KiB", "1025GiB", "1GB", "-1GiB", "1.5GiB", "99999999999999999999GiB"]
        {
            assert!(bytes(text).unwrap_err().contains("such as 512MiB"), "{text}");
        }
    }

    #[test]
    fn twice_the_memory_is_twice_the_buckets() {
        let usual = MemoryArgs { store_memory: 1 << 30 }.bounds();
        assert_eq!(usual.bytes, Bounds::default().bytes);
        assert!(usual.buckets >= Bounds::default().buckets, "{usual:?}");
        let twice = MemoryArgs { store_memory: 2 << 30 }.bounds();
        assert!(twice.buckets.abs_diff(2 * usual.buckets) < 2 && twice.bytes == 2 * usual.bytes, "{twice:?}");
    }
}
