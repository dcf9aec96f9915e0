//! The view of jobs, with the rows of `berth queue`.

use std::collections::BTreeMap;

use berth_api::berth::explanation::ObjectName;
use berth_api::berth::usage::{Stay, StayState};
use berth_controllers::decisions::stay;
use kube::ResourceExt;

use super::{Scope, finish};
use crate::batch::lists;
use crate::top::sheet::{Sheet, Target, Tone};
use crate::top::state::State;

/// The jobs that wait and run, and those that ended and still exist at the end.
pub(super) fn jobs(state: &State, scope: &Scope) -> Sheet {
    let cluster_queues: BTreeMap<(String, String), &str> = state
        .local_queues
        .objects
        .iter()
        .map(|it| ((it.namespace().unwrap_or_default(), it.name_any()), it.spec.cluster_queue.as_str()))
        .collect();
    let stays = state.workloads.objects.iter().filter_map(|workload| {
        let key = (workload.namespace().unwrap_or_default(), workload.spec.queue_name.clone());
        stay::shown(workload, cluster_queues.get(&key).copied().unwrap_or_default())
    });
    let in_scope = |stay: &Stay| match scope {
        Scope::Queues { names, .. } => names.contains(&stay.cluster_queue),
        Scope::LocalQueue { namespace, name } => stay.workload.namespace == *namespace && stay.queue == *name,
        Scope::All | Scope::Node(_) => true,
    };
    let mut stays: Vec<Stay> = stays.filter(in_scope).collect();
    stays.sort_by_key(|stay| stay.state.is_end() && stay.reserved.is_none());
    let about = |at: usize| {
        let stay: &Stay = &stays[at];
        let ObjectName { namespace, name } = stay.workload.clone();
        (Target::Workload { namespace, name }, job_tone(stay.state))
    };
    let sheet = Sheet::of(lists::queue_list(&stays, state.now, None), about);
    let limits = [state.workloads.limits("workloads"), unknown_queues(state, scope)];
    finish(sheet, limits, state.workloads.is_loading(), "There is no job.")
}

/// Jobs that wait are assigned to their ClusterQueue by their LocalQueue.
fn unknown_queues(state: &State, scope: &Scope) -> Option<String> {
    let Scope::Queues { .. } = scope else { return None };
    (!state.local_queues.is_whole() && !state.local_queues.is_loading())
        .then(|| "Waiting jobs are missing where you may not list the localqueues.".to_owned())
}

fn job_tone(state: StayState) -> Tone {
    match state {
        StayState::Running => Tone::Good,
        StayState::Waiting | StayState::Reserved => Tone::Wait,
        StayState::Held | StayState::Succeeded | StayState::Finished | StayState::Deleted => Tone::Quiet,
        StayState::Failed | StayState::Preempted | StayState::Evicted => Tone::Bad,
    }
}
