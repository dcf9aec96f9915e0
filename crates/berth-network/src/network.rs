//! The pod network of a node, and how it is opened.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_pod_runtime::{PodUid, RuntimeError, SandboxNetwork};
use berth_runtime::Clock;
use futures::future::BoxFuture;
use ipnet::Ipv4Net;
use parking_lot::Mutex;

use crate::addresses::{AddressError, Addresses};
use crate::identity::Identity;
use crate::plain::Loopback;
use crate::ranges::Ranges;

/// How far a pod network separates pods; see the crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Loopback addresses in the machine's own network.
    Plain,
    /// A network namespace per pod, joined to a bridge.
    Full,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Full => "full",
        })
    }
}

/// Options of [`Network::open`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the network's records, in the node's folder.
    pub folder: PathBuf,
    /// The highest level to try.
    pub level: Level,
    /// Range of pod addresses at the full level. `None` chooses a range that the machine does not
    /// use. A range of at least 1024 addresses keeps its last 256 for Services of type LoadBalancer.
    pub pod_range: Option<Ipv4Net>,
    /// Domain of the cluster's names, such as `cluster.local`.
    pub cluster_domain: String,
    /// Range of the API server's cluster IPs.
    pub service_range: Ipv4Net,
    /// Address at which the API server listens.
    pub api_server: SocketAddr,
    /// The cluster's clock.
    pub clock: Clock,
}

/// The level of an opened network, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The level.
    pub level: Level,
    /// Why the network does not have the level that was asked for.
    pub reason: Option<String>,
    /// Range of pod addresses.
    pub pods: Ipv4Net,
    /// What does not work at this level on this machine, each with the reason.
    pub limits: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pods in {})", self.level, self.pods)?;
        if let Some(reason) = &self.reason {
            write!(f, "; not full: {reason}")?;
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
        /// What failed.
        source: std::io::Error,
    },
    /// The machine has no addresses for pods.
    #[error("this machine gives pods no addresses of their own: {reason}")]
    NoAddresses {
        /// Why neither level works.
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

/// The pod network of one node.
pub struct Network {
    addresses: Mutex<Addresses>,
    fabric: Fabric,
}

/// How pods are connected.
enum Fabric {
    #[cfg(target_os = "linux")]
    Full(crate::linux::Links),
    Plain(Loopback),
}

/// File with the range of the last run.
const RANGE: &str = "range";

impl Network {
    /// Opens the pod network of the node that has this folder, at the highest level that works.
    ///
    /// Pods of an earlier run keep their addresses and connections. Call [`Network::retain`] once
    /// the pods that still exist are known.
    ///
    /// # Errors
    /// If the records cannot be read or written, or the machine has no addresses for pods at all.
    pub async fn open(options: Options) -> Result<(Arc<Self>, Report), OpenError> {
        let folder = &options.folder;
        let records = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Records { path, source }
        };
        std::fs::create_dir_all(folder).map_err(records(folder))?;
        let folder = folder.canonicalize().map_err(records(folder))?;
        let identity = Identity::of(&folder);
        let known = std::fs::read_to_string(folder.join(RANGE)).ok().and_then(|text| text.trim().parse().ok());
        let pods = folder.join("addresses");
        let is_used = Addresses::open(&pods, Ipv4Net::default(), Vec::new())?.pods().next().is_some();
        let (fabric, ranges, reason, limits) = match full(&options, &identity, known, is_used).await {
            Ok((fabric, ranges, limits)) => (fabric, ranges, None, limits),
            Err(reason) => {
                let loopback = Loopback::claim(&identity, known).map_err(|error| OpenError::NoAddresses {
                    reason: format!("{reason}; a loopback address besides 127.0.0.1 cannot be used: {error}"),
                })?;
                let ranges =
                    Ranges::of(loopback.pods()).expect("the loopback network of a cluster has 65536 addresses");
                let limits = vec![PLAIN_LIMIT.to_owned()];
                let reason = (options.level > Level::Plain).then_some(reason);
                (Fabric::Plain(loopback), ranges, reason, limits)
            }
        };
        let addresses = Addresses::open(&pods, ranges.pods, ranges.reserved())?;
        let range = folder.join(RANGE);
        std::fs::write(&range, ranges.pods.to_string()).map_err(records(&range))?;
        let network = Self { addresses: Mutex::new(addresses), fabric };
        let report = Report { level: network.level(), reason, pods: ranges.pods, limits };
        Ok((Arc::new(network), report))
    }

    /// The level of this network.
    pub fn level(&self) -> Level {
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Full(_) => Level::Full,
            Fabric::Plain(_) => Level::Plain,
        }
    }

    /// Disconnects the pods that are not in `pods`, and frees their addresses. Call it at the start
    /// of the node, with the pods that it still has.
    ///
    /// # Errors
    /// If an interface cannot be deleted or a record cannot be written. Repeat the call.
    pub async fn retain(&self, pods: &BTreeSet<PodUid>) -> Result<(), RuntimeError> {
        let gone: Vec<PodUid> = self.addresses.lock().pods().filter(|pod| !pods.contains(*pod)).cloned().collect();
        for pod in &gone {
            self.release(pod).await?;
        }
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Full(links) => links.retain(pods.iter()).await.map_err(internal),
            Fabric::Plain(_) => Ok(()),
        }
    }

    /// Removes everything that this network added to the machine. Pods lose their connections.
    ///
    /// # Errors
    /// If the machine refuses a change. Repeat the call.
    pub async fn remove(&self) -> Result<(), RuntimeError> {
        self.retain(&BTreeSet::new()).await?;
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Full(links) => links.remove().await.map_err(internal),
            Fabric::Plain(_) => Ok(()),
        }
    }

    /// The address at which this machine serves a cluster IP: the cluster IP itself, or a loopback
    /// address at the plain level.
    pub fn service_address(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr {
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Full(_) => cluster_ip,
            Fabric::Plain(loopback) => loopback.service(cluster_ip),
        }
    }

    /// Whether a pod of this node has the address.
    pub fn has_pod(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if self.addresses.lock().contains(address))
    }
}

