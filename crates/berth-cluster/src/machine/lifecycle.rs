//! The node lifecycle controller's tasks for Nodes of machines: a Node whose Lease is not renewed
//! becomes Unknown, and conditions become taints.
//!
//! Source: Kubernetes 1.35, "Node status" and "Taint Nodes by Condition".

use std::collections::BTreeMap;

use berth_apimachinery::well_known::{NOT_READY, UNREACHABLE};
use berth_runtime::{Action, Cache, Clock, Error, Manager, ObjectKey, Reconciler, is_not_found, stamp};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::controller::LEASE_SECONDS;
use super::pressure::{TYPES, condition, is_same, keep_transitions};
use super::{LEASES, PROCESS, RUNTIME_LABEL};

/// A Node whose Lease was not renewed for this long is Unknown.
const GRACE: SignedDuration = SignedDuration::from_secs(LEASE_SECONDS as i64);
/// Taints of shortages, by condition.
const PRESSURES: [(&str, &str); 3] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
];

/// Adds the controller. It does nothing while no machine is registered.
pub fn install(manager: &mut Manager) {
    let nodes = manager.nodes();
    let reconciler = Lifecycle {
        nodes: nodes.clone(),
        client: manager.client(),
        clock: manager.clock(),
        renewals: Mutex::default(),
    };
    let of_machine = |node: &Node| node.labels().get(RUNTIME_LABEL).is_some_and(|runtime| runtime == PROCESS);
    manager
        .controller("machine-lifecycle")
        .watch(&nodes, move |delta| {
            Some(delta.latest()).filter(|node| of_machine(node)).map(|node| ObjectKey::of(node.as_ref()))
        })
        .run(reconciler);
}

/// A renewal, and the time at which this process saw it. Other machines' clocks may be wrong.
type Renewal = (Option<Timestamp>, Timestamp);

struct Lifecycle {
    nodes: Cache<Node>,
    client: Client,
    clock: Clock,
    renewals: Mutex<BTreeMap<String, Renewal>>,
}

