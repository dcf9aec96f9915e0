//! The operations that connect a client to a pod, a service or a node. Generated clients take the
//! parameters of `exec`, `attach` and `portforward` from them.

use serde_json::{Map, Value, json};

use super::Style;
use super::paths::{Parameter, capitalized, group_id, parameter, response};
use crate::registry::Subresource;

const STDIN: Parameter = ("stdin", "boolean", "Whether the client sends standard input.");
const STDOUT: Parameter = ("stdout", "boolean", "Whether the client receives standard output.");
const STDERR: Parameter = ("stderr", "boolean", "Whether the client receives standard error.");
const TTY: Parameter = ("tty", "boolean", "Whether the program runs on a terminal.");
const CONTAINER: Parameter =
    ("container", "string", "Name of the container; may be omitted for a pod with one container.");
const COMMAND: Parameter = ("command", "string", "A word of the command; repeated for each word.");
const PORTS: Parameter = ("ports", "integer", "A port to forward, for clients that use WebSockets.");
const PATH: Parameter = ("path", "string", "Path of the request to the program behind the proxy.");

fn parameters(sub: &Subresource) -> Vec<Parameter> {
    match sub.name.as_str() {
        "exec" => vec![COMMAND, CONTAINER, STDERR, STDIN, STDOUT, TTY],
        "attach" => vec![CONTAINER, STDERR, STDIN, STDOUT, TTY],
        "portforward" => vec![PORTS],
        _ => vec![PATH],
    }
}

/// The operations of a subresource by method. `id` is the suffix of their ids, such as
/// `NamespacedPodExec`.
pub(super) fn operations(
    style: Style,
    (group, version): (&str, &str),
    id: &str,
    sub: &Subresource,
) -> Map<String, Value> {
    let methods: &[&str] = match sub.name.as_str() {
        "proxy" => &["delete", "get", "head", "options", "patch", "post", "put"],
        _ => &["get", "post"],
    };
    let group = group_id(group);
    let operation = |method: &str| {
        let (place, method) = (format!("{}{}", capitalized(&group), capitalized(version)), capitalized(method));
        let mut operation = json!({
            "operationId": format!("connect{place}{method}{id}"),
            "description": format!("connect {} requests to {} of {}", method.to_uppercase(), sub.name, kind_of(sub)),
            "tags": [format!("{group}_{version}")],
            "x-kubernetes-action": "connect",
            "x-kubernetes-group-version-kind": {"group": sub.group, "version": sub.version, "kind": sub.kind},
            "parameters": parameters(sub).iter().map(|it| parameter(style, "query", it, false)).collect::<Vec<_>>(),
            "responses": {"401": {"description": "Unauthorized"}},
        });
        operation["responses"]["200"] = response(style, "OK", &json!({"type": "string"}), ["*/*"].into_iter());
        if style == Style::V2 {
            operation["consumes"] = json!(["*/*"]);
            operation["produces"] = json!(["*/*"]);
            operation["schemes"] = json!(["https"]);
        }
        operation
    };
    methods.iter().map(|method| ((*method).to_owned(), operation(method))).collect()
}

/// `Pod` for `PodExecOptions`.
fn kind_of(sub: &Subresource) -> &str {
    ["Service", "Node"].into_iter().find(|kind| sub.kind.starts_with(kind)).unwrap_or("Pod")
}

/// The parameter `{path}` of the paths below `proxy`.
pub(super) fn path_parameter(style: Style) -> Value {
    parameter(style, "path", &PATH, true)
}
