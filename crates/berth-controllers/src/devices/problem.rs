//! Why the devices of a workload cannot be counted.

use berth_apimachinery::field::{Error, ErrorKind, aggregate};
use serde_json::Value;

/// Why the devices of a workload cannot be counted. The workload is inadmissible until its claims,
/// device classes or published devices change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Message of QuotaReserved=False.
    pub message: String,
    /// Message of Requeued=False.
    pub requeue_message: String,
}

impl Problem {
    pub(super) fn of(errors: &[Error]) -> Self {
        Self::both(&aggregate(errors))
    }

    fn both(message: &str) -> Self {
        Problem { message: message.to_owned(), requeue_message: message.to_owned() }
    }

    /// A pod uses a ResourceClaim by name. Several pods may share it, so it has no amount per pod.
    pub(super) fn claims_by_name() -> Self {
        Problem {
            message: "KueueDRAIntegration feature does not support use of resource claims".to_owned(),
            requeue_message: "DRA resource claims not supported".to_owned(),
        }
    }

    /// Counting devices is switched off.
    pub(super) fn switched_off() -> Self {
        Self::both("Workload uses DRA resources but the KueueDRAIntegration feature gate is not enabled")
    }
}

/// The value of the field can never be counted.
pub(super) fn invalid(field: String, value: Value, detail: impl Into<String>) -> Error {
    Error { kind: ErrorKind::Invalid, field, bad_value: Some(value), detail: detail.into() }
}

/// The state of the cluster prevents counting, and may change.
pub(super) fn internal(field: String, detail: impl Into<String>) -> Error {
    Error { kind: ErrorKind::Internal, field, bad_value: None, detail: detail.into() }
}

/// Text for an object of resource.k8s.io that does not exist.
pub(super) fn not_found(plural: &str, name: &str) -> String {
    format!("{plural}.resource.k8s.io {name:?} not found")
}
