//! The page of one cluster queue: its rules, its quota, waiting workloads in order with reasons,
//! and the holders of quota.

use berth_api::berth::explanation::ClusterQueueHolders;
use berth_api::berth::usage::NOT_TRIED_YET;
use berth_api::kueue::v1beta2::{ClusterQueue, Workload};
use berth_controllers::decisions::stay;
use berth_controllers::explain::ask;
use berth_controllers::visibility;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client};
use serde::Deserialize;

use crate::dashboard::Dashboard;
use crate::html::{Href, Html};
use crate::jobs::holds;
use crate::layout::{self, cannot, notice, quota, usage};
use crate::read::{self, Unread};
use crate::request::Asked;
use crate::state;
use crate::tree;

/// Number of waiting workloads on one page. Each Workload is read, because its status contains the
/// reason.
const WAITING_ROWS: usize = 50;
/// Number of concurrent reads of workloads.
const AT_ONCE: usize = 16;
/// Number of workloads that hold quota on one page.
const HOLDING_ROWS: usize = 200;

/// The asked parts of the page's lists.
pub struct Part<'a> {
    /// Name of the queue.
    pub name: &'a str,
    /// Number of waiting workloads to skip.
    pub from: usize,
    /// Number of workloads that hold quota to skip.
    pub held_from: usize,
}

/// The page of a queue.
pub async fn page(dashboard: &Dashboard, request: &Asked, asked: &Part<'_>) -> Response<String> {
    let own = Href::path(&["queues", asked.name]);
    let frame = dashboard.frame(request, asked.name, &["queues", asked.name]);
    let client = &dashboard.client;
    let queues: Api<ClusterQueue> = Api::all(client.clone());
    let (queue, waiting, holding, now) = futures::join!(
        read::within(queues.get(asked.name)),
        waiting(client, asked.name, asked.from),
        holding(client, asked.name, asked.held_from),
        dashboard.now(),
    );
    let queue = match queue {
        Ok(queue) => queue,
        Err(unread) => return layout::page(unread.code(), &frame, |html| cannot(html, &unread)),
    };
    layout::page(StatusCode::OK, &frame, |html| {
        head(html, &queue);
        html.line("h2", "", "Waiting, in order");
        match &waiting {
            Ok(list) => show_waiting(html, list, asked, &own, now),
            Err(unread) => notice(html, format_args!("The waiting workloads are not shown. {unread}")),
        }
        html.line("h2", "", "Holding quota");
        match &holding {
            Ok(list) => layout::after(html, waiting.as_ref().map_or(0, Vec::len), |html| {
                show_holding(html, list, asked, &own, now);
            }),
            Err(unread) => notice(html, format_args!("The holders of quota are not shown. {unread}")),
        }
    })
}

/// The page with these offsets of its lists.
fn part(own: &Href, from: usize, held_from: usize) -> Href {
    let mut href = own.clone();
    if from > 0 {
        href = href.with("from", from);
    }
    if held_from > 0 {
        href = href.with("held", held_from);
    }
    href
}

fn head(html: &mut Html, queue: &ClusterQueue) {
    let node = tree::queue(queue);
    html.class("h1", "", |html| {
        html.text(&node.name);
        html.line("span", "kind", " ClusterQueue");
    });
    if let Some(problem) = &node.problem {
        notice(html, problem);
    }
    let spec = &queue.spec;
    html.class("dl", "", |html| {
        let mut entry = |name: &str, value: String| {
            html.line("dt", "", name);
            html.line("dd", "", value);
        };
        let cohort = if spec.cohort_name.is_empty() { "none" } else { spec.cohort_name.as_str() };
        entry("Cohort", cohort.to_owned());
        entry("Order", spec.queueing_strategy.map_or("BestEffortFIFO", |it| it.as_str()).to_owned());
        let preemption = spec.preemption.clone().unwrap_or_default();
        let within = preemption.within_cluster_queue.map_or("Never", |it| it.as_str());
        let reclaim = preemption.reclaim_within_cohort.map_or("Never", |it| it.as_str());
        let borrow = preemption.borrow_within_cohort.and_then(|it| it.policy).map_or("Never", |it| it.as_str());
        entry(
            "Preemption",
            format!("withinClusterQueue {within}, reclaimWithinCohort {reclaim}, borrowWithinCohort {borrow}"),
        );
        let counts = node.workloads;
        entry(
            "Workloads",
            format!("{} waiting, {} holding quota, {} running", counts.waiting, counts.reserving, counts.admitted),
        );
    });
    html.line("h2", "", "Quota");
    if node.amounts.is_empty() {
        html.line("p", "quiet", "No quota is configured.");
        return;
    }
    let columns = ["Flavor", "Resource", "In use / quota", "#Borrowed", "#May borrow", "#May lend"];
    layout::table(html, &columns, |html| {
        html.class("tbody", "", |html| {
            for ((flavor, resource), figures) in &node.amounts {
                html.class("tr", "", |html| {
                    html.line("td", "nowrap", flavor);
                    html.line("td", "nowrap", resource);
                    html.class("td", "nowrap", |html| usage(html, figures));
                    html.line("td", "number", figures.borrowed);
                    let limit = |limit: Option<_>| limit.map_or_else(|| "any".to_owned(), |limit| quota(&limit));
                    let alone = spec.cohort_name.is_empty();
                    let lone = |text: String| if alone { "–".to_owned() } else { text };
                    html.line("td", "number", lone(limit(figures.borrowing_limit)));
                    html.line("td", "number", lone(limit(figures.lending_limit)));
                });
            }
        });
    });
}

/// An entry of `pendingworkloads`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pending {
    metadata: ObjectMeta,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    local_queue_name: String,
    #[serde(default)]
    position_in_cluster_queue: usize,
}