impl Reconciler for Lifecycle {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(node) = self.nodes.get(&key) else {
            self.renewals.lock().remove(&key.name);
            return Ok(Action::Wait);
        };
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), LEASES);
        let lease = berth_runtime::write::get_opt(&leases, &key.name).await?;
        let renewed = lease.and_then(|lease| lease.spec?.renew_time).map(|time| time.0);
        let now = self.clock.now();
        let seen = self.see(&key.name, renewed, now);
        let silent = now.duration_since(seen);
        let mut node = node.as_ref().clone();
        if silent >= GRACE {
            let known = node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
            if let Some(conditions) = unknown(&known, now) {
                let patch = json!({
                    "metadata": { "resourceVersion": node.resource_version() }, "status": { "conditions": conditions },
                });
                let api: Api<Node> = Api::all(self.client.clone());
                let patch = Patch::Merge(&patch);
                let written =
                    berth_runtime::write::patch_status(&api, &key.name, &PatchParams::default(), &patch).await;
                match written {
                    Ok(written) => {
                        self.nodes.observe(written.clone());
                        node = written;
                    }
                    Err(error) if is_not_found(&error) => return Ok(Action::Wait),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        if let Some(taints) = taints(&node, now) {
            let patch = json!({
                "metadata": { "resourceVersion": node.resource_version() }, "spec": { "taints": taints },
            });
            let api: Api<Node> = Api::all(self.client.clone());
            match berth_runtime::write::patch(&api, &key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(written) => self.nodes.observe(written),
                Err(error) if is_not_found(&error) => return Ok(Action::Wait),
                Err(error) => return Err(error.into()),
            }
        }
        let left = if silent >= GRACE { GRACE } else { GRACE - silent };
        Ok(Action::After(left.try_into().unwrap_or_default()))
    }
}

impl Lifecycle {
    /// Time at which the last renewal of a Lease was seen. The first read counts as a renewal, so
    /// that a process that starts gives its own Node time to renew.
    fn see(&self, name: &str, renewed: Option<Timestamp>, now: Timestamp) -> Timestamp {
        let mut renewals = self.renewals.lock();
        let entry = renewals.entry(name.to_owned()).or_insert((renewed, now));
        if entry.0 != renewed {
            *entry = (renewed, now);
        }
        entry.1
    }
}

/// The conditions of a Node that does not report any more. `None` if they are unchanged.
pub(crate) fn unknown(known: &[NodeCondition], now: Timestamp) -> Option<Vec<NodeCondition>> {
    let message = "Kubelet stopped posting node status.";
    let mut conditions: Vec<NodeCondition> =
        TYPES.iter().map(|type_| condition(type_, "Unknown", "NodeStatusUnknown", message, now)).collect();
    if conditions.iter().all(|condition| known.iter().any(|other| is_same(condition, other))) {
        return None;
    }
    keep_transitions(&mut conditions, known);
    for condition in &mut conditions {
        // The heartbeat time stays that of the machine's last report.
        let last = known.iter().find(|other| other.type_ == condition.type_);
        condition.last_heartbeat_time = last.and_then(|last| last.last_heartbeat_time.clone());
    }
    conditions.extend(known.iter().filter(|other| !TYPES.contains(&other.type_.as_str())).cloned());
    Some(conditions)
}

/// The taints that follow from the conditions of a Node, and the taints of users. `None` if they
/// are unchanged.
fn taints(node: &Node, now: Timestamp) -> Option<Vec<Taint>> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let status = |type_: &str| {
        conditions.iter().find(|condition| condition.type_ == type_).map_or("Unknown", |it| it.status.as_str())
    };
    let mut wanted: Vec<(&str, &str)> = match status("Ready") {
        "True" => Vec::new(),
        "False" => vec![(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")],
        _ => vec![(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")],
    };
    wanted.extend(PRESSURES.iter().filter(|(type_, _)| status(type_) == "True").map(|(_, key)| (*key, "NoSchedule")));
    let is_ours =
        |key: &str| key == UNREACHABLE || key == NOT_READY || PRESSURES.iter().any(|(_, pressure)| *pressure == key);
    let known = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let is_wanted = |taint: &Taint| wanted.contains(&(taint.key.as_str(), taint.effect.as_str()));
    let mut taints: Vec<Taint> =
        known.iter().filter(|taint| !is_ours(&taint.key) || is_wanted(taint)).cloned().collect();
    for (key, effect) in &wanted {
        if !taints.iter().any(|taint| taint.key == *key && taint.effect == *effect) {
            // Evictions count the tolerated seconds from this time.
            let time_added = (*effect == "NoExecute").then(|| stamp(now));
            taints.push(Taint { key: (*key).into(), value: None, effect: (*effect).into(), time_added });
        }
    }
    (taints != known).then_some(taints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).expect("a time")
    }

    fn node(conditions: &[(&str, &str)], taints: &[(&str, &str)]) -> Node {
        let conditions: Vec<_> = conditions.iter().map(|(t, s)| json!({ "type": t, "status": s })).collect();
        let taints: Vec<_> = taints.iter().map(|(k, e)| json!({ "key": k, "effect": e })).collect();
        serde_json::from_value(json!({
            "metadata": { "name": "n" }, "spec": { "taints": taints }, "status": { "conditions": conditions },
        }))
        .expect("a node")
    }

    #[track_caller]
    fn check(conditions: &[(&str, &str)], known: &[(&str, &str)], expected: &[(&str, &str)]) {
        let node = node(conditions, known);
        let found = taints(&node, at(0)).unwrap_or_else(|| node.spec.and_then(|spec| spec.taints).unwrap_or_default());
        let found: Vec<_> = found.iter().map(|taint| (taint.key.as_str(), taint.effect.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn conditions_become_taints_and_taints_of_users_stay() {
        let mine = ("mine", "NoSchedule");
        check(&[("Ready", "True")], &[mine], &[mine]);
        let unreachable = [mine, (UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")];
        check(&[("Ready", "Unknown")], &[mine], &unreachable);
        check(&[("Ready", "Unknown")], &unreachable, &unreachable);
        check(&[("Ready", "True")], &unreachable, &[mine]);
        check(&[("Ready", "False")], &[], &[(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]);
        let full = [("Ready", "True"), ("DiskPressure", "True"), ("MemoryPressure", "Unknown")];
        check(&full, &[], &[("node.kubernetes.io/disk-pressure", "NoSchedule")]);
    }

    #[test]
    fn a_node_becomes_unknown_once() {
        let known = node(&[("Ready", "True"), ("Other", "True")], &[]).status.and_then(|s| s.conditions).expect("some");
        let conditions = unknown(&known, at(5)).expect("a change");
        let shown: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
        let u = "Unknown";
        assert_eq!(
            shown,
            [("MemoryPressure", u), ("DiskPressure", u), ("PIDPressure", u), ("Ready", u), ("Other", "True")]
        );
        assert_eq!(conditions[3].last_transition_time, Some(stamp(at(5))));
        assert_eq!(unknown(&conditions, at(50)), None);
    }
}
