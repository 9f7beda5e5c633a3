//! A connection, and what can be measured over it.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionInfo, FromRedisValue, RedisResult, Script};

use super::checks::{Info, Role};
use super::{Demands, Finding, reason};
use crate::clock::Clock;
use crate::store::redis::RedisBuilder;

/// How long to wait for a connection, and for an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How often to ask for a figure, and how long at most.
const SAMPLES: usize = 300;
const MAX_MEASURE_US: i64 = 3_000_000;
/// How many names to try for a key in one of a node's slots.
const MAX_NAMES: u32 = 100_000;
/// How often to read the server's clock; the quickest reading counts.
const CLOCK_READINGS: usize = 10;
/// A clock that is further off makes absolute times in headers and logs wrong.
pub(super) const MAX_CLOCK_OFFSET_US: u64 = 1_000_000;

/// A connection as the store has it.
pub(super) struct Probe {
    connection: MultiplexedConnection,
    clock: Clock,
}

/// How long something took, in microseconds.
struct Spread {
    p50_us: i64,
    p99_us: i64,
}

impl Probe {
    /// Connects and asks for a sign of life.
    ///
    /// # Errors
    ///
    /// The finding that says why there is none.
    pub(super) async fn connect(
        redis: &RedisBuilder,
        info: ConnectionInfo,
    ) -> Result<(Self, Finding), Finding> {
        let client = redis.client_of(info).map_err(|error| Finding::fail("reachable", error.to_string()))?;
        let clock = Clock::system();
        let started = clock.now();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(RESPONSE_TIMEOUT));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        let connection = connection.map_err(|error| reason::unreachable(&error))?;
        let mut probe = Probe { connection, clock };
        probe.ask::<()>(&["PING"]).await.map_err(|error| reason::unreachable(&error))?;
        let took_us = probe.clock.now().as_micros() - started.as_micros();
        let found = Finding::ok("reachable", format!("connected in {}", millis(took_us)));
        Ok((probe, found.with_number("connect_us", took_us)))
    }

    pub(super) async fn info(&mut self) -> RedisResult<Info> {
        Ok(Info::parse(&self.ask::<String>(&["INFO"]).await?))
    }

    /// A setting of the server, if it tells.
    pub(super) async fn setting(&mut self, name: &str) -> Option<String> {
        let pair: Vec<String> = self.ask(&["CONFIG", "GET", name]).await.ok()?;
        pair.into_iter().nth(1)
    }

    /// How long a command takes from here.
    pub(super) async fn round_trip(&mut self, deadline: Duration) -> Finding {
        let mut connection = self.connection.clone();
        let ping = async || redis::cmd("PING").query_async(&mut connection).await;
        match self.measure(ping).await {
            Ok(spread) => spread.judged("round-trip", "", deadline),
            Err(error) => {
                Finding::fail("round-trip", reason::words(&error)).with_advice(reason::way_out(&error))
            }
        }
    }

    /// How far the server's clock is from ours. Half the round trip is how well that can be known.
    pub(super) async fn clock(&mut self) -> Finding {
        match self.ahead().await {
            Ok((ahead, uncertainty)) => {
                off_by(ahead).with_number("ahead_us", ahead).with_number("uncertainty_us", uncertainty)
            }
            Err(error) => Finding::fail("clock", format!("TIME is not answered: {}", reason::words(&error)))
                .with_advice("permit TIME: windows and refills run on Redis' clock"),
        }
    }

    /// How far the server's clock is ahead of ours, and how well that is known, in microseconds.
    pub(super) async fn ahead(&mut self) -> RedisResult<(i64, i64)> {
        let mut best: Option<(i64, i64)> = None;
        for _ in 0..CLOCK_READINGS {
            let before = self.clock.now().as_micros();
            let (seconds, micros): (i64, i64) = self.ask(&["TIME"]).await?;
            let took = self.clock.now().as_micros() - before;
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, seconds * 1_000_000 + micros - before - took / 2));
            }
        }
        let (took, ahead) = best.unwrap_or_default();
        Ok((ahead, took / 2))
    }

    /// Whether scripts may run, read the time and write our keys, and how long one takes.
    pub(super) async fn script(&mut self, demands: &Demands, role: Role<'_>) -> Finding {
        let script = Script::new(include_str!("probe.lua"));
        let now = self.clock.now().as_micros();
        let key = |number: u32| format!("{}:{{{number}}}doctor:{now}", demands.key_prefix);
        let key = (0..MAX_NAMES).map(key).find(|key| role.has(key)).unwrap_or_else(|| key(0));
        let mut connection = self.connection.clone();
        let run = async || script.key(&key).invoke_async(&mut connection).await;
        match self.measure(run).await {
            Ok(spread) => spread.judged("script", "loads, runs and writes; ", demands.deadline),
            Err(error) => Finding::fail("script", reason::words(&error)).with_advice(reason::way_out(&error)),
        }
    }

    pub(super) async fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut self.connection).await
    }

    /// Does something again and again. The first time does not count: it may load a script.
    async fn measure(&self, mut run: impl AsyncFnMut() -> RedisResult<()>) -> RedisResult<Spread> {
        run().await?;
        let started = self.clock.now().as_micros();
        let mut times_us = Vec::with_capacity(SAMPLES);
        while times_us.len() < SAMPLES {
            let before = self.clock.now().as_micros();
            run().await?;
            let after = self.clock.now().as_micros();
            times_us.push(after - before);
            if after - started > MAX_MEASURE_US {
                break;
            }
        }
        times_us.sort_unstable();
        Ok(Spread { p50_us: percentile(&times_us, 50), p99_us: percentile(&times_us, 99) })
    }
}

