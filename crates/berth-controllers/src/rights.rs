//! The RBAC objects of an installation: the rights of the controllers, and roles for users of the
//! installed kinds.
//!
//! The controllers' role is derived from their calls: they watch the kinds that the manager has
//! caches of, and [`WRITES`] lists all other calls.
//!
//! Roles for users have Kueue's names and labels (`config/components/rbac` there), so that bindings
//! made for a Kueue installation keep their meaning.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::frameworks::LeaderWorkerSet;
use kube::Resource;
use serde_json::{Map, Value, json};

use crate::jobs::described::for_each_foreign;
use crate::{aggregated, explain};

/// Namespace of an installation.
pub const NAMESPACE: &str = "berth-system";
/// Service account of the controllers.
pub const SERVICE_ACCOUNT: &str = "berth-controller";
/// User name of the service account.
pub const USER: &str = "system:serviceaccount:berth-system:berth-controller";
/// Name of the controllers' ClusterRole, of its binding, and of the Lease for leader election.
pub const NAME: &str = "berth-controller";

/// Secret in which replicas share their webhook certificate.
pub const WEBHOOK_SECRET: &str = "berth-webhook-certificate";
/// Service by which the API server reaches the webhooks.
pub const WEBHOOK_SERVICE: &str = "berth-webhook";
/// Name of the mutating and the validating webhook configuration.
pub const WEBHOOK_CONFIGURATION: &str = "berth-controller";

/// Name of the ClusterRole of clients that may read the metrics.
pub const METRICS_READER: &str = "berth-metrics-reader";

/// Name of the Role for leader election, and of its binding.
pub const LEADER_ELECTION: &str = "berth-leader-election";

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const KUEUE: &str = "kueue.x-k8s.io";
const VISIBILITY: &str = "visibility.kueue.x-k8s.io";
const READ: &[&str] = &["get", "list", "watch"];
const EDIT: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

/// Calls other than list and watch: group, resource (and subresource), verbs.
pub const WRITES: &[(&str, &str, &[&str])] = &[
    ("", "events", &["create", "patch"]),
    ("", "pods", &["delete", "patch"]),
    ("", "pods/status", &["patch"]),
    ("", "podtemplates", &["create", "patch"]),
    // This call is a read: the definitions show whether the cluster serves an optional kind.
    ("apiextensions.k8s.io", "customresourcedefinitions", &["get"]),
    ("authorization.k8s.io", "subjectaccessreviews", &["create"]),
    ("autoscaling.x-k8s.io", "provisioningrequests", &["create", "delete"]),
    ("batch", "jobs", &["delete", "patch"]),
    ("batch", "jobs/status", &["patch"]),
    ("jobset.x-k8s.io", "jobsets", &["delete", "patch"]),
    (KUEUE, "admissionchecks", &["patch"]),
    (KUEUE, "admissionchecks/status", &["patch"]),
    (KUEUE, "clusterqueues", &["patch"]),
    (KUEUE, "clusterqueues/status", &["patch"]),
    (KUEUE, "cohorts/status", &["patch"]),
    (KUEUE, "localqueues/status", &["patch"]),
    (KUEUE, "resourceflavors", &["patch"]),
    (KUEUE, "topologies", &["patch"]),
    (KUEUE, "workloads", &["create", "delete", "patch"]),
    (KUEUE, "workloads/status", &["patch"]),
];

/// Rights for which there is no call. If the API server runs the admission plugin
/// OwnerReferencesPermissionEnforcement (off in Kubernetes, on in OpenShift), writing owner
/// references requires them: `update` of the owner's finalizers for a reference with
/// `blockOwnerDeletion`, and `delete` of an object whose existing references change. The test that
/// compares the role with the audit log derives them from the writes.
const OWNED: &[(&str, &str, &str)] = &[
    ("", "pods/finalizers", "update"),
    ("", "podtemplates", "delete"),
    ("autoscaling.x-k8s.io", "provisioningrequests/finalizers", "update"),
    ("batch", "jobs/finalizers", "update"),
    ("jobset.x-k8s.io", "jobsets/finalizers", "update"),
    (KUEUE, "workloads/finalizers", "update"),
];

