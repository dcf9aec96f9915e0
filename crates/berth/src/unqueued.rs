//! Explains a pod or Job that has no Workload of its own: why it does not start, and the
//! controllers' warnings about it. Read with the user's own permissions.

use berth_api::kueue::{annotations, constants, labels};
use berth_controllers::explain::ask;
use berth_controllers::gates::Gates;
use berth_controllers::jobs::pods::group_name;
use berth_controllers::podset;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Maximum number of warnings to print, the latest first.
const SAID_MAX: usize = 3;

/// The explanation of the pod or Job of this name; `None` if neither exists or can be read.
pub async fn explain(client: &Client, namespace: &str, name: &str) -> Option<Value> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    if let Ok(Some(pod)) = pods.get_opt(name).await {
        let said = said(client, namespace, "Pod", name).await;
        let Some(group) = group_name(&pod, &Gates::default()) else {
            return Some(found(namespace, "Pod", name, of_pod(&pod, None, &said)));
        };
        let named = format!("{}={group}", labels::POD_GROUP_NAME);
        let mates = pods.list(&ListParams::default().labels(&named)).await.map(|list| list.items.len()).ok();
        let of_group = ask::api_server(client, namespace, group).await.ok();
        let mut text = of_pod(&pod, Some((group, mates)), &said);
        if let Some(explained) = of_group.as_ref().and_then(|of_group| of_group["text"].as_str()) {
            text = format!("{text}\n{explained}");
        }
        return Some(found(namespace, "Pod", name, text));
    }
    let job = Api::<Job>::namespaced(client.clone(), namespace).get_opt(name).await.ok()??;
    let said = said(client, namespace, "Job", name).await;
    Some(found(namespace, "Job", name, of_job(&job, &said)))
}

fn found(namespace: &str, kind: &str, name: &str, text: String) -> Value {
    json!({"kind": kind, "metadata": {"namespace": namespace, "name": name}, "text": text})
}

/// Warning events about an object, as `reason: message`, the latest first.
async fn said(client: &Client, namespace: &str, kind: &str, name: &str) -> Vec<String> {
    let about = format!("involvedObject.kind={kind},involvedObject.name={name},type=Warning");
    let events = Api::<Event>::namespaced(client.clone(), namespace).list(&ListParams::default().fields(&about)).await;
    let mut events = events.map(|list| list.items).unwrap_or_default();
    events.sort_by_key(|event| std::cmp::Reverse(event.last_timestamp.as_ref().map(|at| at.0)));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    events.iter().take(SAID_MAX).map(|event| format!("{}: {}", text(&event.reason), text(&event.message))).collect()
}

/// The explanation of a pod as text. `group` is the name of the pod's group and the number of its
/// pods, if that can be read.
fn of_pod(pod: &Pod, group: Option<(&str, Option<usize>)>, said: &[String]) -> String {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let mut lines = Vec::new();
    if pod.labels().get(labels::MANAGED).is_none_or(|managed| managed != "true") {
        lines.push(format!("Pod {namespace}/{name} is not queued on its own, so no queue delays it."));
        return lines.join("\n");
    }
    lines.push(format!("There is no Workload of pod {namespace}/{name}."));
    if pod.metadata.deletion_timestamp.is_some() {
        lines.push("  It is being deleted.".to_owned());
    } else if podset::is_gated(pod, constants::ADMISSION_GATE) {
        lines.push(format!("  It waits because of scheduling gate {}.", constants::ADMISSION_GATE));
    }
    if let Some((group, mates)) = group {
        let wanted = pod.annotations().get(annotations::POD_GROUP_TOTAL_COUNT).map_or("?", String::as_str);
        lines.push(match mates {
            Some(mates) => format!("  It is in pod group {group}: {mates} of {wanted} pods exist."),
            None => format!("  It is in pod group {group} of {wanted} pods."),
        });
    }
    lines.extend(said.iter().map(|said| format!("  {said}")));
    lines.join("\n")
}

fn of_job(job: &Job, said: &[String]) -> String {
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    let mut lines = vec![format!("There is no Workload of Job {namespace}/{name}.")];
    lines.push(match job.labels().get(labels::QUEUE_NAME) {
        Some(queue) => format!("  It names LocalQueue {queue}."),
        None => "  It does not name a queue.".to_owned(),
    });
    if job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)) {
        lines.push("  It is suspended.".to_owned());
    }
    let owner = job.owner_references().iter().find(|owner| owner.controller == Some(true));
    lines.extend(
        owner.map(|owner| format!("  It is part of {} {}; only that object can be queued.", owner.kind, owner.name)),
    );
    lines.extend(said.iter().map(|said| format!("  {said}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_workload_is_explained_by_its_scheduling_gate() {
        let mut pod = json!({"metadata": {"name": "a", "namespace": "team",
            "labels": {labels::MANAGED: "true", labels::POD_GROUP_NAME: "g"},
            "annotations": {annotations::POD_GROUP_TOTAL_COUNT: "3"}},
            "spec": {"containers": [], "schedulingGates": [{"name": constants::ADMISSION_GATE}]}});
        let read = |pod: &Value| serde_json::from_value::<Pod>(pod.clone()).expect("a pod");
        let said = ["ErrWorkloadCompose: group has fewer runnable pods than expected: 1 of 3".to_owned()];
        assert_eq!(
            of_pod(&read(&pod), Some(("g", Some(1))), &said),
            "There is no Workload of pod team/a.\n  It waits because of scheduling gate kueue.x-k8s.io/admission.\n  \
             It is in pod group g: 1 of 3 pods exist.\n  \
             ErrWorkloadCompose: group has fewer runnable pods than expected: 1 of 3"
        );
        pod["metadata"]["labels"] = json!({});
        assert_eq!(of_pod(&read(&pod), None, &[]), "Pod team/a is not queued on its own, so no queue delays it.");
    }

    #[test]
    fn a_job_without_a_workload_is_explained_by_its_warnings() {
        let job = json!({"metadata": {"name": "j", "namespace": "team", "labels": {labels::QUEUE_NAME: "main"}},
            "spec": {"suspend": true, "template": {"spec": {"containers": []}}}});
        let said = ["WriteRefused: exceeded quota".to_owned()];
        assert_eq!(
            of_job(&serde_json::from_value(job).expect("a Job"), &said),
            "There is no Workload of Job team/j.\n  It names LocalQueue main.\n  It is suspended.\n  \
             WriteRefused: exceeded quota"
        );
    }
}