impl Spread {
    /// Whether these times leave room within the deadline of a decision.
    fn judged(&self, check: &'static str, what: &str, deadline: Duration) -> Finding {
        let found = format!("{what}p50 {}, p99 {}", millis(self.p50_us), millis(self.p99_us));
        let deadline_us = i64::try_from(deadline.as_micros()).unwrap_or(i64::MAX);
        let finding = if self.p50_us >= deadline_us {
            Finding::fail(check, found).with_advice(format!(
                "most decisions would miss their deadline of {deadline:?}; come closer, or raise it"
            ))
        } else if self.p99_us >= deadline_us / 2 {
            Finding::warn(check, found).with_advice(format!(
                "some decisions will miss their deadline of {deadline:?}; come closer, or raise it"
            ))
        } else {
            Finding::ok(check, found)
        };
        finding.with_number("p50_us", self.p50_us).with_number("p99_us", self.p99_us)
    }
}

/// What a difference of the clocks means. Limits are counted on Redis' alone.
fn off_by(ahead_us: i64) -> Finding {
    let off =
        format!("{} {}", millis(ahead_us.abs()), if ahead_us < 0 { "behind ours" } else { "ahead of ours" });
    if ahead_us.unsigned_abs() <= MAX_CLOCK_OFFSET_US {
        return Finding::ok("clock", off);
    }
    Finding::warn("clock", off)
        .with_advice("limits hold, but times in headers and logs will not agree; run NTP on both machines")
}

/// A percentile of sorted values.
fn percentile(sorted: &[i64], percent: usize) -> i64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(0)
}

/// Microseconds as milliseconds: `0.12 ms`.
pub(super) fn millis(us: i64) -> String {
    format!("{}.{:02} ms", us / 1_000, us % 1_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<i64> = (1..=200).collect();
        assert_eq!((percentile(&times, 50), percentile(&times, 99)), (100, 198));
        assert_eq!((percentile(&[7], 50), percentile(&[], 99)), (7, 0));
    }

    #[test]
    fn latency_is_judged_by_the_deadline() {
        let level = |p50_us, p99_us| {
            Spread { p50_us, p99_us }.judged("round-trip", "", Duration::from_millis(50)).level
        };
        assert_eq!(level(100, 24_999), Level::Ok);
        assert_eq!(level(100, 25_000), Level::Warn);
        assert_eq!(level(50_000, 60_000), Level::Fail);
    }

    #[test]
    fn clocks_more_than_a_second_apart_are_a_warning() {
        assert_eq!(off_by(-1_000_000), Finding::ok("clock", "1000.00 ms behind ours"));
        assert_eq!(off_by(1_000_001).level, Level::Warn);
    }
}
