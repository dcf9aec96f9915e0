//! The `NodePool` kind: a set of equal machines that grows and shrinks.
//!
//! `spec` describes the machines and the bounds of their number. `spec.nodes` is the desired
//! number, written by the autoscaler or by `kubectl scale`; a managed instance group calls it the
//! target size. `status.creating` lists machines that were ordered and have not registered as
//! Nodes, so that no order is lost in a restart.

use std::collections::{BTreeMap, BTreeSet};

use crate::JsonSchema;
use berth_apimachinery::names;
use k8s_openapi::api::resource::v1::DeviceAttribute;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::problem::join;
use super::{Billing, Duration, Problem, RandomFaults, Shortage, Supply, machine_type};
use crate::resource::{always_written, custom_resource};

/// Maximum number of nodes of a pool. GKE's own limit is lower; this one only bounds the
/// arithmetic.
const NODES_MAX: i32 = 15_000;
/// Longest pool name (GKE's limit).
const NAME_MAX: usize = 40;
/// Maximum number of devices of one driver in a machine: those of one ResourceSlice.
const DEVICES_MAX: i32 = 128;

custom_resource! {
    /// A pool of equal machines of an embedded cluster: their type and number. Cluster-scoped.
    NodePool: cluster "berth.dev" "v1alpha1" "nodepools" {
        /// Desired state.
        #[schemars(required)]
        spec: NodePoolSpec,
        /// Observed state.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<NodePoolStatus>,
    }
}
always_written!(NodePoolSpec);

impl NodePool {
    /// A pool with the given name and desired state.
    pub fn new(name: &str, spec: NodePoolSpec) -> Self {
        Self { spec, ..Self::named(name) }
    }
}

/// A pool of equal machines of an embedded cluster: their type and number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolSpec {
    /// How the nodes of the pool run pods. A pool with `process` is the machine that Berth runs on.
    /// It has one node with the machine's own capacity, and it neither grows nor shrinks. A pool
    /// with `hosted` has machines of a simulated cloud, and the pods on them run as processes of
    /// the machine that Berth runs on.
    pub runtime: PoolRuntime,
    /// Amounts of the machine that are reserved, so that pods cannot request them: `cpu`, `memory`
    /// and `ephemeral-storage`. For `runtime: process` only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub reserve: BTreeMap<String, Quantity>,
    /// A GKE machine type, such as `g2-standard-24`. It determines size, accelerators and price,
    /// unless `machine` overrides them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_type: Option<String>,
    /// Size and accelerators of one machine, if they differ from the machine type, or if no machine
    /// type is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineShape>,
    /// Devices of one machine that pods claim with dynamic resource allocation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<PoolDevices>,
    /// Topology of the pool's TPU slice, such as `4x4`, if `machine.accelerator` does not set it. A
    /// pool whose topology has more chips than one machine is one slice of several machines. The
    /// slice exists as a whole or not at all, as on GKE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpu_topology: Option<String>,
    /// Amounts of one machine that pods can request, by resource. Other resources follow GKE's
    /// reservations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Labels of the nodes, in addition to the labels of the provisioning kind and machine type.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints of the nodes. The taint of accelerators (`nvidia.com/gpu=present:NoSchedule`) and the
    /// taint of queued pools are added automatically.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<NodeTaint>,
    /// Zones of the machines. Default: the region's first zone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// How new machines are distributed over the zones.
    pub location_policy: LocationPolicy,
    /// Number of machines at the creation of the pool, over all zones. They are ready at once.
    pub initial_nodes: i32,
    /// Minimum number of machines that the autoscaler keeps, over all zones.
    pub min_nodes: i32,
    /// Maximum number of machines, over all zones. Default: `initialNodes`, or the machines of the
    /// TPU slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<i32>,
    /// True if the autoscaler must not change the number of machines.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// How the cloud provides the machines.
    pub provisioning: Provisioning,
    /// Name of the reservation that provides the machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// Time from the order of a machine to the registration of its Node. Default: 1 minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_up_delay: Option<Duration>,
    /// Time from the registration of a Node until it is Ready. Default: 10 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_delay: Option<Duration>,
    /// Time from Ready until the accelerators are allocatable. Default: 1 minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator_ready_delay: Option<Duration>,
    /// Price of one machine in US dollars per hour. Default: by machine type and provisioning kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<f64>,
    /// How many machines the cloud has over time, and when it takes machines back. Default: always
    /// enough, and never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supply: Option<Supply>,
    /// Random faults of the nodes. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<RandomFaults>,
    /// Maximum age of a machine, after which the cloud removes it. Default: no maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run_duration: Option<Duration>,
    /// True if node auto-provisioning created the pool. Such a pool is deleted when it is empty.
    pub autoprovisioned: bool,
    /// Compact-placement group of the machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_group: Option<String>,
    /// Desired number of machines, without those of resize requests. Default: `initialNodes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i32>,
    /// Orders of machines of a queued pool. Each order is for one ProvisioningRequest and is
    /// fulfilled at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resize_requests: Vec<ResizeRequest>,
}

