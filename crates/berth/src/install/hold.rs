//! Policies by which the API server itself holds queued jobs while no webhook of Berth is
//! available.
//!
//! A policy can read neither owners nor other objects except a LocalQueue, so it holds jobs
//! provisionally and marks them. The webhooks decide later, or the controllers when they are
//! available again ([`berth_controllers::webhooks::held`]). Each policy has one binding with its
//! name.

use std::collections::BTreeMap;

use berth_api::berth;
use berth_api::kueue::{annotations, constants, labels};
use berth_controllers::jobs::ancestors::managing_kinds;
use berth_controllers::jobs::{self, Suspendable};
use berth_controllers::{Config, rights};
use serde_json::{Value, json};

use super::manifests::UNMANAGED;

/// Default API version of the policies, which Kubernetes 1.36 and later versions serve.
pub const VERSION: &str = "v1";
/// The API versions of MutatingAdmissionPolicy, newest first.
pub const VERSIONS: [&str; 2] = [VERSION, "v1beta1"];

/// Name of the default LocalQueue. If a namespace has it, its jobs without a queue name use it.
const DEFAULT_QUEUE: &str = "default";
/// The mark of pods that are queued for their LeaderWorkerSet.
const LEADER_WORKER_SETS: &str = "leaderworkerset.x-k8s.io/leaderworkerset";

/// The part of the configuration that selects held objects: values, or placeholders of a template.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// Names of the enabled integrations, separated by commas.
    pub frameworks: String,
    /// Selector of the namespaces whose jobs are managed.
    pub namespaces: Value,
    /// `true` if jobs without a queue name are managed, otherwise `false`.
    pub all: String,
    /// Namespaces whose pods never wait for the controllers, separated by commas. The controllers'
    /// own namespace is one.
    pub spared: String,
}

impl Held {
    /// The values of a configuration, for controllers in `namespace`.
    pub fn of(config: &Config, namespace: &str) -> Self {
        Self {
            frameworks: config.integrations.frameworks.join(","),
            namespaces: json!(config.managed_jobs_namespace_selector),
            all: config.manage_jobs_without_queue_name.to_string(),
            spared: Self::spared_beside(namespace),
        }
    }

    /// The namespaces that webhooks exclude, and the controllers' namespace: its name, or a
    /// template's placeholder.
    pub fn spared_beside(namespace: &str) -> String {
        format!("{},{namespace}", UNMANAGED.join(","))
    }
}

/// One policy: the objects that it matches, and its mutation.
struct Policy {
    name: &'static str,
    rules: Vec<Value>,
    operations: &'static [&'static str],
    /// True if it matches objects with a queue name, false if it matches objects without one.
    queued: bool,
    conditions: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, String)>,
    mutation: String,
    /// True if it applies only in namespaces with a default queue.
    by_default_queue: bool,
}

/// The policies and their bindings, in the order in which they must be created.
pub fn objects(version: &str, held: &Held) -> Vec<Value> {
    let policies = [
        queued_jobs(held),
        defaulted_jobs(held),
        other_jobs(held),
        queued_pods(held),
        defaulted_pods(held),
        other_pods(held),
        queued_pod_owners(held),
        defaulted_pod_owners(held),
        other_pod_owners(held),
    ];
    policies.iter().flat_map(|policy| policy.objects(version, held)).collect()
}

impl Policy {
    fn objects(&self, version: &str, held: &Held) -> [Value; 2] {
        let api_version = format!("admissionregistration.k8s.io/{version}");
        let metadata = json!({"name": self.name, "labels": rights::labels(&[])});
        let operator = if self.queued { "Exists" } else { "DoesNotExist" };
        let named = |(name, expression): &(&str, String)| json!({"name": name, "expression": expression});
        let mut rules = self.rules.clone();
        for rule in &mut rules {
            rule["operations"] = json!(self.operations);
        }
        let mut policy = json!({
            "apiVersion": api_version, "kind": "MutatingAdmissionPolicy", "metadata": metadata,
            "spec": {
                // A job that names a queue must not start without quota. A job without a queue must
                // not depend on Berth.
                "failurePolicy": if self.queued { "Fail" } else { "Ignore" },
                // No reinvocation is needed: the webhooks run after this policy and make the final
                // decision.
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "objectSelector": {"matchExpressions": [{"key": labels::QUEUE_NAME, "operator": operator}]},
                    "namespaceSelector": held.namespaces,
                    "resourceRules": rules,
                },
                "matchConditions": self.conditions.iter().map(named).collect::<Vec<_>>(),
                "mutations": [{
                    "patchType": "ApplyConfiguration", "applyConfiguration": {"expression": self.mutation},
                }],
            },
        });
        let mut binding = json!({
            "apiVersion": api_version, "kind": "MutatingAdmissionPolicyBinding", "metadata": metadata,
            "spec": {"policyName": self.name},
        });
        if !self.variables.is_empty() {
            policy["spec"]["variables"] = self.variables.iter().map(named).collect();
        }
        if self.by_default_queue {
            policy["spec"]["paramKind"] = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"});
            // Without a namespace, the namespace of the object is used.
            binding["spec"]["paramRef"] = json!({"name": DEFAULT_QUEUE, "parameterNotFoundAction": "Allow"});
        }
        [policy, binding]
    }
}

fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({"apiGroups": [group], "apiVersions": [version], "resources": [resource], "scope": "Namespaced"})
}

/// A list of CEL strings.
fn list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| format!("'{}'", item.as_ref())).collect();
    format!("[{}]", items.join(", "))
}

/// The condition that the integration of this name (an expression) is enabled.
fn is_on(held: &Held, name: &str) -> String {
    // The commas on both sides make the search match whole names only. `frameworks` may be a
    // template expression that yields the list.
    format!("',{},'.contains(',' + {name} + ',')", held.frameworks)
}

/// The condition that the namespace is not one of the exempt ones, so its pods may wait until a
/// controller releases them.
fn is_not_spared(held: &Held) -> (&'static str, String) {
    ("is-not-spared", format!("!',{},'.contains(',' + request.namespace + ',')", held.spared))
}

/// The condition that all jobs are managed, also those without a queue.
fn is_managed(held: &Held) -> (&'static str, String) {
    ("is-managed", format!("true == ({})", held.all))
}

/// The condition that the controlling owner's kind is in `kinds`. Such an object is queued as part
/// of its owner.
fn is_owned(kinds: &str) -> String {
    format!(
        "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(owner, \
         owner.?controller.orValue(false) && (owner.apiVersion.split('/')[0] + '/' + owner.kind) in {kinds})"
    )
}

fn managing() -> String {
    list(managing_kinds().iter().map(|(group, kind)| format!("{group}/{kind}")))
}

/// The CEL expression that sets the field at `path` to `value`, such as `Object{spec:
/// Object.spec{suspend: true}}`.
fn apply(path: &[&str], value: &str) -> String {
    let mut expression = value.to_owned();
    for depth in (0..path.len()).rev() {
        let type_ = std::iter::once("Object").chain(path[..depth].iter().copied()).collect::<Vec<_>>().join(".");
        expression = format!("{type_}{{{}: {expression}}}", path[depth]);
    }
    expression
}

/// A CEL expression that depends on the object's kind: for each kind, the result of `of` for the
/// path of the field that suspends it.
fn by_kind(of: impl Fn(&[&str]) -> String) -> String {
    const MOST: &[&str] = &["spec", "suspend"];
    let mut elsewhere: BTreeMap<&[&str], Vec<String>> = BTreeMap::new();
    for Suspendable { kind, suspend, .. } in jobs::suspendable() {
        if suspend != MOST {
            elsewhere.entry(suspend).or_default().push(kind);
        }
    }
    elsewhere
        .iter()
        .fold(of(MOST), |rest, (path, kinds)| format!("request.kind.kind in {} ? {} : {rest}", list(kinds), of(path)))
}

/// Common parts of all policies for jobs.
fn of_jobs(name: &'static str, held: &Held) -> Policy {
    let kinds = jobs::suspendable();
    let frameworks: Vec<String> = kinds.iter().map(|it| format!("'{}': '{}'", it.kind, it.framework)).collect();
    let frameworks = format!("{{{}}}[request.kind.kind]", frameworks.join(", "));
    let written = by_kind(|path| format!("object.?{}.orValue(false)", path.join(".?")));
    let note = format!(
        "metadata: Object.metadata{{annotations: {{'{}': string(variables.written)}}}}",
        berth::HELD_ANNOTATION
    );
    let mutation = by_kind(|path| {
        let spec = apply(path, "true");
        let spec = spec.strip_prefix("Object{").unwrap_or(&spec);
        format!("Object{{{note}, {spec}")
    });
    Policy {
        name,
        rules: kinds.iter().map(|it| rule(&it.group, &it.version, &it.resource)).collect(),
        operations: &["CREATE"],
        queued: true,
        conditions: vec![
            ("is-integrated", is_on(held, &frameworks)),
            ("is-no-part", format!("!({})", is_owned(&managing()))),
            // A RayJob that uses an existing cluster is not queued; the cluster is.
            (
                "is-queued-itself",
                "request.kind.kind != 'RayJob' || object.spec.?clusterSelector.orValue({}).size() == 0".to_owned(),
            ),
        ],
        variables: vec![("written", written)],
        mutation,
        by_default_queue: false,
    }
}

fn queued_jobs(held: &Held) -> Policy {
    of_jobs("berth-hold-queued-jobs", held)
}

