//! The paths in an OpenAPI document: for every kind its collection, its objects and its
//! subresources, with the parameters of each verb. Clients read from them which features the server
//! supports (kubectl: field validation, dry run), and the kind of a resource (kubectl explain).

use serde_json::{Map, Value, json};

use super::definitions::{name_of, reference};
use super::{Style, connections, root};
use crate::discovery::rows;
use crate::registry::{Origin, Subresource, VersionInfo};
use crate::{Registry, ResourceInfo};

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";
const RESOURCES: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.APIResourceList";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
/// Media types of patches that every kind accepts.
const PATCH_TYPES: [&str; 3] =
    ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
/// Media type of patches that built-in kinds also accept. kubectl checks that it is documented
/// before it computes such a patch.
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";

/// Media types of objects in responses.
pub(super) const MEDIA_TYPES: [&str; 2] = ["application/json", "application/yaml"];

/// Name, type and description of a query parameter.
pub(super) type Parameter = (&'static str, &'static str, &'static str);

const DRY_RUN: Parameter =
    ("dryRun", "string", "With \"All\", the request is validated and its result is returned, but nothing is stored.");
const LIST: [Parameter; 10] = [
    ("allowWatchBookmarks", "boolean", "Whether a watch may send bookmarks."),
    ("continue", "string", "Continue token of the previous page of a list."),
    ("fieldSelector", "string", "Restricts the objects by their fields."),
    ("labelSelector", "string", "Restricts the objects by their labels."),
    ("limit", "integer", "Maximum number of objects in the response."),
    ("resourceVersion", "string", "The resource version to list at or to watch from."),
    ("resourceVersionMatch", "string", "How resourceVersion applies to a list."),
    ("sendInitialEvents", "boolean", "Whether a watch begins with the existing objects."),
    ("timeoutSeconds", "integer", "Seconds after which the server ends the response."),
    ("watch", "boolean", "Whether to stream changes instead of returning a list."),
];
const WRITE: [Parameter; 3] = [
    DRY_RUN,
    ("fieldManager", "string", "Name of the manager of the changed fields in managedFields."),
    ("fieldValidation", "string", "What to do about unknown and duplicate fields: Ignore, Warn or Strict."),
];
const FORCE: Parameter = ("force", "boolean", "Whether an apply takes over fields of other managers.");
const DELETE: [Parameter; 4] = [
    DRY_RUN,
    ("gracePeriodSeconds", "integer", "Seconds before the object is deleted."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    ("propagationPolicy", "string", "How dependents are deleted: Orphan, Background or Foreground."),
];

/// The resource of an operation.
struct Target<'a> {
    style: Style,
    /// Group and version of the path. Those of the kind may differ, as for scales and evictions.
    served: (&'a str, &'a str),
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    /// Suffix of operation ids, such as `NamespacedPod`.
    id: String,
    patch_types: Vec<&'static str>,
}

/// All paths of one group and version.
pub(super) fn of(registry: &Registry, group: &str, version: &str, style: Style) -> Map<String, Value> {
    let mut paths = Map::new();
    let base = format!("/{}", root(group, version));
    paths.insert(format!("{base}/"), resources(group, version, style));
    for (row, version) in rows(registry, group, version) {
        let collection = if row.namespaced {
            format!("{base}/namespaces/{{namespace}}/{}", row.plural)
        } else {
            format!("{base}/{}", row.plural)
        };
        add_kind(&mut paths, row, version, style, &base, &collection);
        for sub in &version.subresources {
            let scoped = scope_name(row);
            let target = Target {
                style,
                served: (&row.group, &version.name),
                group: &sub.group,
                version: &sub.version,
                kind: &sub.kind,
                id: format!("{scoped}{}{}", row.kind, capitalized(&sub.name)),
                patch_types: patch_types(row),
            };
            let path = format!("{collection}/{{name}}/{}", sub.name);
            let whole = subresource(&target, row.namespaced, sub);
            if sub.name == "proxy" {
                paths.insert(format!("{path}/{{path}}"), below_proxy(&whole, style));
            }
            paths.insert(path, whole);
        }
    }
    paths
}

/// The discovery path of one group and version.
fn resources(group: &str, version: &str, style: Style) -> Value {
    let group = group_id(group);
    let mut operation = json!({
        "operationId": format!("get{}{}APIResources", capitalized(&group), capitalized(version)),
        "description": "get available resources",
        "tags": [format!("{group}_{version}")],
        "responses": {"401": {"description": "Unauthorized"}},
    });
    operation["responses"]["200"] = object_response(style, "OK", RESOURCES, &[]);
    if style == Style::V2 {
        operation["consumes"] = json!(MEDIA_TYPES);
        operation["produces"] = json!(MEDIA_TYPES);
        operation["schemes"] = json!(["https"]);
    }
    json!({"get": operation})
}

fn patch_types(row: &ResourceInfo) -> Vec<&'static str> {
    let strategic = (!matches!(row.origin, Origin::Custom(_))).then_some(STRATEGIC_PATCH);
    PATCH_TYPES.into_iter().chain(strategic).collect()
}

