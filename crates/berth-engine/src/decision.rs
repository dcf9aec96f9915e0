//! What a cycle decides, and why.
//!
//! A [`Decision`] is complete: carrying it out needs no further choice. Its reasons are data made by the code that
//! decided; the texts beside them are renderings of that data in Kueue's words.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::Name;
use crate::model::{Admission, ResourceList, Time, WorkloadKey};
use crate::withheld::WithheldCandidates;

/// What a scheduling cycle decided, or a part of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CycleOutcome {
    /// Number of the cycle, from 1. Its parts have the same.
    pub cycle: u64,
    /// True if some of the cycle's heads are still to be answered: the next call goes on with them.
    pub goes_on: bool,
    /// What came of the whole cycle, all its parts taken together; `None` while it goes on, and if nobody was there to be
    /// answered.
    pub result: Option<CycleResult>,
    /// Decisions, in the order they were taken.
    pub decisions: Vec<Decision>,
    /// Workloads that were set aside unseen because an equivalent one just failed (§4.8), with the reason to show.
    pub bypassed: Vec<(WorkloadKey, PendingReason)>,
    /// Per cluster queue, entries that lost their preemption in this cycle because of others (§5.6 steps 7 and 8).
    pub skipped_preemptions: BTreeMap<Name, u32>,
    /// Per cluster queue and result (`new_targets`, `deferred_fit`, `skipped`), recomputed preemption targets.
    pub target_recomputations: BTreeMap<Name, BTreeMap<&'static str, u32>>,
    /// True when another call right now could decide something more: the rest of this cycle, or another one.
    pub more: bool,
    /// When to call `cycle` next even if no event comes (back-offs, flush delays, second passes); see
    /// [`crate::Engine::next_wakeup`].
    pub next_wakeup: Option<Time>,
}

impl CycleOutcome {
    /// True if something was admitted or evicted here.
    pub(crate) fn is_success(&self) -> bool {
        self.decisions.iter().any(|decision| matches!(decision.verdict, Verdict::Admit(_) | Verdict::Evict { .. }))
    }
}

/// What came of a cycle (§5.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CycleResult {
    /// Something was admitted or evicted.
    Success,
    /// Nothing was.
    Inadmissible,
}

impl CycleResult {
    /// Upstream's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            CycleResult::Success => "success",
            CycleResult::Inadmissible => "inadmissible",
        }
    }
}

/// What to do about one workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The workload.
    pub workload: WorkloadKey,
    /// The cluster queue it waits in.
    pub cluster_queue: Name,
    /// What to do.
    pub verdict: Verdict,
}

/// The kinds of decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Write this admission. The engine already counts it; report `AdmissionFailed` if the write fails.
    Admit(Admit),
    /// Evict these victims, then show why the workload still waits. The engine keeps the victims' quota counted until
    /// their objects say it was released.
    Preempt {
        /// Whom to evict.
        victims: Vec<Victim>,
        /// What to show for the workload itself.
        wait: Wait,
    },
    /// It waits; show why.
    Wait(Wait),
    /// Evict the workload itself: a failed node without replacement (§5.6 step 2), or a variant that leaves for a sibling
    /// on a better flavor (§23).
    Evict {
        /// Reason of condition Evicted.
        reason: &'static str,
        /// Its message.
        message: String,
        /// Why its pods found no other nodes, if that is why it is evicted; to be told if the eviction cannot be written.
        unplaced: Option<String>,
    },
}

/// An admission to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Admit {
    /// Quota, counts and topology.
    pub admission: Admission,
    /// Admission checks this admission has to pass, in name order; empty: it is admitted at once (§17.2).
    pub checks: Vec<Name>,
    /// True when the workload held a reservation already and only its topology is new (§17.6).
    pub second_pass: bool,
    /// The elastic slice that ends with this admission (§13.3).
    pub replaces: Option<WorkloadKey>,
    /// How it was found.
    pub considered: Considered,
}

/// A workload to evict for another.
#[derive(Debug, Clone, PartialEq)]
pub struct Victim {
    /// The workload.
    pub workload: WorkloadKey,
    /// Its UID.
    pub uid: Name,
    /// The cluster queue it runs in.
    pub cluster_queue: Name,
    /// Why it may be preempted.
    pub reason: PreemptionReason,
    /// Message for its conditions Evicted and Preempted (§11.1).
    pub message: String,
    /// False when it is being evicted already: nothing has to be written.
    pub write: bool,
    /// Priority of the victim.
    pub priority: Priority,
    /// Priority of the workload it makes room for.
    pub preemptor_priority: Priority,
}

