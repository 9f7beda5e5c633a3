//! Records of reservations, each written and settled together with the buckets of its slot.
//!
//! ```text
//! tg:reserved:{kQ3x}4b1f…     0, how many buckets, when time began to repay each charge; then this as JSON:
//!                             the cost, of each bucket its key, limit and price, and the tags of the other slots
//!                             or, when it is settled: 1, what was reserved, what it took, what did not fit
//! ```
//!
//! The record in the slot of the id's tag describes all buckets. Those in other slots of a Cluster have the instants of
//! their own buckets only. Settling changes that record and the buckets beside it in one script, so it happens once; the
//! other slots follow, each at most once.

use futures_util::future::join_all;
use redis::Value;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tollgate_core::algorithm::Window;
use tollgate_core::{Draft, Enforcement, Limit, Micros};

use super::RedisStore;
use super::part::{Part, Place};
use super::script::{self, Header, SETTLE, Script};
use super::state::{self, Fields};
use crate::reserve::{ReservationId, SettleError, Settled, Tag};
use crate::store::Call;

/// What the charging script writes beside the buckets of one slot.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) key: Vec<u8>,
    ttl: Micros,
    /// Empty, except in the slot of the id's tag.
    text: Vec<u8>,
}

/// A reservation: what it cost, and where it was charged.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Reserved {
    cost: u64,
    /// The tag of each slot and how many of the buckets are there, first that of the id.
    slots: Vec<(Tag, usize)>,
    buckets: Vec<ReservedBucket>,
}

/// One bucket that was charged.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ReservedBucket {
    key: String,
    limit: String,
    algorithm: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    aligned: Option<bool>,
    /// Where its spread windows begin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offset_us: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
    /// What it takes for a cost of 1; 0 where an attribute has the whole cost, which a settlement does not change.
    price: u64,
}

/// What a record says.
enum Found {
    Open(Reserved),
    Settled(Settled),
}

impl Record {
    /// Appends what the script needs to write it.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        state::put(self.ttl.ceil_millis().max(1).cast_signed(), out);
        out.extend_from_slice(&self.text);
    }
}

impl RedisStore {
    /// Adds the records of a reservation to the parts of its charge; nothing if it has none, or if no bucket counts by the
    /// request's cost. The part with the caller's bucket becomes the first, and the id gets its tag.
    pub(super) fn put_records(&self, call: &mut Call<'_>, parts: &mut [Part]) {
        let (request, rules) = (call.request, call.rules);
        let Some(reservation) = call.reservation.as_deref_mut() else { return };
        let names = |part: &Part, wanted: &str| {
            let mut patterns = part.rows.iter().map(|row| rules.rule(call.tiers[row.tier].rule).pattern());
            patterns.any(|pattern| pattern.attributes().any(|name| name == wanted))
        };
        let of_caller = |name| parts.iter().position(|part| names(part, name));
        if let Some(first) = of_caller("user_id").or_else(|| of_caller("ip")) {
            parts.swap(0, first);
        }
        let mut reserved = Reserved { cost: reservation.cost, slots: Vec::new(), buckets: Vec::new() };
        for part in &*parts {
            reserved.slots.push((Tag::of_key(&part.rows[0].place.key), part.rows.len()));
            let buckets = part.rows.iter().map(|row| {
                let price = rules.rule(call.tiers[row.tier].rule).unit_cost(request);
                ReservedBucket::new(&row.place, row.enforcement, price)
            });
            reserved.buckets.extend(buckets);
        }
        if reservation.cost == 0 || reserved.buckets.iter().all(|bucket| bucket.price == 0) {
            return;
        }
        reservation.id = reservation.id.with_tag(reserved.slots[0].0);
        let mut text = serde_json::to_vec(&reserved).unwrap_or_default();
        for (part, (tag, _)) in parts.iter_mut().zip(&reserved.slots) {
            let key = self.record_key(reservation.id, *tag);
            part.record = Some(Record { key, ttl: reservation.ttl, text: std::mem::take(&mut text) });
        }
    }

    fn record_key(&self, id: ReservationId, tag: Tag) -> Vec<u8> {
        format!("{}:reserved:{{{tag}}}{:032x}", self.prefix, id.bits()).into_bytes()
    }

    /// Settles a reservation, once: first the record that describes it and the buckets of its slot, then the other slots.
    pub(super) async fn settle_reservation(
        &self,
        id: ReservationId,
        actual: u64,
    ) -> Result<Settled, SettleError> {
        let tag = id.tag().ok_or(SettleError::Gone)?;
        let (key, deadline) = (self.record_key(id, tag), Instant::now() + self.timeout());
        let topology = &self.shared.topology;
        let slot = topology.slot(&key);
        let found = topology.call(slot, redis::cmd("GET").arg(&key), deadline, bytes).await?;
        let reserved = match found.as_deref().and_then(Found::read).ok_or(SettleError::Gone)? {
            Found::Open(reserved) => reserved,
            Found::Settled(settled) => return Ok(settled),
        };
        let mut slots = Vec::new();
        let mut rest = reserved.buckets.as_slice();
        for (tag, count) in &reserved.slots {
            let (buckets, others) = rest.split_at_checked(*count).ok_or(SettleError::Gone)?;
            slots.push((*tag, buckets));
            rest = others;
        }
        let costs = (reserved.cost, actual);
        let Some(((_, first), others)) = slots.split_first() else { return Err(SettleError::Gone) };
        let mut settled = self.settle_slot(&key, first, costs, true, deadline).await?;
        if settled.already_settled || others.is_empty() {
            return Ok(settled);
        }
        let in_slot = settled.unpaid;
        let settle = async |(tag, buckets): &(Tag, &[ReservedBucket])| {
            self.settle_slot(&self.record_key(id, *tag), buckets, costs, false, deadline).await
        };
        for other in join_all(others.iter().map(settle)).await {
            match other {
                Ok(other) => settled = settled.with_unpaid(settled.unpaid.max(other.unpaid)),
                Err(error) => {
                    tracing::warn!("a bucket of a reservation may stay charged as reserved: {error}")
                }
            }
        }
        if settled.unpaid > in_slot {
            // For those who settle again.
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(settled_bytes(&settled)).arg("XX").arg("KEEPTTL");
            let _ = topology.call(slot, &set, deadline, |_| Some(())).await;
        }
        Ok(settled)
    }

