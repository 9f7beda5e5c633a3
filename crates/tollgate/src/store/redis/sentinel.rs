//! A primary that sentinels name, and news of another.
//!
//! Every connection begins with the question who is primary, to all sentinels at once; the first that names a Redis which
//! can be reached and does not call itself a replica is believed. Besides, each sentinel is listened to: when one says
//! that the primary has changed, the link connects again at once rather than to find out by a failure.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::link::Link;
use super::stream::{Dial, Dialled};

/// Where a sentinel says that a primary has changed: `name old-host old-port new-host new-port`.
const NEWS: &str = "+switch-master";
/// The pause before a sentinel that hung up is listened to again.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// How a link finds its Redis.
#[derive(Debug)]
pub(super) enum Dialer {
    /// It is always there.
    Fixed(Box<Dial>),
    /// Sentinels know.
    Sentinels(Arc<Sentinels>),
}

/// Who knows where a primary is.
#[derive(Debug)]
pub(super) struct Sentinels {
    pub(super) sentinels: Vec<Dial>,
    pub(super) name: String,
    /// How to speak to the primary, wherever it is.
    pub(super) node: Dial,
    /// How long one of them may take.
    pub(super) patience: Duration,
}

impl Dialer {
    pub(super) async fn connect(&self) -> RedisResult<Dialled> {
        match self {
            Dialer::Fixed(dial) => dial.connect().await,
            Dialer::Sentinels(sentinels) => sentinels.connect().await,
        }
    }
}

impl Sentinels {
    /// A connection to the primary.
    async fn connect(&self) -> RedisResult<Dialled> {
        let mut answers: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.primary_according_to(sentinel)).collect();
        let mut tried = Vec::new();
        let mut failed = RedisError::from((ErrorKind::Client, "no sentinel answers"));
        while let Some(answer) = answers.next().await {
            let address = match answer {
                Ok(address) if tried.contains(&address) => continue,
                Ok(address) => address,
                Err(error) => {
                    failed = error;
                    continue;
                }
            };
            match self.node.to(&address.0, address.1).connect().await {
                Ok(dialled) if is_replica(&dialled).await => failed = replica(),
                Ok(dialled) => return Ok(dialled),
                Err(error) => failed = error,
            }
            tried.push(address);
        }
        Err(failed)
    }

    /// Whom a sentinel takes for the primary.
    async fn primary_according_to(&self, sentinel: &Dial) -> RedisResult<(String, u16)> {
        let ask = async {
            let (mut connection, ..) = sentinel.connect().await?;
            let question = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).take();
            let answer: Option<(String, u16)> = question.query_async(&mut connection).await?;
            answer.ok_or_else(|| {
                RedisError::from((ErrorKind::Client, "the sentinel knows no primary of that name"))
            })
        };
        let late = || RedisError::from((ErrorKind::Io, "a sentinel does not answer"));
        timeout(self.patience, ask).await.unwrap_or_else(|_| Err(late()))
    }

    /// Listens to all sentinels, for as long as the tasks live.
    pub(super) fn listen(self: &Arc<Self>, link: &Arc<Link>) -> JoinSet<()> {
        let listen = |sentinel: &Dial| {
            let (sentinel, link, sentinels) = (sentinel.clone(), Arc::downgrade(link), Arc::clone(self));
            async move {
                loop {
                    // One that hangs up is heard again later; the link notices by itself what is missed meanwhile.
                    let heard = sentinels.hear(&sentinel, || link.upgrade().map(|link| link.redial())).await;
                    if let Err(error) = heard {
                        tracing::debug!(sentinel = sentinel.shown(), "not listened to: {}", error.category());
                    }
                    tokio::time::sleep(LISTEN_AGAIN_AFTER).await;
                }
            }
        };
        self.sentinels.iter().map(listen).collect()
    }

    /// Calls `changed` with every news of our primary, until the sentinel hangs up.
    async fn hear(&self, sentinel: &Dial, changed: impl Fn() -> Option<()>) -> RedisResult<()> {
        let (mut messages, meter) = sentinel.listen().await?;
        messages.subscribe(NEWS).await?;
        let mut messages = messages.into_on_message();
        while let Some(message) = messages.next().await {
            meter.answered();
            let news: String = message.get_payload()?;
            if news.split(' ').next() == Some(&self.name) {
                tracing::info!(primary = self.name, "the primary has changed");
                changed();
            }
        }
        Ok(())
    }
}

/// Whether a Redis says that it is a replica. One that does not say it is tried.
async fn is_replica(dialled: &Dialled) -> bool {
    let mut connection = dialled.0.clone();
    let role: RedisResult<Value> = redis::cmd("ROLE").query_async(&mut connection).await;
    dialled.1.answered();
    let Ok(Value::Array(role)) = role else { return false };
    matches!(role.first(), Some(Value::BulkString(name)) if name == b"slave")
}

fn replica() -> RedisError {
    RedisError::from((ErrorKind::Client, "the sentinels name a replica"))
}
