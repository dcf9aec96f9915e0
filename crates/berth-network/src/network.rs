//! The pod network of a node.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use berth_pod_runtime::{DnsConfig, PodUid, RuntimeError, SandboxNetwork};
use futures::future::BoxFuture;
use hickory_proto::rr::Name;
use ipnet::Ipv4Net;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::addresses::Addresses;
use crate::dns::{Names, Outsiders, Sockets, Zone};
use crate::identity::Identity;
use crate::levels::{Fabric, Opened, plain, separate};
use crate::options::{Level, OpenError, Options, Report};
use crate::plain::Loopback;
use crate::proxy::{Clients, Insiders, Place, Proxy};
use crate::published::Endpoint;
use crate::ranges::Ranges;
use crate::sides::Sides;

/// The pod network of one node.
pub struct Network {
    addresses: Mutex<Addresses>,
    fabric: Fabric,
    ranges: Ranges,
    /// Range of cluster IPs and the clients that it serves; `None` if cluster IPs are not served at
    /// their own addresses.
    services: Option<(Ipv4Net, Clients)>,
    /// Addresses of Services for clients on this machine, if only pods reach the cluster IPs.
    outside: Option<Arc<Loopback>>,
    /// The lowest port that this process may open on the machine.
    first_port: u16,
    sides: Sides,
    node_addresses: Vec<Ipv4Addr>,
    expose_node_ports: bool,
    api_server: SocketAddr,
    domain: String,
    names: Arc<Names>,
    /// Tasks that answer questions about names.
    name_servers: Vec<JoinHandle<()>>,
    /// Address of the name server at port 53; `None` if pods cannot use it.
    dns: Option<Ipv4Addr>,
    /// Like `dns`, for pods on the machine's network.
    dns_on_host: Option<Ipv4Addr>,
    proxy: Proxy,
}

impl Drop for Network {
    fn drop(&mut self) {
        for name_server in &self.name_servers {
            name_server.abort();
        }
    }
}

/// File with the range of the previous run.
const RANGE: &str = "range";

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("domain", &self.domain).field("dns", &self.dns).finish_non_exhaustive()
    }
}

impl Network {
    /// Opens the pod network of the node with this folder, at the requested level if it works.
    ///
    /// Pods of an earlier run keep their addresses and connections. Call [`Network::retain`] once
    /// the pods that still exist are known.
    ///
    /// # Errors
    /// The records cannot be read or written, or the machine has no addresses for pods at all.
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
        let domain = domain(&options.cluster_domain)?;
        let opened = match separate(&options, &identity, &folder, known, is_used).await {
            Ok(opened) => opened,
            Err(reason) => plain(&options, &identity, known, reason)?,
        };
        let Opened { fabric, ranges, services, outside, sides, reason, mut limits } = opened;
        let addresses = Addresses::open(&pods, ranges.pods, ranges.reserved())?;
        let range = folder.join(RANGE);
        std::fs::write(&range, ranges.pods.to_string()).map_err(records(&range))?;

