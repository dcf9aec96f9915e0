//! The data of a Service that the network needs: addresses, ports and endpoints, from the Service
//! and its EndpointSlices.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;

/// Transport protocol of a port. SCTP is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    /// The protocol of a port; TCP if none is given, `None` for SCTP.
    pub(crate) fn of(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some(_) => None,
        }
    }

    /// The label of the protocol in DNS names, without the underscore.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// The way in which clients find a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By an address of its own.
    ClusterIp(Ipv4Addr),
    /// By the addresses of its endpoints.
    Headless,
    /// By another name.
    ExternalName(String),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name; empty if it is the only port.
    pub name: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Port of the Service.
    pub number: u16,
    /// Node port; `None` if the Service has none.
    pub node_port: Option<u16>,
}

/// A port of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// Name of the Service's port.
    pub name: String,
    /// Protocol.
    pub protocol: Protocol,
    /// Port of the endpoint.
    pub number: u16,
}

/// An endpoint of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address.
    pub address: Ipv4Addr,
    /// Host name within the Service's domain.
    pub hostname: Option<String>,
    /// True if clients should use the endpoint.
    pub is_ready: bool,
    /// True if the endpoint still serves while it terminates.
    pub is_draining: bool,
    /// True if the endpoint is a pod, whose address was assigned by a node.
    pub is_pod: bool,
    /// Ports.
    pub ports: Vec<EndpointPort>,
}

/// The published data of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The way in which clients find it.
    pub kind: Kind,
    /// Ports.
    pub ports: Vec<Port>,
    /// Endpoints, ordered by address.
    pub endpoints: Vec<Endpoint>,
    /// Time for which a client without a connection keeps its endpoint; `None` without session
    /// affinity.
    pub affinity: Option<Duration>,
    /// Additional addresses: external IPs and the addresses of its load balancer.
    pub external: Vec<Ipv4Addr>,
}

impl Published {
    /// The published form of a Service with its EndpointSlices; `None` while it has no address.
    pub fn of(service: &Service, slices: &[Arc<EndpointSlice>]) -> Option<Self> {
        let spec = service.spec.clone().unwrap_or_default();
        let kind = match (spec.type_.as_deref(), spec.cluster_ip.as_deref()) {
            (Some("ExternalName"), _) => Kind::ExternalName(spec.external_name.clone()?),
            (_, Some("None")) => Kind::Headless,
            (_, address) => Kind::ClusterIp(address?.parse().ok()?),
        };
        let mut endpoints: Vec<Endpoint> = slices.iter().flat_map(|slice| endpoints(slice)).collect();
        endpoints.sort_by_key(|endpoint| endpoint.address);
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
        let given = spec.external_ips.iter().flatten().chain(ingress.filter_map(|ingress| ingress.ip.as_ref()));
        Some(Self {
            namespace: service.namespace().unwrap_or_default(),
            name: service.name_any(),
            kind,
            ports: ports(&spec),
            endpoints,
            affinity: affinity(&spec),
            external: given.filter_map(|address| address.parse().ok()).collect(),
        })
    }

    /// The endpoints that receive connections: those that are ready, or else those that still serve
    /// while they terminate.
    pub fn usable(&self) -> impl Iterator<Item = &Endpoint> {
        let has_ready = self.endpoints.iter().any(|endpoint| endpoint.is_ready);
        let is_usable = move |it: &&Endpoint| if has_ready { it.is_ready } else { it.is_draining };
        self.endpoints.iter().filter(is_usable)
    }
}

fn number(port: Option<i32>) -> Option<u16> {
    port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

fn ports(spec: &ServiceSpec) -> Vec<Port> {
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        Some(Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: Protocol::of(port.protocol.as_deref())?,
            number: number(Some(port.port))?,
            node_port: number(port.node_port),
        })
    });
    ports.collect()
}

fn affinity(spec: &ServiceSpec) -> Option<Duration> {
    /// Kubernetes' default: three hours.
    const DEFAULT_SECONDS: i32 = 10_800;
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = config.and_then(|config| config.timeout_seconds).unwrap_or(DEFAULT_SECONDS);
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

fn endpoints(slice: &EndpointSlice) -> Vec<Endpoint> {
    let ports: Vec<EndpointPort> = slice
        .ports
        .iter()
        .flatten()
        .filter_map(|port| {
            Some(EndpointPort {
                name: port.name.clone().unwrap_or_default(),
                protocol: Protocol::of(port.protocol.as_deref())?,
                number: number(port.port)?,
            })
        })
        .collect();
    let found = slice.endpoints.iter().filter_map(|endpoint| {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        // An endpoint without the conditions is ready, and it serves if it is ready.
        let is_ready = conditions.ready.unwrap_or(true);
        let serves = conditions.serving.unwrap_or(is_ready);
        Some(Endpoint {
            address: endpoint.addresses.first()?.parse().ok()?,
            hostname: endpoint.hostname.clone().filter(|name| !name.is_empty()),
            is_ready,
            is_draining: serves && conditions.terminating.unwrap_or(false),
            is_pod: endpoint.target_ref.as_ref().is_some_and(|target| target.kind.as_deref() == Some("Pod")),
            ports: ports.clone(),
        })
    });
    found.collect()
}
