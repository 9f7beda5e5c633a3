//! A Cluster that has lost a shard, under rules of which some are leased: the others go on to limit.

use std::sync::Arc;

use tollgate::{Descriptor, LeasedStore, Limiter, Status};
use tollgate_tests::fault_proxy::Mode;
use tollgate_tests::poll;
use tollgate_tests::redis_cluster::{RedisCluster, Replicas};

use crate::outages::PATIENT;
use crate::{node_with, warm_with};

const FEW: u64 = 5;

/// The order of the tiers: exact, leased, exact, and one more beside the leased one.
const TIERS: &str = "rules:
  - { name: user, key: 'user:{user_id}', limit: 1/d burst 5, on_store_failure: open }
  - { name: pool, key: 'pool:{pool}', limit: 100000 every 1d, consistency: leased, on_store_failure: open }
  - { name: device, key: 'device:{device}', limit: 1/d burst 1000, on_store_failure: open }
  - { name: pool-day, key: 'pool:{pool}', limit: 1/d burst 104000, on_store_failure: open }";

struct Caller {
    user: String,
    pool: String,
    device: String,
}

impl Caller {
    fn request(&self) -> Descriptor<'_> {
        Descriptor::new().with("user_id", &*self.user).with("pool", &*self.pool).with("device", &*self.device)
    }

    /// One whose pool is in the first shard and nothing else is.
    async fn find(node: &Limiter<LeasedStore>, cluster: &RedisCluster, name: &str) -> Self {
        let numbered = |what: &str, number: u32| format!("{name} {what} {number}");
        let mut caller = Caller { user: String::new(), pool: String::new(), device: String::new() };
        for (place, what) in (0..).zip(["user", "pool", "device"]) {
            for number in 0.. {
                let field = match place {
                    0 => &mut caller.user,
                    1 => &mut caller.pool,
                    _ => &mut caller.device,
                };
                *field = numbered(what, number);
                let (rules, request) = (node.rules(), caller.request());
                let key = node.store().redis().key(rules.rule(place), &request);
                if (cluster.primary_with(&key).await == 0) == (what == "pool") {
                    break;
                }
            }
        }
        caller
    }
}

async fn start() -> (RedisCluster, Arc<Limiter<LeasedStore>>) {
    let cluster = RedisCluster::start(Replicas::None).await;
    let node = node_with(&cluster.url(), TIERS, PATIENT).await;
    (cluster, node)
}

/// Asks many times; what passed, each time by the word of all healthy tiers.
async fn admitted(node: &Limiter<LeasedStore>, caller: &Caller) -> u64 {
    let mut admitted = 0;
    for _ in 0..40 {
        let answer = node.check(&caller.request()).await;
        match answer.status() {
            Status::Allowed => admitted += 1,
            outcome => assert_eq!((outcome, answer.rule()), (Status::Refused, Some("user"))),
        }
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_shard_opens_its_own_rules_and_no_exact_rule_of_another() {
    let (cluster, node) = start().await;
    let (cold, hot) =
        (Caller::find(&node, &cluster, "cold").await, Caller::find(&node, &cluster, "hot").await);
    let crowd = Descriptor::new().with("pool", &*hot.pool);
    warm_with(&node, &crowd).await;
    cluster.nodes[0].proxy.set(Mode::Refuse).await;
    poll::until("what is leased to be spent", async || {
        let answer = node.check(&crowd).await;
        answer.degraded().is_some().then_some(())
    })
    .await;
    // A hot key's lease cannot be renewed; a cold one's charge finds nobody.
    for caller in [&hot, &cold] {
        assert_eq!(admitted(&node, caller).await, FEW, "the user's tier lives elsewhere, and still counts");
        let answer = node.request(&caller.request()).peek().await;
        let device = answer.tiers().iter().find(|tier| tier.verdict().limit == 1_000).unwrap();
        assert_eq!(device.verdict().remaining, 1_000 - FEW, "and so does the one behind the lost tier");
    }
}
