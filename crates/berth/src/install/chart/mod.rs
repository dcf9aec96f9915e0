//! The Helm chart, generated from the objects that `berth install` prints. Values that differ
//! between installations are inserted as marks, and marks become template expressions. Values that
//! only the chart has are those of [`of_kueue`]. `deploy/helm/berth` has the result; a test
//! generates it again and compares.

mod of_kueue;

use std::path::Path;

use anyhow::Context;
use berth_controllers::configuration::process as usual;
use berth_controllers::rights;
use serde_json::{Value, json};

use super::hold::Held;
use super::manifests::{self, Parts, Settings, Values};
use super::pages::{self, Pages};
use crate::controller::webhook::DASHBOARD_SERVICE;

const OPEN: &str = "@@{";
const CLOSE: &str = "}@@";

/// The configuration file, as a Helm expression.
const FILE: &str = "(fromYaml .Values.managerConfig.controllerManagerConfigYaml)";

/// A field of the configuration file, as a Helm expression; empty if the field or its section is
/// absent or null.
fn setting(section: &str, field: &str) -> String {
    format!("get (get {FILE} `{section}` | default dict) `{field}`")
}

/// A value that Helm inserts.
fn mark(expression: &str) -> String {
    format!("{OPEN}{expression}{CLOSE}")
}

/// The values that the objects share with the configuration file, each as the Helm expression that
/// computes it.
fn settings(of: fn(&str) -> String) -> Settings {
    let text =
        |section: &str, field: &str, usual: &str| of(&format!("{} | default {usual} | quote", setting(section, field)));
    let quoted = |text: &str| format!("`{text}`");
    // The port of an address; the default port if the address is disabled.
    let port = |section: &str, field: &str, usual: u16| {
        let address = format!("{} | toString", setting(section, field));
        json!(of(&format!("{address} | regexFind `:[0-9]+$` | default `:{usual}` | trimPrefix `:`")))
    };
    Settings {
        lease: text("leaderElection", "resourceName", &quoted(rights::NAME)),
        lease_namespace: text("leaderElection", "resourceNamespace", ".Release.Namespace"),
        service: text("internalCertManagement", "webhookServiceName", &quoted(rights::WEBHOOK_SERVICE)),
        secret: text("internalCertManagement", "webhookSecretName", &quoted(rights::WEBHOOK_SECRET)),
        certificates: text("webhook", "certDir", &quoted(usual::CERTIFICATE_FOLDER)),
        readiness: text("health", "readinessEndpointName", &quoted(usual::READINESS_PATH)),
        liveness: text("health", "livenessEndpointName", &quoted(usual::LIVENESS_PATH)),
        health_port: port("health", "healthProbeBindAddress", usual::HEALTH_PORT),
        metrics_port: port("metrics", "bindAddress", usual::METRICS_PORT),
        webhook_port: json!(of(&format!("{} | default {}", setting("webhook", "port"), usual::WEBHOOK_PORT))),
    }
}

