//! Everything that happens in a small world, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::ops::AddAssign;

use tollgate_core::lease::{Called, Heat, MAX_LEASE_TIME, NodeBucket, Step, Ticket};
use tollgate_core::limit::{Opening, Phase};
use tollgate_core::{Limit, Micros, Timestamp};
use tollgate_tests::random::Random;

use crate::bound::{self, Admission, Losses};
use crate::store::{Message, Reply, Store};

/// When a node gives up on a reply.
const DEADLINE: i64 = 50_000;
/// How often a node looks at leases that no request touches.
const TICK: i64 = 20_000;
/// What clocks of nodes are allowed: one part in 256 is 3,906 parts in a million.
const DRIFT_PPM: i64 = 3_900;
/// By how much the clock of the store steps.
const STEPS: [i64; 4] = [200, 300_000, 5_000_000, 3_600_000_000];

/// Limits that nodes compete for.
const LIMITS: [&str; 18] = [
    "100/s burst 20",
    "1000/s burst 1000",
    "1000/s burst 10",
    "10/s burst 500",
    "3/s burst 1",
    "7/100ms burst 50",
    "2000/s burst 500",
    "30 every 100ms burst 40",
    "5 every 70ms burst 60",
    "200 every 1s",
    "fixed 100/s",
    "fixed 30/250ms",
    "fixed 60/40ms",
    "counter 100/s",
    "counter 40/300ms",
    "log 100/s",
    "log 40/300ms",
    "200/s queue 30",
];

/// Limits of large worlds.
const LARGE: [&str; 3] = ["20000/s burst 2000", "50000/s burst 100000", "2000/s burst 500"];

/// Two versions of a limit that nodes know at the same time.
const MIXED: [[&str; 2]; 8] = [
    ["1000/s burst 1000", "100/s burst 20"],
    ["1000/s burst 1000", "700/s burst 2000"],
    ["10/s burst 500", "100/s burst 20"],
    ["7/100ms burst 50", "3/s burst 1"],
    ["30 every 100ms burst 40", "5 every 70ms burst 60"],
    ["fixed 100/s", "fixed 20/s"],
    ["counter 100/s", "counter 30/s"],
    ["log 100/s", "log 25/s"],
];

/// What goes wrong beside what always does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// Nodes disagree about the limits: each knows one of two versions.
    pub(crate) mixed: bool,
    /// The store loses acknowledged writes, or its clock steps.
    pub(crate) losses: bool,
    /// How fast or slow clocks of nodes are, at most.
    pub(crate) drift_ppm: i64,
    /// Hundreds of nodes on one token bucket, instead of a few on any limits.
    pub(crate) large: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Faults { mixed: false, losses: false, drift_ppm: DRIFT_PPM, large: false }
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrival(usize),
    Tick(usize),
    AtStore {
        node: usize,
        life: u64,
        version: usize,
        key: usize,
        request: u64,
        message: Message,
        called: Option<Called>,
    },
    AtNode {
        node: usize,
        life: u64,
        key: usize,
        request: u64,
        message: Message,
        called: Option<Called>,
        reply: Reply,
        at: i64,
    },
    GiveUp {
        node: usize,
        life: u64,
        key: usize,
        request: u64,
        called: Option<Called>,
    },
    /// The other limits of a request have answered; the tokens were taken at that time.
    Decided {
        node: usize,
        life: u64,
        key: usize,
        cost: u64,
        taken: Taken,
        at: i64,
    },
    Resume {
        node: usize,
        life: u64,
    },
    Mishap,
    Healed(Trouble),
}

#[derive(Debug, Clone, Copy)]
enum Taken {
    Leased(Ticket),
    Held(Timestamp),
}

/// What lasts for a while, and may overlap itself.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    CutOff(usize),
    Deaf(usize),
    AllCutOff,
    StoreDown,
}

/// What a run came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Report {
    events: u64,
    pub(crate) admitted: u64,
    pub(crate) on_leases: u64,
    refused: u64,
    pub(crate) released: u64,
    pub(crate) held: u64,
    calls: u64,
    mishaps: u64,
    losses: u64,
}