/// What runs the pods of a pool's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PoolRuntime {
    /// Simulated: the states of pods are computed from the time and the configuration.
    #[default]
    Simulated,
    /// Processes of the machine that Berth runs on.
    Process,
    /// Processes of the machine that Berth runs on, while the nodes are those of a simulated cloud:
    /// size, accelerators and start-up follow from the pool. The programs find no device files.
    /// Where no machine runs processes (`berth run`), the pods are simulated.
    Hosted,
}

/// Resources of a machine that [`NodePoolSpec::reserve`] can name.
const RESERVABLE: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

/// Size and accelerators of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MachineShape {
    /// Virtual CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
    /// Local storage for pods; default 100Gi.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<Quantity>,
    /// Accelerators attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Further extended resources, such as `example.com/fpga: 2`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extended_resources: BTreeMap<String, Quantity>,
    /// Maximum number of pods on one machine. Default: 110.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<i32>,
    /// CPU architecture; default amd64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
}

/// Equal devices of one machine, which a node publishes in a ResourceSlice (resource.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolDevices {
    /// The driver, such as `gpu.example.com`.
    pub driver: String,
    /// Device class of the driver's devices, which is created if it does not exist. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<String>,
    /// Start of the devices' names, which end in `-0`, `-1` and so on; default `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of devices.
    pub count: i32,
    /// Attributes of each device by name, each with one of `string`, `int`, `bool` and `version`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Capacities of each device by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, Quantity>,
}

impl PoolDevices {
    /// Start of the devices' names.
    pub fn device_name(&self) -> &str {
        self.name.as_deref().unwrap_or("device")
    }
}

/// Accelerators of one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// GKE's name of the accelerator, such as `nvidia-l4` or `tpu-v6e-slice`.
    pub r#type: String,
    /// Number of accelerators in one machine.
    pub count: i64,
    /// Resource that pods request. Default: `nvidia.com/gpu`, or `google.com/tpu` for types whose
    /// names start with `tpu-`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Topology of a TPU slice, such as `4x4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
}

impl Accelerator {
    /// True for TPUs.
    pub fn is_tpu(&self) -> bool {
        self.r#type.starts_with("tpu-")
    }

    /// The extended resource that pods request.
    pub fn resource_name(&self) -> &str {
        match &self.resource {
            Some(resource) => resource,
            None if self.is_tpu() => "google.com/tpu",
            None => "nvidia.com/gpu",
        }
    }
}

/// A taint of the nodes of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeTaint {
    /// Key.
    pub key: String,
    /// Value, may be empty.
    #[serde(default)]
    pub value: String,
    /// Effect on pods that do not tolerate the taint.
    pub effect: TaintEffect,
}

/// Effect of a taint on pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// They are not scheduled there.
    NoSchedule,
    /// They are scheduled elsewhere if possible.
    PreferNoSchedule,
    /// They are not scheduled there, and running pods are evicted.
    NoExecute,
}

