//! `explain.berth.dev`: why a job waits and who holds quota, asked of the controllers in this process.

use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use berth_apiserver::{Answer, Asked, Extension, RequestInfo};
use berth_controllers::explain::{GROUP, Unexplained, VERSION};
use berth_controllers::visibility::Page;
use serde_json::{Value, json};

use crate::api::Controllers;

/// Explanations of workloads, by their names or those of their jobs, and the holders of cluster queues' quota.
pub(crate) struct Explanations(pub(crate) Controllers);

impl Extension for Explanations {
    fn group(&self) -> &str {
        GROUP
    }

    fn versions(&self) -> &[&str] {
        &[VERSION]
    }

    fn resources(&self) -> Vec<Value> {
        // Not what they are subresources of: nothing of it is served here, and clients that find kinds by their short names
        // would take it for Kueue's.
        vec![
            json!({"name": "workloads/explanation", "singularName": "", "namespaced": true,
                "kind": "WorkloadExplanation", "verbs": ["get"]}),
            json!({"name": "clusterqueues/holders", "singularName": "", "namespaced": false,
                "kind": "ClusterQueueHolders", "verbs": ["get"]}),
        ]
    }

    fn get<'a>(&'a self, asked: Asked<'a>) -> Answer<'a> {
        Box::pin(std::future::ready(self.answer(asked.info, asked.query)))
    }
}

impl Explanations {
    fn answer(&self, info: &RequestInfo, query: &str) -> Result<Value, Status> {
        let (subresource, is_namespaced) = (info.subresource.as_str(), !info.namespace.is_empty());
        let of_queue = match (info.resource.as_str(), subresource, is_namespaced) {
            ("workloads", "explanation", true) => false,
            ("clusterqueues", "holders", false) => true,
            _ => return Err(Status::no_such_path()),
        };
        let Some(installed) = self.0.installed() else {
            return Err(Status::service_unavailable("the controllers are starting"));
        };
        if of_queue {
            let page = Page::parse(query).map_err(Status::bad_request)?;
            let missing = || Status::not_found(&GroupResource::new(GROUP, "clusterqueues"), &info.name);
            return installed.explain.holders(&info.name, page).ok_or_else(missing);
        }
        installed.explain.of(&info.namespace, &info.name).map_err(|error| match error {
            Unexplained::NotFound(_) => Status::not_found(&GroupResource::new(GROUP, "workloads"), &info.name),
            Unexplained::Ambiguous { .. } => Status::bad_request(error.to_string()),
        })
    }
}
