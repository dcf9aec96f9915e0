//! What a reconcile decided to do: writes and events, in order, with nothing left to choose.
//!
//! Pure functions return plans; the executor in [`crate::execute`] carries them out, the conformance runner applies them
//! to recorded objects. Each write carries the whole object as it should be; what is sent is the difference.

use std::time::Duration;

use berth_api::kueue::events;
use berth_api::kueue::v1beta2::Workload;
use berth_runtime::EventType;

/// One step of a plan about an object of kind `J`, others of its kind, and workloads.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<J> {
    /// Tell people something about the object.
    Event(NewEvent),
    /// Tell people something about another object of the kind.
    EventAbout(Box<J>, NewEvent),
    /// Tell people something about a workload.
    WorkloadEvent(Box<Workload>, NewEvent),
    /// Write the object's metadata and spec.
    Patch(Box<J>),
    /// Write the object's status.
    PatchStatus(Box<J>),
    /// Delete the object.
    Delete(Box<J>),
    /// Make a workload.
    CreateWorkload(Box<Workload>),
    /// Write a workload's metadata and spec.
    PatchWorkload(Box<Workload>),
    /// Write a workload's status.
    PatchWorkloadStatus(Box<Workload>),
    /// Delete a workload.
    DeleteWorkload(Box<Workload>),
}

/// The content of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Normal or Warning.
    pub event_type: EventType,
    /// CamelCase reason.
    pub reason: String,
    /// Text.
    pub message: String,
}

impl NewEvent {
    /// Something expected.
    pub fn normal(reason: &str, message: impl Into<String>) -> Self {
        NewEvent { event_type: EventType::Normal, reason: reason.to_owned(), message: message.into() }
    }

    /// Something a person may want to look at.
    pub fn warning(reason: &str, message: impl Into<String>) -> Self {
        NewEvent { event_type: EventType::Warning, reason: reason.to_owned(), message: message.into() }
    }
}

/// Steps, then perhaps a complaint or a wish to look again.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<J> {
    /// What to do, in order; later steps need earlier ones to have worked.
    pub steps: Vec<Step<J>>,
    /// What is wrong; the reconcile is tried again with backoff after the steps were done.
    pub error: Option<PlanError>,
    /// Look again after this long.
    pub requeue_after: Option<Duration>,
}

impl<J> Default for Plan<J> {
    fn default() -> Self {
        Plan { steps: Vec::new(), error: None, requeue_after: None }
    }
}

impl<J> Plan<J> {
    /// Ends the plan with a complaint.
    #[must_use]
    pub fn fail(mut self, error: PlanError) -> Self {
        self.error = Some(error);
        self
    }

    /// Does it say already that something is wrong?
    pub fn warns(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::Event(event) | Step::EventAbout(_, event) => event.event_type == EventType::Warning,
            _ => false,
        })
    }

    /// Asks for another look, keeping the earliest wish.
    pub fn look_again(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |known| known.min(after)));
    }
}

/// Why a reconcile has to be tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The Workload a job names does not exist.
    #[error("prebuilt workload not found")]
    PrebuiltWorkloadNotFound,
    /// None of the job's workloads is like the job; they were deleted.
    #[error("no matching workloads")]
    NoMatchingWorkloads,
    /// The job had more workloads than one; the others were deleted.
    #[error("extra workloads")]
    ExtraWorkloads,
    /// An owner in the chain above the job is not known (yet).
    #[error("workload owner not found")]
    OwnerNotFound,
    /// The chain of owners above the job goes on beyond where it is followed.
    #[error("managed owners chain limit reached")]
    NestingTooDeep,
    /// Owners own each other.
    #[error("cyclic ownership")]
    CyclicOwnership,
    /// What a job asks for cannot be made out.
    #[error("{0}")]
    Unclear(String),
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

impl PlanError {
    /// What is said on the object because of it: what stops a look must not stop it in silence. Nothing for what passes by itself,
    /// and for what the plan tells in its own words.
    pub fn event(&self) -> Option<NewEvent> {
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
        Some(NewEvent::warning(reason, self.to_string()))
    }
}
