//! `tollgate top`: a running server, live.

mod screen;
mod view;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::FalseyValueParser;

use crate::client::{Client, ReachArgs, Stats};
use crate::terminal::Terminal;
use view::View;

#[derive(Debug, clap::Args)]
#[command(after_help = "q or Esc quits.")]
pub(crate) struct Args {
    /// The server to watch
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_SERVER",
        default_value = "http://127.0.0.1:8080",
        hide_env_values = true
    )]
    server: String,
    #[command(flatten)]
    reach: ReachArgs,
    /// How many seconds to wait before looking again
    #[arg(long, value_name = "SECONDS", env = "TOLLGATE_INTERVAL", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print what there is to see as text, once
    #[arg(long, env = "TOLLGATE_ONCE", value_parser = FalseyValueParser::new())]
    once: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let client = args.reach.client(&args.server)?;
    // On this thread alone: it holds standard output.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if args.once {
            let watched = Watched::begin(&client).await?;
            write!(terminal.out(), "{}", View::of(&watched).text())?;
            return anyhow::Ok(());
        }
        screen::watch(&client, args.interval).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A server as it was last seen.
#[derive(Debug)]
struct Watched {
    server: String,
    stats: Stats,
    /// Why it could not be seen again since.
    away: Option<String>,
}

impl Watched {
    /// Looks for the first time.
    ///
    /// # Errors
    ///
    /// The server cannot be asked.
    async fn begin(client: &Client) -> anyhow::Result<Self> {
        Ok(Watched { server: client.shown().to_owned(), stats: client.stats().await?, away: None })
    }

    /// What came of looking again.
    fn update(&mut self, seen: anyhow::Result<Stats>) {
        match seen {
            Ok(stats) => {
                self.stats = stats;
                self.away = None;
            }
            Err(error) => self.away = Some(format!("{error:#}")),
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or_else(|| "expected a number of seconds from 0.1 to 3600".to_owned())?;
    Ok(Duration::from_secs_f64(seconds))
}
