//! Detects failed nodes of a workload and decides on the consequences (semantics §15).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_api::kueue::reasons::eviction;
use berth_api::kueue::v1beta2::{CheckState, ResourceFlavor, UnhealthyNode, Workload};
use berth_api::pod::node_of;
use berth_apimachinery::well_known::{HOSTNAME, UNSCHEDULABLE};
use berth_engine::Name;
use berth_engine::model::{Taint, TaintEffect, Toleration};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::{has_ended, is_gated, pinned_to};
use crate::gates::{Gate, Gates};
use crate::translate::admission::decode;
use crate::translate::placement::{taints, tolerations};
use crate::workload::status::{self, Eviction};

/// How long a node may be NotReady before it counts as failed, if the decision depends on time.
const NOT_READY_FOR: Duration = Duration::from_secs(30);
/// Condition type of pods that are terminated because their node has failed.
const TERMINATED_BY_KUEUE: &str = "TerminatedByKueue";
/// Reason of that condition.
const UNSCHEDULABLE_ON_NODE: &str = "UnschedulableOnAssignedNode";

/// The inputs of an assessment other than the workload and its pods.
pub struct View<'a> {
    /// Nodes by host name.
    pub node: &'a dyn Fn(&str) -> Option<Arc<Node>>,
    /// Flavors by name.
    pub flavor: &'a dyn Fn(&str) -> Option<Arc<ResourceFlavor>>,
    /// Feature gates.
    pub gates: &'a Gates,
    /// Current time.
    pub now: Timestamp,
}

/// The writes after an assessment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The workload with its new status; `None` if it is unchanged.
    pub workload: Option<Workload>,
    /// Message of the eviction, if the workload is evicted.
    pub evicted: Option<String>,
    /// Pods that can never start on their assigned node, each before and after it is marked Failed;
    /// replacements take their place.
    pub ended: Vec<(Arc<Pod>, Pod)>,
    /// Delay until the next assessment if no object changes.
    pub reassess_after: Option<Duration>,
}

/// Host names in the assignment of an admitted workload; empty if its domains are not hosts, or
/// before admission.
pub fn assigned_hosts(workload: &Workload) -> BTreeSet<String> {
    if !status::is_admitted(workload) {
        return BTreeSet::new();
    }
    reserved_hosts(workload)
}

/// Host names in the assignment of a workload, admitted or not; empty if its domains are not hosts.
fn reserved_hosts(workload: &Workload) -> BTreeSet<String> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let topologies = assignments.filter_map(|assignment| assignment.topology_assignment.as_ref());
    let of_hosts = topologies.filter(|topology| topology.levels.last().is_some_and(|level| level == HOSTNAME));
    of_hosts
        .flat_map(|topology| decode(topology).domains)
        .filter_map(|domain| domain.values.last().map(ToString::to_string))
        .collect()
}

/// True if [`assess`] reads the pods of the workload: it waits, or has nodes by its topology
/// assignment. Pods of other workloads, of which a large job has thousands, have no influence.
pub fn reads_pods(workload: &Workload) -> bool {
    let is_over = status::is_evicted(workload) || status::is_finished(workload);
    !is_over && (!status::is_admitted(workload) || !assigned_hosts(workload).is_empty())
}