/// Group, resource and verb of the rights beyond [`calls`] that are needed if the API server
/// enforces permissions on owner references.
pub fn owner_rights() -> BTreeSet<(String, String, String)> {
    let fixed = OWNED.iter().map(|(group, resource, verb)| (*group, (*resource).to_owned(), *verb));
    let mut rights: BTreeSet<(String, String, String)> =
        fixed.map(|(group, resource, verb)| (group.to_owned(), resource, verb.to_owned())).collect();
    let kinds = described().into_iter();
    rights.extend(kinds.map(|(group, resource)| (group, format!("{resource}/finalizers"), "update".to_owned())));
    rights
}

/// Names of the CustomResourceDefinitions with conversion by the webhook server.
pub fn converted_kinds() -> Vec<String> {
    let of_kueue = berth_api::crds().iter().filter(|definition| {
        let versions = definition["spec"]["versions"].as_array().map_or(0, Vec::len);
        definition["spec"]["group"] == KUEUE && versions > 1
    });
    of_kueue.filter_map(|definition| definition["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

/// Verbs by group and resource of every call of the controllers, with every integration and feature
/// on.
pub fn calls() -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut calls: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for kind in watched() {
        calls.entry(kind).or_default().extend(["list".to_owned(), "watch".to_owned()]);
    }
    for (group, resource, verbs) in WRITES {
        let key = ((*group).to_owned(), (*resource).to_owned());
        calls.entry(key).or_default().extend(verbs.iter().map(|verb| (*verb).to_owned()));
    }
    for kind in described() {
        calls.entry(kind).or_default().extend(["delete".to_owned(), "patch".to_owned()]);
    }
    calls
}

/// Group and resource of the kinds of jobs from other projects.
fn described() -> Vec<(String, String)> {
    described_resources().into_iter().map(|(group, _, resource)| (group, resource)).collect()
}

/// Group, version and resource of the kinds of jobs from other projects.
pub fn described_resources() -> Vec<(String, String, String)> {
    let mut kinds = Vec::new();
    for_each_foreign!(Kind => {
        let version = Kind::version(&()).into_owned();
        kinds.push((Kind::group(&()).into_owned(), version, Kind::plural(&()).into_owned()));
    });
    kinds
}

/// Group and resource of the kinds that the controllers watch, with every integration and feature
/// on, in order. A test compares the list with the caches that [`crate::install`] requests.
pub fn watched() -> Vec<(String, String)> {
    let mut kinds = [
        ("", "limitranges"),
        ("", "namespaces"),
        ("", "nodes"),
        ("", "pods"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("apps", "statefulsets"),
        ("autoscaling.x-k8s.io", "provisioningrequests"),
        ("batch", "jobs"),
        ("jobset.x-k8s.io", "jobsets"),
        (KUEUE, "admissionchecks"),
        (KUEUE, "clusterqueues"),
        (KUEUE, "cohorts"),
        (KUEUE, "localqueues"),
        (KUEUE, "provisioningrequestconfigs"),
        (KUEUE, "resourceflavors"),
        (KUEUE, "topologies"),
        (KUEUE, "workloadpriorityclasses"),
        (KUEUE, "workloads"),
        ("leaderworkerset.x-k8s.io", "leaderworkersets"),
        ("node.k8s.io", "runtimeclasses"),
        ("resource.k8s.io", "deviceclasses"),
        ("resource.k8s.io", "resourceclaimtemplates"),
        ("resource.k8s.io", "resourceslices"),
        ("scheduling.k8s.io", "priorityclasses"),
        ("trainer.kubeflow.org", "clustertrainingruntimes"),
        ("trainer.kubeflow.org", "trainingruntimes"),
    ]
    .map(|(group, resource)| (group.to_owned(), resource.to_owned()))
    .to_vec();
    kinds.extend(described());
    kinds.sort();
    kinds
}

/// The rules of the controllers' ClusterRole.
pub fn rules() -> Vec<Value> {
    let mut allowed = calls();
    for (group, resource, verb) in owner_rights() {
        allowed.entry((group, resource)).or_default().insert(verb);
    }
    // The webhook for pods reads the LeaderWorkerSet of a new pod.
    let sets = (LeaderWorkerSet::group(&()).into_owned(), LeaderWorkerSet::plural(&()).into_owned());
    allowed.entry(sets).or_default().insert("get".to_owned());
    // Secure metrics, which only some installations serve.
    let reviews = ("authentication.k8s.io".to_owned(), "tokenreviews".to_owned());
    allowed.entry(reviews).or_default().insert("create".to_owned());
    // One rule per group and set of verbs, so that the role shows what may be written.
    let mut by_verbs: BTreeMap<(String, BTreeSet<String>), Vec<String>> = BTreeMap::new();
    for ((group, resource), verbs) in allowed {
        by_verbs.entry((group, verbs)).or_default().push(resource);
    }
    let rule = |((group, verbs), resources)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let mut rules: Vec<Value> = by_verbs.into_iter().map(rule).collect();
    // The CA bundle is written only into the objects that refer to our servers.
    for (group, resource, names) in [
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", vec![WEBHOOK_CONFIGURATION.to_owned()]),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", vec![WEBHOOK_CONFIGURATION.to_owned()]),
        ("apiextensions.k8s.io", "customresourcedefinitions", converted_kinds()),
        ("apiregistration.k8s.io", "apiservices", aggregated::names()),
    ] {
        rules.push(
            json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": ["get", "patch"]}),
        );
    }
    rules
}

/// The names to which rights refer and that the configuration can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Namespace of the controllers.
    pub namespace: String,
    /// Name of the Lease for leader election.
    pub lease: String,
    /// Namespace of the Lease.
    pub lease_namespace: String,
    /// Secret of the webhook certificate.
    pub secret: String,
}

impl Names {
    /// The default names in this namespace.
    pub fn of(namespace: &str) -> Self {
        let lease_namespace = namespace.to_owned();
        let (lease, secret) = (NAME.to_owned(), WEBHOOK_SECRET.to_owned());
        Names { namespace: namespace.to_owned(), lease, lease_namespace, secret }
    }
}

/// Service account, roles and bindings of the controllers in this namespace, and the roles for
/// users, in order of creation.
pub fn objects(namespace: &str) -> Vec<Value> {
    objects_named(&Names::of(namespace))
}

/// The objects of [`objects`] with these names.
pub fn objects_named(names: &Names) -> Vec<Value> {
    let namespace = &names.namespace;
    let subject = json!([{"kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": namespace}]);
    let reference =
        |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let mut objects = vec![
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": SERVICE_ACCOUNT, "namespace": namespace, "labels": labels(&[])},
        }),
        json!({
            "apiVersion": RBAC, "kind": "ClusterRole",
            "metadata": {"name": NAME, "labels": labels(&[])}, "rules": rules(),
        }),
        json!({
            "apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": NAME, "labels": labels(&[])},
            "roleRef": reference("ClusterRole", NAME), "subjects": subject,
        }),
        json!({
            "apiVersion": RBAC, "kind": "ClusterRole",
            "metadata": {"name": METRICS_READER, "labels": labels(&[])},
            "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
        }),
        json!({
            "apiVersion": RBAC, "kind": "Role",
            "metadata": {"name": LEADER_ELECTION, "namespace": names.lease_namespace, "labels": labels(&[])},
            "rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [names.lease],
                 "verbs": ["get", "update"]},
            ],
        }),
        json!({
            "apiVersion": RBAC, "kind": "RoleBinding",
            "metadata": {"name": LEADER_ELECTION, "namespace": names.lease_namespace, "labels": labels(&[])},
            "roleRef": reference("Role", LEADER_ELECTION), "subjects": subject,
        }),
        // RBAC cannot restrict creation by name; the other rights are for one Secret and one
        // EndpointSlice.
        json!({
            "apiVersion": RBAC, "kind": "Role",
            "metadata": {"name": NAME, "namespace": namespace, "labels": labels(&[])},
            "rules": [
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [names.secret],
                 "verbs": ["get", "update"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["create"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
                 "resourceNames": [aggregated::SERVICE], "verbs": ["patch"]},
            ],
        }),
        json!({
            "apiVersion": RBAC, "kind": "RoleBinding",
            "metadata": {"name": NAME, "namespace": namespace, "labels": labels(&[])},
            "roleRef": reference("Role", NAME), "subjects": subject,
        }),
        // This ConfigMap contains the CA of the API server's client certificate for aggregated API
        // servers.
        json!({
            "apiVersion": RBAC, "kind": "RoleBinding",
            "metadata": {"name": format!("{NAME}-authentication-reader"), "namespace": "kube-system",
                         "labels": labels(&[])},
            "roleRef": reference("Role", "extension-apiserver-authentication-reader"), "subjects": subject,
        }),
    ];
    objects.extend(user_roles());
    objects
}

