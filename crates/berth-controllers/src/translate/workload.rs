//! Translates Workloads.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use berth_api::kueue::v1beta2 as api;
use berth_api::kueue::{annotations, labels, reasons};
use berth_engine::Name;
use berth_engine::model::{
    CheckState, CheckStatus, Eviction, PodSet, PodTemplate, SliceConstraint, Time, TopologyMode, TopologyRequest,
    Variant, Workload, WorkloadKey,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, PodSpec};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::admission;
use super::amounts::request;
use super::placement::{labels, name, node_affinity, tolerations};
use super::requests::{adjust, of_pod};
use super::transform::effective;
use super::validate;
use crate::conditions;
use crate::configuration::Resources;
use crate::workload::status;

/// The inputs of effective requests other than the workload.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Configuration: excluded prefixes and transformations.
    pub resources: &'a Resources,
    /// LimitRanges of the workload's namespace.
    pub limit_ranges: &'a [LimitRange],
    /// RuntimeClasses by name.
    pub runtime_classes: &'a BTreeMap<String, RuntimeClass>,
}

/// The key of a workload.
pub fn workload_key(workload: &api::Workload) -> WorkloadKey {
    WorkloadKey::new(workload.metadata.namespace.as_deref().unwrap_or_default(), workload.name_any())
}

/// The instant of an API timestamp.
pub fn time(at: Timestamp) -> Time {
    Time(i64::try_from(at.as_nanosecond()).unwrap_or(i64::MIN))
}

/// The workload in the engine's form.
pub fn workload(object: &api::Workload, context: &Context<'_>) -> Workload {
    let key = workload_key(object);
    let status = object.status.clone().unwrap_or_default();
    let find = |type_: &str| conditions::find(&status.conditions, type_);
    let is_true = |type_: &str| conditions::is_true(&status.conditions, type_);
    let annotation = |key: &str| object.annotations().get(key).map(String::as_str).filter(|text| !text.is_empty());
    let specs = adjusted_specs(object, context);
    let pod_sets = object.spec.pod_sets.iter().zip(&specs).map(|(set, spec)| {
        let reclaimable = status.reclaimable_pods.iter().find(|it| it.name == set.name).map_or(0, |it| it.count);
        pod_set(set, spec, reclaimable, context)
    });
    let active = object.spec.active.unwrap_or(true);
    // A deactivated workload holds its quota until its owner's pods have ended. Without an owner,
    // there is nothing to wait for, and nothing that would release it.
    let holds = active || !object.owner_references().is_empty();
    let reserved = find(conditions::QUOTA_RESERVED).filter(|condition| holds && condition.status == "True");
    let on_hold = find(conditions::QUOTA_RESERVED)
        .is_some_and(|it| it.status == "False" && it.reason == reasons::admission::ON_HOLD);
    let eviction = |type_: &str| {
        let condition = find(type_).filter(|condition| condition.status == "True")?;
        Some(Eviction { reason: name(&condition.reason), at: transition(condition) })
    };
    Workload {
        pod_sets: pod_sets.collect(),
        inadmissible: validate::problem(&specs, context.limit_ranges),
        uid: name(object.metadata.uid.as_deref().unwrap_or_default()),
        generation: object.metadata.generation.unwrap_or_default(),
        created: object.metadata.creation_timestamp.as_ref().map_or(Time::UNSET, |at| time(at.0)),
        queue: name(&object.spec.queue_name),
        priority: object.spec.priority.map_or(0, i64::from),
        priority_boost: annotation(annotations::PRIORITY_BOOST).and_then(|text| text.parse().ok()).unwrap_or(0),
        active,
        deleting: object.metadata.deletion_timestamp.is_some(),
        admission_gated: annotation(annotations::ADMISSION_GATED_BY).is_some(),
        preemption_gated: has_closed_gate(object),
        admission: reserved.and(status.admission.as_ref()).map(admission::from_api),
        reserved_at: reserved.map(transition),
        admitted: is_true(conditions::ADMITTED),
        finished: is_true(conditions::FINISHED),
        on_hold,
        waiting_for_replacement_pods: is_true(conditions::WAITING_FOR_REPLACEMENT_PODS),
        pods_ready: is_true(conditions::PODS_READY),
        evicted: eviction(conditions::EVICTED),
        preempted: eviction(conditions::PREEMPTED),
        requeued: find(conditions::REQUEUED).map(|condition| condition.status == "True"),
        requeue_at: status.requeue_state.as_ref().and_then(|state| state.requeue_at.as_ref()).map(|at| time(at.0)),
        checks: status.admission_checks.iter().map(check).collect(),
        unhealthy_nodes: status.unhealthy_nodes.iter().map(|node| name(&node.name)).collect(),
        elastic: annotation(annotations::ELASTIC_JOB).is_some_and(|text| text == "true"),
        replaces: annotation(annotations::WORKLOAD_SLICE_REPLACEMENT_FOR).and_then(|text| replaced(text, &key)),
        variant: annotation(annotations::WORKLOAD_ALLOWED_RESOURCE_FLAVORS).map(|text| variant(object, text)),
        has_variants: object
            .labels()
            .get(berth_api::kueue::labels::CONCURRENT_ADMISSION_PARENT)
            .is_some_and(|value| value == "true"),
        owned_by_pod: status::is_of_a_pod(object),
        job_uid: object.labels().get(labels::JOB_UID).map(|uid| name(uid)),
        ..Workload::new(key.namespace.clone(), key.name)
    }
}