#[derive(Deserialize)]
struct PendingSummary {
    #[serde(default)]
    items: Vec<Pending>,
}

/// The waiting workloads in order, with their objects if the user may read them.
async fn waiting(client: &Client, queue: &str, from: usize) -> Result<Vec<(Pending, Option<Workload>)>, Unread> {
    let (group, version) = (visibility::GROUP, visibility::VERSIONS[0]);
    let path =
        format!("/apis/{group}/{version}/clusterqueues/{queue}/pendingworkloads?limit={WAITING_ROWS}&offset={from}");
    let reading = async {
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let summary: PendingSummary = client.request(request).await?;
        let with_objects = futures::stream::iter(summary.items).map(|pending| async move {
            let namespace = pending.metadata.namespace.clone().unwrap_or_default();
            let api: Api<Workload> = Api::namespaced(client.clone(), &namespace);
            let object = api.get_opt(pending.metadata.name.as_deref().unwrap_or_default()).await.ok().flatten();
            (pending, object)
        });
        Ok(with_objects.buffered(AT_ONCE).collect().await)
    };
    read::within(reading).await
}

/// The holders of quota, as the engine counts them.
async fn holding(client: &Client, queue: &str, from: usize) -> Result<ClusterQueueHolders, Unread> {
    let answer = read::within(ask::holders(client, queue, HOLDING_ROWS, from)).await?;
    serde_json::from_value(answer).map_err(|error| Unread::Failed(error.to_string()))
}

fn show_waiting(
    html: &mut Html,
    list: &[(Pending, Option<Workload>)],
    asked: &Part<'_>,
    own: &Href,
    now: jiff::Timestamp,
) {
    let from = asked.from;
    if list.is_empty() {
        html.line("p", "quiet", if from == 0 { "No workload waits." } else { "No more workloads wait." });
    }
    let to = |from: usize| part(own, from, asked.held_from);
    layout::pager(html, from, list.len(), None, WAITING_ROWS, to);
    if list.is_empty() {
        return;
    }
    let columns = ["#Place", "Workload", "Job", "LocalQueue", "#Priority", "Reason", "#Age"];
    layout::rows(html, &columns, |html| {
        for (pending, object) in list {
            let metadata = &pending.metadata;
            html.class("tr", "", |html| {
                html.line("td", "number", pending.position_in_cluster_queue + 1);
                html.class("td", "nowrap", |html| workload_link(html, metadata));
                html.line("td", "nowrap", job(metadata.owner_references.as_deref()));
                html.line("td", "nowrap", &pending.local_queue_name);
                html.line("td", "number", pending.priority);
                html.class("td", "long", |html| match object {
                    Some(workload) => reason(html, workload),
                    None => html.line("span", "quiet", "not readable"),
                });
                html.line("td", "number", state::age(metadata, now));
            });
        }
    });
}

fn reason(html: &mut Html, workload: &Workload) {
    let condition = state::condition(workload, "QuotaReserved").filter(|condition| condition.status != "True");
    match condition {
        Some(condition) => {
            html.line("span", "wait", &condition.reason);
            html.line("div", "quiet message", state::shortened(&condition.message));
        }
        None => html.line("span", "quiet", NOT_TRIED_YET),
    }
}

fn show_holding(html: &mut Html, list: &ClusterQueueHolders, asked: &Part<'_>, own: &Href, now: jiff::Timestamp) {
    let from = asked.held_from;
    let unnamed = list.withheld.as_ref();
    let here = list.items.len() + unnamed.map_or(0, |unnamed| unnamed.workloads);
    if here == 0 {
        html.line("p", "quiet", if from == 0 { "No workload holds quota." } else { "No more workloads hold quota." });
    }
    let to = |held_from: usize| part(own, asked.from, held_from);
    layout::pager(html, from, here, Some(list.total), HOLDING_ROWS, to);
    if let Some(unnamed) = unnamed {
        let (workloads, held) = (unnamed.workloads, holds(&unnamed.holds));
        let verb = if workloads == 1 { "workload not named here holds" } else { "workloads not named here hold" };
        let text = format!("{workloads} {verb} {held}. {}", unnamed.why.message);
        html.line("p", "quiet", text);
    }
    if list.items.is_empty() {
        return;
    }
    let columns = ["Workload", "Job", "LocalQueue", "#Priority", "State", "Holds", "#For", "#Age"];
    layout::rows(html, &columns, |html| {
        for holder in &list.items {
            html.class("tr", "", |html| {
                html.class("td", "nowrap", |html| workload_link(html, &holder.metadata));
                html.line("td", "nowrap", job(holder.metadata.owner_references.as_deref()));
                html.line("td", "nowrap", &holder.local_queue_name);
                html.line("td", "number", holder.priority);
                let of_holder = stay::state_of_holder(holder.admitted, holder.evicted.as_deref());
                html.line("td", state::class(of_holder), of_holder.name());
                html.line("td", "long", holds(&holder.holds));
                let since = holder.since.as_ref().map(|since| now.as_second() - since.0.as_second());
                html.line("td", "number", since.map(state::duration).unwrap_or_default());
                html.line("td", "number", state::age(&holder.metadata, now));
            });
        }
    });
}

/// A link to a workload's page.
pub fn workload_link(html: &mut Html, metadata: &ObjectMeta) {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    html.link(&Href::path(&["workloads", namespace, name]), format_args!("{namespace}/{name}"));
}

/// The job that an object belongs to.
pub fn job(owners: Option<&[OwnerReference]>) -> String {
    let owners = owners.unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first());
    owner.map(|owner| format!("{} {}", owner.kind, owner.name)).unwrap_or_default()
}
