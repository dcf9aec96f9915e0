//! The pod network of a machine with Linux and the privilege to change its network: a bridge, and a
//! pair of virtual Ethernet interfaces per pod.
//!
//! Repeating a change has no effect. The names of the bridge, the interfaces and the packet filter
//! table are derived from the cluster's identity and the pod's UID, so a later run finds those of
//! an earlier run.

mod leftovers;
mod namespace;
mod nft;
mod routes;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_pod_runtime::PodUid;
use futures::TryStreamExt;
use ipnet::Ipv4Net;
use parking_lot::Mutex;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::{Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use crate::identity::Identity;
use crate::ranges::{Ranges, overlap};
use namespace::{INTERFACE, Settings, ignore_existing};
pub(crate) use nft::Diversion;
pub(crate) use routes::free_range;
use routes::{Route, TABLE_MAIN, add_local_route, default_mtu, range, routes};

/// Numbers of the kernel's errors.
mod errno {
    pub(super) const NO_DEVICE: i32 = 19;
    pub(super) const EXIST: i32 = 17;
}

/// Group of the interfaces that are to be deleted, together with the number of the bridge, which
/// differs between the clusters of a machine. The kernel's default group is 0.
const REMOVED: u32 = 0xbe00_0000;

/// Time during which the interfaces of pods that end are gathered. Within it, the address of a pod
/// that has ended is not free.
const GATHERING: Duration = Duration::from_millis(500);

/// Name of the loopback interface.
const LOOPBACK: &str = "lo";

/// Failure to change the machine's network.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{what}: {source}")]
    Netlink { what: String, source: rtnetlink::Error },
    #[error("process {0} has no network namespace")]
    NoProcess(u32),
    #[error("the network interface of pod {0} vanished while it was configured")]
    NoInterface(PodUid),
    #[error("the pod network {wanted} overlaps {used}, which this machine uses; configure another range")]
    RangeInUse { wanted: Ipv4Net, used: Ipv4Net },
    #[error("this machine uses addresses of every range that Berth tries; configure a free range")]
    NoRange,
    #[error("the pod network {0} is too small: it needs 16 addresses (/28) at least")]
    RangeTooSmall(Ipv4Net),
}

impl LinkError {
    /// True if this process lacks a privilege.
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    fn of(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let what = what.into();
        // The library's error message repeats "netlink error message".
        move |source| match source {
            rtnetlink::Error::NetlinkError(error) => Self::Io { what, source: error.to_io() },
            source => Self::Netlink { what, source },
        }
    }
}

/// The parts of the network that could not be set up, each with the reason.
#[derive(Debug, Default)]
pub(crate) struct Shortcomings {
    /// Why pods cannot reach other networks, or other networks can reach pods.
    pub(crate) outside: Option<String>,
    /// The clients whose packets to addresses of Services arrive at this cluster.
    pub(crate) services: Reach,
}

/// The clients whose packets to addresses of Services arrive at this cluster.
#[derive(Debug, Default)]
pub(crate) enum Reach {
    /// Its pods and this machine.
    #[default]
    Everywhere,
    /// Its pods only, because another cluster serves this machine.
    Pods,
    /// None, with the reason.
    Nowhere(String),
}

