//! What `berth team` reads from a cluster and writes to it.

use std::collections::BTreeMap;

use anyhow::{anyhow, bail};
use berth_api::kueue::v1beta2::{ClusterQueue, LocalQueue, ResourceFlavor, Workload};
use berth_apimachinery::quantity::Quantity;
use berth_runtime::{is_conflict, is_not_found};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::DryRun;

/// Field manager of the objects.
const FIELD_MANAGER: &str = "berth-team";

/// A cluster, through a user's client.
pub struct Cluster {
    pub client: Client,
}

/// Effect of applying an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    Created,
    Configured,
    Unchanged,
}

impl Applied {
    /// The effect as kubectl prints it.
    pub fn text(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

impl Cluster {
    /// All objects of a kind, of one namespace or all.
    pub async fn list<K>(&self, namespace: Option<&str>) -> anyhow::Result<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        collect(api, &ListParams::default()).await
    }

    /// All objects of a cluster-scoped kind with a label.
    pub async fn list_cluster<K>(&self, selector: &str) -> anyhow::Result<Vec<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        collect(Api::all(self.client.clone()), &ListParams::default().labels(selector)).await
    }

    /// A cluster-scoped object.
    pub async fn get<K>(&self, name: &str) -> anyhow::Result<Option<K>>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        api.get_opt(name).await.map_err(|error| failed::<K>(error))
    }

    /// Amounts that pods can request, one map per node.
    pub async fn nodes(&self) -> anyhow::Result<Vec<BTreeMap<String, Quantity>>> {
        let nodes: Vec<Node> = self.list_cluster("").await?;
        let amounts = nodes.into_iter().map(|node| {
            let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
            allocatable
                .into_iter()
                .filter_map(|(name, amount)| Some((name, Quantity::parse(&amount.0).ok()?)))
                .collect()
        });
        Ok(amounts.collect())
    }

    /// Applies an object (server-side). Returns the stored object and the effect.
    pub async fn apply(
        &self,
        object: &Value,
        dry_run: Option<DryRun>,
        force: bool,
    ) -> anyhow::Result<(Applied, DynamicObject)> {
        let typed: DynamicObject = serde_json::from_value(object.clone())?;
        let (resource, namespaced) = resource_of(object["kind"].as_str().unwrap_or_default())?;
        let api: Api<DynamicObject> = match &typed.metadata.namespace {
            Some(namespace) if namespaced => Api::namespaced_with(self.client.clone(), namespace, &resource),
            _ => Api::all_with(self.client.clone(), &resource),
        };
        let name = typed.name_any();
        let title = title(object);
        let before = api.get_opt(&name).await.map_err(|error| in_words(&title, error))?;
        let mut params = PatchParams::apply(FIELD_MANAGER);
        params.dry_run = dry_run.is_some();
        params.force = force;
        let after =
            api.patch(&name, &params, &Patch::Apply(&typed)).await.map_err(|error| match is_conflict(&error) {
                true => in_words(&title, error).context(
                    "another program or user manages fields of the object; use --force-conflicts to overwrite them",
                ),
                false => in_words(&title, error),
            })?;
        let effect = match before {
            None => Applied::Created,
            Some(before) if written(&before) == written(&after) => Applied::Unchanged,
            Some(_) => Applied::Configured,
        };
        Ok((effect, after))
    }
}

/// The parts of an object that users write. The status changes by itself.
fn written(object: &DynamicObject) -> (Value, Option<&BTreeMap<String, String>>) {
    let mut data = object.data.clone();
    if let Some(fields) = data.as_object_mut() {
        fields.remove("status");
    }
    (data, object.metadata.labels.as_ref())
}

async fn collect<K>(api: Api<K>, params: &ListParams) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    Ok(api.list(params).await.map_err(|error| failed::<K>(error))?.items)
}

/// The error of a request about a kind.
fn failed<K: Resource<DynamicType = ()>>(error: kube::Error) -> anyhow::Error {
    let kind = K::kind(&());
    if is_not_found(&error) {
        return anyhow!(
            "the cluster does not serve {kind} ({}); `berth install --apply` installs the definitions",
            K::api_version(&())
        );
    }
    in_words(&kind, error)
}

/// The server's message, or that the request failed.
pub fn in_words(what: &str, error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!("{what}: {}", status.message),
        error => anyhow::Error::new(error).context(format!("{what}: the request failed")),
    }
}

/// An object as kubectl names it: `clusterqueue.kueue.x-k8s.io/blue-cluster-queue`.
pub fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let group = text(&object["apiVersion"]).split_once('/').map(|(group, _)| format!(".{group}"));
    format!(
        "{}{}/{}",
        text(&object["kind"]).to_lowercase(),
        group.unwrap_or_default(),
        text(&object["metadata"]["name"])
    )
}

/// The resource of a kind that teams consist of, and whether it is namespaced.
fn resource_of(kind: &str) -> anyhow::Result<(ApiResource, bool)> {
    Ok(match kind {
        "ClusterRole" => (ApiResource::erase::<ClusterRole>(&()), false),
        "Namespace" => (ApiResource::erase::<Namespace>(&()), false),
        "RoleBinding" => (ApiResource::erase::<RoleBinding>(&()), true),
        "ResourceFlavor" => (ApiResource::erase::<ResourceFlavor>(&()), false),
        "ClusterQueue" => (ApiResource::erase::<ClusterQueue>(&()), false),
        "LocalQueue" => (ApiResource::erase::<LocalQueue>(&()), true),
        other => bail!("{other} is not part of a team"),
    })
}

/// True if a Workload has not finished.
pub fn is_unfinished(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    !conditions.iter().any(|condition| condition.type_ == "Finished" && condition.status == "True")
}