impl TaintEffect {
    /// The effect as Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// How the cloud supplies a pool's machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Provisioning {
    /// From a reservation.
    Reserved,
    /// On request, at list price.
    #[default]
    OnDemand,
    /// Cheap surplus capacity, which the cloud may reclaim.
    Spot,
    /// Only through a ProvisioningRequest, all at once.
    Queued,
}

/// How new machines spread over a pool's zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LocationPolicy {
    /// Evenly.
    #[default]
    Balanced,
    /// Wherever there is capacity; the zones are tried in order.
    Any,
}

/// Machines ordered all at once for one ProvisioningRequest, in one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResizeRequest {
    /// Name. The nodes have it in the label `autoscaling.gke.io/provisioning-request`.
    pub name: String,
    /// Desired number of machines.
    pub nodes: i32,
    /// Zone of the machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The ProvisioningRequest that the machines are for: `namespace/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_request: Option<String>,
}

/// Observed state of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePoolStatus {
    /// Registered nodes.
    pub nodes: i32,
    /// Nodes that are Ready and whose accelerators are allocatable.
    pub ready_nodes: i32,
    /// Total number of machines ordered so far. It makes node names unique.
    pub ordered: i64,
    /// Machines that were ordered and have not registered as Nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub creating: Vec<Instance>,
    /// Machines that the cloud has for the pool now, including those in use. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stock: Option<i32>,
    /// The last scale-up that the cloud could not fulfil, until one succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortage: Option<Shortage>,
    /// What the machines have cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub billing: Option<Billing>,
    /// Generation of the spec from which this status was computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A machine that was ordered and has not registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Name of the machine's future Node.
    pub name: String,
    /// Zone of the machine.
    pub zone: String,
    /// Time of the order.
    pub ordered_at: Time,
    /// Resize request of the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize_request: Option<String>,
}

/// Fields, each with its problem.
type FieldProblems = Vec<(String, String)>;

impl NodePoolSpec {
    /// True if the pool is the machine that Berth runs on.
    pub fn is_process(&self) -> bool {
        self.runtime == PoolRuntime::Process
    }

    /// True if pods on the simulated machines of the pool run as processes.
    pub fn is_hosted(&self) -> bool {
        self.runtime == PoolRuntime::Hosted
    }

    /// True if the autoscaler must not change the number of nodes.
    pub fn is_fixed(&self) -> bool {
        self.is_static || self.is_process()
    }

    /// Maximum number of nodes of the pool.
    pub fn nodes_max(&self) -> i32 {
        self.max_nodes.unwrap_or_else(|| {
            let least = self.initial_nodes.max(self.min_nodes);
            if self.is_slice() { self.slice_hosts().max(least) } else { least }
        })
    }

    /// Desired number of nodes without those of resize requests. A TPU slice counts as a whole.
    pub fn nodes_own(&self) -> i32 {
        self.whole_slices(self.nodes.unwrap_or(self.initial_nodes).max(0))
    }

    /// Desired number of nodes, including those of resize requests.
    pub fn nodes_wanted(&self) -> i32 {
        self.resize_requests.iter().fold(self.nodes_own(), |sum, request| sum.saturating_add(request.nodes))
    }

    /// Number of machines of the pool's TPU slice; 1 for other pools.
    pub fn slice_hosts(&self) -> i32 {
        let Some(accelerator) = self.accelerator().filter(Accelerator::is_tpu) else { return 1 };
        let chips = accelerator.topology.as_deref().and_then(chips_of).unwrap_or(accelerator.count);
        i32::try_from(chips / accelerator.count.max(1)).unwrap_or(1).max(1)
    }

    /// True if the pool is a TPU slice of several machines.
    pub fn is_slice(&self) -> bool {
        self.slice_hosts() > 1
    }

