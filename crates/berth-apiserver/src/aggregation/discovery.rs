//! What programs elsewhere serve, as discovery lists it.

use serde_json::{Value, json};

use super::Remote;
use crate::ApiServer;

/// A version of a group, in the aggregated form. What its server said last is shown as stale while it does not answer.
pub(crate) fn version(server: &ApiServer, remote: &Remote) -> Value {
    let known = server.inner.services.resources(&remote.name);
    let resources = known.map(|known| resources(&remote.group, &remote.version, &known)).unwrap_or_default();
    let is_current = matches!(remote.available, Some((true, _)));
    let freshness = if is_current { "Current" } else { "Stale" };
    json!({"version": remote.version, "resources": resources, "freshness": freshness})
}

/// Resources of an APIResourceList in the aggregated form, each with its subresources.
pub(crate) fn resources(group: &str, version: &str, listed: &[Value]) -> Vec<Value> {
    let text = |resource: &Value, field: &str| resource[field].as_str().unwrap_or_default().to_owned();
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let kind = |it: &Value| json!({"group": or(text(it, "group"), group), "version": or(text(it, "version"), version), "kind": it["kind"]});
    let resources = listed.iter().filter(|resource| !text(resource, "name").contains('/')).map(|resource| {
        let name = text(resource, "name");
        let of = |other: &Value| text(other, "name").strip_prefix(&name)?.strip_prefix('/').map(str::to_owned);
        let subresources: Vec<Value> = listed
            .iter()
            .filter_map(|other| {
                let sub = of(other)?;
                Some(json!({"subresource": sub, "responseKind": kind(other), "verbs": other["verbs"]}))
            })
            .collect();
        let mut value = json!({
            "resource": name,
            "responseKind": kind(resource),
            "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": resource["singularName"],
            "verbs": resource["verbs"],
            "subresources": subresources,
        });
        for field in ["shortNames", "categories"] {
            if resource[field].is_array() {
                value[field] = resource[field].clone();
            }
        }
        value
    });
    resources.collect()
}
