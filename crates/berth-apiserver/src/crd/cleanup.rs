//! Deletion of a custom resource definition: first its objects, then, with the last object, the
//! definition.

use std::collections::BTreeSet;

use berth_apimachinery::meta;
use berth_store::{ListQuery, Write};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::Value;

use super::uninstall;
use crate::objects;
use crate::own_requests::OwnRequests;
use crate::state::State;
use berth_kinds::crd::{GROUP, PLURAL, conditions, definition};

/// Deletes all objects of a definition that is being deleted, then the definition.
pub(super) async fn delete_objects(state: &State, requests: &dyn OwnRequests, definition: &Value) {
    mark_terminating(state, meta::name(definition)).await;
    let spec = &definition["spec"];
    let (Some(group), Some(plural)) = (spec["group"].as_str(), spec["names"]["plural"].as_str()) else { return };
    let served = spec["versions"].as_array().into_iter().flatten().find(|version| version["served"] == true);
    if let Some(version) = served.and_then(|version| version["name"].as_str()) {
        // One request per namespace: no request deletes the objects of all namespaces.
        let namespaces: BTreeSet<String> =
            state.objects.list(group, plural, None).iter().map(|object| meta::namespace(object).to_owned()).collect();
        for namespace in namespaces {
            let scope = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
            let request = Request::builder()
                .method(Method::DELETE)
                .uri(format!("/apis/{group}/{version}/{scope}{plural}"))
                .body(Full::new(Bytes::new()));
            let Ok(request) = request else { continue };
            let response = requests.send(request).await;
            if !response.status().is_success() {
                tracing::warn!(group, plural, status = %response.status(), "objects of a deleted kind could not be deleted");
            }
        }
    }
    finish(state, meta::name(definition)).await;
}

/// Sets the condition in a definition's status which reports that its objects are being deleted.
async fn mark_terminating(state: &State, name: &str) {
    let key = objects::key(GROUP, PLURAL, "", name);
    let Some(record) = state.store().get(&key) else { return };
    let mut value = record.value().as_ref().clone();
    if conditions::is_true(&value, "Terminating") {
        return;
    }
    let now = state.timestamp();
    definition::set_terminating(&mut value, now.as_str().unwrap_or_default());
    // Informational only: on a conflict the other write may report it.
    let _ = state.commit(Write::Update { key, expected: record.revision, value }).await;
}

/// Removes a definition that is being deleted, if it has no objects left. If the definition has
/// finalizers of other clients, only the server's own finalizer is removed.
pub(super) async fn finish(state: &State, name: &str) {
    let key = objects::key(GROUP, PLURAL, "", name);
    let Some(record) = state.store().get(&key) else { return };
    let current = record.value();
    if meta::deletion_timestamp(&current).is_none() {
        return;
    }
    let spec = &current["spec"];
    let (Some(group), Some(plural)) = (spec["group"].as_str(), spec["names"]["plural"].as_str()) else { return };
    let prefix = objects::prefix(group, plural, None);
    let rest = ListQuery { limit: 1, ..ListQuery::all(&prefix) };
    if state.store().list(&rest).is_ok_and(|listing| !listing.records.is_empty()) {
        return;
    }
    let others: Vec<&str> =
        meta::finalizers(&current).into_iter().filter(|finalizer| *finalizer != definition::FINALIZER).collect();
    let mut last = current.as_ref().clone();
    let metadata = meta::metadata_mut(&mut last);
    let write = if others.is_empty() {
        metadata.remove("finalizers");
        Write::Delete { key, expected: record.revision, last: Some(last) }
    } else {
        metadata.insert("finalizers".to_owned(), others.into());
        Write::Update { key, expected: record.revision, value: last }
    };
    // On a conflict, the other write of the definition runs this check again.
    let gone = matches!(write, Write::Delete { .. });
    if state.commit(write).await.is_ok() && gone {
        uninstall(state, &current);
    }
}