    /// The number of nodes, rounded up to whole TPU slices.
    pub fn whole_slices(&self, nodes: i32) -> i32 {
        let hosts = self.slice_hosts();
        if hosts == 1 { nodes } else { nodes.saturating_add(hosts - 1) / hosts * hosts }
    }

    /// The accelerators of one machine: those of `machine`, or those of the machine type.
    pub fn accelerator(&self) -> Option<Accelerator> {
        let stated = self.machine.as_ref().and_then(|machine| machine.accelerator.clone());
        let of_type = || {
            let (kind, count) = self.machine_type.as_deref().and_then(machine_type)?.accelerator?;
            Some(Accelerator { r#type: kind.to_owned(), count, resource: None, topology: None })
        };
        let mut accelerator = stated.or_else(of_type)?;
        if accelerator.topology.is_none() {
            accelerator.topology = self.tpu_topology.clone();
        }
        Some(accelerator)
    }

    /// US dollars per hour for one machine. Spot machines cost 40 % of the list price.
    pub fn price(&self) -> f64 {
        let listed = self.machine_type.as_deref().and_then(machine_type).map_or(0.0, |machine| machine.price_per_hour);
        let share = if self.provisioning == Provisioning::Spot { 0.4 } else { 1.0 };
        self.price_per_hour.unwrap_or(listed * share)
    }

    /// All errors of the spec; `path` is its path in the document (`spec`, `nodePools[3]`).
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let all = self.count_problems().into_iter().chain(self.runtime_problems()).chain(self.machine_problems());
        let all = all
            .chain(self.slice_problems())
            .chain(self.quantity_problems())
            .chain(self.label_problems())
            .chain(self.zone_problems())
            .chain(self.device_problems());
        all.map(|(field, message)| Problem::new(join(path, &field), message)).collect()
    }

    /// Numbers of nodes that are out of range or contradict each other.
    fn count_problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut problem = |field: &str, message: String| problems.push((field.to_owned(), message));
        for (field, value) in [
            ("initialNodes", Some(self.initial_nodes)),
            ("minNodes", Some(self.min_nodes)),
            ("maxNodes", self.max_nodes),
            ("nodes", self.nodes),
        ] {
            if let Some(value) = value.filter(|value| !(0..=NODES_MAX).contains(value)) {
                problem(field, format!("{value} is outside 0 to {NODES_MAX}"));
            }
        }
        if let Some(max) = self.max_nodes {
            if self.min_nodes > max {
                problem("minNodes", format!("{} is more than maxNodes ({max})", self.min_nodes));
            }
            if self.initial_nodes > max {
                problem("initialNodes", format!("{} is more than maxNodes ({max})", self.initial_nodes));
            }
        }
        if self.initial_nodes < self.min_nodes {
            problem("initialNodes", format!("{} is less than minNodes ({})", self.initial_nodes, self.min_nodes));
        }
        problems
    }

