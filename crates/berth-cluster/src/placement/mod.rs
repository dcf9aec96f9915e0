//! Decides which pod fits on which node. The pod scheduler, the autoscaler and the provisioners
//! share these pure functions.
//!
//! A [`Cluster`] is a snapshot that is updated with each change: nodes with their usage. [`plan`]
//! chooses the node of a pod; the filters return the reasons against a node, in kube-scheduler's
//! words. Nothing here knows a clock, the API, or the calling controller.

mod allocator;
mod capacity;
mod cluster;
mod devices;
mod domains;
mod extended;
mod filters;
mod matching;
mod message;
mod plan;
mod pod;
mod preemption;
mod resources;
mod scoring;
mod volumes;

pub use capacity::{Capacity, can_place, capacity, capacity_of_node, check_places, needs_check};
pub use cluster::{Cluster, NodeState};
pub use devices::{
    DeviceChoices, DeviceNeeds, DeviceStore, allocation, claims_of as device_claims_of, created_claims,
    owner as claim_owner, pod_owner as claim_pod,
};
pub use extended::{EXTENDED_CLAIM, ExtendedClaim, is_extended_claim};
pub use filters::{Unfit, fits};
pub use matching::{
    Labels, matches_label_selector, matches_node_affinity, matches_node_selector, tolerates, untolerated,
};
pub use message::unschedulable_message;
pub use plan::{Packing, Placement, Ranking, place, place_by};
pub use pod::{HostPort, PodInfo, consumed_request, host_ports};
pub use preemption::{Preemption, preempt};
pub use resources::{Resources, amount};
pub use scoring::Scoring;
pub use volumes::{Choice, Storage, VolumeNeeds, is_free};

#[cfg(test)]
mod tests;
