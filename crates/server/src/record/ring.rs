//! The last decisions, each in a slot that is used again and again.
//!
//! A decision is kept as bytes in the slot's own buffer: after the first round nothing is allocated. It is read back
//! only when somebody looks. Every slot has a lock of its own, so decisions meet only when one is a whole round ahead.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate::core::Degraded;
use tollgate::{Answer, Descriptor, Micros, Status, Timestamp};

use super::blob::{Reader, Writer};
use super::recorded::{Recorded, RecordedTier};

/// The most bytes kept of one decision; what finds no room is left out, and the decision says so.
const ROOM: usize = 4 << 10;

/// A bounded memory of decisions, newest over oldest.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Box<[Mutex<Slot>]>,
    recorded: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    /// Which decision is here, counted from 1; 0 where none is yet.
    number: u64,
    at: Timestamp,
    cost: u64,
    status: Status,
    degraded: Option<Degraded>,
    delay: Micros,
    binding: Option<usize>,
    generation: u64,
    cut: bool,
    bytes: Vec<u8>,
}

/// What is recorded of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noted<'a, 'd> {
    pub(super) id: &'a str,
    pub(super) request: &'a Descriptor<'d>,
    pub(super) answer: &'a Answer,
    pub(super) cost: u64,
    /// Which set of rules decided it.
    pub(super) generation: u64,
}

impl Ring {
    pub(super) fn new(capacity: usize) -> Self {
        Ring { slots: (0..capacity).map(|_| Mutex::default()).collect(), recorded: AtomicU64::new(0) }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// How many decisions were ever recorded, which is also the number of the newest.
    pub(super) fn recorded(&self) -> u64 {
        self.recorded.load(Ordering::Acquire)
    }

    /// Keeps a decision in place of the oldest; answers its number.
    pub(super) fn push(&self, noted: &Noted<'_, '_>) -> u64 {
        let number = self.recorded.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(slot) = self.slot(number) {
            let mut slot = slot.lock();
            // Whoever was stopped for a whole round must not overwrite what is newer.
            if slot.number < number {
                slot.number = number;
                slot.fill(noted);
            }
        }
        number
    }

    /// The decision with a number, if it is still there.
    pub(super) fn get(&self, number: u64) -> Option<Recorded> {
        let slot = self.slot(number)?.lock();
        (slot.number == number && number > 0).then(|| slot.read()).flatten()
    }

    /// Every decision that is still there and of interest, newest first.
    pub(super) fn newest<'s>(
        &'s self,
        of_interest: impl Fn(Status) -> bool + 's,
    ) -> impl Iterator<Item = Recorded> + 's {
        let newest = self.recorded();
        let oldest = newest.saturating_sub(u64::try_from(self.capacity()).unwrap_or(u64::MAX));
        (oldest + 1..=newest).rev().filter_map(move |number| {
            let slot = self.slot(number)?.lock();
            (slot.number == number && of_interest(slot.status)).then(|| slot.read()).flatten()
        })
    }

    /// The decision with a name, if it is still there.
    pub(super) fn find(&self, id: &str) -> Option<Recorded> {
        let is_it = |slot: &&Mutex<Slot>| {
            let slot = slot.lock();
            slot.number > 0 && Reader::new(&slot.bytes).text() == Some(id)
        };
        self.slots.iter().find(is_it)?.lock().read().filter(|found| found.id == id)
    }

    fn slot(&self, number: u64) -> Option<&Mutex<Slot>> {
        let place = number.checked_rem(u64::try_from(self.slots.len()).ok()?)?;
        self.slots.get(usize::try_from(place).ok()?)
    }
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            number: 0,
            at: Timestamp::default(),
            cost: 0,
            status: Status::Allowed,
            degraded: None,
            delay: Micros::ZERO,
            binding: None,
            generation: 0,
            cut: false,
            bytes: Vec::new(),
        }
    }
}

impl Slot {
    fn fill(&mut self, noted: &Noted<'_, '_>) {
        let answer = noted.answer;
        (self.at, self.cost, self.generation) = (answer.at(), noted.cost, noted.generation);
        (self.status, self.degraded, self.delay) = (answer.status(), answer.degraded(), answer.delay());
        self.binding = answer
            .binding_limit()
            .and_then(|binding| answer.tiers().iter().position(|tier| tier.rule == binding.rule));
        self.bytes.clear();
        let mut writer = Writer::new(&mut self.bytes, ROOM);
        writer.text(noted.id);
        writer.list(answer.tiers(), |writer, tier| {
            let rule = answer.rules().rule(tier.rule);
            writer.text(rule.label_in(Some(noted.request)));
            let _ = write!(writer.shown(), "{}", rule.key(noted.request)); // an error is where it was cut
            writer.text(rule.scope().as_str());
            writer.text(rule.plan().unwrap_or_default());
            // A rule in shadow mode charges nothing where the cost is invalid.
            writer.number(rule.cost(noted.request, noted.cost).unwrap_or(0));
            writer.tier(tier, rule);
            match rule.limit().filter(|_| rule.is_ad_hoc()) {
                // Nobody else knows the numbers of a limit that came with its request.
                Some(limit) => {
                    let _ = write!(writer.shown(), "{limit}");
                    writer.text(limit.algorithm_name().as_str());
                }
                None => {
                    writer.text("");
                    writer.text("");
                }
            }
        });
        writer.list(noted.request.attributes(), |writer, (name, value)| {
            writer.whole_text(name);
            writer.value(value);
        });
        self.cut = writer.cut();
    }

    fn read(&self) -> Option<Recorded> {
        let mut reader = Reader::new(&self.bytes);
        let id = reader.text()?.to_owned();
        let tiers = reader.list(|reader| {
            let (rule, key) = (reader.text()?.to_owned(), reader.text()?.to_owned());
            let (scope, plan) = (reader.text()?.to_owned(), reader.text()?.to_owned());
            let cost = reader.number()?;
            let (verdict, enforcement, instead) = reader.tier()?;
            let (limit, algorithm) = (reader.text()?.to_owned(), reader.text()?.to_owned());
            let given = |text: String| (!text.is_empty()).then_some(text);
            Some(RecordedTier {
                rule,
                key,
                scope,
                plan: given(plan),
                cost,
                verdict,
                enforcement,
                instead,
                limit: given(limit),
                algorithm: given(algorithm),
            })
        })?;
        let attributes =
            reader.list(|reader| Some((reader.text()?.to_owned(), reader.text()?.to_owned())))?;
        Some(Recorded {
            id,
            at: self.at,
            cost: self.cost,
            status: self.status,
            degraded: self.degraded,
            delay: self.delay,
            binding: self.binding.filter(|binding| *binding < tiers.len()),
            generation: self.generation,
            cut: self.cut,
            tiers,
            attributes,
        })
    }
}
