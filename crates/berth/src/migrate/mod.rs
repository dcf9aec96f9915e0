//! `berth migrate --check`: whether Berth can take over from a running Kueue. Only reads. With
//! `--storage`: all objects of Kueue's kinds stored in one version.

mod storage;

use std::process::ExitCode;

use anyhow::{Context, bail};
use berth_controllers::jobs;
use berth_embedded::objects;
use berth_foresight::command::migrate;
use berth_foresight::migrate::{Inventory, Orders};
use berth_foresight::objects::Document;
use berth_runtime::Clock;
use clap::Args;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, GroupVersionKind, ListParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value, json};

use crate::component::connect::{self, ConnectOptions};
use crate::process;
use crate::team::in_words;

/// Group of Kueue's kinds.
const KUEUE: &str = "kueue.x-k8s.io";
/// Maximum number of pending workloads of a queue whose order is compared.
const PENDING_MAX: usize = 10_000;

/// Options of `berth migrate`.
#[derive(Args)]
pub struct MigrateOptions {
    /// Check whether Berth can take over from Kueue. Nothing is written.
    #[arg(long, required_unless_present = "storage")]
    check: bool,
    /// Write each object of Kueue's kinds once without a change, so that none is stored in an older
    /// version, and remove the older versions from `status.storedVersions` of the definitions. Can
    /// be interrupted and repeated, and works while Kueue or Berth runs.
    #[arg(long, conflicts_with_all = ["check", "files", "output", "all", "fail_on", "kueue_namespace"])]
    storage: bool,
    /// First make this version the storage version of all of Kueue's kinds, for example before a
    /// return to a Kueue that lacks the current one.
    #[arg(long, value_name = "VERSION", requires = "storage")]
    storage_version: Option<String>,
    #[command(flatten)]
    migrate: migrate::Options,
    /// Namespace of Kueue's installation, which has its configuration.
    #[arg(long, value_name = "NAMESPACE", default_value = "kueue-system")]
    kueue_namespace: String,
    #[command(flatten)]
    connect: ConnectOptions,
}

/// Prints the check. Exit codes: 0 if nothing is as bad as `--fail-on`, 1 if something is, 2 if the
/// check could not be made.
pub fn main(options: &MigrateOptions) -> ExitCode {
    process::run_check(run(options))
}

async fn run(options: &MigrateOptions) -> anyhow::Result<bool> {
    if options.storage {
        // A busy API server is retried, so that the command need not be repeated.
        let client = connect::persistent(options.connect.config().await?)?;
        return storage::run(&client, options.storage_version.as_deref()).await;
    }
    let inventory = if options.migrate.files.is_empty() {
        let client = connect::asking(options.connect.config().await?)?;
        inventory(&client, &options.kueue_namespace).await?
    } else {
        Inventory::default()
    };
    let report = migrate::run(&options.migrate, inventory, Clock::system().now())?;
    process::print(&report.text)?;
    Ok(!report.failed)
}

/// Everything of a cluster that the check reads.
async fn inventory(client: &Client, namespace: &str) -> anyhow::Result<Inventory> {
    served(client).await?;
    let listed = objects::list(client, false).await.map_err(|unlisted| in_words(&unlisted.plural, unlisted.source))?;
    let mut inventory = Inventory { documents: listed.documents, orders: Orders::new(), unread: listed.missing };
    let has = |inventory: &Inventory, kind: &str| inventory.documents.iter().any(|it| it.value["kind"] == kind);
    for (kind, params) in kinds(has(&inventory, "Topology")) {
        match objects::list_kind(client, &kind, params).await {
            Ok(found) => inventory.documents.extend(found.into_iter().map(|value| Document { value, source: None })),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => inventory.unread.push(format!("{}: {}", kind.plural, berth_runtime::message(&error))),
        }
    }
    // Of all definitions, only Kueue's are judged.
    inventory
        .documents
        .retain(|it| it.value["kind"] != "CustomResourceDefinition" || it.value["spec"]["group"] == KUEUE);
    for found in [configuration(client, namespace).await, deployments(client, namespace).await] {
        match found {
            Ok(found) => inventory.documents.extend(found.into_iter().map(|value| Document { value, source: None })),
            Err(error) => inventory.unread.push(format!("{error:#}")),
        }
    }
    let queues = inventory.documents.iter().filter(|it| it.value["kind"] == "ClusterQueue");
    let queues: Vec<String> =
        queues.filter_map(|it| it.value["metadata"]["name"].as_str().map(str::to_owned)).collect();
    for queue in queues {
        match order(client, &queue).await {
            Ok(order) => drop(inventory.orders.insert(queue, order)),
            Err(error) => {
                inventory
                    .unread
                    .push(format!("pending workloads of ClusterQueue {queue}: {}", berth_runtime::message(&error)));
                break;
            }
        }
    }
    Ok(inventory)
}

