//! The Helm chart, rendered by Helm: with the same values it contains the objects that `berth
//! install` prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// The Helm program, if it is installed; `.ci/run` installs it in `target/tools`.
fn helm() -> Option<PathBuf> {
    let in_tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/helm");
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&paths).map(|folder| folder.join("helm"));
    let found = std::iter::once(in_tree).chain(on_path).find(|path| path.is_file());
    if found.is_none() {
        berth_testing::skip("helm is not installed (.ci/run installs it where Go is)");
    }
    found
}

/// The objects of a string of YAML documents without the Namespace, in order of kind and name.
fn documents(text: &str) -> Vec<Value> {
    // Descriptions may contain dashes; a document begins with a line of three.
    let documents = format!("\n{text}");
    let mut all: Vec<Value> = documents
        .split("\n---\n")
        .filter(|document| document.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#')))
        .map(|document| serde_saphyr::from_str(document).expect("YAML"))
        .filter(|object: &Value| object["kind"] != "Namespace")
        .collect();
    all.sort_by_key(name);
    all
}

fn name(object: &Value) -> String {
    format!("{} {} {}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"])
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The chart.
fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/berth")
}

/// The objects that the chart renders with these values; the error of Helm if it rejects them.
fn rendered(helm: &Path, values: &Value) -> Result<Vec<Value>, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("values.yaml");
    std::fs::write(&file, values.to_string()).expect("written");
    let mut command = Command::new(helm);
    command.args(["template", "berth", "--namespace", "queues", "--kube-version", "1.34.0", "--values"]).arg(&file);
    let output = command.arg(chart()).output().expect("runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(documents(&String::from_utf8(output.stdout).expect("text")))
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

#[test]
fn values_of_kueues_chart_change_the_pods_as_there() {
    let Some(helm) = helm() else { return };
    let tolerations = json!([{"key": "system", "operator": "Exists"}]);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}});
    let values = json!({"controllerManager": {
        "manager": {
            "image": {"repository": "registry.example/berth", "tag": "1.2", "pullPolicy": "Always"},
            "priorityClassName": "system-cluster-critical", "logLevel": 4,
            "podAnnotations": {"example.com/scrape": "true"},
            "resources": {"requests": {"cpu": 2}, "limits": {"memory": "8Gi"}},
            "podSecurityContext": {"runAsUser": 1000}, "containerSecurityContext": {"readOnlyRootFilesystem": false},
        },
        "replicas": 3, "featureGates": [{"name": "PartialAdmission", "enabled": true}, {"name": "LocalQueueMetrics", "enabled": false}],
        "strategy": {"rollingUpdate": {"maxSurge": 0}}, "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet",
        "imagePullSecrets": [{"name": "registry"}], "nodeSelector": {"pool": "system"}, "tolerations": tolerations,
        "affinity": affinity, "topologySpreadConstraints": [],
        "livenessProbe": {"initialDelaySeconds": 15, "periodSeconds": 20}, "readinessProbe": {"failureThreshold": 7},
        "podDisruptionBudget": {"enabled": true, "minAvailable": 2},
    }});
    let objects = rendered(&helm, &values).expect("the chart renders");
    let deployment = object(&objects, "Deployment", "berth-controller");
    let (pod, pods) = (&deployment["spec"]["template"]["spec"], &deployment["spec"]["template"]["metadata"]);
    let (given, container) = (&values["controllerManager"], &pod["containers"][0]);
    assert_eq!((&deployment["spec"]["replicas"], &deployment["spec"]["strategy"]), (&json!(3), &given["strategy"]));
    for field in ["hostNetwork", "dnsPolicy", "imagePullSecrets", "nodeSelector", "tolerations", "affinity"] {
        assert_eq!(pod[field], given[field], "{field}");
    }
    assert_eq!(pod["topologySpreadConstraints"], json!([]));
    assert_eq!(pod["priorityClassName"], "system-cluster-critical");
    // Helm merges maps with the defaults.
    assert_eq!(
        (&pod["securityContext"]["runAsUser"], &pod["securityContext"]["runAsGroup"]),
        (&json!(1000), &json!(65532))
    );
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], false);
    assert_eq!(container["resources"], json!({"requests": {"cpu": 2, "memory": "512Mi"}, "limits": {"memory": "8Gi"}}));
    assert_eq!(
        (&container["image"], &container["imagePullPolicy"]),
        (&json!("registry.example/berth:1.2"), &json!("Always"))
    );
    let arguments = container["args"].as_array().expect("arguments");
    assert!(
        arguments.contains(&json!("--feature-gates=PartialAdmission=true,LocalQueueMetrics=false")),
        "{arguments:?}"
    );
    assert!(arguments.contains(&json!("--zap-log-level=4")), "{arguments:?}");
    assert_eq!(
        (&container["livenessProbe"]["periodSeconds"], &container["readinessProbe"]["failureThreshold"]),
        (&json!(20), &json!(7))
    );
    assert_eq!(pods["annotations"]["example.com/scrape"], "true");
    assert_eq!(pods["annotations"]["kubectl.kubernetes.io/default-container"], "controller");
    let budget = &object(&objects, "PodDisruptionBudget", "berth-controller")["spec"];
    assert_eq!((&budget["minAvailable"], &budget["maxUnavailable"]), (&json!(2), &Value::Null));
    let without = json!({"controllerManager": {"podDisruptionBudget": {"enabled": false}},
        "enableVisibilityAuthReaderRoleBinding": false});
    let objects = rendered(&helm, &without).expect("the chart renders");
    let left =
        |object: &&Value| object["kind"] == "PodDisruptionBudget" || object["metadata"]["namespace"] == "kube-system";
    assert_eq!(objects.iter().filter(left).count(), 0);
}

