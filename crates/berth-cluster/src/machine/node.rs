//! The Node of a machine, and the changes that an existing Node needs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use berth_api::berth::NodePool;
use berth_apimachinery::well_known;
use berth_pod_runtime::{MachineFacts, Margin};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Map, Value, json};

use super::{PROCESS, RUNTIME_LABEL};
use crate::placement::amount;
use crate::pools::{POOL_LABEL, daemon_endpoints};

/// Maximum number of pods of a node, the kubelet's default.
const PODS: i64 = 110;
/// Instance type of machines without a product name.
const INSTANCE_TYPE: &str = "custom";
/// Annotation with the device resources that the Node was registered with, separated by commas.
const DEVICES_ANNOTATION: &str = "berth.dev/devices";
/// Prefixes of labels that describe devices. Labels of missing devices are removed.
const DEVICE_LABELS: [&str; 3] = ["nvidia.com/gpu.", "nvidia.com/cuda.", "amd.com/gpu."];

/// The inputs for the Node of a machine.
pub(super) struct Registration<'a> {
    pub(super) name: &'a str,
    pub(super) facts: &'a MachineFacts,
    pub(super) margin: Margin,
    /// Number of healthy devices by resource.
    pub(super) devices: BTreeMap<String, usize>,
    /// The pool that is this machine.
    pub(super) pool: Option<&'a NodePool>,
    pub(super) runtime_version: &'a str,
    pub(super) kubelet_version: &'a str,
}

