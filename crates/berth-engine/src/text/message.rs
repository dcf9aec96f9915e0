//! Messages of conditions and events, in Kueue's words.
//!
//! The same record always gives the same bytes. Test cases that were recorded from Kueue compare
//! these messages byte by byte.

use crate::decision::{Considered, Eviction, Finding, PodSetConsidered, PreemptionReason, Victim, Wait, WaitCause};
use crate::explain::Outlook;
use crate::ids::Name;
use crate::model::Taint;
use crate::status::{QueueProblem, QueueReadiness};

/// Usual length of a pod set's message, so that its string is allocated once.
const MESSAGE_USUAL: usize = 160;

impl PreemptionReason {
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

impl Wait {
    /// Message of the condition and event.
    pub fn message(&self) -> String {
        cause(&self.cause, &self.considered)
    }
}

impl Outlook {
    /// The message that its condition would show; empty if it would be admitted.
    pub fn message(&self) -> String {
        self.cause.as_ref().map(|it| cause(it, &self.considered)).unwrap_or_default()
    }
}

/// Message for the cause of a wait (§5.10).
fn cause(cause: &WaitCause, considered: &Considered) -> String {
    let text = match cause {
        WaitCause::NotEvaluated | WaitCause::NoFit { .. } | WaitCause::NoCandidates => return unassigned(considered),
        WaitCause::FailedChecks => "The workload has failed admission checks",
        WaitCause::QueueNotFound { queue } => return format!("ClusterQueue {queue} not found"),
        WaitCause::QueueInactive { queue } => return format!("ClusterQueue {queue} is inactive"),
        WaitCause::NamespaceNotFound { namespace } => {
            return format!("workload namespace {namespace:?} does not exist");
        }
        WaitCause::NamespaceMismatch => "workload namespace doesn't match ClusterQueue selector",
        WaitCause::Invalid { problem } => problem,
        WaitCause::PreemptionGated => "Workload requires preemption, but it's gated",
        WaitCause::FitsAfterPreemption => {
            "Workload has overlapping preemption targets with another workload, but will fit after these preemptions \
             complete"
        }
        WaitCause::VictimsTaken => "Workload has overlapping preemption targets with another workload",
        WaitCause::NoLongerFits => "Workload no longer fits after processing another workload",
        WaitCause::Preempting { victims } => {
            return format!("{}. Pending the preemption of {victims} workload(s)", unassigned(considered));
        }
        WaitCause::PodsNotReady => "waiting for all admitted workloads to be in PodsReady condition",
        WaitCause::Migrating { siblings } => {
            return format!("{}. Pending the migration of {siblings} workload(s)", unassigned(considered));
        }
        WaitCause::BetterSiblingAdmitted => "A more favorable variant is already admitted",
        WaitCause::BelowLastAcceptableFlavor => "Target flavor is below LastAcceptableFlavorName",
        #[cfg(feature = "lab")]
        WaitCause::Prescribed { message, .. } => message,
    };
    text.to_owned()
}

/// Why pod sets have no flavors (§8.11); empty if there is no finding.
pub(crate) fn unassigned(considered: &Considered) -> String {
    let mut text = String::new();
    for set in &considered.pod_sets {
        if set.error.is_none() && set.findings.is_empty() {
            continue;
        }
        text.reserve(MESSAGE_USUAL);
        if !text.is_empty() {
            text.push_str("; ");
        }
        for part in ["couldn't assign flavors to pod set ", &set.pod_set, ": "] {
            text.push_str(part);
        }
        push_reasons(set, &mut text);
    }
    text
}

/// Appends the findings of a pod set, sorted.
fn push_reasons(set: &PodSetConsidered, text: &mut String) {
    match (&set.error, set.findings.as_slice()) {
        (Some(error), _) => text.push_str(&error.to_string()),
        (None, [one]) => one.write_to(text),
        (None, several) => {
            let mut reasons: Vec<String> = several.iter().map(Finding::to_string).collect();
            reasons.sort();
            text.push_str(&reasons.join(", "));
        }
    }
}

impl Victim {
    /// Message of the conditions Evicted and Preempted of the victim (§11.1).
    pub fn message(&self) -> String {
        let Victim { reason, path: own, preemption, .. } = self;
        preemption_text(
            &preemption.uid,
            preemption.job_uid.as_deref(),
            reason.human(),
            &path(&preemption.path),
            &path(own),
        )
    }
}

/// `/root/…/queue`, the path of a queue through its cohorts (§11.1).
pub(crate) fn path(names: &[Name]) -> String {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    format!("/{}", names.join("/"))
}

/// The message of a victim's conditions (§11.1).
pub(crate) fn preemption_text(
    uid: &str,
    job_uid: Option<&str>,
    reason: &str,
    preemptor_path: &str,
    preemptee_path: &str,
) -> String {
    let known = |text: &str| if text.is_empty() { "UNKNOWN".to_owned() } else { text.to_owned() };
    format!(
        "Preempted to accommodate a workload (UID: {}, JobUID: {}) due to {}; preemptor path: {}; preemptee path: {}",
        known(uid),
        known(job_uid.unwrap_or("")),
        known(reason),
        known(preemptor_path),
        known(preemptee_path)
    )
}

impl Eviction {
    /// Message of condition Evicted.
    pub fn message(&self) -> String {
        match self {
            Eviction::NodeFailures { nodes, .. } => {
                let nodes: Vec<&str> = nodes.iter().map(|node| &**node).collect();
                format!("Workload was evicted as there was no replacement for unhealthy node(s): {}", nodes.join(","))
            }
            Eviction::FlavorMigration { sibling_uid } => format!(
                "Evicted to accommodate a workload (UID: {sibling_uid}) due to migration to more favorable resource flavor"
            ),
        }
    }

