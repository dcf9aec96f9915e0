//! Annotations, classes, conditions and reasons of ProvisioningRequest.

/// The API group.
pub const GROUP: &str = "autoscaling.x-k8s.io";

/// Pod annotation: name of the request whose capacity the pod uses.
pub const CONSUME_PROVISIONING_REQUEST: &str = "autoscaling.x-k8s.io/consume-provisioning-request";
/// Pod annotation: class of that request.
pub const PROVISIONING_CLASS_NAME: &str = "autoscaling.x-k8s.io/provisioning-class-name";
/// Earlier spelling of [`CONSUME_PROVISIONING_REQUEST`].
pub const DEPRECATED_CONSUME_PROVISIONING_REQUEST: &str =
    "cluster-autoscaler.kubernetes.io/consume-provisioning-request";
/// Earlier spelling of [`PROVISIONING_CLASS_NAME`].
pub const DEPRECATED_PROVISIONING_CLASS_NAME: &str = "cluster-autoscaler.kubernetes.io/provisioning-class-name";

/// Class: checks whether existing nodes have free capacity.
pub const CHECK_CAPACITY_CLASS: &str = "check-capacity.autoscaling.x-k8s.io";
/// Class: scales up one node group once, as far as possible.
pub const BEST_EFFORT_ATOMIC_CLASS: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";
/// Class of GKE's Dynamic Workload Scheduler: provisions all nodes at once, when enough are
/// available.
pub const QUEUED_PROVISIONING_CLASS: &str = "queued-provisioning.gke.io";

/// Condition: the request was accepted for processing.
pub const ACCEPTED: &str = "Accepted";
/// Condition: the capacity is provisioned.
pub const PROVISIONED: &str = "Provisioned";
/// Condition: the capacity cannot be provisioned.
pub const FAILED: &str = "Failed";
/// Condition: the capacity is no longer reserved for the pods.
pub const BOOKING_EXPIRED: &str = "BookingExpired";
/// Condition: the capacity was revoked.
pub const CAPACITY_REVOKED: &str = "CapacityRevoked";

/// Reason and message of `Accepted` for class [`QUEUED_PROVISIONING_CLASS`].
pub const SUCCESSFULLY_QUEUED: (&str, &str) = ("SuccessfullyQueued", "Provisioning Request was successfully queued.");
/// Reason and message of `Provisioned=False` for class [`QUEUED_PROVISIONING_CLASS`].
pub const RESOURCE_POOL_EXHAUSTED: (&str, &str) = (
    "ResourcePoolExhausted",
    "Waiting for resources. Currently there are not enough resources available to fulfill the request.",
);
/// Reason and message of `Provisioned=True` for class [`QUEUED_PROVISIONING_CLASS`].
pub const SUCCESSFULLY_PROVISIONED: (&str, &str) =
    ("Provisioned", "Provisioning Request was successfully provisioned.");
/// Reason and message of `Provisioned=True` when the pods fit on existing nodes.
pub const CAPACITY_IS_FOUND: (&str, &str) = ("CapacityIsFound", "Capacity is found in the cluster.");
/// Reason and message of `Provisioned=False` when the pods do not fit on existing nodes.
pub const CAPACITY_IS_NOT_FOUND: (&str, &str) =
    ("CapacityIsNotFound", "Capacity is not found, CA will try to find it later.");
/// Reason of `Provisioned=True` after a scale-up.
pub const CAPACITY_IS_PROVISIONED: &str = "CapacityIsProvisioned";
/// Reason and message of `BookingExpired`.
pub const CAPACITY_RESERVATION_TIME_EXPIRED: (&str, &str) =
    ("CapacityReservationTimeExpired", "Capacity reservation time is expired");
/// Reason and message of `Failed` for a request that is not provisioned within seven days.
pub const EXPIRED: (&str, &str) = ("Expired", "ProvisioningRequest is expired");
/// Reason of `Failed` when the pod template cannot be used.
pub const FAILED_TO_CREATE_PODS: &str = "FailedToCreatePods";
