//! The Workload and its job as YAML.

use berth_api::kueue::v1beta2::Workload;
use http::{Response, StatusCode};
use kube::api::{ApiResource, DynamicObject, TypeMeta};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;

use crate::dashboard::Dashboard;
use crate::html::{Href, Html};
use crate::layout::{self, cannot, notice};
use crate::pods;
use crate::read::{self, Unread};
use crate::request::Asked;
use crate::workload::explanation;

/// The page.
pub async fn page(dashboard: &Dashboard, asked: &Asked, (namespace, name): (&str, &str)) -> Response<String> {
    let title = format!("{namespace}/{name}");
    let frame = dashboard.frame(asked, &title, &["workloads", namespace, name, "yaml"]);
    let workload = named(&dashboard.client, namespace, name).await;
    let job = match &workload {
        Ok(workload) => job(&dashboard.client, namespace, workload).await,
        Err(_) => None,
    };
    let code = workload.as_ref().map_or_else(Unread::code, |_| StatusCode::OK);
    layout::page(code, &frame, |html| {
        html.class("h1", "", |html| {
            html.link(&Href::path(&["workloads", namespace, name]), &title);
            html.line("span", "kind", " as YAML");
        });
        match &job {
            Some((kind, Ok(job))) => object(html, kind, job),
            Some((kind, Err(unread))) => notice(html, format_args!("The {kind} is not shown. {unread}")),
            None => {}
        }
        match &workload {
            Ok(workload) => {
                let mut workload = workload.clone();
                workload.metadata.managed_fields = None;
                object(html, "Workload", &serde_json::to_value(&workload).unwrap_or_default());
            }
            Err(unread) => cannot(html, unread),
        }
    })
}

/// The Workload of this name, or else that of a job of this name.
async fn named(client: &Client, namespace: &str, name: &str) -> Result<Workload, Unread> {
    let api: Api<Workload> = Api::namespaced(client.clone(), namespace);
    let read = read::within(api.get(name)).await;
    let Err(Unread::Refused { code: 404, .. }) = &read else { return read };
    match explanation(client, namespace, name).await {
        Ok(explained) => read::within(api.get(&explained.metadata.name)).await,
        Err(unread) => Err(unread),
    }
}

/// The job of a workload, and its kind.
async fn job(client: &Client, namespace: &str, workload: &Workload) -> Option<(String, Result<Value, Unread>)> {
    let owner = pods::owner(workload)?;
    let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &owner.kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let object = read::within(api.get(&owner.name)).await.map(|mut object| {
        object.metadata.managed_fields = None;
        object.types = Some(TypeMeta { api_version: owner.api_version.clone(), kind: owner.kind.clone() });
        serde_json::to_value(object).unwrap_or_default()
    });
    Some((owner.kind.clone(), object))
}

fn object(html: &mut Html, kind: &str, object: &Value) {
    html.line("h2", "", kind);
    let text = serde_saphyr::to_string(object).unwrap_or_else(|_| format!("{object:#}"));
    html.element("pre", &[("class", &"log"), ("tabindex", &"0")], |html| html.text(&text));
}
