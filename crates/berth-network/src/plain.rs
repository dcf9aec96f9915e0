//! Loopback addresses for pods, if the machine's network must not be changed, and for Services, if
//! the machine reaches those of another cluster at the cluster IPs.
//!
//! A cluster uses two networks of 127.0.0.0/8: one with an even second byte for pods, and the one
//! with the next odd byte for Services. To keep the clusters of one machine apart, each holds a
//! socket in its network as long as it runs.

use std::net::{Ipv4Addr, UdpSocket};

use ipnet::Ipv4Net;

use crate::identity::Identity;

/// First second byte that clusters try. They continue in steps of two.
const FIRST: u8 = 64;
const COUNT: u8 = 64;
/// Port of the socket that marks a network as used. Common services do not use it, and a process
/// needs no privileges to listen on it.
const CLAIM_PORT: u16 = 10_353;

/// The loopback networks of a cluster.
#[derive(Debug)]
pub(crate) struct Loopback {
    second: u8,
    /// The socket that marks the network as used. It is never read.
    _claim: UdpSocket,
}

impl Loopback {
    /// Claims the networks of an earlier run (`known`), or else the first free networks. The search
    /// starts at a position that depends on the cluster.
    pub(crate) fn claim(identity: &Identity, known: Option<Ipv4Net>) -> std::io::Result<Self> {
        let start = identity.number(COUNT);
        let known = known.map(|range| range.network().octets()).filter(|it| it[0] == 127).map(|it| it[1]);
        let others = (0..COUNT).map(|step| FIRST + 2 * ((start + step) % COUNT));
        let mut last = None;
        for second in known.into_iter().chain(others) {
            match UdpSocket::bind((Ipv4Addr::new(127, second, 0, 1), CLAIM_PORT)) {
                Ok(claim) => return Ok(Self { second, _claim: claim }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
    }

    /// The network of pods.
    pub(crate) fn pods(&self) -> Ipv4Net {
        Ipv4Net::new_assert(Ipv4Addr::new(127, self.second, 0, 0), 16)
    }

    /// The network of Services.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has several pod networks"))]
    pub(crate) fn services(&self) -> Ipv4Net {
        Ipv4Net::new_assert(Ipv4Addr::new(127, self.second + 1, 0, 0), 16)
    }

    /// Address of the cluster's name server for clients on this machine.
    pub(crate) fn name_server(&self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.second, 0, 1)
    }

    /// The loopback address that represents the address of a Service. The last two bytes are the
    /// same.
    pub(crate) fn service(&self, address: Ipv4Addr) -> Ipv4Addr {
        let [.., third, fourth] = address.octets();
        Ipv4Addr::new(127, self.second + 1, third, fourth)
    }

    /// True if the address represents the address of a Service.
    pub(crate) fn is_service(&self, address: Ipv4Addr) -> bool {
        address.octets()[..2] == [127, self.second + 1]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn two_clusters_of_a_machine_have_different_networks() {
        let identity = Identity::of(Path::new("/data/a"));
        let (Ok(first), Ok(second)) = (Loopback::claim(&identity, None), Loopback::claim(&identity, None)) else {
            berth_testing::skip("this machine has no loopback addresses besides 127.0.0.1");
            return;
        };
        assert_ne!(first.pods(), second.pods());
        let known = second.pods();
        drop(second);
        assert_eq!(Loopback::claim(&identity, Some(known)).unwrap().pods(), known);
    }

    #[test]
    fn the_address_of_a_service_is_mapped_to_the_loopback_network() {
        let Ok(loopback) = Loopback::claim(&Identity::of(Path::new("/data/b")), None) else {
            berth_testing::skip("this machine has no loopback addresses besides 127.0.0.1");
            return;
        };
        let mapped = loopback.service(Ipv4Addr::new(10, 96, 3, 7));
        assert_eq!(mapped.octets()[2..], [3, 7]);
        assert!(mapped.is_loopback() && !loopback.pods().contains(&mapped));
    }
}
