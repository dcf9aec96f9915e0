//! The scheduler's state without an API: changes in, decisions out, which are applied at once.

mod devices;
mod extended;
mod groups;
mod pod_groups;
mod random;
mod size;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::ClusterConfiguration;
use berth_api::scheduling::PodGroup;
use berth_runtime::ObjectKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::{Decision, Profile, Results, State};

const START: &str = "2026-01-01T00:00:00Z";

/// A cluster whose decisions are applied at once.
struct World {
    state: State,
    now: Timestamp,
    pods: BTreeMap<String, Arc<Pod>>,
    nodes: BTreeMap<String, Arc<Node>>,
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    groups: BTreeMap<String, Arc<PodGroup>>,
    /// Claims of devices.
    claims: BTreeMap<String, Arc<ResourceClaim>>,
    /// Messages of events, by pod.
    events: BTreeMap<String, String>,
    /// Pods that were bound, in order.
    bound: Vec<String>,
    /// True if evicted pods keep their node while they stop.
    stops_slowly: bool,
}

impl World {
    fn new(scheduler: Value) -> Self {
        let configuration = ClusterConfiguration::from_value(json!({ "scheduler": scheduler })).unwrap();
        Self {
            state: State::new(Profile::all(&configuration)),
            now: START.parse().unwrap(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            config_maps: BTreeMap::new(),
            groups: BTreeMap::new(),
            claims: BTreeMap::new(),
            events: BTreeMap::new(),
            bound: Vec::new(),
            stops_slowly: false,
        }
    }

    /// Nodes with this many CPUs each.
    fn with_nodes(scheduler: Value, cpus: &[(&str, i64)]) -> Self {
        let mut world = Self::new(scheduler);
        for (name, cpu) in cpus {
            world.node(name, *cpu);
        }
        world
    }

    fn node(&mut self, name: &str, cpu: i64) {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } }, "spec": {},
            "status": { "allocatable": { "cpu": cpu.to_string(), "memory": "64Gi", "pods": "110" } },
        }))
        .unwrap();
        let node = Arc::new(node);
        let old = self.nodes.insert(name.to_owned(), node.clone());
        self.state.node_changed(old.as_ref(), Some(&node));
    }

    fn drop_node(&mut self, name: &str) {
        let old = self.nodes.remove(name);
        self.state.node_changed(old.as_ref(), None);
    }

    fn group(&mut self, name: &str, spec: Value) {
        let group: PodGroup = serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "ns", "creationTimestamp": self.now.to_string() }, "spec": spec,
        }))
        .unwrap();
        let group = Arc::new(group);
        self.groups.insert(name.to_owned(), group.clone());
        self.state.pod_group_changed(&ObjectKey::namespaced("ns", name), Some(&group));
    }

    fn config_map(&mut self, namespace: &str, name: &str, label: &str, data: Value) {
        let map: ConfigMap = serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": namespace, "labels": { label: "" }, "creationTimestamp": START },
            "data": data,
        }))
        .unwrap();
        self.store(Arc::new(map));
    }

    fn store(&mut self, map: Arc<ConfigMap>) {
        let old = self.config_maps.insert(map.metadata.name.clone().unwrap(), map.clone());
        self.state.config_map_changed(old.as_ref(), Some(&map));
    }

    /// A Sakkara group with a ConfigMap of its name.
    fn sakkara(&mut self, name: &str, size: usize, priority: i32, constraints: Value) {
        self.config_map(
            "ns",
            name,
            "sakkara.group",
            json!({
                "name": name, "size": size.to_string(), "priority": priority.to_string(),
                "constraints": constraints.to_string(),
            }),
        );
    }

    fn two_racks(&mut self) {
        let tree = json!({
            "rack-0": { "node-0": {}, "node-1": {}, "node-2": {} },
            "rack-1": { "node-3": {}, "node-4": {}, "node-5": {} },
        });
        self.config_map(
            "sakkara-scheduler",
            "topology",
            "sakkara.topology",
            json!({
                "name": "t", "level-names": json!(["rack", "node"]).to_string(), "tree": tree.to_string(),
            }),
        );
    }

    fn pod(&mut self, name: &str, scheduler: &str, label: Option<(&str, &str)>, cpu: i64, more: Value) {
        let mut labels = BTreeMap::new();
        labels.extend(label);
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "ns", "uid": format!("uid-{name}-{}", self.bound.len()),
                "labels": labels, "creationTimestamp": self.now.to_string() },
            "spec": { "schedulerName": scheduler,
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu.to_string() } } }] },
        });
        pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.set(serde_json::from_value(pod).unwrap());
    }

    /// Pods of a PodGroup.
    fn members(&mut self, group: &str, count: usize, cpu: i64) {
        for number in 0..count {
            let label = ("scheduling.x-k8s.io/pod-group", group);
            self.pod(&format!("{group}-{number}"), "scheduler-plugins-scheduler", Some(label), cpu, json!({}));
        }
    }

    /// Pods of a Sakkara group.
    fn sakkara_members(&mut self, group: &str, count: usize, cpu: i64) {
        for number in 0..count {
            let label = ("sakkara.group.name", group);
            self.pod(&format!("{group}-{number}"), "sakkara-scheduler", Some(label), cpu, json!({}));
        }
    }

    fn set(&mut self, pod: Pod) {
        let pod = Arc::new(pod);
        let old = self.pods.insert(pod.metadata.name.clone().unwrap(), pod.clone());
        self.state.pod_changed(old.as_ref(), Some(&pod));
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut pod = serde_json::to_value(self.pods[name].as_ref()).unwrap();
        change(&mut pod);
        self.set(serde_json::from_value(pod).unwrap());
    }

    fn evict(&mut self, name: &str) {
        if !self.stops_slowly {
            return self.delete(name);
        }
        let now = self.now.to_string();
        self.change(name, |pod| pod["metadata"]["deletionTimestamp"] = json!(now));
    }

    fn delete(&mut self, name: &str) {
        let old = self.pods.remove(name);
        self.state.pod_changed(old.as_ref(), None);
    }

    /// Decides until nothing is left to decide now.
    fn settle(&mut self) {
        for _ in 0..100 {
            let decisions = self.state.decide(self.now);
            self.apply(decisions);
            if !self.state.has_active() {
                return;
            }
        }
        panic!("the decisions never settle");
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        self.settle();
    }

    fn apply(&mut self, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Bind { pod, node } => {
                    self.make_claim(&pod);
                    self.allocate_claims(&pod);
                    self.bound.push(pod.key.name.clone());
                    self.change(&pod.key.name, |pod| pod["spec"]["nodeName"] = json!(node));
                }
                Decision::Discard { claim, .. } => self.delete_claim(&claim.name),
                Decision::Release { claim, .. } => self.release(&claim.name),
                Decision::Prepare { .. } => panic!("no pod of these tests has claims"),
                Decision::Wait { pod, message, nominated, victims } => {
                    for victim in victims {
                        self.evict(&victim.key.name);
                    }
                    self.change(&pod.key.name, |pod| {
                        pod["status"] = json!({ "nominatedNodeName": nominated, "conditions": [
                            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message },
                        ] });
                    });
                }
                Decision::Hold { pod, message } | Decision::NoScheduler { pod, message } => {
                    self.events.insert(pod.key.name.clone(), message);
                }
                Decision::Gang { results, members } => {
                    if let Some(results) = &results {
                        self.write(results, results.completes);
                    }
                    self.apply(members);
                }
            }
        }
    }

    fn write(&mut self, results: &Results, completes: Option<Timestamp>) {
        for (pod, labels) in &results.labels {
            self.change(&pod.key.name, |pod| {
                pod["metadata"]["labels"]
                    .as_object_mut()
                    .unwrap()
                    .extend(labels.iter().map(|(key, value)| (key.clone(), json!(value))));
            });
        }
        let mut map = results.config_map.as_ref().clone();
        let data = map.data.get_or_insert_default();
        for (key, value) in &results.data {
            match value {
                Some(value) => data.insert(key.clone(), value.clone()),
                None => data.remove(key),
            };
        }
        if completes.is_some() {
            data.insert("status".into(), "Bound".into());
        }
        self.store(Arc::new(map));
    }

    fn node_of(&self, pod: &str) -> Option<&str> {
        self.pods.get(pod)?.spec.as_ref()?.node_name.as_deref()
    }

    /// Nodes of a gang's pods, in the order of the pods; `-` for a pod without a node.
    fn nodes_of(&self, group: &str, count: usize) -> String {
        let nodes: Vec<&str> =
            (0..count).map(|number| self.node_of(&format!("{group}-{number}")).unwrap_or("-")).collect();
        nodes.join(" ")
    }

    fn message(&self, pod: &str) -> String {
        let conditions = self.pods[pod].status.as_ref().and_then(|status| status.conditions.clone());
        conditions.into_iter().flatten().find_map(|condition| condition.message).unwrap_or_default()
    }

    fn data(&self, map: &str, key: &str) -> Option<&str> {
        self.config_maps[map].data.as_ref()?.get(key).map(String::as_str)
    }
}
