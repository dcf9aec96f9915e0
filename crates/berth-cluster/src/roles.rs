//! Aggregated ClusterRoles: the rules of the roles they select are written to them, so that whoever reads the role sees what
//! it gives. Rules somebody wrote there himself are replaced.
//!
//! Source of the behaviour: Kubernetes documentation, "Using RBAC Authorization: Aggregated ClusterRoles".

use berth_runtime::{Action, Cache, Error, Manager, ObjectKey, Reconciler, is_not_found};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::scheduling::matches_label_selector;

const CONTROLLER: &str = "clusterrole-aggregation-controller";
/// The one value all aggregated roles have in the index.
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
        // There are few of them, and each looks whether it is concerned.
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
        match api.patch(&key.name, &PatchParams::apply(CONTROLLER).force(), &Patch::Apply(&applied)).await {
            Ok(role) => self.roles.observe(role),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }
}

/// The rules of the roles that `role` selects, selector by selector in the order of their names, each once; `None` when it
/// selects none by nature.
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