    /// Settles the buckets of one slot.
    async fn settle_slot(
        &self,
        record: &[u8],
        buckets: &[ReservedBucket],
        (reserved, actual): (u64, u64),
        is_first: bool,
        deadline: Instant,
    ) -> Result<Settled, SettleError> {
        let places: Option<Vec<Place>> = buckets.iter().map(ReservedBucket::place).collect();
        let places = places.ok_or(SettleError::Gone)?;
        let header = self.shared.header(SETTLE, Micros::MAX, false);
        let number = |number: u64| number.min(script::BEYOND).cast_signed();
        let slot = self.shared.topology.slot(record);
        let command = |header: &Header| {
            let mut input = header.input(2 * buckets.len(), true);
            for (place, bucket) in places.iter().zip(buckets) {
                let cost = bucket.price.saturating_mul(reserved.abs_diff(actual));
                let mode = (bucket.enforcement(), false);
                script::put_row(&place.limit, place.window, mode, cost, header.around, &mut input);
            }
            input.extend_from_slice(&[u8::from(actual > reserved), u8::from(is_first)]);
            state::put(number(reserved), &mut input);
            state::put(number(actual), &mut input);
            for bucket in buckets {
                state::put(number(bucket.price.saturating_mul(reserved)), &mut input);
                state::put(number(bucket.price.max(1)), &mut input);
            }
            let keys = places.iter().map(|place| place.key.as_slice()).chain([record]);
            Script::Settle.call(keys, &input)
        };
        let answer = self.shared.run_script(slot, header, deadline, command, script::read_settled).await?;
        self.shared.topology.wrote(slot);
        read_settled(&answer).ok_or(SettleError::Gone)
    }
}

impl ReservedBucket {
    fn new(place: &Place, enforcement: Enforcement, price: u64) -> Self {
        let Draft { limit, algorithm, window, time_zone, aligned, .. } = Draft::from(&place.limit);
        ReservedBucket {
            // Keys are ASCII.
            key: String::from_utf8_lossy(&place.key).into_owned(),
            limit: limit.unwrap_or_default(),
            algorithm: algorithm.unwrap_or_default(),
            window,
            time_zone,
            aligned,
            offset_us: match place.window {
                Window::Spread(offset) => Some(offset.get()),
                Window::Own => None,
            },
            shadow: enforcement == Enforcement::Shadow,
            price,
        }
    }

    const fn enforcement(&self) -> Enforcement {
        if self.shadow { Enforcement::Shadow } else { Enforcement::Enforce }
    }

    fn place(&self) -> Option<Place> {
        let window = self.offset_us.map_or(Window::Own, |offset| Window::Spread(Micros::new(offset)));
        // The slot is that of the record.
        Some(Place { key: self.key.clone().into_bytes(), limit: self.limit()?, window, slot: 0 })
    }

    /// The limit that it was charged under.
    fn limit(&self) -> Option<Limit> {
        let draft = Draft {
            key: "global".to_owned(),
            limit: Some(self.limit.clone()),
            algorithm: Some(self.algorithm.clone()),
            window: self.window.clone(),
            time_zone: self.time_zone.clone(),
            aligned: self.aligned,
            ..Draft::default()
        };
        draft.build().ok()?.limit().cloned()
    }
}

impl Found {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        if fields.byte()? == 1 {
            return read_settled(bytes).map(Found::Settled);
        }
        let instants = 7 * usize::from(fields.two_bytes()?);
        serde_json::from_slice(fields.0.get(instants..)?).ok().map(Found::Open)
    }
}

/// What a settled record says; `None` if there is none.
fn read_settled(bytes: &[u8]) -> Option<Settled> {
    let mut fields = Fields(bytes);
    let kind = fields.byte()?;
    let (reserved, actual, unpaid) = (fields.number()?, fields.number()?, fields.number()?);
    let settled = Settled::new(reserved, actual).with_unpaid(unpaid);
    (kind > 0).then_some(Settled { already_settled: kind == 1, ..settled })
}

fn settled_bytes(settled: &Settled) -> Vec<u8> {
    let mut out = vec![1];
    for number in [settled.reserved, settled.actual, settled.unpaid] {
        state::put(number.min(script::BEYOND).cast_signed(), &mut out);
    }
    out
}

/// The content of a record, if there is one; `None` if the answer is not one.
fn bytes(value: Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::Nil => Some(None),
        Value::BulkString(bytes) => Some(Some(bytes)),
        _ => None,
    }
}
