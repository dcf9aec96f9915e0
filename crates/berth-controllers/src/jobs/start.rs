//! The additions of a workload's admission and admission checks to the job's pods, and the messages
//! of those checks.

use berth_api::kueue::v1beta2::{CheckState, Workload};
use berth_api::kueue::{annotations, labels};
use kube::ResourceExt;

use super::reconcile::{Context, LABEL_VALUE_MAX};
use crate::concurrent_admission::running_variant;
use crate::gates::Gate;
use crate::podset::{PodSetError, PodSetInfo};
use crate::workload::status;

/// The additions of admission to each pod set: the flavors' node labels and tolerations, labels
/// that identify pod set and queues, and the admission checks' updates. Empty without an admission.
pub(super) fn infos(context: Context<'_>, workload: &Workload, elastic: bool) -> Result<Vec<PodSetInfo>, PodSetError> {
    let gates = context.gates;
    let status = workload.status.as_ref();
    let Some(admission) = status.and_then(|status| status.admission.as_ref()) else { return Ok(Vec::new()) };
    let variant = running_variant(context.stores, workload);
    let checks = variant.as_deref().unwrap_or(workload).status.as_ref();
    let mut infos = Vec::with_capacity(admission.pod_set_assignments.len());
    for assignment in &admission.pod_set_assignments {
        let spec = workload.spec.pod_sets.iter().find(|pod_set| pod_set.name == assignment.name);
        let flavor = |name: &str| context.stores.flavor(name);
        let mut info = PodSetInfo::from_assignment(assignment, spec, flavor, gates)?;
        info.labels.insert(labels::POD_SET.to_owned(), assignment.name.clone());
        if workload.labels().contains_key(labels::MULTIKUEUE_ORIGIN) {
            info.labels.insert(labels::MULTIKUEUE_WORKER_WORKLOAD_POD.to_owned(), "true".to_owned());
        }
        if gates.on(Gate::AssignQueueLabelsForPods) {
            for (key, value) in
                [(labels::LOCAL_QUEUE, &workload.spec.queue_name), (labels::CLUSTER_QUEUE, &admission.cluster_queue)]
            {
                if !value.is_empty() && value.len() <= LABEL_VALUE_MAX {
                    info.labels.insert(key.to_owned(), value.clone());
                }
            }
        }
        if gates.on(Gate::TopologyAwareScheduling) || elastic {
            info.annotations.insert(annotations::WORKLOAD.to_owned(), workload.name_any());
        }
        if elastic {
            let first = workload.annotations().get(annotations::WORKLOAD_SLICE_NAME).cloned();
            info.annotations
                .insert(annotations::WORKLOAD_SLICE_NAME.to_owned(), first.unwrap_or_else(|| workload.name_any()));
        }
        for check in checks.iter().flat_map(|status| status.admission_checks.iter()) {
            if check.state != CheckState::Ready {
                continue;
            }
            for update in check.pod_set_updates.iter().filter(|update| update.name == assignment.name) {
                info.merge(&PodSetInfo::from_update(update), gates)
                    .map_err(|source| PodSetError::InCheck { check: check.name.clone(), source: Box::new(source) })?;
            }
        }
        infos.push(info);
    }
    Ok(infos)
}

/// Messages of the admission checks of a workload with a quota reservation, for an event on its
/// job. `None` without a reservation, or if no check has a message.
pub(super) fn check_messages(workload: &Workload) -> Option<String> {
    if !status::has_quota_reservation(workload) {
        return None;
    }
    let checks = workload.status.iter().flat_map(|status| status.admission_checks.iter());
    let said = checks.filter(|check| !check.message.is_empty());
    let messages: Vec<String> = said.map(|check| format!("{}: {}", check.name, check.message)).collect();
    (!messages.is_empty()).then(|| messages.join("; "))
}
