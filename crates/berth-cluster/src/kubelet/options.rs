//! Options of the kubelet of a node with a runtime.

use std::net::IpAddr;

use berth_pod_runtime::DnsConfig;

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
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            host_ip: "127.0.0.1".to_owned(),
            host_dns: DnsConfig::default(),
        }
    }
}