    /// A machine type that is not known, or an incomplete machine.
    fn machine_problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut problem = |field: &str, message: String| problems.push((field.to_owned(), message));
        match &self.machine_type {
            _ if self.is_process() => {}
            Some(name) if machine_type(name).is_none() && self.machine.is_none() => problem(
                "machineType",
                format!(
                    "{name:?} is not a known machine type: name one of {}, or give machine.cpu and machine.memory",
                    known_families()
                ),
            ),
            None if self.machine.is_none() => {
                problem(
                    "machineType",
                    "required: a machine type such as \"e2-standard-4\", or machine.cpu and machine.memory".into(),
                );
            }
            _ => {}
        }
        if let Some(machine) = &self.machine {
            let known = self.machine_type.as_deref().and_then(machine_type).is_some();
            for (field, value) in [("machine.cpu", &machine.cpu), ("machine.memory", &machine.memory)] {
                if value.is_none() && !known {
                    problem(field, "required unless machineType is a known machine type".into());
                }
            }
            if machine.pods.is_some_and(|pods| pods < 1) {
                problem("machine.pods", "must be at least 1".into());
            }
            if let Some(accelerator) = &machine.accelerator {
                if accelerator.r#type.is_empty() {
                    problem("machine.accelerator.type", "required, such as \"nvidia-l4\"".into());
                }
                if accelerator.count < 1 {
                    problem(
                        "machine.accelerator.count",
                        format!("{} is too small: a machine has at least 1 accelerator", accelerator.count),
                    );
                }
            }
            for name in machine.extended_resources.keys().filter(|name| !name.contains('/')) {
                problem(
                    &format!("machine.extendedResources[{name}]"),
                    "an extended resource is named domain/name, such as \"example.com/fpga\"".into(),
                );
            }
        }
        problems
    }

    /// Devices that no ResourceSlice can have.
    fn device_problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
        for (index, devices) in self.devices.iter().enumerate() {
            let mut problem =
                |field: &str, message: String| problems.push((format!("devices[{index}].{field}"), message));
            for message in names::is_dns1123_subdomain(&devices.driver) {
                problem("driver", message);
            }
            for message in names::is_dns1123_label(devices.device_name()) {
                problem("name", message);
            }
            if let Some(class) = &devices.device_class {
                for message in names::is_dns1123_subdomain(class) {
                    problem("deviceClass", message);
                }
            }
            if devices.count < 1 {
                problem("count", format!("{} is less than 1", devices.count));
            }
            let count = counts.entry(&devices.driver).or_default();
            *count = count.saturating_add(devices.count.max(0));
            if *count > DEVICES_MAX {
                problem("count", format!("{count} devices of this driver in one machine are more than {DEVICES_MAX}"));
            }
            for (name, value) in &devices.attributes {
                let set = [value.string.is_some(), value.int.is_some(), value.bool.is_some(), value.version.is_some()];
                if set.into_iter().filter(|set| *set).count() != 1 {
                    problem(
                        &format!("attributes[{name}]"),
                        "exactly one of string, int, bool and version must be set".into(),
                    );
                }
            }
        }
        problems
    }

    /// A text that is not a TPU topology, or a number of machines that is not a whole slice.
    fn slice_problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut problem = |field: &str, message: String| problems.push((field.to_owned(), message));
        let accelerator = self.accelerator();
        let topology = accelerator.as_ref().and_then(|accelerator| accelerator.topology.as_deref());
        let (Some(accelerator), Some(topology)) = (&accelerator, topology) else {
            if self.tpu_topology.is_some() {
                problem("tpuTopology", "only machines with TPUs have a topology, such as \"ct6e-standard-4t\"".into());
            }
            return problems;
        };
        let field = if self.tpu_topology.is_some() { "tpuTopology" } else { "machine.accelerator.topology" };
        if !accelerator.is_tpu() {
            problem(
                field,
                format!("{} has no topology: only types that start with \"tpu-\" have one", accelerator.r#type),
            );
            return problems;
        }
        let count = accelerator.count.max(1);
        match chips_of(topology) {
            None => problem(field, format!("{topology:?} is not a topology, such as \"4x4\" or \"2x2x1\"")),
            Some(chips) if chips % count != 0 => problem(
                field,
                format!("{topology} has {chips} chips, which is not a multiple of the {count} chips of one machine"),
            ),
            Some(_) if self.is_slice() => {
                let hosts = self.slice_hosts();
                let numbers = [
                    ("initialNodes", self.initial_nodes),
                    ("minNodes", self.min_nodes),
                    ("maxNodes", self.nodes_max()),
                ];
                for (field, nodes) in numbers.into_iter().filter(|(_, nodes)| ![0, hosts].contains(nodes)) {
                    let message = format!(
                        "{nodes} is not 0 or {hosts}: the pool is one TPU slice of topology {topology}, which has {hosts} \
                         machines and exists as a whole or not at all"
                    );
                    problem(field, message);
                }
            }
            Some(_) => {}
        }
        problems
    }

    /// Amounts that are not quantities.
    fn quantity_problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut problem = |field: &str, message: String| problems.push((field.to_owned(), message));
        let machine = self.machine.clone().unwrap_or_default();
        let shape =
            [("cpu", &machine.cpu), ("memory", &machine.memory), ("ephemeralStorage", &machine.ephemeral_storage)];
        for (field, quantity) in shape {
            if let Some(why) = quantity.as_ref().and_then(quantity_problem) {
                problem(&format!("machine.{field}"), why);
            }
        }
        for (map, quantities) in
            [("machine.extendedResources", &machine.extended_resources), ("allocatable", &self.allocatable)]
        {
            for (name, quantity) in quantities {
                if let Some(why) = quantity_problem(quantity) {
                    problem(&format!("{map}[{name}]"), why);
                }
            }
        }
        problems
    }

    /// Labels and taints that no node may have.
    fn label_problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut problem = |field: &str, message: String| problems.push((field.to_owned(), message));
        for (key, value) in &self.labels {
            if let Some(why) = label_key_problem(key) {
                problem(&format!("labels[{key}]"), why);
            }
            if let Some(why) = label_value_problem(value) {
                problem(&format!("labels[{key}]"), why);
            }
        }
        let mut seen = BTreeSet::new();
        for (i, taint) in self.taints.iter().enumerate() {
            if let Some(why) = label_key_problem(&taint.key) {
                problem(&format!("taints[{i}].key"), why);
            }
            if let Some(why) = label_value_problem(&taint.value) {
                problem(&format!("taints[{i}].value"), why);
            }
            if !seen.insert((&taint.key, taint.effect)) {
                problem(&format!("taints[{i}]"), format!("{}:{} is listed twice", taint.key, taint.effect.as_str()));
            }
        }
        problems
    }

    /// An impossible price, names that are not zones, and an impossible supply.
    fn zone_problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut problem = |field: &str, message: String| problems.push((field.to_owned(), message));
        if self.price_per_hour.is_some_and(|price| !price.is_finite() || price < 0.0) {
            problem("pricePerHour", "must be a number of dollars, 0 or more".into());
        }
        let mut zones = BTreeSet::new();
        for (i, zone) in self.zones.iter().enumerate() {
            if zone.is_empty() || label_value_problem(zone).is_some() {
                problem(&format!("zones[{i}]"), format!("{zone:?} is not a zone name such as \"us-central1-a\""));
            }
            if !zones.insert(zone) {
                problem(&format!("zones[{i}]"), format!("{zone} is listed twice"));
            }
        }
        if let Some(duration) = self.max_run_duration.filter(|duration| duration.0.is_zero()) {
            problems.push(("maxRunDuration".into(), format!("{duration} is not more than 0s")));
        }
        problems.extend(self.supply.iter().flat_map(Supply::problems));
        let of_faults = self.faults.iter().flat_map(|faults| faults.problems("faults"));
        problems.extend(of_faults.map(|problem| (problem.path, problem.message)));
        problems
    }

    /// Fields that the runtime does not support, with messages.
    fn runtime_problems(&self) -> FieldProblems {
        if !self.is_process() {
            let message = "only a pool with runtime: process can reserve amounts of its machine";
            return if self.reserve.is_empty() { Vec::new() } else { vec![("reserve".into(), message.into())] };
        }
        let default = Self::default();
        // Fields about machines that a pool of this machine does not have; true if set.
        let given = [
            ("machineType", self.machine_type.is_some()),
            ("machine", self.machine.is_some()),
            ("tpuTopology", self.tpu_topology.is_some()),
            ("initialNodes", self.initial_nodes != 0),
            ("minNodes", self.min_nodes != 0),
            ("maxNodes", self.max_nodes.is_some()),
            ("nodes", self.nodes.is_some()),
            ("resizeRequests", !self.resize_requests.is_empty()),
            ("locationPolicy", self.location_policy != default.location_policy),
            ("provisioning", self.provisioning != default.provisioning),
            ("reservation", self.reservation.is_some()),
            ("placementGroup", self.placement_group.is_some()),
            ("supply", self.supply.is_some()),
            ("faults", self.faults.is_some()),
            ("maxRunDuration", self.max_run_duration.is_some()),
            ("autoprovisioned", self.autoprovisioned),
            ("startUpDelay", self.start_up_delay.is_some()),
            ("readyDelay", self.ready_delay.is_some()),
            ("acceleratorReadyDelay", self.accelerator_ready_delay.is_some()),
        ];
        let message = "a pool with runtime: process is this machine and does not have this field";
        let mut problems: Vec<(String, String)> = given
            .iter()
            .filter(|(_, given)| *given)
            .map(|(field, _)| ((*field).to_owned(), message.to_owned()))
            .collect();
        if self.zones.len() > 1 {
            problems
                .push(("zones".into(), "a pool with runtime: process has one zone, because it is one machine".into()));
        }
        for (name, quantity) in &self.reserve {
            let unknown = (!RESERVABLE.contains(&name.as_str()))
                .then(|| format!("{name:?} cannot be reserved: expected {}", RESERVABLE.join(", ")));
            problems
                .extend(unknown.or_else(|| quantity_problem(quantity)).map(|why| (format!("reserve[{name}]"), why)));
        }
        problems
    }
}

