//! The configuration that the containers of a pod share: host name, resolver, the host's namespaces
//! and ports.

use std::collections::BTreeMap;

use berth_pod_runtime::{DnsConfig, HostAlias, HostPort, PodUid, Protocol, SandboxConfig, Volume};
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodSpec};
use kube::ResourceExt;

use super::limits::pod_limits;
use crate::kubelet::options::KubeletOptions;

/// Maximum length of a label of a domain name.
const LABEL_MAX: usize = 63;
/// Maximum length of a host name on Linux.
const HOSTNAME_MAX: usize = 64;

/// The sandbox of a pod.
pub fn sandbox(
    pod: &Pod,
    node: &str,
    options: &KubeletOptions,
    volumes: BTreeMap<String, Volume>,
) -> Result<SandboxConfig, String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let host_network = spec.host_network.unwrap_or(false);
    let (hostname, fqdn) = hostname(pod, spec, &namespace, node, options)?;
    let security = spec.security_context.as_ref();
    let fs_group = security.and_then(|it| it.fs_group);
    let fs_group = fs_group
        .map(|id| u32::try_from(id).map_err(|_| format!("securityContext.fsGroup: {id} is out of range")))
        .transpose()?;
    let aliases = spec.host_aliases.iter().flatten();
    Ok(SandboxConfig {
        uid: PodUid(pod.uid().unwrap_or_default()),
        name: pod.name_any(),
        hostname,
        fqdn,
        host_aliases: aliases
            .map(|alias| HostAlias { ip: alias.ip.clone(), hostnames: alias.hostnames.clone().unwrap_or_default() })
            .collect(),
        dns: dns(spec, &namespace, options),
        host_network,
        host_pid: spec.host_pid.unwrap_or(false),
        host_ipc: spec.host_ipc.unwrap_or(false),
        share_process_namespace: spec.share_process_namespace.unwrap_or(false),
        host_ports: if host_network { Vec::new() } else { host_ports(spec)? },
        limits: pod_limits(spec),
        fs_group,
        sysctls: security
            .and_then(|it| it.sysctls.as_ref())
            .into_iter()
            .flatten()
            .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
            .collect(),
        volumes,
        namespace,
    })
}

/// Host name and fully qualified name of a pod.
///
/// Source: Kubernetes documentation, "DNS for Services and Pods".
fn hostname(
    pod: &Pod,
    spec: &PodSpec,
    namespace: &str,
    node: &str,
    options: &KubeletOptions,
) -> Result<(String, Option<String>), String> {
    if let Some(name) = spec.hostname_override.as_deref().filter(|name| !name.is_empty()) {
        return Ok((name.to_owned(), None));
    }
    if spec.host_network.unwrap_or(false) {
        return Ok((node.to_owned(), None));
    }
    let chosen = spec.hostname.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| pod.name_any());
    let hostname = chosen.get(..LABEL_MAX).unwrap_or(&chosen).trim_end_matches(['-', '.']).to_owned();
    let subdomain = spec.subdomain.as_deref().filter(|subdomain| !subdomain.is_empty());
    let fqdn = subdomain.map(|it| format!("{hostname}.{it}.{namespace}.svc.{}", options.cluster_domain));
    match &fqdn {
        Some(fqdn) if spec.set_hostname_as_fqdn.unwrap_or(false) => {
            if fqdn.len() > HOSTNAME_MAX {
                return Err(format!(
                    "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
                     ({HOSTNAME_MAX} characters is the max, {} characters requested)",
                    fqdn.len()
                ));
            }
            Ok((fqdn.clone(), Some(fqdn.clone())))
        }
        _ => Ok((hostname, fqdn)),
    }
}

/// The resolver configuration of a pod; `None` to use the host's.
fn dns(spec: &PodSpec, namespace: &str, options: &KubeletOptions) -> Option<DnsConfig> {
    let host_network = spec.host_network.unwrap_or(false);
    let uses_cluster = match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "ClusterFirst" => !host_network,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let servers = if host_network { &options.cluster_dns_on_host } else { &options.cluster_dns };
    let mut config = match spec.dns_policy.as_deref() {
        Some("None") => DnsConfig::default(),
        // If the cluster has no DNS server, pods use the host's.
        _ if uses_cluster && !servers.is_empty() => {
            let domain = &options.cluster_domain;
            let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
            DnsConfig {
                nameservers: servers.iter().map(ToString::to_string).collect(),
                searches: own.into_iter().chain(options.host_dns.searches.iter().cloned()).collect(),
                options: vec!["ndots:5".to_owned()],
            }
        }
        _ if spec.dns_config.is_none() => return None,
        _ => options.host_dns.clone(),
    };
    if let Some(more) = &spec.dns_config {
        merge(&mut config, more);
    }
    Some(config)
}

fn merge(config: &mut DnsConfig, more: &PodDNSConfig) {
    let extend = |list: &mut Vec<String>, more: &Option<Vec<String>>| {
        for entry in more.iter().flatten() {
            if !list.contains(entry) {
                list.push(entry.clone());
            }
        }
    };
    extend(&mut config.nameservers, &more.nameservers);
    extend(&mut config.searches, &more.searches);
    for option in more.options.iter().flatten() {
        let Some(name) = option.name.as_deref() else { continue };
        let of_name = |known: &String| known.split(':').next() == Some(name);
        config.options.retain(|known| !of_name(known));
        config.options.push(option.value.as_ref().map_or_else(|| name.to_owned(), |value| format!("{name}:{value}")));
    }
}

fn host_ports(spec: &PodSpec) -> Result<Vec<HostPort>, String> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut list = Vec::new();
    for port in containers.flat_map(|container| container.ports.iter().flatten()) {
        let Some(host_port) = port.host_port.filter(|port| *port != 0) else { continue };
        let number = |port: i32| u16::try_from(port).map_err(|_| format!("port {port} is out of range"));
        list.push(HostPort {
            host_ip: port.host_ip.clone().unwrap_or_default(),
            host_port: number(host_port)?,
            container_port: number(port.container_port)?,
            protocol: match port.protocol.as_deref().unwrap_or("TCP") {
                "TCP" => Protocol::Tcp,
                "UDP" => Protocol::Udp,
                other => return Err(format!("hostPort {host_port}: protocol {other} is not supported on this node")),
            },
        });
    }
    Ok(list)
}
