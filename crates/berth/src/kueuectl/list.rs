//! `berth list`: queues, workloads, flavors and the pods of a job, with kueuectl's filters and
//! columns.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::bail;
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, ResourceFlavor, Workload};
use berth_apimachinery::percent::segment;
use berth_apimachinery::table;
use berth_controllers::{conditions, visibility};
use clap::{Args, Subcommand, ValueEnum};
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::output::{Asked, TemplateOptions};
use super::pods::{self, JobRef};
use super::written::ManagedFields;
use crate::batch::Place;
use crate::flat::Kind;
use crate::listing::{Column, Format, Listing};
use crate::team::{in_words, title};
use crate::{foresee, process};

/// Number of objects per request.
const PAGE: u32 = 500;

/// The types of columns that hold no text.
const KINDS: &[(&str, Kind)] = &[
    ("PENDING WORKLOADS", Kind::Integer),
    ("ADMITTED WORKLOADS", Kind::Integer),
    ("POSITION IN QUEUE", Kind::Integer),
];

/// The kinds that `berth list` lists.
#[derive(Subcommand)]
pub enum List {
    /// List ClusterQueues.
    #[command(name = "clusterqueue", aliases = ["clusterqueues", "cq"])]
    ClusterQueue(ClusterQueueOptions),
    /// List LocalQueues.
    #[command(name = "localqueue", aliases = ["localqueues", "lq"])]
    LocalQueue(LocalQueueOptions),
    /// List Workloads.
    #[command(name = "workload", aliases = ["workloads", "wl", "kwl", "kueueworkload", "kueueworkloads"])]
    Workload(WorkloadOptions),
    /// List ResourceFlavors.
    #[command(name = "resourceflavor", aliases = ["resourceflavors", "rf"])]
    ResourceFlavor(Selection),
    /// List the pods of a job.
    #[command(name = "pods", aliases = ["pod", "po"])]
    Pods(PodOptions),
}

/// Options of every list.
#[derive(Args)]
pub struct Selection {
    /// Only objects with these labels, as for kubectl.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Only objects with these values of fields, as for kubectl.
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<String>,
    /// Output format: table, wide, json, yaml, name, csv, parquet, jsonpath=TEMPLATE or
    /// go-template=TEMPLATE. Default: table.
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Asked>,
    #[command(flatten)]
    template: TemplateOptions,
    #[command(flatten)]
    managed_fields: ManagedFields,
    #[command(flatten)]
    place: Place,
}

/// Options of lists of namespaced objects.
#[derive(Args)]
pub struct Namespaced {
    /// Objects of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    #[command(flatten)]
    selection: Selection,
}

/// Options of `berth list clusterqueue`.
#[derive(Args)]
pub struct ClusterQueueOptions {
    /// Only queues that are active (true) or not (false).
    #[arg(long, value_delimiter = ',')]
    active: Vec<bool>,
    #[command(flatten)]
    selection: Selection,
}

/// Options of `berth list localqueue`.
#[derive(Args)]
pub struct LocalQueueOptions {
    /// Only queues of this ClusterQueue.
    #[arg(short, long, value_name = "NAME")]
    clusterqueue: Option<String>,
    #[command(flatten)]
    of: Namespaced,
}

/// Options of `berth list workload`.
#[derive(Args)]
pub struct WorkloadOptions {
    /// Only workloads of this ClusterQueue.
    #[arg(short, long, value_name = "NAME")]
    clusterqueue: Option<String>,
    /// Only workloads of this LocalQueue.
    #[arg(short = 'q', long, value_name = "NAME")]
    localqueue: Option<String>,
    /// Only workloads in one of these states; may be repeated.
    #[arg(long, value_enum, ignore_case = true)]
    status: Vec<Status>,
    /// Only the workloads of this job, such as job/train or jobset.jobset.x-k8s.io/train.
    #[arg(long = "for", value_name = "TYPE[.GROUP]/NAME")]
    job: Option<JobRef>,
    #[command(flatten)]
    of: Namespaced,
}

/// Options of `berth list pods`.
#[derive(Args)]
pub struct PodOptions {
    /// The job, such as job/train. For a pod: the pods of its group.
    #[arg(long = "for", value_name = "TYPE[.GROUP]/NAME")]
    job: JobRef,
    #[command(flatten)]
    of: Namespaced,
}

