//! The pod network of a process without privileges: a user namespace and a network namespace, and
//! the process that holds them.
//!
//! The holder is a process of its own, so that the pod network survives the process that uses it,
//! like the pods. It creates the bridge, connects pods to it, and creates sockets in the network
//! namespace, which it sends to its clients. Services and names are served by the clients, with
//! such sockets. Pods are in user namespaces below the holder's, because only then may the holder
//! move interfaces to them.
//!
//! The holder also forwards the traffic of pods to other networks ([`outward`]). Its thread in the
//! pod network's namespace receives it, and its main thread, which has stayed in the machine's
//! network namespace, sends it.
//!
//! The holder ends when a client requests it, and when it has neither a client nor a pod.
//!
//! A client that finds no holder starts one. A client whose holder ends starts another one in the
//! same namespaces, which the client keeps open. Connections between pods do not depend on either.

mod client;
mod inside;
mod outward;
mod process;

use std::net::Ipv4Addr;

use berth_pod_runtime::PodUid;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::sides::Transport;

pub(crate) use client::Holder;
pub(crate) use process::main;

/// Name of the holder's socket in the folder of the network's records.
const SOCKET: &str = "holder";
/// Name of the file with the holder's lock.
const LOCK: &str = "holder.lock";

/// The first message to a new holder, over its standard input. The user namespace and the network
/// namespace of an earlier holder may be sent with it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Start {
    /// Range of pod addresses.
    pods: Ipv4Net,
    /// Range of cluster IPs.
    services: Ipv4Net,
}

/// A command to the holder. Each connection carries one command.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Request {
    /// Describe the network. The connection stays open as long as the client uses the network.
    Watch,
    /// Connect the network namespace that is sent with the message.
    Connect { pod: PodUid, address: Ipv4Addr },
    /// Disconnect a pod.
    Disconnect { pod: PodUid },
    /// Disconnect all pods but these.
    Retain { pods: Vec<PodUid> },
    /// Create a socket, which is sent with the response.
    Socket { kind: Transport },
    /// Remove the network and end.
    End,
}

/// A response of the holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Reply {
    Done,
    /// The user namespace and the network namespace are sent with the message.
    Network(Described),
    Failed(String),
}

/// Properties of a pod network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Described {
    /// Range of pod addresses.
    pods: Ipv4Net,
    /// Why pods cannot reach other networks.
    isolated: Option<String>,
}