/// The parts of the machine's network that the pod network uses.
pub(crate) struct Links {
    handle: Handle,
    identity: Identity,
    bridge: u32,
    mtu: Option<u32>,
    ranges: Ranges,
    task: tokio::task::JoinHandle<()>,
    /// Number of calls that have marked interfaces for deletion.
    marked: AtomicU64,
    /// Number of those calls whose interfaces were deleted. Held while interfaces are deleted.
    deleted: tokio::sync::Mutex<u64>,
    /// The network namespaces of the pods that this process connected, by name of the interface.
    /// They exist until the interface is deleted, so that the kernel removes them together too.
    namespaces: Mutex<BTreeMap<String, Arc<File>>>,
    /// The namespaces of interfaces that are marked for deletion.
    ended: Mutex<Vec<Arc<File>>>,
    /// The claim of the bridge, which prevents other clusters from removing it.
    _claim: Option<leftovers::Claim>,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Links {
    /// Creates the bridge, or finds the bridge of an earlier run. `known` is the range of that run,
    /// `wanted` the configured range. If `is_used` is set, pods have addresses of the range
    /// `known`. That range is then kept even if another range is configured or another network
    /// overlaps it.
    pub(crate) async fn open(
        identity: Identity,
        folder: &Path,
        wanted: Option<Ipv4Net>,
        known: Option<Ipv4Net>,
        is_used: bool,
    ) -> Result<Self, LinkError> {
        let bridge = identity.bridge();
        // Another process may hold the claim and be about to end. Until then, it protects the
        // bridge as well.
        let claim = leftovers::Claim::take(&bridge).ok();
        let (connection, handle) = connect()?;
        let task = tokio::spawn(connection);
        let opened = async {
            let _turn = turn::take().await;
            if let Err(error) = leftovers::remove(&handle, &bridge).await
                // Without privileges, creating a bridge fails next, and the report has the reason.
                && !error.is_forbidden()
            {
                // They occupy address ranges but have no other effect.
                tracing::warn!(%error, "the pod networks of clusters that have ended are not all removed");
            }
            let mut existing = index_of(&handle, &bridge).await?;
            if existing.take_if(|_| !is_used).is_some() {
                delete(&handle, &bridge).await?;
            }
            let routes = routes(&handle, existing).await?;
            let range = range(wanted, known, is_used, &routes)?;
            let ranges = Ranges::of(range).ok_or(LinkError::RangeTooSmall(range))?;
            let mtu = default_mtu(&handle, &routes).await?;
            let index = ensure_bridge(&handle, &identity, mtu, existing).await?;
            leftovers::label(&handle, &bridge, folder).await?;
            let add = handle.address().add(index, ranges.gateway.into(), range.prefix_len());
            ignore_existing(add.execute().await).map_err(LinkError::of("setting the bridge's address"))?;
            add_local_route(&handle, index, ranges.load_balancers, 0).await?;
            Ok((ranges, mtu, index))
        };
        match opened.await {
            Ok((ranges, mtu, bridge)) => {
                let (marked, deleted, namespaces, ended) = Default::default();
                Ok(Self {
                    handle,
                    identity,
                    bridge,
                    mtu,
                    ranges,
                    task,
                    marked,
                    deleted,
                    namespaces,
                    ended,
                    _claim: claim,
                })
            }
            Err(error) => {
                task.abort();
                Err(error)
            }
        }
    }

    /// The parts of the pod network.
    pub(crate) fn ranges(&self) -> Ranges {
        self.ranges
    }

    /// Connects pods to other networks, and routes the addresses of Services to this machine.
    /// Without either, pods can still reach each other and the machine.
    pub(crate) async fn extend(&self, services: Ipv4Net) -> Result<Shortcomings, LinkError> {
        let all = routes(&self.handle, None).await?;
        let overlapping = all.iter().filter(|it| it.destination.prefix_len() > 0 && overlap(it.destination, services));
        let (own, others): (Vec<&Route>, Vec<&Route>) =
            overlapping.partition(|route| route.interface == Some(self.bridge));
        let is_cluster = |route: &Route| route.is_local && route.destination == services.trunc();
        let reach = if let Some(other) = others.iter().find(|route| !is_cluster(route)) {
            Reach::Nowhere(format!(
                "this machine uses {} already, which overlaps the service range {services}",
                other.destination
            ))
        } else {
            // The kernel uses the route with the smallest metric, which is that of the first
            // cluster.
            let is_first = others.is_empty() || own.iter().any(|route| is_cluster(route) && route.metric == 0);
            let metric = if is_first { 0 } else { self.bridge };
            match add_local_route(&self.handle, self.bridge, services, metric).await {
                Ok(()) if is_first => Reach::Everywhere,
                Ok(()) => Reach::Pods,
                Err(error) => Reach::Nowhere(error.to_string()),
            }
        };
        let served = (!matches!(reach, Reach::Nowhere(_))).then_some(services);
        Ok(Shortcomings { outside: self.open_outside(served).err(), services: reach })
    }

    fn open_outside(&self, services: Option<Ipv4Net>) -> Result<(), String> {
        const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
        let is_on = std::fs::read_to_string(FORWARD).is_ok_and(|text| text.trim() == "1");
        // The rules come first: without them, the machine would forward packets of others to pods.
        nft::install(&self.identity.table(), &self.identity.bridge(), self.ranges.pods, services).map_err(|error| {
            format!("the kernel's packet filter (nf_tables) rejects the rules of the pod network: {error}")
        })?;
        if !is_on {
            std::fs::write(FORWARD, "1").map_err(|error| format!("{FORWARD} cannot be set to 1: {error}"))?;
        }
        Ok(())
    }

    /// Delivers all traffic of pods to other networks to transparent sockets in this namespace, in
    /// which addresses of Services are local as well. Nothing leaves the namespace by itself.
    pub(crate) async fn divert(&self, services: Ipv4Net, to: Diversion) -> Result<(), LinkError> {
        let up = LinkUnspec::new_with_name(LOOPBACK).up().build();
        self.handle.link().set(up).execute().await.map_err(LinkError::of("setting the loopback interface up"))?;
        add_local_route(&self.handle, self.bridge, services, 0).await?;
        disable_bridge_filter()?;
        let own = [self.ranges.pods, services];
        nft::divert(&self.identity.table(), &self.identity.bridge(), &own, to).map_err(|source| LinkError::Io {
            what: "the kernel's packet filter (nf_tables) rejects the rules of the pod network".to_owned(),
            source,
        })?;
        let loopback = index_of(&self.handle, LOOPBACK).await?.unwrap_or(1);
        let all = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(Ipv4Addr::UNSPECIFIED, 0)
            .output_interface(loopback)
            .kind(RouteType::Local)
            .scope(RouteScope::Host)
            // Routes to pods have precedence, because they are in the same table.
            .table_id(TABLE_MAIN)
            .build();
        let added = self.handle.route().add(all).execute().await;
        ignore_existing(added).map_err(LinkError::of("adding a local route for all addresses"))
    }

    /// Connects a pod's network namespace. A pair of interfaces that exists already is completed.
    /// It is replaced if its other end is no longer in a pod.
    pub(crate) async fn connect(&self, pod: &PodUid, namespace: File, address: Ipv4Addr) -> Result<(), LinkError> {
        let namespace = Arc::new(namespace);
        let settings = Settings { address, range: self.ranges.pods, gateway: self.ranges.gateway };
        let name = self.identity.interface(pod);
        self.namespaces.lock().insert(name.clone(), namespace.clone());
        let is_new = self.create_pair(&name, &namespace, address).await?;
        if namespace::configure(namespace.clone(), settings).await? {
            // The interface of an earlier run is no longer at the bridge if the bridge was created
            // again.
            return if is_new { Ok(()) } else { self.attach(&name).await };
        }
        self.delete(&name).await?;
        self.create_pair(&name, &namespace, address).await?;
        match namespace::configure(namespace, settings).await? {
            true => Ok(()),
            false => Err(LinkError::NoInterface(pod.clone())),
        }
    }

    /// Creates a pair of interfaces with one end at the bridge and the other in the namespace.
    /// Returns false if an interface with that name exists.
    async fn create_pair(&self, name: &str, namespace: &File, address: Ipv4Addr) -> Result<bool, LinkError> {
        let with_both = |attributes: &mut Vec<LinkAttribute>| {
            attributes.extend(self.mtu.map(LinkAttribute::Mtu));
            // The interface has one queue in use either way. Without these attributes, the kernel
            // reserves one per CPU and then gives up the others. Each time, it waits for all CPUs,
            // while no other process can change the network.
            attributes.extend([LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)]);
        };
        let mut peer = LinkMessage::default();
        // The hardware address is derived from the IP address. Entries in the address caches of
        // other pods therefore remain valid if a pod starts again or another pod gets the address.
        let [a, b, c, d] = address.octets();
        peer.attributes = vec![
            LinkAttribute::IfName(INTERFACE.to_owned()),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
            LinkAttribute::Address(vec![0x02, 0xbf, a, b, c, d]),
        ];
        with_both(&mut peer.attributes);
        let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth).name(name);
        let mut message = pair.set_info_data(InfoData::Veth(InfoVeth::Peer(peer))).controller(self.bridge).up().build();
        with_both(&mut message.attributes);
        match self.handle.link().add(message).execute().await {
            Err(error) if code(&error) == Some(errno::EXIST) => Ok(false),
            Err(error) => Err(LinkError::of(format!("creating the pod's network interface {name}"))(error)),
            Ok(()) => Ok(true),
        }
    }

    async fn attach(&self, name: &str) -> Result<(), LinkError> {
        let mut message = LinkUnspec::new_with_name(name).controller(self.bridge).up().build();
        // A call that was to delete the interface may have ended early.
        message.attributes.push(LinkAttribute::Group(0));
        let what = format!("connecting {name} to the pod network's bridge");
        self.handle.link().set(message).execute().await.map_err(LinkError::of(what))
    }

    /// Deletes a pod's interface. Succeeds if it does not exist. This takes up to [`GATHERING`]
    /// longer than necessary, see [`Self::delete_ports`].
    pub(crate) async fn disconnect(&self, pod: &PodUid) -> Result<(), LinkError> {
        self.delete_ports([self.identity.interface(pod)], GATHERING).await
    }

    /// Closes the network namespaces of connected pods. The kernel deletes the interface of a pod
    /// whose processes have all ended, also if [`Self::disconnect`] is not called.
    pub(crate) fn forget_namespaces(&self) {
        self.namespaces.lock().clear();
    }

    /// Deletes interfaces, together with those of other calls during the time `gathering`.
    ///
    /// To delete an interface or a network namespace, the kernel waits several times until all CPUs
    /// have noticed, and no other process can change the network in the meantime: pods that start
    /// wait for pods that end. The interfaces of a group are deleted together, with the waits of
    /// one, and so are namespaces that end at the same time.
    async fn delete_ports(
        &self,
        names: impl IntoIterator<Item = String>,
        gathering: Duration,
    ) -> Result<(), LinkError> {
        let group = REMOVED | self.bridge;
        let mut is_marked = false;
        let mut ended = Vec::new();
        for name in names {
            ended.extend(self.namespaces.lock().remove(&name));
            let mut message = LinkUnspec::new_with_name(&name).build();
            message.attributes.push(LinkAttribute::Group(group));
            match self.handle.link().set(message).execute().await {
                Err(error) if code(&error) == Some(errno::NO_DEVICE) => {}
                other => {
                    other.map_err(LinkError::of(format!("marking the network interface {name} as removed")))?;
                    is_marked = true;
                }
            }
        }
        if !is_marked {
            return Ok(());
        }
        self.ended.lock().append(&mut ended);
        let number = self.marked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut deleted = self.deleted.lock().await;
        if *deleted >= number {
            return Ok(());
        }
        tokio::time::sleep(gathering).await;
        let marked = self.marked.load(Ordering::SeqCst);
        let _namespaces = std::mem::take(&mut *self.ended.lock());
        let mut request = self.handle.link().del(0);
        request.message_mut().attributes.push(LinkAttribute::Group(group));
        match request.execute().await {
            // The kernel has removed their namespaces.
            Err(error) if code(&error) == Some(errno::NO_DEVICE) => {}
            other => other.map_err(LinkError::of("deleting the network interfaces of pods that have ended"))?,
        }
        *deleted = marked;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), LinkError> {
        delete(&self.handle, name).await
    }

    /// Deletes the interfaces at the bridge that do not belong to a pod in `pods`.
    pub(crate) async fn retain<'a>(&self, pods: impl Iterator<Item = &'a PodUid>) -> Result<(), LinkError> {
        let kept: BTreeSet<String> = pods.map(|pod| self.identity.interface(pod)).collect();
        let gone = self.ports().await?.into_iter().filter(|name| !kept.contains(name));
        self.delete_ports(gone, Duration::ZERO).await
    }

    /// True if no pod is connected.
    pub(crate) async fn is_empty(&self) -> Result<bool, LinkError> {
        Ok(self.ports().await?.is_empty())
    }

    /// Names of the interfaces at the bridge.
    async fn ports(&self) -> Result<Vec<String>, LinkError> {
        let links = namespace::links(&self.handle).await?;
        let ports = links.iter().filter(|link| link.attributes.contains(&LinkAttribute::Controller(self.bridge)));
        Ok(ports.filter_map(name_of).map(str::to_owned).collect())
    }

    /// Deletes the bridge, all interfaces at it, and the packet filter table. Forwarding remains
    /// enabled, because other programs may depend on it by now.
    pub(crate) async fn remove(&self) -> Result<(), LinkError> {
        self.retain(std::iter::empty()).await?;
        self.delete(&self.identity.bridge()).await?;
        nft::remove(&self.identity.table())
            .map_err(|source| LinkError::Io { what: "removing the packet filter's rules".to_owned(), source })
    }
}

