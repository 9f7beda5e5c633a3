//! What a replay comes to, for people.

use std::collections::HashMap;
use std::io::Write as _;

use tollgate::core::Enforcement;
use tollgate::replay::{Op, Step};
use tollgate::{Answer, Micros, Status, Tier, Timestamp};

use crate::table::table;
use crate::terminal::{Terminal, Tone};
use crate::words::{count, grouped, percent, wait};

/// How many keys are listed.
const TOP: usize = 10;
/// How many refused keys of a rule are told apart; the others are only counted.
const MAX_KEYS: usize = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Summary {
    allowed: u64,
    refused: u64,
    denied: u64,
    peeks: u64,
    refunds: u64,
    resets: u64,
    rule_changes: u64,
    span: Option<(Timestamp, Timestamp)>,
    rules: HashMap<String, Tally>,
    worst: Option<Worst>,
}

/// What one rule did.
#[derive(Debug, Default)]
struct Tally {
    asked: u64,
    refused: u64,
    /// `None` is the longest of all: for ever.
    longest_wait: Option<Micros>,
    any_for_ever: bool,
    shadow: bool,
    keys: HashMap<String, u64>,
}

/// The refusal with the longest wait.
#[derive(Debug)]
struct Worst {
    wait: Micros,
    rule: String,
    key: String,
    at: Timestamp,
}

impl Summary {
    pub(crate) fn add(&mut self, step: &Step<'_, '_>) {
        let at = step.event.at;
        let (first, last) = self.span.unwrap_or((at, at));
        self.span = Some((first.min(at), last.max(at)));
        match (&step.event.op, &step.answer) {
            (Op::Check, Some(answer)) => self.add_check(step, answer),
            (Op::Peek, _) => self.peeks += 1,
            (Op::Refund, _) => self.refunds += 1,
            (Op::Reset, _) => self.resets += 1,
            (Op::Rules(_) | Op::Check, _) => self.rule_changes += 1,
        }
    }

    fn add_check(&mut self, step: &Step<'_, '_>, answer: &Answer) {
        match answer.status() {
            Status::Allowed => self.allowed += 1,
            Status::Refused | Status::Unavailable | Status::Invalid => self.refused += 1,
            Status::Denied => self.denied += 1,
        }
        for tier in answer.tiers() {
            let label = answer.rules().rule(tier.rule).label();
            if !self.rules.contains_key(label) {
                self.rules.insert(label.to_owned(), Tally::default());
            }
            let Some(tally) = self.rules.get_mut(label) else { continue };
            tally.asked += 1;
            tally.shadow = tier.enforcement == Enforcement::Shadow;
            if !tier.verdict().allowed {
                let key = answer.rules().rule(tier.rule).key(&step.event.request).to_string();
                self.worst = worse(self.worst.take(), tier, label, &key, step.event.at);
                tally.refuse(tier, key);
            }
        }
    }

    pub(crate) fn print(&self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let checks = self.allowed + self.refused + self.denied;
        let span = self.span.map_or(0, |(first, last)| last.as_micros().abs_diff(first.as_micros()));
        writeln!(
            terminal.out(),
            "{} in {} of the trace's time",
            count(checks, "check"),
            wait(Micros::new(span))
        )?;
        for (word, tone, number) in [
            ("allowed", Tone::Good, self.allowed),
            ("refused", Tone::Bad, self.refused),
            ("denied", Tone::Bad, self.denied),
        ] {
            let word = terminal.paint(tone, &format!("{word:<8}"));
            writeln!(terminal.out(), "  {word} {:>13}  {:>7}", grouped(number), percent(number, checks))?;
        }
        self.print_others(terminal)?;
        if self.rules.is_empty() {
            return Ok(());
        }
        writeln!(terminal.out(), "\n{}", self.rule_table())?;
        if let Some(keys) = self.key_table() {
            let heading = terminal.paint(Tone::Strong, "Most refused keys");
            writeln!(terminal.out(), "\n{heading}\n{keys}")?;
        }
        if let Some(Worst { wait: longest, rule, key, at }) = &self.worst {
            let longest = wait(*longest);
            let at = at.as_micros();
            writeln!(terminal.out(), "\nLongest wait: {longest}, for {key} under {rule}, at t_us {at}")?;
        }
        Ok(())
    }

    fn print_others(&self, terminal: &mut Terminal) -> anyhow::Result<()> {
        let others = [
            (self.peeks, "peek"),
            (self.refunds, "refund"),
            (self.resets, "reset"),
            (self.rule_changes, "rules line"),
        ];
        let others: Vec<String> = others
            .iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, one)| count(*number, one))
            .collect();
        if !others.is_empty() {
            writeln!(terminal.out(), "  and {}", others.join(", "))?;
        }
        Ok(())
    }

    /// Every rule that was asked, the one that refused most first.
    fn rule_table(&self) -> String {
        let mut rules: Vec<(&String, &Tally)> = self.rules.iter().collect();
        rules.sort_by_key(|(label, tally)| (std::cmp::Reverse(tally.refused), *label));
        let mut table = table(["RULE", "ASKED", "REFUSED", "SHARE", "LONGEST WAIT"], &[1, 2, 3]);
        for (label, tally) in rules {
            let label = if tally.shadow { format!("{label} (shadow)") } else { label.clone() };
            table.add_row([
                label,
                grouped(tally.asked),
                grouped(tally.refused),
                percent(tally.refused, tally.asked),
                tally.wait_text(),
            ]);
        }
        table.trim_fmt()
    }

    fn key_table(&self) -> Option<String> {
        let of_rule = |(rule, tally): (&'_ String, &'_ Tally)| -> Vec<(u64, String, String)> {
            tally.keys.iter().map(|(key, number)| (*number, key.clone(), rule.clone())).collect()
        };
        let mut keys: Vec<(u64, String, String)> = Vec::new();
        for rule in &self.rules {
            keys.extend(of_rule(rule));
            keys.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| (&a.1, &a.2).cmp(&(&b.1, &b.2))));
            keys.truncate(TOP);
        }
        let mut table = table(["KEY", "RULE", "REFUSED"], &[2]);
        for (number, key, rule) in &keys {
            table.add_row([key.clone(), rule.clone(), grouped(*number)]);
        }
        (!keys.is_empty()).then(|| table.trim_fmt())
    }
}

impl Tally {
    fn refuse(&mut self, tier: &Tier, key: String) {
        self.refused += 1;
        match tier.verdict().retry_after {
            Some(wait) => self.longest_wait = self.longest_wait.max(Some(wait)),
            None => self.any_for_ever = true,
        }
        if self.keys.len() < MAX_KEYS || self.keys.contains_key(&key) {
            *self.keys.entry(key).or_default() += 1;
        }
    }

    fn wait_text(&self) -> String {
        match self.longest_wait {
            _ if self.any_for_ever => "for ever".to_owned(),
            Some(longest) => wait(longest),
            None => "-".to_owned(),
        }
    }
}

/// The worse of two refusals that a wait cures. A rule on trial makes nobody wait.
fn worse(known: Option<Worst>, tier: &Tier, rule: &str, key: &str, at: Timestamp) -> Option<Worst> {
    match tier.verdict().retry_after {
        Some(wait)
            if tier.enforcement == Enforcement::Enforce
                && known.as_ref().is_none_or(|known| wait > known.wait) =>
        {
            Some(Worst { wait, rule: rule.to_owned(), key: key.to_owned(), at })
        }
        _ => known,
    }
}
