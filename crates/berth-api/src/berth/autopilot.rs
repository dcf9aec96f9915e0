//! Configuration of Autopilot, the health agent of nodes with GPUs.
//!
//! `env`, `repeat`, `invasive` and `PCIeBW` have the names and defaults of Autopilot's Helm chart.
//! The crate berth-operators runs the agents.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::problem::join;
use super::{Duration, Problem};

/// Names of the checks.
pub const CHECKS: [&str; 7] = ["dcgm", "gpumem", "gpupower", "pciebw", "ping", "pvc", "remapped"];
/// Default checks of the periodic loop.
const PERIODIC_DEFAULT: [&str; 5] = ["pciebw", "remapped", "dcgm", "ping", "gpupower"];
/// Tests of DCGM whose failure labels a node `EVICT` by default.
const FATAL_DEFAULT: [&str; 4] = ["PCIe", "NVLink", "ECC", "GPU Memory"];

/// Autopilot: which nodes it checks, how often, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutopilotConfiguration {
    /// True if the agents run.
    pub enabled: bool,
    /// Labels of the nodes that have an agent. Default: `nvidia.com/gpu.present: "true"`.
    pub node_selector: BTreeMap<String, String>,
    /// Namespace of the Jobs and PersistentVolumeClaims that checks create.
    pub namespace: String,
    /// Interval of the periodic checks.
    pub repeat: Duration,
    /// Interval between attempts to start an invasive check; 0 disables invasive checks.
    pub invasive: Duration,
    /// Lowest bandwidth of a healthy GPU in GB/s.
    #[serde(rename = "PCIeBW")]
    pub pcie_bw: f64,
    /// Number of GPUs of the invasive Job. Default: all GPUs of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invasive_gpus: Option<u32>,
    /// Run time of the invasive Job on a simulated node.
    pub invasive_duration: Duration,
    /// Environment of the agent: `PERIODIC_CHECKS`, `PVC_TEST_STORAGE_CLASS`, `DCGM_FATAL_ERRORS`
    /// and `INVASIVE_JOB_TTLSEC`, as in the values of Autopilot's chart.
    pub env: Vec<AutopilotVariable>,
}

/// A variable of the agent's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutopilotVariable {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

impl Default for AutopilotConfiguration {
    /// The defaults of Autopilot's chart.
    fn default() -> Self {
        Self {
            enabled: true,
            node_selector: BTreeMap::from([("nvidia.com/gpu.present".to_owned(), "true".to_owned())]),
            namespace: "autopilot".to_owned(),
            repeat: Duration::from_secs(3600),
            invasive: Duration::from_secs(4 * 3600),
            pcie_bw: 4.0,
            invasive_gpus: None,
            invasive_duration: Duration::from_secs(600),
            env: Vec::new(),
        }
    }
}

