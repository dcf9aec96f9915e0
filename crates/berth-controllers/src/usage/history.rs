//! The history of one workload as an object and as text.

use std::fmt::Write as _;

use berth_api::berth::decision::{DecisionOutcome, DecisionRecord};
use berth_api::berth::explanation::{GROUP, Held, ObjectName, VERSION, Withheld};
use berth_api::berth::usage::{Stay, StayState, WorkloadHistory};
use berth_apimachinery::printed::Table;
use berth_apimachinery::times;
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::decisions;

/// Kind of the object.
const KIND: &str = "WorkloadHistory";

/// Stays among which the history of a workload is searched by its name or its job's.
#[derive(Debug)]
pub struct Search {
    namespace: String,
    name: String,
    /// The stays found, in the order in which they were added.
    found: Vec<Stay>,
}

impl Search {
    /// A search for a Workload or job of this name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned(), found: Vec::new() }
    }

    /// Adds a stay, if it belongs to such a workload.
    pub fn add(&mut self, stay: &Stay) {
        let is_job = stay.job.as_ref().is_some_and(|job| job.name == self.name);
        if stay.workload.namespace == self.namespace && (is_job || stay.workload.name == self.name) {
            self.found.push(stay.clone());
        }
    }

    /// The stays of the newest workload that was found, oldest first: the workload with a current
    /// stay, or else the one that ended last.
    pub fn newest(mut self) -> Option<Vec<Stay>> {
        let key = |stay: &Stay| (stay.ended.is_none(), stay.ended.as_ref().map(|at| at.0));
        let uid = self.found.iter().max_by_key(|stay| key(stay))?.uid.clone();
        self.found.retain(|stay| stay.uid == uid);
        self.found.sort_by_key(key);
        Some(self.found)
    }
}

/// The history of the workload of these stays, oldest first; `None` without stays.
pub fn history(
    stays: Vec<Stay>,
    decisions: Vec<DecisionRecord>,
    withheld: Option<Withheld>,
) -> Option<WorkloadHistory> {
    let first = stays.first()?;
    let mut history = WorkloadHistory {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: KIND.to_owned(),
        metadata: first.workload.clone(),
        uid: first.uid.clone(),
        created: first.queued.clone(),
        stays,
        decisions,
        withheld,
        text: String::new(),
    };
    history.text = text(&history);
    Some(history)
}

/// The last preemption of the workload, with all candidates.
///
/// # Errors
/// The message states what happened instead.
pub fn why_preempted(history: &WorkloadHistory) -> Result<String, String> {
    let name = name(&history.metadata);
    let last = |outcome: DecisionOutcome| history.decisions.iter().rev().find(|record| record.outcome == outcome);
    if let Some(record) = last(DecisionOutcome::Preempted) {
        return Ok(format!("{name} was preempted.\n{}", decisions::eviction(record, usize::MAX)));
    }
    if let Some(record) = last(DecisionOutcome::Evicted) {
        let detail = decisions::eviction(record, usize::MAX);
        return Err(format!("{name} was evicted, and not for another workload:\n{}", detail.trim_end()));
    }
    match history.stays.iter().any(|stay| stay.state == StayState::Preempted) {
        true => Err(format!(
            "{name} was preempted, but the decision is no longer recorded; run the controllers with \
             --decision-journal, or with a larger --decision-journal-max-size"
        )),
        false => Err(format!("{name} was not preempted; `berth history` shows what happened to it")),
    }
}

fn name(of: &ObjectName) -> String {
    format!("{}/{}", of.namespace, of.name)
}

fn text(history: &WorkloadHistory) -> String {
    let mut text = String::new();
    let Some(last) = history.stays.last() else { return text };
    let job = last.job.as_ref().map(|job| format!(" ({} {})", job.kind, job.name)).unwrap_or_default();
    let _ = writeln!(text, "{}{job} {}.", name(&history.metadata), standing(last));
    let mut facts = Vec::new();
    for (what, value) in [("ClusterQueue", &last.cluster_queue), ("LocalQueue", &last.queue), ("user", &last.user)] {
        if !value.is_empty() {
            facts.push(format!("{what} {value}"));
        }
    }
    facts.push(format!("priority {}", last.priority));
    facts.push(format!("{} {}", last.pods, if last.pods == 1 { "pod" } else { "pods" }));
    let _ = writeln!(text, "  {}.\n", facts.join(", "));
    text.push_str(&timeline(&history.stays).render());
    if !history.decisions.is_empty() {
        let line = |record: &DecisionRecord| vec![moment(record.time.as_ref()), decisions::summary(record)];
        let rows = history.decisions.iter().map(line).collect();
        let _ = write!(
            text,
            "\n{}",
            Table { columns: ["DECIDED AT", "DECISION"].map(str::to_owned).to_vec(), rows }.render()
        );
    }
    if let Some(record) = history.decisions.iter().rev().find(|record| decisions::is_eviction(record)) {
        text.push_str(&decisions::eviction(record, decisions::CANDIDATES_MAX));
    }
    if let Some(withheld) = &history.withheld {
        let _ = writeln!(text, "\n{}", withheld.message);
    }
    text
}

