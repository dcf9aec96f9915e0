//! Options of the kubelet of a node with a runtime.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use berth_pod_runtime::DnsConfig;

/// Where the pods of a node reach Services, which may be elsewhere than at their cluster IPs.
pub trait ServiceAddresses: Debug + Send + Sync {
    /// The address at which pods reach the Service with this cluster IP, on the Service's ports.
    fn service(&self, cluster_ip: Ipv4Addr) -> Ipv4Addr;
    /// The address and port at which pods reach the Service of the API server.
    fn api_server(&self, service: SocketAddr) -> SocketAddr;
}

/// Services are reached at their cluster IPs.
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
    /// Addresses of the cluster's DNS servers. Without any, pods use the host's.
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster: `cluster.local`.
    pub cluster_domain: String,
    /// Address of the node, as pods see it.
    pub host_ip: String,
    /// The host's resolver configuration, for pods that extend it.
    pub host_dns: DnsConfig,
    /// Where pods reach Services: the values of service variables.
    pub services: Arc<dyn ServiceAddresses>,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            host_ip: "127.0.0.1".to_owned(),
            host_dns: DnsConfig::default(),
            services: Arc::new(ClusterIps),
        }
    }
}
