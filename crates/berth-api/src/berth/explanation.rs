//! `WorkloadExplanation` of `explain.berth.dev/v1alpha1`: why a workload is where it is, as the controllers answer it and as
//! `berth explain -o json` prints it; and `ClusterQueueHolders`: who holds a cluster queue's quota. Both are read-only and
//! stored nowhere.
//!
//! Every field is optional to a reader: controllers of another version may leave out what they do not know.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

use super::decision::DecisionRecord;

/// The API group explanations are served in.
pub const GROUP: &str = "explain.berth.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";
/// The kind of an explanation.
pub const KIND: &str = "WorkloadExplanation";

/// Why a workload is where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadExplanation {
    /// Group and version.
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// The Workload.
    pub metadata: ObjectName,
    /// The job it is of.
    #[serde(default)]
    pub job: Option<Job>,
    /// Its local queue; empty where it names none.
    #[serde(default)]
    pub queue: String,
    /// The cluster queue it holds quota in or waits for; it need not exist where the local queue only names it.
    #[serde(default)]
    pub cluster_queue: Option<String>,
    /// Where it is.
    pub standing: Standing,
    /// Why its cluster queue admits nothing at present, if it does not.
    #[serde(default)]
    pub queue_inactive: Option<String>,
    /// What would be said about it if its turn came now; nothing for what does not wait.
    #[serde(default)]
    pub outlook: Option<Outlook>,
    /// Its concurrent-admission variants, which wait in its place.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// The last decisions about it that were written, newest first. Only those of this process
    /// and of its journal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<DecisionRecord>,
    /// Why some workloads are counted and not named; absent when all are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
    /// All of it for people.
    #[serde(default)]
    pub text: String,
}

/// Why workloads are counted and not named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Withheld {
    /// `NotAllowed`: the reader may not list workloads in their namespaces. `ReviewFailed`: the API server did not say whether
    /// the reader may. `TooManyNamespaces`: they are in more namespaces than are asked about at once.
    pub reason: String,
    /// The same for people.
    pub message: String,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A namespaced object's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The job a workload is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Where a workload is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state")]
pub enum Standing {
    /// It may run.
    Admitted(Holding),
    /// It holds quota, and admission checks or topology are open.
    QuotaReserved(Holding),
    /// It waits.
    Waiting(Waiting),
    /// It waits nowhere.
    NotQueued {
        /// Why: `Finished`, `Deleting`, `Inactive`, `AdmissionGated`, `OnHold`, `WaitingForReplacementPods`, `VariantsWait`,
        /// `NoLocalQueue`, `LocalQueueStopped`, `NoClusterQueue` or `NotSeenYet`.
        reason: String,
        /// The same for people.
        #[serde(default)]
        message: String,
    },
}

/// A workload that holds quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Holding {
    /// True while the decision is taken but not yet written.
    pub being_written: bool,
    /// Reason of its eviction, while it is on its way out.
    pub evicted: Option<String>,
    /// Admission checks that are not Ready.
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
    /// It was looked at and is not looked at again until something changes that may help.
    pub set_aside: bool,
    /// A back-off keeps it from being looked at.
    pub backing_off: bool,
    /// Who is looked at before it, next first; the first fifty.
    pub ahead: Vec<ObjectName>,
    /// How many of the first fifty are not named.
    #[serde(skip_serializing_if = "is_zero")]
    pub ahead_withheld: u32,
}

