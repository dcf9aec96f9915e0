//! The values of Kueue's chart in Berth's: of the pods, the Services, Prometheus and cert-manager.
//! They have Kueue's names where they mean the same. `berth install` has no options for them.

use anyhow::Context;
use berth_controllers::aggregated;
use berth_controllers::rights;
use serde_json::{Value, json};

use super::super::{hold, manifests, pages};
use super::{guarded, setting, settings};
use crate::controller::webhook::{DASHBOARD_SERVICE, METRICS_SERVICE};

/// The image, as a Helm expression.
pub const IMAGE: &str = "printf `%s:%v` .Values.controllerManager.manager.image.repository .Values.controllerManager.manager.image.tag | quote";
/// `values.schema.json`: Helm rejects values that it does not know.
pub const SCHEMA: &str = include_str!("values.schema.json");

/// Values of the pods that replace those of `berth install`: the path in the Deployment, and the
/// expression.
const REPLACED: [(&str, &str); 5] = [
    ("/spec/template/spec/priorityClassName", ".Values.controllerManager.manager.priorityClassName | quote"),
    ("/spec/template/spec/securityContext", ".Values.controllerManager.manager.podSecurityContext | toJson"),
    ("/spec/template/spec/topologySpreadConstraints", ".Values.controllerManager.topologySpreadConstraints | toJson"),
    ("/spec/template/spec/containers/0/resources", ".Values.controllerManager.manager.resources | toJson"),
    (
        "/spec/template/spec/containers/0/securityContext",
        ".Values.controllerManager.manager.containerSecurityContext | toJson",
    ),
];
/// Fields of the pods that exist if their value is set: the path of the parent, the field, the
/// value, and how it is written.
const OPTIONAL: [(&str, &str, &str, &str); 9] = [
    ("/spec", "strategy", "strategy", "toJson"),
    ("/spec/template/spec", "hostNetwork", "hostNetwork", "toJson"),
    ("/spec/template/spec", "dnsPolicy", "dnsPolicy", "quote"),
    ("/spec/template/spec", "imagePullSecrets", "imagePullSecrets", "toJson"),
    ("/spec/template/spec", "nodeSelector", "nodeSelector", "toJson"),
    ("/spec/template/spec", "tolerations", "tolerations", "toJson"),
    ("/spec/template/spec", "affinity", "affinity", "toJson"),
    ("/spec/template/spec/containers/0", "imagePullPolicy", "manager.image.pullPolicy", "quote"),
    ("/spec/template/metadata/annotations", "podAnnotations", "manager.podAnnotations", LINES),
];
/// A value whose entries are added to the parent's.
const LINES: &str = "entries";
/// The probes.
const PROBES: [&str; 2] = ["livenessProbe", "readinessProbe"];
/// Settings of a probe.
const OF_PROBE: [&str; 5] =
    ["initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"];
/// Annotation by which cert-manager writes the certificate authority of the webhooks.
const AUTHORITY: &str = "cert-manager.io/inject-ca-from";
/// Name of the Certificate, which `extras.yaml` has too.
const CERTIFICATE: &str = "berth-serving-cert";

/// Inserts the values into the objects of an installation. `of` makes the text that stands for an
/// expression.
pub fn insert(mut objects: Vec<Value>, of: fn(&str) -> String) -> Vec<Value> {
    for object in &mut objects {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match object["kind"].as_str().unwrap_or_default() {
            "Deployment" => insert_into_pods(object, of),
            "Service" if name == METRICS_SERVICE => {
                object["spec"]["ports"] = json!(of(".Values.metricsService.ports | toJson"));
                object["spec"]["type"] = json!(of(".Values.metricsService.type"));
                object["metadata"]["labels"] = json!(of(&with_further(&rights::labels(&[]), "metricsService.labels")));
                object["metadata"]["annotations"] = json!(of(".Values.metricsService.annotations | toJson"));
            }
            "Service" if object["spec"]["ports"][0]["targetPort"] == "webhook" => {
                object["spec"]["type"] = json!(of(".Values.webhookService.type"));
                object["spec"]["ipFamilies"] = json!(of(".Values.webhookService.ipDualStack.ipFamilies | toJson"));
                object["spec"]["ipFamilyPolicy"] = json!(of(".Values.webhookService.ipDualStack.ipFamilyPolicy"));
            }
            "MutatingWebhookConfiguration" => {
                for hook in object["webhooks"].as_array_mut().into_iter().flatten() {
                    hook["reinvocationPolicy"] = json!(of(".Values.mutatingWebhook.reinvocationPolicy"));
                }
            }
            _ => {}
        }
        let kind = object["kind"].as_str().unwrap_or_default();
        let is_converted = !object["spec"]["conversion"].is_null();
        if kind.ends_with("WebhookConfiguration") || kind == "APIService" || is_converted {
            let certificate = format!("printf `%s/{CERTIFICATE}` .Release.Namespace | quote");
            object["metadata"]["annotations"][AUTHORITY] = json!(of(&certificate));
        }
    }
    objects
}

