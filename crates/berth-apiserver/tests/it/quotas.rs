//! ResourceQuotas and LimitRanges.

use std::sync::{Arc, Mutex, OnceLock};

use berth_apiserver::{ApiServer, Converter};
use serde_json::{Value, json};

use crate::harness::{Server, config, server};

const PODS: &str = "/api/v1/namespaces/default/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

fn pod(name: &str, resources: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}})
}

async fn quota(server: &Server, name: &str, hard: Value) {
    server.post(QUOTAS, json!({"metadata": {"name": name}, "spec": {"hard": hard}})).await.expect(201);
}

async fn used(server: &Server, name: &str) -> Value {
    server.get(&format!("{QUOTAS}/{name}")).await.expect(200)["status"]["used"].clone()
}

#[tokio::test(start_paused = true)]
async fn creates_beyond_a_quota_are_rejected_and_deletions_release_quota() {
    let server = server();
    let one_cpu = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    server.post(PODS, pod("before", one_cpu.clone())).await.expect(201);
    quota(&server, "q", json!({"pods": "2", "requests.cpu": "3", "count/configmaps": "1"})).await;
    assert_eq!(used(&server, "q").await, json!({"pods": "1", "requests.cpu": "1", "count/configmaps": "0"}));

    let rejected = server.post(PODS, pod("silent", json!({}))).await.expect(403);
    let message = "pods \"silent\" is forbidden: failed quota: q: must specify requests.cpu for: c";
    assert_eq!(rejected["message"], message);
    let rejected = server.post(PODS, pod("big", json!({"limits": {"cpu": "2500m"}}))).await.expect(403);
    let message = "pods \"big\" is forbidden: exceeded quota: q, requested: requests.cpu=2500m, \
                   used: requests.cpu=1, limited: requests.cpu=3";
    assert_eq!(rejected["message"], message);
    // A dry run is checked but not charged.
    server.post(&format!("{PODS}?dryRun=All"), pod("second", one_cpu.clone())).await.expect(201);
    server.post(PODS, pod("second", one_cpu.clone())).await.expect(201);
    assert_eq!(used(&server, "q").await["requests.cpu"], "2");
    let rejected = server.post(PODS, pod("third", one_cpu.clone())).await.expect(403);
    assert!(rejected["message"].as_str().unwrap().contains("requested: pods=1, used: pods=2, limited: pods=2"));

    // A finished pod uses no quota.
    let status = json!({"status": {"phase": "Succeeded"}});
    server.patch(&format!("{PODS}/before/status"), "merge-patch", status).await.expect(200);
    assert_eq!(used(&server, "q").await["pods"], "1");
    server.post(PODS, pod("third", one_cpu)).await.expect(201);
    for name in ["before", "second", "third"] {
        server.delete(&format!("{PODS}/{name}?gracePeriodSeconds=0"), Value::Null).await.expect(200);
    }
    assert_eq!(used(&server, "q").await, json!({"pods": "0", "requests.cpu": "0", "count/configmaps": "0"}));

    let maps = "/api/v1/namespaces/default/configmaps";
    server.post(maps, json!({"metadata": {"name": "one"}})).await.expect(201);
    server.post(maps, json!({"metadata": {"name": "two"}})).await.expect(403);
    // After the limit is raised, the create is accepted. Other namespaces are not limited.
    let raise = json!({"spec": {"hard": {"count/configmaps": "2"}}});
    let raised = server.patch(&format!("{QUOTAS}/q"), "merge-patch", raise).await.expect(200);
    assert_eq!(raised["spec"]["hard"]["count/configmaps"], "2");
    server.post(maps, json!({"metadata": {"name": "two"}})).await.expect(201);
    assert_eq!(used(&server, "q").await["count/configmaps"], "2");
    server.post("/api/v1/namespaces/kube-public/configmaps", json!({"metadata": {"name": "x"}})).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn concurrent_creates_do_not_exceed_a_quota() {
    let server = server();
    quota(&server, "q", json!({"count/configmaps": "3"})).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let creates = (0..20).map(|n| server.post(maps, json!({"metadata": {"name": format!("m{n}")}})));
    let answers = futures::future::join_all(creates).await;
    assert_eq!(answers.iter().filter(|answer| answer.code == 201).count(), 3);
    assert_eq!(used(&server, "q").await["count/configmaps"], "3");
}

#[tokio::test(start_paused = true)]
async fn limit_ranges_set_defaults_and_enforce_limits() {
    let server = server();
    let ranges = "/api/v1/namespaces/default/limitranges";
    let limits = json!([
        {"type": "Container", "max": {"memory": "1Gi"}, "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "250m"},
         "maxLimitRequestRatio": {"cpu": "4"}},
        {"type": "Pod", "max": {"cpu": "2"}},
    ]);
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": limits}});
    let stored = server.post(ranges, range).await.expect(201);
    assert_eq!(stored["spec"]["limits"][0]["default"], json!({"cpu": "500m", "memory": "1Gi"}));
    assert_eq!(stored["spec"]["limits"][0]["defaultRequest"], json!({"cpu": "250m", "memory": "1Gi"}));

    let stored = server.post(PODS, pod("plain", json!({}))).await.expect(201);
    let resources = &stored["spec"]["containers"][0]["resources"];
    assert_eq!(resources["requests"], json!({"cpu": "250m", "memory": "1Gi"}));
    assert_eq!(resources["limits"], json!({"cpu": "500m", "memory": "1Gi"}));
    assert_eq!(
        stored["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu, memory request for container c; cpu, memory limit for container c"
    );
    let big = json!({"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": {"cpu": "3", "memory": "2Gi"}});
    let rejected = server.post(PODS, pod("big", big)).await.expect(403);
    let message = "pods \"big\" is forbidden: [maximum memory usage per Container is 1Gi, but limit is 2Gi, \
                   cpu max limit to request ratio per Container is 4, but provided ratio is 30.000000, \
                   maximum cpu usage per Pod is 2, but limit is 3]";
    assert_eq!(rejected["message"], message);
}

/// A converter that records the usage of a quota whenever it is called.
#[derive(Default)]
struct QuotaObserver {
    server: OnceLock<ApiServer>,
    used: Mutex<Vec<String>>,
}

impl Converter for QuotaObserver {
    fn convert(&self, mut object: Value, to_api_version: &str) -> Result<Value, String> {
        object["apiVersion"] = to_api_version.into();
        let quota = self.server.get().and_then(|server| server.objects().get("", "resourcequotas", "default", "q"));
        if let Some(quota) = quota {
            let used = quota["status"]["used"]["count/timers.example.com"].as_str().unwrap_or_default().to_owned();
            self.used.lock().unwrap().push(used);
        }
        Ok(object)
    }

    fn calls_webhook(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn recounts_do_not_wait_for_a_conversion_webhook() {
    let observer = Arc::new(QuotaObserver::default());
    let mut config = config();
    config.converters.insert(("example.com".to_owned(), "Timer".to_owned()), observer.clone());
    let server = Server { api: ApiServer::new(config) };
    assert!(observer.server.set(server.api.clone()).is_ok());
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let crd = json!({"metadata": {"name": "timers.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "timers", "kind": "Timer"}, "versions": [version("v1"), version("v2")]}});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await.expect(201);
    quota(&server, "q", json!({"count/timers.example.com": "5"})).await;
    let timers = "/apis/example.com/v2/namespaces/default/timers";
    server.post(timers, json!({"metadata": {"name": "t"}, "spec": {"a": 1}})).await.expect(201);
    let asked = observer.used.lock().unwrap().first().cloned();
    assert_eq!(asked.as_deref(), Some("0"), "the object is converted before it is charged");
    assert_eq!(used(&server, "q").await["count/timers.example.com"], "1");
    let changed = server.patch(&format!("{timers}/t"), "merge-patch", json!({"spec": {"a": 2}})).await.expect(200);
    assert_eq!(changed["spec"]["a"], 2);
    let stored = server.get("/apis/example.com/v1/namespaces/default/timers/t").await.expect(200);
    assert_eq!((&stored["apiVersion"], &stored["spec"]["a"]), (&json!("example.com/v1"), &json!(2)));
}
