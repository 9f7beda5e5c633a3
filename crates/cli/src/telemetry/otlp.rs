//! Traces to an OpenTelemetry collector, by OTLP over gRPC.

use std::time::Duration;

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::level_filters::LevelFilter;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

/// A collector that does not answer by then misses the spans.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The way to a collector.
#[derive(Debug)]
pub(super) struct Traces(SdkTracerProvider);

impl Traces {
    /// Collects spans, and sends them in batches in the background; a collector that is away costs the spans and
    /// nothing else.
    pub(super) fn start(url: &str, share: f64) -> Result<Self, ExporterBuildError> {
        let exporter =
            SpanExporter::builder().with_tonic().with_endpoint(url).with_timeout(TIMEOUT).build()?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(share)));
        let about = Resource::builder().with_service_name("tollgate").build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(about)
            .build();
        Ok(Traces(provider))
    }

    pub(super) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let only_requests = Targets::new().with_target("tollgate::request", LevelFilter::INFO);
        tracing_opentelemetry::layer().with_tracer(self.0.tracer("tollgate")).with_filter(only_requests)
    }

    /// Sends what is left. On a thread of its own: the last batch is sent by tasks of this runtime.
    pub(super) async fn close(self) {
        let closed = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(TIMEOUT)).await;
        if !matches!(closed, Ok(Ok(()))) {
            tracing::warn!("the last traces did not reach the collector");
        }
    }
}

/// Makes a span a part of the trace that `traceparent` names.
pub(super) fn adopt(span: &Span, headers: &HeaderMap) {
    struct Carrier<'a>(&'a HeaderMap);

    impl Extractor for Carrier<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.get(key).and_then(|value| value.to_str().ok())
        }

        fn keys(&self) -> Vec<&str> {
            self.0.keys().map(http::HeaderName::as_str).collect()
        }
    }

    let context = TraceContextPropagator::new().extract(&Carrier(headers));
    // It fails where the span is not recorded, which is as well.
    let _ = span.set_parent(context);
}
