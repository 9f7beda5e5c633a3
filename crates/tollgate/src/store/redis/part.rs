//! A request as calls of the script: one for each slot that its keys lie in.

use std::ops::Range;

use redis::Cmd;
use smallvec::SmallVec;
use tollgate_core::{Hit, Mark, Timestamp};

use super::script::{self, Verb};
use super::slots;

/// The keys of some hits, one after the other.
#[derive(Debug, Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    places: SmallVec<[Range<usize>; 4]>,
}

/// What of a request goes to one slot.
#[derive(Debug)]
pub(super) struct Part<'r, 'h> {
    pub(super) slot: u16,
    /// Their places in the request.
    pub(super) members: SmallVec<[usize; 4]>,
    pub(super) hits: SmallVec<[&'r Hit<'h>; 4]>,
    pub(super) keys: Keys,
}

/// Whether slots matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spread {
    /// All keys are in one place.
    None,
    /// Each slot may be elsewhere.
    Slots,
}

impl<'r, 'h> Part<'r, 'h> {
    /// A request in as few parts as it can be.
    pub(super) fn of(hits: &'r [Hit<'h>], prefix: &str, spread: Spread) -> SmallVec<[Self; 1]> {
        let mut parts: SmallVec<[Self; 1]> = SmallVec::new();
        let mut key = Vec::with_capacity(64);
        for (place, hit) in hits.iter().enumerate() {
            key.clear();
            hit.key.encode(prefix, &mut key);
            let slot = if spread == Spread::Slots { slots::slot(&key) } else { 0 };
            let part = match parts.iter_mut().position(|part| part.slot == slot) {
                Some(part) => &mut parts[part],
                None => {
                    let (members, hits) = (SmallVec::new(), SmallVec::new());
                    parts.push(Part { slot, members, hits, keys: Keys::default() });
                    parts.last_mut().expect("pushed just now")
                }
            };
            part.members.push(place);
            part.hits.push(hit);
            part.keys.push(&key);
        }
        parts
    }

    /// Some of its hits; each is asked for, in order. Their places stay those in the request.
    pub(super) fn only(&self, mut wanted: impl FnMut(&Hit<'_>) -> bool) -> Self {
        let mut part =
            Part { slot: self.slot, members: SmallVec::new(), hits: SmallVec::new(), keys: Keys::default() };
        for ((place, hit), key) in self.members.iter().zip(&self.hits).zip(self.keys.iter()) {
            if wanted(hit) {
                part.members.push(*place);
                part.hits.push(hit);
                part.keys.push(key);
            }
        }
        part
    }

    /// The hits of a part that was made of [some](Self::only) of these, and where they stand here.
    pub(super) fn places_of<'p>(&'p self, some: &'p Self) -> impl Iterator<Item = (usize, &'r Hit<'h>)> + 'p {
        let here = self.members.iter().zip(&self.hits).enumerate();
        here.filter(|(_, (place, _))| some.members.contains(place)).map(|(at, (_, hit))| (at, *hit))
    }

    /// The script's call. That of an undo lacks the marks of the charges, which come last.
    pub(super) fn command(
        &self,
        sha: &str,
        verb: Verb<'_>,
        injected: Option<Timestamp>,
        around: Timestamp,
    ) -> Cmd {
        let mut call = Cmd::with_capacity(6 + 2 * self.hits.len(), 96 + 128 * self.hits.len());
        call.arg("EVALSHA").arg(sha).arg(self.hits.len());
        self.keys.iter().for_each(|key| {
            call.arg(key);
        });
        call.arg(verb.as_str());
        match injected {
            Some(now) => call.arg(now.as_micros()),
            None => call.arg(""),
        };
        let mut packed = Vec::with_capacity(64);
        for hit in &self.hits {
            packed.clear();
            script::pack(hit, around, &mut packed);
            call.arg(packed.as_slice());
        }
        call
    }
}

/// Says at the end of an undo what it undoes: the mark of each charge.
pub(super) fn add_marks(call: &mut Cmd, marks: &[Mark]) {
    for Mark { at, rest } in marks {
        call.arg(at.as_micros()).arg(*rest);
    }
}

impl Keys {
    fn push(&mut self, key: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.places.push(from..self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|place| &self.bytes[place.clone()])
    }

    /// The first hit before this one that has the same key.
    pub(super) fn same(&self, index: usize) -> Option<usize> {
        let key = &self.bytes[self.places[index].clone()];
        self.iter().take(index).position(|earlier| earlier == key)
    }
}
