//! The API group `explain.berth.dev`: why a workload waits, which workloads hold a queue's quota,
//! what was used, what happened to a workload, what will happen, and what GPUs report. The
//! controllers of this process compute the responses.

use std::sync::Arc;

use berth_api::berth::gpus;
use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use berth_apiserver::{Answer, Asked, Extension, UserInfo};
use berth_controllers::Installed;
use berth_controllers::explain::{GROUP, Reader, Unexplained, Unreported, VERSION};
use berth_controllers::visibility::Page;
use serde_json::{Value, json};

use crate::api::Controllers;

/// Serves explanations and histories of workloads, by the name of the workload or of its job, the
/// holders of cluster queues' quota, and the use of namespaces. Responses name only workloads that
/// the requesting user may list.
pub(crate) struct Explanations {
    controllers: Controllers,
}

impl Explanations {
    pub(crate) fn new(controllers: Controllers) -> Self {
        Self { controllers }
    }
}

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
            json!({"name": "workloads/history", "singularName": "", "namespaced": true,
                "kind": "WorkloadHistory", "verbs": ["get"]}),
            json!({"name": "forecasts", "singularName": "", "namespaced": true, "kind": "Forecasts", "verbs": ["list"]}),
            json!({"name": "whatifs", "singularName": "whatif", "namespaced": true, "kind": "WhatIf",
                "verbs": ["create"]}),
            json!({"name": "currentjobs", "singularName": "", "namespaced": true, "kind": "CurrentJobs",
                "verbs": ["list"]}),
            json!({"name": "gpus", "singularName": "", "namespaced": false, "kind": gpus::KIND, "verbs": ["list"]}),
            json!({"name": "stays", "singularName": "", "namespaced": true, "kind": "Stays", "verbs": ["list"]}),
            json!({"name": "usage", "singularName": "", "namespaced": true, "kind": "UsageReport",
                "verbs": ["list"]}),
        ]
    }

    fn get<'a>(&'a self, asked: Asked<'a>) -> Answer<'a> {
        Box::pin(self.answer(asked))
    }

    fn create<'a>(&'a self, asked: Asked<'a>, body: &'a [u8]) -> Answer<'a> {
        Box::pin(self.question(asked, body))
    }
}

/// The user that the API server authenticated, as the reader of an explanation.
fn reader(user: &UserInfo) -> Reader {
    let UserInfo { name, uid, groups, extra } = user.clone();
    Reader { name, uid, groups, extra }
}

impl Explanations {
    fn installed(&self) -> Result<Arc<Installed>, Status> {
        self.controllers.installed().ok_or_else(|| Status::service_unavailable("the controllers are starting"))
    }

    async fn question(&self, asked: Asked<'_>, body: &[u8]) -> Result<Value, Status> {
        let Asked { info, user, .. } = asked;
        match (info.resource.as_str(), info.subresource.as_str()) {
            ("whatifs", "") if info.name.is_empty() => {
                self.controllers.foresight().what_if(&self.installed()?, &reader(user), &info.namespace, body).await
            }
            _ => Err(Status::no_such_path()),
        }
    }

    async fn answer(&self, asked: Asked<'_>) -> Result<Value, Status> {
        let Asked { info, query, user } = asked;
        let reader = &reader(user);
        let installed = self.installed()?;
        let explain = &installed.explain;
        let is_namespaced = !info.namespace.is_empty();
        match (info.resource.as_str(), info.subresource.as_str()) {
            ("workloads", "explanation") if is_namespaced => {
                let explained = explain.of(reader, &info.namespace, &info.name).await;
                explained.map_err(|error| unexplained(error, &info.name))
            }
            ("workloads", "history") if is_namespaced => {
                let history = explain.history(reader, &info.namespace, &info.name).await;
                history.map_err(|error| unreported(error, &info.name))
            }
            ("clusterqueues", "holders") if !is_namespaced => {
                let page = Page::parse(query).map_err(Status::bad_request)?;
                let missing = || Status::not_found(&GroupResource::new(GROUP, "clusterqueues"), &info.name);
                explain.holders(reader, &info.name, page).await.ok_or_else(missing)
            }
            ("currentjobs", "") if info.name.is_empty() => {
                let jobs = explain.current_jobs(reader, &info.namespace, query).await;
                jobs.map_err(|error| unreported(error, &info.name))
            }
            ("forecasts", "") if info.name.is_empty() => {
                self.controllers.foresight().forecasts(&installed, reader, &info.namespace, query).await
            }
            ("gpus", "") if info.name.is_empty() && !is_namespaced => Ok(json!(self.controllers.gpus().await)),
            ("stays", "") if info.name.is_empty() => {
                let stays = explain.stays(reader, &info.namespace, query).await;
                stays.map_err(|error| unreported(error, &info.name))
            }
            ("usage", "") if info.name.is_empty() => {
                let report = explain.usage(reader, &info.namespace, query).await;
                report.map_err(|error| unreported(error, &info.name))
            }
            _ => Err(Status::no_such_path()),
        }
    }
}

fn unexplained(error: Unexplained, name: &str) -> Status {
    match error {
        Unexplained::NotFound(_) => Status::not_found(&GroupResource::new(GROUP, "workloads"), name),
        Unexplained::Ambiguous { .. } => Status::bad_request(error.to_string()),
    }
}

fn unreported(error: Unreported, name: &str) -> Status {
    match error {
        Unreported::Unexplained(error) => unexplained(error, name),
        Unreported::Invalid(problem) => Status::bad_request(problem),
        Unreported::Journal(_) => Status::service_unavailable(error.to_string()),
    }
}
