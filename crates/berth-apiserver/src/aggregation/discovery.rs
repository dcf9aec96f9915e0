//! The resources of aggregated API servers, in discovery's form.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::{Remote, Services};

/// A version of a group, in the aggregated form. The last known resources are shown as stale while
/// the server is unavailable.
pub(crate) fn version(services: &Services, remote: &Remote) -> Value {
    let known = services.resources(&remote.name);
    let resources = known.map(|known| resources(&remote.group, &remote.version, &known)).unwrap_or_default();
    let is_current = matches!(remote.available, Some((true, _)));
    let freshness = if is_current { "Current" } else { "Stale" };
    json!({"version": remote.version, "resources": resources, "freshness": freshness})
}

/// Resources of an APIResourceList in the aggregated form, each with its subresources. Only strings
/// and lists of strings are copied from other servers: clients decode all groups as one document,
/// and one invalid group would make them reject it. A resource that has only subresources gets no
/// kind of its own, as in kube-apiserver's discovery: clients do not treat it as a resource.
pub(crate) fn resources(group: &str, version: &str, listed: &[Value]) -> Vec<Value> {
    let text = |resource: &Value, field: &str| resource[field].as_str().unwrap_or_default().to_owned();
    let texts = |list: &Value| -> Vec<Value> {
        list.as_array().into_iter().flatten().filter(|it| it.is_string()).cloned().collect()
    };
    let or = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let kind = |it: &Value| json!({"group": or(text(it, "group"), group), "version": or(text(it, "version"), version), "kind": text(it, "kind")});
    let scope = |it: &Value| if it["namespaced"] == true { "Namespaced" } else { "Cluster" };
    let names: HashSet<&str> = listed.iter().filter_map(|it| it["name"].as_str()).collect();
    let mut subresources: HashMap<&str, Vec<Value>> = HashMap::new();
    let mut resources: Vec<(&str, Value)> = Vec::new();
    for resource in listed {
        let Some((name, subresource)) = resource["name"].as_str().unwrap_or_default().split_once('/') else {
            let Some(name) = resource["name"].as_str().filter(|name| !name.is_empty()) else { continue };
            let mut value = json!({
                "resource": name,
                "responseKind": kind(resource),
                "scope": scope(resource),
                "singularResource": text(resource, "singularName"),
                "verbs": texts(&resource["verbs"]),
            });
            for field in ["shortNames", "categories"] {
                if resource[field].is_array() {
                    value[field] = texts(&resource[field]).into();
                }
            }
            resources.push((name, value));
            continue;
        };
        if !names.contains(name) && !subresources.contains_key(name) && !name.is_empty() {
            let none = json!({"group": "", "version": "", "kind": ""});
            let scope = scope(resource);
            let value =
                json!({"resource": name, "responseKind": none, "scope": scope, "singularResource": "", "verbs": []});
            resources.push((name, value));
        }
        subresources.entry(name).or_default().push(json!({
            "subresource": subresource, "responseKind": kind(resource), "verbs": texts(&resource["verbs"]),
        }));
    }
    let whole = resources.into_iter().map(|(name, mut value)| {
        value["subresources"] = subresources.remove(name).unwrap_or_default().into();
        value
    });
    whole.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strings_and_lists_of_strings_are_copied() {
        let listed = [
            json!({"name": "shouts/scale", "kind": {}, "group": 1, "verbs": "get"}),
            json!({"name": "shouts", "singularName": ["shout"], "namespaced": true, "kind": 7, "version": null,
                "verbs": ["get", 1, null, ["list"]], "shortNames": ["sh", {}], "categories": {"all": 1}}),
            json!({"name": "shoutsters", "kind": "Shoutster", "verbs": null}),
            json!({"name": 1, "kind": "One"}),
            json!("two"),
            json!(null),
        ];
        let kind = |kind: &str| json!({"group": "g", "version": "v1", "kind": kind});
        assert_eq!(
            resources("g", "v1", &listed),
            [
                json!({"resource": "shouts", "responseKind": kind(""), "scope": "Namespaced", "singularResource": "",
                    "verbs": ["get"], "shortNames": ["sh"],
                    "subresources": [{"subresource": "scale", "responseKind": kind(""), "verbs": []}]}),
                json!({"resource": "shoutsters", "responseKind": kind("Shoutster"), "scope": "Cluster",
                    "singularResource": "", "verbs": [], "subresources": []}),
            ]
        );
    }

    #[test]
    fn subresources_without_their_resource_are_listed_under_a_resource_without_a_kind() {
        let listed = [
            json!({"name": "things/why", "singularName": "", "namespaced": true, "kind": "Why", "verbs": ["get"]}),
            json!({"name": "things/who", "singularName": "", "namespaced": true, "kind": "Who", "verbs": ["get"]}),
            json!({"name": "others/status", "singularName": "", "namespaced": false, "kind": "Other", "verbs": ["get"]}),
            json!({"name": "others", "singularName": "other", "namespaced": false, "kind": "Other", "verbs": ["list"]}),
        ];
        let resources = resources("g", "v1", &listed);
        let names: Vec<_> = resources.iter().map(|it| it["resource"].as_str().unwrap_or_default()).collect();
        assert_eq!(names, ["things", "others"]);
        let of = |name: &str, kind: &str| {
            json!({"subresource": name, "verbs": ["get"],
            "responseKind": {"group": "g", "version": "v1", "kind": kind}})
        };
        assert_eq!(
            resources[0],
            json!({"resource": "things", "responseKind": {"group": "", "version": "", "kind": ""},
                "scope": "Namespaced", "singularResource": "", "verbs": [],
                "subresources": [of("why", "Why"), of("who", "Who")]})
        );
        assert_eq!(resources[1]["responseKind"]["kind"], "Other");
        assert_eq!(resources[1]["subresources"], json!([of("status", "Other")]));
    }
}
