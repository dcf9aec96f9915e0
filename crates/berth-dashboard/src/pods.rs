//! The pods of a workload's job, and the events about them.

use berth_api::kueue::v1beta2::Workload;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::html::{Href, Html};
use crate::layout::{self, notice};
use crate::read::{self, Unread};
use crate::state;

/// Maximum number of pods and of events in a table.
const PODS_MAX: u32 = 200;
const EVENTS_MAX: u32 = 100;

/// Labels by which the pods of a job are found, by kind.
const LABELS: [(&str, &str); 14] = [
    ("Job", "batch.kubernetes.io/job-name"),
    ("JobSet", "jobset.sigs.k8s.io/jobset-name"),
    ("TrainJob", "jobset.sigs.k8s.io/jobset-name"),
    ("LeaderWorkerSet", "leaderworkerset.sigs.k8s.io/name"),
    ("RayCluster", "ray.io/cluster"),
    ("RayJob", "ray.io/originated-from-cr-name"),
    ("RayService", "ray.io/originated-from-cr-name"),
    ("SparkApplication", "sparkoperator.k8s.io/app-name"),
    ("AppWrapper", "workload.codeflare.dev/appwrapper"),
    ("PyTorchJob", "training.kubeflow.org/job-name"),
    ("TFJob", "training.kubeflow.org/job-name"),
    ("XGBoostJob", "training.kubeflow.org/job-name"),
    ("PaddleJob", "training.kubeflow.org/job-name"),
    ("MPIJob", "training.kubeflow.org/job-name"),
];

/// The owner of a workload.
pub fn owner(workload: &Workload) -> Option<&OwnerReference> {
    let owners = workload.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first())
}

/// The pods of a workload. Jobs of a kind without a label for its pods have none here.
pub async fn list(client: &Client, namespace: &str, workload: &Workload) -> Result<Vec<Pod>, Unread> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let owners = workload.metadata.owner_references.as_deref().unwrap_or_default();
    let of_pods: Vec<&OwnerReference> = owners.iter().filter(|owner| owner.kind == "Pod").collect();
    if !of_pods.is_empty() {
        let mut found = Vec::new();
        for owner in of_pods.into_iter().take(PODS_MAX as usize) {
            found.extend(read::within(pods.get_opt(&owner.name)).await?);
        }
        return Ok(found);
    }
    let Some(owner) = owner(workload) else { return Ok(Vec::new()) };
    let Some((_, label)) = LABELS.iter().find(|(kind, _)| *kind == owner.kind) else { return Ok(Vec::new()) };
    let params = ListParams::default().labels(&format!("{label}={}", owner.name)).limit(PODS_MAX);
    Ok(read::within(pods.list(&params)).await?.items)
}

/// The newest events about the workload, its job and its pods.
pub async fn events(client: &Client, namespace: &str, names: &[String]) -> Result<Vec<Event>, Unread> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let mut found = Vec::new();
    for name in names {
        let params = ListParams::default().fields(&format!("involvedObject.name={name}")).limit(EVENTS_MAX);
        found.extend(read::within(api.list(&params)).await?.items);
    }
    found.sort_by_key(|event| std::cmp::Reverse(at(event)));
    found.truncate(EVENTS_MAX as usize);
    Ok(found)
}

fn at(event: &Event) -> Option<Timestamp> {
    let last = event.last_timestamp.as_ref().map(|at| at.0);
    last.or(event.event_time.as_ref().map(|at| at.0)).or(event.metadata.creation_timestamp.as_ref().map(|at| at.0))
}

/// The section with the pods.
pub fn show(html: &mut Html, pods: &Result<Vec<Pod>, Unread>, now: Timestamp) {
    let pods = match pods {
        Ok(pods) if pods.is_empty() => return,
        Ok(pods) => pods,
        Err(unread) => return notice(html, format_args!("The pods are not shown. {unread}")),
    };
    html.line("h2", "", "Pods");
    let columns = ["Pod", "State", "Node", "#Restarts", "Log", "#Age"];
    layout::rows(html, &columns, |html| {
        for pod in pods {
            let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
            let class = match phase {
                "Running" | "Succeeded" => "nowrap good",
                "Failed" => "nowrap bad",
                _ => "nowrap wait",
            };
            html.class("tr", "", |html| {
                html.line("td", "name", &name);
                html.line("td", class, phase);
                html.line("td", "nowrap", pod.spec.as_ref().and_then(|it| it.node_name.as_deref()).unwrap_or_default());
                let statuses = pod.status.iter().flat_map(|it| it.container_statuses.iter().flatten());
                html.line("td", "number", statuses.map(|it| it.restart_count).sum::<i32>());
                html.class("td", "nowrap", |html| html.link(&Href::path(&["logs", &namespace, &name]), "Log"));
                html.line("td", "number", state::age(&pod.metadata, now));
            });
        }
    });
    if pods.len() >= PODS_MAX as usize {
        html.line("p", "quiet", format_args!("Only {} pods are shown.", pods.len()));
    }
}

/// The section with the events.
pub fn show_events(html: &mut Html, events: &Result<Vec<Event>, Unread>, now: Timestamp) {
    let events = match events {
        Ok(events) if events.is_empty() => return,
        Ok(events) => events,
        Err(unread) => return notice(html, format_args!("The events are not shown. {unread}")),
    };
    html.line("h2", "", "Events");
    layout::table(html, &["#Ago", "Object", "Reason", "Message", "#Count"], |html| {
        html.class("tbody", "", |html| {
            for event in events {
                html.class("tr", "", |html| {
                    let ago = at(event).map(|at| state::duration(now.as_second() - at.as_second()));
                    html.line("td", "number", ago.unwrap_or_default());
                    let object = &event.involved_object;
                    let (kind, name) = (object.kind.as_deref(), object.name.as_deref());
                    html.line("td", "", format_args!("{} {}", kind.unwrap_or_default(), name.unwrap_or_default()));
                    let class = if event.type_.as_deref() == Some("Warning") { "nowrap bad" } else { "nowrap" };
                    html.line("td", class, event.reason.as_deref().unwrap_or_default());
                    html.line("td", "long message", state::shortened(event.message.as_deref().unwrap_or_default()));
                    html.line("td", "number", event.count.map(|it| it.to_string()).unwrap_or_default());
                });
            }
        });
    });
}
