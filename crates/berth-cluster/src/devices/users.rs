//! Users of claims: a claim gives its devices back when its last pod has ended. A claim that was
//! created for a pod, from a template or for its extended resources, is deleted then.

use std::sync::Arc;

use berth_api::pod::node_of;
use berth_runtime::{Action, Cache, Error, Manager, ObjectKey, Reconciler, is_conflict, is_not_found};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};

use super::FINALIZER;
use crate::job::facts::is_terminated;
use crate::placement::{claim_owner, device_claims_of};

/// Adds the controller.
pub(super) fn install(manager: &mut Manager) {
    let pods: Cache<Pod> = manager.cache();
    let claims: Cache<ResourceClaim> = manager.cache();
    let client = manager.client();
    manager
        .controller("resource-claim-users")
        .watch_self(&claims)
        .watch(&pods, |delta| {
            let ended = delta.new.as_ref().is_none_or(|pod| is_done(pod));
            let pod = delta.old.as_ref().or(delta.new.as_ref()).filter(|_| ended);
            pod.map(|pod| used_claims(pod)).unwrap_or_default()
        })
        .run(Users { client, pods, claims });
}

/// The claims that a pod uses, with the one that the scheduler made for its extended resources.
fn used_claims(pod: &Pod) -> Vec<ObjectKey> {
    let mut claims = device_claims_of(pod).unwrap_or_default();
    let made = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let namespace = pod.namespace().unwrap_or_default();
    claims.extend(made.map(|made| ObjectKey::namespaced(namespace, &made.resource_claim_name)));
    claims
}

/// True if the pod uses no claims any more: it has terminated, or will never start.
fn is_done(pod: &Pod) -> bool {
    is_terminated(pod) || (pod.metadata.deletion_timestamp.is_some() && node_of(pod).is_none())
}

/// What is to be done for a claim.
#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    /// Write this status: the remaining users, without devices if there are none. A claim without
    /// devices then loses its finalizer.
    Release(Box<ResourceClaim>),
    /// Write the claim, which is being deleted, without its finalizer.
    Unprotect(Box<ResourceClaim>),
    /// Delete the claim, because its pod has ended.
    Delete,
}

/// The next step for a claim. `pod`: the pod of this name and UID, if it exists.
fn next_step(claim: &ResourceClaim, pod: impl Fn(&str, &str) -> Option<Arc<Pod>>) -> Step {
    let status = claim.status.clone().unwrap_or_default();
    let users = status.reserved_for.clone().unwrap_or_default();
    let is_used = |user: &ResourceClaimConsumerReference| {
        user.resource != "pods" || pod(&user.name, &user.uid).is_some_and(|pod| !is_done(&pod))
    };
    let left: Vec<_> = users.iter().filter(|user| is_used(user)).cloned().collect();
    if left.len() < users.len() || (left.is_empty() && status.allocation.is_some()) {
        return Step::Release(Box::new(used_only_by(claim, left)));
    }
    // The scheduler writes the finalizer before the devices: this is no reason to remove it.
    if status.allocation.is_none() && claim.metadata.deletion_timestamp.is_some() && is_protected(claim) {
        return Step::Unprotect(Box::new(unprotected(claim)));
    }
    let owner = claim.owner_references().iter().find(|owner| Some(owner.uid.as_str()) == claim_owner(claim));
    let owner = owner.and_then(|owner| pod(&owner.name, &owner.uid));
    let is_orphan = owner.is_some_and(|pod| is_done(&pod));
    if is_orphan && claim.metadata.deletion_timestamp.is_none() { Step::Delete } else { Step::Nothing }
}

/// The claim with these users only. Without users, it has no devices either.
fn used_only_by(claim: &ResourceClaim, users: Vec<ResourceClaimConsumerReference>) -> ResourceClaim {
    let mut claim = claim.clone();
    let status = claim.status.get_or_insert_default();
    if users.is_empty() {
        (status.allocation, status.devices) = (None, None);
    }
    status.reserved_for = (!users.is_empty()).then_some(users);
    claim
}

fn is_protected(claim: &ResourceClaim) -> bool {
    claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
}

fn unprotected(claim: &ResourceClaim) -> ResourceClaim {
    let mut claim = claim.clone();
    claim.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
    claim
}

struct Users {
    client: Client,
    pods: Cache<Pod>,
    claims: Cache<ResourceClaim>,
}

