//! `tollgate rules diff`: what is different between two places.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde::Serialize;
use tollgate::core::Draft;
use tollgate_server::api::RuleEntry;

use super::entries::list;
use super::fields::{Changed, changes, in_a_line};
use super::place::{Access, is_server, open};
use super::yaml::braces;
use crate::client::ReachArgs;
use crate::terminal::{Terminal, Tone};
use crate::words::count;

/// What `diff --exit-code` exits with when there is a difference.
const DIFFERENT: u8 = 1;
const ONE_NODE: &str =
    "note: a server answers with the rules of its own node; other nodes of a fleet may have others";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 0, different or not, and with 2 on errors; --exit-code makes a difference 1."
)]
pub(super) struct Args {
    /// A file (`-` is standard input), sqlite://path, postgres://user@host/name or http://127.0.0.1:8081
    before: String,
    /// Another one
    after: String,
    #[command(flatten)]
    reach: ReachArgs,
    /// Exit with 1 if there is a difference
    #[arg(long, env = "TOLLGATE_EXIT_CODE", value_parser = FalseyValueParser::new())]
    exit_code: bool,
    /// Print one JSON object
    #[arg(long, env = "TOLLGATE_JSON", value_parser = FalseyValueParser::new())]
    json: bool,
}

pub(super) async fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let before = list(&open(&args.before, Access::Read, &args.reach).await?).await?;
    let after = list(&open(&args.after, Access::Read, &args.reach).await?).await?;
    let diff = Diff::of(&before, &after);
    diff.print(args.json, terminal)?;
    if [&args.before, &args.after].into_iter().any(|place| is_server(place)) {
        terminal.remark(ONE_NODE);
    }
    Ok(if args.exit_code && !diff.is_empty() { ExitCode::from(DIFFERENT) } else { ExitCode::SUCCESS })
}

/// What is different between two sets; rules are the same by their label.
#[derive(Debug, Default, Serialize)]
pub(super) struct Diff<'e> {
    #[serde(serialize_with = "drafts")]
    pub(super) added: Vec<&'e RuleEntry>,
    #[serde(serialize_with = "drafts")]
    pub(super) removed: Vec<&'e RuleEntry>,
    pub(super) changed: Vec<ChangedRule<'e>>,
    pub(super) same: usize,
}

/// A rule that both have, with other fields.
#[derive(Debug, Serialize)]
pub(super) struct ChangedRule<'e> {
    rule: &'e str,
    fields: Vec<Changed>,
    #[serde(skip)]
    pub(super) before: &'e RuleEntry,
    #[serde(skip)]
    pub(super) after: &'e RuleEntry,
}

fn drafts<S: serde::Serializer>(entries: &[&RuleEntry], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(entries.iter().map(|entry| -> &Draft { &entry.rule }))
}

impl<'e> Diff<'e> {
    pub(super) fn of(before: &'e [RuleEntry], after: &'e [RuleEntry]) -> Self {
        let mut diff = Diff::default();
        let mut known: BTreeMap<&str, &RuleEntry> =
            before.iter().map(|entry| (&*entry.label, entry)).collect();
        for entry in after {
            match known.remove(&*entry.label) {
                None => diff.added.push(entry),
                Some(old) if old.rule == entry.rule => diff.same += 1,
                Some(old) => diff.changed.push(ChangedRule {
                    rule: &entry.label,
                    fields: changes(&old.rule, &entry.rule),
                    before: old,
                    after: entry,
                }),
            }
        }
        diff.removed = before.iter().filter(|entry| known.contains_key(&*entry.label)).collect();
        diff
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    pub(super) fn print(&self, json: bool, terminal: &mut Terminal) -> anyhow::Result<()> {
        if json {
            writeln!(terminal.out(), "{}", serde_json::to_string(self)?)?;
            return Ok(());
        }
        let same = count(u64::try_from(self.same)?, "rule");
        if self.is_empty() {
            writeln!(terminal.out(), "no difference: {same}")?;
            return Ok(());
        }
        for (sign, tone, entries) in [("-", Tone::Bad, &self.removed), ("+", Tone::Good, &self.added)] {
            for entry in entries {
                let line = format!("{sign} {}  {}", &*entry.label, braces(&entry.rule));
                let line = terminal.paint(tone, &line);
                writeln!(terminal.out(), "{line}")?;
            }
        }
        for ChangedRule { rule, fields, .. } in &self.changed {
            writeln!(terminal.out(), "~ {rule}  {}", in_a_line(fields))?;
        }
        writeln!(
            terminal.out(),
            "{} added, {} removed, {} changed, {} the same",
            self.added.len(),
            self.removed.len(),
            self.changed.len(),
            self.same
        )?;
        Ok(())
    }
}
