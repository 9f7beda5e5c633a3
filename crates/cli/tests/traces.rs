//! Traces, at a collector that speaks OTLP over gRPC.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod support;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use support::{Served, body, status};
use tollgate::Clock;
use tollgate_tests::signals::Signal;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

const ONE: &str = r#"{"attributes": {"user_id": "42", "plan": "free"}}"#;
/// Of the trace 4bf9…, the span 00f0…, sampled.
const PARENT: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";

/// Everything that was sent to it.
#[derive(Debug, Clone, Default)]
struct Collector(Arc<Mutex<Vec<Span>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let of_services = request.into_inner().resource_spans;
        let scopes = of_services.into_iter().flat_map(|service| service.scope_spans);
        self.0.lock().unwrap().extend(scopes.flat_map(|scope| scope.spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Listens on a free port for as long as the test runs.
    fn start() -> (Self, String) {
        let collector = Collector::default();
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let url = format!("http://{}", incoming.local_addr().unwrap());
        let service = TraceServiceServer::new(collector.clone());
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        (collector, url)
    }

    fn spans(&self) -> Vec<Span> {
        self.0.lock().unwrap().clone()
    }
}

fn attribute(span: &Span, name: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_within_a_trace_arrives_as_a_child_that_knows_its_decision() {
    let (collector, url) = Collector::start();
    let served = Served::start(&["--otlp", &url]);
    let answer = served.send("POST", "/v1/check", PARENT, ONE);
    assert_eq!(status(&answer), 200, "{answer}");
    let decision: serde_json::Value = serde_json::from_str(&body(&answer)).unwrap();
    served.stop(); // which sends what is left
    let [span] = &collector.spans()[..] else { panic!("one span: {:?}", collector.spans()) };
    assert_eq!(span.name, "POST /v1/check");
    assert_eq!(span.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(span.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    assert_eq!(attribute(span, "tollgate.outcome").as_deref(), Some("allowed"));
    assert_eq!(attribute(span, "tollgate.decision_id").as_deref(), decision["decision_id"].as_str());
    assert_eq!(attribute(span, "http.response.status_code").as_deref(), Some("200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_none_sends_only_what_is_part_of_a_trace_already() {
    let (collector, url) = Collector::start();
    let served = Served::start(&["--otlp", &url, "--otlp-sample", "0"]);
    for _ in 0..20 {
        assert_eq!(status(&served.post("/v1/check", ONE)), 200);
    }
    let not_sampled = PARENT.replace("-01\r", "-00\r");
    assert_eq!(status(&served.send("POST", "/v1/check", &not_sampled, ONE)), 200);
    assert_eq!(status(&served.send("POST", "/v1/check", PARENT, ONE)), 200);
    served.stop();
    assert_eq!(collector.spans().len(), 1, "{:?}", collector.spans());
}

/// A collector that accepts connections and says nothing, and one that is not there.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_costs_no_answer_and_no_stop() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for url in [format!("http://{}", silent.local_addr().unwrap()), "http://127.0.0.1:1".to_owned()] {
        let served = Served::start(&["--otlp", &url]);
        let clock = Clock::system();
        let seconds = |since: u64| (clock.stopwatch_nanos() - since) / 1_000_000_000;
        let begun = clock.stopwatch_nanos();
        let mut connection = served.keep_alive();
        for _ in 0..200 {
            connection.ask("POST", "/v1/check", ONE).unwrap();
        }
        drop(connection);
        assert!(seconds(begun) < 10, "{url}: answers wait for the collector");
        let told = clock.stopwatch_nanos();
        Signal::Terminate.send(served.pid());
        assert_eq!(served.wait(), Some(0), "{url}");
        assert!(seconds(told) < 10, "{url}: the stop waits for the collector");
    }
}
