//! `WorkloadExplanation` of `explain.berth.dev/v1alpha1`: the state of a workload and its reasons,
//! as the controllers return it and `berth explain -o json` prints it; and `ClusterQueueHolders`:
//! the workloads that hold a cluster queue's quota. Both are read-only and not stored.
//!
//! Every field is optional for readers: controllers of another version may leave out fields.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use super::decision::DecisionRecord;

/// The API group of explanations.
pub const GROUP: &str = "explain.berth.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// The kind of an explanation.
pub const KIND: &str = "WorkloadExplanation";

/// The state of a workload, and its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadExplanation {
    /// API group and version.
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// The Workload.
    pub metadata: ObjectName,
    /// The job of the Workload.
    #[serde(default)]
    pub job: Option<Job>,
    /// Its local queue; empty if it names none.
    #[serde(default)]
    pub queue: String,
    /// The cluster queue in which it holds quota or waits. It need not exist if only the local
    /// queue names it.
    #[serde(default)]
    pub cluster_queue: Option<String>,
    /// The state of the workload.
    pub standing: Standing,
    /// The reason why its cluster queue admits nothing now; absent if the queue is active.
    #[serde(default)]
    pub queue_inactive: Option<String>,
    /// The outcome if it were evaluated now; absent unless it waits.
    #[serde(default)]
    pub outlook: Option<Outlook>,
    /// Its variants of concurrent admission, which wait in its place.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// The last decisions about it that were written, newest first. Only decisions of this process
    /// and of its journal are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<DecisionRecord>,
    /// Why some workloads are counted and not named; absent if all are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
    /// The whole explanation as text.
    #[serde(default)]
    pub text: String,
}

/// Why workloads are counted and not named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Withheld {
    /// `NotAllowed`: the reader may not list workloads in their namespaces. `ReviewFailed`: the API
    /// server did not report whether the reader may. `TooManyNamespaces`: they are in more
    /// namespaces than one request checks.
    pub reason: String,
    /// The reason as text.
    pub message: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Name of a namespaced object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The job of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// The state of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state")]
pub enum Standing {
    /// Admitted.
    Admitted(Holding),
    /// It holds quota, and waits for admission checks or topology.
    QuotaReserved(Holding),
    /// It waits in a queue.
    Waiting(Waiting),
    /// It is not in a queue.
    NotQueued {
        /// The reason: `Finished`, `Deleting`, `Inactive`, `AdmissionGated`, `OnHold`,
        /// `WaitingForReplacementPods`, `VariantsWait`, `NoLocalQueue`, `LocalQueueStopped`,
        /// `NoClusterQueue` or `NotSeenYet`.
        reason: String,
        /// The reason as text.
        #[serde(default)]
        message: String,
    },
}

/// A workload that holds quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Holding {
    /// True if the decision was taken and is not written yet.
    pub being_written: bool,
    /// Reason of its eviction, while it is being evicted.
    pub evicted: Option<String>,
    /// Admission checks that are not ready.
    pub checks_not_ready: Vec<String>,
}

/// A workload that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Waiting {
    /// Its effective priority.
    pub priority: i64,
    /// Its place in the cluster queue, from 0.
    pub position_in_cluster_queue: u32,
    /// Its place in its local queue, from 0.
    pub position_in_local_queue: u32,
    /// It was inadmissible when last tried, and is retried when quota, queues or nodes change.
    #[serde(rename = "setAside")]
    pub inadmissible: bool,
    /// It is not considered until its back-off expires.
    pub backing_off: bool,
    /// The first fifty workloads ahead of it, the next one first.
    pub ahead: Vec<ObjectName>,
    /// Number of the first fifty that are not named.
    #[serde(skip_serializing_if = "is_zero")]
    pub ahead_withheld: u32,
}

/// The outcome for a waiting workload if it were evaluated now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outlook {
    /// `NoFit`, `Preempt` or `Fit`.
    pub mode: String,
    /// The reason of its condition QuotaReserved=False; absent if it would be admitted.
    pub reason: Option<String>,
    /// The condition's message.
    pub message: String,
    /// The flavors that were tried, for each pod set.
    pub pod_sets: Vec<PodSetConsidered>,
    /// Quotas that are short.
    pub shortages: Vec<Shortage>,
    /// The workloads that it would preempt.
    pub victims: Vec<PreemptedFor>,
    /// Those of them that are not named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims_withheld: Vec<WithheldVictims>,
    /// Searches for victims, in the order of the attempts.
    pub victim_searches: Vec<VictimSearch>,
    /// With fair sharing: the shares that decide from which queues it may take quota.
    pub shares: Vec<ComparedShares>,
    /// The first fifty workloads whose pods must be ready first.
    pub unready: Vec<ObjectName>,
    /// Number of the first fifty that are not named.
    #[serde(skip_serializing_if = "is_zero")]
    pub unready_withheld: u32,
    /// Number of workloads beyond the first fifty.
    pub unready_unlisted: u32,
}

