//! Pod Security levels of namespaces: pods are rejected, their creators get warnings, and
//! violations are audited.

use std::sync::{Arc, Mutex};

use berth_apiserver::admission::pod_security::PodSecurity;
use berth_apiserver::admission::pod_security::policy::{Level, Policy, Standard};
use berth_apiserver::audit::policy::Policy as AuditPolicy;
use berth_apiserver::audit::{Log, Sink};
use berth_apiserver::{ApiServer, UserInfo};
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, config, server};

const NAMESPACES: &str = "/api/v1/namespaces";

async fn namespace(server: &Server, name: &str, labels: Value) -> Answer {
    server.post(NAMESPACES, json!({"metadata": {"name": name, "labels": labels}})).await
}

fn pod(name: &str, more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "spec": spec})
}

fn hardened(name: &str) -> Value {
    let context = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"}});
    pod(name, json!({"containers": [{"name": "c", "image": "i", "securityContext": context}]}))
}

fn pods(namespace: &str) -> String {
    format!("{NAMESPACES}/{namespace}/pods")
}

const RESTRICTED_VIOLATIONS: &str = "allowPrivilegeEscalation != false (container \"c\" must set \
    securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
    securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
    securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
    securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";

#[tokio::test(start_paused = true)]
async fn pods_that_violate_the_enforced_level_are_rejected() {
    let server = server();
    namespace(&server, "open", json!({})).await.expect(201);
    namespace(&server, "base", json!({"pod-security.kubernetes.io/enforce": "baseline"})).await.expect(201);
    namespace(&server, "hard", json!({"pod-security.kubernetes.io/enforce": "restricted"})).await.expect(201);
    let host = json!({"hostNetwork": true, "hostPID": true, "volumes": [{"name": "h", "hostPath": {"path": "/"}}]});
    let accepted = server.post(&pods("open"), pod("p", host.clone())).await;
    assert!(accepted.warnings.is_empty());
    accepted.expect(201);
    let rejected = server.post(&pods("base"), pod("p", host)).await.expect(403);
    assert_eq!(
        rejected["message"],
        "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true, \
         hostPID=true), hostPath volumes (volume \"h\")"
    );
    server.post(&pods("base"), pod("plain", json!({}))).await.expect(201);
    let rejected = server.post(&pods("hard"), pod("plain", json!({}))).await.expect(403);
    let message =
        format!("pods \"plain\" is forbidden: violates PodSecurity \"restricted:latest\": {RESTRICTED_VIOLATIONS}");
    assert_eq!(rejected["message"], message);
    server.post(&pods("hard"), hardened("p")).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn versions_choose_the_checks() {
    let server = server();
    let labels = |version: &str| json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": version});
    namespace(&server, "old", labels("v1.7")).await.expect(201);
    let rejected = server.post(&pods("old"), pod("p", json!({}))).await.expect(403);
    assert_eq!(
        rejected["message"],
        "pods \"p\" is forbidden: violates PodSecurity \"restricted:v1.7\": runAsNonRoot != true (pod or container \
         \"c\" must set securityContext.runAsNonRoot=true)"
    );
}

#[tokio::test(start_paused = true)]
async fn templates_cause_warnings_and_are_not_rejected() {
    let server = server();
    namespace(&server, "hard", json!({"pod-security.kubernetes.io/enforce": "restricted"})).await.expect(201);
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": template}});
    let created = server.post("/apis/batch/v1/namespaces/hard/jobs", job.clone()).await;
    let warning = format!("would violate PodSecurity \"restricted:latest\": {RESTRICTED_VIOLATIONS}");
    let shown = |warning: &str| format!("299 - \"{}\"", warning.replace('"', "\\\""));
    assert_eq!(created.warnings, [shown(&warning)]);
    created.expect(201);
    let cron = json!({"metadata": {"name": "c"}, "spec": {"schedule": "@daily", "jobTemplate": {"spec": job["spec"]}}});
    let created = server.post("/apis/batch/v1/namespaces/hard/cronjobs", cron).await;
    assert_eq!(created.warnings, [shown(&warning)]);
    namespace(&server, "warned", json!({"pod-security.kubernetes.io/warn": "baseline"})).await.expect(201);
    let created = server.post(&pods("warned"), pod("p", json!({"hostIPC": true}))).await;
    assert_eq!(
        created.warnings,
        [shown("would violate PodSecurity \"baseline:latest\": host namespaces (hostIPC=true)")]
    );
    created.expect(201);
}

#[tokio::test(start_paused = true)]
async fn invalid_labels_are_rejected_unless_they_stay() {
    let server = server();
    let invalid =
        json!({"pod-security.kubernetes.io/enforce": "base", "pod-security.kubernetes.io/warn-version": "1.2"});
    let rejected = namespace(&server, "n", invalid).await.expect(422);
    assert_eq!(
        rejected["message"],
        "Namespace \"n\" is invalid: [metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"base\": \
         must be one of privileged, baseline, restricted, \
         metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"1.2\": must be \"latest\" or \
         \"v1.x\"]"
    );
    namespace(&server, "n", json!({})).await.expect(201);
    let patch = json!({"metadata": {"labels": {"pod-security.kubernetes.io/audit": "x"}}});
    server.patch(&format!("{NAMESPACES}/n"), "merge-patch", patch).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn raising_the_enforced_level_warns_about_pods_that_violate_it() {
    let server = server();
    namespace(&server, "n", json!({})).await.expect(201);
    for name in ["b", "a", "c"] {
        server.post(&pods("n"), pod(name, json!({"hostPID": true}))).await.expect(201);
    }
    server.post(&pods("n"), hardened("good")).await.expect(201);
    let enforce = async |level: Option<&str>| {
        let patch = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
        let changed = server.patch(&format!("{NAMESPACES}/n"), "merge-patch", patch).await;
        let warnings = changed.warnings.clone();
        changed.expect(200);
        warnings.join("\n")
    };
    assert_eq!(
        enforce(Some("baseline")).await,
        "299 - \"existing pods in namespace \\\"n\\\" violate the new PodSecurity enforce level \
         \\\"baseline:latest\\\"\"\n299 - \"a (and 2 other pods): host namespaces\""
    );
    assert_eq!(enforce(Some("privileged")).await, "", "the level is relaxed");
    enforce(Some("restricted")).await;
    let label = json!({"metadata": {"labels": {"x": "z"}}});
    server.patch(&format!("{}/a", pods("n")), "merge-patch", label).await.expect(200);
    let image = json!({"spec": {"containers": [{"name": "c", "image": "other"}]}});
    server.patch(&format!("{}/a", pods("n")), "strategic-merge-patch", image).await.expect(403);
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}});
    let debugger = format!("{}/good/ephemeralcontainers", pods("n"));
    let rejected = server.patch(&debugger, "strategic-merge-patch", debug).await.expect(403);
    assert!(rejected["message"].as_str().unwrap().contains("container \"d\" must set"), "{rejected}");
}

