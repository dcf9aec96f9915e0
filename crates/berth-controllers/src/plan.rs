//! The result of a reconcile: writes and events to execute, in order.
//!
//! Pure functions return plans; the executor in [`crate::execute`] executes them, and the
//! conformance runner applies them to recorded objects. Each write contains the whole object in its
//! desired state; only the difference is sent.

use std::time::Duration;

use berth_api::kueue::events;
use berth_api::kueue::v1beta2::Workload;
pub use berth_runtime::PlannedEvent;

/// One step of a plan about an object of kind `J`, others of its kind, and workloads.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<J> {
    /// Record an event about the object.
    Event(PlannedEvent),
    /// Record an event about another object of the kind.
    EventAbout(Box<J>, PlannedEvent),
    /// Record an event about a workload.
    WorkloadEvent(Box<Workload>, PlannedEvent),
    /// Write the object's metadata and spec.
    Patch(Box<J>),
    /// Write the object's status.
    PatchStatus(Box<J>),
    /// Delete the object.
    Delete(Box<J>),
    /// Create a workload.
    CreateWorkload(Box<Workload>),
    /// Write a workload's metadata and spec.
    PatchWorkload(Box<Workload>),
    /// Write a workload's status.
    PatchWorkloadStatus(Box<Workload>),
    /// Delete a workload.
    DeleteWorkload(Box<Workload>),
}

/// Steps, then an error or the delay of the next reconcile, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<J> {
    /// Steps in order; each runs only if all earlier steps succeeded.
    pub steps: Vec<Step<J>>,
    /// Why the reconcile failed; it is retried with backoff after the steps were executed.
    pub error: Option<PlanError>,
    /// Reconcile again after this long.
    pub requeue_after: Option<Duration>,
}

impl<J> Default for Plan<J> {
    fn default() -> Self {
        Plan { steps: Vec::new(), error: None, requeue_after: None }
    }
}

impl<J> Plan<J> {
    /// The plan, ending in this error.
    #[must_use]
    pub fn fail(mut self, error: PlanError) -> Self {
        self.error = Some(error);
        self
    }

    /// True if it contains an event of type Warning about an object of kind `J`.
    pub fn warns(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Event(event) | Step::EventAbout(_, event) => event.is_warning(),
            _ => false,
        })
    }

    /// Requests another reconcile after this long; the earliest request counts.
    pub fn requeue_within(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |known| known.min(after)));
    }
}

/// Why a reconcile must be retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The Workload that a job names does not exist.
    #[error("prebuilt workload not found")]
    PrebuiltWorkloadNotFound,
    /// None of the job's workloads matches the job; they were deleted.
    #[error("no matching workloads")]
    NoMatchingWorkloads,
    /// The job had more than one workload; the others were deleted.
    #[error("extra workloads")]
    ExtraWorkloads,
    /// An owner in the chain above the job does not exist, or is not in the cache yet.
    #[error("workload owner not found")]
    OwnerNotFound,
    /// The chain of owners above the job is longer than the controllers follow.
    #[error("managed owners chain limit reached")]
    NestingTooDeep,
    /// Owners own each other.
    #[error("cyclic ownership")]
    CyclicOwnership,
    /// The job's request cannot be parsed.
    #[error("{0}")]
    Unclear(String),
    /// Any other error, as a message.
    #[error("{0}")]
    Other(String),
}

impl PlanError {
    /// The event that reports this error on the object, so that no reconcile stops in silence.
    /// `None` for transient errors, and for errors that the plan reports in its own words.
    pub fn event(&self) -> Option<PlannedEvent> {
        let reason = match self {
            PlanError::PrebuiltWorkloadNotFound => events::PREBUILT_WORKLOAD_NOT_FOUND,
            PlanError::CyclicOwnership => events::CYCLIC_OWNERSHIP,
            PlanError::Unclear(_) => events::ERR_WORKLOAD_COMPOSE,
            PlanError::Other(_) => events::RECONCILE_FAILED,
            PlanError::NoMatchingWorkloads
            | PlanError::ExtraWorkloads
            | PlanError::OwnerNotFound
            | PlanError::NestingTooDeep => return None,
        };
        Some(PlannedEvent::warning(reason, self.to_string()))
    }
}
