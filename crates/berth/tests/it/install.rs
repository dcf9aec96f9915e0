//! `berth install` against an API server, and the webhook server that its objects name.

use std::process::Command;
use std::time::Duration;

use base64::Engine;
use berth_testing::has_kubectl;
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::history::History;
use crate::process::Process;

pub fn install(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("install").args(arguments).output().expect("berth runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The error output of an installation that fails.
fn refused(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("install").args(arguments).output().expect("berth runs");
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_installation_that_cannot_work_is_rejected_with_the_field() {
    let text = refused(&["--namespace", "Bad NS"]);
    assert!(text.contains("'Bad NS' for '--namespace <NAME>'") && text.contains("RFC 1123 label"), "{text}");
    let text = refused(&["--image", ""]);
    assert!(text.contains("--image <IMAGE>") && text.contains("registry.example/berth:1"), "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("config.yaml");
    for (one_port, fields) in [
        (json!({"health": {"healthProbeBindAddress": ":8080"}}), "health.healthProbeBindAddress, metrics.bindAddress"),
        (json!({"webhook": {"port": 8080}}), "metrics.bindAddress, webhook.port"),
        (json!({"webhook": {"port": 8081}}), "health.healthProbeBindAddress, webhook.port"),
    ] {
        std::fs::write(&config, one_port.to_string()).expect("written");
        let text = refused(&["--config", &config.display().to_string()]);
        assert!(text.contains(&format!("{fields}: both use the same port")), "{text}");
    }
}

#[test]
fn an_unreachable_cluster_is_not_reported_as_missing_kinds() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    // The port was free a moment ago, so no server listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": format!("http://{free}")}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    std::fs::write(&kubeconfig, config.to_string()).expect("written");
    let text = refused(&["--apply", "--kubeconfig", &kubeconfig.display().to_string()]);
    assert!(text.contains("cannot read which kinds") && !text.contains("MutatingAdmissionPolicy"), "{text}");
}

#[test]
fn a_closed_output_pipe_ends_the_program_with_success() {
    for command in ["install", "crds"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
            .arg(command)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("berth runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("ends");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_printed_objects_can_be_applied_by_kubectl() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    let path = cluster.kubeconfig.with_file_name("install.yaml");
    std::fs::write(
        &path,
        install(&["--namespace", "queueing", "--image", "registry.example/berth:1", "--replicas", "3"]),
    )
    .expect("written");
    cluster.run(&["apply", "--server-side", "--force-conflicts", "-f", &path.display().to_string()]);
    let deployment = cluster.get(&["deployment", "berth-controller", "-n", "queueing"]);
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "registry.example/berth:1");
    // The roles of users aggregate the labelled roles.
    let can = |verb: &str, resource: &str| {
        cluster.kubectl(&["auth", "can-i", verb, resource, "-n", "team", "--as", "ann"]).status.success()
    };
    assert!(!can("create", "jobs.batch"));
    let bind =
        ["create", "rolebinding", "ann", "--clusterrole", "kueue-batch-user-role", "--user", "ann", "-n", "team"];
    cluster.run(&["create", "namespace", "team"]);
    cluster.run(&bind);
    assert!(can("create", "jobs.batch") && can("watch", "workloads.kueue.x-k8s.io"));
    assert!(!can("delete", "localqueues.kueue.x-k8s.io") && !can("patch", "workloads.kueue.x-k8s.io"));
}

/// The objects of a kind that an installation prints.
fn printed(arguments: &[&str], kind: &str) -> Vec<Value> {
    let text = format!("\n{}", install(arguments));
    let documents = text.split("\n---\n").filter(|document| !document.trim().is_empty());
    let objects = documents.map(|document| serde_saphyr::from_str::<Value>(document).expect("YAML"));
    objects.filter(|object| object["kind"] == kind).collect()
}

fn named<'a>(objects: &'a [Value], name: &str) -> Option<&'a Value> {
    objects.iter().find(|object| object["metadata"]["name"] == name)
}

#[test]
fn the_web_pages_are_installed_with_the_rights_that_their_readers_need() {
    const IMPERSONATOR: &str = "berth-controller-dashboard-impersonator";
    let arguments = |options: &[&str]| {
        let deployments = printed(options, "Deployment");
        deployments[0]["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    assert!(!arguments(&[]).contains("dashboard") && named(&printed(&[], "Service"), "berth-dashboard").is_none());
    // Readers with a token need no right of the controllers.
    let plain = ["--dashboard", "--dashboard-hosts", "a.example,b.example"];
    assert!(named(&printed(&plain, "ClusterRole"), IMPERSONATOR).is_none());
    let text = arguments(&plain);
    assert!(text.contains("--dashboard-bind-address=:8443") && text.contains("--dashboard-host=a.example,b.example"));
    let behind_proxy = [
        "--dashboard",
        "--dashboard-tls-secret=pages",
        "--dashboard-proxy-secret=proxy",
        "--dashboard-proxy-name=oidc",
        "--dashboard-service-type=LoadBalancer",
    ];
    let rules = named(&printed(&behind_proxy, "ClusterRole"), IMPERSONATOR).expect("a role")["rules"].clone();
    assert_eq!(rules, json!([{"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]}]));
    let services = printed(&behind_proxy, "Service");
    let service = named(&services, "berth-dashboard").expect("a Service");
    assert_eq!(
        (&service["spec"]["type"], &service["spec"]["sessionAffinity"]),
        (&json!("LoadBalancer"), &json!("ClientIP"))
    );
    let text = arguments(&behind_proxy);
    for argument in ["--dashboard-cert-dir=", "--dashboard-proxy-ca-file=", "--dashboard-proxy-name=oidc"] {
        assert!(text.contains(argument), "{argument}: {text}");
    }
    let text = refused(&["--dashboard", "--dashboard-port", "9443"]);
    assert!(text.contains("--dashboard-port 9443: webhook.port uses the same port"), "{text}");
    assert!(refused(&["--dashboard-hosts", "a.example"]).contains("--dashboard"));
    if has_kubectl() {
        let cluster = Cluster::apiserver(&[]);
        let path = cluster.kubeconfig.with_file_name("install.yaml");
        std::fs::write(&path, install(&behind_proxy)).expect("written");
        cluster.run(&["apply", "--server-side", "--force-conflicts", "-f", &path.display().to_string()]);
        let account = "system:serviceaccount:berth-system:berth-controller";
        let can = ["auth", "can-i", "impersonate", "groups", "--as", account];
        assert!(cluster.kubectl(&can).status.success());
    }
}

#[test]
fn a_second_installation_removes_no_rights() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&["--bare"]);
    // A controller of the cluster aggregates the rules.
    let _machines = Process::cluster(&cluster, &[]);
    let kubeconfig = cluster.kubeconfig.display().to_string();
    let role = "kueue-batch-user-role";
    install(&["--apply", "--kubeconfig", &kubeconfig]);
    let has_rules = |role: &Value| role["rules"].as_array().is_some_and(|rules| !rules.is_empty());
    cluster.wait_until("the rules to be aggregated", 30, |cluster| has_rules(&cluster.get(&["clusterrole", role])));
    let mut history = History::of(&cluster, "clusterroles");
    cluster.wait_until("the watch to begin", 30, |_| history.begun());
    install(&["--apply", "--kubeconfig", &kubeconfig]);
    for (state, _) in history.states().iter().filter(|(state, _)| state["metadata"]["name"] == role) {
        assert!(has_rules(state), "{state}");
    }
}

/// A webhook of Kueue's with failure policy Fail.
fn of_kueue(name: &str, group: &str, resource: &str, operation: &str) -> Value {
    json!({"name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
        "clientConfig": {"service": {"name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/mutate"}},
        "namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn",
            "values": ["kube-system", "kueue-system"]}]},
        "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": [operation]}]})
}

#[test]
fn an_installation_that_replaces_kueue_is_checked_before_each_step() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&["--bare"]);
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig.display());
    let apply = |object: &Value| crate::processes::apply(&cluster, object);
    let checked = |arguments: &[&str]| {
        let all = [&["install", "--check", &kubeconfig], arguments].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_berth")).args(all).output().expect("berth runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (fine, text) = checked(&[]);
    assert!(fine && text.contains("no obstacle found") && text.contains("do not exist yet"), "{text}");
    let (fine, text) = checked(&["--hold-only"]);
    assert!(!fine && text.contains("localqueues.kueue.x-k8s.io is not served in v1beta2"), "{text}");

    // A running Kueue: its kinds with their conversion webhook, and its admission webhooks.
    for definition in berth_api::crds().iter().filter(|it| it["spec"]["group"] == "kueue.x-k8s.io") {
        let mut definition = definition.clone();
        if definition["metadata"]["name"] == "workloads.kueue.x-k8s.io" {
            definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"], "clientConfig": {"service": {
                    "name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/convert"}}}});
        }
        let path = cluster.kubeconfig.with_file_name("definition.json");
        std::fs::write(&path, definition.to_string()).expect("written");
        cluster.run(&["apply", "--server-side", "-f", &path.display().to_string()]);
    }
    let configuration = "kueue-mutating-webhook-configuration";
    apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}));
    apply(&json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": configuration}, "webhooks": [
            of_kueue("mdeployment.kb.io", "apps", "deployments", "CREATE"),
            of_kueue("mpod.kb.io", "", "pods", "CREATE"),
            of_kueue("mworkload.kb.io", "kueue.x-k8s.io", "workloads", "UPDATE")]}));
    let endpoint = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "kueue", "namespace": "kueue-system",
            "labels": {"kubernetes.io/service-name": "kueue-webhook-service"}},
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}], "ports": [{"port": 9443}]});
    apply(&endpoint);
    let runs = "Service kueue-system/kueue-webhook-service serves webhooks or conversions of kueue.x-k8s.io";
    for step in [&[][..], &["--hold-only"]] {
        let (fine, text) = checked(step);
        assert!(!fine && text.contains(runs) && text.contains("--replicas=0"), "{text}");
    }
    let (fine, text) = checked(&["--standby"]);
    assert!(fine && text.contains(runs) && text.contains("Berth's are on standby"), "{text}");

    // Kueue is stopped. Its webhooks would reject the controllers, but not the objects that hold
    // jobs.
    cluster.run(&["delete", "endpointslice", "kueue", "-n", "kueue-system"]);
    let (fine, text) = checked(&[]);
    for part in [
        "MutatingWebhookConfiguration kueue-mutating-webhook-configuration: Service kueue-system/kueue-webhook-service has no",
        "mdeployment.kb.io rejects Deployment berth-system/berth-controller",
        "mpod.kb.io rejects the pods of Deployment berth-system/berth-controller",
        "mworkload.kb.io rejects writes of workloads by the controllers",
        "`kubectl delete mutatingwebhookconfiguration kueue-mutating-webhook-configuration`",
        "converted by Service kueue-system/kueue-webhook-service, which has no ready endpoint: workloads.kueue.x-k8s.io",
    ] {
        assert!(!fine && text.contains(part), "{part}: {text}");
    }
    let text = refused(&["--apply", &kubeconfig]);
    assert!(text.contains("nothing was changed") && text.contains("mdeployment.kb.io"), "{text}");
    assert!(!cluster.kubectl(&["get", "namespace", "berth-system"]).status.success());

    for _ in 0..2 {
        install(&["--hold-only", "--apply", &kubeconfig]);
    }
    let (_, text) = checked(&[]);
    assert!(
        text.contains("the objects that hold jobs exist: 20 policies, bindings and webhook configurations"),
        "{text}"
    );
    let conversion = || {
        let definition = cluster.get(&["crd", "workloads.kueue.x-k8s.io"]);
        definition["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["name"].clone()
    };
    assert_eq!(conversion(), "kueue-webhook-service", "the conversion was handed over too early");
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "held", "namespace": "default",
        "labels": {"kueue.x-k8s.io/queue-name": "main"}}, "spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}}});
    apply(&job);
    assert_eq!(cluster.get(&["job", "held"])["spec"]["suspend"], true, "not held by the policies");

    cluster.run(&["delete", "mutatingwebhookconfiguration", configuration]);
    // A Kueue without webhooks is known by its conversion.
    apply(&endpoint);
    let (fine, text) = checked(&[]);
    assert!(!fine && text.contains(runs), "{text}");
    install(&["--standby", "--apply", &kubeconfig]);
    assert_eq!(conversion(), "kueue-webhook-service", "the conversion was handed over to a standby");
    let arguments = || {
        cluster.get(&["deployment", "berth-controller", "-n", "berth-system"])["spec"]["template"]["spec"]["containers"]
            [0]["args"]
            .clone()
    };
    assert!(arguments().as_array().is_some_and(|all| all.contains(&json!("--controllers="))), "{}", arguments());
    cluster.run(&["delete", "endpointslice", "kueue", "-n", "kueue-system"]);
    let (fine, text) = checked(&[]);
    assert!(fine, "{text}");
    install(&["--apply", &kubeconfig]);
    assert_eq!(conversion(), "berth-webhook");
    assert!(arguments().as_array().is_some_and(|all| !all.contains(&json!("--controllers="))), "{}", arguments());
}

