//! A pool's machine as a Node: labels, taints, capacity and allocatable, with GKE's values.
//!
//! The same function makes the registered Nodes and the templates of the autoscaler, so that the
//! autoscaler can also evaluate a pool without nodes.

use std::collections::BTreeMap;

use berth_api::berth::{
    ACCELERATORS_AT_ANNOTATION, HOSTED_LABEL, MachineType, NodePool, Provisioning, READY_AT_ANNOTATION,
    RESIZE_REQUEST_LABEL, allocatable_cpu_milli, allocatable_memory_bytes, machine_type,
};
use berth_apimachinery::well_known;
use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::Site;
use crate::placement::amount;

/// Label with the pool's name.
pub const POOL_LABEL: &str = "cloud.google.com/gke-nodepool";
/// Taint of the nodes of queued pools. Its value is `true`.
pub const QUEUED_TAINT: &str = "cloud.google.com/gke-queued";
/// Taint of simulated nodes in a cluster with a real node: a job only runs on a simulated node if
/// it tolerates the taint.
pub const SIMULATED_TAINT: &str = "berth.dev/simulated";
const PODS_DEFAULT: i32 = 110;
const STORAGE_BYTES_DEFAULT: i64 = 100 << 30;

/// Times of the steps until a node is usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTimes {
    /// Time of the registration and of the first conditions.
    pub registered: Timestamp,
    /// Time at which it reports Ready.
    pub ready: Timestamp,
    /// Time at which its accelerators become available.
    pub accelerators: Timestamp,
}

/// The node of a new machine of this pool, ready and complete: the autoscaler's template.
pub fn template(pool: &NodePool, site: &Site, zone: &str, name: &str) -> Node {
    let then = NodeTimes {
        registered: Timestamp::UNIX_EPOCH,
        ready: Timestamp::UNIX_EPOCH,
        accelerators: Timestamp::UNIX_EPOCH,
    };
    node(pool, site, zone, name, then, Timestamp::UNIX_EPOCH)
}

/// The Node of a machine at the time `now`.
pub fn node(pool: &NodePool, site: &Site, zone: &str, name: &str, times: NodeTimes, now: Timestamp) -> Node {
    let (region, version) = (site.region.as_str(), site.version.as_str());
    let machine = Machine::of(pool);
    let mut annotations = BTreeMap::from([(READY_AT_ANNOTATION.to_owned(), times.ready.to_string())]);
    if !machine.devices.is_empty() {
        annotations.insert(ACCELERATORS_AT_ANNOTATION.to_owned(), times.accelerators.to_string());
    }
    let is_ready = times.ready <= now;
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels(pool, &machine, region, zone, name)),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: Some(format!("gce://berth/{zone}/{name}")),
            taints: Some(taints(pool, site, is_ready)).filter(|taints| !taints.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            capacity: Some(machine.capacity(is_ready && times.accelerators <= now)),
            allocatable: Some(machine.allocatable(is_ready && times.accelerators <= now)),
            conditions: Some(conditions(is_ready, if is_ready { times.ready } else { times.registered }, now)),
            addresses: Some(vec![
                NodeAddress { type_: "InternalIP".into(), address: internal_ip(name) },
                NodeAddress { type_: "Hostname".into(), address: name.to_owned() },
            ]),
            daemon_endpoints: Some(daemon_endpoints()),
            node_info: Some(NodeSystemInfo {
                architecture: machine.architecture.clone(),
                boot_id: format!("boot-{name}"),
                container_runtime_version: "sim://1.0.0".into(),
                kernel_version: "6.6.0".into(),
                kube_proxy_version: version.to_owned(),
                kubelet_version: version.to_owned(),
                machine_id: name.to_owned(),
                operating_system: "linux".into(),
                os_image: "Berth simulated node".into(),
                system_uuid: name.to_owned(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }),
    }
}

/// The endpoints of a node. `nodes/proxy` serves the paths of this port.
pub(crate) fn daemon_endpoints() -> NodeDaemonEndpoints {
    NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: well_known::KUBELET_PORT.into() }) }
}

/// Capacity and allocatable with the accelerators.
pub fn resources_with_accelerators(pool: &NodePool) -> (BTreeMap<String, Quantity>, BTreeMap<String, Quantity>) {
    let machine = Machine::of(pool);
    (machine.capacity(true), machine.allocatable(true))
}

