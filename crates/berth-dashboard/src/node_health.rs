//! The health of a node as its health agents show it: the verdict of Autopilot, the result of
//! DCGM's diagnostics, and conditions that report a problem.

use std::fmt;

use berth_api::berth::{DCGM_LEVEL_3_LABEL, DCGM_LEVEL_3_OUTPUT_ANNOTATION, GPU_HEALTH_LABEL};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;

/// Conditions that the kubelet reports. The state of the node shows them.
const OF_KUBELET: [&str; 5] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];

/// The health of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The verdict of the agent, or the condition with a problem; empty if nothing is known.
    pub verdict: String,
    /// How bad it is.
    pub grade: Grade,
    /// What is wrong; empty if nothing is.
    pub detail: String,
}

/// How bad a verdict is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Nothing is known.
    #[default]
    Unknown,
    /// All checks passed.
    Good,
    /// A check failed or runs; pods may still use the node.
    Warning,
    /// The node is not fit for pods.
    Bad,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.as_str() {
            "" => f.write_str(&self.verdict),
            detail => write!(f, "{}: {detail}", self.verdict),
        }
    }
}

/// The health of a node.
pub fn of(node: &Node) -> Health {
    let verdict = node.labels().get(GPU_HEALTH_LABEL).map_or("", String::as_str);
    let agent = match verdict {
        "" => Grade::Unknown,
        "PASS" | "OK" => Grade::Good,
        "WARN" | "TESTING" => Grade::Warning,
        _ => Grade::Bad,
    };
    let condition = problems(node).next();
    match condition {
        // A condition such as that of an XID error stays while the agent sees nothing.
        Some(condition) if agent < Grade::Warning => Health {
            verdict: condition.type_.clone(),
            grade: Grade::Bad,
            detail: condition.message.clone().or_else(|| condition.reason.clone()).unwrap_or_default(),
        },
        _ => {
            let detail = if agent > Grade::Good { diagnosis(node) } else { String::new() };
            Health { verdict: verdict.to_owned(), grade: agent, detail }
        }
    }
}

/// Conditions of other agents that report a problem: those with status True, and those whose name
/// says that all is well with status False.
fn problems(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.filter(|condition| {
        let is_well_if_true = ["Ready", "Healthy"].iter().any(|it| condition.type_.ends_with(it));
        let bad = if is_well_if_true { "False" } else { "True" };
        !OF_KUBELET.contains(&condition.type_.as_str()) && condition.status == bad
    })
}

/// The failed tests of DCGM's diagnostics: `pcie.0.3,ecc.1` are the tests with their GPUs.
fn diagnosis(node: &Node) -> String {
    let failed = node.labels().get(DCGM_LEVEL_3_LABEL).is_some_and(|result| result.starts_with("ERR"));
    let output = node.annotations().get(DCGM_LEVEL_3_OUTPUT_ANNOTATION).filter(|_| failed);
    let test = |text: &str| match text.split_once('.') {
        Some((test, gpus)) => format!("{test} of GPU {}", gpus.replace('.', ", ")),
        None => text.to_owned(),
    };
    let tests: Vec<String> = output.iter().flat_map(|it| it.split(',')).filter(|it| !it.is_empty()).map(test).collect();
    if tests.is_empty() { String::new() } else { format!("DCGM: {}", tests.join("; ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn health(labels: Value, output: &str, conditions: Value) -> Health {
        let node = json!({"metadata": {"name": "n", "labels": labels,
                "annotations": {DCGM_LEVEL_3_OUTPUT_ANNOTATION: output}},
            "status": {"conditions": conditions}});
        of(&serde_json::from_value(node).expect("a node"))
    }

    #[test]
    fn the_verdict_of_the_agent_has_the_failed_tests_of_dcgm() {
        let evicted = json!({GPU_HEALTH_LABEL: "EVICT", DCGM_LEVEL_3_LABEL: "ERR_2026-01-01_00.00.00UTC"});
        let found = health(evicted, "pcie.0.3,ecc.1", json!([]));
        assert_eq!(found.to_string(), "EVICT: DCGM: pcie of GPU 0, 3; ecc of GPU 1");
        assert_eq!(found.grade, Grade::Bad);
        let passed = json!({GPU_HEALTH_LABEL: "PASS", DCGM_LEVEL_3_LABEL: "ERR_2026-01-01_00.00.00UTC"});
        assert_eq!(health(passed, "pcie.0", json!([])).to_string(), "PASS", "a later check replaced the result");
        assert_eq!(health(json!({GPU_HEALTH_LABEL: "WARN"}), "", json!([])).grade, Grade::Warning);
        assert_eq!(health(json!({}), "", json!([])), Health::default());
    }

    #[test]
    fn conditions_of_other_agents_are_problems() {
        let condition =
            |type_: &str, status: &str| json!({"type": type_, "status": status, "message": "XID 79 on GPU 2"});
        let found = health(json!({GPU_HEALTH_LABEL: "PASS"}), "", json!([condition("XidError", "True")]));
        assert_eq!((found.to_string().as_str(), found.grade), ("XidError: XID 79 on GPU 2", Grade::Bad));
        for (type_, status) in [("XidError", "False"), ("AcceleratedHardwareReady", "True"), ("MemoryPressure", "True")]
        {
            assert_eq!(health(json!({}), "", json!([condition(type_, status)])).grade, Grade::Unknown, "{type_}");
        }
        let lost = health(json!({}), "", json!([condition("AcceleratedHardwareReady", "False")]));
        assert_eq!(lost.verdict, "AcceleratedHardwareReady");
    }
}
