//! The objects of an installation.

use anyhow::Context;
use berth_controllers::aggregated;
use berth_controllers::configuration::{BindAddress, Process, frameworks, process as defaults};
use berth_controllers::gpu_exporters;
use berth_controllers::jobs;
use berth_controllers::rights::{self, NAME, Names, SERVICE_ACCOUNT, WEBHOOK_CONFIGURATION, WEBHOOK_SERVICE};
use berth_operators::appwrapper;
use berth_operators::health::monitor;
use serde_json::{Value, json};

use super::hold::{self, Held};
use super::pages::{self, Pages};
use crate::controller::webhook::{APP_WRAPPERS_MUTATE, APP_WRAPPERS_VALIDATE};

/// Image of this version.
pub const IMAGE: &str = concat!("ghcr.io/berth-batch/berth:", env!("CARGO_PKG_VERSION"));
/// Number of replicas. One replica leads and one is on standby.
pub const REPLICAS: u32 = 2;

/// The default configuration file of an installation: every integration whose feature gate is on by
/// default or that needs none, else Kueue's defaults.
pub fn configuration() -> String {
    let frameworks: String = frameworks::on_by_default().map(|name| format!("  - {name}\n")).collect();
    format!(
        "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nintegrations:\n  frameworks:\n{frameworks}"
    )
}

const KUEUE: &str = "kueue.x-k8s.io";
const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
/// Namespaces whose jobs are never queued, in addition to the controllers' own. The components of
/// the cluster must not wait for quota.
pub const UNMANAGED: [&str; 2] = ["kube-system", "kueue-system"];

/// Time in seconds for which a replica that is deleted continues to work. API servers learn from
/// the endpoints of the Services that it leaves, and send requests of webhooks and conversion to it
/// until then. Less than the grace period of the pod.
const LEAVING_SECONDS: u32 = 3;

/// User and group of the controllers' process, which the image has (`Dockerfile`). They belong to
/// no user of the host.
const USER: u32 = 65532;

/// The values that the objects share with the configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Name of the Lease.
    pub lease: String,
    /// Its namespace.
    pub lease_namespace: String,
    /// Service of the webhooks.
    pub service: String,
    /// Secret of the webhook certificate.
    pub secret: String,
    /// Folder of a provided certificate.
    pub certificates: String,
    /// Path of the readiness probe.
    pub readiness: String,
    /// Path of the liveness probe.
    pub liveness: String,
    /// Port of the probes. Like the other ports, it is a number or a template's placeholder.
    pub health_port: Value,
    /// Port of the metrics.
    pub metrics_port: Value,
    /// Port of the webhooks.
    pub webhook_port: Value,
}

impl Settings {
    /// The values of a configuration file, for an installation in this namespace.
    pub fn of(file: &Process, namespace: &str) -> Self {
        let or = |text: &Option<String>, usual: &str| text.clone().unwrap_or_else(|| usual.to_owned());
        // The port of a disabled endpoint is not used.
        let port =
            |address: Option<BindAddress>, usual: u16| json!(address.and_then(BindAddress::port).unwrap_or(usual));
        let folder = file.certificate_folder.as_ref().map(|folder| folder.display().to_string());
        Settings {
            lease: or(&file.election.name, NAME),
            lease_namespace: or(&file.election.namespace, namespace),
            service: or(&file.webhook_service, WEBHOOK_SERVICE),
            secret: or(&file.webhook_secret, rights::WEBHOOK_SECRET),
            certificates: or(&folder, defaults::CERTIFICATE_FOLDER),
            readiness: or(&file.readiness_path, defaults::READINESS_PATH),
            liveness: or(&file.liveness_path, defaults::LIVENESS_PATH),
            health_port: port(file.health_address, defaults::HEALTH_PORT),
            metrics_port: port(file.metrics_address, defaults::METRICS_PORT),
            webhook_port: json!(file.webhook_port.unwrap_or(defaults::WEBHOOK_PORT)),
        }
    }
}

/// The values that differ between installations.
pub struct Values {
    /// Namespace of the controllers.
    pub namespace: String,
    /// The namespace inside a longer string, which a template quotes as a whole.
    pub namespace_in_text: String,
    /// Image of the controllers.
    pub image: String,
    /// Number of replicas: a number, or a template's placeholder.
    pub replicas: Value,
    /// Text of the configuration file.
    pub configuration: String,
    /// The values that the objects share with the configuration file.
    pub settings: Settings,
    /// The values of the configuration file that select held objects.
    pub held: Held,
}