/// A workload's priority and what it is made of (§3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priority {
    /// `spec.priority`.
    pub base: i64,
    /// What the boost annotation adds.
    pub boost: i64,
}

impl Priority {
    /// What counts.
    pub fn effective(self) -> i64 {
        self.base + self.boost
    }
}

/// Why a workload waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Wait {
    /// Reason of QuotaReserved=False.
    pub reason: PendingReason,
    /// Message of the condition and event.
    pub message: String,
    /// How far the entry got (§5.10).
    pub status: EntryStatus,
    /// How it went back to its queue.
    pub requeue: RequeueReason,
    /// True when the condition, `status.resourceRequests` and an event are to be written (§5.10).
    pub write_status: bool,
    /// True when it went back to the second-pass queue instead: emit only the event `SecondPassFailed`.
    pub second_pass_failed: bool,
    /// True when BlockedOnPreemptionGates=True has to be written (§5.6 step 5).
    pub blocked_on_preemption_gates: bool,
    /// Total requests per pod set, for `status.resourceRequests`.
    pub requests: Arc<Vec<(Name, ResourceList)>>,
    /// What was tried.
    pub considered: Considered,
}

/// How far an entry got in a cycle (§5.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryStatus {
    /// No assignment was good enough.
    NotNominated,
    /// Its assignment was good, but carrying it out failed.
    Nominated,
    /// Another entry of the cycle came first.
    Skipped,
    /// It would preempt but may not yet.
    PreemptionGated,
    /// It was evicted.
    Evicted,
    /// It was admitted.
    Assumed,
}

impl EntryStatus {
    /// Upstream's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            EntryStatus::NotNominated => "",
            EntryStatus::Nominated => "nominated",
            EntryStatus::Skipped => "skipped",
            EntryStatus::PreemptionGated => "preemptionGated",
            EntryStatus::Evicted => "evicted",
            EntryStatus::Assumed => "assumed",
        }
    }
}

/// Why a workload went back to its queue (§4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RequeueReason {
    /// Nothing in particular.
    #[default]
    Generic,
    /// Nominated, but not carried out.
    FailedAfterNomination,
    /// Its namespace is not selected by the queue.
    NamespaceMismatch,
    /// It waits for its victims.
    PendingPreemption,
    /// It waits for its sibling variant to leave.
    PendingMigration,
    /// Its victims could not be evicted.
    PreemptionFailed,
    /// It may not preempt yet.
    PreemptionGated,
    /// No flavor can take it.
    NoFit,
    /// It needs preemption and found nobody to preempt.
    PreemptionNoCandidates,
}

impl RequeueReason {
    /// Upstream's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            RequeueReason::Generic => "",
            RequeueReason::FailedAfterNomination => "FailedAfterNomination",
            RequeueReason::NamespaceMismatch => "NamespaceMismatch",
            RequeueReason::PendingPreemption => "PendingPreemption",
            RequeueReason::PendingMigration => "PendingMigration",
            RequeueReason::PreemptionFailed => "PreemptionFailed",
            RequeueReason::PreemptionGated => "PreemptionGated",
            RequeueReason::NoFit => "NoFit",
            RequeueReason::PreemptionNoCandidates => "PreemptionNoCandidates",
        }
    }
}

/// Reasons of condition QuotaReserved=False (§22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PendingReason {
    /// No flavor matches the pods.
    NoMatchingFlavor,
    /// Asks for more than could ever be given.
    ExceedsMaxQuota,
    /// Would fit if others left.
    WaitingForQuota,
    /// Quota would do, the nodes would not.
    TopologyPlacementFailed,
    /// Victims are leaving.
    WaitingForPreemptedWorkloads,
    /// Its queue or object is wrong.
    Misconfigured,
    /// Its queue is stopped or inactive.
    Suspended,
    /// Not looked at yet.
    PendingEvaluation,
    /// An admitted workload's pods are not ready.
    WaitingForPodsReady,
    /// A gate is closed.
    AdmissionGated,
    /// On hold.
    OnHold,
    /// Deactivated.
    Deactivated,
}