        let zone = Zone::new(domain, ranges.gateway, vec![ranges.pods, options.service_range]);
        let outsiders =
            outside.clone().map(|loopback| Outsiders { pods: ranges.pods, services: options.service_range, loopback });
        let names = Arc::new(Names::new(zone, ranges.gateway, outsiders));
        let mut name_servers = Vec::new();
        let dns = serve_names(&sides, ranges.gateway, &names, &mut name_servers).await;
        let dns = dns.map_err(|reason| limits.push(format!("cluster DNS is not served at {reason}"))).ok();
        let dns_on_host = match (&outside, sides.is_inside(ranges.gateway.into())) {
            (_, false) => dns,
            (None, true) => None,
            (Some(loopback), true) => {
                let served = serve_names(&sides, loopback.name_server(), &names, &mut name_servers).await;
                let lacks = |reason| {
                    format!(
                        "pods on this machine's network do not resolve names of the cluster, which are not served at {reason}"
                    )
                };
                served.map_err(|reason| limits.push(lacks(reason))).ok()
            }
        };
        let mut node_addresses = vec![Ipv4Addr::LOCALHOST];
        if !matches!(fabric, Fabric::Plain(_)) {
            node_addresses.push(ranges.gateway);
        }
        node_addresses.extend(&options.node_addresses);
        let insiders = Insiders { pods: ranges.pods, machine: node_addresses.clone() };
        let network = Self {
            addresses: Mutex::new(addresses),
            fabric,
            ranges,
            services,
            outside,
            first_port: first_port(),
            node_addresses,
            expose_node_ports: options.expose_node_ports,
            api_server: options.api_server,
            domain: options.cluster_domain.trim_end_matches('.').to_owned(),
            names,
            name_servers,
            dns,
            dns_on_host,
            proxy: Proxy::new(insiders, identity.bridge(), sides.clone()),
            sides,
        };
        let report = Report { level: network.level(), requested: options.level, reason, pods: ranges.pods, limits };
        Ok((Arc::new(network), report))
    }

    /// The level of this network.
    pub fn level(&self) -> Level {
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Full(_) => Level::Full,
            #[cfg(target_os = "linux")]
            Fabric::Rootless(_) => Level::Rootless,
            Fabric::Plain(_) => Level::Plain,
        }
    }

    /// Disconnects the pods that are not in `pods`, and releases their addresses. Call it when the
    /// node starts, with the pods that it still has.
    ///
    /// # Errors
    /// An interface cannot be deleted or a record cannot be written. Repeat the call.
    pub async fn retain(&self, pods: &BTreeSet<PodUid>) -> Result<(), RuntimeError> {
        let gone: Vec<PodUid> = self.addresses.lock().pods().filter(|pod| !pods.contains(*pod)).cloned().collect();
        // The interfaces of pods that are released at the same time are deleted together.
        futures::future::try_join_all(gone.iter().map(|pod| self.release(pod))).await?;
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Full(links) => links.retain(pods.iter()).await.map_err(internal),
            #[cfg(target_os = "linux")]
            Fabric::Rootless(holder) => holder.retain(pods.iter()).await.map_err(internal),
            Fabric::Plain(_) => Ok(()),
        }
    }

    /// Removes everything that this network added to the machine. Pods lose their connections.
    ///
    /// # Errors
    /// The machine rejects a change. Repeat the call.
    pub async fn remove(&self) -> Result<(), RuntimeError> {
        self.retain(&BTreeSet::new()).await?;
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Full(links) => links.remove().await.map_err(internal),
            #[cfg(target_os = "linux")]
            Fabric::Rootless(holder) => holder.remove().await.map_err(internal),
            Fabric::Plain(_) => Ok(()),
        }
    }

    /// The address at which pods reach a cluster IP: the cluster IP itself, or a loopback address
    /// at the plain level.
    pub fn address_of_service(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr {
        match &self.fabric {
            Fabric::Plain(loopback) => loopback.service(cluster_ip),
            #[cfg(target_os = "linux")]
            _ => cluster_ip,
        }
    }

    /// The address at which pods on the machine's network reach a Service. It differs from
    /// [`Network::address_of_service`] if another cluster serves the machine at the cluster IPs.
    pub fn address_of_service_on_host(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr {
        self.outside.as_ref().map_or_else(|| self.address_of_service(cluster_ip), |it| it.service(cluster_ip))
    }

    /// Address of the cluster's name server; `None` if names of the cluster are not served.
    pub fn cluster_dns(&self) -> Option<Ipv4Addr> {
        self.dns
    }

    /// Like [`Network::cluster_dns`], for pods on the machine's network.
    pub fn cluster_dns_on_host(&self) -> Option<Ipv4Addr> {
        self.dns_on_host
    }

    /// Name server, search domains and options for the pods of a namespace; `None` if names of the
    /// cluster are not served.
    pub fn dns_config(&self, namespace: &str) -> Option<DnsConfig> {
        let domain = &self.domain;
        Some(DnsConfig {
            nameservers: vec![self.dns?.to_string()],
            searches: vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()],
            options: vec!["ndots:5".to_owned()],
        })
    }

    /// Host and port for `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`: the cluster IP of
    /// the Service `kubernetes`, or the API server itself if pods cannot reach cluster IPs.
    pub fn api_server_for_pods(&self, cluster_ip: Ipv4Addr) -> SocketAddr {
        /// Port of the Service `kubernetes`.
        const HTTPS: u16 = 443;
        if self.services.is_some() { SocketAddr::new(cluster_ip.into(), HTTPS) } else { self.api_server_itself() }
    }

    /// Host and port of the API server for pods on the machine's network. It differs from
    /// [`Network::api_server_for_pods`] if another cluster serves the machine at the cluster IPs.
    pub fn api_server_on_host(&self, cluster_ip: Ipv4Addr) -> SocketAddr {
        if self.outside.is_some() { self.api_server_itself() } else { self.api_server_for_pods(cluster_ip) }
    }

    /// An address at which the machine reaches the API server.
    fn api_server_itself(&self) -> SocketAddr {
        if self.api_server.ip().is_unspecified() {
            return SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.api_server.port());
        }
        self.api_server
    }

    /// The names of the cluster.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    pub(crate) fn api_server(&self) -> SocketAddr {
        self.api_server
    }

    /// True if the address is one of those that [`Network::external_address`] returns.
    pub(crate) fn is_external(&self, address: Ipv4Addr) -> bool {
        match &self.fabric {
            Fabric::Plain(loopback) => loopback.is_service(address),
            #[cfg(target_os = "linux")]
            _ => self.ranges.load_balancers.contains(&address),
        }
    }

    /// A free address for the load balancer of the Service with this cluster IP: `asked` if it is
    /// free, or else the first free address.
    pub(crate) fn external_address(
        &self,
        cluster_ip: Ipv4Addr,
        asked: Option<Ipv4Addr>,
        taken: &BTreeSet<Ipv4Addr>,
    ) -> Option<Ipv4Addr> {
        match &self.fabric {
            Fabric::Plain(loopback) => {
                let _ = (asked, taken);
                Some(loopback.service(cluster_ip))
            }
            #[cfg(target_os = "linux")]
            _ => {
                let all =
                    asked.filter(|it| self.is_external(*it)).into_iter().chain(self.ranges.load_balancers.hosts());
                all.into_iter().find(|address| !taken.contains(address))
            }
        }
    }

    /// True if a pod of this node has the address.
    pub fn has_pod(&self, address: Ipv4Addr) -> bool {
        self.addresses.lock().contains(address)
    }
}

