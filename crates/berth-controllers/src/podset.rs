//! Additions of admission to a pod template: how they are merged and removed again.
//!
//! A [`PodSetInfo`] combines an admission (the flavors' labels and tolerations) with the updates of
//! its admission checks. It is merged into the job's template when the job starts. When the job
//! stops, the template is restored to what the Workload recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{PodSet, PodSetAssignment, PodSetUpdate, ResourceFlavor};
use berth_api::kueue::{annotations, constants};
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodTemplateSpec, Toleration};
use serde::{Deserialize, Serialize};

use crate::gates::{Gate, Gates};

/// Annotations by which a pod template requests a topology.
const TOPOLOGY_REQUESTS: [&str; 3] = [
    annotations::PODSET_REQUIRED_TOPOLOGY,
    annotations::PODSET_PREFERRED_TOPOLOGY,
    annotations::PODSET_UNCONSTRAINED_TOPOLOGY,
];

/// Changes to the pods of one pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetInfo {
    /// Pod set name.
    pub name: String,
    /// Number of pods admitted.
    pub count: i32,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Node selector.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Scheduling gates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scheduling_gates: Vec<PodSchedulingGate>,
}

/// Why changes cannot be made. Except for a missing flavor these errors are permanent: the workload
/// cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodSetError {
    /// Two sources require different values for one key.
    #[error(
        "invalid admission check PodSetUpdate: conflict for {what}: conflict for key={key}, value1={old}, value2={new}"
    )]
    Conflict {
        /// `labels`, `annotations` or `nodeSelector`.
        what: &'static str,
        /// The key.
        key: String,
        /// The existing value.
        old: String,
        /// The new value.
        new: String,
    },
    /// The admission does not have one entry per pod set.
    #[error("invalid podset infos: expecting {expected} podset, got {got}")]
    Count {
        /// Number of the job's pod sets.
        expected: usize,
        /// Number of entries.
        got: usize,
    },
    /// A flavor of the admission does not exist.
    #[error("resourceflavors.kueue.x-k8s.io \"{0}\" not found")]
    FlavorNotFound(String),
    /// The update of an admission check conflicts.
    #[error("in admission check {check:?}: {source}")]
    InCheck {
        /// Name of the check.
        check: String,
        /// The conflict.
        #[source]
        source: Box<PodSetError>,
    },
}

impl PodSetError {
    /// True if a retry cannot succeed.
    pub fn is_permanent(&self) -> bool {
        !matches!(self, PodSetError::FlavorNotFound(_))
    }
}

impl PodSetInfo {
    /// The additions of an assignment: labels and tolerations of its flavors, in the order of the
    /// resources' names, and the scheduling gate for a topology assignment. If the pod set requests
    /// no topology itself, also the annotation that it may be placed on any nodes.
    pub fn from_assignment(
        assignment: &PodSetAssignment,
        pod_set: Option<&PodSet>,
        flavor: impl Fn(&str) -> Option<Arc<ResourceFlavor>>,
        gates: &Gates,
    ) -> Result<Self, PodSetError> {
        let mut info = PodSetInfo {
            name: assignment.name.clone(),
            count: assignment.count.or(pod_set.map(|set| set.count)).unwrap_or(0),
            ..PodSetInfo::default()
        };
        let mut seen: Vec<&String> = Vec::new();
        for name in assignment.flavors.values() {
            if seen.contains(&name) {
                continue;
            }
            seen.push(name);
            let flavor = flavor(name).ok_or_else(|| PodSetError::FlavorNotFound(name.clone()))?;
            for (key, value) in &flavor.spec.node_labels {
                info.node_selector.entry(key.clone()).or_insert_with(|| value.clone());
            }
            info.tolerations.extend(flavor.spec.tolerations.iter().cloned());
        }
        if gates.on(Gate::TopologyAwareScheduling) && assignment.topology_assignment.is_some() {
            let request = pod_set.and_then(|set| set.topology_request.as_ref());
            let asks = request.is_some_and(|request| {
                request.required.is_some() || request.preferred.is_some() || request.unconstrained.is_some()
            });
            if !asks {
                info.annotations.insert(annotations::PODSET_UNCONSTRAINED_TOPOLOGY.to_owned(), "true".to_owned());
            }
            info.scheduling_gates.push(PodSchedulingGate { name: constants::TOPOLOGY_GATE.to_owned() });
        }
        Ok(info)
    }

