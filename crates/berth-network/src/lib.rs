//! The pod network of one node: addresses of pods, names, and Services.
//!
//! [`Network`] gives pods their addresses and connects them ([`SandboxNetwork`]), answers questions
//! about names of the cluster ([`Zone`]), and serves Services at their addresses. [`install`] adds
//! the controllers that feed it.
//!
//! Services are served by a proxy of this process at their cluster IPs, which are addresses of this
//! machine, at node ports, and at the addresses of load balancers. It serves the host ports of pods,
//! too. Endpoints are reached while this process runs; connections between pods do not depend on it.
//!
//! The network has one of two levels:
//!
//! - [`Level::Full`] (Linux with `CAP_NET_ADMIN`): each pod has a network namespace, joined by a
//!   pair of virtual Ethernet interfaces to a bridge of the cluster. Pods reach each other, the
//!   machine, and through the machine's packet filter other networks, which cannot reach pods.
//! - [`Level::Plain`]: pods are in the machine's own network. Each pod has a loopback address, given
//!   as its IP, which other pods and the machine reach. Nothing separates the pods.
//!
//! A level between them, with one user and network namespace for all pods of a node, does not exist
//! yet: a machine without `CAP_NET_ADMIN` has the plain level.

mod addresses;
mod controllers;
mod dns;
mod host_ports;
mod identity;
#[cfg(target_os = "linux")]
mod linux;
mod network;
mod plain;
mod proxy;
pub mod published;
mod ranges;
mod resolvers;

pub use controllers::install;
pub use dns::{Answer, TTL, Zone};
pub use network::{Level, Network, OpenError, Options, Report};
pub use ranges::Ranges;
pub use resolvers::host_dns;

#[cfg(doc)]
use berth_pod_runtime::SandboxNetwork;
