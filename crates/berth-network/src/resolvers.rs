//! The name servers of the host.

use std::net::IpAddr;

/// The name servers of `/etc/resolv.conf`; none if it cannot be read.
pub(crate) fn of_host() -> Vec<IpAddr> {
    std::fs::read_to_string("/etc/resolv.conf").map(|text| parse(&text)).unwrap_or_default()
}

fn parse(text: &str) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()).flatten()
    });
    servers.filter_map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_and_other_lines_ignored() {
        let text = "# nameserver 9.9.9.9\nsearch example.com\nnameserver 10.0.0.2\nnameserver fd00::2\nnameserver x\n";
        assert_eq!(parse(text), ["10.0.0.2".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
    }
}