/// State of a workload, in kueuectl's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Status {
    All,
    Pending,
    #[value(name = "quotareserved")]
    QuotaReserved,
    Admitted,
    Finished,
}

impl Status {
    fn of(workload: &Workload) -> Self {
        let conditions = workload.status.iter().flat_map(|status| &status.conditions);
        let conditions: Vec<_> = conditions.filter(|it| it.status == "True").map(|it| it.type_.as_str()).collect();
        match conditions {
            _ if conditions.contains(&conditions::FINISHED) => Self::Finished,
            _ if conditions.contains(&conditions::ADMITTED) => Self::Admitted,
            _ if conditions.contains(&conditions::QUOTA_RESERVED) => Self::QuotaReserved,
            _ => Self::Pending,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::All => "ALL",
            Self::Pending => "PENDING",
            Self::QuotaReserved => "QUOTARESERVED",
            Self::Admitted => "ADMITTED",
            Self::Finished => "FINISHED",
        }
    }
}

/// Prints a list.
pub fn main(list: &List) -> anyhow::Result<ExitCode> {
    process::run(async {
        match list {
            List::ClusterQueue(options) => {
                let (client, _) = options.selection.place.open().await?;
                let found: Vec<ClusterQueue> = all(Api::all(client.clone()), &options.selection).await?;
                let now = foresee::now(&client).await?;
                options.selection.print(cluster_queues(&found, &options.active, now), None)
            }
            List::ResourceFlavor(selection) => {
                let (client, _) = selection.place.open().await?;
                let found: Vec<ResourceFlavor> = all(Api::all(client.clone()), selection).await?;
                selection.print(flavors(&found, foresee::now(&client).await?), None)
            }
            List::LocalQueue(options) => {
                let (client, namespace, found) = options.of.objects::<LocalQueue>(None).await?;
                let now = foresee::now(&client).await?;
                let listing = local_queues(&found, options.clusterqueue.as_deref(), options.of.all_namespaces, now);
                options.of.selection.print(listing, Some(&namespace).filter(|_| !options.of.all_namespaces))
            }
            List::Workload(options) => workloads(options).await,
            List::Pods(options) => list_pods(options).await,
        }
    })
}

impl Selection {
    fn params(&self) -> ListParams {
        let (label_selector, field_selector) = (self.selector.clone(), self.field_selector.clone());
        ListParams { label_selector, field_selector, ..ListParams::default() }.limit(PAGE)
    }

    /// Prints a list, or that the namespace has no such objects.
    fn print(&self, mut listing: Listing, namespace: Option<&String>) -> anyhow::Result<ExitCode> {
        // As kubectl writes it.
        let none = match namespace {
            Some(namespace) => format!("No resources found in {namespace} namespace."),
            None => "No resources found".to_owned(),
        };
        listing.items.iter_mut().for_each(|object| self.managed_fields.select(object));
        let format = self.template.format(self.output.as_ref())?.unwrap_or(Format::Table);
        listing.print(&format, &none)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Namespaced {
    /// The objects of the namespaces, and the namespace of the options.
    async fn objects<K>(&self, labels: Option<String>) -> anyhow::Result<(Client, String, Vec<K>)>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let (client, namespace) = self.selection.place.open().await?;
        let api = match self.all_namespaces {
            true => Api::all(client.clone()),
            false => Api::namespaced(client.clone(), &namespace),
        };
        let mut params = self.selection.params();
        let both = params.label_selector.take().into_iter().chain(labels).collect::<Vec<_>>().join(",");
        params.label_selector = Some(both).filter(|selector| !selector.is_empty());
        let found = pages(api, params).await?;
        Ok((client, namespace, found))
    }
}

async fn all<K>(api: Api<K>, selection: &Selection) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    pages(api, selection.params()).await
}