/// Fails unless the cluster serves Kueue's kinds in the version that Berth reads.
async fn served(client: &Client) -> anyhow::Result<()> {
    let groups = client.list_api_groups().await.context("the API groups of the cluster")?;
    let Some(group) = groups.groups.iter().find(|group| group.name == KUEUE) else {
        bail!("the cluster has no kinds of {KUEUE}: there is no Kueue to migrate from");
    };
    let versions: Vec<&str> = group.versions.iter().map(|version| version.version.as_str()).collect();
    if !versions.contains(&"v1beta2") {
        bail!(
            "the cluster serves {KUEUE} in {}; first update Kueue to a version that serves v1beta2",
            versions.join(", ")
        );
    }
    Ok(())
}

/// The kinds beyond those on which decisions depend. Pods outside of queues matter only for
/// topologies.
fn kinds(with_all_pods: bool) -> Vec<(ApiResource, ListParams)> {
    let jobs = jobs::suspendable().into_iter().map(|it| ApiResource {
        api_version: format!("{}/{}", it.group, it.version),
        group: it.group,
        version: it.version,
        kind: it.kind,
        plural: it.resource,
    });
    let mut kinds: Vec<(ApiResource, ListParams)> = jobs.map(|kind| (kind, ListParams::default())).collect();
    for kind in ["TrainingRuntime", "ClusterTrainingRuntime"] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("trainer.kubeflow.org", "v1alpha1", kind));
        kinds.push((resource, ListParams::default()));
    }
    for kind in ["MultiKueueCluster", "MultiKueueConfig"] {
        kinds.push((ApiResource::from_gvk(&GroupVersionKind::gvk(KUEUE, "v1beta2", kind)), ListParams::default()));
    }
    kinds.push((ApiResource::erase::<CustomResourceDefinition>(&()), ListParams::default()));
    let queued = ListParams::default().labels("kueue.x-k8s.io/managed=true");
    kinds.push((ApiResource::erase::<Pod>(&()), if with_all_pods { ListParams::default() } else { queued }));
    kinds
}

/// The ConfigMap with Kueue's configuration; its name depends on how Kueue was installed.
async fn configuration(client: &Client, namespace: &str) -> anyhow::Result<Vec<Value>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let list =
        api.list(&ListParams::default()).await.with_context(|| format!("ConfigMaps of namespace {namespace}"))?;
    let has =
        |map: &ConfigMap| map.data.as_ref().is_some_and(|data| data.contains_key("controller_manager_config.yaml"));
    Ok(list.items.iter().find(|map| has(map)).map(typed).into_iter().collect())
}

/// The Deployments of Kueue's namespace: Kueue's own may set feature gates on its command line.
async fn deployments(client: &Client, namespace: &str) -> anyhow::Result<Vec<Value>> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let list =
        api.list(&ListParams::default()).await.with_context(|| format!("Deployments of namespace {namespace}"))?;
    Ok(list.items.iter().map(typed).collect())
}

/// An object of a list, with the version and kind that the entries of a list lack.
fn typed<K: k8s_openapi::Resource + Serialize>(object: &K) -> Value {
    let mut value = json!(object);
    value["apiVersion"] = json!(K::API_VERSION);
    value["kind"] = json!(K::KIND);
    value
}

/// The pending workloads of a queue in the order in which Kueue would consider them.
async fn order(client: &Client, queue: &str) -> Result<Vec<(String, String)>, kube::Error> {
    let ask = async |version: &str| {
        let path = format!(
            "/apis/visibility.{KUEUE}/{version}/clusterqueues/{queue}/pendingworkloads?limit={PENDING_MAX}&offset=0"
        );
        let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        client.request::<Value>(request).await
    };
    let summary = match ask("v1beta2").await {
        Err(kube::Error::Api(status)) if status.code == 404 => ask("v1beta1").await?,
        other => other?,
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = summary["items"].as_array().into_iter().flatten();
    Ok(items.map(|item| (text(&item["metadata"]["namespace"]), text(&item["metadata"]["name"]))).collect())
}
