//! `tollgate health`: whether a running server is ready. For container images, which have no shell and no curl.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::FalseyValueParser;

use crate::client::{Plane, ServerArgs};
use crate::terminal::Terminal;

/// Probes have timeouts of their own, which end the process without a word; this one says why.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 0 when the server is ready, 2 otherwise.")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Ask only whether the process is up, not whether it takes requests
    #[arg(long, env = "TOLLGATE_LIVE", value_parser = FalseyValueParser::new())]
    live: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.server.client(Plane::Data)?;
    let path = if args.live { "/livez" } else { "/readyz" };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = runtime.block_on(async {
        let asked = tokio::time::timeout(TIMEOUT, client.text(path));
        asked
            .await
            .with_context(|| format!("{} gave no answer within {} s", client.shown(), TIMEOUT.as_secs()))?
    })?;
    writeln!(terminal.out(), "{}", body.trim_end())?;
    Ok(ExitCode::SUCCESS)
}