impl PendingReason {
    /// The condition's reason.
    pub fn as_str(self) -> &'static str {
        match self {
            PendingReason::NoMatchingFlavor => "NoMatchingFlavor",
            PendingReason::ExceedsMaxQuota => "ExceedsMaxQuota",
            PendingReason::WaitingForQuota => "WaitingForQuota",
            PendingReason::TopologyPlacementFailed => "TopologyPlacementFailed",
            PendingReason::WaitingForPreemptedWorkloads => "WaitingForPreemptedWorkloads",
            PendingReason::Misconfigured => "Misconfigured",
            PendingReason::Suspended => "Suspended",
            PendingReason::PendingEvaluation => "PendingEvaluation",
            PendingReason::WaitingForPodsReady => "WaitingForPodsReady",
            PendingReason::AdmissionGated => "AdmissionGated",
            PendingReason::OnHold => "OnHold",
            PendingReason::Deactivated => "Deactivated",
        }
    }
}

/// Why a victim may be preempted (§9.4, §10.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PreemptionReason {
    /// By priority, in the same queue.
    InClusterQueue,
    /// Its queue uses what belongs to the preemptor's.
    InCohortReclamation,
    /// Fair sharing.
    InCohortFairSharing,
    /// By priority, from a queue that borrows too.
    InCohortReclaimWhileBorrowing,
}

impl PreemptionReason {
    /// Reason of condition Preempted.
    pub fn as_str(self) -> &'static str {
        match self {
            PreemptionReason::InClusterQueue => "InClusterQueue",
            PreemptionReason::InCohortReclamation => "InCohortReclamation",
            PreemptionReason::InCohortFairSharing => "InCohortFairSharing",
            PreemptionReason::InCohortReclaimWhileBorrowing => "InCohortReclaimWhileBorrowing",
        }
    }

    /// How messages say it.
    pub fn human(self) -> &'static str {
        match self {
            PreemptionReason::InClusterQueue => "prioritization in the ClusterQueue",
            PreemptionReason::InCohortReclamation => "reclamation within the cohort",
            PreemptionReason::InCohortFairSharing => "Fair Sharing within the cohort",
            PreemptionReason::InCohortReclaimWhileBorrowing => "reclamation within the cohort while borrowing",
        }
    }
}

/// What was tried for a workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Considered {
    /// Per pod set, the flavors looked at.
    pub pod_sets: Vec<PodSetConsidered>,
    /// Highest level of the cohort tree the assignment borrows from; 0 when it does not borrow.
    pub borrowing_level: u32,
    /// Searches for victims, in the order they were made.
    pub victim_searches: Vec<VictimSearch>,
}

/// Flavors looked at for one pod set.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSetConsidered {
    /// Pod set name.
    pub pod_set: Name,
    /// Attempts in the order they were made.
    pub attempts: Vec<FlavorAttempt>,
    /// What was wrong apart from the flavors that were tried.
    pub findings: Vec<Finding>,
}

/// One search for victims (§9, §10): for a single resource of a flavor while flavors were compared (§8.6), or for all that
/// the assignment is short of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimSearch {
    /// Flavor and resource, where only one was looked at.
    pub only: Option<(Name, Name)>,
    /// What came of it.
    pub outcome: SearchOutcome,
    /// Whom the policies expose, in the order they were looked at; at most fifty.
    pub candidates: Vec<ConsideredVictim>,
    /// Those of them that are not named to the reader of an explanation ([`crate::Explanation::withhold`]).
    pub withheld: Vec<WithheldCandidates>,
    /// Candidates there were beyond those listed.
    pub unlisted: u32,
}

/// What came of a search for victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SearchOutcome {
    /// Enough victims were found.
    Found,
    /// `withinClusterQueue` and, if the queue has a cohort, `reclaimWithinCohort` are Never.
    Forbidden,
    /// The policies expose nobody who holds what is needed.
    NoCandidates,
    /// The workload would not fit even without everybody who may be preempted.
    NotEnough,
    /// Everybody the policies expose is protected by something else: priority while borrowing, quota of their own, shares.
    Protected,
}

/// A workload that the policies expose to preemption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsideredVictim {
    /// The workload.
    pub workload: WorkloadKey,
    /// The cluster queue it holds quota in.
    pub cluster_queue: Name,
    /// Effective priority.
    pub priority: i64,
    /// What became of it.
    pub fate: VictimFate,
}