/// Parts of an installation.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// CustomResourceDefinitions.
    pub crds: bool,
    /// The policies that hold jobs while no controller is available, in this API version.
    pub hold_policy: Option<String>,
    /// Only the objects that hold jobs, and their prerequisites.
    pub hold_only: bool,
    /// Controllers that decide and write nothing, without the definitions.
    pub standby: bool,
    /// AppWrappers: rights, webhooks and definition.
    pub app_wrappers: bool,
    /// Metrics over HTTPS, for clients that the API server allows.
    pub metrics_secure: bool,
    /// The reaction to unhealthy nodes: an option and rights.
    pub node_health: bool,
    /// Name of the slack queue.
    pub slack_queue: Option<String>,
    /// Number of waiting workloads per ClusterQueue whose forecasts are written on their Workloads.
    pub forecasts: Option<String>,
    /// Namespace of the GPU exporters that the controllers read: an option and rights.
    pub gpu_exporters: Option<String>,
    /// The web pages.
    pub pages: Option<Pages>,
}

/// True if an object of an installation holds jobs.
pub fn holds(object: &Value) -> bool {
    object["apiVersion"].as_str().is_some_and(|version| version.starts_with("admissionregistration.k8s.io/"))
}

/// All objects in the order of creation: first the namespace, the Service and the objects that hold
/// jobs; then the controllers; last those that need running controllers. An interrupted
/// installation has therefore not taken over any job.
pub fn objects(values: &Values, parts: &Parts) -> Vec<Value> {
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": values.namespace, "labels": rights::labels(&[])},
        }),
        webhook_service(values),
    ];
    // The policies come before the webhooks that may be skipped because of them.
    if let Some(version) = &parts.hold_policy {
        objects.extend(hold::objects(version, &values.held));
    }
    objects.push(webhooks(values, "MutatingWebhookConfiguration", parts));
    objects.push(webhooks(values, "ValidatingWebhookConfiguration", parts));
    if parts.hold_only {
        return objects;
    }
    let Settings { lease, lease_namespace, secret, .. } = values.settings.clone();
    objects.extend(rights::objects_named(&Names {
        namespace: values.namespace.clone(),
        lease,
        lease_namespace,
        secret,
    }));
    objects.push(flow_schema(values));
    if parts.app_wrappers {
        objects.extend(role(values, "appwrapper", json!(appwrapper::rights::rules())));
    }
    if parts.node_health || parts.slack_queue.is_some() {
        objects.extend(role(values, "node-health", monitor::rules()));
    }
    if let Some(exporters) = &parts.gpu_exporters {
        objects.extend(role_in(exporters, values, "gpu-exporters", gpu_exporters::rules()));
    }
    if let Some(pages) = &parts.pages {
        objects.extend(pages.rules().into_iter().flat_map(|rules| role(values, pages::ROLE, rules)));
        objects.push(pages.service(values, &selector()));
    }
    objects.extend(workload(values, parts));
    if parts.standby {
        return objects;
    }
    if parts.crds {
        objects.extend(definitions(values));
    }
    if parts.crds && parts.app_wrappers {
        objects.extend(app_wrapper_definition());
    }
    objects.extend(aggregated::objects(&values.namespace));
    objects
}

/// The Service by which the API server reaches the webhooks.
fn webhook_service(values: &Values) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": values.settings.service, "namespace": values.namespace, "labels": rights::labels(&[])},
        "spec": {
            "type": "ClusterIP", "selector": selector(),
            "ports": [{"name": "webhook", "port": 443, "targetPort": "webhook"}],
        },
    })
}

/// Labels of the controllers' pods.
fn selector() -> Value {
    json!({"app.kubernetes.io/name": "berth", "app.kubernetes.io/component": "controller"})
}