fn scope_name(row: &ResourceInfo) -> &'static str {
    if row.namespaced { "Namespaced" } else { "" }
}

pub(super) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map(|first| first.to_uppercase().chain(characters).collect()).unwrap_or_default()
}

fn add_kind(
    paths: &mut Map<String, Value>,
    row: &ResourceInfo,
    version: &VersionInfo,
    style: Style,
    base: &str,
    collection: &str,
) {
    let target = Target {
        style,
        served: (&row.group, &version.name),
        group: &row.group,
        version: &version.name,
        kind: &row.kind,
        id: format!("{}{}", scope_name(row), row.kind),
        patch_types: patch_types(row),
    };
    let has = |verb: &str| row.verbs.iter().any(|own| own == verb);
    let object = name_of(&row.group, &version.name, &row.kind);
    let list = name_of(&row.group, &version.name, &row.list_kind);
    let mut whole = Map::new();
    if has("list") {
        whole.insert("get".to_owned(), target.operation("list", &LIST, None, &list));
    }
    if has("create") {
        whole.insert("post".to_owned(), target.operation("post", &WRITE, Some(&object), &object));
    }
    if has("deletecollection") {
        let parameters: Vec<Parameter> = DELETE
            .into_iter()
            .chain(LIST.into_iter().filter(|it| it.0 != "watch" && it.0 != "allowWatchBookmarks"))
            .collect();
        whole.insert(
            "delete".to_owned(),
            target.operation("deletecollection", &parameters, Some(DELETE_OPTIONS), STATUS),
        );
    }
    whole.insert("parameters".to_owned(), path_parameters(style, row.namespaced, false));
    paths.insert(collection.to_owned(), Value::Object(whole));
    if row.namespaced && has("list") {
        let everywhere = target.with_id(format!("{}ForAllNamespaces", row.kind));
        paths.insert(
            format!("{base}/{}", row.plural),
            json!({
                "get": everywhere.operation("list", &LIST, None, &list),
                "parameters": path_parameters(style, false, false),
            }),
        );
    }
    if has("watch") && !matches!(row.origin, Origin::Custom(_)) {
        add_watches(paths, row, &target, base, collection);
    }
    let mut one = Map::new();
    if has("get") {
        one.insert("get".to_owned(), target.operation("get", &[], None, &object));
    }
    if has("update") {
        one.insert("put".to_owned(), target.operation("put", &WRITE, Some(&object), &object));
    }
    if has("patch") {
        one.insert("patch".to_owned(), target.patch(&object));
    }
    if has("delete") {
        one.insert("delete".to_owned(), target.operation("delete", &DELETE, Some(DELETE_OPTIONS), STATUS));
    }
    if !one.is_empty() {
        one.insert("parameters".to_owned(), path_parameters(style, row.namespaced, true));
        paths.insert(format!("{collection}/{{name}}"), Value::Object(one));
    }
}

