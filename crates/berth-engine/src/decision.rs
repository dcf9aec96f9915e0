//! What a cycle decides, and why.
//!
//! A [`Decision`] is complete: carrying it out needs no further choice. Its reasons are data made
//! by the code that decided; the texts beside them are renderings of that data in Kueue's words.

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
    /// True if some heads of the cycle are still to be decided: the next call continues with them.
    pub goes_on: bool,
    /// Result of the whole cycle, all its parts together; `None` while the cycle goes on, and if
    /// it had no heads.
    pub result: Option<CycleResult>,
    /// Decisions, in the order they were taken.
    pub decisions: Vec<Decision>,
    /// Workloads that became inadmissible because an equivalent one just failed (§4.8), with the
    /// reason to show. They were not evaluated themselves.
    pub bypassed: Vec<(WorkloadKey, PendingReason)>,
    /// Per cluster queue, entries whose preemption was dropped in this cycle because of other
    /// entries (§5.6 steps 7 and 8).
    pub skipped_preemptions: BTreeMap<Name, u32>,
    /// Per cluster queue and result (`new_targets`, `deferred_fit`, `skipped`), recomputed
    /// preemption targets.
    pub target_recomputations: BTreeMap<Name, BTreeMap<&'static str, u32>>,
    /// True when another call right now could decide something more: the rest of this cycle, or
    /// another one.
    pub more: bool,
    /// When to call `cycle` next even if no event comes (back-offs, flush delays, second passes);
    /// see [`crate::Engine::next_wakeup`].
    pub next_wakeup: Option<Time>,
}

impl CycleOutcome {
    /// True if something was admitted or evicted here.
    pub(crate) fn is_success(&self) -> bool {
        self.decisions.iter().any(|decision| matches!(decision.verdict, Verdict::Admit(_) | Verdict::Evict { .. }))
    }
}

/// Result of a cycle (§5.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CycleResult {
    /// At least one workload was admitted or evicted.
    Success,
    /// No workload was admitted or evicted.
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

/// Decision about one workload.
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
    /// Write this admission. The engine already counts it; report `AdmissionFailed` if the write
    /// fails.
    Admit(Admit),
    /// Evict these victims, then show why the workload still waits. The engine keeps the victims'
    /// quota counted until their objects say it was released.
    Preempt {
        /// Workloads to evict.
        victims: Vec<Victim>,
        /// What to show for the workload itself.
        wait: Wait,
    },
    /// It waits; show why.
    Wait(Wait),
    /// Evict the workload itself: a failed node without replacement (§5.6 step 2), or a variant
    /// that leaves for a sibling on a better flavor (§23).
    Evict {
        /// Reason of condition Evicted.
        reason: &'static str,
        /// Its message.
        message: String,
        /// Why its pods found no other nodes, if that is the cause of the eviction; shown if the
        /// eviction cannot be written.
        unplaced: Option<String>,
    },
}

/// An admission to write.
#[derive(Debug, Clone, PartialEq)]
pub struct Admit {
    /// Quota, counts and topology.
    pub admission: Admission,
    /// Admission checks that this admission needs, in name order; with none, it is admitted at
    /// once (§17.2).
    pub checks: Vec<Name>,
    /// True when the workload held a reservation already and only its topology is new (§17.6).
    pub second_pass: bool,
    /// The elastic slice that ends with this admission (§13.3).
    pub replaces: Option<WorkloadKey>,
    /// Flavors and searches for victims that led to it.
    pub considered: Considered,
}

/// A workload to evict for another.
#[derive(Debug, Clone, PartialEq)]
pub struct Victim {
    /// The workload.
    pub workload: WorkloadKey,
    /// UID of the workload.
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
    /// Priority of the workload it is evicted for.
    pub preemptor_priority: Priority,
}

/// A workload's priority and what it is made of (§3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Priority {
    /// `spec.priority`.
    pub base: i64,
    /// Amount that the boost annotation adds.
    pub boost: i64,
}