/// A FlowSchema by which the API server serves the Lease's writes together with those of
/// Kubernetes' own leaders, ahead of other requests of the controllers and of other programs.
fn flow_schema(values: &Values) -> Value {
    let account = json!({"name": SERVICE_ACCOUNT, "namespace": values.namespace});
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": {"name": rights::LEADER_ELECTION, "labels": rights::labels(&[])},
        "spec": {
            "priorityLevelConfiguration": {"name": "leader-election"},
            // Between Kubernetes' FlowSchemas system-leader-election (100) and
            // workload-leader-election (200).
            "matchingPrecedence": 150,
            "rules": [{
                "subjects": [{"kind": "ServiceAccount", "serviceAccount": account}],
                "resourceRules": [{
                    "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"],
                    "namespaces": [values.settings.lease_namespace],
                }],
            }],
        },
    })
}

/// An object as YAML.
pub fn yaml(object: &Value) -> anyhow::Result<String> {
    serde_saphyr::to_string(object).context("an object cannot be written as YAML")
}

/// Kueue's kinds. The webhook server converts their versions. Kinds of other projects (JobSet,
/// ProvisioningRequest) are installed with the programs that serve them.
pub fn definitions(values: &Values) -> Vec<Value> {
    let converted = rights::converted_kinds();
    let mut definitions: Vec<Value> =
        berth_api::crds().iter().filter(|definition| definition["spec"]["group"] == KUEUE).cloned().collect();
    for definition in &mut definitions {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        definition["metadata"]["labels"] = rights::labels(&[]);
        if converted.contains(&name) {
            definition["spec"]["conversion"] = json!({
                "strategy": "Webhook",
                "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client(values, "/convert")},
            });
        }
    }
    definitions
}

/// The CustomResourceDefinition of AppWrappers.
pub fn app_wrapper_definition() -> Option<Value> {
    let mut all = berth_api::frameworks::crds().into_iter();
    all.find(|definition| definition["spec"]["names"]["kind"] == "AppWrapper")
}

fn client(values: &Values, path: &str) -> Value {
    json!({"service": {"name": values.settings.service, "namespace": values.namespace, "path": path, "port": 443}})
}

/// Further rights of the controllers, for an option.
fn role(values: &Values, option: &str, rules: Value) -> [Value; 2] {
    let metadata = json!({"name": format!("{NAME}-{option}"), "labels": rights::labels(&[])});
    granted(values, "ClusterRole", metadata, rules)
}

/// Like [`role`], in one namespace.
fn role_in(namespace: &str, values: &Values, option: &str, rules: Value) -> [Value; 2] {
    let name = format!("{NAME}-{option}");
    granted(values, "Role", json!({"name": name, "namespace": namespace, "labels": rights::labels(&[])}), rules)
}

/// A role and its binding to the controllers.
fn granted(values: &Values, kind: &str, metadata: Value, rules: Value) -> [Value; 2] {
    let rbac = "rbac.authorization.k8s.io";
    let version = format!("{rbac}/v1");
    [
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules}),
        json!({"apiVersion": version, "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": kind, "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": values.namespace}]}),
    ]
}

/// The workload of the controllers: priority class, configuration, Service of the metrics,
/// disruption budget and Deployment.
fn workload(values: &Values, parts: &Parts) -> Vec<Value> {
    let metadata = |name: &str| metadata(values, name);
    let selector = selector();
    vec![
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": NAME, "labels": rights::labels(&[])},
            "value": 1_000_000_000, "globalDefault": false,
            "description": "For Berth's controllers, whose pods must not wait for the workloads that they queue.",
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("berth-controller-config"),
            "data": {"config.yaml": values.configuration},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata("berth-metrics"),
            "spec": {
                "type": "ClusterIP", "selector": selector,
                "ports": [{"name": "metrics", "port": 8080, "targetPort": "metrics"}],
            },
        }),
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(NAME),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector}},
        }),
        deployment(values, parts),
    ]
}

/// Metadata of an object in the namespace of the controllers.
fn metadata(values: &Values, name: &str) -> Value {
    json!({"name": name, "namespace": values.namespace, "labels": rights::labels(&[])})
}