async fn pages<K>(api: Api<K>, mut params: ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut found = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|error| in_words(&K::plural(&()), error))?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// A list of objects with a row for each. The first columns are NAMESPACE, if `namespaces`, and
/// NAME.
fn listing<'a, K>(
    objects: impl IntoIterator<Item = &'a K>,
    namespaces: bool,
    columns: &[Column],
    cells: impl Fn(&K) -> Vec<String>,
) -> Listing
where
    K: Resource<DynamicType = ()> + Serialize + 'a,
{
    let mut list = Listing { kinds: KINDS, ..Listing::default() };
    list.columns.extend(namespaces.then_some(Column::Usual("NAMESPACE")));
    list.columns.push(Column::Usual("NAME"));
    list.columns.extend(columns);
    for object in objects {
        let mut value = json!(object);
        value["apiVersion"] = json!(K::api_version(&()));
        value["kind"] = json!(K::kind(&()));
        let mut row: Vec<String> = namespaces.then(|| object.namespace().unwrap_or_default()).into_iter().collect();
        row.push(object.name_any());
        row.extend(cells(object));
        list.rows.push(row);
        list.names.push(title(&value));
        list.items.push(value);
    }
    list
}

fn age(object: &impl ResourceExt, now: Timestamp) -> String {
    object.creation_timestamp().map(|at| table::age(at.0, now)).unwrap_or_default()
}

fn cluster_queues(queues: &[ClusterQueue], active: &[bool], now: Timestamp) -> Listing {
    let is_active = |queue: &ClusterQueue| {
        let conditions = queue.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|it| it.type_ == "Active" && it.status == "True")
    };
    let selected = queues.iter().filter(|queue| active.is_empty() || active.contains(&is_active(queue)));
    let columns = ["COHORT", "PENDING WORKLOADS", "ADMITTED WORKLOADS", "ACTIVE", "AGE"].map(Column::Usual);
    listing(selected, false, &columns, |queue| {
        let status = queue.status.clone().unwrap_or_default();
        vec![
            queue.spec.cohort_name.clone(),
            status.pending_workloads.to_string(),
            status.admitted_workloads.to_string(),
            is_active(queue).to_string(),
            age(queue, now),
        ]
    })
}

fn local_queues(queues: &[LocalQueue], of: Option<&str>, namespaces: bool, now: Timestamp) -> Listing {
    let selected = queues.iter().filter(|queue| of.is_none_or(|name| queue.spec.cluster_queue == name));
    let columns = ["CLUSTERQUEUE", "PENDING WORKLOADS", "ADMITTED WORKLOADS", "AGE"].map(Column::Usual);
    listing(selected, namespaces, &columns, |queue| {
        let status = queue.status.clone().unwrap_or_default();
        vec![
            queue.spec.cluster_queue.clone(),
            status.pending_workloads.to_string(),
            status.admitted_workloads.to_string(),
            age(queue, now),
        ]
    })
}

fn flavors(flavors: &[ResourceFlavor], now: Timestamp) -> Listing {
    listing(flavors, false, &["NODE LABELS", "AGE"].map(Column::Usual), |flavor| {
        let labels: Vec<String> = flavor.spec.node_labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![labels.join(", "), age(flavor, now)]
    })
}

async fn workloads(options: &WorkloadOptions) -> anyhow::Result<ExitCode> {
    let (client, namespace, mut found) = options.of.objects::<Workload>(None).await?;
    let queues = cluster_queues_of(&client, &found).await?;
    let queue_of = |workload: &Workload| {
        let key = (workload.namespace().unwrap_or_default(), workload.spec.queue_name.clone());
        let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
        admission.map(|it| it.cluster_queue.clone()).or_else(|| queues.get(&key).cloned()).unwrap_or_default()
    };
    found.retain(|workload| {
        options.localqueue.as_ref().is_none_or(|name| workload.spec.queue_name == *name)
            && options.clusterqueue.as_ref().is_none_or(|name| queue_of(workload) == *name)
            && (options.status.is_empty()
                || options.status.contains(&Status::All)
                || options.status.contains(&Status::of(workload)))
            && options.job.as_ref().is_none_or(|job| workload.owner_references().iter().any(|it| job.is(it)))
    });
    let pending = found.iter().filter(|workload| Status::of(workload) == Status::Pending).map(&queue_of).collect();
    let positions = positions(&client, pending).await;
    let now = foresee::now(&client).await?;
    let listing = workload_list(&found, options.of.all_namespaces, &queue_of, &positions, now);
    options.of.selection.print(listing, Some(&namespace).filter(|_| !options.of.all_namespaces))
}

