//! Everything that happens, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::AddAssign;

use tollgate_core::Limit;
use tollgate_core::lease::{Parting, TERM, Temper};
use tollgate_tests::random::Random;

use crate::bound::{self, Admission};
use crate::node::{Message, Node, Outcome, Passed, Reply};
use crate::store::Store;

/// When a node gives up on an answer.
const DEADLINE: i64 = 50_000;
/// How often a node looks for leases that nobody uses.
const SWEEP: i64 = 50_000;

/// By how much clocks are set.
const STEPS: [i64; 4] = [200, 300_000, 5_000_000, 3_600_000_000];

/// Limits that nodes compete for.
const LIMITS: [&str; 19] = [
    "100/s burst 20",
    "1000/s burst 1000",
    "10/s burst 500",
    "3/s burst 1",
    "7/100ms burst 50",
    "30 every 100ms burst 40",
    "5 every 70ms burst 60",
    "200 every 1s",
    "fixed 100/s",
    "fixed 30/250ms",
    "fixed 60/40ms",
    "counter 100/s",
    "counter 40/300ms",
    "counter 80/50ms",
    "log 100/s",
    "log 40/300ms",
    "200/s queue 30",
    "1000/s queue 300 free 20",
    "50/s queue 10",
];

/// Two versions of a limit that nodes know at the same time.
const MIXED: [[&str; 2]; 9] = [
    ["1000/s burst 1000", "100/s burst 20"],
    ["10/s burst 500", "100/s burst 20"],
    ["7/100ms burst 50", "3/s burst 1"],
    ["30 every 100ms burst 40", "5 every 70ms burst 60"],
    ["200 every 1s", "30 every 100ms burst 40"],
    ["fixed 100/s", "fixed 20/s"],
    ["counter 100/s", "counter 30/s"],
    ["log 100/s", "log 25/s"],
    ["200/s queue 30", "50/s queue 10"],
];

/// What goes wrong beside what always does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// Nodes disagree about the limits: each knows one of two versions.
    pub(crate) mixed: bool,
    /// The store loses writes that it acknowledged, or its clock is set forward.
    pub(crate) losses: bool,
    /// So many parts in a thousand at most are clocks of nodes too fast or too slow.
    pub(crate) drift_permille: i64,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrival {
        node: usize,
    },
    AtStore {
        node: usize,
        life: u64,
        version: usize,
        key: usize,
        message: Message,
    },
    AtNode {
        node: usize,
        life: u64,
        key: usize,
        reply: Reply,
    },
    GiveUp {
        node: usize,
        life: u64,
        key: usize,
        message: Message,
    },
    /// Another limit of a request, asked elsewhere, has answered; the tokens were taken at that time.
    Elsewhere {
        node: usize,
        life: u64,
        key: usize,
        passed: Passed,
        at: i64,
    },
    Sweep {
        node: usize,
    },
    Resume {
        node: usize,
        life: u64,
    },
    Mishap,
    Healed(Trouble),
}

/// What lasts for a while, and may come over itself.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// A node is cut off.
    CutOff(usize),
    /// No answer reaches a node.
    Deaf(usize),
    /// Everybody is cut off.
    Everybody,
    /// The store does not listen.
    StoreAway,
}

/// What a run came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    events: u64,
    pub(crate) admitted: u64,
    pub(crate) locally: u64,
    refused: u64,
    pub(crate) put_back: u64,
    stranded: u64,
    calls: u64,
    mishaps: u64,
    losses: u64,
}

