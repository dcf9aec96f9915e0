//! Host ports: ports of this machine that lead to a port of a pod.
//!
//! They serve this machine and its pods, like node ports. If pods are in the machine's own network,
//! the proxy does not serve a host port that equals the pod's port, because the pod serves it
//! itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use berth_pod_runtime::SandboxNetwork;
use berth_runtime::{Action, Cache, Error, EventType, Manager, ObjectKey, Reconciler, Recorder};
use k8s_openapi::api::core::v1::{ContainerPort, Pod, PodSpec};

use crate::network::Network;
use crate::proxy::{ListenAddress, Owner, Place, Wanted};
use crate::published::Protocol;

/// Adds the controller of host ports.
pub(crate) fn install(manager: &mut Manager, pods: &Cache<Pod>, network: Arc<Network>) {
    let controller = Controller { pods: pods.clone(), recorder: manager.recorder("host-ports"), network };
    manager
        .controller("host-ports")
        .watch(pods, |delta| {
            let has_ports = |pod: &Arc<Pod>| pod.spec.as_ref().is_some_and(|spec| ports(spec).next().is_some());
            let concerned = [&delta.old, &delta.new].into_iter().flatten().any(has_ports);
            concerned.then(|| ObjectKey::of(delta.latest().as_ref()))
        })
        .run(controller);
}

struct Controller {
    pods: Cache<Pod>,
    recorder: Recorder,
    network: Arc<Network>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let pod = self.pods.get(&key);
        let address = pod.as_deref().and_then(address).filter(|address| self.network.has_pod(*address));
        let fronts = match (pod.as_deref().and_then(|pod| pod.spec.as_ref()), address) {
            (Some(spec), Some(address)) => wanted(spec, address, self.network.as_ref(), self.network.is_shared()),
            _ => Vec::new(),
        };
        let served = self.network.proxy().set(Owner::Pod(key), fronts).await;
        if let (Some(pod), Err(error)) = (&pod, &served) {
            self.recorder.event(pod.as_ref(), EventType::Warning, "FailedToServeHostPort", &error.to_string());
        }
        match served {
            // A retry would fail as well.
            Err(error) if !error.is_forbidden() => Err(error.into()),
            _ => Ok(Action::Wait),
        }
    }
}

/// The address of a pod; `None` if the pod has ended.
fn address(pod: &Pod) -> Option<Ipv4Addr> {
    let status = pod.status.as_ref()?;
    let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    status.pod_ip.as_deref().filter(|_| !has_ended)?.parse().ok()
}

/// The container ports with a host port. A pod in its host's network has none.
fn ports(spec: &PodSpec) -> impl Iterator<Item = &ContainerPort> {
    let is_separate = !spec.host_network.unwrap_or(false);
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let all = containers.filter(move |_| is_separate).flat_map(|container| container.ports.iter().flatten());
    all.filter(|port| port.host_port.is_some_and(|number| number > 0))
}

/// The listeners for the host ports of a pod. If `is_shared` is set, the pod is in the machine's
/// network.
fn wanted(spec: &PodSpec, pod: Ipv4Addr, place: &impl Place, is_shared: bool) -> Vec<Wanted> {
    let mut all = Vec::new();
    for port in ports(spec) {
        let number = |number: Option<i32>| number.and_then(|number| u16::try_from(number).ok());
        let (Some(host_port), Some(own), Some(protocol)) =
            (number(port.host_port), number(Some(port.container_port)), Protocol::of(port.protocol.as_deref()))
        else {
            continue;
        };
        if is_shared && host_port == own {
            continue;
        }
        let addresses = match port.host_ip.as_deref() {
            None | Some("" | "0.0.0.0" | "::") => place.node_addresses().to_vec(),
            Some(given) => given.parse().into_iter().collect(),
        };
        for address in addresses {
            let address = SocketAddr::new(IpAddr::V4(address), host_port);
            let listen_at = ListenAddress { address, protocol, clients: place.node_clients() };
            if !all.iter().any(|known: &Wanted| known.listen_at == listen_at) {
                all.push(Wanted { listen_at, endpoints: vec![SocketAddr::new(pod.into(), own)], affinity: None });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::proxy::Clients;
    use crate::published::Endpoint;

    struct Machine;

    /// The node's own address may be a loopback address.
    const ADDRESSES: [Ipv4Addr; 3] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::LOCALHOST];

    impl Place for Machine {
        fn service_address(&self, _: Ipv4Addr) -> Option<(Ipv4Addr, Clients)> {
            None
        }
        fn machine_address(&self, _: Ipv4Addr, _: u16) -> Option<Ipv4Addr> {
            None
        }
        fn has_external(&self, _: Ipv4Addr) -> bool {
            false
        }
        fn node_addresses(&self) -> &[Ipv4Addr] {
            &ADDRESSES
        }
        fn node_clients(&self) -> Clients {
            Clients::Machine
        }
        fn reaches(&self, _: &Endpoint) -> bool {
            true
        }
    }

    #[track_caller]
    fn check(spec: Value, is_shared: bool, expected: &[&str]) {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        let all = wanted(&spec, Ipv4Addr::new(10, 200, 0, 2), &Machine, is_shared);
        let shown: Vec<String> = all
            .iter()
            .map(|it| format!("{} {} -> {}", it.listen_at.protocol.label(), it.listen_at.address, it.endpoints[0]))
            .collect();
        assert_eq!(shown, expected);
    }

    fn spec(ports: Value) -> Value {
        json!({"containers": [{"name": "c", "ports": ports}]})
    }

    #[test]
    fn a_host_port_is_at_all_addresses_of_the_node_or_at_its_own() {
        let http = json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]);
        check(spec(http), false, &["tcp 127.0.0.1:8080 -> 10.200.0.2:80", "tcp 192.0.2.1:8080 -> 10.200.0.2:80"]);
        let dns = json!([{"containerPort": 53, "hostPort": 5353, "hostIP": "127.0.0.1", "protocol": "UDP"}]);
        check(spec(dns), false, &["udp 127.0.0.1:5353 -> 10.200.0.2:53"]);
        check(spec(json!([{"containerPort": 53, "hostPort": 5353, "protocol": "SCTP"}])), false, &[]);
    }

    #[test]
    fn a_pod_in_the_machines_network_serves_its_own_ports_itself() {
        let ports = json!([{"containerPort": 80, "hostPort": 80}]);
        check(spec(ports.clone()), true, &[]);
        let moved = json!([{"containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1"}]);
        check(spec(moved), true, &["tcp 127.0.0.1:8080 -> 10.200.0.2:80"]);
        let mut spec = spec(ports);
        spec["hostNetwork"] = true.into();
        check(spec, false, &[]);
    }
}
