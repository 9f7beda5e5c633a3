//! `tollgate completions`: scripts that let a shell complete our commands.

use std::io::Write as _;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::Cli;
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell; save what is printed where it looks for completions
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut script);
    terminal.out().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
