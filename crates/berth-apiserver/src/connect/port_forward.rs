//! `pods/portforward`: connections of a client to ports of a pod.

use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_pod_runtime::Duplex;
use http::Response;
use serde_json::Value;

use super::streams::Forward;
use super::upgrade::{self, Upgrade};
use super::{Wire, spdy, websocket};
use crate::Body;
use crate::rest::Call;

/// The pod of a session, with the names for messages.
#[derive(Clone)]
pub(super) struct Target {
    forward: Forward,
    name: String,
    uid: String,
}

impl Target {
    #[cfg(test)]
    pub(super) fn of_test(forward: Forward) -> Target {
        Target { forward, name: "p".to_owned(), uid: "u".to_owned() }
    }

    /// Connects `stream` to `port` until either side closes. The error is for the client.
    pub(super) async fn connect(&self, port: u16, stream: Box<dyn Duplex>) -> Result<(), String> {
        let result = (self.forward)(port, stream).await;
        result.map_err(|error| format!("error forwarding port {port} to pod {}, uid {}: {error}", self.name, self.uid))
    }
}

/// Responds to a request that was admitted with `options` (PodPortForwardOptions).
pub(super) fn handle(call: &Call, pod: &Arc<Value>, options: &Value, wire: Wire<'_>) -> Result<Response<Body>, Status> {
    let streams = super::pod_streams(call)?;
    super::check_has_node(pod, meta::name(pod))?;
    let forward = match streams.port_forward(pod) {
        Ok(forward) => forward,
        Err(status) => return super::kubelet_error(status),
    };
    let target = Target { forward, name: meta::name(pod).to_owned(), uid: meta::uid(pod).to_owned() };
    match upgrade::requested(&wire)? {
        Upgrade::WebSocket { accept, protocols } if protocols.iter().any(|it| it == websocket::tunnel::PROTOCOL) => {
            upgrade::to_websocket(wire.link, &accept, websocket::tunnel::PROTOCOL, move |io| async move {
                spdy::ports::serve(websocket::tunnel::open_stream(io).await, target).await;
            })
        }
        Upgrade::WebSocket { accept, protocols } => {
            let (protocol, is_base64) = websocket::ports::choose(&protocols)?;
            let ports = options["ports"].as_array().into_iter().flatten();
            let ports = ports.filter_map(|port| port.as_u64().and_then(|port| u16::try_from(port).ok())).collect();
            let ports = websocket::ports::check(ports, is_base64)?;
            upgrade::to_websocket(wire.link, &accept, protocol, move |io| {
                websocket::ports::serve(io, is_base64, ports, target)
            })
        }
        Upgrade::Spdy { protocols } => match spdy::ports::choose(&protocols) {
            Ok(protocol) => upgrade::to_spdy(wire.link, protocol, move |io| spdy::ports::serve(io, target)),
            Err(error) => Ok(upgrade::unsupported(&error, &spdy::ports::PROTOCOLS)),
        },
    }
}