/// What a search for victims did with a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VictimFate {
    /// It is one of the victims.
    Victim(PreemptionReason),
    /// It was taken at first and given back: the others make enough room (§9.9).
    GivenBack,
    /// Enough room was made before its turn came.
    NotReached,
    /// It was taken, and still there was not enough room.
    NotEnough,
    /// Its priority protects it while the preemptor borrows (§9.4).
    OnlyWithoutBorrowing,
    /// Its queue, or a cohort above that, uses no more than it owns by then (§9.7).
    WithinNominal,
    /// Its queue's share is not so much larger than the preemptor's that fair sharing takes from it (§10.7).
    ShareTooSmall,
}

/// How well a flavor suits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AssignmentMode {
    /// Not at all.
    NoFit,
    /// If others are preempted.
    Preempt,
    /// Once the victims of another entry have left (§5.6 step 1).
    DeferredFit,
    /// Now.
    Fit,
}

impl AssignmentMode {
    /// Upstream's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            AssignmentMode::NoFit => "NoFit",
            AssignmentMode::Preempt => "Preempt",
            AssignmentMode::DeferredFit => "DeferredFit",
            AssignmentMode::Fit => "Fit",
        }
    }
}

/// One flavor tried for one pod set.
#[derive(Debug, Clone, PartialEq)]
pub struct FlavorAttempt {
    /// Flavor.
    pub flavor: Name,
    /// How well it suits.
    pub mode: AssignmentMode,
    /// What preemption would be like.
    pub preemption: PreemptionMode,
    /// Level of the cohort tree it would borrow from.
    pub borrowing_level: u32,
    /// What was short or wrong.
    pub findings: Vec<Finding>,
    /// The least severe reason it does not fit, if it does not.
    pub no_fit: Option<PendingReason>,
}

/// The finer mode the search compares flavors by (§8.7), worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PreemptionMode {
    /// Cannot be used.
    NoFit,
    /// Needs preemption, and there is nobody to preempt.
    NoPreemptionCandidates,
    /// By preempting in its own queue.
    Preempt,
    /// By reclaiming what other queues borrowed.
    Reclaim,
    /// Without preemption.
    Fit,
}

/// One thing found about a flavor or a pod set; rendered by `Display` in Kueue's words.
#[derive(Debug, Clone, PartialEq)]
pub enum Finding {
    /// No resource group of the queue covers the resource.
    ResourceUnavailable {
        /// The resource.
        resource: Name,
    },
    /// The flavor object does not exist.
    FlavorNotFound {
        /// The flavor.
        flavor: Name,
    },
    /// A taint nobody tolerates.
    UntoleratedTaint {
        /// The taint as Kueue prints it.
        taint: String,
        /// The flavor.
        flavor: Name,
    },
    /// Node selector or affinity exclude the flavor.
    AffinityMismatch {
        /// The flavor.
        flavor: Name,
    },
    /// The request exceeds what the flavor could give if nothing else ran.
    ExceedsMaximum {
        /// The resource.
        resource: Name,
        /// The flavor.
        flavor: Name,
        /// Asked for by earlier pod sets of the workload.
        assumed: i64,
        /// Asked for by this pod set.
        requested: i64,
        /// The most that could ever be available.
        maximum: crate::Amount,
        /// The queue or cohort whose quota or borrowing limit sets that maximum.
        short_at: Name,
    },
    /// The flavor could give it, but not now.
    InsufficientQuota {
        /// The resource.
        resource: Name,
        /// The flavor.
        flavor: Name,
        /// How much is missing.
        missing: i64,
        /// How much was asked for in total.
        requested: i64,
        /// How much is available now.
        available: crate::Amount,
        /// The queue or cohort that runs out, or whose borrowing limit does.
        short_at: Name,
        /// What forbids to preempt for it, if preemption was not even tried.
        forbidden: Option<PreemptionBar>,
    },
    /// The flavor was not nominated for the resource, and only nominated ones are looked at again (§8.4, §5.6).
    NotNominated {
        /// The flavor.
        flavor: Name,
        /// The resource.
        resource: Name,
    },
    /// The variant may use other flavors only (§23).
    NotOfVariant {
        /// The flavor.
        flavor: Name,
    },
    /// An elastic job grows on the flavor it has (§8.5, §13.2).
    HeldOnOtherFlavor {
        /// The flavor.
        flavor: Name,
        /// The flavor the workload's earlier slice holds.
        held: Name,
    },
    /// The flavor's quota would do, its nodes do not.
    Topology(TopologyShortage),
    /// What the pods ask of a topology cannot be served whatever is free.
    TopologyRequest(TopologyProblem),
}

