//! One connection, and what is sent over it.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::stream::Meter;

/// A connection that works, for all that is known.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) redis: MultiplexedConnection,
    pub(super) meter: Meter,
    /// Tells it from earlier ones; from 1.
    pub(super) number: u64,
}

/// What is said before a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preface {
    /// Nothing.
    None,
    /// That we know that the slot is on its way to this node.
    Asking,
}

impl Connection {
    pub(super) async fn send(&mut self, command: &Cmd, preface: Preface) -> Result<Value, RedisError> {
        let answer = match preface {
            Preface::None => self.redis.send_packed_command(command).await,
            Preface::Asking => {
                // Together, so that no other command comes between the two.
                let mut both = redis::pipe();
                both.cmd("ASKING").add_command(command.clone());
                let answers = self.redis.send_packed_commands(&both, 0, 2).await;
                answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
            }
        };
        self.meter.answered();
        answer.and_then(Value::extract_error)
    }

    /// What Redis does with our keys when its memory is full; none where it does not say.
    pub(super) async fn eviction_policy(&mut self) -> Option<String> {
        let info = self.send(redis::cmd("INFO").arg("memory"), Preface::None).await.ok()?;
        let info: String = redis::from_redis_value(info).ok()?;
        info.lines()
            .find_map(|line| line.strip_prefix("maxmemory_policy:"))
            .map(|policy| policy.trim().to_owned())
    }
}