pub(crate) struct World {
    now: i64,
    end: i64,
    order: u64,
    queue: BinaryHeap<Reverse<(i64, u64, usize)>>,
    events: Vec<Event>,
    random: Random,
    faults: Faults,
    store: Store,
    nodes: Vec<Node>,
    /// Tells a node from those that died in its place.
    lives: Vec<u64>,
    /// Events of a node that stands still.
    held_back: Vec<Vec<Event>>,
    /// Mean time between two requests of each node.
    gaps: Vec<i64>,
    /// How many troubles each node has of each kind.
    cut_off: Vec<u32>,
    deaf: Vec<u32>,
    store_away: u32,
    /// What most messages take at most.
    slowest: i64,
    loss_permille: u64,
    double_permille: u64,
    /// So many requests meet another limit, which is asked elsewhere and refuses about half of them.
    tiers_permille: u64,
    /// When the store lost something.
    losses: Vec<i64>,
    admitted: Vec<Vec<Admission>>,
    tally: Tally,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random::new(seed);
        let keys = random.between(1, 3);
        let limits = if faults.mixed {
            let pairs: Vec<_> = (0..keys).map(|_| random.choose(&MIXED)).collect();
            [0, 1].map(|version| pairs.iter().map(|pair| limit(pair[version])).collect())
        } else {
            let limits: Vec<Limit> = (0..keys).map(|_| limit(random.choose(&LIMITS))).collect();
            [limits.clone(), limits]
        };
        let count = random.between(2, 7);
        let gap = random.choose(&[500, 2_000, 5_000, 20_000]);
        let mut world = World {
            now: 1_000_000_000_000,
            end: 1_000_000_000_000 + random.between(2, 5) * 1_000_000,
            order: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            faults,
            nodes: Vec::new(),
            lives: Vec::new(),
            held_back: Vec::new(),
            gaps: Vec::new(),
            cut_off: Vec::new(),
            deaf: Vec::new(),
            store_away: 0,
            slowest: random.choose(&[1_500, 1_500, 10_000, 30_000]),
            loss_permille: random.choose(&[0, 0, 10, 100]),
            double_permille: random.choose(&[0, 50, 300]),
            tiers_permille: random.choose(&[0, 200, 1_000]),
            losses: Vec::new(),
            admitted: vec![Vec::new(); limits[0].len()],
            store: Store::new(limits),
            tally: Tally::default(),
            random,
        };
        for node in 0..usize::try_from(count).unwrap() {
            let fresh = world.fresh_node();
            world.nodes.push(fresh);
            world.lives.push(0);
            world.held_back.push(Vec::new());
            world.cut_off.push(0);
            world.deaf.push(0);
            let skew = world.random.choose(&[1, 1, 4]);
            world.gaps.push(gap * skew);
            world.after(world.random.clone().between(0, 10_000), Event::Arrival { node });
            world.after(SWEEP, Event::Sweep { node });
        }
        world.after(world.random.clone().between(50_000, 500_000), Event::Mishap);
        world
    }

    pub(crate) fn run(mut self) -> Tally {
        while let Some(Reverse((time, _, place))) = self.queue.pop() {
            self.now = time;
            self.tally.events += 1;
            self.happen(self.events[place]);
            self.check();
        }
        self.tally.stranded += self.nodes.iter_mut().map(|node| node.stranded(self.now)).sum::<u64>();
        for (key, admitted) in self.admitted.into_iter().enumerate() {
            let limits = self.store.limits.each_ref().map(|version| version[key].clone());
            if !self.store.was_set {
                bound::check_windows(&limits, &admitted, &self.losses);
            }
            bound::check(&limits, admitted, &self.losses);
        }
        self.tally
    }

    /// The invariant: in the store's books, and in every purse.
    fn check(&self) {
        // Until what was lent before a loss has ended, the store does not know of it.
        let is_known = self.losses.last().is_none_or(|at| self.now > at + TERM.get().cast_signed());
        for key in self.store.keys() {
            let ledger = self.store.check(key, self.now);
            for node in &self.nodes {
                let held = node.held(key, self.now);
                let known = ledger.leases().iter().find(|lease| lease.node == node.id);
                let out = known.map_or(0, |lease| lease.tokens);
                assert!(!is_known || held <= out, "a node holds {held}, the store knows of {out}");
            }
        }
    }

    fn after(&mut self, wait: i64, event: Event) {
        self.order += 1;
        self.events.push(event);
        self.queue.push(Reverse((self.now + wait, self.order, self.events.len() - 1)));
    }

    fn happen(&mut self, event: Event) {
        let running = self.now < self.end;
        match event {
            Event::Arrival { node } if running => {
                let gap = self.gaps[node];
                let wait = self.random.between(1, 2 * gap);
                self.after(wait, event);
                let quiet = (self.now / 700_000 + i64::try_from(node).unwrap()) % 5 == 0;
                if self.nodes[node].paused == 0 && !quiet {
                    let key = self.random.below(self.store.keys().len());
                    let cost = if self.random.permille(50) { self.random.between(2, 6) } else { 1 };
                    let outcome = self.nodes[node].request(key, cost.unsigned_abs(), self.now);
                    self.follow(node, key, outcome);
                }
            }
            Event::AtStore { node, life, version, key, message } => {
                self.at_store(node, life, version, key, message);
            }
            Event::AtNode { node, life, .. }
            | Event::GiveUp { node, life, .. }
            | Event::Elsewhere { node, life, .. }
                if life == self.lives[node] && self.nodes[node].paused > 0 =>
            {
                self.held_back[node].push(event);
            }
            Event::AtNode { node, life, key, reply } if life == self.lives[node] => {
                let outcome = self.nodes[node].reply(key, reply, self.now);
                self.follow(node, key, outcome);
            }
            Event::GiveUp { node, life, key, message } if life == self.lives[node] => {
                let outcome = self.nodes[node].give_up(key, message, self.now);
                self.follow(node, key, outcome);
            }
            Event::Elsewhere { node, life, key, passed, at } if life == self.lives[node] => {
                if self.random.permille(500) {
                    self.tally.put_back += 1;
                    self.nodes[node].put_back(key, passed.taken);
                } else {
                    self.admit(key, at, passed.cost);
                }
            }
            Event::Sweep { node } if running => {
                self.after(SWEEP, event);
                if self.nodes[node].paused == 0 {
                    self.store.keys().for_each(|key| self.give_back(node, key, Parting::Idle));
                }
            }
            Event::Resume { node, life } if life == self.lives[node] => {
                self.nodes[node].paused -= 1;
                if self.nodes[node].paused == 0 {
                    for event in std::mem::take(&mut self.held_back[node]) {
                        self.happen(event);
                    }
                }
            }
            Event::Mishap if running => self.mishap(),
            Event::Healed(trouble) => self.trouble(trouble, |count| *count -= 1),
            _ => {}
        }
    }

    fn give_back(&mut self, node: usize, key: usize, parting: Parting) {
        let outcome = self.nodes[node].give_back(key, parting, self.now);
        self.follow(node, key, outcome);
    }

    /// Does what came of an event at a node.
    fn follow(&mut self, node: usize, key: usize, outcome: Outcome) {
        let now = self.now;
        self.tally.locally += outcome.passed.len() as u64;
        self.tally.refused += outcome.refused;
        if let Some((at, cost, _)) = outcome.passed_at_store {
            self.admit(key, at, cost);
        }
        for passed in outcome.passed {
            if !self.random.permille(self.tiers_permille) {
                self.admit(key, now, passed.cost);
            } else {
                let (life, delay) = (self.lives[node], self.random.between(50, 60_000));
                self.after(delay, Event::Elsewhere { node, life, key, passed, at: now });
            }
        }
        for message in outcome.send {
            self.tally.calls += 1;
            let life = self.lives[node];
            self.after(DEADLINE, Event::GiveUp { node, life, key, message });
            let copies = if self.random.permille(self.double_permille) { 2 } else { 1 };
            for _ in 0..copies {
                if let Some(delay) = self.delay(node) {
                    let version = self.nodes[node].version;
                    self.after(delay, Event::AtStore { node, life, version, key, message });
                }
            }
        }
    }

    fn admit(&mut self, key: usize, at: i64, cost: u64) {
        self.admitted[key].push((at, cost));
        self.tally.admitted += 1;
    }

    fn at_store(&mut self, node: usize, life: u64, version: usize, key: usize, message: Message) {
        if self.store_away > 0 {
            return;
        }
        let reply = self.store.answer(key, version, message, self.now);
        let copies = if self.random.permille(self.double_permille) { 2 } else { 1 };
        for _ in 0..copies {
            if let Some(delay) = self.delay(node).filter(|_| self.deaf[node] == 0) {
                self.after(delay, Event::AtNode { node, life, key, reply });
            }
        }
    }

    /// How long a message takes; `None` when it never arrives. Every one takes its own time, so they overtake each other.
    fn delay(&mut self, node: usize) -> Option<i64> {
        if self.cut_off[node] > 0 || self.random.permille(self.loss_permille) {
            return None;
        }
        Some(match self.random.next() % 200 {
            0 => self.random.between(100_000, 3_000_000),
            1..=5 => self.random.between(5_000, 80_000),
            _ => self.random.between(50, self.slowest),
        })
    }

    fn fresh_node(&mut self) -> Node {
        let ahead = self.random.between(-3_600_000_000, 3_600_000_000);
        let drift = self.faults.drift_permille;
        let fast = self.random.between(-drift, drift + 1);
        let temper = self.random.choose(&[Temper::LEASED, Temper::AUTO]);
        let version = if self.faults.mixed { self.random.below(2) } else { 0 };
        Node::new(self.random.next(), &self.store.limits[version], ahead, fast, temper).knowing(version)
    }

    fn mishap(&mut self) {
        self.tally.mishaps += 1;
        let wait = self.random.between(50_000, 800_000);
        self.after(wait, Event::Mishap);
        let node = self.random.below(self.nodes.len());
        let lasts = self.random.between(10_000, 1_500_000);
        match self.random.next() % if self.faults.losses { 11 } else { 8 } {
            0 => self.begin(Trouble::CutOff(node), lasts),
            1 => self.begin(Trouble::Everybody, lasts),
            2 => self.begin(Trouble::StoreAway, lasts),
            3 => self.begin(Trouble::Deaf(node), lasts),
            4 => {
                self.nodes[node].paused += 1;
                let life = self.lives[node];
                self.after(lasts, Event::Resume { node, life });
            }
            5 => self.die(node),
            6 => {
                self.store.keys().for_each(|key| self.give_back(node, key, Parting::Final));
                self.die(node);
            }
            // Back by a little is late, by more it was set.
            7 => self.store.set_clock(-self.random.choose(&STEPS)),
            // Forward is another matter: time credits.
            8 => {
                self.store.set_clock(self.random.choose(&STEPS));
                self.lose();
            }
            9 => {
                self.store.restart_empty();
                self.lose();
            }
            _ => {
                self.store.fail_over();
                self.lose();
            }
        }
        if self.random.permille(300) {
            self.store.replicate();
        }
    }

    fn begin(&mut self, trouble: Trouble, lasts: i64) {
        self.trouble(trouble, |count| *count += 1);
        self.after(lasts, Event::Healed(trouble));
    }

    fn trouble(&mut self, trouble: Trouble, change: impl Fn(&mut u32)) {
        match trouble {
            Trouble::CutOff(node) => change(&mut self.cut_off[node]),
            Trouble::Deaf(node) => change(&mut self.deaf[node]),
            Trouble::Everybody => self.cut_off.iter_mut().for_each(change),
            Trouble::StoreAway => change(&mut self.store_away),
        }
    }

    fn lose(&mut self) {
        self.losses.push(self.now);
        self.tally.losses += 1;
    }

    /// Another node starts in its place.
    fn die(&mut self, node: usize) {
        self.tally.stranded += self.nodes[node].stranded(i64::MAX / 2_000);
        self.nodes[node] = self.fresh_node();
        self.lives[node] += 1;
        self.held_back[node].clear();
    }
}