impl Place for Network {
    fn service_address(&self, cluster_ip: Ipv4Addr) -> Option<(Ipv4Addr, Clients)> {
        match &self.fabric {
            Fabric::Plain(loopback) => Some((loopback.service(cluster_ip), Clients::All)),
            #[cfg(target_os = "linux")]
            _ => {
                let (range, clients) = self.services?;
                range.contains(&cluster_ip).then_some((cluster_ip, clients))
            }
        }
    }

    fn machine_address(&self, cluster_ip: Ipv4Addr, port: u16) -> Option<Ipv4Addr> {
        self.outside.as_ref().filter(|_| port >= self.first_port).map(|loopback| loopback.service(cluster_ip))
    }

    fn has_external(&self, address: Ipv4Addr) -> bool {
        self.is_external(address)
    }

    fn node_addresses(&self) -> &[Ipv4Addr] {
        &self.node_addresses
    }

    fn node_clients(&self) -> Clients {
        if self.expose_node_ports { Clients::All } else { Clients::Machine }
    }

    fn reaches(&self, endpoint: &Endpoint) -> bool {
        // A pod in the machine's own network has an address of the machine.
        !endpoint.is_pod || self.has_pod(endpoint.address) || self.node_addresses.contains(&endpoint.address)
    }
}

/// Port of name servers.
const DNS_PORT: u16 = 53;