/// The last state as a clause.
fn standing(last: &Stay) -> String {
    match last.state {
        StayState::Waiting => "waits".to_owned(),
        StayState::Held => "is held".to_owned(),
        StayState::Reserved => "holds quota and waits for its admission checks".to_owned(),
        StayState::Running => "is admitted".to_owned(),
        StayState::Succeeded => "succeeded".to_owned(),
        StayState::Failed => "failed".to_owned(),
        StayState::Finished => format!("finished ({})", last.reason),
        StayState::Preempted => "was preempted, and its pods stop".to_owned(),
        StayState::Evicted => format!("was evicted ({}), and its pods stop", last.reason),
        StayState::Deleted => "was deleted".to_owned(),
    }
}

/// The states of a workload, one row each.
fn timeline(stays: &[Stay]) -> Table {
    let mut rows = Vec::new();
    let mut row = |at: &Option<Time>, state: StayState, after: Option<i64>, detail: String| {
        let after = after.map(|seconds| times::duration(SignedDuration::from_secs(seconds))).unwrap_or_default();
        rows.push(vec![moment(at.as_ref()), state.name().to_owned(), after, detail]);
    };
    for stay in stays {
        row(&stay.queued, StayState::Waiting, None, String::new());
        let (queued, reserved, admitted) = (&stay.queued, &stay.reserved, &stay.admitted);
        let amounts = held(&stay.holds);
        if reserved.is_some() && reserved != admitted {
            row(reserved, StayState::Reserved, between(queued, reserved), amounts.clone());
        }
        if admitted.is_some() {
            let from = if reserved.is_some() && reserved != admitted { reserved } else { queued };
            row(admitted, StayState::Running, between(from, admitted), amounts);
        }
        if stay.ended.is_some() {
            let from = [admitted, reserved, queued].into_iter().find(|at| at.is_some()).unwrap_or(queued);
            row(&stay.ended, stay.state, between(from, &stay.ended), stay.reason.clone());
        }
    }
    let columns = ["TIME", "STATE", "AFTER", "DETAIL"].map(str::to_owned).to_vec();
    Table { columns, rows }
}

fn between(from: &Option<Time>, to: &Option<Time>) -> Option<i64> {
    Some((to.as_ref()?.0.as_second() - from.as_ref()?.0.as_second()).max(0))
}

fn moment(at: Option<&Time>) -> String {
    at.map(|at| times::time(at.0)).unwrap_or_default()
}

fn held(holds: &[Held]) -> String {
    let amounts = holds.iter().map(|it| format!("{} {} of flavor {}", it.amount.0, it.resource, it.flavor));
    amounts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use berth_api::berth::explanation::Job;
    use jiff::Timestamp;

    use super::*;

    fn at(minute: i64) -> Option<Time> {
        Some(Time(Timestamp::from_second(1_767_225_600 + minute * 60).expect("in range")))
    }

    fn stay(name: &str, uid: &str, state: StayState, minutes: [i64; 3]) -> Stay {
        Stay {
            workload: ObjectName { namespace: "team".to_owned(), name: format!("job-{name}-{uid}") },
            uid: uid.to_owned(),
            job: Some(Job { kind: "Job".to_owned(), name: name.to_owned() }),
            cluster_queue: "cq".to_owned(),
            pods: 1,
            queued: at(minutes[0]),
            reserved: at(minutes[1]),
            admitted: at(minutes[1]),
            ended: at(minutes[2]).filter(|_| state.is_end()),
            state,
            ..Stay::default()
        }
    }

    fn found(name: &str) -> WorkloadHistory {
        let mut search = Search::new("team", name);
        for stay in [
            stay("train", "1", StayState::Succeeded, [0, 1, 2]),
            stay("train", "2", StayState::Preempted, [10, 11, 20]),
            stay("other", "3", StayState::Succeeded, [0, 1, 50]),
            stay("train", "2", StayState::Running, [20, 30, 0]),
        ] {
            search.add(&stay);
        }
        history(search.newest().expect("stays"), Vec::new(), None).expect("a history")
    }

    #[test]
    fn the_newest_workload_of_a_job_has_a_timeline() {
        assert_eq!(
            found("train").text,
            "team/job-train-2 (Job train) is admitted.\n  ClusterQueue cq, priority 0, 1 pod.\n\n\
             TIME                   STATE       AFTER   DETAIL\n\
             2026-01-01T00:10:00Z   Waiting\n\
             2026-01-01T00:11:00Z   Running     1m0s\n\
             2026-01-01T00:20:00Z   Preempted   9m0s\n\
             2026-01-01T00:20:00Z   Waiting\n\
             2026-01-01T00:30:00Z   Running     10m0s\n"
        );
        assert_eq!(found("job-other-3").metadata.name, "job-other-3");
        assert!(Search::new("team", "none").newest().is_none());
    }

    #[test]
    fn why_preempted_states_what_happened_instead() {
        let error = why_preempted(&found("other")).expect_err("it ran to its end");
        assert!(error.contains("was not preempted"), "{error}");
        let error = why_preempted(&found("train")).expect_err("no decision is known");
        assert!(error.contains("--decision-journal"), "{error}");
    }
}