/// A limit, with the algorithm before it where the notation does not tell.
fn limit(text: &str) -> Limit {
    use tollgate_core::limit::{Opening, Phase};
    let is_word = |word: &str| word.chars().all(|letter| letter.is_ascii_alphabetic());
    let Some((algorithm, numbers)) = text.split_once(' ').filter(|(word, _)| is_word(word)) else {
        return text.parse().unwrap();
    };
    let plain: Limit = numbers.parse().unwrap();
    let (count, window) = (plain.capacity(), plain.period());
    match algorithm {
        "fixed" => Limit::fixed_window(count, window, Phase::Epoch),
        "counter" => Limit::sliding_window_counter(count, window, Opening::Epoch),
        _ => Limit::sliding_window_log(count, window),
    }
    .unwrap()
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.events += other.events;
        self.admitted += other.admitted;
        self.locally += other.locally;
        self.refused += other.refused;
        self.put_back += other.put_back;
        self.stranded += other.stranded;
        self.calls += other.calls;
        self.mishaps += other.mishaps;
        self.losses += other.losses;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { events, admitted, locally, refused, put_back, stranded, calls, mishaps, losses } = self;
        write!(
            f,
            "{events} events, {admitted} admitted, {locally} on leases of which {put_back} were put back, "
        )?;
        write!(f, "{refused} refused, {stranded} tokens stranded, ")?;
        write!(f, "{calls} messages to the store, {mishaps} mishaps, {losses} losses")
    }
}
