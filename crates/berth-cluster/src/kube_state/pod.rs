//! Metrics of pods and their containers.

use berth_api::pod::node_of;
use berth_apimachinery::exposition::{Exposition, Family, FamilyId, Labels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;

use super::{amounts, condition, flag, is_shown, object_labels, owners, time};

const PHASES: [&str; 5] = ["Pending", "Succeeded", "Failed", "Unknown", "Running"];

/// The families of pods in one response.
pub(super) struct Families {
    info: FamilyId,
    owner: FamilyId,
    labels: FamilyId,
    created: FamilyId,
    deleted: FamilyId,
    started: FamilyId,
    completed: FamilyId,
    phase: FamilyId,
    reason: FamilyId,
    ready: FamilyId,
    scheduled: FamilyId,
    unschedulable: FamilyId,
    container: Containers,
}

struct Containers {
    info: FamilyId,
    requests: FamilyId,
    limits: FamilyId,
    ready: FamilyId,
    running: FamilyId,
    waiting: FamilyId,
    waiting_reason: FamilyId,
    terminated: FamilyId,
    terminated_reason: FamilyId,
    last_terminated_reason: FamilyId,
    restarts: FamilyId,
}

impl Families {
    pub fn new(exposition: &mut Exposition) -> Self {
        let mut gauge = |name, help| exposition.family(&Family::gauge(name, help));
        Self {
            info: gauge("kube_pod_info", "Always 1; the labels describe a pod"),
            owner: gauge("kube_pod_owner", "Always 1; the owners of a pod"),
            labels: gauge("kube_pod_labels", "Always 1; labels that name a pod's queue, Job or set"),
            created: gauge("kube_pod_created", "Time of a pod's creation, in seconds since 1970"),
            deleted: gauge(
                "kube_pod_deletion_timestamp",
                "Time at which a pod is to be deleted, in seconds since 1970",
            ),
            started: gauge("kube_pod_start_time", "Time at which the kubelet accepted a pod, in seconds since 1970"),
            completed: gauge(
                "kube_pod_completion_time",
                "Time at which a pod's containers ended, in seconds since 1970",
            ),
            phase: gauge("kube_pod_status_phase", "1 for the current phase of a pod"),
            reason: gauge("kube_pod_status_reason", "1 for the reason of a pod's phase, if it has one"),
            ready: gauge("kube_pod_status_ready", "1 for the current status of condition Ready of a pod"),
            scheduled: gauge(
                "kube_pod_status_scheduled",
                "1 for the current status of condition PodScheduled of a pod",
            ),
            unschedulable: gauge("kube_pod_status_unschedulable", "1 if no node fits a pod"),
            container: Containers::new(exposition),
        }
    }

    pub fn write(&self, exposition: &mut Exposition, pod: &Pod) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let of = Labels::of(&[("namespace", &namespace), ("pod", &name), ("uid", uid)]);
        let empty = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&empty);
        self.info(exposition, pod, status, &of);
        owners(exposition, self.owner, &of, pod.metadata.owner_references.as_ref());
        let mut shown = pod.labels().iter().filter(|(key, _)| is_shown(key)).peekable();
        if shown.peek().is_some() {
            let mut labels = of.clone();
            labels.append(&object_labels(shown));
            exposition.sample(self.labels, &labels, &[], 1.0);
        }
        time(exposition, self.created, &of, pod.metadata.creation_timestamp.as_ref().map(|at| at.0));
        time(exposition, self.deleted, &of, pod.metadata.deletion_timestamp.as_ref().map(|at| at.0));
        time(exposition, self.started, &of, status.start_time.as_ref().map(|at| at.0));
        time(exposition, self.completed, &of, completion(status));
        let current = status.phase.as_deref().unwrap_or("Pending");
        for phase in PHASES {
            exposition.sample(self.phase, &of, &[("phase", phase)], flag(phase == current));
        }
        if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
            exposition.sample(self.reason, &of, &[("reason", reason)], 1.0);
        }
        self.conditions(exposition, status, &of);
        let node = node_of(pod).unwrap_or_default();
        for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
            let known = status.container_statuses.iter().flatten().find(|it| it.name == container.name);
            let of = of.with(&[("container", &container.name)]);
            self.container.write(exposition, container, known, node, &of);
        }
    }

    fn info(&self, exposition: &mut Exposition, pod: &Pod, status: &PodStatus, of: &Labels) {
        let spec = pod.spec.as_ref();
        let controller = pod.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let host_network = spec.and_then(|spec| spec.host_network) == Some(true);
        let text = |value: Option<&String>| value.map_or(String::new(), Clone::clone);
        let labels = [
            ("host_ip", text(status.host_ip.as_ref())),
            ("pod_ip", text(status.pod_ip.as_ref())),
            ("node", text(spec.and_then(|spec| spec.node_name.as_ref()))),
            ("created_by_kind", text(controller.map(|owner| &owner.kind))),
            ("created_by_name", text(controller.map(|owner| &owner.name))),
            ("priority_class", text(spec.and_then(|spec| spec.priority_class_name.as_ref()))),
            ("host_network", host_network.to_string()),
        ];
        exposition.sample(self.info, of, &labels.each_ref().map(|(name, value)| (*name, value.as_str())), 1.0);
    }

    fn conditions(&self, exposition: &mut Exposition, status: &PodStatus, of: &Labels) {
        let find = |type_: &str| status.conditions.iter().flatten().find(|it| it.type_ == type_);
        for (family, type_) in [(self.ready, "Ready"), (self.scheduled, "PodScheduled")] {
            if let Some(it) = find(type_) {
                condition(exposition, family, of, &[], &it.status, "condition");
            }
        }
        let unschedulable = |it: &&k8s_openapi::api::core::v1::PodCondition| {
            it.status == "False" && it.reason.as_deref() == Some("Unschedulable")
        };
        if find("PodScheduled").filter(unschedulable).is_some() {
            exposition.sample(self.unschedulable, of, &[], 1.0);
        }
    }
}