/// The conditions of a node that has been Ready, or NotReady, since `since`.
pub fn conditions(is_ready: bool, since: Timestamp, now: Timestamp) -> Vec<NodeCondition> {
    let condition = |type_: &str, status: bool, reason: &str, message: &str| NodeCondition {
        type_: type_.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_heartbeat_time: Some(stamp(now)),
        last_transition_time: Some(Time(stamp(since).0)),
    };
    vec![
        condition("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        if is_ready {
            condition("Ready", true, "KubeletReady", "kubelet is posting ready status")
        } else {
            condition("Ready", false, "KubeletNotReady", "container runtime network not ready")
        },
    ]
}

/// The taints of the pool's nodes: the pool's own taints, and those of accelerators, of queued
/// pools, of simulated nodes in a cluster with a real node, and of nodes that are not ready.
pub fn taints(pool: &NodePool, site: &Site, is_ready: bool) -> Vec<Taint> {
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.into(),
        value: Some(value.to_owned()).filter(|value| !value.is_empty()),
        effect: effect.into(),
        time_added: None,
    };
    let mut taints: Vec<Taint> = pool.spec.taints.iter().map(|t| taint(&t.key, &t.value, t.effect.as_str())).collect();
    let mut add = |key: &str, value: &str| {
        if !taints.iter().any(|known| known.key == key && known.effect == "NoSchedule") {
            taints.push(taint(key, value, "NoSchedule"));
        }
    };
    if let Some(accelerator) = pool.spec.accelerator() {
        add(accelerator.resource_name(), "present");
    }
    if pool.spec.provisioning == Provisioning::Queued {
        add(QUEUED_TAINT, "true");
    }
    if site.taints_simulated && !pool.spec.is_hosted() {
        add(SIMULATED_TAINT, "true");
    }
    if !is_ready {
        taints.push(taint(well_known::NOT_READY, "", "NoSchedule"));
    }
    taints
}

/// The taint of simulated nodes in a cluster with a real node.
pub fn simulated_taint() -> Taint {
    Taint { key: SIMULATED_TAINT.into(), value: Some("true".into()), effect: "NoSchedule".into(), time_added: None }
}

