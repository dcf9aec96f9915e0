//! The pod network of one node: addresses of pods, names, and Services.
//!
//! [`Network`] gives pods their addresses and connects them ([`SandboxNetwork`]), answers questions
//! about names of the cluster ([`Zone`]), and serves Services at their addresses. [`install`] adds
//! the controllers that feed it.
//!
//! A proxy in this process serves Services at their cluster IPs, which are addresses of this
//! machine, at node ports, and at the addresses of load balancers. It also serves the host ports of
//! pods. Services can be reached only while this process runs. Connections between pods do not
//! depend on it.
//!
//! The network has one of two levels:
//!
//! - [`Level::Full`] (Linux with `CAP_NET_ADMIN`): each pod has a network namespace. A pair of
//!   virtual Ethernet interfaces connects it to a bridge of the cluster. Pods reach each other, the
//!   machine and, through the machine's packet filter, other networks. Other networks cannot reach
//!   pods.
//! - [`Level::Plain`]: pods are in the machine's own network. Each pod has a loopback address as
//!   its IP, at which other pods and the machine reach it. Pods are not separated from each other.
//!
//! There is no level in between yet, with one user and network namespace for all pods of a node. A
//! machine without `CAP_NET_ADMIN` therefore has the plain level.

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
