//! Node auto-provisioning: derives a pool from a pod's selectors, tolerations and requests.
//!
//! Source: Google's documentation of node auto-provisioning and workload separation. Known keys of
//! `cloud.google.com/` and `kubernetes.io/` select properties of the pool; unknown ones are
//! rejected. Any other key becomes a label and a taint of the pool, if the pod tolerates that
//! taint.

use std::collections::BTreeMap;

use berth_api::berth::{
    ClusterConfiguration, LocationPolicy, MachineType, NodePool, NodePoolSpec, NodeTaint, Provisioning, TaintEffect,
    allocatable_cpu_milli, allocatable_memory_bytes, machine_type, machine_types,
};
use berth_apimachinery::well_known::{self, ZONE};
use k8s_openapi::api::core::v1::Taint;

use crate::placement::{PodInfo, tolerates};
use crate::random::hash;

const ACCELERATOR: &str = "cloud.google.com/gke-accelerator";
const TPU: &str = "cloud.google.com/gke-tpu-accelerator";
const TPU_TOPOLOGY: &str = "cloud.google.com/gke-tpu-topology";
const PLACEMENT_GROUP: &str = "cloud.google.com/gke-placement-group";
const SPOT: &str = "cloud.google.com/gke-spot";
const PROVISIONING: &str = "cloud.google.com/gke-provisioning";
const FAMILY: &str = "cloud.google.com/machine-family";

/// The pool that node auto-provisioning creates for this pod, without nodes; or the reason why it
/// creates none.
pub fn derive_pool(pod: &PodInfo, configuration: &ClusterConfiguration) -> Result<NodePool, String> {
    let wanted = wanted_labels(pod)?;
    let provisioning = &configuration.node_auto_provisioning;
    let mut spec = NodePoolSpec {
        autoprovisioned: true,
        location_policy: LocationPolicy::Any,
        max_nodes: Some(provisioning.max_nodes_per_pool),
        accelerator_ready_delay: provisioning.accelerator_ready_delay,
        ..NodePoolSpec::default()
    };
    // The pool is created before its first machine is ordered, so both delays add up.
    let start_up = provisioning.start_up_delay.map_or(std::time::Duration::from_secs(60), |delay| delay.0);
    spec.start_up_delay = Some(berth_api::berth::Duration(provisioning.pool_creation_delay.0 + start_up));
    spec.zones = match wanted.get(ZONE) {
        Some(zone) => vec![zone.clone()],
        None if provisioning.zones.is_empty() => vec![format!("{}-a", configuration.region)],
        None => provisioning.zones.clone(),
    };
    // Each required label chooses a property of the pool, becomes a label of it, or rules it out.
    let mut accelerator = None;
    for (key, value) in &wanted {
        match key.as_str() {
            ACCELERATOR | TPU => accelerator = Some(value.as_str()),
            SPOT if value == "true" => spec.provisioning = Provisioning::Spot,
            PROVISIONING if value == "spot" => spec.provisioning = Provisioning::Spot,
            PROVISIONING if value == "standard" => {}
            FAMILY | ZONE | well_known::REGION | well_known::INSTANCE_TYPE => {}
            well_known::ARCH | well_known::OS => {
                if !matches!(value.as_str(), "amd64" | "linux") {
                    return Err(format!("no.scale.up.nap.pod: no machine type has {key}={value}"));
                }
            }
            "cloud.google.com/gke-accelerator-count" | "cloud.google.com/gke-gpu" | TPU_TOPOLOGY => {}
            PLACEMENT_GROUP => {
                separate_workload(pod, key, value, &mut spec)?;
                spec.placement_group = Some(value.clone());
                spec.max_nodes = Some(provisioning.max_nodes_per_placement_group);
                // A placement group is within one zone.
                spec.zones.truncate(1);
            }
            _ if is_reserved(key) => {
                return Err(format!("no.scale.up.nap.pod: a new pool cannot have the label {key}"));
            }
            _ => separate_workload(pod, key, value, &mut spec)?,
        }
    }
    if spec.provisioning == Provisioning::Spot {
        if wanted.contains_key(SPOT) {
            separate_workload(pod, SPOT, "true", &mut spec)?;
            spec.labels.remove(SPOT);
        }
        spec.labels.insert(SPOT.into(), "true".into());
        spec.labels.insert(PROVISIONING.into(), "spot".into());
    }
    // The machine type, and a slice if it has TPUs.
    let machine = choose_machine(pod, &wanted, accelerator, configuration)?;
    spec.machine_type = Some(machine.name.to_owned());
    if let Some((kind, _)) = machine.accelerator {
        if kind.starts_with("tpu-") {
            spec.tpu_topology = wanted.get(TPU_TOPOLOGY).cloned();
            if spec.is_slice() {
                spec.max_nodes = Some(spec.slice_hosts());
                // A slice is within one zone.
                spec.zones.truncate(1);
            }
            if let Some(problem) = spec.problems("").first() {
                return Err(format!("no.scale.up.nap.pod.tpu: {problem}"));
            }
        } else {
            spec.labels.insert(ACCELERATOR.into(), kind.into());
        }
    }
    let name = spec.placement_group.clone().unwrap_or_else(|| pool_name(&spec, machine));
    Ok(NodePool::new(&name, spec))
}

