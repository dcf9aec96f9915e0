//! Ray clusters whose pods are simulated.
//!
//! A simulated head pod has no dashboard. Its container IDs start with `sim://`, as its node's
//! `status.nodeInfo.containerRuntimeVersion` does. The operator then derives what a dashboard would
//! report, see [`crate::ray::dashboard::simulated`].

use berth_api::berth::CONTAINER_RUN_DURATION_PREFIX;
use k8s_openapi::api::core::v1::Pod;

/// Scheme of the container IDs of simulated nodes.
const SCHEME: &str = "sim://";

/// What runs a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// No container of the pod has started.
    NotYet,
    /// The pod is simulated.
    Simulated,
    /// The containers of the pod run real programs.
    Real,
}

/// What runs this pod.
pub fn runs(pod: &Pod) -> Runs {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let ids = statuses.into_iter().flatten().filter_map(|status| status.container_id.as_deref());
    match ids.into_iter().find(|id| !id.is_empty()) {
        None => Runs::NotYet,
        Some(id) if id.starts_with(SCHEME) => Runs::Simulated,
        Some(_) => Runs::Real,
    }
}

/// Name of the pod annotation that sets the run time of one simulated container. It overrides the
/// run time of the pod's containers.
pub fn duration_annotation(container: &str) -> String {
    format!("{CONTAINER_RUN_DURATION_PREFIX}{container}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(ids: &[&str], expected: Runs) {
        let statuses: Vec<_> = ids
            .iter()
            .map(|id| json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "containerID": id}))
            .collect();
        let pod: Pod = serde_json::from_value(json!({"status": {"containerStatuses": statuses}})).unwrap();
        assert_eq!(runs(&pod), expected, "{ids:?}");
    }

    #[test]
    fn the_container_id_tells_what_runs_a_pod() {
        check(&[], Runs::NotYet);
        check(&[""], Runs::NotYet);
        check(&["", "sim://00ff"], Runs::Simulated);
        check(&["berth://00ff"], Runs::Real);
        check(&["containerd://00ff"], Runs::Real);
    }
}
