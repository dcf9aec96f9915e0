//! Adds the toleration for the taint of queued pools to pods whose queued request is provisioned.
//!
//! GKE does the same: the manifests of jobs, and the pods of clients such as SkyPilot, need not
//! have the toleration. Kubernetes allows additions to the tolerations of existing pods.

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_runtime::{Action, Cache, Error, Index, Manager, ObjectKey, Reconciler, is_not_found};
use k8s_openapi::api::core::v1::{Pod, Taint};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::QUEUED;
use super::classes::Classes;
use super::requested::queued_toleration;
use crate::placement::{consumed_request, tolerates};
use crate::pools::QUEUED_TAINT;

/// Adds the controller. It acts while the class says so (`addsToleration`).
pub fn install(manager: &mut Manager, classes: Classes) {
    let pods: Cache<Pod> = manager.cache();
    let requests: Cache<ProvisioningRequest> = manager.cache_if_served();
    let waiting: Index<Pod> = pods.index(|pod| {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let request = consumed_request(pod).filter(|_| may_need_toleration(pod));
        request.map(|request| format!("{namespace}/{request}")).into_iter().collect()
    });
    let (of_request, all) = (waiting, pods.clone());
    let client = manager.client();
    manager
        .controller("queued-tolerations")
        .watch(&pods, |delta| {
            delta.new.as_ref().filter(|pod| may_need_toleration(pod)).map(|pod| ObjectKey::of(pod.as_ref()))
        })
        .watch(&requests, move |delta| {
            let key = ObjectKey::of(delta.latest().as_ref()).to_string();
            of_request.get(&key).iter().map(|pod| ObjectKey::of(pod.as_ref())).collect::<Vec<_>>()
        })
        .watch(classes.cache(), move |_| {
            let waiting = all.iter().filter(|pod| may_need_toleration(pod));
            waiting.map(|pod| ObjectKey::of(pod.as_ref())).collect::<Vec<_>>()
        })
        .run(Tolerations { pods, requests, classes: classes.clone(), client });
}

/// True for an unbound pod that consumes a request and does not tolerate the taint of queued pools.
fn may_need_toleration(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let is_bound = spec.node_name.as_deref().is_some_and(|name| !name.is_empty());
    let taint =
        Taint { key: QUEUED_TAINT.into(), value: Some("true".into()), effect: "NoSchedule".into(), ..Taint::default() };
    !is_bound
        && consumed_request(pod).is_some()
        && !spec.tolerations.iter().flatten().any(|toleration| tolerates(toleration, &taint))
}

struct Tolerations {
    pods: Cache<Pod>,
    requests: Cache<ProvisioningRequest>,
    classes: Classes,
    client: Client,
}

impl Reconciler for Tolerations {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(&key).filter(|pod| may_need_toleration(pod)) else { return Ok(Action::Wait) };
        let Some(name) = consumed_request(&pod) else { return Ok(Action::Wait) };
        let request = self.requests.get(&ObjectKey::namespaced(key.namespace.clone(), name));
        let is_on = self.classes.get(QUEUED).is_some_and(|class| class.adds_toleration);
        if !is_on || !request.is_some_and(|request| is_provisioned(&request)) {
            return Ok(Action::Wait);
        }
        let mut tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.clone()).unwrap_or_default();
        tolerations.push(queued_toleration());
        let patch = json!({
            "metadata": { "resourceVersion": pod.metadata.resource_version },
            "spec": { "tolerations": tolerations },
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        match berth_runtime::write::patch(&api, &key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(pod) => self.pods.observe(pod),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }
}

/// True if the request is of the queued class and its machines are provisioned.
fn is_provisioned(request: &ProvisioningRequest) -> bool {
    let conditions = request.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    request.spec.provisioning_class_name == QUEUED
        && conditions.iter().any(|condition| condition.type_ == "Provisioned" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(tolerations: serde_json::Value, node: &str, annotations: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "annotations": annotations },
            "spec": { "containers": [], "nodeName": node, "tolerations": tolerations },
        }))
        .expect("a pod")
    }

    #[test]
    fn only_unbound_pods_of_a_request_without_the_toleration_need_it() {
        let consumes = json!({ "autoscaling.x-k8s.io/consume-provisioning-request": "r" });
        let gpu = json!([{ "key": "nvidia.com/gpu", "operator": "Exists" }]);
        assert!(may_need_toleration(&pod(gpu.clone(), "", consumes.clone())));
        assert!(!may_need_toleration(&pod(gpu.clone(), "", json!({}))), "it consumes no request");
        assert!(!may_need_toleration(&pod(gpu, "n", consumes.clone())), "it is bound");
        for has in [json!({ "key": QUEUED_TAINT, "value": "true" }), json!({ "operator": "Exists" })] {
            assert!(!may_need_toleration(&pod(json!([has]), "", consumes.clone())));
        }
    }
}