/// Calls the webhooks as an API server does.
struct Hooks {
    url: String,
    authorities_pem: String,
}

impl Hooks {
    async fn post(&self, path: &str, review: &Value) -> Result<Value, String> {
        let mut config = Config::new(self.url.parse().expect("a URL"));
        let pem = pem_blocks(&self.authorities_pem);
        config.root_cert = Some(pem);
        let client = Client::try_from(config).map_err(|error| error.to_string())?;
        let body = serde_json::to_vec(review).expect("JSON");
        let request = http::Request::post(path).body(body).expect("a request");
        client.request(request).await.map_err(|error| format!("{error:?}"))
    }
}

/// The certificates of a PEM file, decoded.
fn pem_blocks(pem: &str) -> Vec<Vec<u8>> {
    let blocks = pem.split("-----BEGIN CERTIFICATE-----").skip(1);
    let bodies = blocks.filter_map(|block| block.split("-----END").next());
    let engine = base64::engine::general_purpose::STANDARD;
    bodies.map(|body| engine.decode(body.split_whitespace().collect::<String>()).expect("base64")).collect()
}

pub fn decoded(value: &Value) -> String {
    let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64");
    String::from_utf8(bytes).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_use_a_trusted_certificate_that_is_renewed() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    install(&["--apply", "--kubeconfig", &cluster.kubeconfig.display().to_string()]);
    // Two replicas share the certificate.
    let replica = [
        "--webhook-certificate-lifetime=120s",
        "--leader-elect-lease-duration=60s",
        "--leader-elect-renew-deadline=50s",
    ];
    let first = Process::controller(&cluster, &replica);
    let second = Process::controller(&cluster, &replica);
    let bundle =
        || decoded(&cluster.get(&["secret", "berth-webhook-certificate", "-n", "berth-system"])["data"]["ca.crt"]);
    let trusted = |configuration: &str| {
        let object = cluster.get(&[configuration, "berth-controller"]);
        let hooks = object["webhooks"].as_array().cloned().unwrap_or_default();
        hooks.iter().map(|hook| decoded(&hook["clientConfig"]["caBundle"])).collect::<Vec<_>>()
    };
    cluster.wait_until("both replicas to be ready", 60, |_| {
        let ready = |replica: &Process| replica.logged("/readyz").is_some() && replica.get("/readyz").0 == 200;
        ready(&first) && ready(&second)
    });
    let before = bundle();
    // The validating configuration has one more webhook: for writes of a Workload's status by other
    // programs.
    for (configuration, count) in [("mutatingwebhookconfigurations", 39), ("validatingwebhookconfigurations", 40)] {
        let kinds = "Kueue's kinds, and queued kinds with and without a queue";
        assert_eq!(trusted(configuration).len(), count, "{kinds}");
        assert!(trusted(configuration).iter().all(|trusted| !trusted.is_empty()));
    }
    let crd = cluster.get(&["crd", "workloads.kueue.x-k8s.io"]);
    assert!(!decoded(&crd["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"]).is_empty());

    cluster.run(&["create", "namespace", "team"]);
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": "team", "name": "j",
        "resource": {"group": "batch", "version": "v1", "resource": "jobs"},
        "object": {"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "j", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "main"}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": []}}}},
    }});
    let url = |replica: &Process| {
        let address = replica.wait_logged("serving https://");
        format!("https://{}", address.trim_end_matches("/mutate"))
    };
    for replica in [&first, &second] {
        let hooks = Hooks { url: url(replica), authorities_pem: bundle() };
        let answer = hooks.post("/mutate", &review).await.expect("a response");
        assert_eq!(answer["response"]["allowed"], true);
        assert!(decoded(&answer["response"]["patch"]).contains("/spec/suspend"), "{answer}");
    }

    // The Secret now states that its certificate has expired. The replicas check it every sixth of
    // its lifetime.
    let ended = "berth.dev/not-after=2020-01-01T00:00:00Z";
    cluster.run(&["annotate", "secret", "berth-webhook-certificate", "-n", "berth-system", "--overwrite", ended]);
    cluster.wait_until("the certificate to be renewed", 60, |_| bundle() != before);
    // The published certificate authorities include the issuer of the certificate that a replica
    // serves at this moment.
    for _ in 0..20 {
        for replica in [&first, &second] {
            let answer = loop {
                let published = trusted("mutatingwebhookconfigurations").remove(0);
                let hooks = Hooks { url: url(replica), authorities_pem: published.clone() };
                match hooks.post("/validate", &review).await {
                    Ok(answer) => break answer,
                    // A mismatch counts only if the published certificate authorities have not
                    // changed in between.
                    Err(error) => assert_ne!(published, trusted("mutatingwebhookconfigurations")[0], "{error}"),
                }
            };
            assert_eq!(answer["response"]["allowed"], true);
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
