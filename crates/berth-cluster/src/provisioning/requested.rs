//! The pods for which a request needs capacity.

use std::sync::Arc;

use berth_api::autoscaling::v1::ProvisioningRequest;
use k8s_openapi::api::core::v1::{Pod, PodTemplate, Toleration};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::placement::{PodInfo, Resources};
use crate::pools::QUEUED_TAINT;

/// The toleration of queued pools.
pub fn queued_toleration() -> Toleration {
    Toleration {
        key: Some(QUEUED_TAINT.into()),
        operator: Some("Exists".into()),
        effect: Some("NoSchedule".into()),
        ..Toleration::default()
    }
}

/// One pod per count of each pod set, made from its template; or the name of the template that is
/// missing or empty.
///
/// Pods get the toleration for the extended resources that they request. For real pods, the API
/// server's admission plugin ExtendedResourceToleration adds it. With `adds_toleration`, they also
/// tolerate the taint of queued pools, because the cluster adds this toleration to the real pods.
pub fn requested_pods(
    request: &ProvisioningRequest,
    adds_toleration: bool,
    template: impl Fn(&str) -> Option<Arc<PodTemplate>>,
) -> Result<Vec<Arc<PodInfo>>, String> {
    let namespace = request.namespace().unwrap_or_default();
    let mut pods = Vec::new();
    for (set, pod_set) in request.spec.pod_sets.iter().enumerate() {
        let name = &pod_set.pod_template_ref.name;
        let found = template(name).and_then(|template| template.template.clone());
        let Some((metadata, mut spec)) = found.and_then(|t| Some((t.metadata.unwrap_or_default(), t.spec?))) else {
            return Err(name.clone());
        };
        let requests = Resources::of_pod(&spec);
        let tolerations = spec.tolerations.get_or_insert_with(Vec::new);
        tolerations.extend(requests.extended().map(|(resource, _)| Toleration {
            key: Some(resource.to_owned()),
            operator: Some("Exists".into()),
            effect: Some("NoSchedule".into()),
            ..Toleration::default()
        }));
        if adds_toleration {
            tolerations.push(queued_toleration());
        }
        for number in 0..pod_set.count.max(0) {
            let pod = Pod {
                metadata: ObjectMeta {
                    name: Some(format!("{}-{set}-{number}", request.name_any())),
                    namespace: Some(namespace.clone()),
                    labels: metadata.labels.clone(),
                    annotations: metadata.annotations.clone(),
                    ..ObjectMeta::default()
                },
                spec: Some(spec.clone()),
                status: None,
            };
            pods.push(Arc::new(PodInfo::new(Arc::new(pod))));
        }
    }
    Ok(pods)
}