impl Priority {
    /// The priority that decisions use: base and boost together.
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
    /// True when it went back to the second-pass queue instead: emit only the event
    /// `SecondPassFailed`.
    pub second_pass_failed: bool,
    /// True when BlockedOnPreemptionGates=True has to be written (§5.6 step 5).
    pub blocked_on_preemption_gates: bool,
    /// Total requests per pod set, for `status.resourceRequests`.
    pub requests: Arc<Vec<(Name, ResourceList)>>,
    /// Flavors and searches for victims that were tried.
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
    /// No specific reason.
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
    /// Its preemption gate is closed.
    PreemptionGated,
    /// No flavor can take it.
    NoFit,
    /// It needs preemption and has no preemption candidates.
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
    /// Requests more than the queue's maximum capacity.
    ExceedsMaxQuota,
    /// Would fit if other workloads released quota.
    WaitingForQuota,
    /// Fits by quota, but not on the nodes.
    TopologyPlacementFailed,
    /// Its victims are being evicted.
    WaitingForPreemptedWorkloads,
    /// Its queue or its object is misconfigured.
    Misconfigured,
    /// Its queue is stopped or inactive.
    Suspended,
    /// Not evaluated yet.
    PendingEvaluation,
    /// An admitted workload's pods are not ready.
    WaitingForPodsReady,
    /// An admission gate is closed.
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
    /// The victim has lower priority in the same queue.
    InClusterQueue,
    /// The victim's queue borrows quota of the preemptor's queue.
    InCohortReclamation,
    /// Fair sharing.
    InCohortFairSharing,
    /// The victim has lower priority in a queue that borrows, as the preemptor would.
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

    /// The reason in Kueue's words, as in messages.
    pub fn human(self) -> &'static str {
        match self {
            PreemptionReason::InClusterQueue => "prioritization in the ClusterQueue",
            PreemptionReason::InCohortReclamation => "reclamation within the cohort",
            PreemptionReason::InCohortFairSharing => "Fair Sharing within the cohort",
            PreemptionReason::InCohortReclaimWhileBorrowing => "reclamation within the cohort while borrowing",
        }
    }
}

/// Flavors and searches for victims that were tried for a workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Considered {
    /// Flavors tried, per pod set.
    pub pod_sets: Vec<PodSetConsidered>,
    /// Highest level of the cohort tree the assignment borrows from; 0 when it does not borrow.
    pub borrowing_level: u32,
    /// Searches for victims, in the order they were made.
    pub victim_searches: Vec<VictimSearch>,
}

/// Flavors tried for one pod set.
#[derive(Debug, Clone, PartialEq)]
pub struct PodSetConsidered {
    /// Pod set name.
    pub pod_set: Name,
    /// Attempts in the order they were made.
    pub attempts: Vec<FlavorAttempt>,
    /// Findings that concern no single flavor.
    pub findings: Vec<Finding>,
}

/// One search for victims (§9, §10): for a single resource of a flavor while flavors were compared
/// (§8.6), or for all that the assignment is short of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimSearch {
    /// Flavor and resource of the search, if it was for a single one.
    pub only: Option<(Name, Name)>,
    /// Outcome of the search.
    pub outcome: SearchOutcome,
    /// Workloads that the policies allow to preempt, in the order they were tried; at most fifty.
    pub candidates: Vec<ConsideredVictim>,
    /// Candidates whose names are withheld from the reader ([`crate::Explanation::withhold`]).
    pub withheld: Vec<WithheldCandidates>,
    /// Number of candidates beyond those listed.
    pub unlisted: u32,
}

/// Outcome of a search for victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SearchOutcome {
    /// Enough victims were found.
    Found,
    /// `withinClusterQueue` and, if the queue has a cohort, `reclaimWithinCohort` are Never.
    Forbidden,
    /// The policies allow to preempt no workload that holds what is needed.
    NoCandidates,
    /// The workload would not fit even without every workload that may be preempted.
    NotEnough,
    /// Every candidate is protected by something else: its priority while the preemptor borrows,
    /// its queue's own quota, or shares.
    Protected,
}

/// A workload that the policies allow to preempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsideredVictim {
    /// The workload.
    pub workload: WorkloadKey,
    /// The cluster queue it holds quota in.
    pub cluster_queue: Name,
    /// Effective priority.
    pub priority: i64,
    /// Outcome of the search for it.
    pub fate: VictimFate,
}

/// Outcome of a search for victims for one candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VictimFate {
    /// It is one of the victims.
    Victim(PreemptionReason),
    /// It was chosen first and then dropped: the other victims suffice (§9.9).
    GivenBack,
    /// Earlier candidates sufficed.
    NotReached,
    /// It was chosen, but all candidates together did not suffice.
    NotEnough,
    /// Its priority protects it while the preemptor borrows (§9.4).
    OnlyWithoutBorrowing,
    /// When its turn came, its queue or a cohort above it used no more than its own quota (§9.7).
    WithinNominal,
    /// Its queue's share does not exceed the preemptor's enough for fair sharing to take from it
    /// (§10.7).
    ShareTooSmall,
}