const PLAIN_LIMIT: &str = "pods share the machine's network, each with a loopback address";

/// Opens the full level. The error is the reason why it does not work.
#[cfg(target_os = "linux")]
async fn full(
    options: &Options,
    identity: &Identity,
    known: Option<Ipv4Net>,
    is_used: bool,
) -> Result<(Fabric, Ranges, Vec<String>), String> {
    if options.level < Level::Full {
        return Err("the plain level was asked for".to_owned());
    }
    let known = known.filter(|range| !range.network().is_loopback());
    let opened = crate::linux::Links::open(identity.clone(), options.pod_range, known, is_used).await;
    let links = opened.map_err(|error| error.to_string())?;
    let lacking = links.extend(options.service_range).await.map_err(|error| error.to_string())?;
    let outside = lacking.outside.map(|why| format!("pods reach no other network: {why}"));
    let services = lacking.services.map(|why| format!("cluster IPs are not reachable: {why}"));
    let ranges = links.ranges();
    Ok((Fabric::Full(links), ranges, outside.into_iter().chain(services).collect()))
}

/// Only Linux has the full level.
#[cfg(not(target_os = "linux"))]
async fn full(
    _options: &Options,
    _identity: &Identity,
    _known: Option<Ipv4Net>,
    _is_used: bool,
) -> Result<(Fabric, Ranges, Vec<String>), String> {
    Err("network namespaces exist on Linux only".to_owned())
}

impl SandboxNetwork for Network {
    fn allocate<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, berth_pod_runtime::Result<IpAddr>> {
        Box::pin(async move {
            let address: Ipv4Addr = self.addresses.lock().allocate(pod).map_err(internal)?;
            Ok(address.into())
        })
    }

    fn connect<'a>(&'a self, pod: &'a PodUid, pid: u32) -> BoxFuture<'a, berth_pod_runtime::Result<()>> {
        Box::pin(async move {
            match &self.fabric {
                #[cfg(target_os = "linux")]
                Fabric::Full(links) => {
                    let address = self.addresses.lock().get(pod);
                    let address = address.ok_or_else(|| {
                        RuntimeError::NotFound(format!("pod {pod} has no address: allocate it before connecting"))
                    })?;
                    links.connect(pod, pid, address).await.map_err(|error| match error {
                        crate::linux::LinkError::NoProcess(_) => RuntimeError::NotFound(error.to_string()),
                        other => internal(other),
                    })
                }
                Fabric::Plain(_) => {
                    let _ = (pod, pid);
                    Ok(())
                }
            }
        })
    }

    fn release<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, berth_pod_runtime::Result<()>> {
        Box::pin(async move {
            match &self.fabric {
                #[cfg(target_os = "linux")]
                Fabric::Full(links) => links.disconnect(pod).await.map_err(internal)?,
                Fabric::Plain(_) => {}
            }
            self.addresses.lock().release(pod).map_err(internal)
        })
    }
}

fn internal(error: impl fmt::Display) -> RuntimeError {
    RuntimeError::Internal(error.to_string())
}