fn transition(condition: &Condition) -> Time {
    time(condition.last_transition_time.0)
}

/// The pods of the workload's pod sets, with the requests that RuntimeClasses, LimitRanges and
/// limits imply.
pub fn adjusted_specs(object: &api::Workload, context: &Context<'_>) -> Vec<PodSpec> {
    object.spec.pod_sets.iter().map(|set| adjusted(set, context)).collect()
}

fn adjusted(set: &api::PodSet, context: &Context<'_>) -> PodSpec {
    let spec = set.template.spec.clone().unwrap_or_default();
    let class = spec.runtime_class_name.as_ref().and_then(|class| context.runtime_classes.get(class));
    adjust(&spec, class, context.limit_ranges)
}

fn pod_set(set: &api::PodSet, spec: &PodSpec, reclaimable: i32, context: &Context<'_>) -> PodSet {
    let own = of_pod(spec);
    let integers = |list: &super::amounts::Quantities| {
        list.iter().map(|(key, quantity)| (name(key), request(key, quantity))).collect()
    };
    PodSet {
        name: name(&set.name),
        count: set.count,
        min_count: set.min_count,
        reclaimable,
        requests: integers(&effective(&own, context.resources)),
        template: Arc::new(PodTemplate {
            requests: integers(&own),
            node_selector: labels(spec.node_selector.as_ref()),
            affinity: node_affinity(spec.affinity.as_ref()),
            tolerations: tolerations(spec.tolerations.as_deref().unwrap_or_default()),
            shape: shape(spec),
        }),
        topology: set.topology_request.as_ref().map(topology_request),
    }
}

/// Digest of the pod fields that affect scheduling equivalence and are not part of the model
/// (semantics §4.8).
fn shape(spec: &PodSpec) -> u64 {
    let mut hasher = DefaultHasher::new();
    let resources: Vec<_> = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|container| container.resources.as_ref().and_then(|resources| resources.requests.clone()))
        .collect();
    // Kubernetes types do not implement Hash. Their JSON is canonical enough, because all maps are
    // ordered.
    let parts = (
        resources,
        &spec.runtime_class_name,
        &spec.priority,
        &spec.topology_spread_constraints,
        &spec.overhead,
        &spec.resource_claims,
        &spec.affinity,
        &spec.resources,
    );
    serde_json::to_string(&parts).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// The topology request of a pod set.
pub fn topology_request(request: &api::PodSetTopologyRequest) -> TopologyRequest {
    let mode = match (&request.required, &request.preferred, request.unconstrained) {
        (Some(level), ..) => Some(TopologyMode::Required(name(level))),
        (None, Some(level), _) => Some(TopologyMode::Preferred(name(level))),
        (None, None, Some(true)) => Some(TopologyMode::Unconstrained),
        _ => None,
    };
    let layers = request.pod_set_slice_required_topology_constraints.iter();
    let mut slices: Vec<SliceConstraint> =
        layers.map(|layer| SliceConstraint { level: name(&layer.topology), size: layer.size }).collect();
    if slices.is_empty() {
        let level = request.pod_set_slice_required_topology.as_deref();
        slices.extend(
            level.map(|level| SliceConstraint { level: name(level), size: request.pod_set_slice_size.unwrap_or(0) }),
        );
    }
    TopologyRequest { mode, slices, group: request.pod_set_group_name.as_deref().map(name) }
}

fn check(state: &api::AdmissionCheckState) -> CheckStatus {
    let updates = &state.pod_set_updates;
    CheckStatus {
        name: name(&state.name),
        state: match state.state {
            api::CheckState::Ready => CheckState::Ready,
            api::CheckState::Retry => CheckState::Retry,
            api::CheckState::Rejected => CheckState::Rejected,
            _ => CheckState::Pending,
        },
        node_selectors: updates
            .iter()
            .filter(|it| !it.node_selector.is_empty())
            .map(|it| (name(&it.name), labels(Some(&it.node_selector))))
            .collect(),
        tolerations: updates
            .iter()
            .filter(|it| !it.tolerations.is_empty())
            .map(|it| (name(&it.name), tolerations(&it.tolerations)))
            .collect(),
    }
}

