//! The `ProvisioningClass` kind: how the simulated cloud handles the ProvisioningRequests of one
//! class.

use crate::JsonSchema;
use serde::{Deserialize, Serialize};

use super::problem::join;
use super::{Duration, Problem};
use crate::resource::{always_written, custom_resource};

/// Longest time that a request waits, and longest lifetime of its machines: 7 days.
pub const WAIT_MAX: Duration = Duration::from_secs(604_800);

/// Names of the classes that the simulated cloud implements.
pub(super) const PROVISIONING_CLASSES: [&str; 3] = [
    "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
    "check-capacity.autoscaling.x-k8s.io",
    "queued-provisioning.gke.io",
];

custom_resource! {
    /// How the simulated cloud handles the ProvisioningRequests of the class of this name.
    ProvisioningClass: cluster "berth.dev" "v1alpha1" "provisioningclasses" {
        /// Times and failures.
        #[schemars(required)]
        spec: ProvisioningClassSpec,
    }
}
always_written!(ProvisioningClassSpec);

impl ProvisioningClass {
    /// A class with the given name.
    pub fn new(name: &str, spec: ProvisioningClassSpec) -> Self {
        Self { spec, ..Self::named(name) }
    }
}

/// How the simulated cloud handles the ProvisioningRequests of the class of this name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningClassSpec {
    /// Time from creation to `Accepted`. Default: 5 seconds.
    pub accept_delay: Duration,
    /// Time from `Accepted` until the machines are ordered, if there is capacity. Default: 30
    /// seconds.
    pub provision_delay: Duration,
    /// Time for which provisioned capacity is reserved for pods that do not exist yet. Default: 10
    /// minutes.
    pub booking_time: Duration,
    /// Lifetime of machines if the request does not set `maxRunDurationSeconds`, at most 7 days,
    /// which is the default.
    pub max_run_duration: Duration,
    /// Time from creation after which a request that was not provisioned fails, at most 7 days,
    /// which is the default.
    pub max_wait: Duration,
    /// True if pods that consume a provisioned request get the toleration of queued pools
    /// (`cloud.google.com/gke-queued`). False if the pods' manifests must have the toleration. For
    /// `queued-provisioning.gke.io` only. Default: true.
    pub adds_toleration: bool,
    /// Injected failures. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<ProvisioningFailure>,
}

/// Injected failures of ProvisioningRequests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningFailure {
    /// Message of the condition. Default: the message of a stock-out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Attempts (the number at the end of the request's name) up to this one fail; 0 fails all.
    pub attempts: u32,
}

impl Default for ProvisioningClassSpec {
    fn default() -> Self {
        Self {
            accept_delay: Duration::from_secs(5),
            provision_delay: Duration::from_secs(30),
            booking_time: Duration::from_secs(600),
            max_run_duration: WAIT_MAX,
            max_wait: WAIT_MAX,
            adds_toleration: true,
            failure: None,
        }
    }
}

impl ProvisioningClassSpec {
    /// All errors of the spec; `path` is its path in the document (`spec`,
    /// `provisioningClasses[1]`).
    pub fn problems(&self, path: &str) -> Vec<Problem> {
        let limited = [("maxRunDuration", self.max_run_duration), ("maxWait", self.max_wait)];
        let too_long = limited.into_iter().filter(|(_, duration)| *duration > WAIT_MAX);
        too_long
            .map(|(field, duration)| Problem::new(join(path, field), format!("{duration} is more than 7 days (168h)")))
            .collect()
    }
}

/// The error in the name of a class, if there is one.
pub fn provisioning_class_name_problem(name: &str) -> Option<String> {
    let is_known = PROVISIONING_CLASSES.contains(&name);
    (!is_known).then(|| format!("{name:?} is not a known class: expected {}", PROVISIONING_CLASSES.join(", ")))
}
