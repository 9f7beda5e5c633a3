//! The table for people, and all the numbers behind it.

#![expect(clippy::print_stdout, reason = "this is what prints")]

use std::fmt::Write;

use crate::lanes::{FOUR_TIERS, GOVERNOR, ONE_TIER, ROW};
use crate::measure::{Cell, Figures};
use crate::memory::Memory;
use crate::workload::{COLUMNS, Column, Scenario};

/// Prints one row for each contender, and how the figures stand to what was hoped for.
pub(crate) fn print(figures: &Figures, memory: &[Memory]) {
    println!(
        "Nanoseconds per decision and thread (throughput as a multiple of governor's); bytes per key.\n"
    );
    print!("{}", overview(figures, memory));
    println!();
    print!("{}", reach(figures, memory));
}

fn overview(figures: &Figures, memory: &[Memory]) -> String {
    let mut heading = vec![String::new()];
    heading.extend(COLUMNS.iter().map(ToString::to_string));
    heading.extend(["RSS", "own"].map(str::to_owned));
    let row = |lane: &'static str| {
        let cell = |column: &Column| {
            let cell = figures.cell(lane, *column)?;
            let ratio = figures.ratio(lane, GOVERNOR, *column)?;
            Some(format!("{:.0} ({ratio:.1}x)", cell.median()))
        };
        let memory = memory.iter().find(|memory| memory.lane == lane);
        let resident = memory.map(|memory| format!("{:.0}", memory.median()));
        let own = memory.and_then(|memory| memory.own).map(|own| format!("{own:.0}"));
        let cells = COLUMNS.iter().map(cell).chain([resident, own]);
        [lane.to_owned()].into_iter().chain(cells.map(Option::unwrap_or_default)).collect()
    };
    table(&heading, &figures.lanes().into_iter().map(row).collect::<Vec<_>>())
}

/// Medians, ranges and every round.
pub(crate) fn details(figures: &Figures, memory: &[Memory]) -> String {
    let heading = ["", "column", "median ns", "least", "most", "Mops/s", "x governor", "rounds"];
    let row = |cell: &Cell| {
        let (least, most) = cell.range();
        let ratio = figures.ratio(cell.lane, GOVERNOR, cell.column);
        let rounds: Vec<String> = cell.rounds.iter().map(|ns| format!("{ns:.1}")).collect();
        vec![
            cell.lane.to_owned(),
            cell.column.to_string(),
            format!("{:.1}", cell.median()),
            format!("{least:.1}"),
            format!("{most:.1}"),
            format!("{:.2}", cell.millions_per_second()),
            ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            rounds.join(" "),
        ]
    };
    let lanes = figures.lanes();
    let cells = COLUMNS.iter().flat_map(|column| lanes.iter().filter_map(|lane| figures.cell(lane, *column)));
    let timing = table(&heading.map(str::to_owned), &cells.map(row).collect::<Vec<_>>());
    let row = |memory: &Memory| {
        let rounds: Vec<String> = memory.resident.iter().map(|bytes| format!("{bytes:.1}")).collect();
        let own = memory.own.map(|own| format!("{own:.1}")).unwrap_or_default();
        vec![memory.lane.to_owned(), rounds.join(" "), own]
    };
    let heading = ["", "RSS bytes per key, each time", "own count"].map(str::to_owned);
    format!("{timing}\n{}", table(&heading, &memory.iter().map(row).collect::<Vec<_>>()))
}

/// What issue 2 asked for.
fn reach(figures: &Figures, memory: &[Memory]) -> String {
    let mut text = String::new();
    let mut line = |what: &str, figure: f64, wanted: &str, met: bool| {
        let verdict = if met { "met" } else { "MISSED" };
        writeln!(text, "- {what}: {figure:.1}, wanted {wanted}: {verdict}").expect("into a string");
    };
    for (scenario, least) in [(Scenario::Uniform, 2.5), (Scenario::Hot, 1.5)] {
        let column = Column { scenario, threads: 2 };
        if let Some(ratio) = figures.ratio(ROW, GOVERNOR, column) {
            let what = format!("{ROW} on {column}, times governor's throughput");
            line(&what, ratio, &format!("at least {least}"), ratio >= least);
        }
    }
    if let Some(memory) = memory.iter().find(|memory| memory.lane == ROW) {
        let bytes = memory.median();
        line("RSS bytes per token bucket at 1M keys", bytes, "at most 48", bytes <= 48.0);
    }
    for column in COLUMNS {
        if let Some(ratio) = figures.ratio(ONE_TIER, FOUR_TIERS, column) {
            let what = format!("4 tiers on {column}, times the cost of 1 tier");
            line(&what, ratio, "less than 4", ratio < 4.0);
        }
    }
    text
}

/// A Markdown table that can be read as it stands.
fn table(heading: &[String], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].len()).chain([heading[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let rule = format!("|-{}-|\n", rule.join("-|-"));
    let body: String = rows.iter().map(|row| line(row)).collect();
    format!("{}{rule}{body}", line(heading))
}
