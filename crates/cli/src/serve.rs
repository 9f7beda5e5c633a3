//! `tollgate serve`: decisions over HTTP.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate::{AnyStore, LeasedStore, Limiter, RuleSet};
use tollgate_server::{App, Config, Server};
use tracing_subscriber::EnvFilter;

use crate::beside::BesideArgs;
use crate::source::SourceArgs;
use crate::store::{FleetArgs, StoreArgs};
use crate::terminal::{Terminal, Tone};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rules: SourceArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    beside: BesideArgs,
    /// Where the HTTP API listens; port 0 takes a free one
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_HTTP", default_value = "127.0.0.1:8080")]
    http: SocketAddr,
    /// Write the addresses here, as JSON, when every listener is up
    #[arg(long, value_name = "FILE", env = "TOLLGATE_READY_FILE")]
    ready_file: Option<PathBuf>,
}

impl Args {
    /// What `tollgate` without arguments means: the defaults and the environment.
    pub(crate) fn from_environment() -> Self {
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            args: Args,
        }
        Alone::parse_from(["tollgate serve"]).args
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let filter = EnvFilter::try_from_env("TOLLGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(terminal.colours_remarks())
        .init();
    let config = Config { http: args.http, ready_file: args.ready_file.clone() };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime's threads")?;
    runtime.block_on(async {
        // Signals are caught before anybody is told that the server is up.
        let signals = Signals::catch().context("cannot catch signals")?;
        let source = args.rules.open().await?;
        let hint = Hint::of(&source.rules);
        let shown = format!("{}, {} rules", source.shown, source.rules.rules().len());
        let store = match args.store.open().await? {
            // Rules may want their decisions made here, on tokens borrowed there.
            AnyStore::Redis(redis) => LeasedStore::among(redis, args.fleet.nodes).into(),
            store => store,
        };
        let beside = args.beside.open(source.database(), &source.rules)?;
        let limiter = Limiter::new(source.rules, store).with_nodes(args.fleet.nodes);
        let limiter = Arc::new(match &beside {
            Some(beside) => beside.equip(limiter),
            None => limiter,
        });
        let mut app = App::new(Arc::clone(&limiter), source.home);
        if let Some(beside) = &beside {
            app = app.with_violations(beside.log().clone());
        }
        if let Some(follower) = source.follower {
            tokio::spawn(follower.run(Arc::clone(&limiter)));
        }
        let server = Server::bind(&config, app).await?;
        if let Err(error) = greet(&shown, &args.store.shown(), hint, server.http(), terminal) {
            tracing::debug!(%error, "nobody reads the first screen"); // which is no reason not to serve
        }
        server.run(signals.stop()).await;
        limiter.store().close().await;
        if let Some(beside) = beside {
            beside.close().await;
        }
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a newcomer may try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hint {
    /// The starter set's free plan.
    FreePlan,
    None,
}

impl Hint {
    fn of(rules: &RuleSet) -> Self {
        let free = rules.rules().iter().find(|rule| rule.label() == "per-user-free");
        let as_shipped =
            free.and_then(|rule| rule.limit()).is_some_and(|limit| limit.to_string() == "10/s burst 50");
        if as_shipped { Hint::FreePlan } else { Hint::None }
    }
}

/// The first screen: what is listening, which rules, what to try.
fn greet(
    rules: &str,
    store: &str,
    hint: Hint,
    http: SocketAddr,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let title = terminal.paint(Tone::Strong, concat!("tollgate ", env!("CARGO_PKG_VERSION")));
    let out = terminal.out();
    writeln!(out, "{title}")?;
    writeln!(out, "  listening  http://{http}")?;
    writeln!(out, "  rules      {rules}")?;
    writeln!(out, "  store      {store}")?;
    if hint == Hint::FreePlan {
        writeln!(
            out,
            "\nA free user may spend 50 tokens at once. Ask for 20, three times; the third is a 429:\n"
        )?;
        writeln!(out, "  for i in 1 2 3; do curl -i http://{http}/v1/check \\")?;
        writeln!(
            out,
            "    -d '{{\"attributes\": {{\"user_id\": \"42\", \"plan\": \"free\"}}, \"cost\": 20}}'; done"
        )?;
    }
    out.flush()?;
    Ok(())
}

/// What tells the server to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Done at the first signal. A second one does not wait for what is in flight.
    async fn stop(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(130);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
