//! `pods/exec` and `pods/attach`: connects a client's streams to those of a program.

use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use http::Response;
use serde_json::Value;

use super::session::Wanted;
use super::streams::Container;
use super::upgrade::{self, Upgrade};
use super::{Wire, containers, spdy, websocket};
use crate::Body;
use crate::rest::Call;

/// Responds to a request that was admitted with `options` (PodExecOptions or PodAttachOptions).
pub(super) fn handle(call: &Call, pod: Arc<Value>, options: &Value, wire: Wire<'_>) -> Result<Response<Body>, Status> {
    let name = containers::selected(&pod, options["container"].as_str().unwrap_or_default())?;
    let streams = super::pod_streams(call)?;
    super::check_has_node(&pod, meta::name(&pod))?;
    let is_exec = call.info.subresource == "exec";
    let wanted = wanted(options, is_exec, containers::has_terminal(&pod, &name))?;
    let container = Container { pod, name };
    let (action, command) = if is_exec {
        ("executing command in", streams.exec(&container, command_of(options)?))
    } else {
        ("attaching to", streams.attach(&container))
    };
    let command = match command {
        Ok(command) => command,
        Err(status) => return super::kubelet_error(status),
    };
    match upgrade::requested(&wire)? {
        Upgrade::WebSocket { accept, protocols } => {
            let (protocol, format) = websocket::channels::choose(&protocols)?;
            upgrade::to_websocket(wire.link, &accept, protocol, move |io| {
                websocket::channels::serve(io, format, wanted, action, command)
            })
        }
        Upgrade::Spdy { protocols } => {
            let (protocol, format) = match spdy::command::choose(&protocols) {
                Ok(chosen) => chosen,
                Err(error) => return Ok(upgrade::unsupported(&error, &spdy::command::PROTOCOLS)),
            };
            upgrade::to_spdy(wire.link, protocol, move |io| spdy::command::serve(io, format, wanted, action, command))
        }
    }
}

/// The streams that the client requested. `has_terminal` is true if the container runs on a
/// terminal: attaching uses the terminal with which the program was started.
fn wanted(options: &Value, is_exec: bool, has_terminal: bool) -> Result<Wanted, Status> {
    let is_set = |flag: &str| options[flag] == true;
    let tty = is_set("tty");
    // A terminal has one output.
    let stderr = is_set("stderr") && !tty;
    let terminal = if is_exec { tty } else { has_terminal };
    let wanted = Wanted { stdin: is_set("stdin"), stdout: is_set("stdout"), stderr, resize: tty, terminal };
    if wanted.stdin || wanted.stdout || wanted.stderr {
        Ok(wanted)
    } else {
        Err(Status::bad_request("you must specify at least 1 of stdin, stdout, stderr"))
    }
}

fn command_of(options: &Value) -> Result<Vec<String>, Status> {
    let words = options["command"].as_array().into_iter().flatten();
    let command: Vec<String> = words.filter_map(Value::as_str).map(str::to_owned).collect();
    if command.is_empty() {
        Err(Status::bad_request("you must specify a command for the container"))
    } else {
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_terminal_merges_the_outputs_and_an_attached_program_keeps_its_own() {
        let wanted = |options: Value, is_exec, has_terminal| wanted(&options, is_exec, has_terminal);
        let all = json!({"stdin": true, "stdout": true, "stderr": true, "tty": true});
        let on_terminal = Wanted { stdin: true, stdout: true, stderr: false, resize: true, terminal: true };
        assert_eq!(wanted(all.clone(), true, false), Ok(on_terminal));
        assert_eq!(wanted(all, false, false), Ok(Wanted { terminal: false, ..on_terminal }));
        let none = wanted(json!({"tty": true, "stderr": true}), true, false).map_err(|error| error.message);
        assert_eq!(none, Err("you must specify at least 1 of stdin, stdout, stderr".to_owned()));
    }
}
