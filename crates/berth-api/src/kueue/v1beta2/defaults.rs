//! The values of absent fields. The API server sets most of these defaults. Objects that were not
//! read from it (made in tests, or read from files) lack them, so code reads such fields through
//! these functions.

use super::{
    ClusterQueuePreemption, ClusterQueueSpec, FlavorFungibility, FlavorFungibilityPolicy, LocalQueueSpec, PodSet,
    PodSetAssignment, ProvisioningRequestRetryStrategy, QueueingStrategy, ReclaimWithinCohort, StopPolicy,
    WithinClusterQueue, WorkloadSpec,
};
use crate::kueue::constants::DEFAULT_POD_SET;

impl ClusterQueueSpec {
    /// The queueing strategy; `BestEffortFIFO` when absent.
    pub fn queueing_strategy_or_default(&self) -> QueueingStrategy {
        self.queueing_strategy.unwrap_or_default()
    }

    /// The stop policy; `None` when absent.
    pub fn stop_policy_or_default(&self) -> StopPolicy {
        self.stop_policy.unwrap_or_default()
    }
}

impl LocalQueueSpec {
    /// The stop policy; `None` when absent.
    pub fn stop_policy_or_default(&self) -> StopPolicy {
        self.stop_policy.unwrap_or_default()
    }
}

impl FlavorFungibility {
    /// The policy if the flavor fits by borrowing; `MayStopSearch` when absent.
    pub fn when_can_borrow_or_default(&self) -> FlavorFungibilityPolicy {
        self.when_can_borrow.unwrap_or(FlavorFungibilityPolicy::MayStopSearch)
    }

    /// The policy if the flavor fits after preemption; `TryNextFlavor` when absent, unlike for
    /// borrowing.
    pub fn when_can_preempt_or_default(&self) -> FlavorFungibilityPolicy {
        self.when_can_preempt.unwrap_or(FlavorFungibilityPolicy::TryNextFlavor)
    }
}

impl ClusterQueuePreemption {
    /// Preemption within the queue; `Never` when absent.
    pub fn within_cluster_queue_or_default(&self) -> WithinClusterQueue {
        self.within_cluster_queue.unwrap_or_default()
    }

    /// Preemption of borrowers; `Never` when absent.
    pub fn reclaim_within_cohort_or_default(&self) -> ReclaimWithinCohort {
        self.reclaim_within_cohort.unwrap_or_default()
    }
}

impl WorkloadSpec {
    /// True if the workload may be admitted, which is the default.
    pub fn is_active(&self) -> bool {
        self.active.unwrap_or(true)
    }
}

impl PodSet {
    /// The name; `main` when empty.
    pub fn name_or_default(&self) -> &str {
        if self.name.is_empty() { DEFAULT_POD_SET } else { &self.name }
    }
}

impl PodSetAssignment {
    /// The name of the pod set; `main` when empty.
    pub fn name_or_default(&self) -> &str {
        if self.name.is_empty() { DEFAULT_POD_SET } else { &self.name }
    }
}

impl ProvisioningRequestRetryStrategy {
    /// Retries before the check is rejected; 3 when absent.
    pub fn backoff_limit_count_or_default(&self) -> i32 {
        self.backoff_limit_count.unwrap_or(3)
    }

    /// Seconds before the first retry; 60 when absent.
    pub fn backoff_base_seconds_or_default(&self) -> i32 {
        self.backoff_base_seconds.unwrap_or(60)
    }

    /// Longest delay in seconds; 1800 when absent.
    pub fn backoff_max_seconds_or_default(&self) -> i32 {
        self.backoff_max_seconds.unwrap_or(1800)
    }
}