/// What would be said about a waiting workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outlook {
    /// `NoFit`, `Preempt` or `Fit`.
    pub mode: String,
    /// The reason of its condition QuotaReserved=False; nothing when it would be admitted.
    pub reason: Option<String>,
    /// The condition's message.
    pub message: String,
    /// What was tried, per pod set.
    pub pod_sets: Vec<PodSetConsidered>,
    /// Quotas that are short.
    pub shortages: Vec<Shortage>,
    /// Whom it would preempt.
    pub victims: Vec<PreemptedFor>,
    /// Those of them that are not named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victims_withheld: Vec<WithheldVictims>,
    /// Searches for victims, in the order they were made.
    pub victim_searches: Vec<VictimSearch>,
    /// Under fair sharing: the shares that decide from whom it may take.
    pub shares: Vec<ComparedShares>,
    /// Workloads whose pods have to be ready first; the first fifty.
    pub unready: Vec<ObjectName>,
    /// How many of the first fifty are not named.
    #[serde(skip_serializing_if = "is_zero")]
    pub unready_withheld: u32,
    /// How many more there are.
    pub unready_unlisted: u32,
}

/// Two shares that are compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ComparedShares {
    /// The workload's queue, or the cohort it is in.
    pub own: String,
    /// Its share with the workload, in thousandths; the largest number where its weight is zero and it borrows.
    pub own_share: i64,
    /// Who holds what is short.
    pub other: String,
    /// Its share, likewise.
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
    /// What was wrong apart from those flavors.
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
    /// Level of the cohort tree it would borrow from; 0 when it would not borrow.
    pub borrowing_level: u32,
    /// The least severe reason it does not fit.
    pub reason: Option<String>,
    /// What was short or wrong.
    pub findings: Vec<Finding>,
}

/// One thing that was short or wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Finding {
    /// In the words of the condition's message.
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
    /// Asked for by this and earlier pod sets.
    pub asked: Quantity,
    /// What is available now; nothing when it could never be enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<Amount>,
    /// The most that could ever be available, where that is not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum: Option<Amount>,
    /// The queue or cohort that runs out, or whose limit decides.
    pub short_at: String,
    /// The policy field that is Never and so forbids to preempt for it: `borrowWithinCohort` or `reclaimWithinCohort`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_forbidden_by: Option<String>,
}

/// Nodes that do not take the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyFinding {
    /// The topology.
    pub topology: String,
    /// Pods that go together; 1 when they go one by one.
    pub slice_size: i64,
    /// Slices that need a place.
    pub needed: i64,
    /// How many of them fit.
    pub fits: i64,
    /// The layers of a multi-layer request, coarse to fine.
    pub layers: Vec<LayerFinding>,
    /// What the levels could hold, from the one that was asked for upwards.
    pub levels: Vec<LevelRoom>,
    /// Lowest domains there are.
    pub nodes: usize,
    /// Those of them that take no pod, by reason.
    pub excluded: Vec<Excluded>,
}

/// What one layer of slices finds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LayerFinding {
    /// The level.
    pub level: String,
    /// Slices that need a place.
    pub needed: i64,
    /// How many of them fit.
    pub fits: i64,
}

/// What the domains of a level could hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LevelRoom {
    /// The level.
    pub level: String,
    /// Its domains.
    pub domains: usize,
    /// The most one of them holds.
    pub best: i64,
    /// What all of them hold.
    pub total: i64,
}

/// Nodes that take no pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Excluded {
    /// How many.
    pub nodes: usize,
    /// Why.
    pub reason: String,
}

/// A quota that is short, with the whole tree above it and who holds it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Shortage {
    /// The pod set it is short for.
    pub pod_set: String,
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// Asked for by this and earlier pod sets.
    pub asked: Quantity,
    /// Available now.
    pub available: Amount,
    /// The queue or cohort that runs out, or whose limit decides.
    pub short_at: String,
    /// The queue and its cohorts up to the root.
    pub levels: Vec<Level>,
    /// Who holds it, largest first; the first fifty.
    pub holders: Vec<Holder>,
    /// Those of the first fifty that are not named, by cluster queue and what protects them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders_withheld: Vec<WithheldHolders>,
    /// How many more hold some of it.
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
    /// Its own nominal quota.
    pub nominal: Amount,
    /// That and what its children lend it.
    pub subtree: Amount,
    /// In use; for a cohort, what its children could not cover by what they keep for themselves.
    pub in_use: Amount,
    /// How much more it may take from above.
    pub borrowing_limit: Option<Amount>,
    /// How much of it others may take.
    pub lending_limit: Option<Amount>,
    /// What could still be taken from here; negative when more is in use than there is.
    pub available: Amount,
}

