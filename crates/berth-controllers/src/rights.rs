//! What the controllers may do, and what people may do with the kinds they bring: the RBAC objects of an installation.
//!
//! The controllers' role is derived from what they do: the kinds they watch are those the manager holds caches of, and
//! [`WRITES`] lists every other call they make.
//!
//! Roles for people carry Kueue's names and labels (`config/components/rbac` there), so that bindings made for a Kueue
//! installation keep their meaning.

use std::collections::{BTreeMap, BTreeSet};

use kube::Resource;
use serde_json::{Map, Value, json};

use crate::jobs::described::for_each_foreign;
use crate::{aggregated, explain};

/// Namespace of an installation.
pub const NAMESPACE: &str = "berth-system";
/// Service account the controllers run as.
pub const SERVICE_ACCOUNT: &str = "berth-controller";
/// The service account as a user.
pub const USER: &str = "system:serviceaccount:berth-system:berth-controller";
/// Name of the controllers' ClusterRole, of its binding, and of the Lease replicas compete for.
pub const NAME: &str = "berth-controller";

/// Secret the replicas share their webhook certificate through.
pub const WEBHOOK_SECRET: &str = "berth-webhook-certificate";
/// Service under which the API server reaches the webhooks.
pub const WEBHOOK_SERVICE: &str = "berth-webhook";
/// Name of the mutating and of the validating webhook configuration.
pub const WEBHOOK_CONFIGURATION: &str = "berth-controller";

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const KUEUE: &str = "kueue.x-k8s.io";
const VISIBILITY: &str = "visibility.kueue.x-k8s.io";
const READ: &[&str] = &["get", "list", "watch"];
const EDIT: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

