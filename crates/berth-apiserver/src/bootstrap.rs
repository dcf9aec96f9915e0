//! Objects that every cluster has: the system namespaces, priority classes, and the default RBAC
//! roles. Missing objects are created. Changes that users made to existing objects are kept.

mod network;

use berth_apimachinery::meta;
use berth_store::{CommitFuture, Write};
use serde_json::{Value, json};

use crate::pki::FrontProxy;
use crate::state::State;
use crate::{aggregation, auth, objects, strategy};

const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Queues writes of the missing objects. Each future resolves when its object is durable.
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
        // Default roles of an older version get the missing rules. Other objects are not changed.
        let stored = record.value();
        if meta::name(&object) == aggregation::AUTHENTICATION && meta::kind(&object) == "ConfigMap" {
            // Certificates change with each start. Fields that users added are kept.
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
