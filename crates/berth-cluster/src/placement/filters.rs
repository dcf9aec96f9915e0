//! Reasons why a pod does not fit on a node, in kube-scheduler's order and words.

use berth_apimachinery::well_known;

use super::matching::{matches_node_affinity, untolerated};
use super::{HostPort, NodeState, PodInfo, Resources};

/// A reason. It is displayed as kube-scheduler prints it after the number of nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    /// The node is cordoned.
    Unschedulable,
    /// The node has a taint that the pod does not tolerate.
    Taint {
        /// Key of the taint.
        key: String,
        /// Value of the taint.
        value: String,
    },
    /// The node does not match the pod's nodeSelector or required node affinity.
    NodeAffinity,
    /// A host port is in use.
    Ports,
    /// Not enough of a resource is free.
    Insufficient(String),
    /// The request exceeds the capacity of the whole node.
    Beyond(String),
    /// The node has its maximum number of pods.
    TooManyPods,
    /// The topology spread would be too uneven.
    Spread,
    /// The node lacks the label of a spread constraint.
    SpreadLabel,
    /// There is no pod that matches the pod affinity.
    PodAffinity,
    /// A pod matches the pod's anti-affinity.
    PodAntiAffinity,
    /// The pod matches the anti-affinity of an existing pod.
    ExistingAntiAffinity,
    /// The pod's claims cannot be used on any node; the string is the reason.
    Claims(String),
    /// A claim is bound to a volume that does not exist.
    VolumeMissing,
    /// The node cannot reach a volume.
    VolumeAffinity,
    /// A volume is in another zone.
    VolumeZone,
    /// There is no volume for a claim on this node, and none can be created.
    NoVolume,
    /// Another pod uses a claim that only one pod may use.
    ClaimInUse,
    /// The node does not have the devices that the pod claims.
    Devices,
    /// The claims of the pod have devices that the node cannot use.
    DevicesElsewhere,
}

impl Unfit {
    /// True if evicting pods of lower priority could help.
    pub fn is_resolvable(&self) -> bool {
        !matches!(
            self,
            Self::Unschedulable
                | Self::Taint { .. }
                | Self::NodeAffinity
                | Self::Beyond(_)
                | Self::SpreadLabel
                | Self::PodAffinity
                | Self::Claims(_)
                | Self::VolumeMissing
                | Self::VolumeAffinity
                | Self::VolumeZone
                | Self::NoVolume
        )
    }
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::Taint { key, value } => write!(f, "node(s) had untolerated taint {{{key}: {value}}}"),
            Self::NodeAffinity => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::Ports => f.write_str("node(s) didn't have free ports for the requested pod ports"),
            Self::Insufficient(resource) | Self::Beyond(resource) => write!(f, "Insufficient {resource}"),
            Self::TooManyPods => f.write_str("Too many pods"),
            Self::Spread => f.write_str("node(s) didn't match pod topology spread constraints"),
            Self::SpreadLabel => {
                f.write_str("node(s) didn't match pod topology spread constraints (missing required label)")
            }
            Self::PodAffinity => f.write_str("node(s) didn't match pod affinity rules"),
            Self::PodAntiAffinity => f.write_str("node(s) didn't match pod anti-affinity rules"),
            Self::ExistingAntiAffinity => f.write_str("node(s) didn't satisfy existing pods anti-affinity rules"),
            Self::Claims(why) => f.write_str(why),
            Self::VolumeMissing => {
                f.write_str("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
            }
            Self::VolumeAffinity => f.write_str("node(s) had volume node affinity conflict"),
            Self::VolumeZone => f.write_str("node(s) had no available volume zone"),
            Self::NoVolume => f.write_str("node(s) didn't find available persistent volumes to bind"),
            Self::ClaimInUse => f.write_str(
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
            ),
            Self::Devices => f.write_str("cannot allocate all claims"),
            Self::DevicesElsewhere => f.write_str("resourceclaim not available on the node"),
        }
    }
}

/// Checks if the pod fits on the node, without rules between pods. `reserved` is the amount for
/// pods nominated for the node. The reasons are those of the first filter that rejects the pod.
pub fn fits(pod: &PodInfo, node: &NodeState, reserved: &Resources) -> Result<(), Vec<Unfit>> {
    let is_blind = pod.tolerations().iter().any(|t| {
        t.operator.as_deref() == Some("Exists")
            && matches!(t.key.as_deref(), Some(well_known::UNSCHEDULABLE) | Some("") | None)
    });
    if node.is_unschedulable() && !is_blind {
        return Err(vec![Unfit::Unschedulable]);
    }
    if let Some(taint) = untolerated(pod.tolerations(), node.taints()) {
        let value = taint.value.clone().unwrap_or_default();
        return Err(vec![Unfit::Taint { key: taint.key.clone(), value }]);
    }
    if !matches_node_affinity(pod, node.name(), node.labels()) {
        return Err(vec![Unfit::NodeAffinity]);
    }
    let is_taken = |port: HostPort<'_>| node.pods.values().any(|pod| pod.host_ports().any(|it| it.conflicts(&port)));
    if pod.host_ports().any(is_taken) {
        return Err(vec![Unfit::Ports]);
    }
    let mut reasons = Vec::new();
    for (resource, wanted) in pod.requests.iter().filter(|(_, wanted)| *wanted > 0) {
        if wanted <= node.free(resource) - reserved.get(resource) || is_by_devices(pod, node, resource) {
            continue;
        }
        reasons.push(if resource == "pods" {
            Unfit::TooManyPods
        } else if wanted > node.allocatable.get(resource) {
            Unfit::Beyond(resource.to_owned())
        } else {
            Unfit::Insufficient(resource.to_owned())
        });
    }
    if !reasons.is_empty() {
        return Err(reasons);
    }
    pod.volumes().on(node.name(), node.labels()).map_err(|reason| vec![reason])?;
    match pod.devices() {
        Some(devices) => devices.on(node).map(drop).map_err(|reason| vec![reason]),
        // Claims that were not looked up cannot be allocated.
        None if pod.names_claims() => Err(vec![Unfit::Devices]),
        None => Ok(()),
    }
}

/// True if the pod gets devices in place of this extended resource, which the node does not have.
pub(super) fn is_by_devices(pod: &PodInfo, node: &NodeState, resource: &str) -> bool {
    node.allocatable.get(resource) == 0 && pod.devices().is_some_and(|devices| devices.covers(resource))
}
