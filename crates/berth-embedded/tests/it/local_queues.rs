//! Admission fair sharing: local queues share a cluster queue by their past usage.

use std::time::Duration;

use berth_api::kueue::v1beta2::LocalQueue;
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use kube::Api;
use serde_json::{Value, json};

use crate::visibility::{create, job};

#[tokio::test(start_paused = true)]
async fn usage_of_a_local_queue_is_recorded_with_and_without_a_weight() {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let configuration = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "admissionFairSharing": {"usageHalfLifeTime": "10m", "usageSamplingInterval": "1m"}});
    let options = Options::in_memory(clock.clone(), 1, Some(json!({"nodePools": []})), Some(configuration));
    let embedded = Embedded::start(options).await.expect("the cluster starts");
    let client = embedded.admin_client();
    let kueue = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    create(&client, kueue("ResourceFlavor", "default", json!({}))).await;
    let quota = json!([{"coveredResources": ["cpu"], "flavors": [
        {"name": "default", "resources": [{"name": "cpu", "nominalQuota": 8}]}]}]);
    let scope = json!({"admissionMode": "UsageBasedAdmissionFairSharing"});
    let spec = json!({"namespaceSelector": {}, "resourceGroups": quota, "admissionScope": scope});
    create(&client, kueue("ClusterQueue", "cq", spec)).await;
    let queues = [
        ("plain", json!({"clusterQueue": "cq"})),
        ("weighted", json!({"clusterQueue": "cq", "fairSharing": {"weight": "1"}})),
    ];
    for (name, spec) in queues {
        let mut queue = kueue("LocalQueue", name, spec);
        queue["metadata"]["namespace"] = json!("default");
        create(&client, queue).await;
        create(&client, job(&format!("of-{name}"), name, "")).await;
    }
    clock.sleep(Duration::from_secs(35 * 60)).await;
    let api: Api<LocalQueue> = Api::namespaced(client, "default");
    for name in ["plain", "weighted"] {
        let queue = api.get(name).await.expect("the local queue exists");
        let sharing = queue.status.and_then(|status| status.fair_sharing).expect("usage is recorded");
        let used = sharing.admission_fair_sharing_status.expect("usage is recorded").consumed_resources;
        // After three and a half half-lives, the recorded usage is close to the core that the
        // queue holds.
        let cores = used["cpu"].0.trim_end_matches(char::is_alphabetic).parse::<f64>().expect("a number");
        let cores = match used["cpu"].0.chars().last() {
            Some('m') => cores / 1e3,
            Some('u') => cores / 1e6,
            Some('n') => cores / 1e9,
            _ => cores,
        };
        assert!((0.85..1.0).contains(&cores), "{name}: {used:?}");
    }
    embedded.stop().await;
}