/// Adds the `/watch/` paths, which preceded the parameter `watch=true`. Kubernetes documents them
/// for built-in kinds only.
fn add_watches(paths: &mut Map<String, Value>, row: &ResourceInfo, target: &Target<'_>, base: &str, collection: &str) {
    let below = collection.strip_prefix(base).unwrap_or(collection);
    let mut add = |path: String, action: &str, id: String, named: bool, namespaced: bool| {
        let operation = target.with_id(id).operation(action, &[], None, WATCH_EVENT);
        let mut parameters = path_parameters(target.style, namespaced, named);
        if let Value::Array(parameters) = &mut parameters {
            parameters.extend(LIST.iter().map(|it| parameter(target.style, "query", it, false)));
        }
        paths.insert(path, json!({"get": operation, "parameters": parameters}));
    };
    let scoped = &target.id;
    add(format!("{base}/watch{below}"), "watchlist", format!("{scoped}List"), false, row.namespaced);
    add(format!("{base}/watch{below}/{{name}}"), "watch", scoped.clone(), true, row.namespaced);
    if row.namespaced {
        let id = format!("{}ListForAllNamespaces", row.kind);
        add(format!("{base}/watch/{}", row.plural), "watchlist", id, false, false);
    }
}

/// The path below `proxy`, whose operations have ids of their own.
fn below_proxy(proxy: &Value, style: Style) -> Value {
    let mut below = proxy.clone();
    for operation in below.as_object_mut().into_iter().flatten().map(|(_, value)| value).filter(|it| it.is_object()) {
        if let Some(id) = operation["operationId"].as_str() {
            operation["operationId"] = json!(format!("{id}WithPath"));
        }
    }
    if let Some(parameters) = below["parameters"].as_array_mut() {
        parameters.push(connections::path_parameter(style));
    }
    below
}

fn subresource(target: &Target<'_>, namespaced: bool, sub: &Subresource) -> Value {
    if sub.kind.ends_with("Options") {
        let operations = connections::operations(target.style, target.served, &target.id, sub);
        let mut path: Map<String, Value> = operations.into_iter().collect();
        path.insert("parameters".to_owned(), path_parameters(target.style, namespaced, true));
        return Value::Object(path);
    }
    let object = name_of(target.group, target.version, target.kind);
    let mut path = Map::new();
    for verb in &sub.verbs {
        let (method, operation) = match verb.as_str() {
            "get" => ("get", target.operation("get", &[], None, &object)),
            "create" => ("post", target.operation("post", &WRITE, Some(&object), &object)),
            "update" => ("put", target.operation("put", &WRITE, Some(&object), &object)),
            "patch" => ("patch", target.patch(&object)),
            _ => continue,
        };
        path.insert(method.to_owned(), operation);
    }
    path.insert("parameters".to_owned(), path_parameters(target.style, namespaced, true));
    Value::Object(path)
}

