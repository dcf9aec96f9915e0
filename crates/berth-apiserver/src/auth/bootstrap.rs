//! The default roles and bindings of every cluster, so that `kubectl create rolebinding …
//! --clusterrole=edit` works as in Kubernetes. Names, labels and scope follow Kubernetes' default
//! roles ("Using RBAC Authorization", default roles and role bindings). The resources are those
//! served here. Roles of components that do not exist here (`system:kube-scheduler`,
//! `system:node-problem-detector`, …) are omitted.
//!
//! Custom kinds are added to `admin`, `edit` and `view` as in Kubernetes: by ClusterRoles with the
//! label `rbac.authorization.k8s.io/aggregate-to-…`.

use serde_json::{Value, json};

const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const READ: &str = "get list watch";
const WRITE: &str = "create delete deletecollection patch update";

/// Resources that `view` may read. Secrets are excluded: a reader could act as their service
/// accounts.
const VIEW: &[(&str, &str)] = &[
    (
        "",
        "bindings configmaps endpoints events limitranges namespaces namespaces/status persistentvolumeclaims \
         persistentvolumeclaims/status pods pods/log pods/status replicationcontrollers replicationcontrollers/scale \
         replicationcontrollers/status resourcequotas resourcequotas/status serviceaccounts services services/status",
    ),
    (
        "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status replicasets \
         replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
    ),
    ("autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    ("batch", "cronjobs cronjobs/status jobs jobs/status"),
    ("discovery.k8s.io", "endpointslices"),
    ("networking.k8s.io", "ingresses ingresses/status networkpolicies"),
    ("policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    ("resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
];

/// Resources that `edit` may write.
const EDIT: &[(&str, &str)] = &[
    (
        "",
        "configmaps events persistentvolumeclaims pods pods/attach pods/exec pods/portforward pods/proxy \
         replicationcontrollers replicationcontrollers/scale secrets serviceaccounts services services/proxy",
    ),
    (
        "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale statefulsets \
         statefulsets/scale",
    ),
    ("autoscaling", "horizontalpodautoscalers"),
    ("batch", "cronjobs jobs"),
    ("networking.k8s.io", "ingresses networkpolicies"),
    ("policy", "poddisruptionbudgets"),
    ("resource.k8s.io", "resourceclaims resourceclaimtemplates"),
];

/// The default roles and bindings. At each start, missing ones are created, and missing rules and
/// subjects are added ([`super::reconcile`]).
pub fn objects() -> Vec<Value> {
    let mut objects = roles();
    objects.push(authentication_reader());
    objects.extend([
        binding("cluster-admin", "cluster-admin", &["system:masters"]),
        binding("system:basic-user", "system:basic-user", &["system:authenticated"]),
        binding("system:discovery", "system:discovery", &["system:authenticated"]),
        binding("system:monitoring", "system:monitoring", &["system:monitoring"]),
        binding(
            "system:service-account-issuer-discovery",
            "system:service-account-issuer-discovery",
            &["system:serviceaccounts"],
        ),
        binding(
            "system:public-info-viewer",
            "system:public-info-viewer",
            &["system:authenticated", "system:unauthenticated"],
        ),
    ]);
    objects
}

fn roles() -> Vec<Value> {
    let view = rules(VIEW, READ);
    let mut edit = rules(&[("", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy")], READ);
    edit.push(rule("", "serviceaccounts", "impersonate"));
    edit.extend(rules(EDIT, WRITE));
    edit.push(rule("", "pods/eviction", "create"));
    edit.push(rule("", "serviceaccounts/token", "create"));
    edit.push(rule("coordination.k8s.io", "leases", &format!("{WRITE} {READ}")));
    let admin = vec![
        rule("authorization.k8s.io", "localsubjectaccessreviews", "create"),
        rule("rbac.authorization.k8s.io", "rolebindings roles", &format!("{WRITE} {READ}")),
    ];
    let all = |parts: &[&Vec<Value>]| -> Vec<Value> {
        parts.iter().flat_map(|part| part.iter()).fold(Vec::new(), |mut all, rule| {
            if !all.contains(rule) {
                all.push(rule.clone());
            }
            all
        })
    };
    vec![
        role(
            "cluster-admin",
            None,
            vec![
                json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
                json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
            ],
        ),
        role(
            "system:discovery",
            None,
            vec![paths("/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/")],
        ),
        role(
            "system:service-account-issuer-discovery",
            None,
            vec![paths(
                "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
            )],
        ),
        role("system:public-info-viewer", None, vec![paths("/healthz /livez /readyz /version /version/")]),
        role(
            "system:monitoring",
            None,
            vec![paths("/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*")],
        ),
        role(
            "system:auth-delegator",
            None,
            vec![
                rule("authentication.k8s.io", "tokenreviews", "create"),
                rule("authorization.k8s.io", "subjectaccessreviews", "create"),
            ],
        ),
        role(
            "system:basic-user",
            None,
            vec![
                rule("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", "create"),
                rule("authentication.k8s.io", "selfsubjectreviews", "create"),
            ],
        ),
        // In the order in which the aggregation controller combines them.
        aggregated("admin", None, &["admin"], all(&[&edit, &view, &admin])),
        aggregated("edit", Some("admin"), &["edit"], all(&[&edit, &view])),
        aggregated("view", Some("edit"), &["view"], view.clone()),
        role("system:aggregate-to-admin", Some("admin"), admin),
        role("system:aggregate-to-edit", Some("edit"), edit),
        role("system:aggregate-to-view", Some("view"), view),
    ]
}

/// Permits aggregated API servers to read the ConfigMap with the certificates that they must trust.
fn authentication_reader() -> Value {
    let mut rule = rule("", "configmaps", READ);
    rule["resourceNames"] = json!([crate::aggregation::AUTHENTICATION]);
    let mut metadata = metadata("extension-apiserver-authentication-reader", None);
    metadata["namespace"] = json!("kube-system");
    json!({"apiVersion": API_VERSION, "kind": "Role", "metadata": metadata, "rules": [rule]})
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn rule(group: &str, resources: &str, verbs: &str) -> Value {
    json!({"apiGroups": [group], "resources": words(resources), "verbs": words(verbs)})
}

fn rules(table: &[(&str, &str)], verbs: &str) -> Vec<Value> {
    table.iter().map(|(group, resources)| rule(group, resources, verbs)).collect()
}

fn paths(paths: &str) -> Value {
    json!({"nonResourceURLs": words(paths), "verbs": ["get"]})
}

fn metadata(name: &str, aggregate_to: Option<&str>) -> Value {
    let mut labels = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
    if let Some(role) = aggregate_to {
        labels[format!("rbac.authorization.k8s.io/aggregate-to-{role}")] = json!("true");
    }
    json!({
        "name": name,
        "labels": labels,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    })
}

fn role(name: &str, aggregate_to: Option<&str>, rules: Vec<Value>) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterRole",
        "metadata": metadata(name, aggregate_to),
        "rules": rules,
    })
}

fn aggregated(name: &str, aggregate_to: Option<&str>, from: &[&str], rules: Vec<Value>) -> Value {
    let mut role = role(name, aggregate_to, rules);
    let selectors = from.iter().map(|from| {
        let mut labels = serde_json::Map::new();
        labels.insert(format!("rbac.authorization.k8s.io/aggregate-to-{from}"), json!("true"));
        json!({"matchLabels": labels})
    });
    role["aggregationRule"] = json!({"clusterRoleSelectors": selectors.collect::<Vec<_>>()});
    role
}

fn binding(name: &str, role: &str, groups: &[&str]) -> Value {
    let group = "rbac.authorization.k8s.io";
    let subjects: Vec<Value> =
        groups.iter().map(|name| json!({"apiGroup": group, "kind": "Group", "name": name})).collect();
    json!({
        "apiVersion": API_VERSION,
        "kind": "ClusterRoleBinding",
        "metadata": metadata(name, None),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": subjects,
    })
}

#[cfg(test)]
mod tests {
    use super::super::rbac::{Policies, Rule, decide, rules_of, uncovered};
    use super::super::{Attributes, UserInfo};
    use super::*;
    use berth_apimachinery::meta;
    use std::sync::Arc;

    /// The default objects and those that a test adds.
    struct Fixture(Vec<Arc<Value>>);

    impl Fixture {
        fn kind(&self, kind: &str) -> impl Iterator<Item = &Arc<Value>> {
            self.0.iter().filter(move |object| meta::kind(object) == kind)
        }
    }

    impl Policies for Fixture {
        fn role(&self, _: &str, _: &str) -> Option<Arc<Value>> {
            None
        }
        fn cluster_role(&self, name: &str) -> Option<Arc<Value>> {
            self.kind("ClusterRole").find(|role| meta::name(role) == name).cloned()
        }
        fn cluster_roles(&self) -> Vec<Arc<Value>> {
            self.kind("ClusterRole").cloned().collect()
        }
        fn role_bindings(&self, namespace: &str) -> Vec<Arc<Value>> {
            self.kind("RoleBinding").filter(|it| meta::namespace(it) == namespace).cloned().collect()
        }
        fn cluster_role_bindings(&self) -> Vec<Arc<Value>> {
            self.kind("ClusterRoleBinding").cloned().collect()
        }
    }

    #[test]
    fn an_editor_of_a_namespace_may_create_jobs_in_that_namespace_only() {
        let binding = json!({"apiVersion": API_VERSION, "kind": "RoleBinding",
            "metadata": {"name": "b", "namespace": "team-a"},
            "roleRef": {"kind": "ClusterRole", "name": "edit"}, "subjects": [{"kind": "User", "name": "alice"}]});
        let policies = Fixture(objects().into_iter().chain([binding]).map(Arc::new).collect());
        let alice = UserInfo::new("alice", &[]);
        let may = |verb, group, resource, namespace| {
            let attributes =
                Attributes { verb, group, resource, namespace, is_resource_request: true, ..Attributes::default() };
            decide(&policies, &attributes, &alice).allowed
        };
        assert!(may("create", "batch", "jobs", "team-a"));
        assert!(may("list", "", "events", "team-a"));
        assert!(!may("create", "batch", "jobs", "team-b"));
        assert!(!may("create", "rbac.authorization.k8s.io", "roles", "team-a"));
        assert!(!may("list", "", "nodes", ""));
        let version = Attributes { verb: "get", path: "/openapi/v3", ..Attributes::default() };
        assert!(decide(&policies, &version, &alice).allowed);
        assert!(!decide(&policies, &version, &UserInfo::anonymous()).allowed);
    }

    #[test]
    fn admin_covers_edit_and_edit_covers_view_with_and_without_custom_kinds() {
        let custom = json!({"apiVersion": API_VERSION, "kind": "ClusterRole", "metadata": {"name": "queues-view",
            "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
            "rules": [{"apiGroups": ["kueue.x-k8s.io"], "resources": ["localqueues"], "verbs": ["get"]}]});
        let policies = Fixture(objects().into_iter().chain([custom]).map(Arc::new).collect());
        let of = |name| rules_of(&policies, "ClusterRole", name, "").expect("present");
        let (view, edit, admin) = (of("view"), of("edit"), of("admin"));
        assert!(view.iter().any(|rule| rule.resources == ["localqueues"]));
        assert_eq!(uncovered(&edit, &view), Vec::<Rule>::new());
        assert_eq!(uncovered(&admin, &edit), Vec::<Rule>::new());
        assert!(!uncovered(&view, &edit).is_empty());
    }
}
