//! Flavors that were tried for a workload, and what was found to be short or wrong.

use super::{PendingReason, VictimSearch};
use crate::amount::Amount;
use crate::ids::Name;
use crate::model::Taint;

/// Flavors and searches for victims that were tried for a workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Considered {
    /// Flavors tried, per pod set.
    pub pod_sets: Vec<PodSetConsidered>,
    /// Highest level of the cohort tree from which the assignment borrows; 0 if it does not borrow.
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
    /// Findings that the message of the pod set lists, including those of attempts.
    pub findings: Vec<Finding>,
    /// Set if the chosen flavors cannot serve the pods' topology request.
    pub error: Option<TopologyProblem>,
}

impl PodSetConsidered {
    /// Findings that concern no single attempt.
    pub fn other_findings(&self) -> impl Iterator<Item = Finding> {
        let apart = |finding: &&Finding| !self.attempts.iter().any(|attempt| attempt.findings.contains(finding));
        self.findings.iter().filter(apart).cloned().chain(self.error.clone().map(Finding::TopologyRequest))
    }
}

/// The assignment mode of a flavor, a pod set or a workload, worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AssignmentMode {
    /// Does not fit.
    NoFit,
    /// Fits if other workloads are preempted.
    Preempt,
    /// Fits once the victims of another entry have released their quota (§5.6 step 1).
    DeferredFit,
    /// Fits now.
    Fit,
}

impl AssignmentMode {
    /// The name that Kueue gives the mode.
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
    /// The assignment mode of the flavor for the pod set.
    pub mode: AssignmentMode,
    /// Kind of preemption it would need.
    pub preemption: PreemptionMode,
    /// Level of the cohort tree it would borrow from.
    pub borrowing_level: u32,
    /// Shortages and problems of the flavor.
    pub findings: Vec<Finding>,
    /// The least severe reason why it does not fit, if it does not fit.
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

/// A finding about a flavor or a pod set. Its `Display` renders it in Kueue's words.
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
    /// The flavor gets no workloads for a while, because its capacity failed recently.
    CoolingDown {
        /// The flavor.
        flavor: Name,
        /// Until when, and why.
        text: Name,
    },
    /// Neither the pods nor the flavor tolerate one of the flavor's taints.
    UntoleratedTaint {
        /// The taint.
        taint: Taint,
        /// The flavor.
        flavor: Name,
    },
    /// The node selector or the affinity excludes the flavor.
    AffinityMismatch {
        /// The flavor.
        flavor: Name,
    },
    /// The request exceeds the amount that the flavor could give if no other workload ran.
    ExceedsMaximum {
        /// The resource.
        resource: Name,
        /// The flavor.
        flavor: Name,
        /// Amount requested by earlier pod sets of the workload.
        assumed: i64,
        /// Amount requested by this pod set.
        requested: i64,
        /// The largest amount that could ever be available.
        maximum: Amount,
        /// The queue or cohort whose quota or borrowing limit sets that maximum.
        short_at: Name,
    },
    /// The flavor's quota would suffice, but not enough of it is unused.
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
        available: Amount,
        /// The queue or cohort whose quota or borrowing limit is exhausted.
        short_at: Name,
        /// The policy that forbids preemption, if preemption was not tried.
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
    /// The variant may only use other flavors (§23).
    NotOfVariant {
        /// The flavor.
        flavor: Name,
    },
    /// An elastic job can only grow on the flavor that it holds (§8.5, §13.2).
    HeldOnOtherFlavor {
        /// The flavor.
        flavor: Name,
        /// The flavor that the workload's earlier slice holds.
        held: Name,
    },
    /// The flavor has enough quota, but its nodes cannot take the pods.
    Topology(TopologyShortage),
    /// The pods' topology request cannot be served, regardless of free capacity.
    TopologyRequest(TopologyProblem),
}

/// Why a topology request cannot be served, or not by a flavor (§14.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopologyProblem {
    /// The pods request a topology, and the flavor has none.
    FlavorWithout {
        /// The flavor.
        flavor: Name,
    },
    /// The pods request no topology, and the flavor only takes pods that request one.
    FlavorOnlyWith {
        /// The flavor.
        flavor: Name,
    },
    /// The flavor's Topology object does not exist.
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
        /// The levels of the topology, coarse to fine.
        levels: Vec<Name>,
    },
    /// No flavor of the pod set has a topology.
    NoFlavor,
    /// The pod set has flavors of several topologies.
    SeveralFlavors {
        /// Names of the flavors.
        flavors: Vec<Name>,
    },
    /// No flavor of the queue has an existing topology.
    NothingKnown,
    /// Elastic jobs with such topology requests are not supported (§13.5).
    NotForElasticJobs {
        /// `required` or `preferred`.
        mode: &'static str,
    },
    /// The level is not a level of the topology.
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
    /// The slice level is above the requested level. Slices must fit inside the domain that all
    /// pods must fit in.
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

/// Reason why preemption is not allowed for a request that exceeds the queue's own quota (§8.5).
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
    /// Number of pods or slices that fit where the request requires.
    pub fits: i64,
    /// The layers of a multi-layer request, coarse to fine.
    pub layers: Vec<LayerShortage>,
    /// Capacity of the levels, from the requested level upwards.
    pub levels: Vec<LevelCapacity>,
    /// Number of lowest domains; these are usually nodes.
    pub nodes: usize,
    /// Lowest domains that cannot take a single pod, by reason.
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
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// The domain is outside the domain in which replacement pods must stay.
    OtherDomain,
    /// The domain's node's taint is not tolerated.
    Taint(Taint),
    /// The pods' node selector excludes its node.
    NodeSelector,
    /// The pods' required node affinity excludes its node.
    Affinity,
    /// Too little of this resource is left.
    Resource(Name),
}