fn domain(text: &str) -> Result<Name, OpenError> {
    let invalid = |reason: String| OpenError::Domain { domain: text.to_owned(), reason };
    let name = Name::from_ascii(format!("{}.", text.trim_end_matches('.'))).map_err(|it| invalid(it.to_string()))?;
    if name.is_root() { Err(invalid("it is empty".to_owned())) } else { Ok(name) }
}

/// Serves names at port 53 of an address. Returns the address, or the address with the reason if
/// that does not work.
async fn serve_names(
    sides: &Sides,
    address: Ipv4Addr,
    names: &Arc<Names>,
    servers: &mut Vec<JoinHandle<()>>,
) -> Result<Ipv4Addr, String> {
    let bound = Sockets::bind(sides, SocketAddr::new(address.into(), DNS_PORT)).await;
    let sockets = bound.map_err(|error| format!("{address}:{DNS_PORT}: {error}"))?;
    servers.push(tokio::spawn(sockets.serve(names.clone())));
    Ok(address)
}

/// The lowest port that this process may open on the machine.
fn first_port() -> u16 {
    #[cfg(target_os = "linux")]
    if !rustix::process::geteuid().is_root() {
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        return text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024);
    }
    1
}

impl SandboxNetwork for Network {
    fn is_shared(&self) -> bool {
        self.level() == Level::Plain
    }

    fn user_namespace(&self) -> berth_pod_runtime::Result<Option<File>> {
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Rootless(holder) => holder.user_namespace().map(Some).map_err(internal),
            _ => Ok(None),
        }
    }

    fn is_new(&self) -> bool {
        match &self.fabric {
            #[cfg(target_os = "linux")]
            Fabric::Rootless(holder) => holder.is_new(),
            _ => false,
        }
    }

    fn allocate<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, berth_pod_runtime::Result<IpAddr>> {
        Box::pin(async move {
            let address: Ipv4Addr = self.addresses.lock().allocate(pod).map_err(internal)?;
            Ok(address.into())
        })
    }

    fn connect<'a>(&'a self, pod: &'a PodUid, pid: u32) -> BoxFuture<'a, berth_pod_runtime::Result<()>> {
        Box::pin(async move {
            #[cfg(target_os = "linux")]
            if !matches!(self.fabric, Fabric::Plain(_)) {
                let address = self.addresses.lock().get(pod);
                let address = address.ok_or_else(|| {
                    RuntimeError::NotFound(format!("pod {pod} has no address: allocate it before connecting"))
                })?;
                let namespace = crate::linux::namespace_of(pid).map_err(|error| match error {
                    crate::linux::LinkError::NoProcess(_) => RuntimeError::NotFound(error.to_string()),
                    other => internal(other),
                })?;
                return match &self.fabric {
                    Fabric::Full(links) => links.connect(pod, namespace, address).await.map_err(internal),
                    Fabric::Rootless(holder) => holder.connect(pod, namespace, address).await.map_err(internal),
                    Fabric::Plain(_) => Ok(()),
                };
            }
            let _ = (pod, pid);
            Ok(())
        })
    }

    fn release<'a>(&'a self, pod: &'a PodUid) -> BoxFuture<'a, berth_pod_runtime::Result<()>> {
        Box::pin(async move {
            match &self.fabric {
                #[cfg(target_os = "linux")]
                Fabric::Full(links) => links.disconnect(pod).await.map_err(internal)?,
                #[cfg(target_os = "linux")]
                Fabric::Rootless(holder) => holder.disconnect(pod).await.map_err(internal)?,
                Fabric::Plain(_) => {}
            }
            self.addresses.lock().release(pod).map_err(internal)
        })
    }

    fn dial(&self, address: SocketAddr) -> BoxFuture<'static, std::io::Result<TcpStream>> {
        let sides = self.sides.clone();
        Box::pin(async move { sides.connect(address).await })
    }
}

fn internal(error: impl fmt::Display) -> RuntimeError {
    RuntimeError::Internal(error.to_string())
}