fn defaulted_jobs(held: &Held) -> Policy {
    Policy { queued: false, by_default_queue: true, ..of_jobs("berth-hold-jobs-of-default-queue", held) }
}

fn other_jobs(held: &Held) -> Policy {
    let mut policy = Policy { queued: false, ..of_jobs("berth-hold-jobs-without-queue", held) };
    policy.conditions.insert(0, is_managed(held));
    policy
}

/// The condition that the pod's template is marked: its pods are queued themselves.
fn is_of_queued_template() -> String {
    format!("object.metadata.?annotations[?'{}'].orValue('') != ''", annotations::POD_SUSPENDING_PARENT)
}

/// Policy for pods that name a queue, unless their owner is queued.
fn queued_pods(held: &Held) -> Policy {
    let mut policy = of_pods("berth-hold-queued-pods", held);
    policy.queued = true;
    // A pod of a marked template is queued itself, although its owner names a queue too.
    policy.conditions.push(("is-no-part", format!("{} || !({})", is_of_queued_template(), is_owned(&managing()))));
    policy
}

/// Policy for pods without a queue in namespaces with a default queue, unless their owner's kind is
/// queued.
fn defaulted_pods(held: &Held) -> Policy {
    let mut policy = of_pods("berth-hold-pods-of-default-queue", held);
    policy.conditions.push(is_not_spared(held));
    policy.conditions.push(is_not_placed());
    // For a pod that is queued as part of its owner, the owner's queue decides.
    policy.conditions.push(("is-no-part", format!("!({} || {})", is_of_queued_template(), is_owned(&managing()))));
    policy.by_default_queue = true;
    policy
}

/// Policy for pods without a queue, if all pods are managed.
fn other_pods(held: &Held) -> Policy {
    let mut policy = queued_pods(held);
    policy.name = "berth-hold-pods-without-queue";
    policy.queued = false;
    policy.conditions.insert(0, is_managed(held));
    policy.conditions.insert(1, is_not_spared(held));
    policy.conditions.insert(2, is_not_placed());
    policy
}

/// The condition that the pod has no node yet. A pod that is created with a node (`kubectl debug
/// node/...`) cannot have scheduling gates.
fn is_not_placed() -> (&'static str, String) {
    ("is-not-placed", "object.spec.?nodeName.orValue('') == ''".to_owned())
}

/// Common parts of all policies for pods.
fn of_pods(name: &'static str, held: &Held) -> Policy {
    let gates = [constants::ADMISSION_GATE, constants::TOPOLOGY_GATE];
    let of_nodes = list(["DaemonSet", "Node"]);
    let brought: Vec<String> = jobs::pods::FRAMEWORKS.iter().map(|name| is_on(held, &format!("'{name}'"))).collect();
    let gate = |name: &&str| format!("Object.spec.schedulingGates{{name: '{name}'}}");
    Policy {
        name,
        rules: vec![rule("", "v1", "pods")],
        operations: &["CREATE"],
        queued: false,
        conditions: vec![
            ("is-integrated", brought.join(" || ")),
            (
                "is-not-of-node",
                format!(
                    "!has(object.metadata.ownerReferences) || \
                     !object.metadata.ownerReferences.exists(owner, owner.kind in {of_nodes})"
                ),
            ),
        ],
        variables: Vec::new(),
        mutation: format!(
            "Object{{metadata: Object.metadata{{labels: {{'{}': 'true'}}, annotations: {{'{}': '{}'}}}}, \
             spec: Object.spec{{schedulingGates: [{}]}}}}",
            labels::MANAGED,
            berth::HELD_ANNOTATION,
            gates.join(","),
            gates.iter().map(gate).collect::<Vec<_>>().join(", "),
        ),
        by_default_queue: false,
    }
}

/// Policy for Deployments, StatefulSets and LeaderWorkerSets that name a queue. They copy it to
/// their pods, which are held.
fn queued_pod_owners(held: &Held) -> Policy {
    let queue = format!("object.metadata.labels['{}']", labels::QUEUE_NAME);
    let mut policy = of_pod_owners("berth-hand-queue-to-pods", held, Some(&queue), "");
    // The policy also applies to updates, because the pod template may have been replaced.
    policy.operations = &["CREATE", "UPDATE"];
    policy.queued = true;
    // The object selector also matches an update whose old object has the label; the update may
    // remove it.
    policy.conditions.insert(0, ("is-queued", names_queue()));
    policy
}

/// Policy for new objects without a queue. They get their namespace's default queue here, because
/// the controllers do not process them again later, as they do with held jobs and pods.
fn defaulted_pod_owners(held: &Held) -> Policy {
    let queue = format!("'{DEFAULT_QUEUE}'");
    let metadata = format!("metadata: Object.metadata{{labels: {{'{}': {queue}}}}}, ", labels::QUEUE_NAME);
    let mut policy = of_pod_owners("berth-hand-default-queue-to-pods", held, Some(&queue), &metadata);
    policy.conditions.push(is_not_spared(held));
    policy.by_default_queue = true;
    policy
}

