//! What was admitted, by whoever asked, and what a limit promises about it.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate::{Limit, core::limit::Algorithm};

/// An admission lies between these instants, in microseconds: its asking, and the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admission {
    pub(crate) asked: u64,
    pub(crate) knew: u64,
}

/// The admissions of each node that was ever there, and when Redis lost something.
#[derive(Debug, Default)]
pub(crate) struct Log {
    nodes: Mutex<Vec<Vec<Admission>>>,
    losses: Mutex<Vec<Loss>>,
}

/// Redis lost something between these instants.
#[derive(Debug, Clone, Copy)]
struct Loss {
    from: u64,
    to: u64,
}

/// Leases of before a loss may be spent after it for so long, in microseconds.
const LEASE: u64 = 250_000;

impl Log {
    /// A place for one more node.
    pub(crate) fn add_node(&self) -> usize {
        let mut nodes = self.nodes.lock().unwrap();
        nodes.push(Vec::new());
        nodes.len() - 1
    }

    pub(crate) fn note(&self, node: usize, admission: Admission) {
        self.nodes.lock().unwrap()[node].push(admission);
    }

    /// How many each node has admitted so far.
    pub(crate) fn by_node(&self) -> Vec<usize> {
        self.nodes.lock().unwrap().iter().map(Vec::len).collect()
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.by_node().iter().sum::<usize>() as u64
    }

    /// From the first asking to the last answer.
    pub(crate) fn micros(&self) -> u64 {
        let all = self.merged();
        let first = all.iter().map(|admission| admission.asked).min();
        all.last().map_or(0, |last| last.knew - first.unwrap())
    }

    /// Redis loses something while this is done.
    pub(crate) async fn losing(&self, what: impl Future<Output = ()>) {
        let from = now();
        what.await;
        self.losses.lock().unwrap().push(Loss { from, to: now() });
    }

    /// Checks every interval, from one's asking to another's answer: all that certainly happened in it is within what the
    /// limit promises, with what each loss costs that may have shown in it.
    pub(crate) fn check(&self, limit: &str) {
        let (limit, all): (Limit, _) = (limit.parse().unwrap(), self.merged());
        let losses = self.losses.lock().unwrap();
        for first in &all {
            let mut inside = 0;
            for last in all.iter().filter(|last| last.asked >= first.asked) {
                inside += 1;
                let shows = |loss: &&Loss| loss.from <= last.knew && first.asked <= loss.to + LEASE;
                // One capacity, and what the leases of before refill until they end.
                let per_loss = promised_by(&limit, LEASE);
                let allowance = losses.iter().filter(shows).count() as u64 * per_loss;
                let most = allowance + promised_by(&limit, last.knew - first.asked);
                assert!(inside <= most, "{inside} from {} to {}: {most} promised", first.asked, last.knew);
            }
        }
        println!("{} admitted in {} ms, none too many", all.len(), self.micros() / 1_000);
    }

    /// All of them, in the order of their answers.
    fn merged(&self) -> Vec<Admission> {
        let mut all: Vec<Admission> = self.nodes.lock().unwrap().iter().flatten().copied().collect();
        all.sort_unstable_by_key(|admission| admission.knew);
        all
    }
}

/// Microseconds on the clock that Redis has too, as long as nobody sets it: its seconds are those of the limit.
#[expect(clippy::disallowed_methods, reason = "compared with what Redis reads")]
pub(crate) fn now() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// The most that a limit admits in so many microseconds.
pub(crate) fn promised(limit: &str, micros: u64) -> u64 {
    promised_by(&limit.parse().unwrap(), micros)
}

fn promised_by(limit: &Limit, micros: u64) -> u64 {
    let Algorithm::TokenBucket(refill) = limit.algorithm() else { panic!("a token bucket") };
    refill.capacity() + micros * refill.rate() / refill.units()
}

#[test]
#[should_panic(expected = "4 from 0 to 30: 3 promised")]
fn one_too_many_is_seen() {
    let log = Log::default();
    for node in [log.add_node(), log.add_node()] {
        log.note(node, Admission { asked: 0, knew: 20 });
        log.note(node, Admission { asked: 10, knew: 30 });
    }
    log.check("1/s burst 3");
}