/// The arguments of the controllers, without those of the web pages.
fn arguments(parts: &Parts) -> Vec<String> {
    let mut args = vec!["controller".to_owned(), "--config=/etc/berth/config.yaml".to_owned()];
    if parts.standby {
        // Without the Lease, so that the first replica that decides need not wait for it.
        args.extend(["--controllers=".to_owned(), "--leader-elect=false".to_owned()]);
    }
    args.extend(parts.app_wrappers.then(|| "--appwrapper".to_owned()));
    args.extend(parts.metrics_secure.then(|| "--metrics-secure".to_owned()));
    args.extend(parts.node_health.then(|| "--node-health".to_owned()));
    args.extend(parts.slack_queue.as_ref().map(|name| format!("--slack-queue={name}")));
    args.extend(parts.gpu_exporters.as_ref().map(|namespace| format!("--gpu-exporters={namespace}")));
    args.extend(parts.forecasts.as_ref().map(|places| format!("--forecast-annotations={places}")));
    args
}

/// The Deployment of the controllers.
fn deployment(values: &Values, parts: &Parts) -> Value {
    let mut args = arguments(parts);
    let of_pages = parts.pages.as_ref().map(Pages::of_pod).unwrap_or_default();
    args.extend(of_pages.arguments);
    let selector = selector();
    let settings = &values.settings;
    let port = |name: &str, number: &Value| json!({"name": name, "containerPort": number, "protocol": "TCP"});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "health"}});
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mut ports = vec![
        port("webhook", &settings.webhook_port),
        port("metrics", &settings.metrics_port),
        port("health", &settings.health_port),
    ];
    ports.extend(of_pages.ports);
    let mut mounts = vec![
        json!({"name": "config", "mountPath": "/etc/berth", "readOnly": true}),
        json!({"name": "certificates", "mountPath": settings.certificates, "readOnly": true}),
    ];
    mounts.extend(of_pages.mounts);
    let mut volumes = vec![
        json!({"name": "config", "configMap": {"name": "berth-controller-config"}}),
        // Read only with internalCertManagement.enable: false.
        json!({"name": "certificates", "secret": {"secretName": settings.secret, "optional": true}}),
    ];
    volumes.extend(of_pages.volumes);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(values, NAME),
        "spec": {
            "replicas": values.replicas,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": selector, "annotations": {"kubectl.kubernetes.io/default-container": "controller"}},
                "spec": {
                    "serviceAccountName": SERVICE_ACCOUNT,
                    "priorityClassName": NAME,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "terminationGracePeriodSeconds": 10,
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": selector},
                    }],
                    "containers": [{
                        "name": "controller",
                        "image": values.image,
                        "args": args,
                        "env": [
                            {"name": "POD_NAME", "valueFrom": field("metadata.name")},
                            {"name": "POD_IP", "valueFrom": field("status.podIP")},
                        ],
                        "ports": ports,
                        "livenessProbe": probe(&settings.liveness),
                        "readinessProbe": probe(&settings.readiness),
                        "lifecycle": {"preStop": {"sleep": {"seconds": LEAVING_SECONDS}}},
                        "resources": {
                            "requests": {"cpu": "500m", "memory": "512Mi"},
                            "limits": {"memory": "2Gi"},
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        "volumeMounts": mounts,
                    }],
                    "volumes": volumes,
                },
            },
        },
    })
}

/// The namespaces that the webhooks exclude.
fn unmanaged_namespaces(values: &Values) -> Vec<&str> {
    let mut all = UNMANAGED.to_vec();
    if !all.contains(&values.namespace.as_str()) {
        all.push(&values.namespace);
    }
    all
}

/// The webhook of the states of admission checks, which other programs write. The controllers' own
/// writes are exempt.
fn of_status(values: &Values, mut hook: Value) -> Value {
    hook["rules"][0]["operations"] = json!(["UPDATE"]);
    // Service accounts of this installation only: a user with rights in another namespace could
    // create an account with the same name there.
    let own = format!("system:serviceaccount:{}:{SERVICE_ACCOUNT}", values.namespace_in_text);
    let expression = format!("request.userInfo.username != '{own}'");
    hook["matchConditions"] = json!([{"name": "is-not-of-the-controllers", "expression": expression}]);
    hook
}