/// ClusterQueues of the LocalQueues of workloads, by namespace and name; those that the user may
/// read.
async fn cluster_queues_of(
    client: &Client,
    workloads: &[Workload],
) -> anyhow::Result<BTreeMap<(String, String), String>> {
    let mut found = BTreeMap::new();
    let namespaces: std::collections::BTreeSet<String> = workloads.iter().filter_map(ResourceExt::namespace).collect();
    for namespace in namespaces {
        let api: Api<LocalQueue> = Api::namespaced(client.clone(), &namespace);
        match pages(api, ListParams::default().limit(PAGE)).await {
            Ok(queues) => found.extend(
                queues.into_iter().map(|it| ((namespace.clone(), it.name_any()), it.spec.cluster_queue.clone())),
            ),
            Err(error) => eprintln!("berth: some ClusterQueues are not shown: {}", process::in_full(&error)),
        }
    }
    Ok(found)
}

/// Positions of pending workloads in their LocalQueues, by namespace and name.
type Positions = BTreeMap<(String, String), i64>;

/// The positions in these ClusterQueues, as far as the user may read them.
async fn positions(client: &Client, queues: std::collections::BTreeSet<String>) -> Positions {
    let mut found = Positions::new();
    for queue in queues.iter().filter(|queue| !queue.is_empty()) {
        let (group, version) = (visibility::GROUP, visibility::VERSIONS[0]);
        let path = format!("/apis/{group}/{version}/clusterqueues/{}/pendingworkloads?limit=10000", segment(queue));
        let Ok(request) = Request::get(path).body(Vec::new()) else { continue };
        // The column is empty for users that may not read the queue's order.
        let Ok(summary) = client.request::<Value>(request).await else { continue };
        for item in summary["items"].as_array().into_iter().flatten() {
            let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
            if let Some(position) = item["positionInLocalQueue"].as_i64() {
                found.insert((text("namespace"), text("name")), position);
            }
        }
    }
    found
}

fn workload_list(
    workloads: &[Workload],
    namespaces: bool,
    queue_of: &dyn Fn(&Workload) -> String,
    positions: &Positions,
    now: Timestamp,
) -> Listing {
    let titles =
        ["JOB TYPE", "JOB NAME", "LOCALQUEUE", "CLUSTERQUEUE", "STATUS", "POSITION IN QUEUE", "EXEC TIME", "AGE"];
    listing(workloads, namespaces, &titles.map(Column::Usual), |workload| {
        let owners = workload.owner_references();
        let joined = |texts: std::collections::BTreeSet<String>| texts.into_iter().collect::<Vec<_>>().join(", ");
        let at = |type_: &str| {
            let conditions = workload.status.iter().flat_map(|status| &status.conditions);
            let mut found = conditions.filter(|it| it.type_ == type_ && it.status == "True");
            found.next().map(|it| it.last_transition_time.0)
        };
        let run = at(conditions::ADMITTED).map(|start| at(conditions::FINISHED).unwrap_or(now).duration_since(start));
        let key = (workload.namespace().unwrap_or_default(), workload.name_any());
        vec![
            joined(owners.iter().map(|owner| owner.kind.to_lowercase()).collect()),
            joined(owners.iter().map(|owner| owner.name.clone()).collect()),
            workload.spec.queue_name.clone(),
            queue_of(workload),
            Status::of(workload).name().to_owned(),
            positions.get(&key).map(ToString::to_string).unwrap_or_default(),
            run.map(|run| table::human_duration(run.as_secs().max(0))).unwrap_or_default(),
            age(workload, now),
        ]
    })
}

