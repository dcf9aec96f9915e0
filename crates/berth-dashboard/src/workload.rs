//! The page of one workload: its state, its conditions, and the whole explanation.

use berth_api::berth::explanation::WorkloadExplanation;
use berth_api::berth::usage::{StayState, WorkloadHistory};
use berth_api::kueue::v1beta2::Workload;
use berth_controllers::decisions::stay;
use berth_controllers::explain::ask;
use berth_controllers::workload::status;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, Client};

use crate::dashboard::Dashboard;
use crate::decisions;
use crate::explained;
use crate::forecast::Forecasts;
use crate::html::{Href, Html};
use crate::layout::{self, cannot, notice};
use crate::pods;
use crate::queue::job;
use crate::read::{self, Unread};
use crate::request::Asked;
use crate::state;
use crate::timeline;

/// The page of a workload, found by its name or its job's.
pub async fn page(dashboard: &Dashboard, asked: &Asked, (namespace, name): (&str, &str)) -> Response<String> {
    let client = &dashboard.client;
    let title = format!("{namespace}/{name}");
    let frame = dashboard.frame(asked, &title, &["workloads", namespace, name]);
    let (explained, now) = futures::join!(explanation(client, namespace, name), dashboard.now());
    let of_job = explained.as_ref().ok().map(|explained| explained.metadata.name.clone());
    let workloads: Api<Workload> = Api::namespaced(client.clone(), namespace);
    let (object, history) = futures::join!(
        read::within(workloads.get(of_job.as_deref().unwrap_or(name))),
        read::promptly(history(client, namespace, of_job.as_deref().unwrap_or(name)))
    );
    if let (Err(unread), Err(_), Err(_)) = (&object, &explained, &history) {
        return layout::page(unread.code(), &frame, |html| cannot(html, unread));
    }
    let around = match &object {
        Ok(workload) => Some(Around::read(client, namespace, workload).await),
        Err(_) => None,
    };
    layout::page(StatusCode::OK, &frame, |html| {
        html.class("h1", "", |html| {
            html.text(format_args!("{namespace}/{}", of_job.as_deref().unwrap_or(name)));
            html.line("span", "kind", " Workload");
        });
        match &object {
            Ok(workload) => {
                head(html, workload, explained.as_ref().ok(), now);
                if let Some(forecast) = around.as_ref().and_then(|it| it.forecast.as_ref()) {
                    html.line("p", "notice", forecast);
                }
            }
            Err(unread) if unread.code() == StatusCode::NOT_FOUND && history.is_ok() => {
                html.line("p", "quiet", "The Workload is deleted; its history is kept.");
            }
            Err(unread) => notice(html, format_args!("The Workload itself is not shown. {unread}")),
        }
        if let Ok(history) = &history {
            timeline::show(html, history, now);
        }
        match &explained {
            Ok(explained) => explained::show(html, explained),
            Err(unread) if unread.code() == StatusCode::NOT_FOUND && history.is_ok() => {}
            Err(unread) => notice(html, format_args!("The explanation is not shown. {unread}")),
        }
        if let Ok(explained) = &explained {
            decisions::show(html, &explained.decisions, now);
        }
        if let Ok(workload) = &object {
            held(html, workload);
            checks(html, workload);
        }
        if let Some(around) = &around {
            pods::show(html, &around.pods, now);
            pods::show_events(html, &around.events, now);
        }
        if let Ok(workload) = &object {
            conditions(html, workload, now);
        }
    })
}

/// What else the page shows of a workload that exists.
struct Around {
    forecast: Option<String>,
    pods: Result<Vec<Pod>, Unread>,
    events: Result<Vec<Event>, Unread>,
}

impl Around {
    async fn read(client: &Client, namespace: &str, workload: &Workload) -> Self {
        let name = workload.metadata.name.clone().unwrap_or_default();
        let mut about = vec![name.clone()];
        about.extend(pods::owner(workload).map(|owner| owner.name.clone()));
        let waits = stay::state_of(workload) == StayState::Waiting;
        let forecast = async {
            if !waits {
                return None;
            }
            let forecasts = read::promptly(Forecasts::of(client, namespace, &name)).await.ok()?;
            forecasts.items.into_iter().find(|it| it.workload == name).map(|it| it.text)
        };
        let (forecast, pods, events) =
            futures::join!(forecast, pods::list(client, namespace, workload), pods::events(client, namespace, &about));
        Around { forecast, pods, events }
    }
}

/// The history that `berth history` prints.
async fn history(client: &Client, namespace: &str, name: &str) -> Result<WorkloadHistory, Unread> {
    let value = read::within(ask::history(client, namespace, name)).await?;
    serde_json::from_value(value).map_err(|error| Unread::Failed(error.to_string()))
}

/// The explanation that `berth explain` prints, read with the same permissions.
pub async fn explanation(client: &Client, namespace: &str, name: &str) -> Result<WorkloadExplanation, Unread> {
    let value = read::within(ask::api_server(client, namespace, name)).await?;
    serde_json::from_value(value)
        .map_err(|error| Unread::Failed(format!("the response is not an explanation: {error}")))
}