/// True if the spec names a preemption gate that the status does not report as open (semantics
/// §23).
fn has_closed_gate(object: &api::Workload) -> bool {
    let states = object.status.iter().flat_map(|status| &status.preemption_gates);
    let open: Vec<&str> =
        states.filter(|state| state.position == api::GatePosition::Open).map(|state| state.name.as_str()).collect();
    object.spec.preemption_gates.iter().any(|gate| !open.contains(&gate.name.as_str()))
}

/// The slice that this one replaces; slices of other namespaces are ignored.
fn replaced(text: &str, own: &WorkloadKey) -> Option<WorkloadKey> {
    match text.split_once('/') {
        Some((namespace, _)) if namespace != &*own.namespace => None,
        Some((namespace, old)) => Some(WorkloadKey::new(namespace, old)),
        None => Some(WorkloadKey::new(own.namespace.clone(), text)),
    }
}

fn variant(object: &api::Workload, flavors: &str) -> Variant {
    let owner = object.metadata.owner_references.iter().flatten().find(|owner| owner.kind == "Workload");
    Variant {
        parent: owner.map(|owner| name(&owner.name)),
        allowed_flavors: flavors.split(',').map(|flavor| Name::from(flavor.trim())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_preemption_gate_is_closed_until_the_status_reports_it_open() {
        let gated = |status: Value| {
            let object = json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w"},
                "spec": {"podSets": [], "preemptionGates": [{"name": "a"}, {"name": "b"}]},
                "status": {"preemptionGates": status},
            });
            has_closed_gate(&serde_json::from_value(object).expect("a workload"))
        };
        let state = |name: &str, position: &str| json!({"name": name, "position": position, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        assert!(gated(json!([])));
        assert!(gated(json!([state("a", "Open"), state("b", "Closed")])));
        assert!(gated(json!([state("a", "Open")])));
        assert!(!gated(json!([state("a", "Open"), state("b", "Open")])));
    }

    #[test]
    fn a_topology_request_has_one_mode_and_slices_from_coarse_to_fine() {
        let asked = |request: Value| topology_request(&serde_json::from_value(request).expect("a request"));
        let slice = |level: &str, size: i32| SliceConstraint { level: name(level), size };
        assert_eq!(asked(json!({"required": "rack"})).mode, Some(TopologyMode::Required(name("rack"))));
        assert_eq!(asked(json!({"preferred": "rack"})).mode, Some(TopologyMode::Preferred(name("rack"))));
        assert_eq!(asked(json!({"unconstrained": true})).mode, Some(TopologyMode::Unconstrained));
        let sliced =
            asked(json!({"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 4, "podSetGroupName": "g"}));
        assert_eq!((sliced.mode, sliced.slices, sliced.group), (None, vec![slice("rack", 4)], Some(name("g"))));
        let layers = json!([{"topology": "block", "size": 8}, {"topology": "rack", "size": 4}]);
        let layered = asked(json!({"podsetSliceRequiredTopologyConstraints": layers}));
        assert_eq!(layered.slices, [slice("block", 8), slice("rack", 4)]);
    }

    #[test]
    fn a_deactivated_workload_without_an_owner_holds_no_quota() {
        let holds = |active: bool, owners: Value| {
            let object = json!({"metadata": {"name": "w", "namespace": "ns", "ownerReferences": owners},
                "spec": {"active": active, "podSets": []},
                "status": {"admission": {"clusterQueue": "cq", "podSetAssignments": []},
                    "conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved",
                        "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
            let context =
                Context { resources: &Resources::default(), limit_ranges: &[], runtime_classes: &BTreeMap::default() };
            workload(&serde_json::from_value(object).expect("a workload"), &context).admission.is_some()
        };
        let job = || json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true}]);
        assert!(holds(true, json!([])));
        assert!(!holds(false, json!([])));
        assert!(holds(false, job()), "its pods may still run");
    }

    #[test]
    fn a_workload_with_a_deletion_timestamp_is_being_deleted() {
        let context =
            Context { resources: &Resources::default(), limit_ranges: &[], runtime_classes: &BTreeMap::default() };
        let mut object: api::Workload = serde_json::from_value(json!({
            "metadata": {"name": "w", "namespace": "ns"}, "spec": {"podSets": []},
        }))
        .expect("a workload");
        assert!(!workload(&object, &context).deleting);
        object.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        assert!(workload(&object, &context).deleting);
    }
}
