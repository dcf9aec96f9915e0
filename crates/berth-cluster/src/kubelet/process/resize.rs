//! In-place resize of a pod's containers. The node grants the changed resources of the spec. Then
//! the runtime changes the limits of the running containers.
//!
//! The pod's status contains the grant (`allocatedResources`) and the resources in force
//! (`resources`). After a restart, the process can therefore continue a resize that was granted but
//! not carried out.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_pod_runtime::{ContainerKind, PodLimits};
use berth_runtime::{Error, ObjectKey};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus, ResourceRequirements};
use serde_json::json;

use super::jobs::run_id;
use super::node::Node;
use super::worker::Worker;
use crate::kubelet::lifecycle::{PodEvent, Runs, members};
use crate::kubelet::resize::{
    IN_PROGRESS, PENDING, allocated, differ, must_restart, rejection, remove_condition, reserved, set_in_progress,
    set_pending,
};
use crate::kubelet::resolve::{container_limits, pod_limits};
use crate::placement::Resources;

/// Delay before the next attempt if the node cannot grant a resize or the runtime cannot carry it
/// out.
const RETRY: SignedDuration = SignedDuration::from_secs(5);

/// Result of a step of a resize.
pub enum Resized {
    /// Check again at this time, or when the pod changes.
    At(Option<Timestamp>),
    /// The status was written. The step must be repeated with the changed pod.
    Written,
}

/// A running container whose resources differ from its spec.
struct Change {
    container: Container,
    attempt: i32,
    /// The resources in force; `None` if they are unknown.
    had: Option<ResourceRequirements>,
}

impl Change {
    fn wanted(&self) -> ResourceRequirements {
        self.container.resources.clone().unwrap_or_default()
    }

    fn must_restart(&self) -> bool {
        self.had.as_ref().is_some_and(|had| must_restart(&self.container, had, &self.wanted()))
    }
}

impl Worker {
    /// Takes the next step of a resize if the resources of running containers differ from the spec.
    /// Sets resources and conditions in the status.
    pub(super) async fn resize(
        &mut self,
        pod: &Arc<Pod>,
        status: &mut PodStatus,
        runs: &BTreeMap<String, Runs>,
        now: Timestamp,
    ) -> Result<Resized, Error> {
        let is_running = status.phase.as_deref() == Some("Running") && pod.metadata.deletion_timestamp.is_none();
        // A container is starting. The worker runs again after the start, when the resources of the
        // run are known.
        if !is_running || self.memory.starting.is_some() {
            return Ok(Resized::At(None));
        }
        let changes = self.changes(pod, status, runs);
        let has = |status: &PodStatus, type_: &str| status.conditions.iter().flatten().any(|it| it.type_ == type_);
        let was_in_progress = has(status, IN_PROGRESS);
        let observed = pod.status.as_ref().and_then(|status| status.observed_generation);
        let is_observed = observed == pod.metadata.generation;
        if is_observed && changes.is_empty() && !was_in_progress && !has(status, PENDING) {
            return Ok(Resized::At(None));
        }
        let spec = pod.spec.clone().unwrap_or_default();
        if allocated(&spec, status) != Resources::of_pod(&spec) {
            return self.admit(pod, status, now).await;
        }
        remove_condition(status, PENDING);
        let generation = pod.metadata.generation.unwrap_or_default();
        if changes.is_empty() {
            if was_in_progress {
                remove_condition(status, IN_PROGRESS);
                self.node.record(pod, &event("ResizeCompleted", "completed", pod));
            }
            return Ok(Resized::At(None));
        }
        // A container without known resources was started by an earlier process of Berth that did
        // not write them. Its change is no resize.
        let is_resize = changes.iter().any(|change| change.had.is_some());
        if !was_in_progress && is_resize {
            self.node.record(pod, &event("ResizeStarted", "started", pod));
        }
        let error = self.carry_out(pod, status, &changes).await.err();
        if let Some(message) = error {
            let is_known = status.conditions.iter().flatten().any(|it| it.message.as_ref() == Some(&message));
            if !is_known {
                let text = format!("Pod resize error: {}", details(pod, Some(&message)));
                self.node.record(pod, &PodEvent::warning("ResizeError", text));
            }
            set_in_progress(status, generation, Some(message), now);
            return Ok(Resized::At(now.checked_add(RETRY).ok()));
        }
        if self.memory.restarting.is_empty() {
            remove_condition(status, IN_PROGRESS);
            if is_resize {
                self.node.record(pod, &event("ResizeCompleted", "completed", pod));
            }
        } else {
            set_in_progress(status, generation, None, now);
        }
        Ok(Resized::At(None))
    }