/// Number of chips of a TPU topology; `None` if the text is not a topology.
fn chips_of(topology: &str) -> Option<i64> {
    let mut chips: i64 = 1;
    let mut dimensions = 0;
    for part in topology.split('x') {
        let size: i64 = part.parse().ok().filter(|size| *size > 0 && part.bytes().all(|c| c.is_ascii_digit()))?;
        chips = chips.checked_mul(size).filter(|chips| *chips <= i64::from(NODES_MAX))?;
        dimensions += 1;
    }
    matches!(dimensions, 2 | 3).then_some(chips)
}

/// The error in a pool's name, if there is one.
pub(super) fn name_problem(name: &str) -> Option<String> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let well_formed = name.len() <= NAME_MAX
        && name.chars().all(legal)
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-');
    (!well_formed).then(|| {
        format!(
            "{name:?} is not a pool name: 1 to {NAME_MAX} lower-case letters, digits or dashes, starting with a letter"
        )
    })
}

/// The error in an amount of a machine's resource, if there is one.
pub(super) fn quantity_problem(quantity: &Quantity) -> Option<String> {
    let parsed = berth_apimachinery::quantity::Quantity::parse(&quantity.0);
    let is_amount = parsed.is_ok_and(|parsed| parsed.milli_value() >= 0);
    (!is_amount).then(|| {
        format!(
            "{:?} is not an amount: expected a quantity of 0 or more, such as \"4\", \"500m\" or \"16Gi\"",
            quantity.0
        )
    })
}