/// Two shares that are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ComparedShares {
    /// The workload's queue, or the cohort that contains it.
    pub own: String,
    /// Its share with the workload, in thousandths; the largest number for a borrower with weight
    /// zero.
    pub own_share: i64,
    /// The queue or cohort that holds the short quota.
    pub other: String,
    /// Its share, in thousandths.
    pub other_share: i64,
}

/// Flavors tried for one pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetConsidered {
    /// The pod set.
    pub name: String,
    /// The flavors, in the order they were tried.
    pub flavors: Vec<FlavorAttempt>,
    /// Problems that do not concern one of these flavors.
    pub findings: Vec<Finding>,
}

/// One flavor tried for one pod set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlavorAttempt {
    /// The flavor.
    pub flavor: String,
    /// `NoFit`, `Preempt` or `Fit`.
    pub mode: String,
    /// `NoFit`, `NoCandidates`, `Preempt`, `Reclaim` or `Fit`.
    pub preemption_mode: String,
    /// Level of the cohort tree from which it would borrow; 0 if it would not borrow.
    pub borrowing_level: u32,
    /// The least severe reason why it does not fit.
    pub reason: Option<String>,
    /// Short quota and other problems.
    pub findings: Vec<Finding>,
}

/// One problem of a flavor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Finding {
    /// The problem as text, in the words of the condition's message.
    pub message: String,
    /// The quota that is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaFinding>,
    /// The topology that is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyFinding>,
}

/// A quota that is short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaFinding {
    /// The resource.
    pub resource: String,
    /// Amount requested by this and earlier pod sets.
    pub asked: Quantity,
    /// Amount available now; absent if it can never be enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<Amount>,
    /// The largest amount that can ever be available, if that is not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum: Option<Amount>,
    /// The queue or cohort that has no more quota, or whose limit decides.
    pub short_at: String,
    /// The policy field that forbids preemption because it is Never: `borrowWithinCohort` or
    /// `reclaimWithinCohort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_forbidden_by: Option<String>,
}

/// A topology without enough capacity for the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyFinding {
    /// The topology.
    pub topology: String,
    /// Number of pods that are placed together; 1 if they are placed one by one.
    pub slice_size: i64,
    /// Number of slices to place.
    pub needed: i64,
    /// Number of slices that fit.
    pub fits: i64,
    /// The layers of a request with several layers, coarse to fine.
    pub layers: Vec<LayerFinding>,
    /// The capacity of the levels, from the requested one upwards.
    pub levels: Vec<LevelRoom>,
    /// Number of lowest domains.
    pub nodes: usize,
    /// Lowest domains that have no capacity for a pod, by reason.
    pub excluded: Vec<Excluded>,
}

/// Capacity for one layer of slices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerFinding {
    /// The level.
    pub level: String,
    /// Number of slices to place.
    pub needed: i64,
    /// Number of slices that fit.
    pub fits: i64,
}

/// Capacity of the domains of a level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LevelRoom {
    /// The level.
    pub level: String,
    /// Number of domains.
    pub domains: usize,
    /// Capacity of the best domain.
    pub best: i64,
    /// Capacity of all domains.
    pub total: i64,
}

/// Nodes that have no capacity for a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Excluded {
    /// Number of nodes.
    pub nodes: usize,
    /// The reason.
    pub reason: String,
}

/// A short quota, with the tree above it and its holders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shortage {
    /// The pod set that lacks it.
    pub pod_set: String,
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// Amount requested by this and earlier pod sets.
    pub asked: Quantity,
    /// Amount available now.
    pub available: Amount,
    /// The queue or cohort that has no more quota, or whose limit decides.
    pub short_at: String,
    /// The queue and its cohorts up to the root.
    pub levels: Vec<Level>,
    /// The first fifty holders, largest first.
    pub holders: Vec<Holder>,
    /// Those of the first fifty that are not named, by cluster queue and protection.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders_withheld: Vec<WithheldHolders>,
    /// Number of holders beyond the first fifty.
    pub holders_unlisted: u32,
}

/// An amount of quota: a quantity, or `Unlimited`.
pub type Amount = String;

/// Quota of a queue or cohort.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Level {
    /// Its name.
    pub name: String,
    /// `ClusterQueue` or `Cohort`.
    pub kind: String,
    /// Nominal quota of its own.
    pub nominal: Amount,
    /// Nominal quota and the amount that its children lend it.
    pub subtree: Amount,
    /// Usage; for a cohort, the part that its children do not cover by their own guaranteed quota.
    pub in_use: Amount,
    /// Borrowing limit.
    pub borrowing_limit: Option<Amount>,
    /// Lending limit.
    pub lending_limit: Option<Amount>,
    /// Amount that is still available here; negative if usage exceeds the quota.
    pub available: Amount,
}