/// Calls the controllers make besides listing and watching: group, resource (and subresource), verbs.
pub const WRITES: &[(&str, &str, &[&str])] = &[
    ("", "events", &["create", "patch"]),
    ("", "pods", &["delete", "patch"]),
    ("", "pods/status", &["patch"]),
    ("", "podtemplates", &["create", "get", "patch"]),
    ("autoscaling.x-k8s.io", "provisioningrequests", &["create", "delete", "get"]),
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

/// Rights that no call shows: setting an owner whose deletion waits for the workload needs them where the API server
/// checks that (`OwnerReferencesPermissionEnforcement`).
const OWNED: &[(&str, &str)] = &[
    ("", "pods/finalizers"),
    ("batch", "jobs/finalizers"),
    ("jobset.x-k8s.io", "jobsets/finalizers"),
    (KUEUE, "workloads/finalizers"),
];

/// Names of the CustomResourceDefinitions whose versions the webhook server converts.
pub fn converted_kinds() -> Vec<String> {
    let of_kueue = berth_api::crds().iter().filter(|definition| {
        let versions = definition["spec"]["versions"].as_array().map_or(0, Vec::len);
        definition["spec"]["group"] == KUEUE && versions > 1
    });
    of_kueue.filter_map(|definition| definition["metadata"]["name"].as_str().map(str::to_owned)).collect()
}

/// Group and resource to verbs: every call the controllers make, with every integration and feature on.
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

/// Group and resource of the kinds of job other projects define.
fn described() -> Vec<(String, String)> {
    described_resources().into_iter().map(|(group, _, resource)| (group, resource)).collect()
}

/// Group, version and resource of the kinds of job other projects define.
pub fn described_resources() -> Vec<(String, String, String)> {
    let mut kinds = Vec::new();
    for_each_foreign!(Kind => {
        let version = Kind::version(&()).into_owned();
        kinds.push((Kind::group(&()).into_owned(), version, Kind::plural(&()).into_owned()));
    });
    kinds
}

/// Group and resource of the kinds the controllers watch with every integration and feature on, in order. A test holds
/// it to what [`crate::install`] asks the manager for.
pub fn watched() -> Vec<(String, String)> {
    let mut kinds = [
        ("", "limitranges"),
        ("", "namespaces"),
        ("", "nodes"),
        ("", "pods"),
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
        ("node.k8s.io", "runtimeclasses"),
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
    // One rule per group and set of verbs: what a reader of the role asks is "what may it write".
    let mut by_verbs: BTreeMap<(String, BTreeSet<String>), Vec<String>> = BTreeMap::new();
    for ((group, resource), verbs) in calls() {
        by_verbs.entry((group, verbs)).or_default().push(resource);
    }
    for (group, resource) in OWNED {
        let key = ((*group).to_owned(), BTreeSet::from(["update".to_owned()]));
        by_verbs.entry(key).or_default().push((*resource).to_owned());
    }
    for (group, resource) in described() {
        let key = (group, BTreeSet::from(["update".to_owned()]));
        by_verbs.entry(key).or_default().push(format!("{resource}/finalizers"));
    }
    let rule = |((group, verbs), resources)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let mut rules: Vec<Value> = by_verbs.into_iter().map(rule).collect();
    // Whom to trust is written where the webhook server is named, nowhere else.
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

/// Service account, roles and bindings of the controllers in this namespace, and the roles for people; in the order to
/// create them.
pub fn objects(namespace: &str) -> Vec<Value> {
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
        // Names cannot be given for creation; everything else is about one Lease, one Secret and one EndpointSlice.
        json!({
            "apiVersion": RBAC, "kind": "Role",
            "metadata": {"name": NAME, "namespace": namespace, "labels": labels(&[])},
            "rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [NAME],
                 "verbs": ["get", "update"]},
                {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
                {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [WEBHOOK_SECRET],
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
        // How the API server proves that a request comes from it is said where every aggregated API server reads it.
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

/// A kind people edit or look at: name of its roles, group, resource, who may edit, who may look.
struct People {
    name: &'static str,
    group: &'static str,
    resource: &'static str,
    edit: &'static [&'static str],
    view: &'static [&'static str],
}

const ADMIN: &str = "rbac.kueue.x-k8s.io/batch-admin";
const USERS: &str = "rbac.kueue.x-k8s.io/batch-user";
const BOTH: &[&str] = &[ADMIN, USERS];

const PEOPLE: &[People] = &[
    People { name: "clusterqueue", group: KUEUE, resource: "clusterqueues", edit: &[ADMIN], view: &[ADMIN] },
    People { name: "cohort", group: KUEUE, resource: "cohorts", edit: &[ADMIN], view: &[ADMIN] },
    People { name: "localqueue", group: KUEUE, resource: "localqueues", edit: &[ADMIN], view: BOTH },
    People { name: "resourceflavor", group: KUEUE, resource: "resourceflavors", edit: &[ADMIN], view: &[ADMIN] },
    People { name: "topology", group: KUEUE, resource: "topologies", edit: &[ADMIN], view: &[ADMIN] },
    People { name: "workload", group: KUEUE, resource: "workloads", edit: &[ADMIN], view: BOTH },
    People { name: "job", group: "batch", resource: "jobs", edit: BOTH, view: BOTH },
    People { name: "jobset", group: "jobset.x-k8s.io", resource: "jobsets", edit: BOTH, view: BOTH },
    People {
        name: "leaderworkerset",
        group: "leaderworkerset.x-k8s.io",
        resource: "leaderworkersets",
        edit: BOTH,
        view: BOTH,
    },
    People { name: "mpijob", group: "kubeflow.org", resource: "mpijobs", edit: BOTH, view: BOTH },
    People { name: "jaxjob", group: "kubeflow.org", resource: "jaxjobs", edit: BOTH, view: BOTH },
    People { name: "paddlejob", group: "kubeflow.org", resource: "paddlejobs", edit: BOTH, view: BOTH },
    People { name: "pytorchjob", group: "kubeflow.org", resource: "pytorchjobs", edit: BOTH, view: BOTH },
    People { name: "tfjob", group: "kubeflow.org", resource: "tfjobs", edit: BOTH, view: BOTH },
    People { name: "xgboostjob", group: "kubeflow.org", resource: "xgboostjobs", edit: BOTH, view: BOTH },
    People { name: "raycluster", group: "ray.io", resource: "rayclusters", edit: BOTH, view: BOTH },
    People { name: "rayjob", group: "ray.io", resource: "rayjobs", edit: BOTH, view: BOTH },
    People { name: "rayservice", group: "ray.io", resource: "rayservices", edit: BOTH, view: BOTH },
    People { name: "trainjob", group: "trainer.kubeflow.org", resource: "trainjobs", edit: BOTH, view: BOTH },
    People { name: "appwrapper", group: "workload.codeflare.dev", resource: "appwrappers", edit: BOTH, view: BOTH },
];

/// `kueue-batch-admin-role` and `kueue-batch-user-role`, and the roles they are put together from.
fn user_roles() -> Vec<Value> {
    let mut roles = vec![aggregated("kueue-batch-admin-role", ADMIN), aggregated("kueue-batch-user-role", USERS)];
    for people in PEOPLE {
        let status = format!("{}/status", people.resource);
        for (suffix, verbs, who) in [("editor", EDIT, people.edit), ("viewer", READ, people.view)] {
            roles.push(json!({
                "apiVersion": RBAC, "kind": "ClusterRole",
                "metadata": {"name": format!("kueue-{}-{suffix}-role", people.name), "labels": labels(who)},
                "rules": [
                    {"apiGroups": [people.group], "resources": [people.resource], "verbs": verbs},
                    {"apiGroups": [people.group], "resources": [status], "verbs": ["get"]},
                ],
            }));
        }
    }
    roles.push(json!({
        "apiVersion": RBAC, "kind": "ClusterRole",
        "metadata": {"name": "berth-explanation-viewer-role", "labels": labels(BOTH)},
        "rules": [{"apiGroups": [explain::GROUP], "resources": ["workloads/explanation"], "verbs": ["get"]}],
    }));
    roles.push(json!({
        "apiVersion": RBAC, "kind": "ClusterRole",
        "metadata": {"name": "berth-holders-viewer-role", "labels": labels(&[ADMIN])},
        "rules": [{"apiGroups": [explain::GROUP], "resources": ["clusterqueues/holders"], "verbs": ["get"]}],
    }));
    for (short, resource, who) in [("cq", "clusterqueues", &[ADMIN][..]), ("lq", "localqueues", BOTH)] {
        roles.push(json!({
            "apiVersion": RBAC, "kind": "ClusterRole",
            "metadata": {"name": format!("kueue-pending-workloads-{short}-viewer-role"), "labels": labels(who)},
            "rules": [{"apiGroups": [VISIBILITY], "resources": [format!("{resource}/pendingworkloads")], "verbs": READ}],
        }));
    }
    roles
}

fn aggregated(name: &str, label: &str) -> Value {
    let mut wanted = Map::new();
    wanted.insert(label.to_owned(), "true".into());
    json!({
        "apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name, "labels": labels(&[])},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": wanted}]}, "rules": [],
    })
}

/// The labels of everything that belongs to an installation, and further ones set to `true`.
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
    fn people_have_roles_for_every_kind_that_is_queued() {
        for (group, resource) in described() {
            let known = PEOPLE.iter().any(|people| people.group == group && people.resource == resource);
            assert!(known, "{resource}.{group}");
        }
        let names: BTreeSet<&str> = PEOPLE.iter().map(|people| people.name).collect();
        assert_eq!(names.len(), PEOPLE.len());
    }

    #[test]
    fn rules_allow_nothing_by_wildcard_and_no_secret() {
        for rule in rules() {
            let text = rule.to_string();
            assert!(!text.contains('*') && !text.contains("secrets"), "{text}");
        }
    }
}
