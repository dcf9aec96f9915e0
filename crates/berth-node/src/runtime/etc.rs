//! The files in `/etc` that belong to a pod.

use berth_pod_runtime::{DnsConfig, SandboxConfig};

/// Content of `/etc/hosts`. A pod on the host's network gets the host's file, as in kubelets.
pub(super) fn hosts(config: &SandboxConfig, ips: &[String]) -> String {
    let mut text = if config.host_network {
        let host = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        format!("# Kubernetes-managed hosts file (host network).\n{host}")
    } else {
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned()
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if !config.host_network {
        for ip in ips {
            let names: Vec<&str> = config.fqdn.iter().map(String::as_str).chain([config.hostname.as_str()]).collect();
            text += &format!("{ip}\t{}\n", names.join("\t"));
        }
    }
    if !config.host_aliases.is_empty() {
        text += "\n# Entries added by HostAliases.\n";
    }
    for alias in &config.host_aliases {
        text += &format!("{}\t{}\n", alias.ip, alias.hostnames.join("\t"));
    }
    text
}

/// Content of `/etc/resolv.conf`. Without a configuration, it is the host's.
pub(super) fn resolv_conf(dns: Option<&DnsConfig>) -> String {
    let Some(dns) = dns else { return std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default() };
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text += &format!("search {}\n", dns.searches.join(" "));
    }
    for server in &dns.nameservers {
        text += &format!("nameserver {server}\n");
    }
    if !dns.options.is_empty() {
        text += &format!("options {}\n", dns.options.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_configuration_has_its_lines_in_kubelets_order() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        let dns = DnsConfig { nameservers: words("10.0.0.1"), searches: words("a.svc svc"), options: words("ndots:5") };
        assert_eq!(resolv_conf(Some(&dns)), "search a.svc svc\nnameserver 10.0.0.1\noptions ndots:5\n");
    }
}