#[test]
fn values_of_kueues_chart_add_objects_for_prometheus_cert_manager_and_flow_control() {
    let Some(helm) = helm() else { return };
    let configuration = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "internalCertManagement": {"enable": false}})
    .to_string();
    let values = json!({
        "enablePrometheus": true, "metricsSecure": true, "metrics": {"prometheusNamespace": "watch"},
        "metricsService": {"labels": {"team": "a"}, "annotations": {"note": "b"}, "type": "NodePort"},
        "webhookService": {"ipDualStack": {"enabled": true}}, "mutatingWebhook": {"reinvocationPolicy": "IfNeeded"},
        "enableVisibilityAPF": true, "enableCertManager": true,
        "managerConfig": {"controllerManagerConfigYaml": configuration},
    });
    let objects = rendered(&helm, &values).expect("the chart renders");
    let service = object(&objects, "Service", "berth-metrics");
    let monitor = &object(&objects, "ServiceMonitor", "berth-controller")["spec"];
    let endpoint = &monitor["endpoints"][0];
    assert_eq!((&endpoint["port"], &endpoint["scheme"]), (&service["spec"]["ports"][0]["name"], &json!("https")));
    assert_eq!(endpoint["tlsConfig"]["serverName"], "berth-metrics.queues.svc");
    assert_eq!(endpoint["tlsConfig"]["ca"]["secret"]["name"], "berth-webhook-certificate");
    let selected = monitor["selector"]["matchLabels"].as_object().expect("labels");
    assert!(selected.iter().all(|(key, value)| service["metadata"]["labels"][key] == *value), "{service}");
    assert_eq!(
        (&service["metadata"]["labels"]["team"], &service["metadata"]["annotations"]["note"]),
        (&json!("a"), &json!("b"))
    );
    assert_eq!(service["spec"]["type"], "NodePort");
    assert_eq!(object(&objects, "RoleBinding", "berth-prometheus")["subjects"][0]["namespace"], "watch");
    assert_eq!(object(&objects, "Service", "berth-webhook")["spec"]["ipFamilies"], json!(["IPv6", "IPv4"]));
    let level =
        object(&objects, "FlowSchema", "berth-visibility")["spec"]["priorityLevelConfiguration"]["name"].clone();
    object(&objects, "PriorityLevelConfiguration", level.as_str().expect("a name"));
    // Every object with a caBundle gets that of the certificate.
    let certificate = object(&objects, "Certificate", "berth-serving-cert");
    let names = certificate["spec"]["dnsNames"].as_array().expect("names");
    for service in ["berth-webhook", "berth-visibility", "berth-metrics"] {
        assert!(names.contains(&json!(format!("{service}.queues.svc"))), "{names:?}");
    }
    assert_eq!(
        certificate["spec"]["issuerRef"]["name"],
        object(&objects, "Issuer", "berth-selfsigned")["metadata"]["name"]
    );
    let volumes = object(&objects, "Deployment", "berth-controller")["spec"]["template"]["spec"]["volumes"].clone();
    let mounted = volumes
        .as_array()
        .into_iter()
        .flatten()
        .any(|it| it["secret"]["secretName"] == certificate["spec"]["secretName"]);
    assert!(mounted, "{volumes}");
    let needs = |object: &&Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        kind.ends_with("WebhookConfiguration")
            || kind == "APIService"
            || object["spec"]["conversion"]["webhook"].is_object()
    };
    for object in objects.iter().filter(needs) {
        let source = &object["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
        assert_eq!(source, "queues/berth-serving-cert", "{}", name(object));
    }
    let hooks = &object(&objects, "MutatingWebhookConfiguration", "berth-controller")["webhooks"];
    assert!(hooks.as_array().is_some_and(|hooks| hooks.iter().all(|hook| hook["reinvocationPolicy"] == "IfNeeded")));
}

