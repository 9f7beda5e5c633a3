//! What a key costs Redis: our packed string, and the hash that others keep.

use anyhow::{Context as _, Result, ensure};
use tollgate::Descriptor;

use super::load::Redis;
use super::{Arguments, ONE, limiter};

pub(crate) async fn report(redis: &Redis, arguments: &Arguments, keys: usize) -> Result<()> {
    redis.command(&["FLUSHALL"]).await?;
    let before = used(redis).await?;
    let limiter = limiter(&arguments.url, ONE).await?;
    for number in 0..keys {
        let answer = limiter.check(&Descriptor::new().with("user_id", format!("{number:08}"))).await;
        ensure!(answer.degraded().is_none(), "{:?}", answer.degraded());
    }
    let ours = (used(redis).await? - before) / keys as f64;

    redis.command(&["FLUSHALL"]).await?;
    let before = used(redis).await?;
    for number in 0..keys {
        // The same key, and what a token bucket remembers as two fields of a hash.
        let key = format!("tg:{{abcd}}0123456789abcdef:{number:08}");
        let call = "redis.call('HSET', KEYS[1], 'tokens', ARGV[1], 'last', ARGV[2]) \
                    redis.call('PEXPIRE', KEYS[1], 3600000) return ''";
        redis.command(&["EVAL", call, "1", &key, "9999999.5", "1763200000000000"]).await?;
    }
    let hash = (used(redis).await? - before) / keys as f64;
    println!(
        "\nbytes a key, {keys} keys of 8 letters with a TTL: {ours:.0} as a packed string, {hash:.0} as a hash"
    );
    println!("keys in a GB: {:.1} million", 1e3 / ours);
    Ok(())
}

async fn used(redis: &Redis) -> Result<f64> {
    let info = redis.command(&["INFO", "memory"]).await?;
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).context("no used_memory")?;
    Ok(used.trim().parse()?)
}
