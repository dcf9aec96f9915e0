//! The section `provisioningClasses`: how the cloud handles ProvisioningRequests.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::super::{Duration, Problem};

/// How the cloud handles ProvisioningRequests of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningClass {
    /// Class name: `queued-provisioning.gke.io`, `check-capacity.autoscaling.x-k8s.io` or
    /// `best-effort-atomic-scale-up.autoscaling.x-k8s.io`.
    pub name: String,
    /// Time from creation to `Accepted`.
    #[serde(default = "seconds::<5>")]
    pub accept_delay: Duration,
    /// Time from `Accepted` until the machines are ordered, if there is capacity.
    #[serde(default = "seconds::<30>")]
    pub provision_delay: Duration,
    /// Time for which provisioned capacity is reserved for pods that do not exist yet.
    #[serde(default = "seconds::<600>")]
    pub booking_time: Duration,
    /// Lifetime of machines if the request does not set `maxRunDurationSeconds`.
    #[serde(default = "seconds::<604800>")]
    pub max_run_duration: Duration,
    /// Time from creation after which a request that was not provisioned fails, at most 7 days.
    #[serde(default = "seconds::<604800>")]
    pub max_wait: Duration,
    /// True if pods that consume a provisioned request get the toleration of queued pools
    /// (`cloud.google.com/gke-queued`). False if the pods' manifests must have the toleration. For
    /// `queued-provisioning.gke.io` only.
    #[serde(default = "yes")]
    pub adds_toleration: bool,
    /// Injected failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ProvisioningFailure>,
}

/// Injected failures of ProvisioningRequests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningFailure {
    /// Message of the condition; default that of a stock-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Attempts (the number at the end of the request's name) up to this one fail; 0 fails all.
    pub attempts: u32,
}

const fn seconds<const N: u64>() -> Duration {
    Duration::from_secs(N)
}

const fn yes() -> bool {
    true
}

impl ProvisioningClass {
    /// A class with the default timing.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            accept_delay: seconds::<5>(),
            provision_delay: seconds::<30>(),
            booking_time: seconds::<600>(),
            max_run_duration: seconds::<604_800>(),
            max_wait: seconds::<604_800>(),
            adds_toleration: true,
            failure: None,
        }
    }
}

/// The provisioning classes that the embedded cloud implements.
const CLASSES: [&str; 3] = [
    "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
    "check-capacity.autoscaling.x-k8s.io",
    "queued-provisioning.gke.io",
];

/// All classes, with the default timing.
pub(super) fn default_classes() -> Vec<ProvisioningClass> {
    CLASSES.iter().map(|name| ProvisioningClass::named(name)).collect()
}

/// Problems of a list of classes: unknown ones, classes listed twice, and long waits.
pub(super) fn problems(classes: &[ProvisioningClass], path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (i, class) in classes.iter().enumerate() {
        let field = format!("{path}[{i}].name");
        if !CLASSES.contains(&class.name.as_str()) {
            let message = format!("{:?} is not a known class: expected {}", class.name, CLASSES.join(", "));
            problems.push(Problem::new(field, message));
        } else if !names.insert(&class.name) {
            problems.push(Problem::new(field, format!("{:?} is listed twice", class.name)));
        }
        if class.max_wait > seconds::<604_800>() {
            let message = format!("{} is more than 7 days (168h)", class.max_wait);
            problems.push(Problem::new(format!("{path}[{i}].maxWait"), message));
        }
    }
    problems
}