#[test]
fn values_that_would_have_no_effect_are_rejected() {
    let Some(helm) = helm() else { return };
    let wrong = |values: Value| rendered(&helm, &values).expect_err("it is rejected");
    for (values, named) in [
        (json!({"configuration": "kind: Configuration"}), "configuration"),
        (json!({"enableKueueViz": true}), "enableKueueViz"),
        (json!({"fullnameOverride": "kueue"}), "fullnameOverride"),
        (json!({"controllerManager": {"nodeselector": {}}}), "nodeselector"),
        (
            json!({"controllerManager": {"manager": {"image": {"repository": "registry.k8s.io/kueue/kueue"}}}}),
            "image of Kueue",
        ),
        (json!({"enableCertManager": true}), "internalCertManagement.enable"),
        (
            json!({"metricsService": {"ports": [{"name": "https", "port": 8443, "targetPort": 9000}]}}),
            "metricsService.ports",
        ),
        (json!({"metricsService": {"ports": [{"name": "https", "port": 9000}]}}), "metricsService.ports"),
    ] {
        let error = wrong(values);
        assert!(error.contains(named), "{named}: {error}");
    }
    let off = json!({"enableKueueViz": false, "fullnameOverride": "", "kueueViz": {"backend": {}},
        "webhookService": {"ports": [{"port": 443, "protocol": "TCP", "targetPort": 9443}]}});
    rendered(&helm, &off).expect("values that change nothing are accepted");
    // Ports of the metrics' Service as in Kueue's chart, with Kueue's configuration.
    let file = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "metrics": {"bindAddress": ":8443"}});
    let ports = json!({"metricsService": {"ports": [{"name": "https", "port": 8443, "targetPort": 8443}]},
        "managerConfig": {"controllerManagerConfigYaml": file.to_string()}});
    let objects = rendered(&helm, &ports).expect("the port is that of the configuration");
    assert_eq!(object(&objects, "Service", "berth-metrics")["spec"]["ports"], ports["metricsService"]["ports"]);
}

#[test]
fn the_chart_passes_helm_lint_and_renders_the_objects_of_berth_install() {
    let Some(helm) = helm() else { return };
    let chart = chart();
    let lint = output(Command::new(&helm).args(["lint", "--strict"]).arg(&chart));
    assert!(lint.contains("0 chart(s) failed"), "{lint}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("configuration.yaml");
    let base = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"});
    let with = |more: Value| {
        let mut file = base.clone();
        file.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        Some(file)
    };
    let configurations = [
        None,
        with(json!({})),
        // Process settings of the file that Kueue ships.
        with(json!({
            "health": {"healthProbeBindAddress": ":8081"}, "metrics": {"bindAddress": ":8443"}, "webhook": {"port": 9443},
            "leaderElection": {"leaderElect": true, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
        })),
        with(json!({
            "health": {"healthProbeBindAddress": "[::]:9081", "readinessEndpointName": "/ready", "livenessEndpointName": "/alive"},
            "metrics": {"bindAddress": "0"}, "webhook": {"port": 10443, "certDir": "/certificates"},
            "internalCertManagement": {"enable": false, "webhookServiceName": "hooks", "webhookSecretName": "from-elsewhere"},
            "leaderElection": {"resourceNamespace": "leases"},
        })),
        // Sections whose fields are all commented out.
        with(json!({"health": null, "metrics": null, "webhook": {"port": null}, "internalCertManagement": null,
            "leaderElection": null})),
    ];
    let options = [false, true];
    for (configuration, has_options) in configurations.iter().flat_map(|it| options.map(|options| (it, options))) {
        let mut rendered = Command::new(&helm);
        rendered.args(["template", "berth", "--namespace", "queues", "--kube-version", "1.34.0"]).arg(&chart);
        let mut printed = Command::new(env!("CARGO_BIN_EXE_berth"));
        printed.args(["install", "--namespace", "queues"]);
        if has_options {
            rendered.args(["--set", "appwrapper=true,metricsSecure=true,nodeHealth=true,slackQueue=slack"]);
            printed.args(["--appwrapper", "--metrics-secure", "--node-health", "--slack-queue", "slack"]);
            rendered.args(["--set", "dashboard=true,dashboardPort=9444,dashboardServiceType=LoadBalancer"]);
            rendered.args(["--set", "dashboardHosts=a.example\\,b.example,dashboardTlsSecret=pages"]);
            rendered.args(["--set", "dashboardProxySecret=proxy,dashboardProxyName=oidc"]);
            printed.args(["--dashboard", "--dashboard-port", "9444", "--dashboard-service-type", "LoadBalancer"]);
            printed.args(["--dashboard-hosts", "a.example,b.example", "--dashboard-tls-secret", "pages"]);
            printed.args(["--dashboard-proxy-secret", "proxy", "--dashboard-proxy-name", "oidc"]);
        }
        if let Some(configuration) = configuration {
            // JSON is YAML. In Helm's values, the configuration file is a string.
            std::fs::write(&file, configuration.to_string()).expect("written");
            let value = "managerConfig.controllerManagerConfigYaml";
            rendered.arg("--set-file").arg(format!("{value}={}", file.display()));
            printed.arg("--config").arg(&file);
        }
        let (rendered, printed) = (documents(&output(&mut rendered)), documents(&output(&mut printed)));
        let names = |objects: &[Value]| objects.iter().map(name).collect::<Vec<_>>();
        assert_eq!(names(&rendered), names(&printed), "{configuration:?}");
        for (rendered, printed) in rendered.iter().zip(&printed) {
            assert_eq!(rendered, printed, "{configuration:?}");
        }
    }
}