struct Node {
    buckets: Vec<NodeBucket>,
    version: usize,
    heat: Heat,
    /// How long before the end of a period it renews.
    lead: Micros,
    ahead: i64,
    drift_ppm: i64,
    paused: u32,
    /// Tells it from nodes that died in its place.
    life: u64,
    /// Events while it is paused.
    postponed: Vec<Event>,
    cut_off: u32,
    deaf: u32,
    gap: i64,
    /// Requests that wait for the store.
    waiting: Vec<u64>,
}

impl Node {
    fn clock(&self, now: i64) -> Timestamp {
        Timestamp::from_micros(
            now + now / 1_000_000 * self.drift_ppm
                + now % 1_000_000 * self.drift_ppm / 1_000_000
                + self.ahead,
        )
    }
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
    store_down: u32,
    slowest: i64,
    loss_permille: u64,
    /// So many requests have other limits, which refuse about half of them.
    tiers_permille: u64,
    /// So many requests are decided in several slots.
    slots_permille: u64,
    requests: u64,
    losses: Losses,
    admitted: Vec<Vec<Admission>>,
    report: Report,
}

impl World {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let mut random = Random::new(seed);
        let keys = if faults.large { 1 } else { random.between(1, 3) };
        let limits = if faults.large {
            let limits = vec![limit(random.choose(&LARGE))];
            [limits.clone(), limits]
        } else if faults.mixed {
            let pairs: Vec<_> = (0..keys).map(|_| random.choose(&MIXED)).collect();
            [0, 1].map(|version| pairs.iter().map(|pair| limit(pair[version])).collect())
        } else {
            let limits: Vec<Limit> = (0..keys).map(|_| limit(random.choose(&LIMITS))).collect();
            [limits.clone(), limits]
        };
        let count = if faults.large { random.between(100, 1_001) } else { random.between(2, 7) };
        let gap = if faults.large { 10_000 } else { random.choose(&[500, 2_000, 5_000, 20_000]) };
        let start = 1_000_000_000_000;
        let mut world = World {
            now: start,
            end: start + if faults.large { 1_000_000 } else { random.between(1, 3) * 1_000_000 },
            order: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            faults,
            nodes: Vec::new(),
            store_down: 0,
            slowest: random.choose(&[1_500, 1_500, 10_000, 30_000, 150_000]),
            loss_permille: random.choose(&[0, 0, 10, 50]),
            tiers_permille: random.choose(&[0, 200, 1_000]),
            slots_permille: random.choose(&[0, 100, 500]),
            requests: 0,
            losses: Losses { at: Vec::new(), shows_for: 3 * MAX_LEASE_TIME.get().cast_signed() },
            admitted: vec![Vec::new(); limits[0].len()],
            store: Store::new(limits, Micros::new(DEADLINE.unsigned_abs())),
            report: Report::default(),
            random,
        };
        for node in 0..usize::try_from(count).unwrap() {
            let skew = world.random.choose(&[1, 1, 4]);
            let fresh = world.fresh_node(0, gap * skew);
            world.nodes.push(fresh);
            let wait = world.random.between(0, 10_000);
            world.after(wait, Event::Arrival(node));
            world.after(wait, Event::Tick(node));
        }
        let wait = world.random.between(50_000, 500_000);
        world.after(wait, Event::Mishap);
        world
    }

    fn fresh_node(&mut self, life: u64, gap: i64) -> Node {
        let version = if self.faults.mixed { self.random.below(2) } else { 0 };
        let drift = self.faults.drift_ppm;
        Node {
            buckets: self.store.limits[version].iter().map(|limit| NodeBucket::new(limit, 0)).collect(),
            version,
            heat: self.random.choose(&[Heat::LEASED, Heat::AUTO, Heat::ANY]),
            lead: Micros::new(self.random.between(20_000, 150_000).unsigned_abs()),
            ahead: self.random.between(-3_600_000_000, 3_600_000_000),
            drift_ppm: self.random.between(-drift, drift + 1),
            paused: 0,
            life,
            postponed: Vec::new(),
            cut_off: 0,
            deaf: 0,
            gap,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) -> Report {
        while let Some(Reverse((time, _, place))) = self.queue.pop() {
            self.now = time;
            self.report.events += 1;
            self.happen(self.events[place]);
            if !self.faults.large || self.report.events.is_multiple_of(10_000) {
                self.check();
            }
        }
        for (key, admitted) in self.admitted.into_iter().enumerate() {
            let limits = self.store.limits.each_ref().map(|version| &version[key]);
            if self.losses.at.is_empty() {
                bound::check_windows(limits, &admitted);
            }
            if self.faults.large {
                bound::check_token_bucket(limits[0], &mut admitted.clone());
            } else {
                bound::check(limits, admitted, &self.losses);
            }
        }
        self.report
    }

    /// What all nodes have is on the ledger.
    fn check(&mut self) {
        if !self.losses.at.is_empty() {
            return; // the store has forgotten leases
        }
        for key in self.store.keys() {
            if !self.faults.mixed {
                self.store.check(key, self.now);
            }
            for version in 0..=usize::from(self.faults.mixed) {
                let of_version = self.nodes.iter().filter(|node| node.version == version);
                let has: u64 =
                    of_version.map(|node| node.buckets[key].clone().content(node.clock(self.now))).sum();
                let out = self.store.out(key, version, self.now);
                assert!(has <= out, "nodes have {has}, the ledger has {out}");
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
            Event::Arrival(node) if running => {
                let wait = self.random.between(1, 2 * self.nodes[node].gap);
                self.after(wait, event);
                let quiet = (self.now / 700_000 + i64::try_from(node).unwrap()) % 5 == 0;
                if self.nodes[node].paused == 0 && !quiet {
                    self.request(node);
                }
            }
            Event::Tick(node) if running => {
                self.after(TICK, event);
                if self.nodes[node].paused == 0 {
                    self.store.keys().for_each(|key| self.tend(node, key, false));
                }
            }
            Event::AtStore { node, life, version, key, request, message, called } => {
                if self.store_down > 0 {
                    return;
                }
                let (at, reply) = (self.now, self.store.answer(key, version, message, self.now));
                if let Some(delay) = self.delay(node).filter(|_| self.nodes[node].deaf == 0) {
                    self.after(delay, Event::AtNode { node, life, key, request, message, called, reply, at });
                }
            }
            Event::AtNode { node, life, .. }
            | Event::GiveUp { node, life, .. }
            | Event::Decided { node, life, .. }
                if life == self.nodes[node].life && self.nodes[node].paused > 0 =>
            {
                self.nodes[node].postponed.push(event);
            }
            Event::AtNode { node, life, key, request, message, called, reply, at }
                if life == self.nodes[node].life =>
            {
                self.reply(node, key, request, message, called, reply, at);
            }
            Event::GiveUp { node, life, key, request, called } if life == self.nodes[node].life => {
                let node = &mut self.nodes[node];
                let clock = node.clock(self.now);
                node.waiting.retain(|waits| *waits != request);
                if let Some(called) = called {
                    node.buckets[key].gave_up(called, clock);
                }
            }
            Event::Decided { node, life, key, cost, taken, at } if life == self.nodes[node].life => {
                let passes = self.random.permille(500);
                self.decided(node, key, cost, taken, passes, at);
            }
            Event::Resume { node, life } if life == self.nodes[node].life => {
                self.nodes[node].paused -= 1;
                if self.nodes[node].paused == 0 {
                    for event in std::mem::take(&mut self.nodes[node].postponed) {
                        self.happen(event);
                    }
                }
            }
            Event::Mishap if running => self.mishap(),
            Event::Healed(trouble) => self.trouble(trouble, |count| *count -= 1),
            _ => {}
        }
    }

    fn request(&mut self, node: usize) {
        let key = self.random.below(self.store.keys().len());
        let cost = if self.random.permille(50) { self.random.between(2, 6).unsigned_abs() } else { 1 };
        if self.random.permille(self.slots_permille) {
            self.report.held += 1;
            return self.ask_store(node, key, Message::Hold { cost });
        }
        let clock = self.nodes[node].clock(self.now);
        match self.nodes[node].buckets[key].ask(cost, clock) {
            Step::Pass(ticket) => {
                self.report.on_leases += 1;
                let taken = Taken::Leased(ticket);
                if self.random.permille(self.tiers_permille) {
                    self.decide_later(node, key, cost, taken, self.now);
                } else {
                    self.decided(node, key, cost, taken, true, self.now);
                }
            }
            Step::Refuse(verdict) => {
                assert!(!verdict.allowed && verdict.retry_after != Some(Micros::ZERO), "{verdict:?}");
                self.report.refused += 1;
            }
            Step::Store => {
                let reported = self.nodes[node].buckets[key].is_leased();
                self.ask_store(node, key, Message::Charge { cost, reported });
            }
        }
        self.tend(node, key, false);
    }

    /// Sends the call of a bucket that is due.
    fn tend(&mut self, node: usize, key: usize, stops: bool) {
        let round_trip = Micros::new(2 * self.slowest.unsigned_abs());
        let Node { heat, lead, .. } = self.nodes[node];
        let clock = self.nodes[node].clock(self.now);
        let bucket = &mut self.nodes[node].buckets[key];
        let call = bucket
            .give_back(heat, stops, round_trip, clock)
            .or_else(|| bucket.call(heat, lead, round_trip, clock));
        if let Some((call, called)) = call {
            self.report.calls += 1;
            self.send(node, key, 0, Message::Lease(call), Some(called));
        }
    }

    fn ask_store(&mut self, node: usize, key: usize, message: Message) {
        self.requests += 1;
        self.nodes[node].waiting.push(self.requests);
        self.send(node, key, self.requests, message, None);
    }

    fn send(&mut self, node: usize, key: usize, request: u64, message: Message, called: Option<Called>) {
        let Node { life, version, .. } = self.nodes[node];
        let deadline = DEADLINE.max(4 * self.slowest);
        self.after(deadline, Event::GiveUp { node, life, key, request, called });
        if let Some(delay) = self.delay(node) {
            self.after(delay, Event::AtStore { node, life, version, key, request, message, called });
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one event")]
    fn reply(
        &mut self,
        node: usize,
        key: usize,
        request: u64,
        message: Message,
        called: Option<Called>,
        reply: Reply,
        at: i64,
    ) {
        let clock = self.nodes[node].clock(self.now);
        let Node { waiting, buckets, .. } = &mut self.nodes[node];
        let waits = waiting.iter().position(|waits| *waits == request);
        if let Some(place) = waits {
            waiting.swap_remove(place);
        }
        match (message, reply) {
            (Message::Lease(_), Reply::Grant(grant)) => {
                if let Some(called) = called {
                    buckets[key].granted(called, &grant, clock);
                }
            }
            // A caller that has given up is not admitted; its hold ends as spent.
            (Message::Charge { cost, .. }, Reply::Verdict(verdict)) if waits.is_some() => {
                if verdict.allowed {
                    self.admit(key, at, cost);
                } else {
                    buckets[key].refused(cost, verdict, clock);
                    self.report.refused += 1;
                }
            }
            (Message::Hold { cost }, Reply::Held(Some(boundary))) if waits.is_some() => {
                self.decide_later(node, key, cost, Taken::Held(boundary), at);
            }
            (Message::Hold { .. }, Reply::Held(None)) if waits.is_some() => self.report.refused += 1,
            _ => {}
        }
    }

    fn decide_later(&mut self, node: usize, key: usize, cost: u64, taken: Taken, at: i64) {
        let life = self.nodes[node].life;
        let delay = self.random.between(50, 60_000);
        self.after(delay, Event::Decided { node, life, key, cost, taken, at });
    }

    fn decided(&mut self, node: usize, key: usize, cost: u64, taken: Taken, passes: bool, at: i64) {
        match taken {
            Taken::Leased(ticket) => {
                let clock = self.nodes[node].clock(self.now);
                self.nodes[node].buckets[key].finish(ticket, passes, clock);
            }
            Taken::Held(boundary) => {
                let message = if passes {
                    Message::Spend { cost, boundary }
                } else {
                    Message::Release { cost, boundary }
                };
                self.send(node, key, 0, message, None);
            }
        }
        if passes { self.admit(key, at, cost) } else { self.report.released += 1 }
    }

    fn admit(&mut self, key: usize, at: i64, cost: u64) {
        self.admitted[key].push((at, cost));
        self.report.admitted += 1;
    }

    /// How long a message takes; `None` when it is lost. Messages overtake each other.
    fn delay(&mut self, node: usize) -> Option<i64> {
        if self.nodes[node].cut_off > 0 || self.random.permille(self.loss_permille) {
            return None;
        }
        Some(match self.random.next() % 200 {
            0 => self.random.between(100_000, 3_000_000),
            1..=5 => self.random.between(5_000, 80_000),
            _ => self.random.between(50, self.slowest),
        })
    }

    fn mishap(&mut self) {
        self.report.mishaps += 1;
        let wait = self.random.between(50_000, 800_000);
        self.after(wait, Event::Mishap);
        let node = self.random.below(self.nodes.len());
        let lasts = self.random.between(10_000, 1_500_000);
        match self.random.next() % if self.faults.losses { 10 } else { 7 } {
            0 => self.begin(Trouble::CutOff(node), lasts),
            1 => self.begin(Trouble::AllCutOff, lasts),
            2 => self.begin(Trouble::StoreDown, lasts),
            3 => self.begin(Trouble::Deaf(node), lasts),
            4 => {
                self.nodes[node].paused += 1;
                let life = self.nodes[node].life;
                self.after(lasts, Event::Resume { node, life });
            }
            5 => self.replace(node),
            6 => {
                self.store.keys().for_each(|key| self.tend(node, key, true));
                self.replace(node);
            }
            7 => {
                let by = self.random.choose(&STEPS) * self.random.choose(&[1, -1]);
                self.store.step_clock(by);
                self.lose();
            }
            8 => {
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
            Trouble::CutOff(node) => change(&mut self.nodes[node].cut_off),
            Trouble::Deaf(node) => change(&mut self.nodes[node].deaf),
            Trouble::AllCutOff => self.nodes.iter_mut().for_each(|node| change(&mut node.cut_off)),
            Trouble::StoreDown => change(&mut self.store_down),
        }
    }

    fn lose(&mut self) {
        self.losses.at.push(self.now);
        self.report.losses += 1;
    }

    /// The node dies and another starts in its place.
    fn replace(&mut self, node: usize) {
        let Node { life, gap, cut_off, deaf, .. } = self.nodes[node];
        let fresh = self.fresh_node(life + 1, gap);
        self.nodes[node] = Node { cut_off, deaf, ..fresh };
    }
}

/// A limit, with the algorithm before it where the notation does not tell.
pub(crate) fn limit(text: &str) -> Limit {
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

impl AddAssign for Report {
    fn add_assign(&mut self, other: Report) {
        self.events += other.events;
        self.admitted += other.admitted;
        self.on_leases += other.on_leases;
        self.refused += other.refused;
        self.released += other.released;
        self.held += other.held;
        self.calls += other.calls;
        self.mishaps += other.mishaps;
        self.losses += other.losses;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { events, admitted, on_leases, refused, released, held, calls, mishaps, losses } = self;
        write!(
            f,
            "{events} events, {admitted} admitted, {on_leases} asked of leases, {held} of several slots, "
        )?;
        write!(
            f,
            "{released} released, {refused} refused, {calls} lease calls, {mishaps} mishaps, {losses} losses"
        )
    }
}
