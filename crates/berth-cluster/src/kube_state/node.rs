//! Metrics of nodes.

use berth_apimachinery::exposition::{Exposition, Family, FamilyId, Labels};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{amounts, condition, flag, object_labels, time};

/// The families of nodes in one response.
pub(super) struct Families {
    info: FamilyId,
    created: FamilyId,
    labels: FamilyId,
    unschedulable: FamilyId,
    taint: FamilyId,
    capacity: FamilyId,
    allocatable: FamilyId,
    condition: FamilyId,
}

impl Families {
    pub fn new(exposition: &mut Exposition) -> Self {
        let mut gauge = |name, help| exposition.family(&Family::gauge(name, help));
        Self {
            info: gauge("kube_node_info", "Always 1; the labels describe a node"),
            created: gauge("kube_node_created", "Time of a node's creation, in seconds since 1970"),
            labels: gauge("kube_node_labels", "Always 1; the labels of a node"),
            unschedulable: gauge("kube_node_spec_unschedulable", "1 if a node is cordoned"),
            taint: gauge("kube_node_spec_taint", "Always 1; the taints of a node"),
            capacity: gauge("kube_node_status_capacity", "Resources of a node"),
            allocatable: gauge("kube_node_status_allocatable", "Resources of a node that pods may use"),
            condition: gauge("kube_node_status_condition", "1 for the current status of a condition of a node"),
        }
    }

    pub fn write(&self, exposition: &mut Exposition, node: &Node) {
        let name = node.name_any();
        let of = Labels::of(&[("node", &name)]);
        self.info(exposition, node, &of);
        let created = node.metadata.creation_timestamp.as_ref().map(|at| at.0);
        time(exposition, self.created, &of, created);
        let mut labels = of.clone();
        labels.append(&object_labels(node.labels().iter()));
        exposition.sample(self.labels, &labels, &[], 1.0);
        let spec = node.spec.as_ref();
        let cordoned = spec.and_then(|spec| spec.unschedulable) == Some(true);
        exposition.sample(self.unschedulable, &of, &[], flag(cordoned));
        for taint in spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten() {
            let value = taint.value.as_deref().unwrap_or_default();
            let labels = [("key", taint.key.as_str()), ("value", value), ("effect", &taint.effect)];
            exposition.sample(self.taint, &of, &labels, 1.0);
        }
        let Some(status) = &node.status else { return };
        for (family, quantities) in [(self.capacity, &status.capacity), (self.allocatable, &status.allocatable)] {
            for (resource, unit, amount) in quantities.iter().flat_map(amounts) {
                exposition.sample(family, &of, &[("resource", &resource), ("unit", unit)], amount);
            }
        }
        for it in status.conditions.iter().flatten() {
            condition(exposition, self.condition, &of, &[("condition", &it.type_)], &it.status, "status");
        }
    }

    fn info(&self, exposition: &mut Exposition, node: &Node, of: &Labels) {
        let status = node.status.as_ref();
        let info = status.and_then(|status| status.node_info.clone()).unwrap_or_default();
        let spec = node.spec.clone().unwrap_or_default();
        let addresses = status.and_then(|status| status.addresses.as_ref());
        let internal = addresses.into_iter().flatten().find(|it| it.type_ == "InternalIP");
        let labels = [
            ("kernel_version", info.kernel_version.as_str()),
            ("os_image", &info.os_image),
            ("container_runtime_version", &info.container_runtime_version),
            ("kubelet_version", &info.kubelet_version),
            ("kubeproxy_version", &info.kube_proxy_version),
            ("provider_id", spec.provider_id.as_deref().unwrap_or_default()),
            ("pod_cidr", spec.pod_cidr.as_deref().unwrap_or_default()),
            ("system_uuid", &info.system_uuid),
            ("internal_ip", internal.map_or("", |it| it.address.as_str())),
        ];
        exposition.sample(self.info, of, &labels, 1.0);
    }
}
