//! The engine's input: its own types, without any Kubernetes type.
//!
//! The translator in `berth-controllers` makes these values from API objects; tests make them with
//! builders. Names follow Kueue's documents. Amounts are integers in base units; times are
//! nanoseconds since the Unix epoch.

mod placement;
mod queues;
mod topology;
mod workload;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use placement::{
    LabelSelector, NodeAffinity, Operator, PreferredTerm, Requirement, SelectorTerm, Taint, TaintEffect, Toleration,
};
pub use queues::{
    AdmissionCheck, AdmissionCheckRule, AdmissionScope, BorrowWithinCohort, ClusterQueue, Cohort,
    ConcurrentAdmissionPolicy, FlavorFungibility, FlavorQuotas, FungibilityPolicy, FungibilityPreference, LocalQueue,
    PreemptionPolicies, PreemptionPolicy, QueueingStrategy, Quota, ResourceFlavor, ResourceGroup, StopPolicy,
};
pub use topology::{
    Node, NodePod, SliceConstraint, Topology, TopologyAssignment, TopologyDomain, TopologyMode, TopologyRequest,
};
pub use workload::{
    Admission, CheckState, CheckStatus, Eviction, PodSet, PodSetAssignment, PodTemplate, Variant, Workload, WorkloadKey,
};

use crate::ids::Name;

/// Amounts per resource name, in base units, in name order.
pub type ResourceList = BTreeMap<Name, i64>;

/// A set of labels.
pub type Labels = BTreeMap<Name, Name>;

/// An instant: nanoseconds since the Unix epoch. [`Time::UNSET`] is older than everything (Go's
/// zero time).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    /// No time set: older than every other time.
    pub const UNSET: Time = Time(i64::MIN);

    /// The instant at a whole number of seconds since the Unix epoch.
    pub fn from_seconds(seconds: i64) -> Time {
        Time(seconds.saturating_mul(1_000_000_000))
    }

    /// This instant in whole seconds, rounded down. API objects have no finer time.
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// The instant `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Time {
        Time(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// The time from this instant to `later`; zero if `later` is not later.
    pub fn until(self, later: Time) -> Duration {
        Duration::from_nanos(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }
}

impl fmt::Display for WorkloadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
