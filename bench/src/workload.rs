//! Who asks, and in which order.

use std::borrow::Cow;
use std::fmt;

/// How many callers there are, and in a run that only shows that it works.
const KEYS: u32 = 1_000_000;
const FEW_KEYS: u32 = 20_000;
/// Every key is drawn about so many times beforehand, so that nearly every one comes up.
const DRAWN: usize = 4;
/// The exponent of the skewed draw: the hottest key gets 6 to 7 % of all requests.
const ZIPF: f64 = 0.99;

/// How many callers there are in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys(u32);

impl Keys {
    pub(crate) const fn new(quick: bool) -> Self {
        Keys(if quick { FEW_KEYS } else { KEYS })
    }

    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    /// How many callers are drawn; a power of two.
    fn drawn(self) -> usize {
        (self.0 as usize * DRAWN).next_power_of_two()
    }
}

/// What is asked of a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// One key, allowed.
    Hot,
    /// A million keys, each as likely as the other, allowed.
    Uniform,
    /// A million keys, few of them very likely, allowed.
    Zipf,
    /// One key, refused.
    Refused,
}

/// A scenario on so many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) scenario: Scenario,
    pub(crate) threads: u8,
}

pub(crate) const COLUMNS: [Column; 8] = [
    Column { scenario: Scenario::Hot, threads: 1 },
    Column { scenario: Scenario::Hot, threads: 2 },
    Column { scenario: Scenario::Uniform, threads: 1 },
    Column { scenario: Scenario::Uniform, threads: 2 },
    Column { scenario: Scenario::Zipf, threads: 1 },
    Column { scenario: Scenario::Zipf, threads: 2 },
    Column { scenario: Scenario::Refused, threads: 1 },
    Column { scenario: Scenario::Refused, threads: 2 },
];

impl Scenario {
    pub(crate) const fn allows(self) -> bool {
        !matches!(self, Scenario::Refused)
    }

    pub(crate) const fn has_many_keys(self) -> bool {
        matches!(self, Scenario::Uniform | Scenario::Zipf)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scenario::Hot => "hot",
            Scenario::Uniform => "1M",
            Scenario::Zipf => "zipf",
            Scenario::Refused => "refused",
        })
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} thr", self.scenario, self.threads)
    }
}

/// Sequences of callers, the same in every run.
#[derive(Debug)]
pub(crate) struct Draws {
    keys: Keys,
    uniform: Vec<u32>,
    zipf: Vec<u32>,
}

impl Draws {
    pub(crate) fn new(keys: Keys) -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let uniform = (0..keys.drawn()).map(|_| random.below(keys.get())).collect();
        Draws { keys, uniform, zipf: zipf(&mut random, keys) }
    }

    /// The callers of a scenario; a power of two of them. `turn` picks another hot key each time, and one that the skewed
    /// draw hardly has, so that none runs out of tokens.
    pub(crate) fn of(&self, scenario: Scenario, turn: u32) -> Cow<'_, [u32]> {
        match scenario {
            Scenario::Hot => Cow::Owned(vec![self.keys.get() - 1 - turn; 256]),
            Scenario::Refused => Cow::Owned(vec![0; 256]),
            Scenario::Uniform => Cow::Borrowed(&self.uniform),
            Scenario::Zipf => Cow::Borrowed(&self.zipf),
        }
    }
}

/// Draws each rank as often as the inverse of its power says.
fn zipf(random: &mut Random, keys: Keys) -> Vec<u32> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=keys.get())
        .map(|rank| {
            sum += f64::from(rank).powf(-ZIPF);
            sum
        })
        .collect();
    let draw = |_| {
        let point = random.fraction() * sum;
        u32::try_from(sums.partition_point(|upto| *upto < point)).expect("a rank").min(keys.get() - 1)
    };
    (0..keys.drawn()).map(draw).collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// Thirty-two random bits.
    const fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 32) as u32
    }

    fn below(&mut self, bound: u32) -> u32 {
        u32::try_from((u64::from(self.next()) * u64::from(bound)) >> 32).expect("below a 32-bit bound")
    }

    fn fraction(&mut self) -> f64 {
        f64::from(self.next()) / 4_294_967_296.0
    }
}