async fn list_pods(options: &PodOptions) -> anyhow::Result<ExitCode> {
    let (client, namespace) = options.of.selection.place.open().await?;
    let labels = pods::selector(&client, &namespace, &options.job).await?;
    let Some(labels) = labels else { bail!("unsupported kind: {}", options.job) };
    let (client, namespace, found) = options.of.objects::<Pod>(Some(labels.clone())).await?;
    let all_namespaces = options.of.all_namespaces;
    let now = foresee::now(&client).await?;
    let columns = [
        Column::Usual("READY"),
        Column::Usual("STATUS"),
        Column::Usual("RESTARTS"),
        Column::Usual("AGE"),
        Column::Wide("IP"),
        Column::Wide("NODE"),
    ];
    let cells = pods::printed(&client, (!all_namespaces).then_some(&namespace), &labels).await?;
    let listing = listing(&found, all_namespaces, &columns, |pod| {
        let key = (pod.namespace().unwrap_or_default(), pod.name_any());
        let printed = cells.get(&key);
        let cell = |column: &str| printed.and_then(|cells| cells.get(column)).cloned().unwrap_or_default();
        vec![cell("Ready"), cell("Status"), cell("Restarts"), age(pod, now), cell("IP"), cell("Node")]
    });
    options.of.selection.print(listing, Some(&namespace).filter(|_| !all_namespaces))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(name: &str, kind: &str, conditions: &[(&str, &str)]) -> Workload {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, at)| json!({"type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": at}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": kind, "name": "train", "uid": "1"}]},
            "spec": {"queueName": "main", "podSets": []}, "status": {"conditions": conditions}}))
        .expect("a workload")
    }

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().expect("a time")
    }

    #[test]
    fn workloads_have_the_columns_of_kueuectl() {
        let reserved = ("QuotaReserved", "2026-01-01T00:10:00Z");
        let admitted = ("Admitted", "2026-01-01T00:20:00Z");
        let all = [
            workload("waits", "Job", &[]),
            workload("reserved", "JobSet", &[reserved]),
            workload("runs", "Job", &[reserved, admitted]),
            workload("done", "Job", &[reserved, admitted, ("Finished", "2026-01-01T00:50:00Z")]),
        ];
        let positions = Positions::from([(("team".to_owned(), "waits".to_owned()), 0)]);
        let list = workload_list(&all, true, &|_| "cq".to_owned(), &positions, now());
        let expected = "\
NAMESPACE   NAME       JOB TYPE   JOB NAME   LOCALQUEUE   CLUSTERQUEUE   STATUS          POSITION IN QUEUE   EXEC TIME   AGE
team        waits      job        train      main         cq             PENDING         0                               60m
team        reserved   jobset     train      main         cq             QUOTARESERVED                                   60m
team        runs       job        train      main         cq             ADMITTED                            40m         60m
team        done       job        train      main         cq             FINISHED                            30m         60m
";
        assert_eq!(list.render(&Format::Table).expect("text"), expected);
        assert_eq!(list.names[0], "workload.kueue.x-k8s.io/waits");
        assert_eq!(list.items[0]["kind"], "Workload");
    }

    #[test]
    fn queues_are_filtered_by_their_state_and_their_cluster_queue() {
        let queue = |name: &str, active: &str| -> ClusterQueue {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cohortName": "all"}, "status": {
                "pendingWorkloads": 2, "admittedWorkloads": 1, "conditions": [{"type": "Active", "status": active,
                "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
            .expect("a queue")
        };
        let queues = [queue("a", "True"), queue("b", "False")];
        let names = |active: &[bool]| {
            let list = cluster_queues(&queues, active, now());
            list.rows.iter().map(|row| row[..5].join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["a all 2 1 true", "b all 2 1 false"]);
        assert_eq!(names(&[false]), ["b all 2 1 false"]);
        assert_eq!(names(&[true, false]).len(), 2);
        let local = |name: &str, of: &str| -> LocalQueue {
            serde_json::from_value(
                json!({"metadata": {"name": name, "namespace": "team"}, "spec": {"clusterQueue": of}}),
            )
            .expect("a queue")
        };
        let list = local_queues(&[local("x", "a"), local("y", "b")], Some("b"), false, now());
        assert_eq!(list.rows, [["y", "b", "0", "0", ""].map(str::to_owned)]);
    }

    #[test]
    fn flavors_have_their_node_labels_in_order() {
        let flavor: ResourceFlavor =
            serde_json::from_value(json!({"metadata": {"name": "f"}, "spec": {"nodeLabels": {"b": "2", "a": "1"}}}))
                .expect("a flavor");
        assert_eq!(flavors(&[flavor], now()).rows, [["f", "a=1, b=2", ""].map(str::to_owned)]);
    }
}
