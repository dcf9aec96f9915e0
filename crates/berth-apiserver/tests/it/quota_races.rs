//! Quotas while writes, refusals, deletions and counts come between each other in every order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_apiserver::ApiServer;
use berth_store::{CommitError, CommitFuture, MemoryStore, Store, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Server, config_on};
use crate::meddled::{Meddled, Meddler};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
/// Somebody does this many things, one after the other.
const STEPS: usize = 12;

/// A store whose answers take their time, and which refuses some writes of ConfigMaps.
struct Moody(Mutex<SmallRng>);

impl Meddler for Moody {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        let (Write::Create { key, .. } | Write::Update { key, .. } | Write::Delete { key, .. }) = &write;
        let (pause, refuses) = {
            let mut random = self.0.lock().unwrap();
            (random.random_range(0..5), random.random_bool(0.2))
        };
        let answer: CommitFuture = if refuses && key.starts_with("/core/configmaps/default/") {
            Box::pin(async { Err(CommitError::Busy { reason: "the store is in a mood" }) })
        } else {
            store.commit_for(user, write)
        };
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            answer.await
        })
    }
}

fn quota(name: &str, hard: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"hard": hard}})
}

/// One who makes and deletes maps, whose names others use too; some have a quota changed, removed, made.
async fn busy(server: Arc<Server>, mut random: SmallRng) {
    for _ in 0..STEPS {
        let map = format!("m{}", random.random_range(0..6));
        let path = format!("{MAPS}/{map}");
        match random.random_range(0..10) {
            0..5 => drop(server.post(MAPS, json!({"metadata": {"name": map}})).await),
            5..7 => drop(server.delete(&path, Value::Null).await),
            7 => {
                let hard = json!({"count/configmaps": random.random_range(3..9).to_string(), "resourcequotas": "3"});
                let patch = json!({"spec": {"hard": hard}});
                drop(server.patch(&format!("{QUOTAS}/a"), "merge-patch", patch).await);
            }
            8 => {
                let hard =
                    if random.random_bool(0.5) { json!({"pods": "1"}) } else { json!({"count/configmaps": "7"}) };
                drop(server.post(QUOTAS, quota("b", hard)).await);
            }
            _ => drop(server.delete(&format!("{QUOTAS}/b"), Value::Null).await),
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..4))).await;
    }
}

/// What a quota says against what there is.
async fn compare(server: &Server, seed: u64) {
    // The configuration of the cluster is not among those the quota began with.
    let maps = server.get(MAPS).await.expect(200)["items"].as_array().map_or(0, Vec::len);
    let quotas = server.get(QUOTAS).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
    for quota in &quotas {
        let used = &quota["status"]["used"];
        for (name, amount) in [("count/configmaps", maps), ("resourcequotas", quotas.len()), ("pods", 0)] {
            if !quota["spec"]["hard"][name].is_null() {
                assert_eq!(used[name], amount.to_string(), "{name} of {}, seed {seed}", quota["metadata"]["name"]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_quotas_say_is_what_there_is_whatever_comes_between() {
    let cases = std::env::var("BERTH_PROPERTY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(30);
    for seed in 0..cases {
        let store = Meddled::by(Moody(Mutex::new(SmallRng::seed_from_u64(seed))));
        let server = Arc::new(Server { api: ApiServer::new(config_on(store)) });
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..5 {
            tasks.spawn(busy(server.clone(), SmallRng::seed_from_u64(seed * 5 + number)));
        }
        let first = server.clone();
        tasks.spawn(async move {
            tokio::time::sleep(Duration::from_millis(seed % 7)).await;
            let hard = json!({"count/configmaps": "5", "resourcequotas": "3"});
            drop(first.post(QUOTAS, quota("a", hard)).await);
        });
        // Requests that wait for each other would wait for ever.
        let all = async { while tasks.join_next().await.transpose().expect("no panic").is_some() {} };
        tokio::time::timeout(Duration::from_secs(600), all).await.expect("nobody waits for what never comes");
        compare(&server, seed).await;
    }
}