impl<'a> Target<'a> {
    /// The same target with another suffix of operation ids.
    fn with_id(&self, id: String) -> Target<'a> {
        Target { id, patch_types: self.patch_types.clone(), ..*self }
    }

    fn patch(&self, object: &str) -> Value {
        let parameters: Vec<Parameter> = WRITE.into_iter().chain([FORCE]).collect();
        let mut operation = self.operation("patch", &parameters, Some(PATCH), object);
        match self.style {
            Style::V2 => operation["consumes"] = json!(self.patch_types),
            Style::V3 => {
                let content: Map<String, Value> = self
                    .patch_types
                    .iter()
                    .map(|media| ((*media).to_owned(), json!({"schema": reference(self.style, PATCH)})))
                    .collect();
                operation["requestBody"]["content"] = Value::Object(content);
            }
        }
        operation
    }

    /// One-line description of the operation.
    fn description(&self, action: &str) -> String {
        let kind = self.kind;
        let subject = || match self.id.strip_prefix("Namespaced").unwrap_or(&self.id).strip_prefix(kind) {
            Some(sub) if !sub.is_empty() => format!("{} of the specified {kind}", sub.to_lowercase()),
            _ => format!("the specified {kind}"),
        };
        match action {
            "list" => format!("list or watch objects of kind {kind}"),
            "post" => format!("create a {kind}"),
            "deletecollection" => format!("delete collection of {kind}"),
            "delete" => format!("delete a {kind}"),
            "get" => format!("read {}", subject()),
            "put" => format!("replace {}", subject()),
            "patch" => format!("partially update {}", subject()),
            "watch" => format!(
                "watch changes to an object of kind {kind}. deprecated: use the 'watch' parameter with a list operation \
                 instead, filtered to a single item with the 'fieldSelector' parameter."
            ),
            "watchlist" => format!(
                "watch individual changes to a list of {kind}. deprecated: use the 'watch' parameter with a list \
                 operation instead."
            ),
            other => other.to_owned(),
        }
    }

    fn operation(&self, action: &str, query: &[Parameter], body: Option<&str>, definition: &str) -> Value {
        let mut parameters: Vec<Value> = query.iter().map(|it| parameter(self.style, "query", it, false)).collect();
        let verb = match action {
            "get" => "read",
            "post" => "create",
            "put" => "replace",
            "deletecollection" => "delete",
            "watchlist" => "watch",
            other => other,
        };
        let collection = if action == "deletecollection" { "Collection" } else { "" };
        let (group, version) = (group_id(self.served.0), self.served.1);
        let mut operation = json!({
            "operationId":
                format!("{verb}{}{}{collection}{}", capitalized(&group), capitalized(version), self.id),
            "description": self.description(action),
            "tags": [format!("{group}_{version}")],
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": self.group, "version": self.version, "kind": self.kind},
        });
        let is_stream = matches!(action, "list" | "watch" | "watchlist");
        let streams: &[&'static str] = if is_stream { &["application/json;stream=watch"] } else { &[] };
        match self.style {
            Style::V2 => {
                if let Some(body) = body {
                    let required = !matches!(action, "delete" | "deletecollection");
                    parameters.insert(0, json!({"name": "body", "in": "body", "required": required, "schema": reference(self.style, body)}));
                }
                operation["consumes"] = json!(["*/*"]);
                operation["produces"] = MEDIA_TYPES.iter().chain(streams).copied().collect();
                operation["schemes"] = json!(["https"]);
            }
            Style::V3 => {
                if let Some(body) = body {
                    operation["requestBody"] = json!({"content": {"*/*": {"schema": reference(self.style, body)}}});
                    if !matches!(action, "delete" | "deletecollection") {
                        operation["requestBody"]["required"] = json!(true);
                    }
                }
            }
        }
        for (code, description) in response_codes(action) {
            operation["responses"][code] = object_response(self.style, description, definition, streams);
        }
        operation["responses"]["401"] = json!({"description": "Unauthorized"});
        operation["parameters"] = Value::Array(parameters);
        operation
    }
}

/// A successful response with an object. `streams` are media types in addition to [`MEDIA_TYPES`].
fn object_response(style: Style, description: &str, definition: &str, streams: &[&'static str]) -> Value {
    response(style, description, &reference(style, definition), MEDIA_TYPES.iter().chain(streams).copied())
}

/// A successful response, in any of the media types `forms`.
pub(super) fn response(
    style: Style,
    description: &str,
    schema: &Value,
    forms: impl Iterator<Item = &'static str>,
) -> Value {
    match style {
        Style::V2 => json!({"description": description, "schema": schema}),
        Style::V3 => {
            let content: Map<String, Value> =
                forms.map(|media| (media.to_owned(), json!({"schema": schema}))).collect();
            json!({"description": description, "content": content})
        }
    }
}

/// Status codes of a successful action: 201 if an object was created (also by PUT or apply), 202
/// if the action continues after the response.
fn response_codes(action: &str) -> &'static [(&'static str, &'static str)] {
    match action {
        "post" => &[("200", "OK"), ("201", "Created"), ("202", "Accepted")],
        "put" | "patch" => &[("200", "OK"), ("201", "Created")],
        "delete" => &[("200", "OK"), ("202", "Accepted")],
        _ => &[("200", "OK")],
    }
}