/// The time at which a pod ended, if it has.
pub(super) fn ended(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    has_ended.then(|| completion(status).unwrap_or(Timestamp::MIN))
}

/// The time at which the last container of a finished pod ended.
fn completion(status: &PodStatus) -> Option<Timestamp> {
    if !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let ended = |it: &ContainerStatus| it.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|at| at.0);
    status.container_statuses.iter().flatten().filter_map(ended).max()
}

impl Containers {
    fn new(exposition: &mut Exposition) -> Self {
        let restarts = Family::counter("kube_pod_container_status_restarts_total", "Restarts of a container");
        let mut gauge = |name, help| exposition.family(&Family::gauge(name, help));
        Self {
            info: gauge("kube_pod_container_info", "Always 1; the labels describe a container of a pod"),
            requests: gauge("kube_pod_container_resource_requests", "Requests of a container"),
            limits: gauge("kube_pod_container_resource_limits", "Limits of a container"),
            ready: gauge("kube_pod_container_status_ready", "1 if a container is ready"),
            running: gauge("kube_pod_container_status_running", "1 if a container runs"),
            waiting: gauge("kube_pod_container_status_waiting", "1 if a container waits to run"),
            waiting_reason: gauge("kube_pod_container_status_waiting_reason", "1 for the reason why a container waits"),
            terminated: gauge("kube_pod_container_status_terminated", "1 if a container has ended"),
            terminated_reason: gauge(
                "kube_pod_container_status_terminated_reason",
                "1 for the reason why a container has ended",
            ),
            last_terminated_reason: gauge(
                "kube_pod_container_status_last_terminated_reason",
                "1 for the reason why the previous run of a container ended",
            ),
            restarts: exposition.family(&restarts),
        }
    }

    fn write(
        &self,
        exposition: &mut Exposition,
        container: &Container,
        status: Option<&ContainerStatus>,
        node: &str,
        of: &Labels,
    ) {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|it| it.requests.as_ref());
        let limits = resources.and_then(|it| it.limits.as_ref());
        for (family, quantities) in [(self.requests, requests), (self.limits, limits)] {
            for (resource, unit, amount) in quantities.into_iter().flat_map(amounts) {
                let labels = [("node", node), ("resource", &resource), ("unit", unit)];
                exposition.sample(family, of, &labels, amount);
            }
        }
        let image_spec = container.image.as_deref().unwrap_or_default();
        let Some(status) = status else { return };
        let labels = [
            ("image", status.image.as_str()),
            ("image_spec", image_spec),
            ("image_id", &status.image_id),
            ("container_id", status.container_id.as_deref().unwrap_or_default()),
        ];
        exposition.sample(self.info, of, &labels, 1.0);
        exposition.sample(self.ready, of, &[], flag(status.ready));
        exposition.sample(self.restarts, of, &[], f64::from(status.restart_count));
        let empty = ContainerState::default();
        let state = status.state.as_ref().unwrap_or(&empty);
        exposition.sample(self.running, of, &[], flag(state.running.is_some()));
        exposition.sample(self.waiting, of, &[], flag(state.waiting.is_some()));
        exposition.sample(self.terminated, of, &[], flag(state.terminated.is_some()));
        let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let reasons = [
            (self.waiting_reason, state.waiting.as_ref().and_then(|it| it.reason.as_deref())),
            (self.terminated_reason, state.terminated.as_ref().and_then(|it| it.reason.as_deref())),
            (self.last_terminated_reason, last.and_then(|it| it.reason.as_deref())),
        ];
        for (family, reason) in reasons {
            if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
                exposition.sample(family, of, &[("reason", reason)], 1.0);
            }
        }
    }
}
