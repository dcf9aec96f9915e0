//! Quotas during concurrent writes, rejections, deletions and recounts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_apiserver::ApiServer;
use berth_store::{CommitError, CommitFuture, MemoryStore, Store, Write};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Server, config_on};
use crate::intercepted_store::{CommitInterceptor, InterceptedStore};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
/// Number of requests of each client.
const STEPS: usize = 12;

/// Delays writes by a random time, and rejects some writes of ConfigMaps.
struct UnreliableCommits(Mutex<SmallRng>);

impl CommitInterceptor for UnreliableCommits {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        let (Write::Create { key, .. } | Write::Update { key, .. } | Write::Delete { key, .. }) = &write;
        let (pause, rejects) = {
            let mut random = self.0.lock().unwrap();
            (random.random_range(0..5), random.random_bool(0.2))
        };
        let answer: CommitFuture = if rejects && key.starts_with("/core/configmaps/default/") {
            Box::pin(async { Err(CommitError::Busy { reason: "the test rejects this write" }) })
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

/// A client that creates and deletes ConfigMaps, whose names other clients use too, and sometimes
/// changes, deletes or creates a quota.
async fn run_client(server: Arc<Server>, mut random: SmallRng) {
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

/// Compares the usage in the status of each quota with the existing objects.
async fn compare(server: &Server, seed: u64) {
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
async fn quota_usage_is_exact_after_concurrent_changes() {
    let cases = std::env::var("BERTH_PROPERTY_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(30);
    for seed in 0..cases {
        let store = InterceptedStore::new(UnreliableCommits(Mutex::new(SmallRng::seed_from_u64(seed))));
        let server = Arc::new(Server { api: ApiServer::new(config_on(store)) });
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..5 {
            tasks.spawn(run_client(server.clone(), SmallRng::seed_from_u64(seed * 5 + number)));
        }
        let first = server.clone();
        tasks.spawn(async move {
            tokio::time::sleep(Duration::from_millis(seed % 7)).await;
            let hard = json!({"count/configmaps": "5", "resourcequotas": "3"});
            drop(first.post(QUOTAS, quota("a", hard)).await);
        });
        // Requests that wait for each other would never complete.
        let all = async { while tasks.join_next().await.transpose().expect("no panic").is_some() {} };
        tokio::time::timeout(Duration::from_secs(600), all).await.expect("no deadlock");
        compare(&server, seed).await;
    }
}
