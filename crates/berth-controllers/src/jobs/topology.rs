//! The topology request in the annotations of a pod template (semantics §14.2).

use std::collections::BTreeMap;

use berth_api::kueue::annotations;
use berth_api::kueue::v1beta2::{PodSetSliceRequiredTopologyConstraint, PodSetTopologyRequest};

use k8s_openapi::api::core::v1::PodTemplateSpec;

use crate::gates::{Gate, Gates};

/// Labels from which a job's pod ranks are derived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranks<'a> {
    /// Label that holds a pod's index.
    pub pod_index_label: Option<&'a str>,
    /// Label that holds the index of a pod's group.
    pub sub_group_index_label: Option<&'a str>,
    /// Number of groups.
    pub sub_group_count: Option<i32>,
}

/// The topology request of a template's pods; `None` while the gate TopologyAwareScheduling is off.
pub fn of_template(
    template: &PodTemplateSpec,
    ranks: Ranks<'_>,
    gates: &Gates,
) -> Result<Option<PodSetTopologyRequest>, String> {
    if !gates.on(Gate::TopologyAwareScheduling) {
        return Ok(None);
    }
    request(template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref()), ranks, gates)
}

/// The topology request in `annotations`; `None` if there are neither topology annotations nor a
/// rank label.
pub fn request(
    annotations: Option<&BTreeMap<String, String>>,
    ranks: Ranks<'_>,
    gates: &Gates,
) -> Result<Option<PodSetTopologyRequest>, String> {
    let get = |key: &str| annotations.and_then(|annotations| annotations.get(key));
    let integer = |key: &str| -> Result<Option<i32>, String> {
        get(key)
            .map(|text| text.parse().map_err(|_| format!("annotation {key}: {text:?} is not an integer")))
            .transpose()
    };
    let mut request = PodSetTopologyRequest {
        required: get(annotations::PODSET_REQUIRED_TOPOLOGY).cloned(),
        preferred: get(annotations::PODSET_PREFERRED_TOPOLOGY).cloned(),
        unconstrained: get(annotations::PODSET_UNCONSTRAINED_TOPOLOGY)
            .map(|text| {
                text.parse().map_err(|_| {
                    format!("annotation {}: {text:?} is not a boolean", annotations::PODSET_UNCONSTRAINED_TOPOLOGY)
                })
            })
            .transpose()?,
        ..PodSetTopologyRequest::default()
    };
    let constraints = match get(annotations::PODSET_SLICE_REQUIRED_TOPOLOGY_CONSTRAINTS)
        .filter(|_| gates.on(Gate::TASMultiLayerTopology))
    {
        Some(text) => {
            let list: Vec<PodSetSliceRequiredTopologyConstraint> =
                serde_json::from_str(text).map_err(|e| format!("failed to parse topology constraints: {e}"))?;
            if list.is_empty() || list.len() > 3 {
                return Err("topology constraints must contain between 1 and 3 entries".to_owned());
            }
            list
        }
        None => Vec::new(),
    };
    if constraints.is_empty() {
        let slice = get(annotations::PODSET_SLICE_REQUIRED_TOPOLOGY);
        if let (Some(topology), Some(size)) = (slice, integer(annotations::PODSET_SLICE_SIZE)?) {
            request.pod_set_slice_required_topology = Some(topology.clone());
            request.pod_set_slice_size = Some(size);
        }
    } else {
        request.pod_set_slice_required_topology_constraints = constraints;
    }
    // A pod set group is placed by its common required or preferred level, so it needs one of them.
    if request.required.is_some() || request.preferred.is_some() {
        request.pod_set_group_name = get(annotations::PODSET_GROUP_NAME).cloned();
    }
    let asks = request != PodSetTopologyRequest::default();
    if !asks && ranks.pod_index_label.is_none() {
        return Ok(None);
    }
    request.pod_index_label = ranks.pod_index_label.map(str::to_owned);
    request.sub_group_index_label = ranks.sub_group_index_label.map(str::to_owned);
    request.sub_group_count = ranks.sub_group_count;
    Ok(Some(request))
}
