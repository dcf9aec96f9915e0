//! The controllers of this crate by name, for `berth controller --controllers`.

use berth_runtime::Selection;

use crate::configuration::frameworks::FRAMEWORKS;
use crate::jobs;

/// Controllers that do not belong to one integration, in name order.
const SHARED: &[&str] = &[
    "admission-check",
    "cluster-queue",
    "cohort",
    "concurrent-admission",
    "elastic-job-pods",
    "flavor-cool-down",
    "local-queue",
    "node-failures",
    "provisioning",
    "provisioning-check",
    "resource-flavor",
    "scheduler",
    "terminating-pod",
    "topology",
    "topology-ungater",
    "workload",
    "workload-priority-class",
];

/// Names of all controllers, in name order. Some run only with a feature gate or an integration.
pub fn names() -> Vec<String> {
    let of_jobs = FRAMEWORKS.iter().filter(|it| it.name == "pod" || (!it.made_of_pods && jobs::is_integrated(it.name)));
    let mut names: Vec<String> = SHARED.iter().map(|&name| name.to_owned()).collect();
    names.extend(of_jobs.map(|framework| format!("job-{}", framework.name)));
    names.sort_unstable();
    names
}

/// The names in a selection that no controller has, neither one of this crate nor one of `others`.
pub fn unknown(selection: &Selection, others: &[&str]) -> Vec<String> {
    let known = names();
    let is_known = |name: &str| others.contains(&name) || known.iter().any(|known| known == name);
    selection.names().filter(|name| !is_known(name)).map(str::to_owned).collect()
}