/// An object with the entries of a value, as an expression.
pub(super) fn with_further(object: &Value, value: &str) -> String {
    let entries = object.as_object().into_iter().flatten();
    let entries: Vec<String> =
        entries.map(|(key, value)| format!("`{key}` `{}`", value.as_str().unwrap_or_default())).collect();
    format!("merge (dict {}) .Values.{value} | toJson", entries.join(" "))
}

fn insert_into_pods(deployment: &mut Value, of: fn(&str) -> String) {
    for (path, expression) in REPLACED {
        if let Some(field) = deployment.pointer_mut(path) {
            *field = json!(of(expression));
        }
    }
    for (parent, field, value, form) in OPTIONAL {
        let Some(parent) = deployment.pointer_mut(parent) else { continue };
        let value = format!("controllerManager.{value}");
        match form {
            LINES => *parent = json!(of(&with_further(parent, &value))),
            form => parent[field] = json!(of(&format!(".Values.{value} | {form}"))),
        }
    }
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    for probe in PROBES {
        for setting in OF_PROBE {
            container[probe][setting] = json!(of(&format!(".Values.controllerManager.{probe}.{setting}")));
        }
    }
    if let Some(arguments) = container["args"].as_array_mut() {
        arguments.push(json!(format!("--feature-gates={}", of("join `,` $gates"))));
        arguments.push(json!(format!("--zap-log-level={}", of(".Values.controllerManager.manager.logLevel"))));
    }
}

/// The conditions of lines, by a text that the line contains.
fn conditions() -> Vec<(String, String)> {
    let of_pods = |value: &str| format!(".Values.controllerManager.{value}");
    let mut all = Vec::new();
    for (_, field, value, form) in OPTIONAL {
        if form != LINES {
            let value = of_pods(value);
            all.push((format!("{field}: {{{{ {value}"), value));
        }
    }
    for probe in PROBES {
        for setting in OF_PROBE {
            let value = of_pods(&format!("{probe}.{setting}"));
            all.push((format!("{setting}: {{{{ {value}"), value));
        }
    }
    all.push(("- --feature-gates=".to_owned(), of_pods("featureGates")));
    all.push(("- --zap-log-level=".to_owned(), of_pods("manager.logLevel")));
    all.push(("annotations: {{ .Values.metricsService.".to_owned(), ".Values.metricsService.annotations".to_owned()));
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        let value = ".Values.webhookService.ipDualStack";
        all.push((format!("{field}: {{{{ {value}.{field}"), format!("{value}.enabled")));
    }
    all
}

/// The manifests, with conditions for the lines of optional values.
pub fn conditional(text: &str) -> String {
    const BUDGET: &str = ".Values.controllerManager.podDisruptionBudget.minAvailable";
    let conditions = conditions();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        let next = lines.get(at + 1).copied().unwrap_or_default();
        at += 1;
        if line.trim() == "annotations:" && next.contains(AUTHORITY) {
            result.push_str(&guarded(".Values.enableCertManager", &format!("{line}{next}")));
            at += 1;
        } else if line == "  maxUnavailable: 1\n" {
            let at_least = format!("  minAvailable: {{{{ {BUDGET} }}}}\n");
            result.push_str(&format!("{{{{- if {BUDGET} }}}}\n{at_least}{{{{- else }}}}\n{line}{{{{- end }}}}\n"));
        } else if let Some((_, condition)) = conditions.iter().find(|(text, _)| line.contains(text.as_str())) {
            result.push_str(&guarded(condition, line));
        } else {
            result.push_str(line);
        }
    }
    result
}

