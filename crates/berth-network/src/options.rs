//! Options of a pod network, and the report on the opened network.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::Ipv4Net;

use crate::addresses::AddressError;
#[cfg(doc)]
use crate::network::Network;

/// The separation of pods by a pod network; see the crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Loopback addresses in the machine's own network.
    Plain,
    /// A network namespace per pod, joined to a bridge in a user namespace that the holder has.
    Rootless,
    /// A network namespace per pod, joined to a bridge.
    Full,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Rootless => "rootless",
            Self::Full => "full",
        })
    }
}

/// Options of [`Network::open`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the network's records, in the node's folder.
    pub folder: PathBuf,
    /// Requested level. If it does not work, the network has the plain level.
    pub level: Level,
    /// Executable whose `main` calls [`crate::helper::run`]. The rootless level needs it.
    pub helper: Option<PathBuf>,
    /// Range of pod addresses, except at the plain level. `None` selects a range that the machine
    /// does not use. In a range of at least 1024 addresses, the last 256 are reserved for Services
    /// of type LoadBalancer.
    pub pod_range: Option<Ipv4Net>,
    /// Domain of the cluster's names, such as `cluster.local`.
    pub cluster_domain: String,
    /// Range of the API server's cluster IPs.
    pub service_range: Ipv4Net,
    /// Address at which the API server listens.
    pub api_server: SocketAddr,
    /// Additional addresses of this machine for node ports, such as the node's internal IP. Node
    /// ports are always served at 127.0.0.1 and, except at the plain level, at the gateway's
    /// address.
    pub node_addresses: Vec<Ipv4Addr>,
    /// Serve node ports to other machines as well. Otherwise they serve only this machine and its
    /// pods.
    pub expose_node_ports: bool,
}

/// The level of an opened network, and its limitations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The level.
    pub level: Level,
    /// The requested level.
    pub requested: Level,
    /// Why the network does not have the requested level.
    pub reason: Option<String>,
    /// Range of pod addresses.
    pub pods: Ipv4Net,
    /// The limitations at this level on this machine, each with the reason.
    pub limits: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pods in {})", self.level, self.pods)?;
        if let Some(reason) = &self.reason {
            write!(f, "; level {} does not work: {reason}", self.requested)?;
        }
        self.limits.iter().try_for_each(|limit| write!(f, "; {limit}"))
    }
}

/// Failure to open a pod network.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The records cannot be read or written.
    #[error("the pod network's records cannot be used: {}: {source}", path.display())]
    Records {
        /// File or folder.
        path: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// The machine has no addresses for pods.
    #[error("pods cannot get their own addresses on this machine: {reason}")]
    NoAddresses {
        /// Why pods get no addresses at any level.
        reason: String,
    },
    /// The domain of the cluster is not a domain name.
    #[error("the cluster domain {domain:?} is not a domain name such as cluster.local: {reason}")]
    Domain {
        /// The domain.
        domain: String,
        /// Why it is not a domain name.
        reason: String,
    },
}

impl From<AddressError> for OpenError {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::Io { path, source } => Self::Records { path, source },
            other => Self::NoAddresses { reason: other.to_string() },
        }
    }
}
