//! The legacy Endpoints object of a Service with a selector, for clients that do not read
//! EndpointSlices.
//!
//! Source: Kubernetes documentation, "Service: Endpoints" and "Over-capacity endpoints"; KEP-4974
//! for the label with the managing controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service};
use kube::ResourceExt;

use super::plan::{self, HEADLESS, is_ready, protocol, target_port};
use crate::job::facts::{is_deleted, is_terminated};

/// Label of the Endpoints objects of this controller.
pub const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`], as upstream.
pub const MANAGER: &str = "endpoint-controller";
/// Annotation of an Endpoints object that lacks addresses because there are too many.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Value of [`OVER_CAPACITY`].
const TRUNCATED: &str = "truncated";
/// Maximum number of addresses in an Endpoints object.
const ADDRESSES_MAX: usize = 1000;

/// The Endpoints object that a Service must have; `None` if `known` already equals it. `pods` are
/// the pods that the Service selects.
pub fn plan(service: &Service, pods: &[Arc<Pod>], known: Option<&Endpoints>) -> Option<Endpoints> {
    let mut wanted = known.cloned().unwrap_or_default();
    wanted.metadata.name = service.metadata.name.clone();
    wanted.metadata.namespace = service.metadata.namespace.clone();
    let mut subsets = subsets(service, pods);
    let is_truncated = truncate(&mut subsets);
    wanted.subsets = (!subsets.is_empty()).then_some(subsets);
    wanted.metadata.labels = Some(labels(service));
    let annotations = wanted.annotations_mut();
    if is_truncated {
        annotations.insert(OVER_CAPACITY.to_owned(), TRUNCATED.to_owned());
    } else {
        annotations.remove(OVER_CAPACITY);
    }
    if annotations.is_empty() {
        wanted.metadata.annotations = None;
    }
    let is_same = known.is_some_and(|known| {
        known.subsets.as_deref().unwrap_or_default() == wanted.subsets.as_deref().unwrap_or_default()
            && known.labels() == wanted.labels()
            && known.annotations() == wanted.annotations()
    });
    (!is_same).then_some(wanted)
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels().clone();
    labels.remove(HEADLESS);
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

/// The ports of each address. The key is the address with the pod's UID, and whether it is ready.
/// Ordered, so that the result depends only on the pods.
type Addresses = BTreeMap<(String, bool), (EndpointAddress, BTreeMap<String, EndpointPort>)>;

/// The subsets of a Service: addresses that have the same ports are in one subset.
fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    let spec = service.spec.clone().unwrap_or_default();
    let publishes = spec.publish_not_ready_addresses.unwrap_or(false);
    let is_headless = spec.cluster_ip.as_deref() == Some("None");
    let service_ports = spec.ports.unwrap_or_default();
    let mut by_address = Addresses::new();
    for pod in pods.iter().filter(|pod| !is_terminated(pod) && (publishes || !is_deleted(pod))) {
        let Some(ip) = plan::ip(pod) else { continue };
        let found: Vec<EndpointPort> = service_ports
            .iter()
            .filter_map(|port| {
                Some(EndpointPort {
                    name: port.name.clone().filter(|name| !name.is_empty()),
                    port: target_port(port, pod)?,
                    protocol: Some(protocol(port.protocol.as_deref()).to_owned()),
                    app_protocol: port.app_protocol.clone(),
                })
            })
            .collect();
        if found.is_empty() && !(service_ports.is_empty() && is_headless) {
            continue;
        }
        let key = (format!("{ip} {}", pod.uid().unwrap_or_default()), publishes || is_ready(pod));
        let (_, known) = by_address.entry(key).or_insert_with(|| (address(service, pod, ip), BTreeMap::new()));
        known.extend(found.into_iter().map(|port| (port_key(&port), port)));
    }
    let mut by_ports: BTreeMap<Vec<String>, EndpointSubset> = BTreeMap::new();
    for ((_, is_ready), (address, ports)) in by_address {
        let subset = by_ports.entry(ports.keys().cloned().collect()).or_insert_with(|| EndpointSubset {
            ports: (!ports.is_empty()).then(|| ports.values().cloned().collect()),
            ..EndpointSubset::default()
        });
        let list = if is_ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        list.get_or_insert_default().push(address);
    }
    by_ports.into_values().collect()
}

fn port_key(port: &EndpointPort) -> String {
    let name = port.name.as_deref().unwrap_or_default();
    format!(
        "{name} {:05} {} {}",
        port.port,
        port.protocol.as_deref().unwrap_or_default(),
        port.app_protocol.as_deref().unwrap_or_default()
    )
}

fn address(service: &Service, pod: &Pod, ip: &str) -> EndpointAddress {
    let slice_endpoint = plan::endpoint(service, pod, ip, |_| None);
    EndpointAddress {
        ip: ip.to_owned(),
        hostname: slice_endpoint.hostname,
        node_name: slice_endpoint.node_name,
        target_ref: slice_endpoint.target_ref,
    }
}

/// Keeps at most the maximum number of addresses, ready ones first. Returns true if it left out
/// addresses.
fn truncate(subsets: &mut Vec<EndpointSubset>) -> bool {
    let mut room = ADDRESSES_MAX;
    let mut is_truncated = false;
    for is_ready in [true, false] {
        for subset in subsets.iter_mut() {
            let list = if is_ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
            let Some(addresses) = list else { continue };
            is_truncated |= addresses.len() > room;
            addresses.truncate(room);
            room -= addresses.len();
            if addresses.is_empty() {
                *list = None;
            }
        }
    }
    subsets.retain(|subset| subset.addresses.is_some() || subset.not_ready_addresses.is_some());
    is_truncated
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        let mut whole = json!({"selector": {"app": "web"}, "clusterIP": "10.96.0.9",
            "ports": [{"name": "http", "port": 80, "targetPort": "web"}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let metadata = json!({"name": "web", "namespace": "default", "labels": {"team": "a"}});
        serde_json::from_value(json!({"metadata": metadata, "spec": whole})).unwrap()
    }

    fn pod(name: &str, ip: &str, port: u16, ready: &str) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
                "spec": {"nodeName": "n1", "containers": [
                    {"name": "c", "ports": [{"name": "web", "containerPort": port}]},
                ]},
                "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap(),
        )
    }

    #[test]
    fn addresses_with_the_same_ports_are_in_one_subset() {
        let pods = [
            pod("b", "10.0.0.2", 8080, "True"),
            pod("a", "10.0.0.1", 8080, "True"),
            pod("c", "10.0.0.3", 8080, "False"),
            pod("d", "10.0.0.4", 9090, "True"),
        ];
        let made = plan(&service(json!({})), &pods, None).unwrap();
        let address = |name: &str, ip: &str| {
            let target = json!({"kind": "Pod", "namespace": "default", "name": name, "uid": name});
            json!({"ip": ip, "nodeName": "n1", "targetRef": target})
        };
        let want = json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": "web", "namespace": "default",
                "labels": {"team": "a", "endpoints.kubernetes.io/managed-by": "endpoint-controller"}},
            "subsets": [
                {"addresses": [address("a", "10.0.0.1"), address("b", "10.0.0.2")],
                 "notReadyAddresses": [address("c", "10.0.0.3")],
                 "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]},
                {"addresses": [address("d", "10.0.0.4")],
                 "ports": [{"name": "http", "port": 9090, "protocol": "TCP"}]},
            ],
        });
        assert_eq!(serde_json::to_value(&made).unwrap(), want);
        assert_eq!(plan(&service(json!({})), &pods, Some(&made)), None);
        let published = plan(&service(json!({"publishNotReadyAddresses": true})), &pods, Some(&made)).unwrap();
        assert_eq!(published.subsets.unwrap()[0].addresses.as_ref().unwrap().len(), 3);
    }

    #[test]
    fn a_service_without_pods_has_an_empty_object_and_a_headless_one_needs_no_ports() {
        let empty = plan(&service(json!({})), &[], None).unwrap();
        assert_eq!(empty.subsets, None);
        assert_eq!(plan(&service(json!({})), &[], Some(&empty)), None);
        let headless = service(json!({"clusterIP": "None", "ports": null}));
        let made = plan(&headless, &[pod("a", "10.0.0.1", 80, "True")], None).unwrap();
        assert!(made.labels().contains_key(HEADLESS));
        assert_eq!((made.subsets.as_ref().unwrap().len(), made.subsets.unwrap()[0].ports.clone()), (1, None));
        let other_port = service(json!({"ports": [{"port": 80, "targetPort": "absent"}]}));
        assert_eq!(plan(&other_port, &[pod("a", "10.0.0.1", 80, "True")], None).unwrap().subsets, None);
    }

    #[test]
    fn at_most_1000_addresses_are_kept_and_ready_ones_first() {
        let mut pods: Vec<Arc<Pod>> =
            (0..1005).map(|n| pod(&format!("p{n}"), &format!("10.1.{}.{}", n / 200, n % 200), 80, "True")).collect();
        pods.push(pod("unready", "10.0.0.1", 80, "False"));
        let made = plan(&service(json!({})), &pods, None).unwrap();
        let subsets = made.subsets.clone().unwrap();
        assert_eq!((subsets[0].addresses.as_ref().unwrap().len(), &subsets[0].not_ready_addresses), (1000, &None));
        assert_eq!(made.annotations()[OVER_CAPACITY], "truncated");
        let fewer = plan(&service(json!({})), &pods[..3], Some(&made)).unwrap();
        assert!(!fewer.annotations().contains_key(OVER_CAPACITY));
    }
}
