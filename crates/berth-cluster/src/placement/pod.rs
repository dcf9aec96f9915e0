//! The properties of a pod that scheduling needs, read once.

use std::sync::{Arc, OnceLock};

use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerPort, NodeSelector, Pod, PodAffinityTerm, PodSpec, PreferredSchedulingTerm, Toleration,
    TopologySpreadConstraint,
};

use super::{DeviceNeeds, Resources, Storage, VolumeNeeds};

/// The annotation with the ProvisioningRequest that a pod consumes, and its older name.
const CONSUMED_REQUEST: [&str; 2] = [
    "autoscaling.x-k8s.io/consume-provisioning-request",
    "cluster-autoscaler.kubernetes.io/consume-provisioning-request",
];

/// A pod and its requests.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The object.
    pub pod: Arc<Pod>,
    /// Its requests.
    pub requests: Resources,
    /// Its priority; 0 if it has none.
    pub priority: i32,
    class: OnceLock<Arc<str>>,
    volumes: Arc<VolumeNeeds>,
    devices: Option<Arc<DeviceNeeds>>,
    is_backed: bool,
}

impl PodInfo {
    /// Reads a pod.
    pub fn new(pod: Arc<Pod>) -> Self {
        let key = ObjectKey::of(pod.as_ref());
        let requests = pod.spec.as_ref().map(Resources::of_pod).unwrap_or_default();
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
        let (class, volumes) = (OnceLock::new(), Arc::default());
        Self { key, pod, requests, priority, class, volumes, devices: None, is_backed: false }
    }

    /// The same pod, with whether a device class backs any extended resource that it requests.
    pub fn with_backed(&self, is_backed: bool) -> Self {
        Self { is_backed, class: OnceLock::new(), ..self.clone() }
    }

    /// True if a device class backs any extended resource that it requests; false before
    /// [`PodInfo::with_backed`].
    pub fn is_backed(&self) -> bool {
        self.is_backed
    }

    /// The same pod with the requirements of its claims, of volumes and of devices.
    pub fn with_volumes(&self, storage: &Storage) -> Self {
        let devices = self.claims_devices().then(|| Arc::new(storage.devices.needs(&self.pod)));
        Self { volumes: Arc::new(storage.needs(&self.pod)), devices, ..self.clone() }
    }

    /// The same pod without the requirements of its claims of devices, once devices are chosen.
    pub fn without_device_needs(&self) -> Self {
        Self { devices: None, ..self.clone() }
    }

    /// The requirements of its claims; none before [`PodInfo::with_volumes`].
    pub fn volumes(&self) -> &VolumeNeeds {
        &self.volumes
    }

    /// The requirements of its claims of devices; none before [`PodInfo::with_volumes`].
    pub fn devices(&self) -> Option<&DeviceNeeds> {
        self.devices.as_deref()
    }

    /// True if it has claims, of volumes or of devices.
    pub fn has_claims(&self) -> bool {
        self.claims_devices() || self.claims().next().is_some()
    }

    /// Why its claims cannot be used on any node now.
    pub fn blocked(&self) -> Option<&str> {
        let of_devices = || self.devices().and_then(|devices| devices.blocked.as_deref());
        self.volumes.blocked.as_deref().or_else(of_devices)
    }

    /// The same pod with other requirements of its claims of devices.
    pub fn with_device_needs(&self, needs: DeviceNeeds) -> Self {
        Self { devices: Some(Arc::new(needs)), ..self.clone() }
    }

    /// UID of the object.
    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    /// The node to which it is bound.
    pub fn node_name(&self) -> Option<&str> {
        self.spec()?.node_name.as_deref().filter(|name| !name.is_empty())
    }

    /// The node on which preemption made room for it.
    pub fn nominated_node(&self) -> Option<&str> {
        self.pod.status.as_ref()?.nominated_node_name.as_deref().filter(|name| !name.is_empty())
    }

    /// True if it has succeeded or failed. Such a pod uses no resources.
    pub fn is_terminal(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// True if it is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    /// True if it is being deleted because the scheduler preempted it.
    pub fn is_preempted(&self) -> bool {
        let conditions = self.pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        self.is_terminating()
            && conditions.any(|it| {
                it.type_ == "DisruptionTarget"
                    && it.status == "True"
                    && it.reason.as_deref() == Some("PreemptionByScheduler")
            })
    }

    /// True if it has a scheduling gate.
    pub fn is_gated(&self) -> bool {
        self.spec().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty())
    }

    /// True if it may preempt other pods.
    pub fn may_preempt(&self) -> bool {
        self.spec().and_then(|spec| spec.preemption_policy.as_deref()) != Some("Never")
    }

    /// Name of the scheduler that places it.
    pub fn scheduler_name(&self) -> &str {
        self.spec().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or("default-scheduler")
    }

