//! The store that the command line names.

use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tollgate::{AnyStore, MemoryStore, RedisBuilder, RedisStore};

/// The store in this process.
const MEMORY: &str = "memory";

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

/// How many share the limits.
#[derive(Debug, clap::Args)]
pub(crate) struct FleetArgs {
    /// How many nodes share the limits; `on_store_failure: local` counts against limit / nodes
    #[arg(long, value_name = "N", env = "TOLLGATE_NODES", default_value = "1")]
    pub(crate) nodes: NonZeroU32,
}

impl StoreArgs {
    /// The store, connected.
    ///
    /// # Errors
    ///
    /// A URL or a certificate that makes no sense. A Redis that is away is no error: rules say what happens then.
    pub(crate) async fn open(&self) -> anyhow::Result<AnyStore> {
        Ok(match self.redis()? {
            Some(builder) => AnyStore::Redis(builder.connect().await?),
            None => AnyStore::Memory(MemoryStore::new()),
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

fn pem(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