fn labels(pool: &NodePool, machine: &Machine, region: &str, zone: &str, name: &str) -> BTreeMap<String, String> {
    let spec = &pool.spec;
    let mut labels = BTreeMap::new();
    let mut set = |key: &str, value: &str| {
        labels.insert(key.to_owned(), value.to_owned());
    };
    let machine_name = spec.machine_type.as_deref().unwrap_or("custom");
    let family = machine_name.split('-').next().unwrap_or(machine_name);
    let is_spot = spec.provisioning == Provisioning::Spot;
    set(POOL_LABEL, &pool.name_any());
    set("cloud.google.com/machine-family", family);
    set("cloud.google.com/gke-os-distribution", "cos");
    set("cloud.google.com/gke-container-runtime", "containerd");
    set("cloud.google.com/gke-boot-disk", "pd-balanced");
    set("cloud.google.com/gke-max-pods-per-node", &machine.pods.to_string());
    set("cloud.google.com/gke-provisioning", if is_spot { "spot" } else { "standard" });
    if is_spot {
        set("cloud.google.com/gke-spot", "true");
    }
    if spec.provisioning == Provisioning::Queued {
        set("cloud.google.com/gke-queued", "true");
    }
    if spec.is_hosted() {
        set(HOSTED_LABEL, "true");
    }
    if let Some(reservation) = &spec.reservation {
        set("cloud.google.com/reservation-name", reservation);
    }
    if let Some(group) = &spec.placement_group {
        set("cloud.google.com/gke-placement-group", group);
    }
    if let Some(accelerator) = spec.accelerator() {
        set("cloud.google.com/gke-accelerator-count", &accelerator.count.to_string());
        if accelerator.r#type.starts_with("tpu-") {
            set("cloud.google.com/gke-tpu-accelerator", &accelerator.r#type);
            if let Some(topology) = &accelerator.topology {
                set("cloud.google.com/gke-tpu-topology", topology);
            }
        } else {
            set("cloud.google.com/gke-accelerator", &accelerator.r#type);
            set("cloud.google.com/gke-gpu", "true");
        }
    }
    for (label, value) in [
        (well_known::ZONE, zone),
        (well_known::REGION, region),
        (well_known::ZONE_BETA, zone),
        (well_known::REGION_BETA, region),
        (well_known::INSTANCE_TYPE, machine_name),
        (well_known::INSTANCE_TYPE_BETA, machine_name),
        (well_known::ARCH, &machine.architecture),
        (well_known::OS, "linux"),
        (well_known::ARCH_BETA, &machine.architecture),
        (well_known::OS_BETA, "linux"),
        (well_known::HOSTNAME, name),
    ] {
        set(label, value);
    }
    // The pool's own labels take precedence, so that an administrator can override the others.
    labels.extend(spec.labels.clone());
    labels
}

/// Sets the label with the resize request for which the node was ordered.
pub fn label_for_request(node: &mut Node, request: &str) {
    node.labels_mut().insert(RESIZE_REQUEST_LABEL.to_owned(), request.to_owned());
}

/// The size of a pool's machine.
struct Machine {
    cpu_milli: i64,
    memory_bytes: i64,
    storage_bytes: i64,
    pods: i32,
    architecture: String,
    is_shared_core: bool,
    /// Extended resources: they appear when the device plugin is ready.
    devices: BTreeMap<String, i64>,
    /// The allocatable amounts that the pool states.
    allocatable: BTreeMap<String, Quantity>,
}

impl Machine {
    fn of(pool: &NodePool) -> Self {
        let spec = &pool.spec;
        let known: Option<&MachineType> = spec.machine_type.as_deref().and_then(machine_type);
        let shape = spec.machine.clone().unwrap_or_default();
        let mut devices: BTreeMap<String, i64> =
            shape.extended_resources.iter().map(|(name, quantity)| (name.clone(), amount(name, quantity))).collect();
        if let Some(accelerator) = spec.accelerator() {
            devices.insert(accelerator.resource_name().to_owned(), accelerator.count);
        }
        Self {
            cpu_milli: match &shape.cpu {
                Some(cpu) => amount("cpu", cpu),
                None => known.map_or(0, |machine| machine.cpus * 1000),
            },
            memory_bytes: match &shape.memory {
                Some(memory) => amount("memory", memory),
                None => known.map_or(0, |machine| machine.memory_mib << 20),
            },
            storage_bytes: shape
                .ephemeral_storage
                .as_ref()
                .map_or(STORAGE_BYTES_DEFAULT, |q| amount("ephemeral-storage", q)),
            pods: shape.pods.unwrap_or(PODS_DEFAULT),
            architecture: shape.architecture.clone().unwrap_or_else(|| "amd64".into()),
            is_shared_core: known.is_some_and(|machine| machine.is_shared_core) && shape.cpu.is_none(),
            devices,
            allocatable: spec.allocatable.clone(),
        }
    }

    fn capacity(&self, with_devices: bool) -> BTreeMap<String, Quantity> {
        let mut amounts = BTreeMap::from([
            ("cpu".to_owned(), cpu(self.cpu_milli)),
            ("memory".to_owned(), kibi(self.memory_bytes)),
            ("ephemeral-storage".to_owned(), kibi(self.storage_bytes)),
            ("pods".to_owned(), Quantity(self.pods.to_string())),
        ]);
        amounts.extend(self.shown_devices(with_devices));
        amounts
    }

    fn allocatable(&self, with_devices: bool) -> BTreeMap<String, Quantity> {
        let cpus = self.cpu_milli / 1000;
        let mut amounts = BTreeMap::from([
            // A fraction of a CPU (of an invented machine type) is left to pods as a whole.
            ("cpu".to_owned(), cpu(allocatable_cpu_milli(cpus, self.is_shared_core) + self.cpu_milli % 1000)),
            ("memory".to_owned(), kibi(allocatable_memory_bytes(self.memory_bytes))),
            ("ephemeral-storage".to_owned(), kibi(self.storage_bytes / 10 * 9)),
            ("pods".to_owned(), Quantity(self.pods.to_string())),
        ]);
        amounts.extend(self.shown_devices(with_devices));
        for (name, quantity) in &self.allocatable {
            if with_devices || !self.devices.contains_key(name) {
                amounts.insert(name.clone(), quantity.clone());
            }
        }
        amounts
    }

    /// Before the device plugin is ready, the resources are missing.
    fn shown_devices(&self, with_devices: bool) -> impl Iterator<Item = (String, Quantity)> {
        let shown = self.devices.iter().filter(move |_| with_devices);
        shown.map(|(name, count)| (name.clone(), Quantity(count.to_string())))
    }
}

fn cpu(milli: i64) -> Quantity {
    Quantity(if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") })
}

fn kibi(bytes: i64) -> Quantity {
    Quantity(format!("{}Ki", bytes / 1024))
}

/// An address of the node alone: three octets from its name, in 10.0.0.0/8.
fn internal_ip(name: &str) -> String {
    let hash = crate::random::hash(&["node-ip", name]);
    format!("10.{}.{}.{}", 128 + (hash >> 16) % 64, (hash >> 8) % 256, 2 + hash % 250)
}
