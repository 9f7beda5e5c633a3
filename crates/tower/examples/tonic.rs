//! Limits around a gRPC server: `cargo run -p tollgate-tower --example tonic`.
//!
//! The layer knows nothing of gRPC services: the one here is written by hand so that the example needs no code
//! generator. A caller over the limit gets `RESOURCE_EXHAUSTED` with the wait in `google.rpc.RetryInfo`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::convert::Infallible;
use std::env;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::net::TcpListener;
use tollgate::{Limiter, MemoryStore, rules};
use tollgate_tower::{Identify, TollgateLayer};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

const RULES: &str = r#"
rules:
  - { name: per-tenant, key: "tenant:{tenant}", limit: 10/min burst 3 }
  - { name: per-address, key: "ip:{ip}:{endpoint}", limit: 20/s burst 100 }
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::new(rules::parse("rules.yaml", RULES)?, MemoryStore::new());
    let identify = Identify::new()
        .peer(|request| Some(request.extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()))
        .header("x-tenant", "tenant")?;

    let listener = TcpListener::bind(env::args().nth(1).as_deref().unwrap_or("127.0.0.1:50051")).await?;
    println!("http://{}", listener.local_addr()?);
    Server::builder()
        .layer(TollgateLayer::new(limiter).identify(identify))
        .add_service(Greeter)
        .serve_with_incoming(TcpIncoming::from(listener))
        .await?;
    Ok(())
}

/// `/demo.Greeter/Hello`: a `google.protobuf.StringValue` in, one out.
#[derive(Clone)]
pub(crate) struct Greeter;

impl NamedService for Greeter {
    const NAME: &'static str = "demo.Greeter";
}

impl Service<http::Request<Body>> for Greeter {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let codec = ProstCodec::<String, String>::default();
        Box::pin(async move { Ok(Grpc::new(codec).unary(Hello, request).await) })
    }
}

struct Hello;

impl Service<Request<String>> for Hello {
    type Response = Response<String>;
    type Error = Status;
    type Future = Ready<Result<Response<String>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Request<String>) -> Self::Future {
        ready(Ok(Response::new(format!("hello {}", name.into_inner()))))
    }
}
