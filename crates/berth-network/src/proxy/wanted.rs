//! The listeners that a Service needs, and their endpoints.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::published::{Endpoint, Kind, Port, Published};

use super::{Clients, ListenAddress};

/// A listener and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) listen_at: ListenAddress,
    pub(crate) endpoints: Vec<SocketAddr>,
    pub(crate) affinity: Option<Duration>,
}

/// The properties of the network on which listeners depend.
pub(crate) trait Place {
    /// The address at which this machine serves a cluster IP, and to which clients; `None` if it
    /// cannot serve it.
    fn service_address(&self, cluster_ip: Ipv4Addr) -> Option<(Ipv4Addr, Clients)>;
    /// An additional address for a port of a Service for clients on this machine; `None` if they
    /// reach it at [`Place::service_address`], or if this process may not open the port.
    fn machine_address(&self, cluster_ip: Ipv4Addr, port: u16) -> Option<Ipv4Addr>;
    /// True if this machine may listen at an external address of a Service.
    fn has_external(&self, address: Ipv4Addr) -> bool;
    /// Addresses for node ports.
    fn node_addresses(&self) -> &[Ipv4Addr];
    /// The clients of node ports and host ports.
    fn node_clients(&self) -> Clients;
    /// True if an endpoint can be reached. A simulated pod cannot, because its address does not
    /// exist.
    fn reaches(&self, endpoint: &Endpoint) -> bool;
}

/// The listeners of a Service. A port without a reachable endpoint has none.
pub(crate) fn wanted(service: &Published, place: &impl Place) -> Vec<Wanted> {
    let Kind::ClusterIp(cluster_ip) = service.kind else { return Vec::new() };
    let mut all = Vec::new();
    for port in &service.ports {
        let endpoints = endpoints(service, port, place);
        if endpoints.is_empty() {
            continue;
        }
        let mut add = |address: Ipv4Addr, number: u16, clients: Clients| {
            let address = SocketAddr::new(IpAddr::V4(address), number);
            let listen_at = ListenAddress { address, protocol: port.protocol, clients };
            if !all
                .iter()
                .any(|known: &Wanted| known.listen_at.address == address && known.listen_at.protocol == port.protocol)
            {
                all.push(Wanted { listen_at, endpoints: endpoints.clone(), affinity: service.affinity });
            }
        };
        let own = place.service_address(cluster_ip).into_iter();
        let own = own.chain(place.machine_address(cluster_ip, port.number).map(|address| (address, Clients::Machine)));
        let external = service.external.iter().copied().filter(|address| place.has_external(*address));
        for (address, clients) in own.chain(external.map(|address| (address, Clients::All))) {
            add(address, port.number, clients);
        }
        for (node_port, address) in
            port.node_port.iter().flat_map(|it| place.node_addresses().iter().map(move |a| (it, a)))
        {
            add(*address, *node_port, place.node_clients());
        }
    }
    all
}

/// The reachable endpoints of a port: the ready ones, or else those that still serve while they
/// terminate.
fn endpoints(service: &Published, port: &Port, place: &impl Place) -> Vec<SocketAddr> {
    let reachable = service.usable().filter(|endpoint| place.reaches(endpoint));
    let of_port = reachable.flat_map(|endpoint| {
        let ports = endpoint.ports.iter().filter(|it| it.name == port.name && it.protocol == port.protocol);
        ports.map(|it| SocketAddr::new(IpAddr::V4(endpoint.address), it.number))
    });
    let mut all: Vec<SocketAddr> = of_port.collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::{EndpointPort, Protocol};

    struct Machine;

    const NODE: Ipv4Addr = Ipv4Addr::LOCALHOST;

    impl Place for Machine {
        fn service_address(&self, cluster_ip: Ipv4Addr) -> Option<(Ipv4Addr, Clients)> {
            Some((cluster_ip, Clients::MachineFirst))
        }
        fn machine_address(&self, _: Ipv4Addr, _: u16) -> Option<Ipv4Addr> {
            None
        }
        fn has_external(&self, address: Ipv4Addr) -> bool {
            address.octets()[2] == 255
        }
        fn node_addresses(&self) -> &[Ipv4Addr] {
            &[NODE]
        }
        fn node_clients(&self) -> Clients {
            Clients::Machine
        }
        fn reaches(&self, endpoint: &Endpoint) -> bool {
            !endpoint.is_pod || endpoint.address.octets()[1] == 200
        }
    }

    fn endpoint(address: [u8; 4], is_ready: bool, is_draining: bool) -> Endpoint {
        let ports = vec![EndpointPort { name: String::new(), protocol: Protocol::Tcp, number: 8080 }];
        Endpoint { address: address.into(), hostname: None, is_ready, is_draining, is_pod: true, ports }
    }

    fn service(endpoints: Vec<Endpoint>) -> Published {
        let port = Port { name: String::new(), protocol: Protocol::Tcp, number: 80, node_port: Some(30_080) };
        Published {
            namespace: "a".into(),
            name: "b".into(),
            kind: Kind::ClusterIp(Ipv4Addr::new(10, 96, 0, 9)),
            ports: vec![port],
            endpoints,
            affinity: None,
            external: vec![Ipv4Addr::new(10, 200, 255, 1), Ipv4Addr::new(192, 0, 2, 1)],
        }
    }

    fn fronts(service: &Published) -> Vec<(String, Clients)> {
        wanted(service, &Machine).iter().map(|it| (it.listen_at.address.to_string(), it.listen_at.clients)).collect()
    }

    fn targets(service: &Published) -> Vec<String> {
        wanted(service, &Machine)
            .first()
            .map_or(Vec::new(), |it| it.endpoints.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_service_is_served_at_its_own_addresses_and_at_node_ports() {
        let service = service(vec![endpoint([10, 200, 0, 2], true, false)]);
        let want = [
            ("10.96.0.9:80", Clients::MachineFirst),
            ("10.200.255.1:80", Clients::All),
            ("127.0.0.1:30080", Clients::Machine),
        ];
        assert_eq!(fronts(&service), want.map(|(text, clients)| (text.to_owned(), clients)));
        assert_eq!(targets(&service), ["10.200.0.2:8080"]);
    }

    #[test]
    fn only_ready_endpoints_are_used_and_draining_ones_if_there_are_no_others() {
        let ready = endpoint([10, 200, 0, 2], true, false);
        let (unready, draining) = (endpoint([10, 200, 0, 3], false, false), endpoint([10, 200, 0, 4], false, true));
        assert_eq!(targets(&service(vec![ready, unready.clone(), draining.clone()])), ["10.200.0.2:8080"]);
        assert_eq!(targets(&service(vec![unready.clone(), draining])), ["10.200.0.4:8080"]);
        assert_eq!(fronts(&service(vec![unready])), []);
    }

    #[test]
    fn simulated_pods_are_not_reached() {
        assert_eq!(fronts(&service(vec![endpoint([10, 3, 0, 2], true, false)])), []);
        let given = Endpoint { is_pod: false, ..endpoint([192, 0, 2, 9], true, false) };
        assert_eq!(targets(&service(vec![given])), ["192.0.2.9:8080"]);
    }
}