/// Why a request for a topology cannot be served, or not by a flavor (§14.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopologyProblem {
    /// The pods ask for a topology, and the flavor has none.
    FlavorWithout {
        /// The flavor.
        flavor: Name,
    },
    /// The pods ask for no topology, and the flavor takes only pods that do.
    FlavorOnlyWith {
        /// The flavor.
        flavor: Name,
    },
    /// The flavor's Topology object is not known.
    FlavorUnknown {
        /// The flavor.
        flavor: Name,
    },
    /// The flavor's topology has no level of this name.
    FlavorWithoutLevel {
        /// The flavor.
        flavor: Name,
        /// The level asked for.
        level: Name,
        /// The levels there are, coarse to fine.
        levels: Vec<Name>,
    },
    /// No flavor of the pod set has a topology.
    NoFlavor,
    /// The pod set has flavors of several topologies.
    SeveralFlavors {
        /// They, by name.
        flavors: Vec<Name>,
    },
    /// No flavor of the queue has a topology that is known.
    NothingKnown,
    /// Elastic jobs with such requests are not supported (§13.5).
    NotForElasticJobs {
        /// `required` or `preferred`.
        mode: &'static str,
    },
    /// The topology has no such level.
    NoSuchLevel {
        /// The level asked for.
        level: Name,
        /// True if it was asked for slices.
        of_slices: bool,
    },
    /// Slices were asked for, and no size was given.
    NoSliceSize,
    /// Layers of slices do not nest.
    LayersDoNotNest {
        /// Level of the inner layer.
        inner: Name,
        /// Level of the outer layer.
        outer: Name,
        /// Pods of a slice of the outer layer.
        outer_size: i64,
    },
    /// Slices have to fit into the domain the pods have to fit into.
    SliceAboveRequest {
        /// Level of the slices.
        slice: Name,
        /// Level of the request.
        level: Name,
    },
    /// No node has the label of the level.
    NoDomains {
        /// The level.
        level: Name,
    },
    /// Failed nodes cannot be replaced, as the placement names a domain that is no more (§15.3).
    StaleDomain {
        /// The domain, coarse to fine.
        values: Vec<Name>,
    },
    /// The flavor's topology went away.
    Gone,
}

/// Why nobody may be preempted for a request that exceeds what the queue itself owns (§8.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PreemptionBar {
    /// The workload would borrow, and `borrowWithinCohort` is Never.
    BorrowWithinCohortNever,
    /// The workload would borrow, and under fair sharing `reclaimWithinCohort` is Never.
    ReclaimWithinCohortNever,
}

impl PreemptionBar {
    /// The field of `spec.preemption` that is Never.
    pub fn policy(self) -> &'static str {
        match self {
            PreemptionBar::BorrowWithinCohortNever => "borrowWithinCohort",
            PreemptionBar::ReclaimWithinCohortNever => "reclaimWithinCohort",
        }
    }
}

/// Pods that find no places in a flavor's topology (§14.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyShortage {
    /// The topology.
    pub topology: Name,
    /// Pods that go together; 1 when they go one by one.
    pub slice_size: i64,
    /// Pods, or slices of pods, that need a place.
    pub needed: i64,
    /// How many of them fit where they would have to.
    pub fits: i64,
    /// The layers of a multi-layer request, coarse to fine.
    pub layers: Vec<LayerShortage>,
    /// What the levels could hold, from the one that was asked for upwards.
    pub levels: Vec<LevelCapacity>,
    /// Lowest domains (nodes, most often) there are.
    pub nodes: usize,
    /// Those that take not even one pod, by reason, in the order of the reasons' texts.
    pub excluded: Vec<(Exclusion, usize)>,
}

/// What one layer of a multi-layer request finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerShortage {
    /// Level.
    pub level: Name,
    /// Slices of this layer's size that fit, and that are needed.
    pub fits: i64,
    /// Slices needed.
    pub needed: i64,
}

/// What the domains of one level could hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelCapacity {
    /// Level.
    pub level: Name,
    /// Domains there are.
    pub domains: usize,
    /// The most that one of them holds, in pods or slices as asked for.
    pub best: i64,
    /// What all of them hold.
    pub total: i64,
}

/// Why a lowest domain takes not even one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exclusion {
    /// It is outside of the domain that replacements have to stay in.
    OtherDomain,
    /// Its node's taint is not tolerated: `key=value:effect`.
    Taint(String),
    /// The pods' node selector excludes its node.
    NodeSelector,
    /// The pods' required node affinity excludes its node.
    Affinity,
    /// Too little of this resource is left.
    Resource(Name),
}