/// A holder of a short quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Holder {
    /// The workload.
    pub workload: ObjectName,
    /// Its cluster queue.
    pub cluster_queue: String,
    /// Amount that it holds.
    pub amount: Quantity,
    /// Its effective priority.
    pub priority: i64,
    /// `Yes`, `IfSharesAllow`, `Leaving`, `Replaced`, `PolicyNever`, `PolicyExcludes` or
    /// `WithinNominal`.
    pub preemptible: String,
    /// The value of `preemptible` as text, with the policy that protects the workload.
    pub why: String,
}

/// Holders of a quota that are not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldHolders {
    /// Their cluster queue.
    pub cluster_queue: String,
    /// Number of workloads.
    pub workloads: u32,
    /// Amount that they hold together.
    pub amount: Quantity,
    /// As [`Holder::preemptible`].
    pub preemptible: String,
    /// The value of `preemptible` as text, with the policy that protects the workloads.
    pub why: String,
}

/// Victims that are not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldVictims {
    /// Reason of their condition Preempted.
    pub reason: String,
    /// Number of workloads.
    pub workloads: u32,
}

/// A workload that would be preempted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreemptedFor {
    /// The victim.
    pub workload: ObjectName,
    /// Reason of its condition Preempted.
    pub reason: String,
}

/// One search for victims.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VictimSearch {
    /// The flavor, if the search was for one resource only.
    pub flavor: Option<String>,
    /// That resource.
    pub resource: Option<String>,
    /// `Found`, `Forbidden`, `NoCandidates`, `NotEnough` or `Protected`.
    pub outcome: String,
    /// The outcome as text.
    pub message: String,
    /// The first fifty candidates, in the order of the search.
    pub candidates: Vec<Candidate>,
    /// Those of the first fifty that are not named, by cluster queue and outcome.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates_withheld: Vec<WithheldCandidates>,
    /// Number of candidates beyond the first fifty.
    pub unlisted: u32,
}

impl VictimSearch {
    /// Replaces candidates of namespaces that `may_name` rejects by their number, per cluster queue
    /// and outcome.
    pub fn withhold(&mut self, may_name: &mut dyn FnMut(&str) -> bool) {
        for candidate in self.candidates.extract_if(.., |it| !may_name(&it.workload.namespace)) {
            let Candidate { workload: _, cluster_queue, priority: _, fate, message } = candidate;
            let same = |group: &&mut WithheldCandidates| group.cluster_queue == cluster_queue && group.fate == fate;
            match self.candidates_withheld.iter_mut().find(same) {
                Some(group) => group.workloads += 1,
                None => {
                    self.candidates_withheld.push(WithheldCandidates { cluster_queue, workloads: 1, fate, message });
                }
            }
        }
    }
}

/// Candidates that are not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldCandidates {
    /// Their cluster queue.
    pub cluster_queue: String,
    /// Number of workloads.
    pub workloads: u32,
    /// As [`Candidate::fate`].
    pub fate: String,
    /// The value of `fate` as text.
    pub message: String,
}

/// A candidate for preemption.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Candidate {
    /// The workload.
    pub workload: ObjectName,
    /// Its cluster queue.
    pub cluster_queue: String,
    /// Its effective priority.
    pub priority: i64,
    /// `Victim`, `GivenBack`, `NotReached`, `NotEnough`, `OnlyWithoutBorrowing`, `WithinNominal` or
    /// `ShareTooSmall`.
    pub fate: String,
    /// The value of `fate` as text.
    pub message: String,
}

/// A variant of concurrent admission.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Variant {
    /// Its Workload.
    pub name: String,
    /// Its flavor.
    #[serde(default)]
    pub flavor: String,
    /// The state of the variant.
    pub standing: Standing,
    /// The outcome if its turn came now.
    #[serde(default)]
    pub outlook: Option<Outlook>,
}

/// A part of the workloads that hold quota of a cluster queue, in the order of their reservations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterQueueHolders {
    /// API group and version.
    pub api_version: String,
    /// `ClusterQueueHolders`.
    pub kind: String,
    /// Empty.
    pub metadata: ObjectMeta,
    /// Total number of holders.
    pub total: usize,
    /// The requested part of the list.
    pub items: Vec<QuotaHolder>,
    /// Workloads of this part that are not named; absent if all are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withheld: Option<WithheldQuotaHolders>,
}

/// Workloads that hold quota of a cluster queue and are not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldQuotaHolders {
    /// Why they are not named.
    #[serde(flatten)]
    pub why: Withheld,
    /// Number of workloads.
    pub workloads: usize,
    /// Amounts that they hold together.
    pub holds: Vec<Held>,
}

/// A workload that holds quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaHolder {
    /// Its name, namespace, age and owners.
    pub metadata: ObjectMeta,
    /// Its effective priority.
    pub priority: i64,
    /// Its local queue.
    pub local_queue_name: String,
    /// Time of its quota reservation.
    pub since: Option<Time>,
    /// True if it is admitted.
    pub admitted: bool,
    /// Reason of its eviction, while it is being evicted.
    pub evicted: Option<String>,
    /// The amounts that it holds.
    pub holds: Vec<Held>,
}

/// An amount of quota that a workload holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Held {
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// Amount.
    pub amount: Quantity,
}