/// File names and contents of the chart, relative to its folder.
pub fn files() -> anyhow::Result<Vec<(String, String)>> {
    let values = Values {
        namespace: mark(".Release.Namespace | quote"),
        namespace_in_text: mark(".Release.Namespace"),
        image: mark(of_kueue::IMAGE),
        replicas: json!(mark(".Values.controllerManager.replicas")),
        configuration: mark(".Values.managerConfig.controllerManagerConfigYaml | quote"),
        settings: settings(mark),
        held: Held {
            frameworks: mark("$frameworks"),
            namespaces: json!(mark("$namespaces | toJson")),
            all: mark("$all"),
            spared: Held::spared_beside(&mark(".Release.Namespace")),
        },
    };
    let objects = |parts: &Parts| of_kueue::insert(manifests::objects(&values, parts), mark);
    let plain = objects(&Parts::default());
    let hold_policy = || Some(mark(".Values.holdPolicy"));
    let held = objects(&Parts { hold_policy: hold_policy(), ..Parts::default() });
    // The objects of all options. Conditions select those of the values.
    let all = Parts {
        app_wrappers: true,
        metrics_secure: true,
        node_health: true,
        slack_queue: Some(mark(".Values.slackQueue")),
        forecasts: Some(mark(".Values.forecastAnnotations")),
        gpu_exporters: Some(mark(".Values.gpuExporters")),
        pages: Some(pages_of(mark)),
        ..Parts::default()
    };
    let complete = objects(&all);
    let complete_held = objects(&Parts { hold_policy: hold_policy(), ..all });
    // Helm creates the namespace (--create-namespace). A chart that creates its own namespace
    // cannot be uninstalled cleanly.
    let body: Vec<&Value> = complete.iter().filter(|o| o["kind"] != "Namespace").filter(|o| !is_hook(o)).collect();
    let policies: Vec<&Value> = held.iter().filter(is_policy).collect();
    let definitions = of_kueue::insert(manifests::definitions(&values), mark);
    let common = |rbac: bool| body.iter().copied().filter(move |o| is_rbac(o) == rbac && option_of(o).is_none());
    let controller = of_kueue::checks() + &of_kueue::conditional(&conditional(&guarded_documents(common(false))?));
    let rbac = guarded_documents(common(true))?;
    let of_option = |option: &str| documents(body.iter().copied().filter(|o| option_of(o) == Some(option)));
    // The same value is part of an argument, where quotes would be part of the text.
    let of_exporters = of_option("gpu-exporters")?
        .replace("namespace: {{ .Values.gpuExporters }}", "namespace: {{ .Values.gpuExporters | quote }}");
    let options = guarded(".Values.appwrapper", &of_option("appwrapper")?)
        + &guarded("or .Values.nodeHealth .Values.slackQueue", &of_option("node-health")?)
        + &guarded(".Values.gpuExporters", &of_exporters)
        + &guarded(".Values.dashboard", &of_option("dashboard")?)
        + &guarded(
            "and .Values.dashboard (or .Values.dashboardImpersonation .Values.dashboardProxySecret)",
            &of_option(pages::ROLE)?,
        )
        + &guarded("and .Values.crds .Values.appwrapper", &documents(manifests::app_wrapper_definition().iter())?);
    let hooks = format!(
        "{{{{- if .Values.holdPolicy }}}}\n{}{}{}{{{{- else }}}}\n{}{{{{- end }}}}\n",
        variables(),
        documents(policies.into_iter())?,
        hooks(&held, &complete_held)?,
        hooks(&plain, &complete)?
    );
    let definitions = of_kueue::conditional(&documents(definitions.iter())?);
    let file = |name: &str, text: String| (name.to_owned(), text);
    Ok(vec![
        file("Chart.yaml", about()),
        file("values.yaml", of_kueue::defaults()?),
        file("values.schema.json", of_kueue::SCHEMA.to_owned()),
        file("templates/controller.yaml", controller),
        file("templates/crds.yaml", guarded(".Values.crds", &definitions)),
        file("templates/extras.yaml", of_kueue::extras()),
        file("templates/options.yaml", options),
        file("templates/rbac.yaml", rbac),
        file("templates/webhooks.yaml", of_kueue::conditional(&hooks)),
    ])
}

/// A part of a template that exists only with a condition.
fn guarded(condition: &str, text: &str) -> String {
    format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n")
}

/// The pages of the chart, each text as the Helm expression that computes it.
fn pages_of(of: fn(&str) -> String) -> Pages {
    Pages {
        port: json!(of(".Values.dashboardPort")),
        service_type: of(".Values.dashboardServiceType"),
        hosts: Some(of(".Values.dashboardHosts")),
        tls_secret: Some(of(".Values.dashboardTlsSecret | quote")),
        impersonation: true,
        proxy_secret: Some(of(".Values.dashboardProxySecret | quote")),
        proxy_name: Some(of(".Values.dashboardProxyName")),
    }
}

/// The option to which an object belongs.
fn option_of(object: &Value) -> Option<&str> {
    let name = object["metadata"]["name"].as_str()?;
    if !is_rbac(&object) {
        return (name == DASHBOARD_SERVICE).then_some("dashboard");
    }
    let option = name.strip_prefix(rights::NAME)?.strip_prefix('-')?;
    ["appwrapper", "node-health", "gpu-exporters", pages::ROLE].into_iter().find(|known| *known == option)
}

/// The conditions of items of lists in the Deployment, by a text that only such an item contains.
const CONDITIONS: [(&str, &str); 6] = [
    ("- --appwrapper", ".Values.appwrapper"),
    ("- --metrics-secure", ".Values.metricsSecure"),
    ("- --node-health", ".Values.nodeHealth"),
    ("- --slack-queue", ".Values.slackQueue"),
    ("- --forecast-annotations", ".Values.forecastAnnotations"),
    ("- --gpu-exporters", ".Values.gpuExporters"),
];

