//! Aggregated ClusterRoles: copies the rules of the selected ClusterRoles to the role that selects
//! them. Rules that a user wrote to such a role are replaced.
//!
//! Source: Kubernetes documentation, "Using RBAC Authorization: Aggregated ClusterRoles".

use berth_runtime::{Action, Cache, Error, Manager, ObjectKey, Reconciler, is_not_found};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::placement::matches_label_selector;

const CONTROLLER: &str = "clusterrole-aggregation-controller";
/// Index key of all aggregated roles.
const AGGREGATED: &str = "aggregated";

/// Adds the controller.
pub fn install(manager: &mut Manager) {
    let roles: Cache<ClusterRole> = manager.cache();
    let aggregated =
        roles.index(|role| role.aggregation_rule.iter().map(|_| AGGREGATED.to_owned()).collect::<Vec<_>>());
    let client = manager.client();
    manager
        .controller(CONTROLLER)
        .watch_self(&roles)
        // There are few aggregated roles; any change reconciles all of them.
        .watch(&roles, move |_| aggregated.keys(AGGREGATED))
        .run(Aggregation { client, roles: roles.clone() });
}

struct Aggregation {
    client: Client,
    roles: Cache<ClusterRole>,
}

impl Reconciler for Aggregation {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(role) = self.roles.get(&key) else { return Ok(Action::Wait) };
        let Some(rules) = aggregate(&role, self.roles.iter()) else { return Ok(Action::Wait) };
        if role.rules.as_deref().unwrap_or_default() == rules {
            return Ok(Action::Wait);
        }
        let applied = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": key.name, "uid": role.metadata.uid}, "rules": rules,
        });
        let api: Api<ClusterRole> = Api::all(self.client.clone());
        match berth_runtime::write::patch(
            &api,
            &key.name,
            &PatchParams::apply(CONTROLLER).force(),
            &Patch::Apply(&applied),
        )
        .await
        {
            Ok(role) => self.roles.observe(role),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }
}

/// The rules of the roles that `role` selects, by selector, then by role name, without duplicates.
/// `None` if `role` has no aggregation rule.
fn aggregate<R: AsRef<ClusterRole>>(role: &ClusterRole, all: impl Iterator<Item = R>) -> Option<Vec<PolicyRule>> {
    let rule = role.aggregation_rule.as_ref()?;
    let mut others: Vec<R> = all.filter(|other| other.as_ref().metadata.name != role.metadata.name).collect();
    others.sort_by_key(|other| other.as_ref().name_any());
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in rule.cluster_role_selectors.iter().flatten() {
        for other in others.iter().map(AsRef::as_ref) {
            if matches_label_selector(Some(selector), other.labels()) {
                let new: Vec<_> = other.rules.iter().flatten().filter(|rule| !rules.contains(rule)).cloned().collect();
                rules.extend(new);
            }
        }
    }
    Some(rules)
}
