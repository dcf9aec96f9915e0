//! Resource requests of the pods on all nodes. Only the fields that determine the requests are read
//! into memory.

use std::collections::BTreeMap;

use berth_apimachinery::percent::component;
use http::Request;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::Client;
use serde::Deserialize;

use crate::node_use::{self, Use};
use crate::read::{self, Unread};

/// Maximum number of pods that are read.
pub const PODS_MAX: usize = 50_000;
/// Maximum number of pods in one page of the list.
const PART: usize = 5_000;
/// Field selector of the pods that hold resources of a node.
const ON_NODES: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Slim>,
}

/// The fields of a pod that are read.
#[derive(Deserialize)]
struct Slim {
    #[serde(default)]
    spec: SlimSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimSpec {
    node_name: Option<String>,
    containers: Vec<SlimContainer>,
    init_containers: Vec<SlimContainer>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimContainer {
    resources: Option<ResourceRequirements>,
    restart_policy: Option<String>,
}

impl Slim {
    /// The pod, with its node and requests only.
    fn pod(self) -> Pod {
        let container = |it: SlimContainer| Container {
            resources: it.resources,
            restart_policy: it.restart_policy,
            ..Container::default()
        };
        let SlimSpec { node_name, containers, init_containers } = self.spec;
        let spec = PodSpec {
            node_name,
            containers: containers.into_iter().map(container).collect(),
            init_containers: Some(init_containers.into_iter().map(container).collect()),
            ..PodSpec::default()
        };
        Pod { spec: Some(spec), ..Pod::default() }
    }
}

/// The requests of pods, by node; `None` if there are more than [`PODS_MAX`] pods.
pub async fn uses(client: &Client) -> Result<Option<BTreeMap<String, Use>>, Unread> {
    let reading = async {
        let (mut uses, mut count, mut token) = (BTreeMap::new(), 0, String::new());
        loop {
            let fields = component(ON_NODES);
            let path = format!("/api/v1/pods?limit={PART}&fieldSelector={fields}&continue={}", component(&token));
            let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            let part: Part = client.request(request).await?;
            count += part.items.len();
            part.items.into_iter().for_each(|slim| node_use::add(&mut uses, &slim.pod()));
            token = part.metadata.continue_.unwrap_or_default();
            if token.is_empty() {
                return Ok(Some(uses));
            }
            if count >= PODS_MAX {
                return Ok(None);
            }
        }
    };
    read::within(reading).await
}