/// Assesses every node of a workload.
///
/// One failed node is recorded, and the scheduler replaces it. A second failed node evicts the
/// workload. A recovered node is removed from the record.
pub fn assess(workload: &Workload, pods: &[Arc<Pod>], view: &View<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    if status::is_evicted(workload) || status::is_finished(workload) {
        return outcome;
    }
    if !status::is_admitted(workload) {
        // A pod that was released before the workload lost its quota waits for a node that is no
        // longer reserved.
        let reserved = reserved_hosts(workload);
        outcome.ended = lost(pods, |host| !reserved.contains(host), view.now);
        return outcome;
    }
    let mut failed: Vec<String> = Vec::new();
    let assigned = assigned_hosts(workload);
    for host in &assigned {
        match node_health(workload, host, pods, view) {
            Health::Failed => failed.push(host.clone()),
            Health::Good => {}
            Health::CheckAgain(after) => {
                outcome.reassess_after = Some(outcome.reassess_after.map_or(after, |known| known.min(after)))
            }
        }
    }
    let known: Vec<&str> =
        workload.status.iter().flat_map(|status| &status.unhealthy_nodes).map(|node| node.name.as_str()).collect();
    if failed.len() > 1 {
        let message = format!(
            "Workload eviction triggered due to multiple TAS assigned node failures, including: {}",
            failed.join(", ")
        );
        let mut after = workload.clone();
        let eviction = Eviction { reason: eviction::NODE_FAILURES, cause: "", message: &message };
        status::evict(&mut after, &eviction, view.gates, view.now);
        outcome.workload = Some(after);
        outcome.evicted = Some(message);
        return outcome;
    }
    if known != failed {
        let mut after = workload.clone();
        status::status_mut(&mut after).unhealthy_nodes =
            failed.iter().map(|name| UnhealthyNode { name: name.clone() }).collect();
        outcome.workload = Some(after);
    }
    // A pod that was released just before its node was replaced waits for a node that is no longer
    // assigned to its workload.
    let is_lost = |host: &String| failed.contains(host) || (!assigned.is_empty() && !assigned.contains(host));
    outcome.ended = lost(pods, is_lost, view.now);
    outcome
}

/// The pods that wait for a node they cannot get, each before and after it is marked Failed.
fn lost(pods: &[Arc<Pod>], is_lost: impl Fn(&String) -> bool, now: Timestamp) -> Vec<(Arc<Pod>, Pod)> {
    let stuck = pods.iter().filter(|pod| is_stuck(pod)).filter_map(|pod| {
        let host = pinned_to(pod, &[HOSTNAME])?.concat();
        is_lost(&host).then(|| (pod.clone(), ended(pod, &host, now)))
    });
    stuck.collect()
}

enum Health {
    Good,
    Failed,
    CheckAgain(Duration),
}

/// The health of a node for a workload (§15.1).
fn node_health(workload: &Workload, host: &str, pods: &[Arc<Pod>], view: &View<'_>) -> Health {
    let Some(node) = (view.node)(host) else { return Health::Failed };
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let Some(ready) = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready") else {
        return Health::Failed;
    };
    let progressing = pods.iter().any(|pod| is_progressing(pod, &node.name_any()));
    if ready.status != "True" {
        let by_pods = view.gates.on(Gate::TASReplaceNodeOnPodTermination);
        if by_pods && !progressing {
            return Health::Failed;
        }
        if by_pods && !view.gates.on(Gate::TASReplaceNodeDueToNotReadyOverFixedTime) {
            return Health::Good;
        }
        let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0);
        let passed = Duration::try_from(view.now.duration_since(since)).unwrap_or_default();
        return match NOT_READY_FOR.checked_sub(passed).filter(|left| !left.is_zero()) {
            Some(left) => Health::CheckAgain(left),
            None => Health::Failed,
        };
    }
    if !view.gates.on(Gate::TASReplaceNodeOnNodeTaints) {
        return Health::Good;
    }
    match repulsion(workload, host, &node, view) {
        Repulsion::None => Health::Good,
        // If the gate is on, pods that run there may continue until they end. If it is off, a taint
        // that repels the pods at once fails the node, even while pods run there.
        Repulsion::Now if !view.gates.on(Gate::TASReplaceNodeOnPodTermination) => Health::Failed,
        Repulsion::Now | Repulsion::Later => {
            if progressing {
                Health::Good
            } else {
                Health::Failed
            }
        }
    }
}

/// The effect of a node's taints on the pods assigned to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Repulsion {
    /// All taints are tolerated.
    None,
    /// A taint is tolerated for a limited time only.
    Later,
    /// A taint is not tolerated.
    Now,
}