/// The manifest of the Deployment, with conditions for the items of options.
fn conditional(text: &str) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if !line.trim_start().starts_with("- ") {
            result.push_str(line);
            at += 1;
            continue;
        }
        let rest = &lines[at + 1..];
        let length = 1 + rest.iter().take_while(|next| indent(next) > indent(line)).count();
        let item = lines[at..at + length].concat();
        let condition = CONDITIONS.iter().chain(&pages::CONDITIONS).find(|(text, _)| item.contains(text));
        // Items of an inner list have conditions of their own.
        let is_inner = !item.lines().skip(1).any(|line| line.trim_start().starts_with("- "));
        match condition.filter(|_| is_inner) {
            Some((_, condition)) => {
                result.push_str(&guarded(condition, &item));
                at += length;
            }
            None => {
                result.push_str(line);
                at += 1;
            }
        }
    }
    result
}

fn is_hook(object: &&Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.ends_with("WebhookConfiguration"))
}

/// The webhook configurations, with a condition for the webhooks of AppWrappers.
fn hooks(plain: &[Value], complete: &[Value]) -> anyhow::Result<String> {
    let mut text = String::new();
    for (plain, complete) in plain.iter().filter(is_hook).zip(complete.iter().filter(is_hook)) {
        text.push_str(&with_insertion(&documents([plain].into_iter())?, &documents([complete].into_iter())?));
    }
    Ok(text)
}

/// The longer of two texts, with a condition for the lines that the shorter one lacks.
fn with_insertion(shorter: &str, longer: &str) -> String {
    let lines = |text: &'_ str| text.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>();
    let (short, long) = (lines(shorter), lines(longer));
    let before = short.iter().zip(&long).take_while(|(a, b)| a == b).count();
    let end = long.len() - (short.len() - before);
    [long[..before].concat(), guarded(".Values.appwrapper", &long[before..end].concat()), long[end..].concat()].concat()
}

fn is_policy(object: &&Value) -> bool {
    object["kind"].as_str().is_some_and(|kind| kind.starts_with("MutatingAdmissionPolicy"))
}

/// The values that the hold policies take from the configuration file, as Helm expressions. Absent
/// settings have the defaults of [`berth_controllers::configuration`].
fn variables() -> String {
    let selector = "(dict \"matchExpressions\" (list (dict \"key\" \"kubernetes.io/metadata.name\" \"operator\" \"NotIn\" \
                    \"values\" (list \"kube-system\" ($configuration.namespace | default .Release.Namespace)))))";
    let lines = [
        format!("$configuration := {FILE}"),
        "$integrations := $configuration.integrations | default dict".to_owned(),
        "$frameworks := $integrations.frameworks | default (list \"batch/job\") | join \",\"".to_owned(),
        "$selector := $configuration.managedJobsNamespaceSelector".to_owned(),
        format!("$namespaces := ternary $selector {selector} (kindIs \"map\" $selector)"),
        "$all := $configuration.manageJobsWithoutQueueName | default false".to_owned(),
    ];
    lines.iter().map(|line| format!("{{{{- {line} }}}}\n")).collect()
}

fn is_rbac(object: &&Value) -> bool {
    object["kind"] == "ServiceAccount"
        || object["apiVersion"].as_str().is_some_and(|version| version.starts_with("rbac.authorization.k8s.io/"))
}

/// Writes the chart.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    for (name, text) in files()? {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn about() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# Made by `berth install --chart`; do not edit.\napiVersion: v2\nname: berth\n\
         description: Job queueing for Kubernetes with quotas, preemption and capacity for shared accelerators.\n\
         type: application\nversion: {version}\nappVersion: {version}\nkubeVersion: \">=1.29.0-0\"\n"
    )
}

/// The documents of objects, with the conditions of those that can be left out.
fn guarded_documents<'a>(objects: impl Iterator<Item = &'a Value>) -> anyhow::Result<String> {
    let mut text = String::new();
    for object in objects {
        let document = documents([object].into_iter())?;
        text.push_str(&of_kueue::condition_of(object).map_or(document.clone(), |value| guarded(value, &document)));
    }
    Ok(text)
}