/// Keeps the packet filter of this namespace from seeing packets at the bridge. The transparent
/// socket that it assigns there would be lost before the packet arrives at the IP layer, which the
/// filter would not see a second time.
fn disable_bridge_filter() -> Result<(), LinkError> {
    const SETTING: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    match std::fs::read_to_string(SETTING) {
        Ok(text) if text.trim() != "0" => std::fs::write(SETTING, "0")
            .map_err(|source| LinkError::Io { what: format!("setting {SETTING} to 0"), source }),
        // The kernel's module br_netfilter is not loaded.
        _ => Ok(()),
    }
}

/// Opens the network namespace of a process.
pub(crate) fn namespace_of(pid: u32) -> Result<File, LinkError> {
    let path = format!("/proc/{pid}/ns/net");
    File::open(&path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => LinkError::NoProcess(pid),
        _ => LinkError::Io { what: path, source },
    })
}

/// A netlink connection in the namespace of the calling thread, and the task that drives it.
fn connect() -> Result<(impl Future<Output = ()> + Send + use<>, Handle), LinkError> {
    let connected = rtnetlink::new_connection();
    let (connection, handle, _) =
        connected.map_err(|source| LinkError::Io { what: "opening a netlink socket".to_owned(), source })?;
    Ok((connection, handle))
}

