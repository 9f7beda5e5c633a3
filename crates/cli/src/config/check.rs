//! `tollgate config check`: everything that is wrong with a file.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::file::File;
use super::path;
use crate::terminal::Terminal;
use crate::words::count;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The file; without it tollgate.toml in the working directory
    #[arg(value_name = "FILE", env = "TOLLGATE_CONFIG")]
    file: Option<PathBuf>,
}

pub(super) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let path = path(args.file.as_ref()).context("there is no tollgate.toml here; name a file to check")?;
    let file = File::read(&path)?;
    let settings = u64::try_from(file.len()).unwrap_or(u64::MAX);
    writeln!(terminal.out(), "{}: ok: {}", file.name, count(settings, "setting"))?;
    Ok(ExitCode::SUCCESS)
}
