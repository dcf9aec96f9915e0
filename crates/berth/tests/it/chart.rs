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

#[test]
fn the_chart_passes_helm_lint_and_renders_the_objects_of_berth_install() {
    let Some(helm) = helm() else { return };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/berth");
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
            rendered.arg("--set-file").arg(format!("configuration={}", file.display()));
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
