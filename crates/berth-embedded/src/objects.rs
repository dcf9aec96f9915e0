//! Lists the objects of a cluster on which decisions depend, with a user's client, and makes the
//! nodes of a pool.

use berth_api::berth::NodePool;
use berth_api::kueue::v1beta2 as kueue;
use berth_cluster::{Site, pools};
use berth_foresight::objects::Document;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{ApiResource, DynamicObject, ListParams, TypeMeta};
use kube::{Api, Client};
use serde_json::Value;

/// Number of objects per request.
const PAGE: u32 = 500;

/// Objects of a cluster, and what could not be listed.
#[derive(Default)]
pub struct Listed {
    /// The objects.
    pub documents: Vec<Document>,
    /// A text per kind that could not be listed.
    pub missing: Vec<String>,
}

/// A kind that must be listed cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{plural} cannot be listed: {source}")]
pub struct Unlisted {
    /// Plural name of the kind.
    pub plural: String,
    /// The API server's error.
    pub source: kube::Error,
}

impl Listed {
    /// The kind without which the state would be another one, and that could not be listed.
    pub fn incomplete(&self) -> Option<&str> {
        let needed = |missing: &&String| {
            ["workloads", "localqueues", "resourceflavors"].iter().any(|it| missing.starts_with(it))
        };
        self.missing.iter().find(needed).map(String::as_str)
    }
}

/// The kinds on which decisions depend. Pods are large, and only some uses need them.
fn kinds(with_pods: bool) -> Vec<ApiResource> {
    let mut kinds = vec![
        ApiResource::erase::<Namespace>(&()),
        ApiResource::erase::<Node>(&()),
        ApiResource::erase::<NodePool>(&()),
        ApiResource::erase::<PriorityClass>(&()),
        ApiResource::erase::<LimitRange>(&()),
        ApiResource::erase::<RuntimeClass>(&()),
        ApiResource::erase::<ResourceClaimTemplate>(&()),
        ApiResource::erase::<DeviceClass>(&()),
        ApiResource::erase::<ResourceSlice>(&()),
        ApiResource::erase::<kueue::ResourceFlavor>(&()),
        ApiResource::erase::<kueue::Topology>(&()),
        ApiResource::erase::<kueue::Cohort>(&()),
        ApiResource::erase::<kueue::ClusterQueue>(&()),
        ApiResource::erase::<kueue::LocalQueue>(&()),
        ApiResource::erase::<kueue::AdmissionCheck>(&()),
        ApiResource::erase::<kueue::ProvisioningRequestConfig>(&()),
        ApiResource::erase::<kueue::WorkloadPriorityClass>(&()),
        ApiResource::erase::<kueue::Workload>(&()),
    ];
    if with_pods {
        kinds.push(ApiResource::erase::<Pod>(&()));
    }
    kinds
}

/// Lists the objects of all namespaces. Kinds that the cluster does not serve are left out.
///
/// # Errors
/// The cluster cannot be reached, or does not let the user list ClusterQueues.
pub async fn list(client: &Client, with_pods: bool) -> Result<Listed, Unlisted> {
    let mut listed = Listed::default();
    for kind in kinds(with_pods) {
        match list_kind(client, &kind, ListParams::default()).await {
            Ok(found) => listed.documents.extend(found.into_iter().map(|value| Document { value, source: None })),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(kube::Error::Api(status)) if kind.kind != "ClusterQueue" => {
                listed.missing.push(format!("{}: {}", kind.plural, status.message));
            }
            Err(source) => return Err(Unlisted { plural: kind.plural, source }),
        }
    }
    Ok(listed)
}

/// Lists the objects of a kind of all namespaces in pages, without the managers of their fields.
///
/// # Errors
/// The API server's error; 404 if the cluster does not serve the kind.
pub async fn list_kind(client: &Client, kind: &ApiResource, params: ListParams) -> Result<Vec<Value>, kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
    let mut values = Vec::new();
    let mut params = params.limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        for mut object in page.items {
            // The items of a list have no kind of their own.
            object.types = Some(TypeMeta { api_version: kind.api_version.clone(), kind: kind.kind.clone() });
            object.metadata.managed_fields = None;
            values.push(serde_json::to_value(object).map_err(kube::Error::SerdeError)?);
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(values),
        }
    }
}

/// A node of the pool for each of its zones.
pub fn template(pool: &NodePool) -> Vec<Node> {
    let site = Site {
        cluster: "berth".to_owned(),
        region: "us-central1".to_owned(),
        version: String::new(),
        seed: 0,
        taints_simulated: false,
    };
    let zones = pools::zones(pool, &site);
    zones.iter().map(|zone| pools::template(pool, &site, zone, "node")).collect()
}
