//! The request of a workload to the autoscaler: its pod sets, their templates, and the names.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::autoscaling::v1::{PodSet as RequestPodSet, ProvisioningRequest, ProvisioningRequestSpec, Reference};
use berth_api::kueue::v1beta2::{
    ProvisioningRequestConfig, ProvisioningRequestConfigPodSetMergePolicy, ResourceFlavor, Workload,
};
use berth_api::kueue::{annotations, labels};
use berth_runtime::{owned_by, shared_by};
use k8s_openapi::api::core::v1::{PodSpec, PodTemplate, PodTemplateSpec};
use kube::ResourceExt;
use sha1::{Digest, Sha1};

use crate::gates::Gates;
use crate::podset::{self, PodSetError, PodSetInfo};
use crate::translate::requests as pod_requests;

/// Maximum length of an object name.
const NAME_MAX: usize = 253;

/// Why a request cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The admission lacks one of the pod sets.
    #[error("inconsistent podSet assignments")]
    InconsistentAssignments,
    /// A pod template cannot be computed.
    #[error(transparent)]
    PodSet(#[from] PodSetError),
}

/// The pods of one template.
#[derive(Clone, Debug, PartialEq)]
pub struct Needed {
    /// Names of the pod sets; the first one names the template.
    pub pod_sets: Vec<String>,
    /// Number of pods.
    pub count: i32,
}

/// The pod sets that need nodes: those with pods that request a managed resource. Equal ones are
/// merged if the configuration requires it.
pub fn needed(workload: &Workload, config: &ProvisioningRequestConfig) -> Result<Vec<Needed>, RequestError> {
    let mut needed: Vec<(Needed, &PodTemplateSpec)> = Vec::new();
    for pod_set in &workload.spec.pod_sets {
        let Some(count) = needed_count(workload, &pod_set.name, pod_set.count, &pod_set.template, config)? else {
            continue;
        };
        let like = config.spec.pod_set_merge_policy.and_then(|policy| {
            needed.iter_mut().find(|(_, template)| match policy {
                ProvisioningRequestConfigPodSetMergePolicy::IdenticalPodTemplates => **template == pod_set.template,
                ProvisioningRequestConfigPodSetMergePolicy::IdenticalWorkloadSchedulingRequirements => {
                    scheduling(template) == scheduling(&pod_set.template)
                }
            })
        });
        match like {
            Some((known, _)) => {
                known.count = known.count.saturating_add(count);
                known.pod_sets.push(pod_set.name.clone());
            }
            None => needed.push((Needed { pod_sets: vec![pod_set.name.clone()], count }, &pod_set.template)),
        }
    }
    Ok(needed.into_iter().map(|(needed, _)| needed).collect())
}

/// True if any pod set needs nodes.
pub fn is_needed(workload: &Workload, config: &ProvisioningRequestConfig) -> Result<bool, RequestError> {
    for set in &workload.spec.pod_sets {
        if needed_count(workload, &set.name, set.count, &set.template, config)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Number of pods of one pod set that need nodes; `None` if it needs no nodes.
fn needed_count(
    workload: &Workload,
    name: &str,
    count: i32,
    template: &PodTemplateSpec,
    config: &ProvisioningRequestConfig,
) -> Result<Option<i32>, RequestError> {
    if count <= 0 {
        return Ok(None);
    }
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map_or(&[][..], |admission| &admission.pod_set_assignments);
    let assignment = assignments.iter().find(|a| a.name == name).ok_or(RequestError::InconsistentAssignments)?;
    let count = assignment.count.unwrap_or(count);
    if count <= 0 {
        return Ok(None);
    }
    let managed = &config.spec.managed_resources;
    let asks = managed.is_empty()
        || template.spec.as_ref().is_some_and(|spec| asks_for(spec, |resource| managed.iter().any(|m| m == resource)));
    Ok(asks.then_some(count))
}

/// True if any container has a request or limit for a resource that `wanted` accepts.
fn asks_for(spec: &PodSpec, wanted: impl Fn(&str) -> bool) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers.filter_map(|container| container.resources.as_ref()).any(|resources| {
        let named = resources.requests.iter().flatten().chain(resources.limits.iter().flatten());
        named.into_iter().any(|(name, _)| wanted(name))
    })
}

/// The fields of a pod that affect scheduling.
fn scheduling(template: &PodTemplateSpec) -> PodSpec {
    let spec = template.spec.clone().unwrap_or_default();
    let only_resources = |containers: Vec<k8s_openapi::api::core::v1::Container>| {
        containers
            .into_iter()
            .map(|container| k8s_openapi::api::core::v1::Container {
                resources: container.resources,
                restart_policy: container.restart_policy,
                ports: container.ports,
                ..Default::default()
            })
            .collect::<Vec<_>>()
    };
    PodSpec {
        containers: only_resources(spec.containers),
        init_containers: spec.init_containers.map(only_resources),
        node_selector: spec.node_selector,
        affinity: spec.affinity,
        tolerations: spec.tolerations,
        topology_spread_constraints: spec.topology_spread_constraints,
        priority: spec.priority,
        priority_class_name: spec.priority_class_name,
        runtime_class_name: spec.runtime_class_name,
        overhead: spec.overhead,
        resource_claims: spec.resource_claims,
        resources: spec.resources,
        scheduler_name: spec.scheduler_name,
        host_network: spec.host_network,
        ..PodSpec::default()
    }
}

/// Names of the checks in a workload's status.
pub fn checks_of(workload: &Workload) -> Vec<String> {
    workload.status.iter().flat_map(|status| &status.admission_checks).map(|check| check.name.clone()).collect()
}

/// Names of a request's owners, which are workloads of its namespace.
pub fn owner_names(request: &ProvisioningRequest) -> Vec<String> {
    request.owner_references().iter().map(|owner| owner.name.clone()).collect()
}

/// `<workload>-<check>-<attempt>`, shortened to the maximum length of a name.
pub fn request_name(workload: &str, check: &str, attempt: i32) -> String {
    limited(&format!("{workload}-{check}-{attempt}"))
}

/// `ppt-<request>-<pod set>`, shortened to the maximum length of a name.
pub fn template_name(request: &str, pod_set: &str) -> String {
    limited(&format!("ppt-{request}-{pod_set}"))
}

fn limited(name: &str) -> String {
    if name.len() <= NAME_MAX {
        return name.to_owned();
    }
    const HASH_DIGITS: usize = 5;
    let digest = hex::encode(Sha1::digest(name.as_bytes()));
    format!("{}-{}", &name[..NAME_MAX - HASH_DIGITS - 1], &digest[..HASH_DIGITS])
}

/// The attempt at the end of a request's name; `None` if the request is not for this workload and
/// check.
pub fn attempt_of(request: &str, workload: &str, check: &str) -> Option<i32> {
    let attempt: i32 = request.rsplit_once('-')?.1.parse().ok()?;
    (attempt > 0 && request_name(workload, check, attempt) == request).then_some(attempt)
}

/// The request with the highest attempt for a check.
pub fn latest<'a>(
    requests: &'a [Arc<ProvisioningRequest>],
    workload: &str,
    check: &str,
) -> Option<(i32, &'a Arc<ProvisioningRequest>)> {
    requests.iter().filter_map(|r| Some((attempt_of(&r.name_any(), workload, check)?, r))).max_by_key(|(n, _)| *n)
}