/// One webhook configuration. Jobs without a queue never depend on a webhook. Jobs with a queue are
/// held by policies ([`hold`]) while no controller is available; without the policies they are
/// rejected.
fn webhooks(values: &Values, kind: &str, parts: &Parts) -> Value {
    let (path, short) = match kind {
        "MutatingWebhookConfiguration" => ("/mutate", "default"),
        _ => ("/validate", "validate"),
    };
    let hook = |name: &str, group: &str, version: &str, resources: &[&str], policy: &str| {
        json!({
            "name": format!("{name}.{short}.berth.dev"),
            "admissionReviewVersions": ["v1"],
            "clientConfig": client(values, path),
            "failurePolicy": policy,
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "rules": [{
                "apiGroups": [group], "apiVersions": [version], "resources": resources,
                "operations": ["CREATE", "UPDATE"], "scope": "*",
            }],
        })
    };
    let elsewhere = json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": unmanaged_namespaces(values)}]});
    let held = if parts.hold_policy.is_some() { "Ignore" } else { "Fail" };
    // One webhook for objects with a queue, and one for the others, which must not be rejected.
    let pair = |group: &str, version: &str, name: &str| {
        let with_label = |mut hook: Value, operator: &str| {
            hook["objectSelector"] = json!({"matchExpressions": [{"key": QUEUE_NAME, "operator": operator}]});
            hook["namespaceSelector"] = elsewhere.clone();
            hook
        };
        [
            with_label(hook(&format!("queued-{name}"), group, version, &[name], held), "Exists"),
            with_label(hook(name, group, version, &[name], "Ignore"), "DoesNotExist"),
        ]
    };
    let mut hooks = Vec::new();
    if parts.app_wrappers {
        // Before the webhook that suspends AppWrappers with a queue: this one adds the default
        // queue.
        let path = if short == "default" { APP_WRAPPERS_MUTATE } else { APP_WRAPPERS_VALIDATE };
        let mut own = hook("of-appwrappers", "workload.codeflare.dev", "v1beta2", &["appwrappers"], "Fail");
        own["clientConfig"] = client(values, path);
        hooks.push(own);
    }
    hooks.extend([hook("queues", KUEUE, "*", &["clusterqueues", "cohorts", "resourceflavors", "workloads"], "Fail")]);
    // A job without a queue may get its namespace's default queue.
    let suspendable = jobs::suspendable();
    hooks.extend(suspendable.iter().flat_map(|it| pair(&it.group, &it.version, &it.resource)));
    // Pods, and kinds that create pods. Objects without a queue may get their namespace's default
    // queue, or be held if all jobs are managed.
    for (group, version, name) in [
        ("", "v1", "pods"),
        ("apps", "v1", "deployments"),
        ("apps", "v1", "statefulsets"),
        ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
    ] {
        hooks.extend(pair(group, version, name));
    }
    if kind == "ValidatingWebhookConfiguration" {
        hooks.push(of_status(values, hook("workload-status", KUEUE, "*", &["workloads/status"], "Fail")));
    }
    if kind == "MutatingWebhookConfiguration" {
        for hook in &mut hooks {
            hook["reinvocationPolicy"] = json!("Never");
        }
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": {"name": WEBHOOK_CONFIGURATION, "labels": rights::labels(&[])},
        "webhooks": hooks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        Values {
            namespace: "berth-system".to_owned(),
            namespace_in_text: "berth-system".to_owned(),
            image: IMAGE.to_owned(),
            replicas: REPLICAS.into(),
            configuration: configuration(),
            settings: Settings::of(&Process::default(), "berth-system"),
            held: Held::of(&berth_controllers::Config::default(), "berth-system"),
        }
    }

    #[test]
    fn only_queued_jobs_depend_on_a_webhook() {
        for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
            for (hold_policy, queued) in [(None, "Fail"), (Some("v1".to_owned()), "Ignore")] {
                let configuration =
                    webhooks(&values(), kind, &Parts { crds: true, hold_policy, hold_only: false, ..Parts::default() });
                for hook in configuration["webhooks"].as_array().expect("webhooks") {
                    let name = hook["name"].as_str().expect("a name");
                    let expected = match name.split('.').next() {
                        Some("queues" | "workload-status") => "Fail",
                        Some(name) if name.starts_with("queued-") => queued,
                        _ => "Ignore",
                    };
                    assert_eq!(hook["failurePolicy"], expected, "{name}");
                }
            }
        }
    }

    #[test]
    fn printed_objects_are_parsed_back_unchanged() {
        let parts = Parts { crds: true, hold_policy: Some("v1".to_owned()), hold_only: false, ..Parts::default() };
        for object in objects(&values(), &parts) {
            let text = yaml(&object).expect("YAML");
            let read: Value = serde_saphyr::from_str(&text).expect("YAML");
            assert_eq!(read, object);
        }
    }

    #[test]
    fn a_deleted_replica_serves_webhooks_until_api_servers_know_and_then_has_time_to_release_its_lease() {
        let all = objects(&values(), &Parts { crds: true, ..Parts::default() });
        let deployment = all.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        let leaving = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().expect("seconds");
        let grace = pod["terminationGracePeriodSeconds"].as_u64().expect("seconds");
        assert!((2..=grace - 5).contains(&leaving), "{leaving} of {grace} s");
    }

    #[test]
    fn objects_that_hold_jobs_come_first_and_objects_that_need_controllers_come_last() {
        let parts = |hold_only| Parts { crds: true, hold_policy: Some("v1".to_owned()), hold_only, ..Parts::default() };
        let all = objects(&values(), &parts(false));
        let first = |wanted: &dyn Fn(&Value) -> bool| all.iter().position(wanted).expect("there is one");
        let last = |wanted: &dyn Fn(&Value) -> bool| all.iter().rposition(wanted).expect("there is one");
        let is = |kind: &'static str| move |object: &Value| object["kind"] == kind;
        assert!(last(&|object| holds(object)) < first(&is("Deployment")));
        assert!(first(&is("Deployment")) < first(&is("CustomResourceDefinition")));
        assert!(first(&is("Deployment")) < first(&is("APIService")));
        let holding = objects(&values(), &parts(true));
        assert_eq!(holding, all[..holding.len()], "the objects of the first step are the first of all objects");
        let others: Vec<&Value> =
            holding.iter().filter(|object| !holds(object)).map(|object| &object["kind"]).collect();
        assert_eq!(others, ["Namespace", "Service"]);
    }

    #[test]
    fn a_standby_serves_webhooks_decides_nothing_and_leaves_the_definitions_alone() {
        let parts = Parts { crds: true, hold_policy: Some("v1".to_owned()), standby: true, ..Parts::default() };
        let standby = objects(&values(), &parts);
        let whole = objects(&values(), &Parts { standby: false, ..parts });
        let count = |objects: &[Value], kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!((count(&standby, "CustomResourceDefinition"), count(&standby, "APIService")), (0, 0));
        assert!(count(&whole, "CustomResourceDefinition") > 0 && count(&whole, "APIService") > 0);
        let arguments = |objects: &[Value]| {
            let found = objects.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
            found["spec"]["template"]["spec"]["containers"][0]["args"].clone()
        };
        assert_eq!(
            arguments(&standby),
            json!(["controller", "--config=/etc/berth/config.yaml", "--controllers=", "--leader-elect=false"])
        );
        let others = standby.iter().filter(|object| object["kind"] != "Deployment");
        assert_eq!(others.filter(|object| !whole.contains(object)).count(), 0);
        assert!(standby.iter().any(holds));
    }

    #[test]
    fn writes_of_the_lease_have_the_priority_of_kubernetes_own_leaders() {
        let mut values = values();
        values.settings.lease_namespace = "elsewhere".to_owned();
        let schema = flow_schema(&values);
        assert_eq!(schema["spec"]["priorityLevelConfiguration"]["name"], "leader-election");
        let rule = &schema["spec"]["rules"][0];
        let account = json!({"name": SERVICE_ACCOUNT, "namespace": "berth-system"});
        assert_eq!(rule["subjects"], json!([{"kind": "ServiceAccount", "serviceAccount": account}]));
        assert_eq!(rule["resourceRules"][0]["namespaces"], json!(["elsewhere"]));
        // The rule covers what the account may do with Leases.
        let may = rights::objects(rights::NAMESPACE);
        let may = may.iter().find(|it| it["kind"] == "Role" && it["metadata"]["name"] == rights::LEADER_ELECTION);
        let rules = may.expect("a role")["rules"].as_array().cloned().unwrap_or_default();
        let mut verbs: Vec<&str> = rules
            .iter()
            .flat_map(|rule| rule["verbs"].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect();
        let mut about: Vec<&str> =
            rule["resourceRules"][0]["verbs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        verbs.sort_unstable();
        about.sort_unstable();
        assert_eq!(about, verbs);
    }
}
