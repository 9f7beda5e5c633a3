//! Real bytes to a real socket, and patience.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Longer than anything takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Gives up at some point.
pub(crate) async fn soon<T>(something: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, something).await.expect("it takes too long")
}

/// Waits for a state of things.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    soon(async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Sends a request, and leaves the answer to whoever reads it.
pub(crate) async fn begin(address: SocketAddr, line: &str, headers: &[(&str, &str)]) -> TcpStream {
    let mut stream = soon(TcpStream::connect(address)).await.unwrap();
    let mut head = format!("{line} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    soon(stream.write_all(format!("{head}\r\n").as_bytes())).await.unwrap();
    stream
}

/// The whole answer to a request.
pub(crate) async fn ask(address: SocketAddr, line: &str, headers: &[(&str, &str)]) -> String {
    let mut answer = Vec::new();
    soon(begin(address, line, headers).await.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// The status of an answer.
pub(crate) fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no status: {answer}"))
}

/// A connection that speaks gRPC.
pub(crate) async fn channel(address: SocketAddr) -> Channel {
    soon(Endpoint::from_shared(format!("http://{address}")).unwrap().connect()).await.unwrap()
}

/// `/demo.Greeter/Hello` for a tenant.
pub(crate) async fn hello(channel: &Channel, tenant: &str) -> Result<Response<String>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    soon(client.ready()).await.unwrap();
    let mut request = Request::new("you".to_owned());
    request.metadata_mut().insert("x-tenant", tenant.parse().unwrap());
    let path = http::uri::PathAndQuery::from_static("/demo.Greeter/Hello");
    soon(client.unary(request, path, ProstCodec::<String, String>::default())).await
}

/// `google.rpc.Status`, as its users decode it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// `google.rpc.RetryInfo`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub(crate) retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Delay {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// The wait that a status tells its client.
pub(crate) fn retry_delay(status: &Status) -> Option<Delay> {
    let decoded: RpcStatus = prost::Message::decode(status.details()).unwrap();
    assert_eq!((decoded.code, &*decoded.message), (status.code() as i32, status.message()));
    let any = decoded.details.first()?;
    assert_eq!(any.type_url, "type.googleapis.com/google.rpc.RetryInfo");
    let info: RetryInfo = prost::Message::decode(&*any.value).unwrap();
    info.retry_delay
}
