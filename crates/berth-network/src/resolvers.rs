//! The resolver configuration of the host.

use std::net::IpAddr;

use berth_pod_runtime::DnsConfig;

/// The configuration in `/etc/resolv.conf`; empty if it cannot be read.
pub fn host_dns() -> DnsConfig {
    std::fs::read_to_string("/etc/resolv.conf").map(|text| parse(&text)).unwrap_or_default()
}

/// The host's name servers.
pub(crate) fn of_host() -> Vec<IpAddr> {
    host_dns().nameservers.iter().filter_map(|address| address.parse().ok()).collect()
}

/// Parses the file by the resolver's rules: the last line with `search` applies, and options
/// accumulate.
fn parse(text: &str) -> DnsConfig {
    let mut found = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                let address = words.next().filter(|word| word.parse::<IpAddr>().is_ok());
                found.nameservers.extend(address.map(str::to_owned));
            }
            Some("search") => found.searches = words.map(str::to_owned).collect(),
            Some("options") => found.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_and_other_lines_ignored() {
        let text = "# nameserver 9.9.9.9\nsearch example.com\nnameserver 10.0.0.2\nnameserver fd00::2\nnameserver x\n";
        let found = parse(text);
        assert_eq!(found.nameservers, ["10.0.0.2", "fd00::2"]);
        assert_eq!(found.searches, ["example.com"]);
    }
}