/// Name of a group in operation ids and tags: `kueueXK8sIo` for `kueue.x-k8s.io`,
/// `rbacAuthorization` for `rbac.authorization.k8s.io`, `core` for the core group. Generated
/// clients name their methods and modules after it.
pub(super) fn group_id(group: &str) -> String {
    if group.is_empty() {
        return "core".to_owned();
    }
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    let mut parts = group.split(['.', '-']);
    let first = parts.next().unwrap_or_default().to_owned();
    first + &parts.map(capitalized).collect::<String>()
}

pub(super) fn parameter(style: Style, place: &str, (name, kind, description): &Parameter, required: bool) -> Value {
    let mut value = json!({"name": name, "in": place, "description": description});
    match style {
        Style::V2 => {
            value["type"] = json!(kind);
            value["uniqueItems"] = json!(true);
        }
        Style::V3 => value["schema"] = json!({"type": kind, "uniqueItems": true}),
    }
    if required {
        value["required"] = json!(true);
    }
    value
}

fn path_parameters(style: Style, namespaced: bool, named: bool) -> Value {
    let mut parameters = Vec::new();
    if named {
        parameters.push(parameter(style, "path", &("name", "string", "Name of the object."), true));
    }
    if namespaced {
        parameters.push(parameter(style, "path", &("namespace", "string", "Namespace of the object."), true));
    }
    parameters.push(parameter(style, "query", &("pretty", "string", "Whether to indent the response."), false));
    Value::Array(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_ids_are_those_of_the_published_documents() {
        let registry = Registry::builtin();
        let check = |group: &str, version: &str, expected: &[(&str, &str, &str)]| {
            let paths = of(&registry, group, version, Style::V3);
            for (path, method, id) in expected {
                assert_eq!(paths[*path][method]["operationId"], *id, "{path}");
            }
            paths
        };
        const POD: &str = "/api/v1/namespaces/{namespace}/pods/{name}";
        let core = check(
            "",
            "v1",
            &[
                (POD, "get", "readCoreV1NamespacedPod"),
                ("/api/v1/namespaces/{namespace}/pods", "delete", "deleteCoreV1CollectionNamespacedPod"),
                ("/api/v1/namespaces/{namespace}/pods/{name}/eviction", "post", "createCoreV1NamespacedPodEviction"),
                ("/api/v1/pods", "get", "listCoreV1PodForAllNamespaces"),
                ("/api/v1/namespaces", "post", "createCoreV1Namespace"),
            ],
        );
        assert_eq!(core[POD]["get"]["tags"], json!(["core_v1"]));
        let codes = |operation: &Value| operation["responses"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(codes(&core[POD]["delete"]), ["200", "202", "401"]);
        assert_eq!(codes(&core[POD]["put"]), ["200", "201", "401"]);
        assert_eq!(codes(&core[POD]["get"]), ["200", "401"]);
        const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        let id = "createRbacAuthorizationV1ClusterRole";
        let rbac = check("rbac.authorization.k8s.io", "v1", &[(ROLES, "post", id)]);
        assert_eq!(rbac[ROLES]["post"]["tags"], json!(["rbacAuthorization_v1"]));
        let scale = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale";
        check("apps", "v1", &[(scale, "put", "replaceAppsV1NamespacedDeploymentScale")]);
    }
}
