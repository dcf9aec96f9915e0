//! The status of a cluster, from its pods and the Service of its head.

use std::sync::Arc;

use berth_runtime::{condition, set_condition, stamp};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::facts::Facts;
use super::plan::{Failure, label, name, phase};
use super::resources;
use crate::ray::constants::NODE_TYPE;
use crate::ray::types::{HeadInfo, RayClusterStatus, WorkerGroupSpec, condition, state};

/// What a status depends on, except the old status.
pub struct Observed<'a> {
    /// The cluster.
    pub facts: &'a Facts<'a>,
    /// Generation of its spec.
    pub generation: Option<i64>,
    /// Its pods.
    pub pods: &'a [Arc<Pod>],
    /// The Service of its head.
    pub head_service: Option<&'a Service>,
    /// The write of a pod that failed, with its error.
    pub failure: Option<(Failure, String)>,
    /// True if the last plan was carried out and leaves nothing to do.
    pub is_settled: bool,
    /// The current time.
    pub now: Timestamp,
}

/// The next status. It equals `old`, including the times, if nothing else has changed.
pub fn next(observed: &Observed<'_>, old: &RayClusterStatus) -> RayClusterStatus {
    let mut status = old.clone();
    let now = observed.now;
    count(observed, &mut status);
    set_failure(observed, &mut status, now);
    let facts = observed.facts;
    let is_running = all_run(observed.pods);
    let wanted = usize::try_from(status.desired_worker_replicas).unwrap_or(0);
    if observed.is_settled && observed.pods.len() == wanted + 1 && is_running {
        status.state = state::READY.to_owned();
        status.reason.clear();
    }
    let head = observed.pods.iter().find(|pod| label(pod, NODE_TYPE) == "head");
    set(&mut status, head_condition(head.map(AsRef::as_ref), now));
    set_provisioned(&mut status, is_running, now);
    set_suspension(observed, &mut status, now);
    if facts.spec.suspend == Some(true) && observed.pods.is_empty() {
        status.state = state::SUSPENDED.to_owned();
    }
    set_endpoints(observed.head_service, &mut status);
    status.head = head_info(head.map(AsRef::as_ref), observed.head_service);
    if status.state != old.state {
        status.state_transition_times.insert(status.state.clone(), stamp(now));
    }
    if status != *old {
        status.last_update_time = Some(stamp(now));
    }
    status
}

fn count(observed: &Observed<'_>, status: &mut RayClusterStatus) {
    let spec = observed.facts.spec;
    let workers = || observed.pods.iter().filter(|pod| label(pod, NODE_TYPE) == "worker");
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let sum = |of: fn(&WorkerGroupSpec) -> i32| {
        let groups = spec.worker_group_specs.iter().filter(|group| !group.is_suspended());
        groups.fold(0_i32, |sum, group| sum.saturating_add(of(group).saturating_mul(group.hosts())))
    };
    status.observed_generation = observed.generation;
    status.available_worker_replicas = number(workers().filter(|pod| phase(pod) == "Running").count());
    status.ready_worker_replicas =
        number(workers().filter(|pod| phase(pod) == "Running" && ready(pod) == Some(true)).count());
    status.desired_worker_replicas = sum(WorkerGroupSpec::desired_replicas);
    status.min_worker_replicas = sum(WorkerGroupSpec::replicas_min);
    status.max_worker_replicas = sum(WorkerGroupSpec::replicas_max);
    let desired = resources::desired(spec);
    status.desired_cpu = desired.cpu;
    status.desired_memory = desired.memory;
    status.desired_gpu = desired.gpu;
    status.desired_tpu = desired.tpu;
}

/// The condition Ready of the pod, if it has one.
fn ready(pod: &Pod) -> Option<bool> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "Ready").map(|condition| condition.status == "True")
}

/// True if there are pods, all of them run, and none has a condition Ready that is not true.
fn all_run(pods: &[Arc<Pod>]) -> bool {
    !pods.is_empty() && pods.iter().all(|pod| phase(pod) == "Running" && ready(pod) != Some(false))
}

/// Sets a condition. Its transition time changes only if its status does.
fn set(status: &mut RayClusterStatus, new: Condition) {
    set_condition(&mut status.conditions, new);
}

fn set_failure(observed: &Observed<'_>, status: &mut RayClusterStatus, now: Timestamp) {
    match &observed.failure {
        Some((failure, error)) => {
            let message = format!("{}\n{error}", failure.reason());
            set(status, condition(condition::REPLICA_FAILURE, true, failure.reason(), &message, now));
        }
        None => status.conditions.retain(|known| known.type_ != condition::REPLICA_FAILURE),
    }
}

