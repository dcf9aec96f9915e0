//! Objects that every cluster has: the system namespaces, priority classes, the configuration of
//! API fairness, the range of cluster IPs, and the default RBAC roles and bindings. At each start,
//! missing objects are created. Existing objects are not changed, except that roles and bindings
//! get missing rules and subjects, and that certificates are updated.

mod network;

use berth_apimachinery::meta;
use berth_store::{CommitFuture, Write};
use serde_json::{Value, json};

use crate::pki::FrontProxy;
use crate::state::State;
use crate::{aggregation, auth, objects, strategy};

const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Queues the writes of missing and outdated objects. Each future resolves when its object is
/// durable.
pub(crate) fn queue(state: &State, front_proxy: Option<&FrontProxy>) -> Vec<CommitFuture> {
    let mut wanted: Vec<Value> = NAMESPACES
        .iter()
        .map(|name| {
            json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
            })
        })
        .collect();
    wanted.extend(strategy::SYSTEM_CLASSES.iter().map(|(name, value, description)| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": {"name": name, "generation": 1}, "value": value,
            "description": description, "preemptionPolicy": "PreemptLowerPriority",
        })
    }));
    wanted.extend(network::flow_control());
    wanted.push(network::service_range(&state.timestamp()));
    wanted.extend(auth::bootstrap::objects());
    wanted.extend(front_proxy.map(aggregation::authentication));
    wanted.into_iter().filter_map(|object| create(state, object)).collect()
}

fn create(state: &State, mut object: Value) -> Option<CommitFuture> {
    let group = meta::api_version(&object).split_once('/').map_or("", |(group, _)| group).to_owned();
    let registry = state.registry();
    let row = registry.by_kind(&group, meta::kind(&object))?;
    let key = objects::key(&row.group, &row.plural, meta::namespace(&object), meta::name(&object));
    if let Some(record) = state.store().get(&key) {
        // Stored default roles and bindings get missing rules and subjects, such as those of a
        // newer version. Of the other objects, only the certificates are updated.
        let stored = record.value();
        if meta::name(&object) == aggregation::AUTHENTICATION && meta::kind(&object) == "ConfigMap" {
            // The certificates may have changed since the last start. Fields that users added are
            // kept.
            let mut value = (*stored).clone();
            for (field, text) in object["data"].as_object().into_iter().flatten() {
                value["data"][field] = text.clone();
            }
            return (value != *stored)
                .then(|| state.store().commit(Write::Update { key, expected: record.revision, value }));
        }
        let value = auth::reconcile::is_wanted(&stored).then(|| auth::reconcile::object(&object, &stored)).flatten()?;
        return Some(state.store().commit(Write::Update { key, expected: record.revision, value }));
    }
    let (uid, time) = (state.new_uid(), state.timestamp());
    let metadata = meta::metadata_mut(&mut object);
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), time);
    Some(state.store().commit(Write::Create { key, value: object }))
}
