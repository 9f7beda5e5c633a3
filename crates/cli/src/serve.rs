//! `tollgate serve`: decisions over HTTP.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tollgate::{AnyStore, LeasedStore, Limiter};
use tollgate_server::{App, Endpoint, Observe, Server};

use crate::banner::{Banner, is_starter_set, reachable};
use crate::config::{Config, IdentifyArgs};
use crate::data::DataArgs;
use crate::database::{DatabaseArgs, ServerDatabase};
use crate::listen::ListenArgs;
use crate::local::{Claim, LocalServer};
use crate::source::SourceArgs;
use crate::store::{FleetArgs, MemoryArgs, StoreArgs};
use crate::telemetry::TelemetryArgs;
use crate::terminal::Terminal;
use crate::words::count;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    rules: SourceArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    listen: ListenArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    _identify: IdentifyArgs,
    /// How many decisions to remember, for whoever asks why; 0 remembers none
    #[arg(long, value_name = "N", env = "TOLLGATE_DECISIONS", default_value = "10000",
          value_parser = decisions)]
    decisions: usize,
    /// Serve the dashboard from this folder instead of the binary, while you edit it
    #[arg(long, value_name = "DIR", env = "TOLLGATE_WEB_DIR")]
    web_dir: Option<PathBuf>,
    /// Everything above as a file [default: tollgate.toml in the working directory, if it is there]
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CONFIG")]
    config: Option<PathBuf>,
}

/// More would be a database.
const MOST_DECISIONS: usize = 1_000_000;

fn decisions(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= MOST_DECISIONS);
    number.ok_or_else(|| format!("expected a whole number from 0 to {MOST_DECISIONS}"))
}

/// Serves until it is told to stop.
///
/// # Errors
///
/// Rules, store or listeners are not as configured.
pub(crate) fn run(config: Config, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime's threads")?;
    runtime.block_on(async {
        // Signals are caught before anybody is told that the server is up, and while it waits for rules and store.
        let mut signals = Signals::catch().context("cannot catch signals")?;
        let telemetry = config.serve.telemetry.start(terminal)?;
        let started = tokio::select! {
            biased;
            started = start(config, telemetry.observe.clone(), terminal) => Some(started?),
            () = signals.next() => None,
        };
        match started {
            Some(started) => started.run(signals.stop()).await,
            None => tracing::info!("told to stop before it was up"),
        }
        telemetry.close().await;
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A server that listens, and what it needs closed in the end.
struct Started {
    server: Server,
    limiter: Arc<Limiter>,
    database: ServerDatabase,
    /// Given up last: until then, no other server may open the data directory.
    _claim: Claim,
}

impl Started {
    async fn run(self, stop: impl Future<Output = ()>) {
        self.server.run(stop).await;
        self.limiter.store().close().await;
        self.database.close().await;
    }
}

/// Opens rules, store and listeners, and says so.
async fn start(config: Config, observe: Observe, terminal: &mut Terminal) -> anyhow::Result<Started> {
    let args = &config.serve;
    let listen = args.listen.config(observe)?;
    let data = &args.data;
    let cannot = || format!("cannot make the data directory {}; name another with --data-dir", data.shown());
    let folder = data.folder().with_context(cannot)?;
    let claim = Claim::new(&folder).await?;
    let source = args.rules.open(args.database.url()?, &args.data).await?;
    let number = u64::try_from(source.rules.rules().len()).unwrap_or(u64::MAX);
    let rules = format!("{}, {}", source.shown, count(number, "rule"));
    let store = match args.store.open(&args.memory).await? {
        // Rules may want their decisions made here, on tokens borrowed there.
        AnyStore::Redis(redis) => LeasedStore::bounded(redis, args.fleet.nodes, args.memory.bounds()).into(),
        store => store,
    };
    let database = args.database.open(source.database(), &args.data, &source.rules).await?;
    let has_example = is_starter_set(&source.rules);
    let limiter = Limiter::new(source.rules, store).with_nodes(args.fleet.nodes);
    let limiter = limiter.with_local_bounds(args.memory.bounds());
    let limiter = Arc::new(database.equip(limiter));
    let mut app = App::new(Arc::clone(&limiter), source.home)
        .with_violations(database.log().clone())
        .with_access(args.listen.access(&folder)?)
        .with_store_shown(&args.store.shown())
        .with_decisions(args.decisions)
        .with_identify(config.identify)
        .with_headers(config.headers);
    if let Some(folder) = &args.web_dir {
        app = app.with_web_dir(folder.clone());
    }
    if let Some(follower) = source.follower {
        app = app.with_rules_status(follower.status());
        tokio::spawn(follower.run(Arc::clone(&limiter)));
    }
    let server = Server::bind(&listen, app.clone()).await?;
    let scheme = if listen.tls.is_some() { "https" } else { "http" };
    let url = |listener| format!("{scheme}://{}", reachable(listener));
    let admin = match server.admin() {
        Endpoint::Tcp(address) => url(*address),
        socket => socket.to_string(),
    };
    let local = LocalServer { pid: std::process::id(), http: url(server.http()), admin };
    claim.publish(&local)?;
    if let Some(path) = args.listen.ready_file() {
        server.write_ready_file(path)?; // last, when everything else is ready
    }
    let banner = Banner {
        http: &local.http,
        admin: &local.admin,
        login: app.own_login_path(),
        data,
        metrics: server.metrics(),
        credentials: args.listen.credentials(app.checks_need_a_token()),
        rules,
        store: args.store.shown(),
        config: config.file.as_deref(),
        has_example,
    };
    if let Err(error) = banner.print(terminal) {
        tracing::debug!(%error, "cannot print the first screen"); // which does not keep it from serving
    }
    Ok(Started { server, limiter, database, _claim: claim })
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