/// The condition HeadPodReady. It follows the head pod's condition Ready, and includes the state of
/// a container that is not ready.
fn head_condition(head: Option<&Pod>, now: Timestamp) -> Condition {
    let kind = condition::HEAD_POD_READY;
    let Some(head) = head else { return condition(kind, false, "HeadPodNotFound", "Head Pod not found", now) };
    let conditions = head.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let Some(ready) = conditions.into_iter().find(|known| known.type_ == "Ready") else {
        return condition(kind, false, "Unknown", "", now);
    };
    let is_ready = ready.status == "True";
    let mut message = ready.message.clone().unwrap_or_default();
    let mut reason = match ready.reason.as_deref().unwrap_or_default() {
        "" if is_ready => "HeadPodRunningAndReady",
        "" => "Unknown",
        given => given,
    }
    .to_owned();
    if reason == "ContainersNotReady"
        && let Some((container_reason, container_message)) = container_state(head)
    {
        if !message.is_empty() {
            message.push_str("; ");
        }
        message.push_str(&container_message);
        reason = container_reason;
    }
    let mut found = condition(kind, is_ready, &reason, &message, now);
    found.status.clone_from(&ready.status);
    found
}

/// Reason and message of the first container that is waiting or has terminated.
fn container_state(pod: &Pod) -> Option<(String, String)> {
    pod.status.as_ref()?.container_statuses.iter().flatten().find_map(|status| {
        let state = status.state.as_ref()?;
        let (reason, message) = match (&state.waiting, &state.terminated) {
            (Some(waiting), _) => (&waiting.reason, &waiting.message),
            (None, Some(terminated)) => (&terminated.reason, &terminated.message),
            (None, None) => return None,
        };
        // A condition needs a reason.
        let reason = reason.clone().filter(|reason| !reason.is_empty()).unwrap_or_else(|| "Unknown".to_owned());
        Some((reason, format!("{}: {}", status.name, message.as_deref().unwrap_or_default())))
    })
}

fn set_provisioned(status: &mut RayClusterStatus, is_running: bool, now: Timestamp) {
    if status.is_true(condition::PROVISIONED) || status.is_true(condition::SUSPENDED) {
        return;
    }
    let (reason, message) = match is_running {
        true => ("AllPodRunningAndReadyFirstTime", "All Ray Pods are ready for the first time"),
        false => ("RayClusterPodsProvisioning", "RayCluster Pods are being provisioned for first time"),
    };
    set(status, condition(condition::PROVISIONED, is_running, reason, message, now));
}

/// A suspension that has begun is completed, even if the user withdraws it. While the condition
/// Suspending is true, the pods are deleted. When no pod is left, the condition Suspended becomes
/// true.
fn set_suspension(observed: &Observed<'_>, status: &mut RayClusterStatus, now: Timestamp) {
    let wanted = observed.facts.spec.suspend;
    let suspending = |is_true| condition(condition::SUSPENDING, is_true, condition::SUSPENDING, "", now);
    let suspended = |is_true| condition(condition::SUSPENDED, is_true, condition::SUSPENDED, "", now);
    if status.is_true(condition::SUSPENDING) {
        if observed.pods.is_empty() {
            let message = "RayCluster has been suspended";
            set(status, condition(condition::PROVISIONED, false, "RayClusterPodsProvisioning", message, now));
            set(status, suspending(false));
            set(status, suspended(true));
        }
    } else if status.is_true(condition::SUSPENDED) {
        if wanted != Some(true) {
            set(status, suspended(false));
        }
    } else {
        set(status, suspended(false));
        set(status, suspending(wanted == Some(true)));
    }
}

fn set_endpoints(service: Option<&Service>, status: &mut RayClusterStatus) {
    let spec = service.and_then(|service| service.spec.as_ref());
    for port in spec.into_iter().flat_map(|spec| spec.ports.iter().flatten()) {
        let Some(name) = port.name.clone().filter(|name| !name.is_empty()) else { continue };
        let target = match (port.node_port.filter(|port| *port != 0), &port.target_port) {
            (Some(port), _) => port.to_string(),
            (None, Some(IntOrString::Int(port))) => port.to_string(),
            (None, Some(IntOrString::String(port))) => port.clone(),
            (None, None) => continue,
        };
        status.endpoints.insert(name, target);
    }
}

fn head_info(head: Option<&Pod>, service: Option<&Service>) -> HeadInfo {
    let pod_ip = head.and_then(|head| head.status.as_ref()?.pod_ip.clone()).unwrap_or_default();
    let given = service.and_then(|service| service.spec.as_ref()?.cluster_ip.clone()).unwrap_or_default();
    HeadInfo {
        service_ip: if given == "None" { pod_ip.clone() } else { given },
        pod_ip,
        pod_name: head.map(name).unwrap_or_default().to_owned(),
        service_name: service.and_then(|service| service.metadata.name.clone()).unwrap_or_default(),
    }
}
