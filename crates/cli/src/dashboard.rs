//! `tollgate dashboard`: a link that signs in to the dashboard of a running server.

use std::io::Write as _;
use std::process::ExitCode;

use crate::client::{Plane, ServerArgs};
use crate::terminal::Terminal;

#[derive(Debug, clap::Args)]
#[command(after_help = "The link is valid once, and for 10 minutes.")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.server.client(Plane::Admin)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let link = runtime.block_on(client.login_link())?;
    writeln!(terminal.out(), "{link}")?;
    Ok(ExitCode::SUCCESS)
}
