//! What `serve` tells of itself while it runs: lines on standard error, and traces to a collector.

mod otlp;

use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueEnum;
use tollgate_server::Observe;
use tracing::Subscriber;
use tracing_subscriber::layer::{Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt};

use crate::terminal::Terminal;
use otlp::Traces;

/// The flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Logs and traces")]
pub(crate) struct TelemetryArgs {
    /// What to log: a level, or levels for parts of the program as in `info,tollgate=debug`
    #[arg(long, value_name = "FILTER", env = "TOLLGATE_LOG", default_value = "info",
          value_parser = filter)]
    log: String,
    /// How a line of the log looks
    #[arg(long, value_name = "FORMAT", env = "TOLLGATE_LOG_FORMAT", value_enum, default_value_t)]
    log_format: Format,
    /// Log this share of requests, from 0 to 1
    #[arg(long, value_name = "SHARE", env = "TOLLGATE_LOG_REQUESTS", default_value = "0", value_parser = share)]
    log_requests: f64,
    /// Send traces to the OpenTelemetry collector there, by OTLP over gRPC: http://127.0.0.1:4317
    #[arg(long, value_name = "URL", env = "TOLLGATE_OTLP")]
    otlp: Option<String>,
    /// Trace this share of requests that are not part of a trace already, from 0 to 1
    #[arg(long, value_name = "SHARE", env = "TOLLGATE_OTLP_SAMPLE", default_value = "1", value_parser = share)]
    otlp_sample: f64,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Format {
    /// For people
    #[default]
    Pretty,
    /// One JSON object on each line
    Json,
}

/// What is running for as long as the server does.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) observe: Observe,
    traces: Option<Traces>,
}

impl TelemetryArgs {
    /// Starts it. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// The collector's address makes no sense.
    pub(crate) fn start(&self, terminal: &Terminal) -> anyhow::Result<Telemetry> {
        let traces = match &self.otlp {
            Some(url) => Some(Traces::start(url, self.otlp_sample).context("--otlp cannot be used")?),
            None => None,
        };
        let layer = traces.as_ref().map(Traces::layer);
        tracing_subscriber::registry().with(self.lines(terminal)).with(layer).init();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share, rounded")]
        let mut observe = Observe::nothing().with_log((self.log_requests * 1e6).round() as u32);
        if traces.is_some() {
            observe = observe.with_traces(Arc::new(otlp::adopt));
        }
        Ok(Telemetry { observe, traces })
    }

    fn lines<S>(&self, terminal: &Terminal) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let filter = EnvFilter::new(&self.log);
        let lines = fmt::layer().with_writer(std::io::stderr);
        match self.log_format {
            Format::Pretty => lines.with_ansi(terminal.colours_remarks()).with_filter(filter).boxed(),
            Format::Json => lines.json().flatten_event(true).with_filter(filter).boxed(),
        }
    }
}

impl Telemetry {
    /// Sends what is left.
    pub(crate) async fn close(self) {
        if let Some(traces) = self.traces {
            traces.close().await;
        }
    }
}

fn filter(text: &str) -> Result<String, String> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; write a level such as `info`, or `info,tollgate=debug`")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
