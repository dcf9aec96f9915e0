//! Which pods, ReplicaSets or ControllerRevisions a controller owns: it adopts active ones without
//! a controller that its selector matches, and releases own ones that the selector no longer
//! matches.

use berth_api::json::Json;
use std::sync::Arc;

use berth_runtime::{Cache, Delta, Error, Index, Writer, is_controlled_by, owned_by};
use k8s_openapi::api::apps::v1::{ControllerRevision, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::placement::matches_label_selector;

/// A kind whose objects are claimed by selector.
pub trait Claimed:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + Json + Send + Sync + 'static
{
    /// Whether the object may be adopted.
    fn is_active(&self) -> bool;
}

impl Claimed for Pod {
    fn is_active(&self) -> bool {
        crate::job::facts::is_active(self)
    }
}

impl Claimed for ReplicaSet {
    fn is_active(&self) -> bool {
        self.metadata.deletion_timestamp.is_none()
    }
}

impl Claimed for ControllerRevision {
    fn is_active(&self) -> bool {
        self.metadata.deletion_timestamp.is_none()
    }
}

/// The objects of one owner.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims<T> {
    /// Objects that the owner controls and whose labels match.
    pub own: Vec<Arc<T>>,
    /// Objects without a controller to adopt.
    pub adopt: Vec<Arc<T>>,
    /// Own objects whose labels do not match any more.
    pub release: Vec<Arc<T>>,
}

/// Sorts objects into owned ones, and those to adopt or release. A deleted owner adopts and
/// releases nothing.
pub fn claim<K: Resource, T: Claimed>(
    owner: &K,
    selector: &LabelSelector,
    owned: Vec<Arc<T>>,
    orphans: Vec<Arc<T>>,
) -> Claims<T> {
    let uid = owner.meta().uid.as_deref().unwrap_or_default();
    let is_owner_deleted = owner.meta().deletion_timestamp.is_some();
    let matches = |object: &T| matches_label_selector(Some(selector), object.labels());
    let mut claims = Claims { own: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    for object in owned.into_iter().filter(|object| is_controlled_by(object.as_ref(), uid)) {
        if matches(&object) || is_owner_deleted || object.meta().deletion_timestamp.is_some() {
            claims.own.push(object);
        } else {
            claims.release.push(object);
        }
    }
    if !is_owner_deleted {
        claims.adopt = orphans.into_iter().filter(|object| object.is_active() && matches(object)).collect();
    }
    claims
}

/// Objects without a controller, by namespace and by each of their labels.
#[derive(Clone)]
pub struct Orphans<T: 'static>(Index<T>);

impl<T: Claimed> Orphans<T> {
    /// Indexes a cache of the objects.
    pub fn new(objects: &Cache<T>) -> Self {
        Self(objects.index(|object: &T| {
            if !is_orphan(object) {
                return Vec::new();
            }
            let namespace = object.namespace().unwrap_or_default();
            let labels = object.labels().iter().map(|(key, value)| format!("{namespace}/{key}={value}"));
            labels.chain([format!("{namespace}/")]).collect()
        }))
    }

    /// Objects without a controller that a selector may match.
    pub fn candidates(&self, namespace: &str, selector: &LabelSelector) -> Vec<Arc<T>> {
        let label = selector.match_labels.iter().flatten().next();
        let label = label.map(|(key, value)| format!("{key}={value}")).unwrap_or_default();
        self.0.get(&format!("{namespace}/{label}"))
    }
}

fn is_orphan<T: Resource>(object: &T) -> bool {
    !object.owner_references().iter().any(|owner| owner.controller == Some(true))
}

/// The changed object, if an owner may have to adopt it: it has no controller, and is new or has
/// other labels or owners than before.
pub fn newly_orphaned<T: Claimed>(delta: &Delta<T>) -> Option<&Arc<T>> {
    let object = delta.new.as_ref().filter(|object| is_orphan::<T>(object))?;
    let same = |old: &Arc<T>| old.labels() == object.labels() && is_orphan::<T>(old);
    (!delta.old.as_ref().is_some_and(same)).then_some(object)
}

impl<T: Claimed> Claims<T> {
    /// Writes the adoptions and releases. Returns all objects that the owner controls now.
    pub(crate) async fn apply<K>(self, owner: &K, objects: &Writer<T>) -> Result<Vec<Arc<T>>, Error>
    where
        K: Resource<DynamicType = ()>,
    {
        let Self { mut own, adopt, release } = self;
        for object in adopt {
            let patch = json!({"metadata": {"uid": object.meta().uid, "ownerReferences": [owned_by(owner)]}});
            own.extend(objects.patch(&object, &patch).await?.map(Arc::new));
        }
        for object in release {
            let reference = json!({"$patch": "delete", "uid": owner.meta().uid});
            let patch = json!({"metadata": {"uid": object.meta().uid, "ownerReferences": [reference]}});
            objects.patch(&object, &patch).await?;
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
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