impl Registration<'_> {
    /// The Node to create. Its taints are set once, as by a kubelet; later they belong to the
    /// users.
    pub(super) fn node(&self) -> Node {
        let taints: Vec<Taint> =
            self.pool.map(|pool| pool.spec.taints.as_slice()).unwrap_or_default().iter().map(taint).collect();
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.to_owned()),
                labels: Some(self.labels()),
                annotations: Some(BTreeMap::from([(DEVICES_ANNOTATION.to_owned(), self.device_list())])),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                provider_id: Some(format!("berth://{}", self.name)),
                taints: Some(taints).filter(|taints| !taints.is_empty()),
                ..NodeSpec::default()
            }),
            status: Some(self.status()),
        }
    }

    /// A merge patch of the labels and annotations of an existing Node, which keeps all others.
    /// `None` if there is no change.
    pub(super) fn metadata_patch(&self, node: &Node) -> Option<Value> {
        let wanted = self.labels();
        let known = node.labels();
        let mut labels = Map::new();
        for (key, value) in &wanted {
            if known.get(key) != Some(value) {
                labels.insert(key.clone(), json!(value));
            }
        }
        let is_stale = |key: &str| {
            key == POOL_LABEL && self.pool.is_none() || DEVICE_LABELS.iter().any(|prefix| key.starts_with(prefix))
        };
        for key in known.keys().filter(|key| is_stale(key) && !wanted.contains_key(*key)) {
            labels.insert(key.clone(), Value::Null);
        }
        let list = self.device_list();
        let has_list = node.annotations().get(DEVICES_ANNOTATION) == Some(&list);
        if labels.is_empty() && has_list {
            return None;
        }
        Some(json!({ "metadata": { "labels": labels, "annotations": { DEVICES_ANNOTATION: list } } }))
    }

    /// The status without conditions, as a merge patch of an existing Node's status. Resources of
    /// other owners are kept.
    pub(super) fn status_patch(&self, node: &Node) -> Value {
        let mut status = serde_json::to_value(self.status()).unwrap_or_default();
        let former = node.annotations().get(DEVICES_ANNOTATION).map(String::as_str).unwrap_or_default();
        let lost = former.split(',').filter(|name| !name.is_empty() && !self.devices.contains_key(*name));
        for name in lost {
            for field in ["capacity", "allocatable"] {
                status[field][name] = Value::Null;
            }
        }
        status
    }

    /// True if capacity, allocatable and addresses of a Node have their correct values.
    pub(super) fn is_reported(&self, node: &Node) -> bool {
        let Some(status) = &node.status else { return false };
        let has_all = |wanted: &BTreeMap<String, Quantity>, known: Option<&BTreeMap<String, Quantity>>| {
            // The API server writes quantities in their canonical form.
            let same = |name: &str, a: &Quantity, b: &Quantity| amount(name, a) == amount(name, b);
            known.is_some_and(|known| {
                wanted.iter().all(|(name, quantity)| known.get(name).is_some_and(|other| same(name, quantity, other)))
            })
        };
        has_all(&self.capacity(), status.capacity.as_ref())
            && has_all(&self.allocatable(), status.allocatable.as_ref())
            && status.addresses.as_deref() == Some(&self.addresses())
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let facts = self.facts;
        let instance_type = facts.instance_type.as_deref().unwrap_or(INSTANCE_TYPE);
        let mut labels: BTreeMap<String, String> = [
            (well_known::HOSTNAME, self.name),
            (well_known::ARCH, &facts.architecture),
            (well_known::OS, "linux"),
            (well_known::ARCH_BETA, &facts.architecture),
            (well_known::OS_BETA, "linux"),
            (well_known::INSTANCE_TYPE, instance_type),
            (well_known::INSTANCE_TYPE_BETA, instance_type),
            (RUNTIME_LABEL, PROCESS),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
        labels.extend(facts.labels.clone());
        if let Some(pool) = self.pool {
            labels.insert(POOL_LABEL.to_owned(), pool.name_any());
            if let Some(zone) = pool.spec.zones.first() {
                labels.insert(well_known::ZONE.to_owned(), zone.clone());
            }
            labels.extend(pool.spec.labels.clone());
        }
        // The kubelet of another runtime must not manage this Node.
        labels.insert(RUNTIME_LABEL.to_owned(), PROCESS.to_owned());
        labels
    }

    fn device_list(&self) -> String {
        self.devices.keys().map(String::as_str).collect::<Vec<_>>().join(",")
    }

    fn capacity(&self) -> BTreeMap<String, Quantity> {
        let facts = self.facts;
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut amounts = BTreeMap::from([
            ("cpu".to_owned(), Quantity(facts.cpus.to_string())),
            ("memory".to_owned(), kibi(signed(facts.memory_bytes))),
            ("ephemeral-storage".to_owned(), kibi(signed(facts.disk_bytes))),
            ("pods".to_owned(), Quantity(PODS.to_string())),
        ]);
        let devices = self.devices.iter().map(|(name, count)| (name.clone(), Quantity(count.to_string())));
        amounts.extend(devices);
        // Clients compute with the difference, which is never negative on other nodes.
        for (name, stated) in self.stated() {
            if amounts.get(name).is_none_or(|known| amount(name, known) < amount(name, stated)) {
                amounts.insert(name.clone(), stated.clone());
            }
        }
        amounts
    }

    /// The allocatable amounts that the pool states. The amounts of devices are not among them,
    /// because a pool cannot add a GPU.
    fn stated(&self) -> impl Iterator<Item = (&String, &Quantity)> {
        let stated = self.pool.into_iter().flat_map(|pool| &pool.spec.allocatable);
        stated.filter(|(name, _)| !self.devices.contains_key(*name))
    }

    /// Capacity without the machine's margin and the reserve of its pool, unless the pool states
    /// amounts.
    fn allocatable(&self) -> BTreeMap<String, Quantity> {
        let spec = self.pool.map(|pool| &pool.spec);
        let reserved =
            |name: &str| spec.and_then(|spec| spec.reserve.get(name)).map_or(0, |amount_of| amount(name, amount_of));
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let left = |whole: i64, margin: u64, name: &str| {
            whole.saturating_sub(signed(margin)).saturating_sub(reserved(name)).max(0)
        };
        let mut amounts = self.capacity();
        let facts = self.facts;
        let cpu = left(signed(facts.cpus).saturating_mul(1000), 0, "cpu");
        amounts
            .insert("cpu".into(), Quantity(if cpu % 1000 == 0 { (cpu / 1000).to_string() } else { format!("{cpu}m") }));
        amounts.insert("memory".into(), kibi(left(signed(facts.memory_bytes), self.margin.memory_bytes, "memory")));
        let disk = left(signed(facts.disk_bytes), self.margin.disk_bytes, "ephemeral-storage");
        amounts.insert("ephemeral-storage".into(), kibi(disk));
        amounts.extend(self.stated().map(|(name, quantity)| (name.clone(), quantity.clone())));
        amounts
    }

    fn addresses(&self) -> Vec<NodeAddress> {
        let address = |type_: &str, address: String| NodeAddress { type_: type_.into(), address };
        let mut addresses: Vec<NodeAddress> =
            self.facts.addresses.iter().map(|ip: &IpAddr| address("InternalIP", ip.to_string())).collect();
        addresses.push(address("Hostname", self.name.to_owned()));
        addresses
    }

    fn status(&self) -> NodeStatus {
        let facts = self.facts;
        NodeStatus {
            capacity: Some(self.capacity()),
            allocatable: Some(self.allocatable()),
            addresses: Some(self.addresses()),
            daemon_endpoints: Some(daemon_endpoints()),
            node_info: Some(NodeSystemInfo {
                architecture: facts.architecture.clone(),
                boot_id: facts.boot_id.clone(),
                container_runtime_version: self.runtime_version.to_owned(),
                kernel_version: facts.kernel_version.clone(),
                kube_proxy_version: self.kubelet_version.to_owned(),
                kubelet_version: self.kubelet_version.to_owned(),
                machine_id: facts.machine_id.clone(),
                operating_system: "linux".into(),
                os_image: facts.os_image.clone(),
                system_uuid: facts.system_uuid.clone(),
                ..NodeSystemInfo::default()
            }),
            ..NodeStatus::default()
        }
    }
}