impl Reconciler for Users {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(claim) = self.claims.get(&key) else { return Ok(Action::Wait) };
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        let pod = |name: &str, uid: &str| {
            let pod = self.pods.get(&ObjectKey::namespaced(&key.namespace, name))?;
            (pod.metadata.uid.as_deref() == Some(uid)).then_some(pod)
        };
        // Each write triggers the next reconcile.
        let written = match next_step(&claim, pod) {
            Step::Nothing => return Ok(Action::Wait),
            Step::Release(claim) => write_released(&api, &claim).await,
            Step::Unprotect(claim) => {
                berth_runtime::write::replace(&api, &key.name, &PostParams::default(), claim.as_ref()).await
            }
            Step::Delete => {
                let preconditions = Preconditions { uid: claim.uid(), resource_version: None };
                let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                match berth_runtime::write::delete(&api, &key.name, &parameters).await {
                    Ok(_) => return Ok(Action::Wait),
                    Err(error) => Err(error),
                }
            }
        };
        match written {
            Ok(written) => self.claims.observe(written),
            // The watch shows the newer state.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }
}

/// Releases the devices of a claim, which has no users afterwards. Fails with a conflict if the
/// claim has changed since `claim` was read.
pub(crate) async fn release(api: &Api<ResourceClaim>, claim: &ResourceClaim) -> Result<ResourceClaim, kube::Error> {
    write_released(api, &used_only_by(claim, Vec::new())).await
}

/// Writes the status of a claim. Removes its finalizer if it has no devices any more. If the
/// process ends in between, the finalizer stays until the claim is deleted.
async fn write_released(api: &Api<ResourceClaim>, claim: &ResourceClaim) -> Result<ResourceClaim, kube::Error> {
    let (name, parameters) = (claim.name_any(), PostParams::default());
    let written = berth_runtime::write::replace_status(api, &name, &parameters, claim).await?;
    if written.status.as_ref().is_some_and(|status| status.allocation.is_some()) || !is_protected(&written) {
        return Ok(written);
    }
    berth_runtime::write::replace(api, &name, &parameters, &unprotected(&written)).await
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(status: Value, finalizers: Value) -> ResourceClaim {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true});
        let object = json!({"metadata": {"name": "c", "namespace": "ns", "finalizers": finalizers, "ownerReferences": [owner]},
            "spec": {}, "status": status});
        serde_json::from_value(object).expect("a claim")
    }

    fn pod(phase: &str) -> Arc<Pod> {
        let object = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"nodeName": "n", "containers": []},
            "status": {"phase": phase}});
        Arc::new(serde_json::from_value(object).expect("a pod"))
    }

    fn allocated() -> Value {
        json!({"allocation": {"devices": {"results": []}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]})
    }

    #[test]
    fn a_claim_keeps_its_devices_while_a_pod_uses_them() {
        let used = claim(allocated(), json!([FINALIZER]));
        assert_eq!(next_step(&used, |_, _| Some(pod("Running"))), Step::Nothing);
        assert_eq!(next_step(&claim(json!({}), json!([])), |_, _| Some(pod("Pending"))), Step::Nothing);
    }

    #[test]
    fn a_claim_of_a_pod_that_ended_is_released_then_deleted_then_unprotected() {
        let used = claim(allocated(), json!([FINALIZER]));
        let Step::Release(released) = next_step(&used, |_, _| Some(pod("Succeeded"))) else { panic!("not released") };
        let status = released.status.as_ref().expect("a status");
        assert_eq!((status.allocation.as_ref(), status.reserved_for.as_ref()), (None, None));
        assert_eq!(next_step(&released, |_, _| Some(pod("Succeeded"))), Step::Delete);
        // The garbage collector deletes the claim of a pod that does not exist.
        assert_eq!(next_step(&released, |_, _| None), Step::Nothing);
        let mut deleted = released;
        deleted.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
        let Step::Unprotect(unprotected) = next_step(&deleted, |_, _| None) else { panic!("not unprotected") };
        assert!(unprotected.finalizers().is_empty());
    }

    #[tokio::test]
    async fn a_released_claim_has_no_users_no_devices_and_no_finalizer() {
        let bodies: Arc<parking_lot::Mutex<Vec<Value>>> = Arc::default();
        let seen = bodies.clone();
        // Responds with the object that is written, as an API server does.
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let seen = seen.clone();
            async move {
                let body = http_body_util::BodyExt::collect(request.into_body()).await.expect("a body").to_bytes();
                seen.lock().push(serde_json::from_slice(&body).expect("JSON"));
                Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(body.to_vec())))
            }
        });
        let api: Api<ResourceClaim> = Api::namespaced(Client::new(service, "ns"), "ns");
        let released = release(&api, &claim(allocated(), json!([FINALIZER]))).await.expect("the claim is written");
        let status = released.status.clone().expect("a status");
        assert_eq!((status.allocation, status.reserved_for, status.devices), (None, None, None));
        assert!(released.finalizers().is_empty());
        let writes = bodies.lock();
        assert_eq!(writes.len(), 2, "the status, then the finalizer: {writes:?}");
    }

    #[test]
    fn the_finalizer_that_the_scheduler_writes_before_the_devices_stays() {
        let protected = claim(json!({}), json!([FINALIZER]));
        assert_eq!(next_step(&protected, |_, _| Some(pod("Pending"))), Step::Nothing);
    }
}
