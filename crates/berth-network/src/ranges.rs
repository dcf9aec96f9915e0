//! The address ranges of a pod network, chosen so that they overlap no network that the machine
//! uses already.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Ranges to try for the pod network, in this order. Simulated pods have addresses in 10.0.0.0/9
/// and simulated nodes in 10.128.0.0/10. Addresses above these ranges cannot be confused with them
/// in the output of `kubectl get pods`.
fn candidates() -> impl Iterator<Item = Ipv4Net> {
    let of = |a: u8, b: u8| Ipv4Net::new_assert(Ipv4Addr::new(a, b, 0, 0), 16);
    (200..=239).map(move |second| of(10, second)).chain((24..=31).map(move |second| of(172, second)))
}

/// True if two ranges have an address in common.
pub(crate) fn overlap(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The range of a pod network: `known`, the range of an earlier run, if it is free, or else the
/// first free candidate. `used` contains the ranges of the machine's networks.
pub(crate) fn choose(known: Option<Ipv4Net>, used: &[Ipv4Net]) -> Option<Ipv4Net> {
    let is_free = |range: &Ipv4Net| !used.iter().any(|other| overlap(*range, *other));
    known.into_iter().chain(candidates()).find(is_free)
}

/// The parts of a pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Addresses of pods. The other parts are within this range.
    pub pods: Ipv4Net,
    /// Address of this machine in the pod network, its first address: the pods' gateway and name
    /// server.
    pub gateway: Ipv4Addr,
    /// Addresses of Services of type LoadBalancer: the last 256 addresses, or the last address of a
    /// range with fewer than 1024.
    pub load_balancers: Ipv4Net,
}

impl Ranges {
    /// Divides a range, which must have at least 16 addresses (`/28`).
    pub fn of(pods: Ipv4Net) -> Option<Self> {
        let pods = pods.trunc();
        if pods.prefix_len() > 28 {
            return None;
        }
        let (first, last) = (u32::from(pods.network()), u32::from(pods.broadcast()));
        let (start, length) = if pods.prefix_len() <= 22 { (last - 255, 24) } else { (last - 1, 32) };
        let load_balancers = Ipv4Net::new(Ipv4Addr::from(start), length).ok()?;
        Some(Self { pods, gateway: Ipv4Addr::from(first + 1), load_balancers })
    }

    /// The parts whose addresses are not allocated to pods.
    pub(crate) fn reserved(&self) -> Vec<Ipv4Net> {
        vec![Ipv4Net::from(self.gateway), self.load_balancers]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_that_the_machine_uses_is_avoided() {
        assert_eq!(choose(None, &[range("192.168.1.0/24")]), Some(range("10.200.0.0/16")));
        assert_eq!(choose(None, &[range("10.200.7.0/24")]), Some(range("10.201.0.0/16")));
        assert_eq!(choose(None, &[range("10.0.0.0/8")]), Some(range("172.24.0.0/16")));
        assert_eq!(choose(None, &[range("10.0.0.0/8"), range("172.16.0.0/12")]), None);
    }

    #[test]
    fn the_range_of_an_earlier_run_is_kept_while_it_is_free() {
        let known = Some(range("10.207.0.0/16"));
        assert_eq!(choose(known, &[]), known);
        assert_eq!(choose(known, &[range("10.207.3.0/24")]), Some(range("10.200.0.0/16")));
    }

    #[test]
    fn a_range_is_divided_into_gateway_pods_and_load_balancers() {
        let ranges = Ranges::of(range("10.200.0.0/16")).unwrap();
        assert_eq!(ranges.gateway, Ipv4Addr::new(10, 200, 0, 1));
        assert_eq!(ranges.load_balancers, range("10.200.255.0/24"));
        let small = Ranges::of(range("10.9.9.0/28")).unwrap();
        assert_eq!(small.load_balancers, range("10.9.9.14/32"));
        assert_eq!(Ranges::of(range("10.9.9.0/30")), None);
    }
}