    /// The additions of an admission check.
    pub fn from_update(update: &PodSetUpdate) -> Self {
        PodSetInfo {
            name: update.name.clone(),
            count: 0,
            annotations: update.annotations.clone(),
            labels: update.labels.clone(),
            node_selector: update.node_selector.clone(),
            tolerations: update.tolerations.clone(),
            scheduling_gates: Vec::new(),
        }
    }

    /// The state of a pod set that a Workload recorded; templates are restored to it.
    pub fn from_pod_set(pod_set: &PodSet) -> Self {
        let mut info = Self::from_template(&pod_set.template);
        info.name = pod_set.name.clone();
        info.count = pod_set.count;
        info
    }

    fn from_template(template: &PodTemplateSpec) -> Self {
        let metadata = template.metadata.clone().unwrap_or_default();
        let spec = template.spec.clone().unwrap_or_default();
        PodSetInfo {
            name: String::new(),
            count: 0,
            annotations: metadata.annotations.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            node_selector: spec.node_selector.unwrap_or_default(),
            tolerations: spec.tolerations.unwrap_or_default(),
            scheduling_gates: spec.scheduling_gates.unwrap_or_default(),
        }
    }

    /// Adds `other`. Different values of one key are a conflict; new tolerations and gates are
    /// appended.
    pub fn merge(&mut self, other: &PodSetInfo, gates: &Gates) -> Result<(), PodSetError> {
        self.merge_keeping(other, gates, false)
    }

    fn merge_keeping(&mut self, other: &PodSetInfo, gates: &Gates, into_template: bool) -> Result<(), PodSetError> {
        // The template of an elastic job still names the slice that is being replaced.
        let elastic = into_template
            && gates.on(Gate::ElasticJobsViaWorkloadSlices)
            && other.annotations.contains_key(annotations::WORKLOAD_SLICE_NAME);
        let may_replace =
            |key: &str| elastic && (key == annotations::WORKLOAD_SLICE_NAME || key == annotations::WORKLOAD);
        // All conflicts are detected before anything changes.
        conflict("annotations", &self.annotations, &other.annotations, may_replace)?;
        conflict("labels", &self.labels, &other.labels, |_| false)?;
        conflict("nodeSelector", &self.node_selector, &other.node_selector, |_| false)?;
        self.annotations.extend(other.annotations.clone());
        self.labels.extend(other.labels.clone());
        self.node_selector.extend(other.node_selector.clone());
        for toleration in &other.tolerations {
            if !self.tolerations.iter().any(|known| same_toleration(known, toleration)) {
                self.tolerations.push(toleration.clone());
            }
        }
        for gate in &other.scheduling_gates {
            if !self.scheduling_gates.contains(gate) {
                self.scheduling_gates.push(gate.clone());
            }
        }
        Ok(())
    }
}

fn conflict(
    what: &'static str,
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
    may_replace: impl Fn(&str) -> bool,
) -> Result<(), PodSetError> {
    for (key, value) in new {
        if let Some(known) = old.get(key)
            && known != value
            && !may_replace(key)
        {
            return Err(PodSetError::Conflict { what, key: key.clone(), old: known.clone(), new: value.clone() });
        }
    }
    Ok(())
}

/// Compares tolerations; a missing operator means Equal, and empty fields count as missing.
fn same_toleration(a: &Toleration, b: &Toleration) -> bool {
    fn normal(toleration: &Toleration) -> Toleration {
        let mut toleration = toleration.clone();
        let none_if_empty = |text: Option<String>| text.filter(|text| !text.is_empty());
        toleration.operator = none_if_empty(toleration.operator).or_else(|| Some("Equal".to_owned()));
        toleration.value = none_if_empty(toleration.value);
        toleration.key = none_if_empty(toleration.key);
        toleration.effect = none_if_empty(toleration.effect);
        toleration
    }
    normal(a) == normal(b)
}