impl AutopilotConfiguration {
    fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().rev().find(|variable| variable.name == name).map(|variable| variable.value.as_str())
    }

    /// Names of the checks of the periodic loop, in order.
    pub fn periodic_checks(&self) -> Vec<&str> {
        match self.variable("PERIODIC_CHECKS") {
            Some(list) => list.split(',').map(str::trim).filter(|name| !name.is_empty()).collect(),
            None => PERIODIC_DEFAULT.to_vec(),
        }
    }

    /// Storage class of the claim that the check `pvc` creates. `None`: the default class.
    pub fn storage_class(&self) -> Option<&str> {
        self.variable("PVC_TEST_STORAGE_CLASS").filter(|class| !class.is_empty())
    }

    /// Names of the tests of DCGM whose failure labels a node `EVICT`, in the spelling of
    /// [`test_name`].
    pub fn fatal_tests(&self) -> BTreeSet<String> {
        match self.variable("DCGM_FATAL_ERRORS") {
            // A list of JSON or Python, or names separated by commas.
            Some(list) => {
                let list = list.trim().trim_start_matches('[').trim_end_matches(']');
                let names = list.split(',').map(|name| name.trim().trim_matches(['"', '\'']));
                names.filter(|name| !name.is_empty()).map(test_name).collect()
            }
            None => FATAL_DEFAULT.into_iter().map(test_name).collect(),
        }
    }

    /// Seconds after which a finished invasive Job is deleted.
    pub fn invasive_job_ttl(&self) -> i32 {
        self.variable("INVASIVE_JOB_TTLSEC").and_then(|value| value.trim().parse().ok()).unwrap_or(30)
    }

    /// Problems of the values; `path` is the path of this object in the configuration.
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut add = |field: &str, message: String| problems.push(Problem::new(join(path, field), message));
        if self.repeat < Duration::from_secs(1) {
            add("repeat", format!("{} is less than 1 second", self.repeat));
        }
        if self.invasive != Duration::default() && self.invasive < Duration::from_secs(1) {
            add("invasive", format!("{} is neither 0 nor at least 1 second", self.invasive));
        }
        if !(self.pcie_bw.is_finite() && self.pcie_bw >= 0.0) {
            add("PCIeBW", format!("{} is not a bandwidth in GB/s, 0 or more", self.pcie_bw));
        }
        if self.namespace.is_empty() {
            add("namespace", "required: the namespace of the Jobs of checks".to_owned());
        }
        for name in self.periodic_checks().into_iter().filter(|name| !CHECKS.contains(name)) {
            add("env[PERIODIC_CHECKS]", format!("{name:?} is not a check: expected {}", CHECKS.join(", ")));
        }
        let ttl = self.variable("INVASIVE_JOB_TTLSEC").filter(|value| value.trim().parse::<u16>().is_err());
        if let Some(value) = ttl {
            add("env[INVASIVE_JOB_TTLSEC]", format!("{value:?} is not a number of seconds: expected 0 to 65535"));
        }
        problems
    }
}

/// Name of a DCGM test as labels and annotations spell it: lower case, with underscores for spaces.
pub fn test_name(test: &str) -> String {
    test.trim().to_lowercase().replace(' ', "_")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_values_of_the_chart_are_read() {
        let value = json!({
            "repeat": "30m", "invasive": "0s", "PCIeBW": 8,
            "env": [
                {"name": "PERIODIC_CHECKS", "value": "pciebw,remapped,dcgm,ping,gpupower,pvc"},
                {"name": "PVC_TEST_STORAGE_CLASS", "value": "nfs-client-pokprod"},
                {"name": "DCGM_FATAL_ERRORS", "value": "['PCIe', 'Memory Bandwidth']"},
            ],
        });
        let read: AutopilotConfiguration = serde_json::from_value(value).expect("valid");
        assert_eq!(read.problems("autopilot"), []);
        assert_eq!(read.periodic_checks(), ["pciebw", "remapped", "dcgm", "ping", "gpupower", "pvc"]);
        assert_eq!(read.storage_class(), Some("nfs-client-pokprod"));
        assert_eq!(read.fatal_tests().into_iter().collect::<Vec<_>>(), ["memory_bandwidth", "pcie"]);
        let usual = AutopilotConfiguration::default();
        assert_eq!(usual.fatal_tests().into_iter().collect::<Vec<_>>(), ["ecc", "gpu_memory", "nvlink", "pcie"]);
        assert_eq!((usual.invasive_job_ttl(), usual.problems("autopilot")), (30, vec![]));
    }

    #[test]
    fn bad_values_are_reported_with_their_fields() {
        let value = json!({"repeat": "0s", "PCIeBW": -1, "namespace": "", "env": [
            {"name": "PERIODIC_CHECKS", "value": "pciebw,fan"}, {"name": "INVASIVE_JOB_TTLSEC", "value": "soon"}]});
        let read: AutopilotConfiguration = serde_json::from_value(value).expect("readable");
        let problems: Vec<String> = read.problems("autopilot").iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "autopilot.repeat: 0s is less than 1 second",
                "autopilot.PCIeBW: -1 is not a bandwidth in GB/s, 0 or more",
                "autopilot.namespace: required: the namespace of the Jobs of checks",
                "autopilot.env[PERIODIC_CHECKS]: \"fan\" is not a check: expected dcgm, gpumem, gpupower, pciebw, \
                 ping, pvc, remapped",
                "autopilot.env[INVASIVE_JOB_TTLSEC]: \"soon\" is not a number of seconds: expected 0 to 65535",
            ]
        );
    }
}
