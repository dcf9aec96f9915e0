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
//! The network has one of three levels:
//!
//! - [`Level::Full`] (Linux with `CAP_NET_ADMIN`): each pod has a network namespace. A pair of
//!   virtual Ethernet interfaces connects it to a bridge of the cluster. Pods reach each other, the
//!   machine and, through the machine's packet filter, other networks. Other networks cannot reach
//!   pods.
//! - [`Level::Rootless`] (Linux with user namespaces): the same in a user namespace and a network
//!   namespace of the cluster, which a process of its own holds ([`holder`]). The machine cannot
//!   reach pods, except by sockets that this process creates. Traffic of pods to other networks is
//!   forwarded in user space.
//! - [`Level::Plain`]: pods are in the machine's own network. Each pod has a loopback address as
//!   its IP, at which other pods and the machine reach it. Pods are not separated from each other.

mod addresses;
mod controllers;
mod dns;
pub mod helper;
#[cfg(target_os = "linux")]
mod holder;
mod host_ports;
mod identity;
mod levels;
#[cfg(target_os = "linux")]
mod linux;
mod network;
mod options;
mod plain;
mod proxy;
pub mod published;
mod ranges;
mod resolvers;
mod sides;

pub use controllers::install;
pub use dns::{Answer, TTL, Zone};
pub use network::Network;
pub use options::{Level, OpenError, Options, Report};
pub use ranges::Ranges;
pub use resolvers::host_dns;

#[cfg(doc)]
use berth_pod_runtime::SandboxNetwork;
