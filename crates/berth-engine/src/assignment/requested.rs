//! The pod sets that an assignment is requested for.

use std::sync::Arc;

use crate::ids::ResourceId;
use crate::world::record::PodSetInfo;

/// One pod set of an [`AssignmentRequest`](super::AssignmentRequest).
#[derive(Debug, Clone)]
pub(crate) struct RequestedPodSet {
    pub info: Arc<PodSetInfo>,
    pub count: i32,
    /// Total request of all pods, in resource name order.
    pub requests: Arc<[(ResourceId, i64)]>,
}

/// One pod set with a number of pods.
pub(crate) fn requested_pod_set(info: &Arc<PodSetInfo>, count: i32) -> RequestedPodSet {
    let requests = info.requests.iter().map(|(id, per_pod)| (*id, crate::amount::times(*per_pod, count))).collect();
    RequestedPodSet { info: info.clone(), count, requests }
}
