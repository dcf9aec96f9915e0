//! Faults of simulated nodes: what the health checks of a node see, whether it reports, and whether
//! its pods make progress.
//!
//! A user or a scenario writes a node's faults into the annotation [`FAULTS_ANNOTATION`]. Random
//! faults are a field of the NodePool ([`RandomFaults`]); the crate berth-cluster draws them and
//! writes the current ones into [`RANDOM_FAULTS_ANNOTATION`]. Both annotations apply together.

use std::collections::{BTreeMap, BTreeSet};

use crate::JsonSchema;
use serde::{Deserialize, Serialize};

use super::problem::join;
use super::{Duration, Problem};

/// Node annotation: faults of a simulated node, as JSON of [`NodeFaults`].
pub const FAULTS_ANNOTATION: &str = "berth.dev/faults";
/// Node annotation: faults that Berth drew at random, as JSON of [`NodeFaults`].
pub const RANDOM_FAULTS_ANNOTATION: &str = "berth.dev/random-faults";
/// Shortest mean time between two faults of a node. Each fault causes several writes.
const EVERY_MIN_SECONDS: u64 = 600;

/// Faults of a simulated node. GPUs are numbered from 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodeFaults {
    /// Host-to-device bandwidth in GB/s, by GPU.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pciebw: BTreeMap<u32, f64>,
    /// GPUs with a pending or failed row remapping.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub remapped: BTreeSet<u32>,
    /// GPUs that fail a test of DCGM's diagnostics, by name of the test, such as `PCIe`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub dcgm: BTreeMap<String, BTreeSet<u32>>,
    /// Nodes that this node cannot reach.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub ping: BTreeSet<String>,
    /// GPUs that are slowed down for lack of power.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub gpupower: BTreeSet<u32>,
    /// GPUs whose memory is slower than expected.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub gpumem: BTreeSet<u32>,
    /// True if volumes cannot be created and deleted from this node.
    #[serde(skip_serializing_if = "is_false")]
    pub pvc: bool,
    /// Value of the label `autopilot.ibm.com/gpuhealth` that an administrator's own monitor sets at
    /// the start of a random fault, and removes at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpuhealth: Option<String>,
    /// True if the node does not report: it becomes NotReady, and its pods make no progress.
    #[serde(skip_serializing_if = "is_false")]
    pub not_ready: bool,
    /// True if the pods of the node make no progress: they neither start nor end.
    #[serde(skip_serializing_if = "is_false")]
    pub stuck_pods: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl NodeFaults {
    /// The faults in the annotations of a node.
    ///
    /// # Errors
    /// An annotation is not valid JSON of this type; the message names it.
    pub fn of_annotations(annotations: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut faults = Self::default();
        for key in [RANDOM_FAULTS_ANNOTATION, FAULTS_ANNOTATION] {
            if let Some(text) = annotations.get(key).filter(|text| !text.is_empty()) {
                let read = serde_json::from_str(text).map_err(|error| format!("annotation {key}: {error}"))?;
                faults.merge(read);
            }
        }
        Ok(faults)
    }

    /// Adds other faults. Where both have a value, the other's applies.
    pub fn merge(&mut self, other: Self) {
        self.pciebw.extend(other.pciebw);
        self.remapped.extend(other.remapped);
        for (test, gpus) in other.dcgm {
            self.dcgm.entry(test).or_default().extend(gpus);
        }
        self.ping.extend(other.ping);
        self.gpupower.extend(other.gpupower);
        self.gpumem.extend(other.gpumem);
        self.pvc |= other.pvc;
        self.gpuhealth = other.gpuhealth.or(self.gpuhealth.take());
        self.not_ready |= other.not_ready;
        self.stuck_pods |= other.stuck_pods;
    }
}

/// Random faults of the nodes of a pool. The same seed gives the same faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RandomFaults {
    /// Seed. Default: the seed of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// A check of one GPU fails: its bandwidth, row remapping, diagnostics, power or memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<RandomFault>,
    /// The administrator's own monitor labels the node `autopilot.ibm.com/gpuhealth=EVICT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evict: Option<RandomFault>,
    /// The node does not report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<RandomFault>,
    /// The pods of the node make no progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck_pods: Option<RandomFault>,
}

/// A fault that comes back at random: once in every interval of length `every`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RandomFault {
    /// Mean time between two faults of one node, at least 10 minutes.
    pub every: Duration,
    /// Mean time that a fault lasts; at most half of `every`. The time of each fault is drawn
    /// between 0 and twice the mean.
    pub duration: Duration,
}

impl RandomFaults {
    /// Problems of the values; `path` is the path of this object.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let faults = [
            ("gpu", &self.gpu),
            ("evict", &self.evict),
            ("notReady", &self.not_ready),
            ("stuckPods", &self.stuck_pods),
        ];
        let mut problems = Vec::new();
        for (name, fault) in faults.into_iter().filter_map(|(name, fault)| Some((name, fault.as_ref()?))) {
            if fault.every < Duration::from_secs(EVERY_MIN_SECONDS) {
                let message = format!("{} is less than 10 minutes", fault.every);
                problems.push(Problem::new(join(path, &format!("{name}.every")), message));
            }
            if fault.duration.0.saturating_mul(2) > fault.every.0 {
                let message = format!("{} is more than half of every ({})", fault.duration, fault.every);
                problems.push(Problem::new(join(path, &format!("{name}.duration")), message));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_annotations_apply_and_an_unknown_fault_is_rejected() {
        let mut annotations = BTreeMap::from([
            (FAULTS_ANNOTATION.to_owned(), r#"{"pciebw": {"3": 2.1}, "dcgm": {"PCIe": [1]}}"#.to_owned()),
            (RANDOM_FAULTS_ANNOTATION.to_owned(), r#"{"pciebw": {"3": 1, "4": 3}, "notReady": true}"#.to_owned()),
        ]);
        let faults = NodeFaults::of_annotations(&annotations).expect("valid");
        assert_eq!(faults.pciebw, BTreeMap::from([(3, 2.1), (4, 3.0)]));
        assert!(faults.not_ready && !faults.stuck_pods);
        let written = serde_json::to_string(&faults).expect("JSON");
        assert_eq!(written, r#"{"pciebw":{"3":2.1,"4":3.0},"dcgm":{"PCIe":[1]},"notReady":true}"#);
        annotations.insert(FAULTS_ANNOTATION.to_owned(), r#"{"fan": true}"#.to_owned());
        let error = NodeFaults::of_annotations(&annotations).expect_err("unknown");
        assert!(error.starts_with("annotation berth.dev/faults: unknown field `fan`"), "{error}");
    }

    #[test]
    fn random_faults_are_rare_and_shorter_than_their_interval() {
        let faults = RandomFaults {
            gpu: Some(RandomFault { every: Duration::from_secs(60), duration: Duration::from_secs(10) }),
            evict: Some(RandomFault { every: Duration::from_secs(3600), duration: Duration::from_secs(3000) }),
            ..RandomFaults::default()
        };
        let problems: Vec<String> = faults.problems("faults").iter().map(ToString::to_string).collect();
        let expected = [
            "faults.gpu.every: 1m0s is less than 10 minutes",
            "faults.evict.duration: 50m0s is more than half of every (1h0m0s)",
        ];
        assert_eq!(problems, expected);
    }
}
