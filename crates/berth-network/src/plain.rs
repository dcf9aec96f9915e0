//! Loopback addresses for pods, where the machine's network must not be changed.
//!
//! A cluster has two networks of 127.0.0.0/8: an even second byte for pods, and the odd one after
//! it for Services. To keep two clusters of one machine apart, a cluster holds a socket of its
//! network for as long as it runs.

use std::net::{Ipv4Addr, UdpSocket};

use ipnet::Ipv4Net;

use crate::identity::Identity;

/// The second bytes that clusters try, from 64 on in steps of two.
const FIRST: u8 = 64;
const COUNT: u8 = 64;
/// Port of the socket that marks a network as used. It is in no range of common services, and a
/// process needs no rights to listen there.
const CLAIM_PORT: u16 = 10_353;

/// The loopback networks of a cluster.
#[derive(Debug)]
pub(crate) struct Loopback {
    second: u8,
    /// Marks the network as used; nothing reads from it.
    _claim: UdpSocket,
}

impl Loopback {
    /// Claims the networks of an earlier run (`known`), or else the first free ones, from a place
    /// that depends on the cluster.
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

    /// The loopback address that stands for an address of a Service: the last two bytes are the
    /// same.
    pub(crate) fn service(&self, address: Ipv4Addr) -> Ipv4Addr {
        let [.., third, fourth] = address.octets();
        Ipv4Addr::new(127, self.second + 1, third, fourth)
    }

    /// Whether the address stands for an address of a Service.
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