async fn ensure_bridge(
    handle: &Handle,
    identity: &Identity,
    mtu: Option<u32>,
    existing: Option<u32>,
) -> Result<u32, LinkError> {
    let name = identity.bridge();
    if existing.is_none() {
        // A bridge with a fixed hardware address does not change it when interfaces are added or
        // removed.
        let mut bridge = LinkBridge::new(&name).address(identity.mac().to_vec());
        if let Some(mtu) = mtu {
            bridge = bridge.mtu(mtu);
        }
        let added = handle.link().add(bridge.build()).execute().await;
        ignore_existing(added).map_err(LinkError::of(format!("creating the bridge {name}")))?;
    }
    let up = LinkUnspec::new_with_name(&name).up().build();
    handle.link().set(up).execute().await.map_err(LinkError::of(format!("setting the bridge {name} up")))?;
    let index = index_of(handle, &name).await?;
    index.ok_or_else(|| LinkError::Io {
        what: format!("the bridge {name} vanished"),
        source: io::ErrorKind::NotFound.into(),
    })
}

async fn index_of(handle: &Handle, name: &str) -> Result<Option<u32>, LinkError> {
    let found = handle.link().get().match_name(name).execute().try_next().await;
    match found {
        Ok(link) => Ok(link.map(|link| link.header.index)),
        Err(error) if code(&error) == Some(errno::NO_DEVICE) => Ok(None),
        Err(error) => Err(LinkError::of(format!("finding the network interface {name}"))(error)),
    }
}

async fn delete(handle: &Handle, name: &str) -> Result<(), LinkError> {
    let Some(index) = index_of(handle, name).await? else { return Ok(()) };
    match handle.link().del(index).execute().await {
        Err(error) if code(&error) == Some(errno::NO_DEVICE) => Ok(()),
        other => other.map_err(LinkError::of(format!("deleting the network interface {name}"))),
    }
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

/// The kernel's error number.
fn code(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.code.map(|code| -code.get()),
        _ => None,
    }
}
