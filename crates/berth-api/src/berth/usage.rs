//! What workloads used: `Stays` and `UsageReport` of `explain.berth.dev/v1alpha1`, and the lines of
//! the usage files of a decision journal. Both are read-only and not stored as objects.
//!
//! Clients must accept objects that lack any of the fields, as in [`super::explanation`].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use super::decision::DecisionRecord;
use super::explanation::{Held, Job, ObjectName, Withheld};

/// One stay of a workload in its queue: it waits, holds quota, and finishes or is evicted. A
/// workload that is evicted and queued again has one stay more.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stay {
    /// The Workload.
    pub workload: ObjectName,
    /// UID of the Workload.
    pub uid: String,
    /// The job of the Workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// Labels of the Workload.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The user that created the job; empty if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Its local queue; empty if it names none.
    pub queue: String,
    /// The cluster queue whose quota it held, or in which it waits; empty if not known.
    pub cluster_queue: String,
    /// Its priority.
    pub priority: i64,
    /// Number of its pods.
    pub pods: i64,
    /// Start of the wait: creation of the Workload, or its last eviction.
    pub queued: Option<Time>,
    /// Time of its quota reservation; absent if it never had one in this stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Time>,
    /// Time of its admission; absent if it was not admitted in this stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted: Option<Time>,
    /// End of the stay; absent if it goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// How the stay ended, or how it goes on.
    pub state: StayState,
    /// Reason of the condition that shows the state.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The quota that it held.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Held>,
}

impl Stay {
    /// The reason of the stay's state, for display. [`NOT_TRIED_YET`] for a workload that waits and
    /// was not tried yet, because others in its queue are tried first: it has no condition with a
    /// reason.
    pub fn shown_reason(&self) -> &str {
        let is_untried = self.state == StayState::Waiting && self.reason.is_empty();
        if is_untried { NOT_TRIED_YET } else { &self.reason }
    }
}

/// See [`Stay::shown_reason`].
pub const NOT_TRIED_YET: &str = "NotTriedYet";

/// State of a [`Stay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StayState {
    /// It waits for quota.
    #[default]
    Waiting,
    /// It is not queued until a user changes it: it is not active, or on hold.
    Held,
    /// It holds quota, and waits for its admission checks.
    Reserved,
    /// It is admitted.
    Running,
    /// The job succeeded.
    Succeeded,
    /// The job failed.
    Failed,
    /// The workload finished for another reason, such as the replacement of a slice.
    Finished,
    /// It was evicted for another workload.
    Preempted,
    /// It was evicted for another reason.
    Evicted,
    /// The Workload was deleted before it finished.
    Deleted,
}

impl StayState {
    /// All states.
    pub const ALL: [Self; 10] = [
        Self::Waiting,
        Self::Held,
        Self::Reserved,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Finished,
        Self::Preempted,
        Self::Evicted,
        Self::Deleted,
    ];

    /// The states of jobs that exist: all but [`Self::Deleted`].
    pub const OF_CURRENT: [Self; 9] = [
        Self::Waiting,
        Self::Held,
        Self::Reserved,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Finished,
        Self::Preempted,
        Self::Evicted,
    ];

    /// True if the stay has ended.
    pub fn is_end(self) -> bool {
        !matches!(self, Self::Waiting | Self::Held | Self::Reserved | Self::Running)
    }

    /// The accepted state with this name, in upper or lower case; `None` if there is none.
    pub fn named(name: &str, accepted: &[Self]) -> Option<Self> {
        accepted.iter().copied().find(|state| state.name().eq_ignore_ascii_case(name))
    }

    /// The state as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Held => "Held",
            Self::Reserved => "Reserved",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Finished => "Finished",
            Self::Preempted => "Preempted",
            Self::Evicted => "Evicted",
            Self::Deleted => "Deleted",
        }
    }
}

/// Stays of a period, oldest end first; stays that go on come last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Stays {
    /// API group and version.
    pub api_version: String,
    /// `Stays`.
    pub kind: String,
    /// Empty.
    pub metadata: ObjectMeta,
    /// Time of the response.
    pub now: Option<Time>,
    /// The newest stays that match, up to the limit.
    pub items: Vec<Stay>,
    /// Number of older stays that match and are not listed.
    pub unlisted: usize,
    /// Stays of namespaces that the reader may not read; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<WithheldUsage>,
}

/// The use of quota in a period, by group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UsageReport {
    /// API group and version.
    pub api_version: String,
    /// `UsageReport`.
    pub kind: String,
    /// Empty.
    pub metadata: ObjectMeta,
    /// What the groups are: `team`, `user`, `queue`, `localqueue` or `flavor`.
    pub by: String,
    /// Start of the period.
    pub since: Option<Time>,
    /// End of the period.
    pub until: Option<Time>,
    /// End of the oldest stay that is known. Earlier use is not part of the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_since: Option<Time>,
    /// The groups, in name order.
    pub groups: Vec<UsageGroup>,
    /// All groups together.
    pub total: UsageGroup,
    /// Use of namespaces that the reader may not read; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<WithheldUsage>,
}

/// Stays that are not part of a response.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldUsage {
    /// Why they are left out.
    #[serde(flatten)]
    pub why: Withheld,
    /// Number of stays.
    pub stays: u64,
}

/// The use of one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UsageGroup {
    /// Name of the team, user, queue or flavor; empty if the stays have none.
    pub name: String,
    /// Number of workloads with an admission, an end or an eviction within the period, or that run
    /// in it.
    pub jobs: u64,
    /// Number of jobs that succeeded within the period.
    pub succeeded: u64,
    /// Number of jobs that failed within the period.
    pub failed: u64,
    /// Number of preemptions by other workloads within the period.
    pub preemptions: u64,
    /// Number of other evictions within the period.
    pub evictions: u64,
    /// Waits that ended with an admission within the period.
    pub wait: Waits,
    /// Use per flavor and resource.
    pub used: Vec<ResourceUse>,
}

/// Seconds from the creation of a workload, or its last eviction, to its admission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Waits {
    /// Number of admissions.
    pub admissions: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Longest wait.
    pub max: f64,
}

/// Use of one resource of a flavor. Hours are those of a CPU core, a GiB of memory or storage, or
/// one piece of another resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceUse {
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// Hours between admissions and ends, within the period.
    pub hours: f64,
    /// Hours, within `hours`, of runs that a preemption ended. This work is lost unless the job
    /// saved it.
    pub lost_by_preemption: f64,
    /// Hours, within `hours`, of runs that another eviction ended.
    pub lost_by_eviction: f64,
    /// Hours, within `hours`, of failed jobs.
    pub lost_by_failure: f64,
    /// Hours of the nominal quota of the group over the period; absent if the group has no quota of
    /// its own, or an unlimited one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_hours: Option<f64>,
}

/// What happened to one workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadHistory {
    /// API group and version.
    pub api_version: String,
    /// `WorkloadHistory`.
    pub kind: String,
    /// The Workload.
    pub metadata: ObjectName,
    /// UID of the Workload.
    pub uid: String,
    /// Creation of the Workload; absent if it was deleted and no record has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Time>,
    /// Its stays, oldest first; the last one goes on unless the workload finished or was deleted.
    pub stays: Vec<Stay>,
    /// The decisions about it, oldest first.
    pub decisions: Vec<DecisionRecord>,
    /// Why some workloads are counted and not named; absent if all are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
    /// The history as text.
    pub text: String,
}