fn taint(taint: &berth_api::berth::NodeTaint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: taint.effect.as_str().into(),
        time_added: None,
    }
}

fn kibi(bytes: i64) -> Quantity {
    Quantity(format!("{}Ki", bytes / 1024))
}

#[cfg(test)]
mod tests {
    use berth_api::berth::NodePoolSpec;

    use super::*;

    fn facts() -> MachineFacts {
        MachineFacts {
            name: "laptop".into(),
            cpus: 8,
            memory_bytes: 16 << 30,
            disk_bytes: 100 << 30,
            architecture: "amd64".into(),
            addresses: vec![[192, 0, 2, 7].into()],
            labels: BTreeMap::from([("nvidia.com/gpu.product".to_owned(), "L4".to_owned())]),
            ..MachineFacts::default()
        }
    }

    fn pool(spec: Value) -> NodePool {
        let spec: NodePoolSpec = serde_json::from_value(spec).expect("a spec");
        assert_eq!(spec.problems("spec"), []);
        NodePool::new("machine", spec)
    }

    fn registration<'a>(facts: &'a MachineFacts, pool: Option<&'a NodePool>) -> Registration<'a> {
        Registration {
            name: "laptop",
            facts,
            margin: Margin { memory_bytes: 100 << 20, disk_bytes: 10 << 30 },
            devices: BTreeMap::from([("nvidia.com/gpu".to_owned(), 2)]),
            pool,
            runtime_version: "berth://1",
            kubelet_version: "v1.35.2",
        }
    }

    fn shown(amounts: Option<&BTreeMap<String, Quantity>>) -> Vec<String> {
        amounts.into_iter().flatten().map(|(name, quantity)| format!("{name}={}", quantity.0)).collect()
    }