/// Policy for objects without a queue if all jobs are managed: their pods are held too.
fn other_pod_owners(held: &Held) -> Policy {
    let mut policy = of_pod_owners("berth-hold-pods-of-owners-without-queue", held, None, "");
    policy.operations = &["CREATE", "UPDATE"];
    policy.conditions.insert(0, is_managed(held));
    policy.conditions.insert(1, is_not_spared(held));
    policy.conditions.insert(2, ("is-not-queued", format!("!({})", names_queue())));
    policy
}

/// The condition that the new object names a queue.
fn names_queue() -> String {
    format!("has(object.metadata.labels) && '{}' in object.metadata.labels", labels::QUEUE_NAME)
}

/// The condition that the object is the StatefulSet of the workers of a LeaderWorkerSet's replica.
/// It has the labels of the set and belongs to a pod, so only the mark of its template shows whose
/// part it is.
fn is_of_replica() -> String {
    format!(
        "request.kind.kind == 'StatefulSet' && \
         object.spec.template.?metadata.?annotations[?'{}'].orValue('') == '{LEADER_WORKER_SETS}'",
        annotations::POD_SUSPENDING_PARENT
    )
}

/// Common parts of all policies for objects that create pods: the pod templates get the `queue` (an
/// expression), if there is one, and the mark that their pods are held. `metadata` is an
/// initializer of the object's own metadata, followed by a comma, or empty.
fn of_pod_owners(name: &'static str, held: &Held, queue: Option<&str>, metadata: &str) -> Policy {
    let class = labels::PRIORITY_CLASS;
    let queue = queue.map(|queue| format!("'{}': {queue}, ", labels::QUEUE_NAME)).unwrap_or_default();
    let labels = format!("{{{queue}?'{class}': object.metadata.?labels[?'{class}']}}");
    let parent = |framework: &str| format!("'{}': '{framework}'", annotations::POD_SUSPENDING_PARENT);
    let template = |at: &str, annotations: &str| {
        format!("{at}{{metadata: {at}.metadata{{labels: variables.labels, annotations: {annotations}}}}}")
    };
    let simple = |framework: &str| format!("{{{}}}", parent(framework));
    let index = annotations::POD_GROUP_POD_INDEX_LABEL;
    // The group's name is a hash. The controllers set it when they process the held pods.
    let of_set = format!(
        "{}, '{}': 'true', '{}': 'true', '{index}': \
         object.spec.template.?metadata.?annotations[?'{index}'].orValue('apps.kubernetes.io/pod-index')",
        parent("statefulset"),
        annotations::POD_GROUP_FAST_ADMISSION,
        annotations::POD_GROUP_SERVING,
    );
    let count = format!("'{}': string(object.spec.?replicas.orValue(1))", annotations::POD_GROUP_TOTAL_COUNT);
    let of_set = format!("object.spec.?replicas.orValue(1) > 0 ? {{{of_set}, {count}}} : {{{of_set}}}");
    let at = "Object.spec.template";
    let plain =
        |annotations: &str| format!("Object{{{metadata}spec: Object.spec{{template: {}}}}}", template(at, annotations));
    let at = "Object.spec.leaderWorkerTemplate";
    let group = simple(LEADER_WORKER_SETS);
    let worker = format!("workerTemplate: {}", template(&format!("{at}.workerTemplate"), &group));
    let leader = format!("leaderTemplate: {}", template(&format!("{at}.leaderTemplate"), &group));
    let groups =
        |fields: &str| format!("Object{{{metadata}spec: Object.spec{{leaderWorkerTemplate: {at}{{{fields}}}}}}}");
    let frameworks = "{'Deployment': 'deployment', 'StatefulSet': 'statefulset', \
                      'LeaderWorkerSet': 'leaderworkerset.x-k8s.io/leaderworkerset'}[request.kind.kind]";
    Policy {
        name,
        rules: vec![
            rule("apps", "v1", "deployments"),
            rule("apps", "v1", "statefulsets"),
            rule("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
        ],
        operations: &["CREATE"],
        queued: false,
        conditions: vec![
            ("is-integrated", is_on(held, frameworks)),
            ("is-no-part", format!("!({} || {})", is_owned(&managing()), is_of_replica())),
        ],
        variables: vec![("labels", labels)],
        mutation: format!(
            "request.kind.kind == 'Deployment' ? {} : request.kind.kind == 'StatefulSet' ? {} : \
             has(object.spec.leaderWorkerTemplate.leaderTemplate) ? {} : {}",
            plain(&simple("deployment")),
            plain(&of_set),
            groups(&format!("{leader}, {worker}")),
            groups(&worker),
        ),
        by_default_queue: false,
    }
}
