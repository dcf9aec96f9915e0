//! Options of the kubelet of a node with a runtime.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use berth_pod_runtime::DnsConfig;

/// Addresses at which the pods of a node reach Services. They may differ from the cluster IPs.
pub trait ServiceAddresses: Debug + Send + Sync {
    /// The address at which pods reach the Service with this cluster IP. The ports are the
    /// Service's.
    fn service(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr;
    /// The address and port at which pods reach the API server's own Service.
    fn api_server(&self, service: SocketAddr) -> SocketAddr;
}

/// Pods reach Services at their cluster IPs.
#[derive(Clone, Copy, Debug)]
pub struct ClusterIps;

impl ServiceAddresses for ClusterIps {
    fn service(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr {
        cluster_ip
    }

    fn api_server(&self, service: SocketAddr) -> SocketAddr {
        service
    }
}

/// Options of the kubelet of one node.
#[derive(Clone, Debug)]
pub struct KubeletOptions {
    /// Addresses of the cluster's DNS servers. If empty, pods use the host's DNS servers.
    pub cluster_dns: Vec<IpAddr>,
    /// Like `cluster_dns`, for pods on the host's network.
    pub cluster_dns_on_host: Vec<IpAddr>,
    /// Domain of the cluster: `cluster.local`.
    pub cluster_domain: String,
    /// Address of the node, as pods see it.
    pub host_ip: String,
    /// The host's resolver configuration, for pods whose DNS policy includes it.
    pub host_dns: DnsConfig,
    /// Addresses at which pods reach Services, for the service environment variables.
    pub services: Arc<dyn ServiceAddresses>,
    /// Like `services`, for pods on the host's network.
    pub services_on_host: Arc<dyn ServiceAddresses>,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            cluster_dns: Vec::new(),
            cluster_dns_on_host: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            host_ip: "127.0.0.1".to_owned(),
            host_dns: DnsConfig::default(),
            services: Arc::new(ClusterIps),
            services_on_host: Arc::new(ClusterIps),
        }
    }
}
