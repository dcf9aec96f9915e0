//! Protection of persistent volume claims and volumes: an object that is deleted while it is in use
//! is removed only after its last use ends. Bound pods use claims, and claims use volumes.
//!
//! A finalizer holds the object. The API server adds it to new objects; these controllers add it to
//! objects that lack it. An unbound pod does not count, because no kubelet starts it with a claim
//! that is being deleted. A terminated pod counts until it is deleted.
//!
//! Source: Kubernetes' storage object in use protection (KEP-498).

use berth_api::json::Json;
use berth_api::pod::node_of;
use std::fmt::Debug;

use berth_apimachinery::well_known::{CLAIM_PROTECTION, VOLUME_PROTECTION};
use berth_runtime::{Action, Cache, Error, Index, Manager, ObjectKey, Reconciler, is_conflict, is_not_found};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Adds the controllers that protect claims and volumes.
pub fn install(manager: &mut Manager) {
    let pods: Cache<Pod> = manager.cache();
    let claims: Cache<PersistentVolumeClaim> = manager.cache();
    let volumes: Cache<PersistentVolume> = manager.cache();
    let users =
        pods.index(
            |pod| if has_node(pod) { claims_of(pod).iter().map(ObjectKey::to_string).collect() } else { Vec::new() },
        );
    let client = manager.client();
    manager
        .controller("pvc-protection-controller")
        .watch_self(&claims)
        .watch(&pods, |delta| {
            // Only a deleted pod can end the last use of a claim.
            let gone = delta.old.as_ref().filter(|_| delta.new.is_none());
            gone.map(|pod| claims_of(pod)).unwrap_or_default()
        })
        .run(Claims { client: client.clone(), claims: claims.clone(), users });
    manager.controller("pv-protection-controller").watch_self(&volumes).run(Volumes { client, volumes });
}

fn has_node(pod: &Pod) -> bool {
    node_of(pod).is_some()
}

/// The claims that a pod names, and those of its ephemeral volumes.
fn claims_of(pod: &Pod) -> Vec<ObjectKey> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claims = volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
        (None, None) => None,
    });
    let namespace = pod.namespace().unwrap_or_default();
    claims.map(|name| ObjectKey { namespace: namespace.clone(), name }).collect()
}

struct Claims {
    client: Client,
    claims: Cache<PersistentVolumeClaim>,
    /// Pods with a node, by the claims they use.
    users: Index<Pod>,
}

impl Reconciler for Claims {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(claim) = self.claims.get(&key) else { return Ok(Action::Wait) };
        let mut is_used = self.users.count(&key.to_string()) > 0;
        if !is_used && claim.metadata.deletion_timestamp.is_some() {
            // The cache may not yet show a pod that has just been bound.
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
            let pods = berth_runtime::write::list(&pods, &ListParams::default()).await?;
            is_used = pods.iter().any(|pod| has_node(pod) && claims_of(pod).contains(&key));
        }
        let api = Api::namespaced(self.client.clone(), &key.namespace);
        protect(&api, &self.claims, &claim, CLAIM_PROTECTION, is_used).await
    }
}

struct Volumes {
    client: Client,
    volumes: Cache<PersistentVolume>,
}

impl Reconciler for Volumes {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Action::Wait) };
        let is_used = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let api = Api::all(self.client.clone());
        protect(&api, &self.volumes, &volume, VOLUME_PROTECTION, is_used).await
    }
}

/// Removes the finalizer from a deleted object that is not in use, and adds it to an object that is
/// not deleted.
async fn protect<K>(api: &Api<K>, cache: &Cache<K>, object: &K, finalizer: &str, is_used: bool) -> Result<Action, Error>
where
    K: kube::Resource<DynamicType = ()> + Clone + Json + Debug + Send + Sync + 'static,
{
    let mut finalizers = object.finalizers().to_vec();
    let has = finalizers.iter().any(|it| it == finalizer);
    match (object.meta().deletion_timestamp.is_some(), has) {
        (true, true) if !is_used => finalizers.retain(|it| it != finalizer),
        (false, false) => finalizers.push(finalizer.to_owned()),
        _ => return Ok(Action::Wait),
    }
    let meta = object.meta();
    let patch = json!({"metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
    }});
    match berth_runtime::write::patch(api, &object.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await {
        // The API server deletes the object when its last finalizer is removed.
        Ok(written) if meta.deletion_timestamp.is_some() && finalizers.is_empty() => cache.observe_deleted(&written),
        Ok(written) => cache.observe(written),
        Err(error) if is_not_found(&error) => {}
        // The watch event of the concurrent write triggers the next reconcile.
        Err(error) if is_conflict(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Action::Wait)
}
