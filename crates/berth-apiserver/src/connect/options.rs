//! The options of connections: query parameters in the form of objects, as admission sees them.

use berth_apimachinery::status::Status;
use serde_json::{Map, Value, json};

use crate::request::query_values;
use crate::rest::Call;

/// Options of `exec`, `attach` or `portforward` from a raw query string.
///
/// # Errors
/// A port is not a number.
pub(super) fn of(subresource: &str, query: &str) -> Result<Value, Status> {
    let text = |name: &'static str| query_values(query, name).next().unwrap_or_default();
    let mut options = Map::from_iter([("apiVersion".to_owned(), json!("v1"))]);
    let mut set = |field: &str, value: Value| options.insert(field.to_owned(), value);
    if subresource == "portforward" {
        let ports =
            query_values(query, "ports").flat_map(|list| list.split(',').map(str::to_owned).collect::<Vec<_>>());
        let ports: Vec<u16> =
            ports.filter(|port| !port.is_empty()).map(|port| parse_port(&port)).collect::<Result<_, _>>()?;
        set("kind", json!("PodPortForwardOptions"));
        if !ports.is_empty() {
            set("ports", json!(ports));
        }
        return Ok(Value::Object(options));
    }
    set("kind", json!(if subresource == "exec" { "PodExecOptions" } else { "PodAttachOptions" }));
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        if query_values(query, flag).next().is_some_and(|value| boolean(&value)) {
            set(flag, json!(true));
        }
    }
    let container = text("container");
    if !container.is_empty() {
        set("container", json!(container));
    }
    let command: Vec<String> = query_values(query, "command").collect();
    if subresource == "exec" && !command.is_empty() {
        set("command", json!(command));
    }
    Ok(Value::Object(options))
}

/// Options of a proxied request.
pub(super) fn proxy(call: &Call) -> Value {
    let kind = &call.version().subresource("proxy").map(|it| it.kind.as_str()).unwrap_or_default();
    let mut options = json!({"apiVersion": "v1", "kind": kind});
    let path = super::proxy::path_below(&call.info);
    if !path.is_empty() {
        options["path"] = json!(path);
    }
    options
}

fn parse_port(text: &str) -> Result<u16, Status> {
    text.parse::<u16>()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| Status::bad_request(format!("query parameter ports: {text:?} is not a port (1 to 65535)")))
}

/// As upstream's conversion of queries: everything but `false` and `0` is true.
fn boolean(value: &str) -> bool {
    !(value == "0" || value.eq_ignore_ascii_case("false"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_the_options_that_admission_sees() {
        let query = "command=sh&command=-c&command=echo+%24HOME&container=main&stdin=true&stderr=false&tty=0&stdout=1";
        let expected = json!({
            "apiVersion": "v1", "kind": "PodExecOptions", "stdin": true, "stdout": true, "container": "main",
            "command": ["sh", "-c", "echo $HOME"],
        });
        assert_eq!(of("exec", query).unwrap(), expected);
        let expected = json!({"apiVersion": "v1", "kind": "PodPortForwardOptions", "ports": [80, 81, 8080]});
        assert_eq!(of("portforward", "ports=80,81&ports=8080").unwrap(), expected);
        let error = of("portforward", "ports=0").unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            (400, "query parameter ports: \"0\" is not a port (1 to 65535)")
        );
    }
}