/// Parameters of a request: the configuration's, overridden by those in the workload's annotations.
pub fn parameters(workload: &Workload, config: &ProvisioningRequestConfig) -> BTreeMap<String, String> {
    let mut parameters = config.spec.parameters.clone();
    for (key, value) in workload.annotations() {
        if let Some(name) = key.strip_prefix(annotations::PROVISIONING_REQUEST_PREFIX) {
            parameters.insert(name.to_owned(), value.clone());
        }
    }
    parameters
}

/// The request of an attempt.
pub fn request(
    workload: &Workload,
    check: &str,
    attempt: i32,
    config: &ProvisioningRequestConfig,
    needed: &[Needed],
) -> ProvisioningRequest {
    let name = request_name(&workload.name_any(), check, attempt);
    let mut request = ProvisioningRequest::named(&name);
    request.metadata.namespace = workload.namespace();
    request.labels_mut().insert(labels::MANAGED.to_owned(), "true".to_owned());
    request.metadata.owner_references = Some(vec![shared_by(workload)]);
    request.spec = ProvisioningRequestSpec {
        provisioning_class_name: config.spec.provisioning_class_name.clone(),
        parameters: parameters(workload, config),
        pod_sets: needed
            .iter()
            .map(|needed| RequestPodSet {
                pod_template_ref: Reference { name: template_name(&name, &needed.pod_sets[0]) },
                count: needed.count,
            })
            .collect(),
    };
    request
}

/// The templates that a request refers to, owned by the workload until the request exists.
pub fn templates(
    workload: &Workload,
    request: &str,
    needed: &[Needed],
    flavor: impl Fn(&str) -> Option<Arc<ResourceFlavor>>,
    gates: &Gates,
) -> Result<Vec<PodTemplate>, RequestError> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map_or(&[][..], |admission| &admission.pod_set_assignments);
    let mut templates = Vec::with_capacity(needed.len());
    for needed in needed {
        let name = &needed.pod_sets[0];
        let missing = RequestError::InconsistentAssignments;
        let pod_set = workload.spec.pod_sets.iter().find(|set| set.name == *name).ok_or(missing.clone())?;
        let assignment = assignments.iter().find(|a| a.name == *name).ok_or(missing)?;
        let info = PodSetInfo::from_assignment(assignment, Some(pod_set), &flavor, gates)?;
        let mut spec = pod_set.template.clone();
        podset::merge(&mut spec, &PodSetInfo { scheduling_gates: Vec::new(), ..info }, gates)?;
        if let Some(pod) = spec.spec.as_ref() {
            spec.spec = Some(pod_requests::adjust(pod, None, &[]));
        }
        let mut template = PodTemplate { template: Some(spec), ..PodTemplate::default() };
        template.metadata.name = Some(template_name(request, name));
        template.metadata.namespace = workload.namespace();
        template.labels_mut().insert(labels::MANAGED.to_owned(), "true".to_owned());
        template.metadata.owner_references = Some(vec![owned_by(workload)]);
        templates.push(template);
    }
    Ok(templates)
}