    /// Time of its creation.
    pub fn created(&self) -> Timestamp {
        self.pod.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0)
    }

    /// Time of its start, if it has started.
    pub fn started(&self) -> Option<Timestamp> {
        self.pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0)
    }

    /// The value of one of its labels.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// The value of one of its annotations.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The ProvisioningRequest that it consumes, if it has one.
    pub fn consumed_request(&self) -> Option<&str> {
        consumed_request(&self.pod)
    }

    /// Labels that its node must have.
    pub fn node_selector(&self) -> impl Iterator<Item = (&str, &str)> {
        let selector = self.spec().and_then(|spec| spec.node_selector.as_ref());
        selector.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Its required node affinity.
    pub fn required_nodes(&self) -> Option<&NodeSelector> {
        self.spec()?
            .affinity
            .as_ref()?
            .node_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    }

    /// Its preferred node affinity.
    pub fn preferred_nodes(&self) -> &[PreferredSchedulingTerm] {
        (|| {
            let node = self.spec()?.affinity.as_ref()?.node_affinity.as_ref()?;
            node.preferred_during_scheduling_ignored_during_execution.as_deref()
        })()
        .unwrap_or_default()
    }

    /// Taints that it tolerates.
    pub fn tolerations(&self) -> &[Toleration] {
        self.spec().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default()
    }

    /// Its required pod affinity.
    pub fn required_affinity(&self) -> &[PodAffinityTerm] {
        (|| {
            let affinity = self.spec()?.affinity.as_ref()?.pod_affinity.as_ref()?;
            affinity.required_during_scheduling_ignored_during_execution.as_deref()
        })()
        .unwrap_or_default()
    }

    /// Its required pod anti-affinity.
    pub fn required_anti_affinity(&self) -> &[PodAffinityTerm] {
        (|| {
            let affinity = self.spec()?.affinity.as_ref()?.pod_anti_affinity.as_ref()?;
            affinity.required_during_scheduling_ignored_during_execution.as_deref()
        })()
        .unwrap_or_default()
    }

    /// Its required topology spread.
    pub fn spread_constraints(&self) -> impl Iterator<Item = &TopologySpreadConstraint> {
        let constraints = self.spec().and_then(|spec| spec.topology_spread_constraints.as_deref());
        constraints.unwrap_or_default().iter().filter(|constraint| constraint.when_unsatisfiable == "DoNotSchedule")
    }

    /// The host ports that it uses.
    pub fn host_ports(&self) -> impl Iterator<Item = HostPort<'_>> {
        self.spec().into_iter().flat_map(host_ports)
    }

    /// True if its placement depends on other pods, beyond their usage.
    pub fn depends_on_pods(&self) -> bool {
        !self.required_affinity().is_empty()
            || !self.required_anti_affinity().is_empty()
            || self.spread_constraints().next().is_some()
    }

    /// True if both pods fit on the same nodes, apart from their claims.
    pub fn is_placed_like(&self, other: &Self) -> bool {
        let rules = |pod: &Self| {
            let spec = pod.spec()?;
            Some((
                spec.node_selector.clone(),
                spec.affinity.clone(),
                spec.tolerations.clone(),
                spec.topology_spread_constraints.clone(),
            ))
        };
        self.requests == other.requests && rules(self) == rules(other) && self.host_ports().eq(other.host_ports())
    }

    /// The pod's scheduling class, which contains all fields that the filters read. Pods of equal
    /// classes therefore fit on the same nodes.
    pub fn class(&self) -> &Arc<str> {
        self.class.get_or_init(|| Arc::from(self.write_class()))
    }

    fn write_class(&self) -> String {
        let spec = self.spec();
        let parts = serde_json::json!({
            "namespace": self.key.namespace,
            "labels": if self.depends_on_pods() { self.pod.metadata.labels.as_ref() } else { None },
            "requests": self.requests.iter().collect::<Vec<_>>(),
            "priority": self.priority,
            "preemption": spec.and_then(|spec| spec.preemption_policy.as_ref()),
            "selector": spec.and_then(|spec| spec.node_selector.as_ref()),
            "affinity": spec.and_then(|spec| spec.affinity.as_ref()),
            "tolerations": self.tolerations(),
            "spread": spec.and_then(|spec| spec.topology_spread_constraints.as_ref()),
            "ports": self.host_ports().map(|it| (it.ip, it.protocol, it.number)).collect::<Vec<_>>(),
            "claims": self.claims().map(|claim| claim.name).collect::<Vec<_>>(),
            "devices": self.claims_devices(),
        });
        parts.to_string()
    }
}

/// A port of a node that a container takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort<'a> {
    /// Address of the node; all of them if it is `0.0.0.0`.
    pub ip: &'a str,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: &'a str,
    /// Number.
    pub number: i32,
}

/// The address that represents all addresses of a node.
const ANY_ADDRESS: &str = "0.0.0.0";

/// The ports that a pod takes of its node, those of sidecars included.
pub fn host_ports(spec: &PodSpec) -> impl Iterator<Item = HostPort<'_>> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    containers.flat_map(|container| container.ports.iter().flatten()).filter_map(HostPort::of)
}

impl<'a> HostPort<'a> {
    fn of(port: &'a ContainerPort) -> Option<Self> {
        Some(Self {
            ip: port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or(ANY_ADDRESS),
            protocol: port.protocol.as_deref().unwrap_or("TCP"),
            number: port.host_port.filter(|number| *number > 0)?,
        })
    }

    /// True if one node cannot give both ports.
    pub fn conflicts(&self, other: &Self) -> bool {
        let is_any = self.ip == ANY_ADDRESS || other.ip == ANY_ADDRESS;
        self.number == other.number && self.protocol == other.protocol && (is_any || self.ip == other.ip)
    }
}

/// The ProvisioningRequest that a pod consumes, if it has one.
pub fn consumed_request(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let consumed = CONSUMED_REQUEST.iter().find_map(|annotation| annotations.get(*annotation));
    consumed.map(String::as_str)
}
