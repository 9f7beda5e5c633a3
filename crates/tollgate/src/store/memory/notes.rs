//! Notes in this process: a bounded map, and who leaves it next.

use std::collections::{BTreeSet, HashMap};

use tollgate_core::{Micros, Timestamp};

use crate::store::{About, NoteName, StoreError};
use crate::sync::Mutex;

/// How many reservations are kept, and how much memory for what they say.
const MOST_RESERVATIONS: usize = 100_000;
const MOST_BYTES: usize = 64 << 20;
/// A reservation that was settled has two short notes more, which may outlive it by its time.
const NOTES_EACH: usize = 5;

/// Everything that is noted.
#[derive(Debug)]
pub(super) struct Notes {
    most: usize,
    most_bytes: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    notes: HashMap<NoteName, Note>,
    /// Their names, first who leaves first.
    leaving: BTreeSet<(Timestamp, NoteName)>,
    bytes: usize,
}

#[derive(Debug)]
struct Note {
    text: Box<[u8]>,
    until: Timestamp,
}

impl Default for Notes {
    fn default() -> Self {
        Self::with(MOST_RESERVATIONS, MOST_BYTES)
    }
}

impl Notes {
    fn with(most: usize, most_bytes: usize) -> Self {
        Notes { most, most_bytes, kept: Mutex::new(Kept::default()) }
    }

    /// Writes a note unless there is one of that name, which is the answer then.
    pub(super) fn keep(
        &self,
        name: NoteName,
        note: &[u8],
        now: Timestamp,
        ttl: Micros,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut kept = self.kept.lock();
        kept.forget(now);
        if let Some(known) = kept.notes.get(&name) {
            return Ok(Some(known.text.to_vec()));
        }
        self.has_room(&kept, name.about, note.len())?;
        kept.add(name, Note { text: note.into(), until: now.after(ttl) });
        Ok(None)
    }

    /// The note of a name. Where there is none, it is written by whoever does what it says, and nobody else does that.
    pub(super) fn once(
        &self,
        name: NoteName,
        now: Timestamp,
        ttl: Micros,
        write: impl FnOnce() -> Vec<u8>,
    ) -> Result<Vec<u8>, StoreError> {
        let mut kept = self.kept.lock();
        kept.forget(now);
        if let Some(known) = kept.notes.get(&name) {
            return Ok(known.text.to_vec());
        }
        self.has_room(&kept, name.about, 0)?;
        let text = write();
        kept.add(name, Note { text: text.as_slice().into(), until: now.after(ttl) });
        Ok(text)
    }

    /// Whoever was promised a settlement has room for it.
    fn has_room(&self, kept: &Kept, about: About, bytes: usize) -> Result<(), StoreError> {
        let (most, fits) = match about {
            About::Reserved => (self.most, kept.bytes + bytes <= self.most_bytes),
            About::Settled | About::Receipt => (NOTES_EACH * self.most, true),
        };
        if kept.notes.len() < most && fits { Ok(()) } else { Err(StoreError::Rejected { code: "OOM" }) }
    }

    pub(super) fn recall(&self, name: NoteName, now: Timestamp) -> Option<Vec<u8>> {
        let mut kept = self.kept.lock();
        kept.forget(now);
        kept.notes.get(&name).map(|note| note.text.to_vec())
    }
}

impl Kept {
    fn add(&mut self, name: NoteName, note: Note) {
        self.bytes += note.text.len();
        self.leaving.insert((note.until, name));
        self.notes.insert(name, note);
    }

    /// Drops every note whose time is over.
    fn forget(&mut self, now: Timestamp) {
        while let Some((until, name)) = self.leaving.first().copied()
            && until <= now
        {
            self.leaving.pop_first();
            self.bytes -= self.notes.remove(&name).map_or(0, |note| note.text.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReservationId;

    const TTL: Micros = Micros::new(10);

    fn name(number: u128, about: About) -> NoteName {
        NoteName { reservation: ReservationId::from_bits(number), about }
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn the_first_note_stays_until_its_time_is_over() {
        let notes = Notes::default();
        let reserved = name(1, About::Reserved);
        assert_eq!(notes.keep(reserved, b"first", at(0), TTL), Ok(None));
        assert_eq!(notes.keep(reserved, b"second", at(9), TTL), Ok(Some(b"first".to_vec())));
        assert_eq!(notes.recall(reserved, at(9)), Some(b"first".to_vec()));
        assert_eq!(notes.recall(reserved, at(10)), None);
        assert_eq!(notes.keep(reserved, b"third", at(10), TTL), Ok(None));
    }

    #[test]
    fn a_full_house_takes_nobody_in_and_lets_those_who_are_there_settle() {
        let full = Err(StoreError::Rejected { code: "OOM" });
        let notes = Notes::with(2, 100);
        for number in [1, 2] {
            assert_eq!(notes.keep(name(number, About::Reserved), b"note", at(0), TTL), Ok(None));
        }
        assert_eq!(notes.keep(name(3, About::Reserved), b"note", at(0), TTL), full);
        assert_eq!(notes.keep(name(1, About::Settled), b"note", at(5), TTL), Ok(None));
        // Two left, one settled.
        assert_eq!(notes.keep(name(3, About::Reserved), b"note", at(10), TTL), Ok(None));
        assert_eq!(notes.keep(name(4, About::Reserved), &[0; 200], at(20), TTL), full);
        assert_eq!(notes.keep(name(4, About::Reserved), &[0; 100], at(20), TTL), Ok(None));
        assert_eq!(notes.kept.lock().notes.len(), 1);
        assert_eq!(notes.kept.lock().bytes, 100);
    }
}
