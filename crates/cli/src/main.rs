//! The `tollgate` command.

mod beside;
mod check;
mod client;
mod completions;
mod config;
mod data;
mod decided;
mod doctor;
mod explain;
mod greet;
mod health;
mod listen;
mod load;
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

use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use config::Config;
use terminal::{Color, Terminal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Something went wrong; a refusal is 1 and only `check` says it.
const ERROR: u8 = 2;

/// A rate limiter: every request pays a token at the gate or is told when to return
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
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
    /// Check rules files, list rules, look one up
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
    /// Check tollgate.toml, show what is in effect
    Config(config::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let given = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&given).unwrap_or_else(|error| error.exit());
    let mut terminal = Terminal::new(cli.color);
    // Where each word was said matters to what may also be said in a file.
    let words = given.subcommand().map_or(&given, |(_, words)| words);
    run(cli.command, words, &mut terminal).unwrap_or_else(|error| {
        if terminal::is_unread(&error) {
            return ExitCode::SUCCESS; // whoever read our output has seen enough
        }
        terminal.complain(&error);
        ExitCode::from(ERROR)
    })
}

fn run(command: Option<Command>, words: &ArgMatches, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    match command {
        Some(Command::Serve(_)) => serve::run(Config::of(words)?, terminal),
        Some(Command::Check(args)) => check::run(&args, terminal),
        Some(Command::Rules(args)) => rules::run(&args, terminal),
        Some(Command::Replay(args)) => replay::run(&args, terminal),
        Some(Command::Explain(args)) => explain::run(&args, terminal),
        Some(Command::Doctor(args)) => doctor::run(&args, terminal),
        Some(Command::Health(args)) => health::run(&args, terminal),
        Some(Command::Violations(args)) => violations::run(&args, terminal),
        Some(Command::Top(args)) => top::run(&args, terminal),
        Some(Command::Config(args)) => config::run(&args, words, terminal),
        Some(Command::Completions(args)) => completions::run(&args, terminal),
        None => serve::run(Config::of_environment()?, terminal),
    }
}