/// Merges an info into a pod template.
pub fn merge(template: &mut PodTemplateSpec, info: &PodSetInfo, gates: &Gates) -> Result<(), PodSetError> {
    let mut state = PodSetInfo::from_template(template);
    let mut info = info.clone();
    if TOPOLOGY_REQUESTS.iter().any(|key| state.annotations.contains_key(*key)) {
        // The template's own topology request is kept: two would be invalid.
        info.annotations.remove(annotations::PODSET_UNCONSTRAINED_TOPOLOGY);
    }
    state.merge_keeping(&info, gates, true)?;
    write(template, &state);
    Ok(())
}

/// Restores a pod template to `info`. Returns true if that changed anything.
pub fn restore(template: &mut PodTemplateSpec, info: &PodSetInfo) -> bool {
    let mut state = PodSetInfo::from_template(template);
    state.name = info.name.clone();
    state.count = info.count;
    if state == *info {
        return false;
    }
    write(template, info);
    true
}

/// True if the pod has this scheduling gate.
pub fn is_gated(pod: &Pod, gate: &str) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    gates.into_iter().flatten().any(|it| it.name == gate)
}

/// Removes a scheduling gate from a pod.
pub fn remove_gate(pod: &mut Pod, gate: &str) {
    let Some(spec) = &mut pod.spec else { return };
    let gates = spec.scheduling_gates.take().unwrap_or_default();
    let rest: Vec<_> = gates.into_iter().filter(|it| it.name != gate).collect();
    spec.scheduling_gates = (!rest.is_empty()).then_some(rest);
}

fn write(template: &mut PodTemplateSpec, info: &PodSetInfo) {
    fn map(map: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
        (!map.is_empty()).then(|| map.clone())
    }
    let metadata = template.metadata.get_or_insert_default();
    metadata.annotations = map(&info.annotations);
    metadata.labels = map(&info.labels);
    let spec = template.spec.get_or_insert_default();
    spec.node_selector = map(&info.node_selector);
    spec.tolerations = (!info.tolerations.is_empty()).then(|| info.tolerations.clone());
    spec.scheduling_gates = (!info.scheduling_gates.is_empty()).then(|| info.scheduling_gates.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pod_set_without_a_topology_request_gets_one() {
        let assignment: PodSetAssignment = serde_json::from_value(serde_json::json!({"name": "main",
            "topologyAssignment": {"levels": ["rack"], "slices": []}}))
        .expect("an assignment");
        let is_added = |request: serde_json::Value| {
            let set = serde_json::json!({"name": "main", "count": 1, "template": {}, "topologyRequest": request});
            let set: PodSet = serde_json::from_value(set).expect("a pod set");
            let info = PodSetInfo::from_assignment(&assignment, Some(&set), |_| None, &Gates::default());
            let info = info.expect("no flavor is needed");
            assert_eq!(info.scheduling_gates.len(), 1);
            info.annotations.contains_key(annotations::PODSET_UNCONSTRAINED_TOPOLOGY)
        };
        assert!(is_added(serde_json::json!(null)));
        for request in [serde_json::json!({"required": "rack"}), serde_json::json!({"preferred": "rack"})] {
            assert!(!is_added(request.clone()), "AppWrappers would create a job with both: {request}");
        }
    }

    #[test]
    fn a_template_keeps_its_own_topology_request() {
        let unconstrained = annotations::PODSET_UNCONSTRAINED_TOPOLOGY.to_owned();
        let info =
            PodSetInfo { annotations: [(unconstrained.clone(), "true".to_owned())].into(), ..PodSetInfo::default() };
        for (wish, kept) in [(Some(annotations::PODSET_REQUIRED_TOPOLOGY), false), (None, true)] {
            let mut template = PodTemplateSpec::default();
            let annotations = wish.map(|key| [(key.to_owned(), "rack".to_owned())].into());
            template.metadata.get_or_insert_default().annotations = annotations;
            merge(&mut template, &info, &Gates::default()).expect("no conflict");
            let annotations = template.metadata.and_then(|metadata| metadata.annotations).unwrap_or_default();
            assert_eq!(annotations.contains_key(&unconstrained), kept, "{annotations:?}");
        }
    }
}