    /// The running containers whose resources differ from the spec. Also sets the resources in
    /// force in the status.
    fn changes(&mut self, pod: &Pod, status: &mut PodStatus, runs: &BTreeMap<String, Runs>) -> Vec<Change> {
        let mut changes = Vec::new();
        for member in pod.spec.iter().flat_map(members).filter(|member| member.kind != ContainerKind::Ephemeral) {
            let name = &member.spec.name;
            let Some(run) = runs.get(name).map(|runs| &runs.latest).filter(|run| run.is_running()) else { continue };
            let Some(known) = entry(status, name) else { continue };
            let of_start = self.memory.resources.get(name).filter(|(attempt, _)| *attempt == run.attempt);
            let of_status = || {
                let is_this_run = known.container_id.as_deref() == Some(run.container_id.as_str());
                known.resources.clone().filter(|_| is_this_run)
            };
            let had = of_start.map(|(_, resources)| resources.clone()).or_else(of_status);
            let wanted = member.spec.resources.clone().unwrap_or_default();
            let is_empty = |it: &ResourceRequirements| it.requests.is_none() && it.limits.is_none();
            if let Some(had) = had.as_ref().filter(|had| !is_empty(had) || known.resources.is_some()) {
                known.resources = Some(ResourceRequirements { claims: None, ..had.clone() });
            }
            if had.as_ref().map_or(!is_empty(&wanted), |had| differ(had, &wanted)) {
                changes.push(Change { container: member.spec.into_owned(), attempt: run.attempt, had });
            }
        }
        changes
    }

    /// Grants the requests of the spec if the node has enough, and writes the grant. The node
    /// handles one pod at a time, until the cache shows the grant.
    async fn admit(&mut self, pod: &Arc<Pod>, status: &mut PodStatus, now: Timestamp) -> Result<Resized, Error> {
        let node = self.node.clone();
        let generation = pod.metadata.generation.unwrap_or_default();
        let _one = node.resizes.lock().await;
        let Some(object) = node.nodes.get(&ObjectKey::cluster(&node.name)) else { return Ok(Resized::At(None)) };
        if let Some((reason, message)) = rejection(pod, status, &object, || used_by_others(&node, pod)) {
            let was = status.conditions.iter().flatten().find(|it| it.type_ == PENDING);
            let is_known = was.is_some_and(|was| was.reason.as_deref() == Some(reason));
            if !is_known {
                let text = format!("Pod resize {}: {}", reason.to_lowercase(), details(pod, Some(&message)));
                let event = if reason == "Deferred" { "ResizeDeferred" } else { "ResizeInfeasible" };
                node.record(pod, &PodEvent::warning(event, text));
            }
            set_pending(status, generation, reason, message, now);
            return Ok(Resized::At(now.checked_add(RETRY).ok()));
        }
        remove_condition(status, PENDING);
        set_in_progress(status, generation, None, now);
        let spec = pod.spec.clone().unwrap_or_default();
        for member in members(&spec) {
            if let Some(known) = entry(status, &member.spec.name) {
                known.allocated_resources = member.spec.resources.as_ref().and_then(|it| it.requests.clone());
            }
        }
        if pod.status.as_ref() == Some(&*status) {
            return Ok(Resized::At(None));
        }
        node.writer.status(pod, status).await?;
        node.record(pod, &event("ResizeStarted", "started", pod));
        Ok(Resized::Written)
    }

    /// Changes the limits in the runtime. A later step stops containers that must restart.
    async fn carry_out(&mut self, pod: &Pod, status: &mut PodStatus, changes: &[Change]) -> Result<(), String> {
        let (restarting, changed): (Vec<_>, Vec<_>) = changes.iter().partition(|change| change.must_restart());
        let spec = pod.spec.clone().unwrap_or_default();
        let limits = |change: &&Change| {
            (run_id(&self.uid, &change.container.name, change.attempt), container_limits(&change.container))
        };
        let limits = PodLimits { pod: pod_limits(&spec), containers: changed.iter().map(limits).collect() };
        self.node.runtime.update_limits(&self.uid, &limits).await.map_err(|error| error.to_string())?;
        for change in changed {
            let name = &change.container.name;
            self.memory.resources.insert(name.clone(), (change.attempt, change.wanted()));
            if let Some(known) = entry(status, name) {
                known.resources = Some(ResourceRequirements { claims: None, ..change.wanted() });
            }
        }
        for change in restarting {
            self.memory.restarting.insert(change.container.name.clone(), change.attempt);
        }
        Ok(())
    }
}

/// A container's entry in a status.
fn entry<'a>(status: &'a mut PodStatus, name: &str) -> Option<&'a mut ContainerStatus> {
    let lists = [&mut status.container_statuses, &mut status.init_container_statuses];
    lists.into_iter().flatten().flatten().find(|it| it.name == name)
}

/// The resources of the node that its other pods use.
fn used_by_others(node: &Node, pod: &Pod) -> Resources {
    let mut used = Resources::default();
    for other in node.writer.pods.iter() {
        let is_here = other.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&node.name);
        let phase = other.status.as_ref().and_then(|status| status.phase.as_deref());
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        if is_here && !has_ended && other.metadata.uid != pod.metadata.uid {
            used.add(&reserved(&other));
        }
    }
    used
}

fn event(reason: &'static str, what: &str, pod: &Pod) -> PodEvent {
    PodEvent::normal(reason, format!("Pod resize {what}: {}", details(pod, None)))
}

/// The requested resources in the format that kubelets append to events about resizes.
fn details(pod: &Pod, error: Option<&str>) -> String {
    let containers: Vec<_> = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .map(|container| json!({"name": container.name, "resources": container.resources}))
        .collect();
    let mut details = json!({"containers": containers, "generation": pod.metadata.generation});
    if let Some(error) = error {
        details["error"] = error.into();
    }
    details.to_string()
}