    #[test]
    fn allocatable_is_capacity_without_margin_and_reserve() {
        let facts = facts();
        let pool = pool(json!({
            "runtime": "process",
            "reserve": { "cpu": "1500m", "memory": "1Gi" },
            "allocatable": { "pods": "20", "nvidia.com/gpu": "9" },
            "taints": [{ "key": "team", "value": "a", "effect": "NoSchedule" }],
            "labels": { "rack": "r1", "berth.dev/runtime": "other" },
        }));
        let node = registration(&facts, Some(&pool)).node();
        let status = node.status.clone().expect("a status");
        assert_eq!(
            shown(status.capacity.as_ref()),
            ["cpu=8", "ephemeral-storage=104857600Ki", "memory=16777216Ki", "nvidia.com/gpu=2", "pods=110"]
        );
        assert_eq!(
            shown(status.allocatable.as_ref()),
            ["cpu=6500m", "ephemeral-storage=94371840Ki", "memory=15626240Ki", "nvidia.com/gpu=2", "pods=20"]
        );
        let endpoints = serde_json::to_value(&status.daemon_endpoints).expect("JSON");
        assert_eq!(endpoints, json!({ "kubeletEndpoint": { "Port": 10250 } }));
        let labels = node.labels();
        let label = |key: &str| labels.get(key).map(String::as_str);
        assert_eq!(
            (label("rack"), label(POOL_LABEL), label(RUNTIME_LABEL)),
            (Some("r1"), Some("machine"), Some("process"))
        );
        assert_eq!((label("kubernetes.io/hostname"), label("nvidia.com/gpu.product")), (Some("laptop"), Some("L4")));
        assert_eq!(node.spec.and_then(|spec| spec.taints).map(|taints| taints[0].key.clone()), Some("team".into()));
        // A pool may offer more than the machine has, and the node then has it.
        let more = self::pool(json!({ "runtime": "process", "allocatable": { "cpu": "32", "pods": "20" } }));
        let status = registration(&facts, Some(&more)).node().status.expect("a status");
        for amounts in [status.capacity.as_ref(), status.allocatable.as_ref()] {
            assert_eq!(shown(amounts)[0], "cpu=32");
        }
        // With a reserve above the capacity, zero is left.
        let pool = self::pool(json!({ "runtime": "process", "reserve": { "cpu": "9" } }));
        let node = registration(&facts, Some(&pool)).node();
        assert_eq!(shown(node.status.and_then(|status| status.allocatable).as_ref())[0], "cpu=0");
    }

    #[test]
    fn labels_of_users_stay_and_labels_of_lost_devices_go() {
        let facts = facts();
        let mut node = registration(&facts, None).node();
        assert_eq!(registration(&facts, None).metadata_patch(&node), None);
        assert!(registration(&facts, None).is_reported(&node));
        node.labels_mut().insert("mine".into(), "1".into());
        node.labels_mut().insert("nvidia.com/gpu.family".into(), "hopper".into());
        node.labels_mut().insert("kubernetes.io/os".into(), "plan9".into());
        let patch = registration(&facts, None).metadata_patch(&node).expect("a patch");
        let expected = json!({ "nvidia.com/gpu.family": null, "kubernetes.io/os": "linux" });
        assert_eq!(patch["metadata"]["labels"], expected);
    }

    #[test]
    fn resources_of_lost_devices_go_and_those_of_others_stay() {
        let facts = facts();
        let mut node = registration(&facts, None).node();
        let capacity = node.status.as_mut().and_then(|status| status.capacity.as_mut()).expect("capacity");
        capacity.insert("example.com/dongle".into(), Quantity("1".into()));
        let without = Registration { devices: BTreeMap::new(), ..registration(&facts, None) };
        let patch = without.status_patch(&node);
        assert_eq!(patch["capacity"].get("nvidia.com/gpu"), Some(&Value::Null));
        assert_eq!(patch["allocatable"].get("nvidia.com/gpu"), Some(&Value::Null));
        assert_eq!(patch["capacity"].get("example.com/dongle"), None);
        // A device that is lost while the resource stays changes the amount.
        let one =
            Registration { devices: BTreeMap::from([("nvidia.com/gpu".to_owned(), 1)]), ..registration(&facts, None) };
        assert!(!one.is_reported(&node));
    }
}