/// The value by which an object can be left out.
pub fn condition_of(object: &Value) -> Option<&'static str> {
    match object["kind"].as_str()? {
        "PodDisruptionBudget" => Some(".Values.controllerManager.podDisruptionBudget.enabled"),
        "RoleBinding" if object["metadata"]["namespace"] == "kube-system" => {
            Some(".Values.enableVisibilityAuthReaderRoleBinding")
        }
        _ => None,
    }
}

/// Variables and checks of values, ahead of the controllers' objects.
pub fn checks() -> String {
    let fails = |condition: &str, why: &str| {
        format!("{{{{- if {condition} }}}}\n{{{{- fail {} }}}}\n{{{{- end }}}}\n", json!(why))
    };
    let gates = "{{- $gates := list }}\n{{- range .Values.controllerManager.featureGates }}\n\
                 {{- $gates = append $gates (printf \"%s=%t\" .name .enabled) }}\n{{- end }}\n";
    let of_kueue = fails(
        "hasSuffix `/kueue` .Values.controllerManager.manager.image.repository",
        "controllerManager.manager.image.repository is the image of Kueue: leave out controllerManager.manager.image, \
         or name an image of Berth",
    );
    let own = fails(
        &format!(
            "and .Values.enableCertManager (ne ({} | toString) `false`)",
            setting("internalCertManagement", "enable")
        ),
        "enableCertManager: the controllers would make a certificate of their own; set internalCertManagement.enable: \
         false in managerConfig.controllerManagerConfigYaml",
    );
    // A Service forwards to any number, so a wrong port would only show as a target that is down.
    let port = settings(str::to_owned).metrics_port;
    let port = format!("{{{{- $metricsPort := {} }}}}\n", port.as_str().unwrap_or_default());
    let metrics = fails(
        "not (has (.targetPort | default .port | toString) (list `metrics` $metricsPort))",
        "metricsService.ports: the targetPort must be \"metrics\", or the port of metrics.bindAddress in \
         managerConfig.controllerManagerConfigYaml",
    );
    let metrics = format!("{port}{{{{- range .Values.metricsService.ports }}}}\n{metrics}{{{{- end }}}}\n");
    [gates, &of_kueue, &own, &metrics].concat()
}

/// The objects that only the chart has: for Prometheus, cert-manager and flow control.
pub fn extras() -> String {
    let of = |expression: &str| expression.to_owned();
    let secret = settings(of).secret;
    let services: Vec<String> =
        [aggregated::SERVICE, METRICS_SERVICE, DASHBOARD_SERVICE].map(|it| json!(it).to_string()).into();
    let webhook = settings(of).service;
    let verify = format!(
        "{{{{- $tlsConfig := dict \"serverName\" (printf \"{METRICS_SERVICE}.%s.svc\" .Release.Namespace) \"ca\" (dict \"secret\" \
         (dict \"name\" ({}) \"key\" \"ca.crt\")) }}}}\n",
        without_quotes(&secret)
    );
    let objects = include_str!("extras.yaml")
        .replace("@SECRET@", &format!("{{{{ {secret} }}}}"))
        .replace("@SERVICES@", &format!("({}) {}", without_quotes(&webhook), services.join(" ")));
    verify + &objects
}

fn without_quotes(expression: &str) -> &str {
    expression.strip_suffix(" | quote").unwrap_or(expression)
}

/// `values.yaml`: the defaults of `berth install`.
pub fn defaults() -> anyhow::Result<String> {
    let configuration: Vec<String> = manifests::configuration().lines().map(|line| format!("    {line}")).collect();
    let (repository, tag) = manifests::IMAGE.rsplit_once(':').context("the image has a tag")?;
    Ok(include_str!("values.yaml")
        .replace("@REPOSITORY@", repository)
        .replace("@TAG@", tag)
        .replace("@REPLICAS@", &manifests::REPLICAS.to_string())
        .replace("@CONFIGURATION@", &configuration.join("\n"))
        .replace("@HOLD_POLICY@", hold::VERSION)
        .replace("@DASHBOARD_PORT@", &pages::PORT.to_string()))
}
