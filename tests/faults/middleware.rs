//! The tower layer over a real Redis: two nodes, one limit, and what callers are told when it dies.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tollgate::{Limiter, RedisStore, rules};
use tollgate_tests::poll;
use tollgate_tests::redis_server::RedisServer;
use tollgate_tower::{Identify, TollgateLayer};
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::node::UNHURRIED;

const RULES: &str = r#"
rules:
  - { name: open, key: "user:{user_id}", limit: 2/h, when: { endpoint: /open } }
  - { name: closed, key: "user:{user_id}", limit: 2/h, on_store_failure: closed, when: { endpoint: /closed } }
  - { name: share, key: "user:{user_id}", limit: 2/h, on_store_failure: local, when: { endpoint: /share } }
"#;

/// One node of a fleet.
struct Front(TollgateLayer<RedisStore>);

impl Front {
    async fn over(redis: &RedisServer) -> Self {
        let store = RedisStore::builder(&redis.url()).deadline(UNHURRIED).connect().await.unwrap();
        store.ready().await.unwrap();
        let limiter = Limiter::new(rules::parse("rules.yaml", RULES).unwrap(), store);
        let identify = Identify::new().header("x-user", "user_id").unwrap();
        Front(TollgateLayer::new(Arc::new(limiter)).identify(identify))
    }

    async fn ask(&self, path: &str) -> (StatusCode, HeaderMap, String) {
        let service = self.0.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
        }));
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 4711));
        let request = Request::get(path).header("x-user", "42").extension(peer).body(()).unwrap();
        let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
    }

    async fn status(&self, path: &str) -> u16 {
        self.ask(path).await.0.as_u16()
    }
}

#[tokio::test]
async fn the_middleware_shares_limits_over_redis_and_each_rule_decides_when_it_is_gone() {
    let mut redis = RedisServer::start().await;
    let (one, other) = (Front::over(&redis).await, Front::over(&redis).await);
    for path in ["/open", "/closed", "/share"] {
        let (status, headers, body) = one.ask(path).await;
        assert_eq!(
            (status, &*body, &headers["x-ratelimit-remaining"]),
            (StatusCode::OK, "ok", &"1".parse().unwrap())
        );
        assert_eq!(other.ask(path).await.1["x-ratelimit-remaining"], "0", "nodes share the bucket");
        let (status, headers, problem) = one.ask(path).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(headers["retry-after"], "1800");
        assert!(problem.contains("quota-exceeded"), "{problem}");
    }
    redis.kill();
    poll::until("the middleware to notice", async || (one.status("/open").await == 200).then_some(())).await;
    let (_, headers, _) = one.ask("/open").await;
    assert_eq!(
        headers["x-ratelimit-remaining"], headers["x-ratelimit-limit"],
        "failing open, the limit is full"
    );
    assert_eq!(headers["ratelimit"], r#""open";r=2"#, "and has no `t`");
    let (status, headers, problem) = one.ask("/closed").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(headers["x-ratelimit-remaining"], "0");
    assert!(!headers.contains_key("x-ratelimit-reset"), "{headers:?}");
    assert!(problem.contains("temporary-reduced-capacity"), "{problem}");
    assert_eq!(
        [one.status("/share").await, one.status("/share").await, one.status("/share").await],
        [200, 200, 429]
    );
    redis.restart().await;
    poll::until("the numbers to come back", async || {
        (one.ask("/open").await.1["x-ratelimit-remaining"] != "2").then_some(())
    })
    .await;
}
