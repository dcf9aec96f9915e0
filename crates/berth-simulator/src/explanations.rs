//! `explain.berth.dev`: why a job waits, asked of the controllers in this process. Elsewhere `berth controller` answers the
//! same beside its metrics.

use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use berth_apiserver::{Extension, RequestInfo};
use berth_controllers::explain::{GROUP, Unexplained, VERSION};
use serde_json::{Value, json};

use crate::api::Controllers;

/// Explanations of workloads, by their names or those of their jobs.
pub(crate) struct Explanations(pub(crate) Controllers);

impl Extension for Explanations {
    fn group(&self) -> &str {
        GROUP
    }

    fn versions(&self) -> &[&str] {
        &[VERSION]
    }

    fn resources(&self) -> Vec<Value> {
        vec![
            json!({"name": "workloads", "singularName": "workload", "namespaced": true, "kind": "Workload", "verbs": []}),
            json!({"name": "workloads/explanation", "singularName": "", "namespaced": true,
                "kind": "WorkloadExplanation", "verbs": ["get"]}),
        ]
    }

    fn get(&self, info: &RequestInfo, _: &str) -> Result<Value, Status> {
        if info.resource != "workloads" || info.subresource != "explanation" || info.namespace.is_empty() {
            return Err(Status::no_such_path());
        }
        let Some(installed) = self.0.installed() else {
            return Err(Status::service_unavailable("the controllers are starting"));
        };
        installed.explain.of(&info.namespace, &info.name).map_err(|error| match error {
            Unexplained::NotFound(_) => Status::not_found(&GroupResource::new(GROUP, "workloads"), &info.name),
            Unexplained::Ambiguous { .. } => Status::bad_request(error.to_string()),
        })
    }
}