/// The name of a pool. Pods with equal requirements get the same pool, because its name is a hash
/// of its properties.
fn pool_name(spec: &NodePoolSpec, machine: &MachineType) -> String {
    let topology = spec.tpu_topology.as_deref().unwrap_or_default();
    let identity = format!("{:?}{:?}{:?}{:?}{topology}", spec.labels, spec.taints, spec.zones, spec.provisioning);
    let gpus = match machine.accelerator {
        Some((kind, count)) if kind.starts_with("tpu-") => format!("-tpu{count}"),
        Some((_, count)) => format!("-gpu{count}"),
        None => String::new(),
    };
    format!("nap-{}{gpus}-{:08x}", machine.name, hash(&["nap", &identity]) as u32)
}

/// The node labels that the pod requires: its nodeSelector, and the first value of each `In`
/// requirement in the first term of its required node affinity.
fn wanted_labels(pod: &PodInfo) -> Result<BTreeMap<String, String>, String> {
    let mut wanted: BTreeMap<String, String> =
        pod.node_selector().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    if let Some(term) = pod.required_nodes().and_then(|required| required.node_selector_terms.first()) {
        for requirement in term.match_expressions.iter().flatten() {
            let values = requirement.values.as_deref().unwrap_or_default();
            match (requirement.operator.as_str(), values) {
                ("In", [value, ..]) => {
                    wanted.entry(requirement.key.clone()).or_insert_with(|| value.clone());
                }
                ("NotIn" | "DoesNotExist", _) => {}
                _ => {
                    return Err(format!(
                        "no.scale.up.nap.pod: node affinity for {} does not give a value for the label",
                        requirement.key
                    ));
                }
            }
        }
    }
    Ok(wanted)
}

/// Adds a label and a taint to the spec (workload separation). Fails if the pod does not tolerate
/// the taint.
fn separate_workload(pod: &PodInfo, key: &str, value: &str, spec: &mut NodePoolSpec) -> Result<(), String> {
    let taint = Taint { key: key.into(), value: Some(value.into()), effect: "NoSchedule".into(), time_added: None };
    let names_key = |key: &str| pod.tolerations().iter().any(|t| t.key.as_deref() == Some(key) && tolerates(t, &taint));
    if !names_key(key) {
        return Err(format!(
            "no.scale.up.nap.pod: the pod selects {key}={value} but does not tolerate the taint that nodes with this label have"
        ));
    }
    spec.labels.insert(key.to_owned(), value.to_owned());
    if !spec.taints.iter().any(|known| known.key == key) {
        spec.taints.push(NodeTaint { key: key.into(), value: value.into(), effect: TaintEffect::NoSchedule });
    }
    Ok(())
}

fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    ["cloud.google.com", "kubernetes.io", "k8s.io", "gke.io"]
        .iter()
        .any(|reserved| domain == *reserved || domain.ends_with(&format!(".{reserved}")))
}

/// The cheapest allowed machine type that the pod fits on.
fn choose_machine(
    pod: &PodInfo,
    wanted: &BTreeMap<String, String>,
    accelerator: Option<&str>,
    configuration: &ClusterConfiguration,
) -> Result<&'static MachineType, String> {
    let provisioning = &configuration.node_auto_provisioning;
    let gpus = pod.requests.get("nvidia.com/gpu").max(pod.requests.get("google.com/tpu"));
    let unknown_resource =
        pod.requests.extended().find(|(name, _)| !matches!(*name, "nvidia.com/gpu" | "google.com/tpu"));
    if let Some((name, _)) = unknown_resource {
        return Err(format!("no.scale.up.nap.pod: no machine type has {name}"));
    }
    if let Some(kind) = accelerator.filter(|kind| !provisioning.limits.contains_key(*kind)) {
        return Err(format!("no.scale.up.nap.pod.gpu.no.limit.defined: {kind}"));
    }
    let is_allowed = |machine: &&MachineType| {
        let listed = provisioning.machine_types.is_empty()
            || provisioning
                .machine_types
                .iter()
                .any(|name| machine_type(name).is_some_and(|known| known.name == machine.name));
        let has_family = wanted.get(FAMILY).is_none_or(|family| family == machine.family());
        let has_name = wanted.get(well_known::INSTANCE_TYPE).is_none_or(|name| name == machine.name);
        let has_accelerator = match (machine.accelerator, gpus > 0 || accelerator.is_some()) {
            (None, false) => true,
            (Some((kind, count)), true) => {
                // A pod uses all TPU chips of its machine, and a GPU pod may leave some to others.
                (if kind.starts_with("tpu-") { count == gpus } else { count >= gpus })
                    && accelerator.is_none_or(|wanted| wanted == kind)
                    && provisioning.limits.contains_key(kind)
            }
            _ => false,
        };
        let holds = pod.requests.get("cpu") <= allocatable_cpu_milli(machine.cpus, machine.is_shared_core)
            && pod.requests.get("memory") <= allocatable_memory_bytes(machine.memory_mib << 20);
        listed && has_family && has_name && has_accelerator && holds
    };
    machine_types()
        .iter()
        .filter(is_allowed)
        .min_by(|a, b| a.price_per_hour.total_cmp(&b.price_per_hour).then(a.name.cmp(b.name)))
        .ok_or_else(|| "no.scale.up.nap.pod: the pod fits on no allowed machine type".to_owned())
}
