//! The rights of Ray's autoscaler: it reads and patches its RayCluster and the pods.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::facts::Facts;
use crate::ray::constants::{APP_NAME, APPLICATION, CLUSTER, COMPONENT, CREATED_BY};
use crate::ray::names;

fn metadata(facts: &Facts<'_>, name: String) -> ObjectMeta {
    let labels = [(CLUSTER, facts.name), (APP_NAME, APPLICATION), (CREATED_BY, COMPONENT)];
    ObjectMeta {
        name: Some(name),
        namespace: Some(facts.namespace.to_owned()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        owner_references: Some(vec![facts.owner()]),
        ..ObjectMeta::default()
    }
}

/// The service account of the head pod.
pub fn account(facts: &Facts<'_>) -> ServiceAccount {
    ServiceAccount { metadata: metadata(facts, facts.autoscaler_account()), ..ServiceAccount::default() }
}

/// The autoscaler's rights in the cluster's namespace.
pub fn role(facts: &Facts<'_>) -> Role {
    let rule = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let rules = vec![
        rule("", "pods", &["get", "list", "watch", "patch"]),
        rule("", "pods/resize", &["patch"]),
        rule("ray.io", "rayclusters", &["get", "patch"]),
    ];
    Role { metadata: metadata(facts, names::checked(facts.name)), rules: Some(rules) }
}

/// Gives the rights to the service account.
pub fn binding(facts: &Facts<'_>) -> RoleBinding {
    let subject = Subject {
        kind: "ServiceAccount".to_owned(),
        name: facts.autoscaler_account(),
        namespace: Some(facts.namespace.to_owned()),
        api_group: None,
    };
    let role_ref = RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: "Role".to_owned(),
        name: names::checked(facts.name),
    };
    RoleBinding { metadata: metadata(facts, names::checked(facts.name)), role_ref, subjects: Some(vec![subject]) }
}
