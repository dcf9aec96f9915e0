//! The pods of a controller: it adopts active pods without a controller that its selector matches,
//! and releases its own pods that the selector no longer matches.

use std::sync::Arc;

use berth_runtime::{Cache, Delta, Error, Index};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::{Writer, is_controlled_by, owned_by};
use crate::job::facts::{is_active, is_deleted};
use crate::scheduling::matches_label_selector;

/// The pods of one owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims {
    /// Pods that the owner controls and whose labels match.
    pub own: Vec<Arc<Pod>>,
    /// Pods without a controller to adopt.
    pub adopt: Vec<Arc<Pod>>,
    /// Own pods whose labels do not match any more.
    pub release: Vec<Arc<Pod>>,
}

/// Sorts pods into owned ones, and those to adopt or release. A deleted owner adopts and releases
/// nothing.
pub fn claim<K: Resource>(owner: &K, selector: &LabelSelector, owned: Vec<Arc<Pod>>, orphans: Vec<Arc<Pod>>) -> Claims {
    let uid = owner.meta().uid.as_deref().unwrap_or_default();
    let is_owner_deleted = owner.meta().deletion_timestamp.is_some();
    let matches = |pod: &Pod| matches_label_selector(Some(selector), pod.labels());
    let mut claims = Claims::default();
    for pod in owned.into_iter().filter(|pod| is_controlled_by(pod.as_ref(), uid)) {
        if matches(&pod) || is_owner_deleted || is_deleted(&pod) {
            claims.own.push(pod);
        } else {
            claims.release.push(pod);
        }
    }
    if !is_owner_deleted {
        claims.adopt = orphans.into_iter().filter(|pod| is_active(pod) && matches(pod)).collect();
    }
    claims
}

/// Pods without a controller, by namespace and by each of their labels.
#[derive(Clone)]
pub struct Orphans(Index<Pod>);

impl Orphans {
    /// Indexes a cache of pods.
    pub fn new(pods: &Cache<Pod>) -> Self {
        Self(pods.index(|pod| {
            if !is_orphan(pod) {
                return Vec::new();
            }
            let namespace = pod.namespace().unwrap_or_default();
            let labels = pod.labels().iter().map(|(key, value)| format!("{namespace}/{key}={value}"));
            labels.chain([format!("{namespace}/")]).collect()
        }))
    }

    /// Pods without a controller that a selector may match.
    pub fn candidates(&self, namespace: &str, selector: &LabelSelector) -> Vec<Arc<Pod>> {
        let label = selector.match_labels.iter().flatten().next();
        let label = label.map(|(key, value)| format!("{key}={value}")).unwrap_or_default();
        self.0.get(&format!("{namespace}/{label}"))
    }
}

fn is_orphan(pod: &Pod) -> bool {
    !pod.owner_references().iter().any(|owner| owner.controller == Some(true))
}

/// The changed pod, if an owner may have to adopt it: it has no controller, and is new or has other
/// labels or owners than before.
pub fn newly_orphaned(delta: &Delta<Pod>) -> Option<&Arc<Pod>> {
    let pod = delta.new.as_ref().filter(|pod| is_orphan(pod))?;
    let same = |old: &Arc<Pod>| old.labels() == pod.labels() && is_orphan(old);
    (!delta.old.as_ref().is_some_and(same)).then_some(pod)
}

impl Claims {
    /// Writes the adoptions and releases. Returns all pods that the owner controls now.
    pub(crate) async fn apply<K>(self, owner: &K, pods: &Writer<Pod>) -> Result<Vec<Arc<Pod>>, Error>
    where
        K: Resource<DynamicType = ()>,
    {
        let Self { mut own, adopt, release } = self;
        for pod in adopt {
            let patch = json!({"metadata": {"uid": pod.metadata.uid, "ownerReferences": [owned_by(owner)]}});
            own.extend(pods.patch(&pod, &patch).await?.map(Arc::new));
        }
        for pod in release {
            let reference = json!({"$patch": "delete", "uid": owner.meta().uid});
            let patch = json!({"metadata": {"uid": pod.metadata.uid, "ownerReferences": [reference]}});
            pods.patch(&pod, &patch).await?;
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use serde_json::Value;

    use super::*;

    fn pod(name: &str, app: &str, owner: Value) -> Arc<Pod> {
        let metadata = json!({"name": name, "namespace": "ns", "labels": {"app": app}, "ownerReferences": owner});
        Arc::new(serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn matching_orphans_are_adopted_and_pods_with_other_labels_released() {
        let set: ReplicaSet =
            serde_json::from_value(json!({"metadata": {"name": "s", "uid": "u"}, "spec": {"selector": {}}})).unwrap();
        let selector: LabelSelector = serde_json::from_value(json!({"matchLabels": {"app": "web"}})).unwrap();
        let ours = json!([owned_by(&set)]);
        let owned = vec![pod("a", "web", ours.clone()), pod("b", "other", ours)];
        let orphans = vec![pod("c", "web", json!([])), pod("d", "other", json!([]))];
        let names = |pods: &[Arc<Pod>]| pods.iter().map(|pod| pod.name_any()).collect::<Vec<_>>();
        let claims = claim(&set, &selector, owned.clone(), orphans.clone());
        assert_eq!([names(&claims.own), names(&claims.adopt), names(&claims.release)], [["a"], ["c"], ["b"]]);
        let mut deleted = set;
        deleted.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH.into());
        let claims = claim(&deleted, &selector, owned, orphans);
        assert_eq!([claims.own.len(), claims.adopt.len(), claims.release.len()], [2, 0, 0]);
    }
}