/// The users that get a role. Kueue aggregates roles for batch administrators and batch users, and
/// into Kubernetes' `view`, `edit` and `admin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Audience {
    /// Batch administrators.
    Admins,
    /// Batch administrators, and `admin` of a namespace.
    AdminsAndOwners,
    /// Batch administrators, and `view`, `edit` and `admin` of a namespace.
    AdminsAndReaders,
    /// Batch administrators and batch users.
    Both,
    /// Batch administrators and batch users, and `view`, `edit` and `admin` of a namespace.
    BothAndReaders,
}

const ADMIN: &str = "rbac.kueue.x-k8s.io/batch-admin";
const USERS: &str = "rbac.kueue.x-k8s.io/batch-user";
/// Label with the name of a role.
const ROLE: &str = "rbac.kueue.x-k8s.io/role";
const TO_VIEW: &str = "rbac.authorization.k8s.io/aggregate-to-view";
const TO_EDIT: &str = "rbac.authorization.k8s.io/aggregate-to-edit";
const TO_ADMIN: &str = "rbac.authorization.k8s.io/aggregate-to-admin";

impl Audience {
    /// The aggregation labels of such a role.
    fn labels(self) -> &'static [&'static str] {
        match self {
            Audience::Admins => &[ADMIN],
            Audience::AdminsAndOwners => &[ADMIN, TO_ADMIN],
            Audience::AdminsAndReaders => &[ADMIN, TO_ADMIN, TO_EDIT, TO_VIEW],
            Audience::Both => &[ADMIN, USERS],
            Audience::BothAndReaders => &[ADMIN, USERS, TO_ADMIN, TO_EDIT, TO_VIEW],
        }
    }
}