fn documents<'a>(objects: impl Iterator<Item = &'a Value>) -> anyhow::Result<String> {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&expressions(&escaped(&manifests::yaml(object)?))?);
    }
    Ok(text)
}

/// The YAML with the objects' own braces escaped.
fn escaped(yaml: &str) -> String {
    yaml.replace("{{", "{{ \"{{\" }}")
}

/// Marks as template expressions, without YAML's quotes around them.
fn expressions(yaml: &str) -> anyhow::Result<String> {
    let mut text = String::with_capacity(yaml.len());
    let mut rest = yaml;
    while let Some(at) = rest.find(OPEN) {
        let end = at + rest[at..].find(CLOSE).context("a mark without an end")?;
        let before = rest[..at].trim_end_matches(['"', '\'']);
        text.push_str(before);
        text.push_str(&format!("{{{{ {} }}}}", &rest[at + OPEN.len()..end]));
        rest = rest[end + CLOSE.len()..].trim_start_matches(['"', '\'']);
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use berth_controllers::Config;
    use berth_controllers::configuration::Process;

    use super::*;

    fn fields(settings: &Settings) -> [Value; 10] {
        let Settings { lease, lease_namespace, service, secret, certificates, readiness, liveness, .. } = settings;
        let ports = [&settings.health_port, &settings.metrics_port, &settings.webhook_port].map(Value::clone);
        let [health, metrics, webhook] = ports;
        let text = |text: &String| json!(text);
        [
            text(lease),
            text(lease_namespace),
            text(service),
            text(secret),
            text(certificates),
            text(readiness),
            text(liveness),
            health,
            metrics,
            webhook,
        ]
    }

    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/helm/berth")
    }

    /// Evaluates expressions as Helm does, as far as the chart uses them: known ones, and values.
    fn render(template: &str, known: &[(String, String)], values: &Value) -> String {
        let mut text = template.to_owned();
        for (expression, value) in known {
            text = text.replace(&format!("{{{{ {expression} }}}}"), value);
        }
        while let Some(at) = text.find("{{ .Values.") {
            let end = at + text[at..].find(" }}").expect("an end");
            let expression = &text[at + "{{ .Values".len()..end];
            let (path, form) = expression.split_once(" | ").unwrap_or((expression, ""));
            let value = values.pointer(&path.replace('.', "/")).unwrap_or_else(|| panic!("{path} has no value"));
            let value = match (form, value) {
                ("", Value::String(text)) => text.clone(),
                _ => value.to_string(),
            };
            text.replace_range(at..end + " }}".len(), &value);
        }
        text
    }

    /// The lines of a template whose conditions hold.
    fn chosen(template: &str, holds: impl Fn(&str) -> bool) -> String {
        let mut text = String::new();
        let mut conditions: Vec<bool> = Vec::new();
        for line in template.split_inclusive('\n') {
            let action = line.trim().strip_prefix("{{- ").and_then(|rest| rest.strip_suffix(" }}"));
            match action {
                Some("end") => drop(conditions.pop()),
                Some("else") => conditions.last_mut().into_iter().for_each(|condition| *condition = !*condition),
                Some(action) => conditions.push(holds(action.strip_prefix("if ").expect("a condition"))),
                None if conditions.iter().all(|condition| *condition) => text.push_str(line),
                None => {}
            }
        }
        text
    }

    #[test]
    fn the_chart_in_the_repository_equals_the_generated_one() {
        for (name, text) in files().expect("a chart") {
            let path = folder().join(&name);
            let kept = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(kept == text, "{name} differs: run `cargo run -- install --chart deploy/helm/berth`");
        }
    }

    #[test]
    fn the_chart_with_its_values_equals_the_printed_installation() {
        let values = Values {
            namespace: "berth-system".to_owned(),
            namespace_in_text: "berth-system".to_owned(),
            image: manifests::IMAGE.to_owned(),
            replicas: manifests::REPLICAS.into(),
            configuration: manifests::configuration(),
            settings: Settings::of(&Process::default(), "berth-system"),
            held: Held::of(&Config::default(), "berth-system"),
        };
        let namespaces = values.held.namespaces.to_string();
        let image = json!(values.image).to_string();
        let labels = berth_controllers::rights::labels(&[]);
        let of_metrics = of_kueue::with_further(&labels, "metricsService.labels");
        let container = json!({"kubectl.kubernetes.io/default-container": "controller"});
        let of_pods = of_kueue::with_further(&container, "controllerManager.manager.podAnnotations");
        let (labels, container) = (labels.to_string(), container.to_string());
        let defaults: Value = serde_saphyr::from_str(&of_kueue::defaults().expect("values")).expect("YAML");
        let known = [
            (".Release.Namespace | quote", "\"berth-system\""),
            (".Release.Namespace", "berth-system"),
            (of_kueue::IMAGE, image.as_str()),
            (of_metrics.as_str(), labels.as_str()),
            (of_pods.as_str(), container.as_str()),
            (".Values.holdPolicy", "v1beta1"),
            (".Values.slackQueue", "slack"),
            (".Values.forecastAnnotations", "10"),
            (".Values.gpuExporters", "gpu-operator"),
            (".Values.gpuExporters | quote", "\"gpu-operator\""),
            (".Values.dashboardPort", "8443"),
            (".Values.dashboardServiceType", "NodePort"),
            (".Values.dashboardHosts", "a.example,b.example"),
            (".Values.dashboardTlsSecret | quote", "\"pages\""),
            (".Values.dashboardProxySecret | quote", "\"proxy\""),
            (".Values.dashboardProxyName", "oidc"),
            ("$frameworks", values.held.frameworks.as_str()),
            ("$namespaces | toJson", namespaces.as_str()),
            ("$all", values.held.all.as_str()),
        ];
        let known: Vec<(String, String)> =
            known.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let plain = settings(str::to_owned);
        let mut known = known;
        known.extend(
            fields(&plain)
                .into_iter()
                .map(|it| it.as_str().unwrap_or_default().to_owned())
                .zip(fields(&values.settings).iter().map(Value::to_string)),
        );
        for (hold_policy, options) in [(None, false), (Some("v1beta1"), false), (None, true), (Some("v1beta1"), true)] {
            let holds = |condition: &str| match condition {
                ".Values.crds" => true,
                ".Values.holdPolicy" => hold_policy.is_some(),
                ".Values.enableVisibilityAuthReaderRoleBinding" => true,
                ".Values.controllerManager.podDisruptionBudget.enabled" => true,
                // Values without a counterpart in `berth install`.
                other if other.starts_with(".Values.controllerManager.") || other.starts_with(".Values.enable") => {
                    false
                }
                ".Values.metricsService.annotations" | ".Values.webhookService.ipDualStack.enabled" => false,
                _ => options,
            };
            let mut rendered: Vec<Value> = Vec::new();
            for (name, text) in files().expect("a chart") {
                let Some(template) = name.strip_prefix("templates/").filter(|it| *it != "extras.yaml") else {
                    continue;
                };
                let text = text.replace(&variables(), "").replace(&of_kueue::checks(), "");
                let text = render(&chosen(&text, holds), &known, &defaults);
                assert!(!text.contains("{{"), "{template}: an expression without a value");
                // Descriptions may end in dashes. A document begins with a line of three dashes.
                for document in format!("\n{text}").split("\n---\n").filter(|document| !document.trim().is_empty()) {
                    rendered.push(serde_saphyr::from_str(document).expect("YAML"));
                }
            }
            let mut printed = manifests::objects(
                &values,
                &Parts {
                    crds: true,
                    hold_policy: hold_policy.map(str::to_owned),
                    hold_only: false,
                    standby: false,
                    app_wrappers: options,
                    metrics_secure: options,
                    node_health: options,
                    slack_queue: options.then(|| "slack".to_owned()),
                    forecasts: options.then(|| "10".to_owned()),
                    gpu_exporters: options.then(|| "gpu-operator".to_owned()),
                    pages: options.then(|| Pages {
                        port: json!(8443),
                        service_type: "NodePort".to_owned(),
                        hosts: Some("a.example,b.example".to_owned()),
                        tls_secret: Some("pages".to_owned()),
                        impersonation: true,
                        proxy_secret: Some("proxy".to_owned()),
                        proxy_name: Some("oidc".to_owned()),
                    }),
                },
            );
            printed.retain(|object| object["kind"] != "Namespace");
            let key = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
            rendered.sort_by_key(key);
            printed.sort_by_key(key);
            assert_eq!(rendered.iter().map(key).collect::<Vec<_>>(), printed.iter().map(key).collect::<Vec<_>>());
            for (rendered, printed) in rendered.iter().zip(&printed) {
                assert_eq!(rendered, printed);
            }
        }
    }
}