/// Who holds a quota that is short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Holder {
    /// The workload.
    pub workload: ObjectName,
    /// Its cluster queue.
    pub cluster_queue: String,
    /// How much it holds.
    pub amount: Quantity,
    /// Its effective priority.
    pub priority: i64,
    /// `Yes`, `IfSharesAllow`, `Leaving`, `Replaced`, `PolicyNever`, `PolicyExcludes` or `WithinNominal`.
    pub preemptible: String,
    /// The same for people, with the policy that protects it.
    pub why: String,
}

/// Holders of a quota that are not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldHolders {
    /// Their cluster queue.
    pub cluster_queue: String,
    /// How many they are.
    pub workloads: u32,
    /// How much they hold together.
    pub amount: Quantity,
    /// As of a [`Holder`].
    pub preemptible: String,
    /// The same for people, with the policy that protects them.
    pub why: String,
}

/// Victims that are not named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WithheldVictims {
    /// Reason of their condition Preempted.
    pub reason: String,
    /// How many they are.
    pub workloads: u32,
}

/// Somebody a workload would preempt.
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
    /// The flavor, where only one resource of it was looked at.
    pub flavor: Option<String>,
    /// That resource.
    pub resource: Option<String>,
    /// `Found`, `Forbidden`, `NoCandidates`, `NotEnough` or `Protected`.
    pub outcome: String,
    /// The outcome for people.
    pub message: String,
    /// Whom the policies expose, in the order they were looked at; the first fifty.
    pub candidates: Vec<Candidate>,
    /// Those of the first fifty that are not named, by cluster queue and fate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates_withheld: Vec<WithheldCandidates>,
    /// Candidates beyond those.
    pub unlisted: u32,
}

impl VictimSearch {
    /// Replaces candidates of namespaces that `may_name` rejects by their number, per cluster queue
    /// and fate.
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
    /// How many they are.
    pub workloads: u32,
    /// As of a [`Candidate`].
    pub fate: String,
    /// What that means, for people.
    pub message: String,
}

/// Somebody the policies expose to preemption.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Candidate {
    /// The workload.
    pub workload: ObjectName,
    /// Its cluster queue.
    pub cluster_queue: String,
    /// Its effective priority.
    pub priority: i64,
    /// `Victim`, `GivenBack`, `NotReached`, `NotEnough`, `OnlyWithoutBorrowing`, `WithinNominal` or `ShareTooSmall`.
    pub fate: String,
    /// What that means, for people.
    pub message: String,
}

/// A concurrent-admission variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Variant {
    /// Its Workload.
    pub name: String,
    /// Its flavor.
    #[serde(default)]
    pub flavor: String,
    /// Where it is.
    pub standing: Standing,
    /// What would be said about it.
    #[serde(default)]
    pub outlook: Option<Outlook>,
}

/// Part of the workloads that hold quota of a cluster queue, whoever holds it longest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterQueueHolders {
    /// Group and version.
    pub api_version: String,
    /// `ClusterQueueHolders`.
    pub kind: String,
    /// Nothing.
    pub metadata: ObjectMeta,
    /// How many there are, listed or not.
    pub total: usize,
    /// Those asked for.
    pub items: Vec<QuotaHolder>,
    /// Those asked for that are not named; absent when all are named.
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
    /// How many they are.
    pub workloads: usize,
    /// What they hold together.
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
    /// Since when it holds the quota.
    pub since: Option<Time>,
    /// It may run.
    pub admitted: bool,
    /// Reason of its eviction, while it is on its way out.
    pub evicted: Option<String>,
    /// What it holds.
    pub holds: Vec<Held>,
}

/// Quota that is held.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Held {
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// How much.
    pub amount: Quantity,
}