/// How well a flavor, a pod set or a workload can be served, worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AssignmentMode {
    /// It does not fit.
    NoFit,
    /// It fits if other workloads are preempted.
    Preempt,
    /// It fits once the victims of another entry have released their quota (§5.6 step 1).
    DeferredFit,
    /// It fits now.
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
    /// How well the flavor serves the pod set.
    pub mode: AssignmentMode,
    /// Kind of preemption it would need.
    pub preemption: PreemptionMode,
    /// Level of the cohort tree it would borrow from.
    pub borrowing_level: u32,
    /// What is short or wrong.
    pub findings: Vec<Finding>,
    /// The least severe reason it does not fit, if it does not.
    pub no_fit: Option<PendingReason>,
}

/// The finer mode the search compares flavors by (§8.7), worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PreemptionMode {
    /// The flavor cannot be used.
    NoFit,
    /// Needs preemption, and there are no preemption candidates.
    NoPreemptionCandidates,
    /// Fits by preempting workloads of its own queue.
    Preempt,
    /// Fits by reclaiming quota that other queues borrowed.
    Reclaim,
    /// Fits without preemption.
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
    /// Neither the pods nor the flavor tolerate one of the flavor's taints.
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
        /// Amount requested by earlier pod sets of the workload.
        assumed: i64,
        /// Amount requested by this pod set.
        requested: i64,
        /// The most that could ever be available.
        maximum: crate::Amount,
        /// The queue or cohort whose quota or borrowing limit sets that maximum.
        short_at: Name,
    },
    /// The flavor has the quota, but not enough of it is unused.
    InsufficientQuota {
        /// The resource.
        resource: Name,
        /// The flavor.
        flavor: Name,
        /// Amount that is missing.
        missing: i64,
        /// Total amount requested.
        requested: i64,
        /// Amount available now.
        available: crate::Amount,
        /// The queue or cohort that runs out, or whose borrowing limit does.
        short_at: Name,
        /// The policy that forbids preemption for it, if preemption was not even tried.
        forbidden: Option<PreemptionBar>,
    },
    /// The flavor was not nominated for the resource; a recomputation considers nominated flavors
    /// only (§8.4, §5.6).
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
    /// The flavor has enough quota, but its nodes cannot take the pods.
    Topology(TopologyShortage),
    /// The pods' topology request cannot be served, whatever is free.
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
        /// The requested level.
        level: Name,
        /// The levels there are, coarse to fine.
        levels: Vec<Name>,
    },
    /// No flavor of the pod set has a topology.
    NoFlavor,
    /// The pod set has flavors of several topologies.
    SeveralFlavors {
        /// Names of the flavors.
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
        /// The requested level.
        level: Name,
        /// True if it was requested for slices.
        of_slices: bool,
    },
    /// Slices were requested without a size.
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
    /// The slice level is above the level of the request: slices must fit inside the domain that
    /// all pods must fit in.
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
    /// Failed nodes cannot be replaced, because the placement names a domain that no longer exists
    /// (§15.3).
    StaleDomain {
        /// The domain, coarse to fine.
        values: Vec<Name>,
    },
    /// The flavor's topology was removed.
    Gone,
}

/// Why preemption is not allowed for a request that exceeds the queue's own quota (§8.5).
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

/// Shortage of capacity in a flavor's topology (§14.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyShortage {
    /// The topology.
    pub topology: Name,
    /// Pods per slice; 1 when pods are placed one by one.
    pub slice_size: i64,
    /// Number of pods, or of slices, to place.
    pub needed: i64,
    /// Number of them that fit where the request requires.
    pub fits: i64,
    /// The layers of a multi-layer request, coarse to fine.
    pub layers: Vec<LayerShortage>,
    /// Capacity of the levels, from the requested level upwards.
    pub levels: Vec<LevelCapacity>,
    /// Number of lowest domains; these are usually nodes.
    pub nodes: usize,
    /// Lowest domains that cannot take a single pod, by reason, in the order of the reasons'
    /// texts.
    pub excluded: Vec<(Exclusion, usize)>,
}

/// Shortage in one layer of a multi-layer request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerShortage {
    /// Level.
    pub level: Name,
    /// Number of slices of this layer's size that fit.
    pub fits: i64,
    /// Number of slices needed.
    pub needed: i64,
}

/// Capacity of the domains of one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelCapacity {
    /// Level.
    pub level: Name,
    /// Number of domains.
    pub domains: usize,
    /// Capacity of the largest domain, in pods or slices as requested.
    pub best: i64,
    /// Capacity of all domains together.
    pub total: i64,
}

/// Why a lowest domain cannot take a single pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exclusion {
    /// It is outside the domain that replacement pods must stay in.
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
