//! The API group `explain.berth.dev`: why a workload waits, and which workloads hold a queue's
//! quota. The controllers of this process compute the responses.

use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use berth_apiserver::{Answer, Asked, Extension, UserInfo};
use berth_controllers::explain::{GROUP, Reader, Unexplained, VERSION};
use berth_controllers::visibility::Page;
use serde_json::{Value, json};

use crate::api::Controllers;

/// Serves explanations of workloads, by the name of the workload or of its job, and the holders of
/// cluster queues' quota. Responses name only workloads that the requesting user may list.
pub(crate) struct Explanations(pub(crate) Controllers);

impl Extension for Explanations {
    fn group(&self) -> &str {
        GROUP
    }

    fn versions(&self) -> &[&str] {
        &[VERSION]
    }

    fn resources(&self) -> Vec<Value> {
        // The parent resources are omitted: this group does not serve them, and clients that
        // resolve short names would confuse them with Kueue's.
        vec![
            json!({"name": "workloads/explanation", "singularName": "", "namespaced": true,
                "kind": "WorkloadExplanation", "verbs": ["get"]}),
            json!({"name": "clusterqueues/holders", "singularName": "", "namespaced": false,
                "kind": "ClusterQueueHolders", "verbs": ["get"]}),
        ]
    }

    fn get<'a>(&'a self, asked: Asked<'a>) -> Answer<'a> {
        Box::pin(self.answer(asked))
    }
}

/// The user that the API server authenticated, as the reader of an explanation.
fn reader(user: &UserInfo) -> Reader {
    let UserInfo { name, uid, groups, extra } = user.clone();
    Reader { name, uid, groups, extra }
}

impl Explanations {
    async fn answer(&self, asked: Asked<'_>) -> Result<Value, Status> {
        let Asked { info, query, user } = asked;
        let reader = reader(user);
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
            return installed.explain.holders(&reader, &info.name, page).await.ok_or_else(missing);
        }
        let explained = installed.explain.of(&reader, &info.namespace, &info.name).await;
        explained.map_err(|error| match error {
            Unexplained::NotFound(_) => Status::not_found(&GroupResource::new(GROUP, "workloads"), &info.name),
            Unexplained::Ambiguous { .. } => Status::bad_request(error.to_string()),
        })
    }
}