/// The strongest repulsion among a node's taints for the pods of a workload assigned to it.
fn repulsion(workload: &Workload, host: &str, node: &Node, view: &View<'_>) -> Repulsion {
    let spec = node.spec.as_ref();
    let mut found = taints(spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default());
    if spec.and_then(|spec| spec.unschedulable).unwrap_or(false) {
        let (key, value) = (Name::from(UNSCHEDULABLE), Name::from(""));
        found.push(Taint { key, value, effect: TaintEffect::NoSchedule });
    }
    found.retain(|taint| taint.effect != TaintEffect::PreferNoSchedule);
    if found.is_empty() {
        return Repulsion::None;
    }
    let Some(status) = &workload.status else { return Repulsion::None };
    let assignments = status.admission.iter().flat_map(|admission| &admission.pod_set_assignments);
    let here = assignments.filter(|assignment| {
        let topology = assignment.topology_assignment.as_ref().map(decode);
        topology.is_some_and(|it| it.domains.iter().any(|domain| domain.values.last().is_some_and(|it| **it == *host)))
    });
    let of_sets = here.map(|assignment| {
        let template = workload.spec.pod_sets.iter().find(|set| set.name == assignment.name).map(|set| &set.template);
        let own = template.and_then(|template| template.spec.as_ref()?.tolerations.clone()).unwrap_or_default();
        let checks = status.admission_checks.iter().filter(|check| check.state == CheckState::Ready);
        let updates = checks.flat_map(|check| &check.pod_set_updates).filter(|update| update.name == assignment.name);
        let flavors = assignment.flavors.values().filter_map(|name| (view.flavor)(name));
        let all: Vec<_> = own
            .into_iter()
            .chain(updates.flat_map(|update| update.tolerations.clone()))
            .chain(flavors.flat_map(|flavor| flavor.spec.tolerations.clone()))
            .collect();
        let for_good: Vec<_> = all.iter().filter(|it| it.toleration_seconds.is_none()).cloned().collect();
        let (at_all, for_good): (Vec<Toleration>, Vec<Toleration>) = (tolerations(&all), tolerations(&for_good));
        let lacks = |list: &[Toleration]| found.iter().any(|taint| !list.iter().any(|it| it.tolerates(taint)));
        match (lacks(&at_all), lacks(&for_good)) {
            (true, _) => Repulsion::Now,
            (false, true) => Repulsion::Later,
            (false, false) => Repulsion::None,
        }
    });
    of_sets.max().unwrap_or(Repulsion::None)
}

/// True if the pod is bound to this node and has not ended.
fn is_progressing(pod: &Pod, node: &str) -> bool {
    let bound = node_of(pod) == Some(node);
    bound && pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

/// True if the pod was released to its node and is not bound yet.
fn is_stuck(pod: &Pod) -> bool {
    let bound = node_of(pod).is_some();
    !bound && !is_gated(pod) && pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
}

fn ended(pod: &Pod, host: &str, now: Timestamp) -> Pod {
    let mut pod = pod.clone();
    let status = pod.status.get_or_insert_default();
    status.phase = Some("Failed".to_owned());
    status.conditions.get_or_insert_with(Vec::new).push(PodCondition {
        type_: TERMINATED_BY_KUEUE.to_owned(),
        status: "True".to_owned(),
        reason: Some(UNSCHEDULABLE_ON_NODE.to_owned()),
        message: Some(format!("Pod cannot be scheduled on its assigned node {host}, which has failed")),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    });
    pod
}

/// Message of the event about a terminated pod.
pub fn ended_message(pod: &Pod) -> String {
    let host = pinned_to(pod, &[HOSTNAME]).map(|pinned| pinned.concat()).unwrap_or_default();
    format!("Pod {} was terminated because its assigned node {host} has failed", pod.name_any())
}

/// The fields of a node that affect its health; changes to other fields need no assessment.
pub fn facts(node: &Node) -> (Option<String>, bool, Vec<BTreeMap<String, String>>) {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|it| it.type_ == "Ready").map(|it| it.status.clone());
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten().map(|taint| {
        let value = taint.value.clone().unwrap_or_default();
        [("key", taint.key.clone()), ("value", value), ("effect", taint.effect.clone())]
            .map(|(key, value)| (key.to_owned(), value))
            .into()
    });
    (ready, spec.and_then(|spec| spec.unschedulable).unwrap_or(false), taints.collect())
}