/// A kind with an editor and a viewer role.
struct UserKind {
    /// The part of its roles' names that stands for the kind.
    name: String,
    group: String,
    resource: String,
    has_status: bool,
    edit: Audience,
    view: Audience,
}

/// The kinds with roles for users: Kueue's, and the integrated kinds of jobs except pods,
/// Deployments and StatefulSets.
fn user_kinds() -> Vec<UserKind> {
    let kueue = |name: &str, resource: &str, has_status, view| UserKind {
        name: name.to_owned(),
        group: KUEUE.to_owned(),
        resource: resource.to_owned(),
        has_status,
        edit: Audience::Admins,
        view,
    };
    let mut user_kinds = vec![
        kueue("clusterqueue", "clusterqueues", true, Audience::AdminsAndOwners),
        kueue("cohort", "cohorts", false, Audience::AdminsAndOwners),
        kueue("localqueue", "localqueues", true, Audience::BothAndReaders),
        kueue("resourceflavor", "resourceflavors", false, Audience::AdminsAndOwners),
        kueue("topology", "topologies", false, Audience::AdminsAndOwners),
        kueue("workload", "workloads", true, Audience::BothAndReaders),
    ];
    let mut kinds = vec![
        ("batch".to_owned(), "job".to_owned(), "jobs".to_owned()),
        ("jobset.x-k8s.io".to_owned(), "jobset".to_owned(), "jobsets".to_owned()),
        ("leaderworkerset.x-k8s.io".to_owned(), "leaderworkerset".to_owned(), "leaderworkersets".to_owned()),
    ];
    for_each_foreign!(Kind => {
        let kind = Kind::kind(&()).to_lowercase();
        kinds.push((Kind::group(&()).into_owned(), kind, Kind::plural(&()).into_owned()));
    });
    for (group, name, resource) in kinds {
        // Clusters that several users share are visible to administrators, not to batch users.
        let shared = ["raycluster", "rayservice"].contains(&name.as_str());
        let view = if shared { Audience::AdminsAndReaders } else { Audience::BothAndReaders };
        user_kinds.push(UserKind { name, group, resource, has_status: true, edit: Audience::Both, view });
    }
    user_kinds
}