fn known_families() -> String {
    let families: BTreeSet<&str> = super::machine_types().iter().map(super::MachineType::family).collect();
    format!("the {} families", families.into_iter().collect::<Vec<_>>().join(", "))
}

/// Kubernetes' rules for label keys: an optional DNS prefix of at most 253 characters, then a name
/// of at most 63.
pub(super) fn label_key_problem(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let prefix_fits = prefix.is_none_or(|prefix| {
        !prefix.is_empty()
            && prefix.len() <= 253
            && prefix.split('.').all(|part| {
                !part.is_empty()
                    && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                    && !part.starts_with('-')
                    && !part.ends_with('-')
            })
    });
    (!prefix_fits || name.is_empty() || label_value_problem(name).is_some()).then(|| {
        format!("{key:?} is not a label key: [domain/]name, the name up to 63 letters, digits, '-', '_' or '.'")
    })
}

fn label_value_problem(value: &str) -> Option<String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: char| c.is_ascii_alphanumeric();
    let well_formed = value.is_empty()
        || value.len() <= 63 && value.chars().all(legal) && value.starts_with(edge) && value.ends_with(edge);
    (!well_formed)
        .then(|| format!("{value:?} is not a label value: up to 63 letters, digits, '-', '_' or '.', starting and ending with a letter or digit"))
}
