//! The rules, for reports and documentation.

use super::Severity;

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Its id.
    pub id: &'static str,
    /// Severity of its findings; a rule may lower it where the effect is small.
    pub severity: Severity,
    /// What it finds.
    pub about: &'static str,
}

const fn rule(id: &'static str, severity: Severity, about: &'static str) -> Rule {
    Rule { id, severity, about }
}

use Severity::{Error, Note, Warning};

/// All rules, by id.
pub const RULES: &[Rule] = &[
    rule("borrowing-impossible", Warning, "a queue may borrow a resource that no other member of its cohort can lend"),
    rule("check-missing", Error, "a ClusterQueue names an AdmissionCheck that does not exist"),
    rule("check-unserved", Error, "no controller serves an AdmissionCheck"),
    rule("class-ignored-policy", Note, "preemptionPolicy of a PriorityClass does not apply to queueing"),
    rule("class-never-preempts", Note, "priorities only order queues: no policy lets a class preempt"),
    rule("cohort-cycle", Error, "cohorts are each other's parents"),
    rule("flavor-missing", Error, "a ClusterQueue or Cohort names a ResourceFlavor that does not exist"),
    rule("flavor-unused", Note, "no quota names a ResourceFlavor"),
    rule("flavor-without-nodes", Warning, "no node and no pool has the labels of a ResourceFlavor"),
    rule("invalid-object", Error, "an object that an API server would reject"),
    rule("job-has-no-workload", Error, "a job of the set gets no Workload"),
    rule("job-never-fits", Error, "a job that no quota can hold, even with every queue empty"),
    rule(
        "node-taint-undeclared",
        Warning,
        "nodes of a ResourceFlavor have a taint that it neither declares nor tolerates",
    ),
    rule("pod-fits-no-node", Warning, "the pods of a job fit on no node of the flavors that it would get"),
    rule("preemption-may-not-rest", Note, "rules that let workloads preempt each other in turn"),
    rule("preemption-never-rests", Error, "the jobs of the set preempt each other without end"),
    rule("provisioning-config", Error, "the ProvisioningRequestConfig of a check is missing or not named"),
    rule("queue-missing", Error, "a LocalQueue names a ClusterQueue that does not exist"),
    rule("queue-namespace-excluded", Error, "a LocalQueue is in a namespace that its ClusterQueue does not select"),
    rule("queue-selects-no-namespace", Warning, "a ClusterQueue selects no namespace"),
    rule("queue-unreachable", Warning, "no LocalQueue leads to a ClusterQueue"),
    rule("quota-above-supply", Warning, "more nominal quota than the nodes and pools of a flavor can supply"),
    rule("quota-unusable", Warning, "a queue has a flavor of which it can never use any amount"),
    rule("reclaim-impossible", Note, "a preemption policy for the cohort of a queue that shares with no other queue"),
    rule("topology-level-missing", Warning, "no node of a flavor has the label of a level of its topology"),
    rule("topology-missing", Error, "a ResourceFlavor names a Topology that does not exist"),
    rule("unreadable-file", Warning, "a file that is not YAML or JSON"),
];

/// The severity of a rule.
pub(super) fn severity(id: &str) -> Severity {
    RULES.iter().find(|rule| rule.id == id).map_or(Warning, |rule| rule.severity)
}