/// One of Kueue's roles for users.
fn user_role(name: &str, audience: Audience, rules: Value) -> Value {
    let mut labels = labels(audience.labels());
    labels[ROLE] = name.into();
    json!({
        "apiVersion": RBAC, "kind": "ClusterRole",
        "metadata": {"name": format!("kueue-{name}-role"), "labels": labels}, "rules": rules,
    })
}

/// `kueue-batch-admin-role` and `kueue-batch-user-role`, and the roles that are aggregated into
/// them.
fn user_roles() -> Vec<Value> {
    let mut roles = vec![aggregated("kueue-batch-admin-role", ADMIN), aggregated("kueue-batch-user-role", USERS)];
    for kind in user_kinds() {
        let status = format!("{}/status", kind.resource);
        for (suffix, verbs, audience) in [("editor", EDIT, kind.edit), ("viewer", READ, kind.view)] {
            let mut rules = vec![json!({"apiGroups": [kind.group], "resources": [kind.resource], "verbs": verbs})];
            if kind.has_status {
                rules.push(json!({"apiGroups": [kind.group], "resources": [status], "verbs": ["get"]}));
            }
            roles.push(user_role(&format!("{}-{suffix}", kind.name), audience, json!(rules)));
        }
    }
    roles.push(json!({
        "apiVersion": RBAC, "kind": "ClusterRole",
        "metadata": {"name": "berth-explanation-viewer-role", "labels": labels(Audience::Both.labels())},
        "rules": [
            {"apiGroups": [explain::GROUP], "resources": ["workloads/explanation", "workloads/history"], "verbs": ["get"]},
            {"apiGroups": [explain::GROUP], "resources": ["currentjobs", "forecasts", "gpus", "stays", "usage"],
             "verbs": ["list"]},
            {"apiGroups": [explain::GROUP], "resources": ["whatifs"], "verbs": ["create"]},
        ],
    }));
    roles.push(json!({
        "apiVersion": RBAC, "kind": "ClusterRole",
        "metadata": {"name": "berth-holders-viewer-role", "labels": labels(&[ADMIN])},
        "rules": [{"apiGroups": [explain::GROUP], "resources": ["clusterqueues/holders"], "verbs": ["get"]}],
    }));
    for (short, resource, audience) in
        [("cq", "clusterqueues", Audience::AdminsAndReaders), ("lq", "localqueues", Audience::BothAndReaders)]
    {
        let rules =
            json!([{"apiGroups": [VISIBILITY], "resources": [format!("{resource}/pendingworkloads")], "verbs": READ}]);
        roles.push(user_role(&format!("pending-workloads-{short}-viewer"), audience, rules));
    }
    roles
}

/// An aggregated role. The cluster's controller writes its rules: writing any, even an empty list,
/// would remove all rights until that controller restores them.
fn aggregated(name: &str, label: &str) -> Value {
    let mut wanted = Map::new();
    wanted.insert(label.to_owned(), "true".into());
    json!({
        "apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name, "labels": labels(&[])},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": wanted}]},
    })
}

