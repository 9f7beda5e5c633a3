//! A primary that sentinels name, and news of another.
//!
//! Every connection begins with the question who is primary, to all sentinels at once; the first that names a Redis which
//! can be reached and does not call itself a replica is believed. Besides, each sentinel is listened to:
//!
//! ```text
//! +failover-state-wait-promotion   a replica has just been told to become the primary: connect to it as soon as it is one
//! +switch-master                   the primary has changed, about a second later: connect to it, unless we have
//! ```
//!
//! Both name the new primary, and the link connects to it without asking: in the first seconds the other sentinels still
//! name the old one, which does not know yet that it was replaced and would go on counting.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer::Failure;
use super::link::Link;
use super::stream::{Dial, Dialled};
use crate::doctor::reason;

/// Where a sentinel says that a primary has changed: `name old-host old-port new-host new-port`.
const SWITCHED: &str = "+switch-master";
/// Where the sentinel that leads a failover says which replica it has told to become the primary:
/// `slave its-name host port @ name old-host old-port`.
const PROMOTING: &str = "+failover-state-wait-promotion";
/// How long a replica is watched that was told to become the primary. Sentinels report it after about a second.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two looks at it.
const PROMOTION_POLL: Duration = Duration::from_millis(5);
/// The pause before a sentinel that hung up is listened to again.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A host and a port.
type Place = (String, u16);

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
    pub(super) timeout: Duration,
    pub(super) known: Mutex<Known>,
}

/// What is known of the primary's place.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Where the last connection was made.
    connected: Option<Place>,
    /// What a sentinel has announced and was not tried yet.
    announced: Option<Place>,
}

impl Dialer {
    /// Whether it leads to the same address every time.
    pub(super) const fn is_fixed(&self) -> bool {
        matches!(self, Dialer::Fixed(_))
    }

    pub(super) async fn connect(&self) -> Result<Dialled, Failure> {
        match self {
            Dialer::Fixed(dial) => Ok(dial.connect().await?),
            Dialer::Sentinels(sentinels) => sentinels.connect().await,
        }
    }
}

impl Sentinels {
    /// A connection to the primary.
    async fn connect(&self) -> Result<Dialled, Failure> {
        // Forgotten only after the attempt: one that is cancelled has told nothing about the place.
        let announced = self.known.lock().announced.clone();
        if let Some(place) = announced {
            let dialled = self.dial(&place).await;
            self.known.lock().announced.take_if(|newest| *newest == place);
            if dialled.is_ok() {
                return dialled;
            }
        }
        let mut answers: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.primary_according_to(sentinel)).collect();
        let mut tried = Vec::new();
        let mut failed = Failure::broken(Some("no sentinel answers".to_owned()));
        while let Some(answer) = answers.next().await {
            let place = match answer {
                Ok(place) if tried.contains(&place) => continue,
                Ok(place) => place,
                Err(error) => {
                    failed = error;
                    continue;
                }
            };
            match self.dial(&place).await {
                Ok(dialled) => return Ok(dialled),
                Err(error) => failed = error,
            }
            tried.push(place);
        }
        Err(failed)
    }

    /// A connection to a Redis that does not call itself a replica.
    async fn dial(&self, place: &Place) -> Result<Dialled, Failure> {
        let dialled = self.node.to(&place.0, place.1).connect().await?;
        // One that does not say what it is is tried.
        if role(&dialled).await.as_deref() == Some(b"slave") {
            return Err(Failure::broken(Some(format!("{}:{} is a replica", place.0, place.1))));
        }
        self.known.lock().connected = Some(place.clone());
        Ok(dialled)
    }

    /// Whom a sentinel takes for the primary.
    async fn primary_according_to(&self, sentinel: &Dial) -> Result<Place, Failure> {
        let ask = async {
            let (mut connection, ..) = sentinel.connect().await?;
            let question = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).take();
            let answer: Option<Place> = question.query_async(&mut connection).await?;
            answer.ok_or_else(|| {
                let (found, way_out) = reason::unknown_primary(&self.name);
                Failure::broken(Some(format!("{found}; {way_out}")))
            })
        };
        let late = || Failure::broken(Some("no answer in time".to_owned()));
        let answer = timeout(self.timeout, ask).await.unwrap_or_else(|_| Err(late()));
        answer.map_err(|failure| failure.at(&format!("sentinel {}", sentinel.info.addr())))
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

    /// Calls `moved` when our primary is elsewhere, until the sentinel hangs up.
    async fn hear(&self, sentinel: &Dial, moved: impl Fn() -> Option<()>) -> RedisResult<()> {
        let (mut messages, meter) = sentinel.listen().await?;
        messages.subscribe(SWITCHED).await?;
        // A user of the sentinel may lack the right to this one. Then a planned failover is followed a second later.
        if let Err(error) = messages.subscribe(PROMOTING).await {
            let sentinel = sentinel.shown();
            tracing::info!(sentinel, "cannot subscribe to {PROMOTING}: {}", reason::words(&error));
        }
        let mut messages = messages.into_on_message();
        while let Some(message) = messages.next().await {
            meter.answered();
            let text: String = message.get_payload()?;
            let words: Vec<&str> = text.split(' ').collect();
            let place = match (message.get_channel_name(), &words[..]) {
                (SWITCHED, [name, _, _, host, port]) if *name == self.name => place(host, port),
                (PROMOTING, ["slave", _, host, port, "@", name, ..]) if *name == self.name => {
                    match place(host, port) {
                        Some(place) if self.is_promoted(&place).await => Some(place),
                        _ => None,
                    }
                }
                _ => None,
            };
            if place.is_some_and(|place| self.is_news(place)) {
                moved();
            }
        }
        Ok(())
    }

    /// Waits until a replica is the primary; whether it is.
    async fn is_promoted(&self, place: &Place) -> bool {
        let node = self.node.to(&place.0, place.1);
        let until_promoted = async {
            loop {
                // A sentinel has a server that changes its role hang up on its clients.
                if let Ok(dialled) = node.connect().await
                    && role(&dialled).await.as_deref() == Some(b"master")
                {
                    return;
                }
                tokio::time::sleep(PROMOTION_POLL).await;
            }
        };
        timeout(PROMOTION_TIMEOUT, until_promoted).await.is_ok()
    }

    /// Takes note of where the primary is; whether we are elsewhere.
    fn is_news(&self, place: Place) -> bool {
        let mut known = self.known.lock();
        // Every sentinel tells the same news.
        if known.connected.as_ref() == Some(&place) || known.announced.as_ref() == Some(&place) {
            return false;
        }
        tracing::info!(primary = self.name, "the primary is {}:{} now", place.0, place.1);
        known.announced = Some(place);
        true
    }
}

fn place(host: &str, port: &str) -> Option<Place> {
    Some((host.to_owned(), port.parse().ok()?))
}

/// What a Redis says it is: `master` or `slave`; none if it does not say.
async fn role(dialled: &Dialled) -> Option<Vec<u8>> {
    let mut connection = dialled.0.clone();
    let answer: RedisResult<Value> = redis::cmd("ROLE").query_async(&mut connection).await;
    dialled.1.answered();
    match answer {
        Ok(Value::Array(answer)) => match answer.into_iter().next() {
            Some(Value::BulkString(role)) => Some(role),
            _ => None,
        },
        _ => None,
    }
}