    /// Why the pods found no other nodes, if that is the cause of the eviction.
    pub fn unplaced(&self) -> Option<String> {
        match self {
            Eviction::NodeFailures { considered, .. } => Some(unassigned(considered)),
            Eviction::FlavorMigration { .. } => None,
        }
    }
}

impl QueueReadiness {
    /// Message of condition Active (§5.3).
    pub fn message(&self) -> String {
        match self.problems.as_slice() {
            [] => "Can admit new workloads".to_owned(),
            [QueueProblem::NotFound] => "ClusterQueue not found".to_owned(),
            #[cfg(feature = "lab")]
            [QueueProblem::Prescribed { message, .. }] => message.clone(),
            [QueueProblem::Terminating] => "Can't admit new workloads; clusterQueue is terminating".to_owned(),
            problems => {
                let texts: Vec<String> = problems.iter().map(problem).collect();
                format!("Can't admit new workloads: {}.", texts.join(", "))
            }
        }
    }
}

fn problem(problem: &QueueProblem) -> String {
    match problem {
        QueueProblem::NotFound => "not found".to_owned(),
        QueueProblem::Terminating => "is terminating".to_owned(),
        QueueProblem::Stopped => "is stopped".to_owned(),
        QueueProblem::FlavorsNotFound(names) => {
            // In the order of the queue's spec, as Kueue lists them.
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            format!("references missing ResourceFlavor(s): {}", names.join(","))
        }
        QueueProblem::ChecksNotFound(names) => format!("references missing AdmissionCheck(s): {}", sorted(names)),
        QueueProblem::ChecksInactive(names) => format!("references inactive AdmissionCheck(s): {}", sorted(names)),
        QueueProblem::SeveralMultiKueueChecks(names) => {
            format!("Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: {}", sorted(names))
        }
        QueueProblem::MultiKueueCheckPerFlavor(names) => {
            format!("Cannot specify MultiKueue AdmissionCheck per flavor, found: {}", sorted(names))
        }
        QueueProblem::MultiKueueWithProvisioning(names) => format!(
            "Cannot use MultiKueue AdmissionCheck with ProvisioningRequest AdmissionCheck, found: {}",
            sorted(names)
        ),
        QueueProblem::TopologyNotFound { topology, flavor } => {
            format!("there is no Topology {topology:?} for TAS flavor {flavor:?}")
        }
        QueueProblem::CohortCycle => "its cohorts form a cycle".to_owned(),
        #[cfg(feature = "lab")]
        QueueProblem::Prescribed { message, .. } => message.clone(),
    }
}

fn sorted(names: &[Name]) -> String {
    let mut names: Vec<&str> = names.iter().map(|name| &**name).collect();
    names.sort_unstable();
    names.join(",")
}

/// A taint of a flavor, as Go formats the struct. Its last field is the time at which it was added.
pub(crate) fn taint_struct(taint: &Taint) -> String {
    format!("{{{} {} {} <nil>}}", taint.key, taint.value, taint.effect.as_str())
}

/// A taint of a node: `key=value:effect`.
pub(crate) fn taint(taint: &Taint) -> String {
    format!("{}={}:{}", taint.key, taint.value, taint.effect.as_str())
}
