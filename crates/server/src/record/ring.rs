//! The last decisions, each in a slot that is used again and again.
//!
//! A slot keeps the rows of a decision and the texts of its request as they are; they become an answer again when
//! somebody reads them. After the first round nothing is allocated. Every slot has a lock of its own, so decisions meet
//! only when one is a whole round ahead.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate::core::Decision;
use tollgate::{Answer, Descriptor, RuleSet, Status, Tier, Timestamp};

/// The most bytes kept of the attributes of a request; of longer ones the beginning of each name and value is kept.
const MAX_ATTRIBUTE_BYTES: usize = 4 << 10;
/// The beginning that is kept, in bytes. A request has at most 64 attributes.
const MAX_CUT_BYTES: usize = 32;

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
    rules: DecidedBy,
    tiers: Vec<Tier>,
    /// The id, then names and values of the attributes.
    texts: Texts,
    is_cut: bool,
}

/// The rules that made a decision.
#[derive(Debug, Clone)]
pub(super) enum DecidedBy {
    /// A set that is or was in effect, by its number.
    Generation(u64),
    /// A set of its own, as with a limit that came with the request.
    Own(Arc<RuleSet>),
}

/// What is recorded of a decision.
#[derive(Debug)]
pub(super) struct Noted<'a, 'd> {
    pub(super) id: &'a str,
    pub(super) request: &'a Descriptor<'d>,
    pub(super) answer: &'a Answer,
    pub(super) cost: u64,
    pub(super) rules: DecidedBy,
}

/// A recent decision.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) answer: Answer,
    pub(crate) cost: u64,
    /// Whether attributes were too long to be kept whole.
    pub(crate) is_cut: bool,
    texts: Texts,
}

/// Several texts in one piece of memory.
#[derive(Debug, Clone, Default)]
struct Texts {
    text: String,
    ends: Vec<usize>,
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
    pub(super) fn push(&self, noted: Noted<'_, '_>) -> u64 {
        let number = self.recorded.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(slot) = self.slot(number) {
            let mut slot = slot.lock();
            // A thread that was stopped for a whole round must not overwrite what is newer.
            if slot.number < number {
                slot.number = number;
                slot.fill(noted);
            }
        }
        number
    }

    /// The decision with a number, if it is still there. `sets` gives the rule set of a generation, if it is still kept.
    pub(super) fn get(&self, number: u64, sets: impl Fn(u64) -> Option<Arc<RuleSet>>) -> Option<Recorded> {
        let slot = self.slot(number)?.lock();
        (slot.number == number && number > 0).then(|| slot.read(sets)).flatten()
    }

    /// Every decision that is still there and of interest, newest first.
    pub(super) fn newest<'s>(
        &'s self,
        of_interest: impl Fn(Status) -> bool + 's,
        sets: impl Fn(u64) -> Option<Arc<RuleSet>> + 's,
    ) -> impl Iterator<Item = Recorded> + 's {
        let newest = self.recorded();
        let oldest = newest.saturating_sub(u64::try_from(self.capacity()).unwrap_or(u64::MAX));
        (oldest + 1..=newest).rev().filter_map(move |number| {
            let slot = self.slot(number)?.lock();
            (slot.number == number && of_interest(slot.status)).then(|| slot.read(&sets)).flatten()
        })
    }

    /// The decision with an id, if it is still there.
    pub(super) fn find(&self, id: &str, sets: impl Fn(u64) -> Option<Arc<RuleSet>>) -> Option<Recorded> {
        self.slots.iter().find_map(|slot| {
            let slot = slot.lock();
            (slot.number > 0 && slot.texts.first() == id).then(|| slot.read(&sets)).flatten()
        })
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
            rules: DecidedBy::Generation(0),
            tiers: Vec::new(),
            texts: Texts::default(),
            is_cut: false,
        }
    }
}

impl Slot {
    fn fill(&mut self, Noted { id, request, answer, cost, rules }: Noted<'_, '_>) {
        (self.at, self.cost, self.status, self.rules) = (answer.at(), cost, answer.status(), rules);
        self.tiers.clear();
        self.tiers.extend_from_slice(answer.tiers());
        let length = |text: Option<&str>| text.map_or(0, str::len); // an address is short
        let bytes: usize =
            request.attributes().map(|(name, value)| name.len() + length(value.as_text())).sum();
        self.is_cut = bytes > MAX_ATTRIBUTE_BYTES;
        let longest = if self.is_cut { MAX_CUT_BYTES } else { usize::MAX };
        self.texts.clear();
        self.texts.push(id);
        for (name, value) in request.attributes() {
            self.texts.push(beginning(name, longest));
            match value.as_text() {
                Some(text) => self.texts.push(beginning(text, longest)),
                None => self.texts.push_formatted(value),
            }
        }
    }

    /// The decision, if its rule set is still kept.
    fn read(&self, sets: impl Fn(u64) -> Option<Arc<RuleSet>>) -> Option<Recorded> {
        let rules = match &self.rules {
            DecidedBy::Generation(generation) => sets(*generation)?,
            DecidedBy::Own(rules) => Arc::clone(rules),
        };
        let decision = match (self.status, &self.tiers[..]) {
            (Status::Denied, [tier]) => Decision::denied(tier.rule),
            (_, tiers) => Decision::new(&rules, tiers.into()),
        };
        Some(Recorded {
            answer: Answer::new(rules, decision, self.at),
            cost: self.cost,
            is_cut: self.is_cut,
            texts: self.texts.clone(),
        })
    }
}

fn beginning(text: &str, longest: usize) -> &str {
    &text[..text.floor_char_boundary(longest)]
}

impl Recorded {
    pub(crate) fn id(&self) -> &str {
        self.texts.first()
    }

    /// The request that was decided.
    pub(crate) fn request(&self) -> Descriptor<'_> {
        let mut request = Descriptor::new();
        let mut texts = self.texts.iter().skip(1);
        while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
            request.set(name, value);
        }
        request
    }

    /// Whether it was decided without rules.
    pub(crate) fn is_ad_hoc(&self) -> bool {
        self.answer.rules().rules().iter().any(tollgate::Rule::is_ad_hoc)
    }
}

impl Texts {
    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    fn push_formatted(&mut self, text: impl std::fmt::Display) {
        let _ = write!(self.text, "{text}"); // writing to a string does not fail
        self.ends.push(self.text.len());
    }

    fn first(&self) -> &str {
        self.iter().next().unwrap_or_default()
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }
}
