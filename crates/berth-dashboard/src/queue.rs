//! One cluster queue: its rules, its quota, who waits in which order and why, who holds quota.

use berth_api::kueue::v1beta2::{ClusterQueue, Workload};
use berth_controllers::visibility;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client};
use serde::Deserialize;

use crate::html::{Href, Html};
use crate::layout::{self, Frame, notice, quota, usage};
use crate::overview::cannot;
use crate::read::{self, Unread};
use crate::state::{self, State};
use crate::tree;

/// Waiting workloads on one page: each is read for its reason.
const WAITING_ROWS: usize = 50;
/// Workloads read at once.
const AT_ONCE: usize = 16;
/// Workloads that hold quota, on one page.
const HOLDING_ROWS: usize = 200;
/// Workloads looked at for those that hold quota here; the list goes on from there.
const SCANNED_MAX: usize = 5_000;

/// What is shown of a queue.
pub struct Asked<'a> {
    /// Its name.
    pub name: &'a str,
    /// Waiting workloads left out at the beginning.
    pub from: usize,
    /// Where the list of workloads that hold quota goes on.
    pub next: Option<String>,
    /// The page loads itself again.
    pub refresh: bool,
}

/// The page of a queue.
pub async fn page(client: &Client, asked: &Asked<'_>, now: jiff::Timestamp) -> Response<String> {
    let own = Href::path(&["queues", asked.name]);
    let mut here = own.clone();
    if asked.from > 0 {
        here = here.with("from", asked.from);
    }
    if let Some(next) = &asked.next {
        here = here.with("next", next);
    }
    let frame = Frame { title: asked.name, here, refresh: asked.refresh };
    let queues: Api<ClusterQueue> = Api::all(client.clone());
    let (queue, waiting, holding) = futures::join!(
        read::within(queues.get(asked.name)),
        waiting(client, asked.name, asked.from),
        holding(client, asked.name, asked.next.clone()),
    );
    let queue = match queue {
        Ok(queue) => queue,
        Err(unread) => return layout::page(unread.code(), &frame, |html| cannot(html, &unread)),
    };
    layout::page(StatusCode::OK, &frame, |html| {
        head(html, &queue);
        html.line("h2", "", "Waiting, in order");
        match waiting {
            Ok(list) => show_waiting(html, &list, asked.from, &own, now),
            Err(unread) => notice(html, format_args!("Who waits is not shown. {unread}")),
        }
        html.line("h2", "", "Holding quota");
        match holding {
            Ok(list) => show_holding(html, list, asked.next.is_some(), &own, now),
            Err(unread) => notice(html, format_args!("Who holds quota is not shown. {unread}")),
        }
    })
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
            format!("{} waiting, {} holding quota, {} admitted", counts.waiting, counts.reserving, counts.admitted),
        );
    });
    html.line("h2", "", "Quota");
    if node.amounts.is_empty() {
        html.line("p", "quiet", "It has none.");
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

/// One of `pendingworkloads`.
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

/// Who waits, in order, with their objects where those may be read.
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

async fn holding(client: &Client, queue: &str, next: Option<String>) -> Result<read::Listed<Workload>, Unread> {
    let workloads: Api<Workload> = Api::all(client.clone());
    let here = |workload: &Workload| {
        let status = workload.status.as_ref();
        let holds = status.and_then(|status| status.admission.as_ref()).is_some_and(|it| it.cluster_queue == queue);
        holds && state::of(workload) != State::Finished
    };
    read::list(&workloads, next, SCANNED_MAX, here, HOLDING_ROWS).await
}

fn show_waiting(html: &mut Html, list: &[(Pending, Option<Workload>)], from: usize, own: &Href, now: jiff::Timestamp) {
    if list.is_empty() {
        html.line("p", "quiet", if from == 0 { "Nobody waits." } else { "Nobody else waits." });
    }
    let to = |from: usize| if from > 0 { own.clone().with("from", from) } else { own.clone() };
    layout::pager(html, from, list.len(), None, WAITING_ROWS, to);
    if list.is_empty() {
        return;
    }
    let columns = ["#Place", "Workload", "Job", "LocalQueue", "#Priority", "Reason", "#Age"];
    layout::table(html, &columns, |html| {
        html.class("tbody", "", |html| {
            for (pending, object) in list {
                let metadata = &pending.metadata;
                html.class("tr", "", |html| {
                    html.line("td", "number", pending.position_in_cluster_queue + 1);
                    html.class("td", "nowrap", |html| workload_link(html, metadata));
                    html.line("td", "", job(metadata.owner_references.as_deref()));
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
    });
}

fn reason(html: &mut Html, workload: &Workload) {
    let condition = state::condition(workload, "QuotaReserved").filter(|condition| condition.status != "True");
    match condition {
        Some(condition) => {
            html.line("span", "wait", &condition.reason);
            html.line("div", "quiet message", state::shortened(&condition.message));
        }
        None => html.line("span", "quiet", "not looked at yet"),
    }
}

fn show_holding(html: &mut Html, list: read::Listed<Workload>, started: bool, own: &Href, now: jiff::Timestamp) {
    if list.items.is_empty() {
        let text = if list.next.is_some() || started { "Nobody in this part of the list." } else { "Nobody." };
        html.line("p", "quiet", text);
    } else {
        let columns = ["Workload", "Job", "LocalQueue", "#Priority", "State", "Holds", "#Age"];
        layout::table(html, &columns, |html| {
            html.class("tbody", "", |html| {
                for workload in &list.items {
                    html.class("tr", "", |html| {
                        html.class("td", "nowrap", |html| workload_link(html, &workload.metadata));
                        html.line("td", "", job(workload.metadata.owner_references.as_deref()));
                        html.line("td", "nowrap", &workload.spec.queue_name);
                        html.line("td", "number", workload.spec.priority.unwrap_or(0));
                        let state = state::of(workload);
                        html.line("td", state.class(), state.as_str());
                        html.class("td", "long", |html| holds(html, workload));
                        html.line("td", "number", state::age(&workload.metadata, now));
                    });
                }
            });
        });
    }
    if started || list.next.is_some() {
        html.class("p", "pager", |html| {
            if started {
                html.link(own, "← From the beginning");
                html.text(" ");
            }
            if let Some(next) = list.next {
                html.link(&own.clone().with("next", next), "Further workloads →");
            }
        });
    }
}

fn holds(html: &mut Html, workload: &Workload) {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let mut sums = std::collections::BTreeMap::new();
    for set in admission.into_iter().flat_map(|admission| &admission.pod_set_assignments) {
        for (resource, used) in &set.resource_usage {
            let flavor = set.flavors.get(resource).map(String::as_str).unwrap_or_default();
            let sum = sums.entry((resource.as_str(), flavor)).or_insert(berth_apimachinery::quantity::Quantity::ZERO);
            sum.add(tree::amount(used));
        }
    }
    let texts: Vec<String> =
        sums.iter().map(|((resource, flavor), sum)| format!("{sum} {resource} of {flavor}")).collect();
    html.text(texts.join(", "));
}

/// A link to a workload's page.
pub fn workload_link(html: &mut Html, metadata: &ObjectMeta) {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    html.link(&Href::path(&["workloads", namespace, name]), format_args!("{namespace}/{name}"));
}

/// The job an object belongs to.
pub fn job(owners: Option<&[OwnerReference]>) -> String {
    let owners = owners.unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first());
    owner.map(|owner| format!("{} {}", owner.kind, owner.name)).unwrap_or_default()
}