fn head(html: &mut Html, workload: &Workload, explained: Option<&WorkloadExplanation>, now: Timestamp) {
    let state = stay::state_of(workload);
    let status = workload.status.as_ref();
    html.class("dl", "", |html| {
        html.line("dt", "", "State");
        html.line("dd", state::class(state), state.name());
        let owner = job(workload.metadata.owner_references.as_deref());
        if !owner.is_empty() {
            html.line("dt", "", "Job");
            html.line("dd", "", owner);
        }
        let metadata = &workload.metadata;
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        html.line("dt", "", "Objects");
        html.class("dd", "", |html| {
            let path = ["workloads", namespace.unwrap_or_default(), name.unwrap_or_default(), "yaml"];
            html.link(&Href::path(&path), "YAML");
        });
        html.line("dt", "", "LocalQueue");
        html.line("dd", "", &workload.spec.queue_name);
        let admitted = status.and_then(|status| status.admission.as_ref()).map(|it| it.cluster_queue.as_str());
        if let Some(queue) = explained.and_then(|it| it.cluster_queue.as_deref()).or(admitted) {
            html.line("dt", "", "ClusterQueue");
            html.class("dd", "", |html| html.link(&Href::path(&["queues", queue]), queue));
        }
        html.line("dt", "", "Priority");
        let class = workload.spec.priority_class_ref.as_ref().map(|class| format!(" ({})", class.name));
        html.line("dd", "", format_args!("{}{}", workload.spec.priority.unwrap_or(0), class.unwrap_or_default()));
        html.line("dt", "", "Pods");
        let sets: Vec<String> =
            workload.spec.pod_sets.iter().map(|set| format!("{} × {}", set.count, set.name)).collect();
        html.line("dd", "", sets.join(", "));
        html.line("dt", "", "Age");
        html.line("dd", "", state::age(&workload.metadata, now));
        if let Some(count) = status.and_then(|status| status.requeue_state.as_ref()).and_then(|state| state.count) {
            html.line("dt", "", "Requeued");
            html.line("dd", "", format_args!("{count} times"));
        }
    });
}

fn conditions(html: &mut Html, workload: &Workload, now: Timestamp) {
    let conditions = workload.status.iter().flat_map(|status| &status.conditions);
    let mut conditions: Vec<_> = conditions.collect();
    conditions.sort_by_key(|condition| std::cmp::Reverse(condition.last_transition_time.0));
    html.line("h2", "", "Conditions");
    if conditions.is_empty() {
        html.line("p", "quiet", "No conditions yet.");
        return;
    }
    layout::table(html, &["Type", "Status", "Reason", "Message", "#Since"], |html| {
        html.class("tbody", "", |html| {
            for condition in conditions {
                html.class("tr", "", |html| {
                    html.line("td", "nowrap", &condition.type_);
                    html.line("td", "", &condition.status);
                    html.line("td", "nowrap", &condition.reason);
                    html.line("td", "long message", &condition.message);
                    let seconds = now.as_second().saturating_sub(condition.last_transition_time.0.as_second());
                    html.line("td", "number", state::duration(seconds));
                });
            }
        });
    });
}

fn checks(html: &mut Html, workload: &Workload) {
    let checks: Vec<_> = workload.status.iter().flat_map(|status| &status.admission_checks).collect();
    if checks.is_empty() {
        return;
    }
    html.line("h2", "", "Admission checks");
    layout::table(html, &["Check", "State", "Message"], |html| {
        html.class("tbody", "", |html| {
            for check in checks {
                html.class("tr", "", |html| {
                    html.line("td", "nowrap", &check.name);
                    html.line("td", "", check.state.as_str());
                    html.line("td", "long message", &check.message);
                });
            }
        });
    });
}

fn held(html: &mut Html, workload: &Workload) {
    let Some(admission) = workload.status.as_ref().and_then(|status| status.admission.as_ref()) else { return };
    // The object of a finished workload keeps its admission; the quota is free again.
    let is_finished = status::is_finished(workload);
    html.line("h2", "", if is_finished { "Held until it finished" } else { "Holds" });
    layout::table(html, &["Pod set", "#Pods", "Resource", "Flavor", "#Amount"], |html| {
        html.class("tbody", "", |html| {
            for set in &admission.pod_set_assignments {
                for (resource, amount) in &set.resource_usage {
                    html.class("tr", "", |html| {
                        html.line("td", "nowrap", &set.name);
                        html.line("td", "number", set.count.map_or_else(String::new, |count| count.to_string()));
                        html.line("td", "nowrap", resource);
                        html.line("td", "nowrap", set.flavors.get(resource).map(String::as_str).unwrap_or_default());
                        html.line("td", "number", &amount.0);
                    });
                }
            }
        });
    });
}
