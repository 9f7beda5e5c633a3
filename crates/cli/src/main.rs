//! The `tollgate` command.

mod banner;
mod check;
mod client;
mod completions;
mod config;
mod dashboard;
mod data;
mod database;
mod doctor;
mod explain;
mod health;
mod listen;
mod load;
mod local;
mod progress;
mod replay;
mod request;
mod rules;
mod serve;
mod source;
mod store;
mod summary;
mod table;
mod telemetry;
mod terminal;
mod top;
mod violations;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use config::Config;
use terminal::{Color, Terminal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Something went wrong; a refusal is 1 and only `check` says it.
const ERROR: u8 = 2;

/// A rate limiter for one machine or a fleet: exact limits in memory, in Redis, or on leases from it
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, max_term_width = 100, override_usage = "tollgate [OPTIONS] [COMMAND]")]
#[command(
    after_help = "Without a command, `tollgate` is `tollgate serve` and takes its options: tollgate --http :9000"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// When to use colours; auto is on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, env = "TOLLGATE_COLOR", value_name = "WHEN", value_enum, default_value_t)]
    color: Color,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer checks over HTTP; what `tollgate` does without a command
    Serve(Box<serve::Args>),
    /// Decide a request, here with nothing counted before it, or at a running server
    Check(check::Args),
    /// List, check and change rules; show and undo changes
    Rules(Box<rules::Args>),
    /// Run a trace of requests through rules, in the trace's own time
    Replay(replay::Args),
    /// Show which rules a request meets, which not, and why
    Explain(explain::Args),
    /// Look at a store before a fleet relies on it: reachable, fast, and does it keep what it counts?
    Doctor(doctor::Args),
    /// Ask a running server whether it is ready, for container images without a shell
    Health(health::Args),
    /// List refusals on record, newest first
    Violations(violations::Args),
    /// Watch a running server: decisions, times, who is refused
    Top(top::Args),
    /// Print a link that signs in to the dashboard of a running server
    Dashboard(dashboard::Args),
    /// Check tollgate.toml, show what is in effect
    Config(config::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let given = Cli::command().get_matches_from(with_command(std::env::args_os().collect()));
    let cli = Cli::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    let mut terminal = Terminal::new(cli.color);
    // Where each word was said matters to what may also be said in a file.
    let words = given.subcommand().map_or(&given, |(_, words)| words);
    run(&cli.command, words, &mut terminal).unwrap_or_else(|error| {
        if terminal::is_unread(&error) {
            return ExitCode::SUCCESS; // whoever read our output has seen enough
        }
        terminal.complain(&error);
        ExitCode::from(ERROR)
    })
}

/// The words of the command line, with `serve` where no command is named.
fn with_command(mut words: Vec<OsString>) -> Vec<OsString> {
    let mut place = 1;
    loop {
        let word = words.get(place).map(|word| word.to_string_lossy());
        place += match word.as_deref() {
            Some("--color") => 2,
            Some(word) if word.starts_with("--color=") => 1,
            Some("-h" | "--help" | "-V" | "--version") => return words,
            Some(word) if !word.starts_with('-') => return words,
            _ => break,
        };
    }
    if place <= words.len() {
        words.insert(place, "serve".into());
    }
    words
}

fn run(command: &Command, words: &ArgMatches, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(_) => serve::run(Config::of(words)?, terminal),
        Command::Check(args) => check::run(args, terminal),
        Command::Rules(args) => rules::run(args, terminal),
        Command::Replay(args) => replay::run(args, terminal),
        Command::Explain(args) => explain::run(args, terminal),
        Command::Doctor(args) => doctor::run(args, terminal),
        Command::Health(args) => health::run(args, terminal),
        Command::Violations(args) => violations::run(args, terminal),
        Command::Top(args) => top::run(args, terminal),
        Command::Dashboard(args) => dashboard::run(args, terminal),
        Command::Config(args) => config::run(args, words, terminal),
        Command::Completions(args) => completions::run(args, terminal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serve_is_the_command_where_none_is_named() {
        for (given, expected) in [
            ("tollgate", "tollgate serve"),
            ("tollgate --http :9000", "tollgate serve --http :9000"),
            ("tollgate --color never --http :9000", "tollgate --color never serve --http :9000"),
            ("tollgate --color=never", "tollgate --color=never serve"),
            ("tollgate --http :9000 --help", "tollgate serve --http :9000 --help"),
            ("tollgate --color", "tollgate --color"),
            ("tollgate --color never check --repeat 2", "tollgate --color never check --repeat 2"),
            ("tollgate --help", "tollgate --help"),
            ("tollgate -V", "tollgate -V"),
            ("tollgate help serve", "tollgate help serve"),
            ("tollgate serve --http :9000", "tollgate serve --http :9000"),
        ] {
            let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
            assert_eq!(with_command(words(given)), words(expected), "{given}");
        }
    }
}