/// The labels of all objects of an installation, and the labels `on` with value `true`.
pub fn labels(on: &[&str]) -> Value {
    let mut labels = Map::new();
    labels.insert("app.kubernetes.io/name".to_owned(), "berth".into());
    labels.insert("app.kubernetes.io/component".to_owned(), "controller".into());
    for label in on {
        labels.insert((*label).to_owned(), "true".into());
    }
    Value::Object(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_contain_neither_wildcards_nor_secrets() {
        for rule in rules() {
            let text = rule.to_string();
            assert!(!text.contains('*') && !text.contains("secrets"), "{text}");
        }
    }

    /// Kueue's roles for users (`config/components/rbac` there): name, group, resource, verbs,
    /// readability of the status, and aggregation labels: `A` batch-admin, `U` batch-user, and
    /// `v`, `e`, `a` for Kubernetes' `view`, `edit` and `admin`.
    const EXPECTED: &[(&str, &str, &str, &str, bool, &str)] = &[
        ("clusterqueue-editor", "kueue.x-k8s.io", "clusterqueues", "edit", true, "A"),
        ("clusterqueue-viewer", "kueue.x-k8s.io", "clusterqueues", "read", true, "Aa"),
        ("cohort-editor", "kueue.x-k8s.io", "cohorts", "edit", false, "A"),
        ("cohort-viewer", "kueue.x-k8s.io", "cohorts", "read", false, "Aa"),
        ("localqueue-editor", "kueue.x-k8s.io", "localqueues", "edit", true, "A"),
        ("localqueue-viewer", "kueue.x-k8s.io", "localqueues", "read", true, "AUaev"),
        ("resourceflavor-editor", "kueue.x-k8s.io", "resourceflavors", "edit", false, "A"),
        ("resourceflavor-viewer", "kueue.x-k8s.io", "resourceflavors", "read", false, "Aa"),
        ("topology-editor", "kueue.x-k8s.io", "topologies", "edit", false, "A"),
        ("topology-viewer", "kueue.x-k8s.io", "topologies", "read", false, "Aa"),
        ("workload-editor", "kueue.x-k8s.io", "workloads", "edit", true, "A"),
        ("workload-viewer", "kueue.x-k8s.io", "workloads", "read", true, "AUaev"),
        ("job-editor", "batch", "jobs", "edit", true, "AU"),
        ("job-viewer", "batch", "jobs", "read", true, "AUaev"),
        ("jobset-editor", "jobset.x-k8s.io", "jobsets", "edit", true, "AU"),
        ("jobset-viewer", "jobset.x-k8s.io", "jobsets", "read", true, "AUaev"),
        ("leaderworkerset-editor", "leaderworkerset.x-k8s.io", "leaderworkersets", "edit", true, "AU"),
        ("leaderworkerset-viewer", "leaderworkerset.x-k8s.io", "leaderworkersets", "read", true, "AUaev"),
        ("mpijob-editor", "kubeflow.org", "mpijobs", "edit", true, "AU"),
        ("mpijob-viewer", "kubeflow.org", "mpijobs", "read", true, "AUaev"),
        ("mxjob-editor", "kubeflow.org", "mxjobs", "edit", true, "AU"),
        ("mxjob-viewer", "kubeflow.org", "mxjobs", "read", true, "AUaev"),
        ("pytorchjob-editor", "kubeflow.org", "pytorchjobs", "edit", true, "AU"),
        ("pytorchjob-viewer", "kubeflow.org", "pytorchjobs", "read", true, "AUaev"),
        ("tfjob-editor", "kubeflow.org", "tfjobs", "edit", true, "AU"),
        ("tfjob-viewer", "kubeflow.org", "tfjobs", "read", true, "AUaev"),
        ("xgboostjob-editor", "kubeflow.org", "xgboostjobs", "edit", true, "AU"),
        ("xgboostjob-viewer", "kubeflow.org", "xgboostjobs", "read", true, "AUaev"),
        ("paddlejob-editor", "kubeflow.org", "paddlejobs", "edit", true, "AU"),
        ("paddlejob-viewer", "kubeflow.org", "paddlejobs", "read", true, "AUaev"),
        ("jaxjob-editor", "kubeflow.org", "jaxjobs", "edit", true, "AU"),
        ("jaxjob-viewer", "kubeflow.org", "jaxjobs", "read", true, "AUaev"),
        ("trainjob-editor", "trainer.kubeflow.org", "trainjobs", "edit", true, "AU"),
        ("trainjob-viewer", "trainer.kubeflow.org", "trainjobs", "read", true, "AUaev"),
        ("rayjob-editor", "ray.io", "rayjobs", "edit", true, "AU"),
        ("rayjob-viewer", "ray.io", "rayjobs", "read", true, "AUaev"),
        ("raycluster-editor", "ray.io", "rayclusters", "edit", true, "AU"),
        ("raycluster-viewer", "ray.io", "rayclusters", "read", true, "Aaev"),
        ("rayservice-editor", "ray.io", "rayservices", "edit", true, "AU"),
        ("rayservice-viewer", "ray.io", "rayservices", "read", true, "Aaev"),
        ("sparkapplication-editor", "sparkoperator.k8s.io", "sparkapplications", "edit", true, "AU"),
        ("sparkapplication-viewer", "sparkoperator.k8s.io", "sparkapplications", "read", true, "AUaev"),
        (
            "pending-workloads-cq-viewer",
            "visibility.kueue.x-k8s.io",
            "clusterqueues/pendingworkloads",
            "read",
            false,
            "Aaev",
        ),
        (
            "pending-workloads-lq-viewer",
            "visibility.kueue.x-k8s.io",
            "localqueues/pendingworkloads",
            "read",
            false,
            "AUaev",
        ),
        // Kueue integrates AppWrappers, but has no roles for them.
        ("appwrapper-editor", "workload.codeflare.dev", "appwrappers", "edit", true, "AU"),
        ("appwrapper-viewer", "workload.codeflare.dev", "appwrappers", "read", true, "AUaev"),
    ];

    #[test]
    fn roles_for_users_match_kueues_for_every_integrated_kind() {
        let by_letter = [('A', ADMIN), ('U', USERS), ('v', TO_VIEW), ('e', TO_EDIT), ('a', TO_ADMIN)];
        let roles: BTreeMap<String, Value> = user_roles()
            .into_iter()
            .filter_map(|role| Some((role["metadata"]["labels"][ROLE].as_str()?.to_owned(), role)))
            .collect();
        for (name, group, resource, verbs, has_status, letters) in EXPECTED {
            let Some(role) = roles.get(*name) else { panic!("{name} is missing") };
            assert_eq!(role["metadata"]["name"], format!("kueue-{name}-role"));
            for (letter, label) in by_letter {
                let is_set = role["metadata"]["labels"][label] == "true";
                assert_eq!(is_set, letters.contains(letter), "{name}: {label}");
            }
            let verbs: &[&str] = if *verbs == "edit" {
                &["create", "delete", "get", "list", "patch", "update", "watch"]
            } else {
                &["get", "list", "watch"]
            };
            let mut rules = vec![json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})];
            if *has_status {
                let status = format!("{resource}/status");
                rules.push(json!({"apiGroups": [group], "resources": [status], "verbs": ["get"]}));
            }
            assert_eq!(role["rules"], json!(rules), "{name}");
        }
        for name in roles.keys() {
            assert!(EXPECTED.iter().any(|(expected, ..)| expected == name), "{name} is not expected");
        }
        // Every integrated kind of another project has roles.
        for (group, _, resource) in described_resources() {
            assert!(EXPECTED.iter().any(|row| (row.1, row.2) == (&*group, &*resource)), "{resource}.{group}");
        }
    }
}