#[derive(Default)]
struct Memory(Mutex<Vec<Value>>);

impl Sink for Memory {
    fn write(&self, event: &str) {
        self.0.lock().unwrap().push(serde_json::from_str(event).expect("JSON"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_clusters_default_has_exemptions_and_violations_are_audited() {
    let memory = Arc::new(Memory::default());
    let mut config = config();
    let rules = json!({"omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]});
    let policy = Arc::new(AuditPolicy::from_value(&rules).expect("a policy"));
    config.audit = Some(Log { policy, sink: memory.clone() });
    let baseline = Standard { level: Level::Baseline, ..Standard::default() };
    config.pod_security = PodSecurity {
        defaults: Policy { enforce: baseline, audit: baseline, warn: baseline },
        exempt_users: vec!["builder".into()],
        exempt_namespaces: vec!["kube-system".into()],
        exempt_runtime_classes: vec!["vm".into()],
    };
    let server = Server { api: ApiServer::new(config) };
    let annotations = || {
        let events = std::mem::take(&mut *memory.0.lock().unwrap());
        let mut annotations = events.last().expect("an event")["annotations"].clone();
        let all = annotations.as_object_mut().expect("annotations");
        all.retain(|key, _| key.starts_with("pod-security"));
        Value::Object(all.clone())
    };
    let host = json!({"hostIPC": true});
    server.post(&pods("default"), pod("p", host.clone())).await.expect(403);
    let violation = "would violate PodSecurity \"baseline:latest\": host namespaces (hostIPC=true)";
    assert_eq!(
        annotations(),
        json!({"pod-security.kubernetes.io/enforce-policy": "baseline:latest",
            "pod-security.kubernetes.io/audit-violations": violation})
    );
    let exempt = |why: &str| json!({"pod-security.kubernetes.io/exempt": why});
    server.post(&pods("kube-system"), pod("p", host.clone())).await.expect(201);
    assert_eq!(annotations(), exempt("namespace"));
    let builder = UserInfo::new("builder", &["system:masters"]);
    let uri = pods("default");
    let created = server.request_as(&builder, Method::POST, &uri, "application/json", &pod("q", host.clone())).await;
    created.expect(201);
    assert_eq!(annotations(), exempt("user"));
    let class = json!({"metadata": {"name": "vm"}, "handler": "vm"});
    server.post("/apis/node.k8s.io/v1/runtimeclasses", class).await.expect(201);
    let in_vm = json!({"hostIPC": true, "runtimeClassName": "vm"});
    server.post(&pods("default"), pod("r", in_vm)).await.expect(201);
    assert_eq!(annotations(), exempt("runtimeClass"));
    namespace(&server, "own", json!({"pod-security.kubernetes.io/enforce": "privileged"})).await.expect(201);
    server.post(&pods("own"), pod("p", host)).await.expect(201);
}
