//! Plans the EndpointSlices of a Service from the pods that it selects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_apimachinery::well_known::{ENDPOINT_SLICE_MANAGED_BY, SERVICE_NAME};
use berth_runtime::owned_by;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::arrange::{Family, Group, IPV4, Plan, arrange};
use crate::job::facts::{is_deleted, is_terminated};

/// Value of [`ENDPOINT_SLICE_MANAGED_BY`] for this controller, as upstream.
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
/// Label of slices of headless Services.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";
/// The selector of a Service for which this controller makes slices.
pub fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    spec.selector.as_ref().filter(|selector| !selector.is_empty())
}

/// True if the Service selects the pod. Both are in one namespace.
pub fn is_selected(service: &Service, pod: &Pod) -> bool {
    selector(service).is_some_and(|selector| selector.iter().all(|(name, value)| pod.labels().get(name) == Some(value)))
}

/// The facts about a pod that its endpoint depends on.
#[derive(Debug, PartialEq)]
pub struct Facts<'a> {
    labels: &'a BTreeMap<String, String>,
    uid: Option<&'a str>,
    ip: Option<&'a str>,
    node: Option<&'a str>,
    is_ready: bool,
    is_terminated: bool,
    is_deleted: bool,
}

/// The facts about a pod that its endpoint depends on and that can change.
pub fn facts(pod: &Pod) -> Facts<'_> {
    Facts {
        labels: pod.labels(),
        uid: pod.metadata.uid.as_deref(),
        ip: ip(pod),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()),
        is_ready: is_ready(pod),
        is_terminated: is_terminated(pod),
        is_deleted: is_deleted(pod),
    }
}

pub(super) fn ip(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.pod_ip.as_deref().filter(|ip| !ip.is_empty())
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True")
}

/// Plans the next writes. `pods` are the pods that the Service selects, `slices` its current slices
/// made by this controller. `zone` returns the zone of a node.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    slices: &[Arc<EndpointSlice>],
    zone: impl Fn(&str) -> Option<String>,
) -> Plan {
    let family = Family {
        name: service.name_any(),
        namespace: service.namespace(),
        owner: owned_by(service),
        labels: labels(service),
        annotations: None,
    };
    arrange(&family, groups(service, pods, zone), slices)
}

/// The labels of a Service's slices: those of the Service, and those that identify the Service and
/// the controller.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels().clone();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.to_owned(), service.name_any());
    labels.insert(ENDPOINT_SLICE_MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None") {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

/// The endpoints of a Service, grouped by the ports of their pods. Without endpoints, one empty
/// group without ports.
fn groups(service: &Service, pods: &[Arc<Pod>], zone: impl Fn(&str) -> Option<String>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut seen = BTreeSet::new();
    for pod in pods.iter().filter(|pod| !is_terminated(pod)) {
        let Some(ip) = ip(pod).filter(|ip| ip.parse::<std::net::Ipv4Addr>().is_ok()) else { continue };
        if !seen.insert(pod.name_any()) {
            continue;
        }
        let ports = ports(service, pod);
        let endpoint = endpoint(service, pod, ip, &zone);
        match groups.iter_mut().find(|group| group.ports == ports) {
            Some(group) => group.endpoints.push(endpoint),
            None => groups.push(Group { address_type: IPV4, ports, endpoints: vec![endpoint] }),
        }
    }
    if groups.is_empty() {
        groups.push(Group { address_type: IPV4, ports: Vec::new(), endpoints: Vec::new() });
    }
    groups
}

pub(super) fn endpoint(service: &Service, pod: &Pod, ip: &str, zone: impl Fn(&str) -> Option<String>) -> Endpoint {
    let publishes = service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false);
    let (serving, terminating) = (is_ready(pod), is_deleted(pod));
    let spec = pod.spec.as_ref();
    let node = spec.and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
    let subdomain = spec.and_then(|spec| spec.subdomain.as_deref()).unwrap_or_default();
    let hostname = spec.and_then(|spec| spec.hostname.clone()).filter(|name| !name.is_empty());
    Endpoint {
        addresses: vec![ip.to_owned()],
        conditions: Some(EndpointConditions {
            ready: Some(publishes || (serving && !terminating)),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname.filter(|_| subdomain == service.name_any()),
        zone: node.as_deref().and_then(zone),
        node_name: node,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.namespace(),
            name: Some(pod.name_any()),
            uid: pod.uid(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

/// The ports of a Service on one pod. A named target port that the pod does not have is left out.
fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let found = ports.filter_map(|port| {
        Some(EndpointPort {
            name: Some(port.name.clone().unwrap_or_default()),
            port: Some(target_port(port, pod)?),
            protocol: Some(protocol(port.protocol.as_deref()).to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    });
    found.collect()
}

pub(super) fn protocol(given: Option<&str>) -> &str {
    given.unwrap_or("TCP")
}

/// The target port of a Service's port on a pod. A number is used unchanged. A name is looked up in
/// the ports of the pod's containers and sidecars.
pub(super) fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars = spec.init_containers.iter().flatten().filter(|it| it.restart_policy.as_deref() == Some("Always"));
    let containers: Vec<&Container> = spec.containers.iter().chain(sidecars).collect();
    let mut ports = containers.iter().flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|it| {
        it.name.as_ref() == Some(name) && protocol(it.protocol.as_deref()) == protocol(port.protocol.as_deref())
    });
    found.map(|it| it.container_port)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: Value) -> Service {
        let mut whole =
            json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let metadata = json!({"name": "web", "namespace": "default", "uid": "s", "labels": {"team": "a"}});
        serde_json::from_value(json!({"metadata": metadata, "spec": whole})).unwrap()
    }

    fn pod(name: &str, ip: &str, changes: Value) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": "web"}},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "c", "ports": [{"name": "web", "containerPort": 8080}]},
            ]},
            "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]},
        });
        merge(&mut pod, &changes);
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn merge(target: &mut Value, changes: &Value) {
        match (target, changes) {
            (Value::Object(target), Value::Object(changes)) => {
                for (name, change) in changes {
                    merge(target.entry(name).or_insert(Value::Null), change);
                }
            }
            (target, changes) => *target = changes.clone(),
        }
    }

    fn planned(service: &Service, pods: &[Arc<Pod>], slices: &[EndpointSlice]) -> Plan {
        let slices: Vec<_> = slices.iter().cloned().map(Arc::new).collect();
        plan(service, pods, &slices, |node| (node == "n1").then(|| "zone-a".to_owned()))
    }

    /// Carries out a plan.
    fn apply(slices: &mut Vec<EndpointSlice>, plan: Plan) {
        slices.retain(|slice| !plan.delete.iter().any(|gone| gone.metadata.name == slice.metadata.name));
        for slice in plan.update {
            let known = slices.iter_mut().find(|it| it.metadata.name == slice.metadata.name).expect("it exists");
            *known = slice;
        }
        for mut slice in plan.create {
            slice.metadata.name = Some(format!("web-{}", slices.len()));
            slices.push(slice);
        }
    }

    fn numbered(count: u32) -> Vec<Arc<Pod>> {
        (0..count).map(|n| pod(&format!("p{n:03}"), &format!("10.0.{}.{}", n / 200, n % 200 + 1), json!({}))).collect()
    }

    fn conditions(service: &Service, pod: Arc<Pod>) -> Option<[bool; 3]> {
        let plan = planned(service, &[pod], &[]);
        let conditions = plan.create[0].endpoints.first()?.conditions.clone().unwrap();
        Some([conditions.ready, conditions.serving, conditions.terminating].map(|it| it.unwrap()))
    }

    #[test]
    fn a_ready_pod_is_an_endpoint_with_the_number_of_its_named_port() {
        let made = planned(&service(json!({})), &[pod("p", "10.0.0.7", json!({}))], &[]).create.remove(0);
        let want = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "generateName": "web-", "namespace": "default",
                "labels": {"team": "a", SERVICE_NAME: "web", ENDPOINT_SLICE_MANAGED_BY: MANAGER},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "s",
                    "controller": true, "blockOwnerDeletion": true}],
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["10.0.0.7"], "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": "n1", "zone": "zone-a",
                "targetRef": {"kind": "Pod", "namespace": "default", "name": "p", "uid": "uid-p"},
            }],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        });
        assert_eq!(serde_json::to_value(made).unwrap(), want);
    }

    #[test]
    fn conditions_follow_readiness_and_deletion() {
        let (plain, publishing) = (service(json!({})), service(json!({"publishNotReadyAddresses": true})));
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let unready = json!({"status": {"conditions": []}});
        assert_eq!(conditions(&plain, pod("p", "10.0.0.1", json!({}))), Some([true, true, false]));
        assert_eq!(conditions(&plain, pod("p", "10.0.0.1", unready.clone())), Some([false, false, false]));
        assert_eq!(conditions(&publishing, pod("p", "10.0.0.1", unready)), Some([true, false, false]));
        assert_eq!(conditions(&plain, pod("p", "10.0.0.1", deleted)), Some([false, true, true]));
        assert_eq!(conditions(&plain, pod("p", "", json!({}))), None);
        assert_eq!(conditions(&publishing, pod("p", "10.0.0.1", json!({"status": {"phase": "Failed"}}))), None);
    }

    #[test]
    fn a_pod_of_the_subdomain_has_its_host_name() {
        let headless = service(json!({"clusterIP": "None", "ports": null}));
        let named = pod("p", "10.0.0.1", json!({"spec": {"hostname": "worker-0", "subdomain": "web"}}));
        let other = pod("q", "10.0.0.2", json!({"spec": {"hostname": "worker-0", "subdomain": "other"}}));
        let made = planned(&headless, &[named, other], &[]).create.remove(0);
        let names: Vec<_> = made.endpoints.iter().map(|endpoint| endpoint.hostname.as_deref()).collect();
        assert_eq!(names, [Some("worker-0"), None]);
        assert_eq!(made.ports, None);
        assert!(made.labels().contains_key(HEADLESS));
    }

    #[test]
    fn a_service_without_pods_has_one_empty_slice() {
        let service = service(json!({}));
        let mut slices = Vec::new();
        apply(&mut slices, planned(&service, &[], &[]));
        assert_eq!((slices.len(), slices[0].endpoints.len()), (1, 0));
        assert_eq!(planned(&service, &[], &slices), Plan::default());
        // The empty slice takes the first endpoint.
        let plan = planned(&service, &numbered(1), &slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        apply(&mut slices, plan);
        assert_eq!(slices[0].ports.as_ref().unwrap()[0].port, Some(8080));
        let plan = planned(&service, &[], &slices);
        apply(&mut slices, plan);
        assert_eq!((slices.len(), slices[0].endpoints.len()), (1, 0));
    }

    #[test]
    fn a_change_is_written_to_one_of_many_slices() {
        let service = service(json!({}));
        let mut pods = numbered(250);
        let mut slices = Vec::new();
        apply(&mut slices, planned(&service, &pods, &[]));
        let sizes = |slices: &[EndpointSlice]| slices.iter().map(|it| it.endpoints.len()).collect::<Vec<_>>();
        assert_eq!(sizes(&slices), [100, 100, 50]);
        assert_eq!(planned(&service, &pods, &slices), Plan::default());
        pods[130] = pod("p130", "10.0.0.131", json!({"status": {"conditions": []}}));
        let plan = planned(&service, &pods, &slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        apply(&mut slices, plan);
        // A pod that replaces another is added to the slice that is written in any case.
        pods[7] = pod("later", "10.0.9.9", json!({}));
        let plan = planned(&service, &pods, &slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        apply(&mut slices, plan);
        assert_eq!(sizes(&slices), [100, 100, 50]);
        pods.truncate(3);
        let plan = planned(&service, &pods, &slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 2));
    }

    #[test]
    fn pods_with_other_port_numbers_are_in_another_slice() {
        let ports = json!({"spec": {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 9090}]}]}});
        let service = service(json!({}));
        let pods = [pod("a", "10.0.0.1", json!({})), pod("b", "10.0.0.2", ports)];
        let mut slices = Vec::new();
        apply(&mut slices, planned(&service, &pods, &[]));
        let numbers: Vec<_> = slices.iter().map(|it| it.ports.as_ref().unwrap()[0].port).collect();
        assert_eq!(numbers, [Some(8080), Some(9090)]);
        assert_eq!(planned(&service, &pods, &slices), Plan::default());
    }

    #[test]
    fn changed_labels_of_the_service_are_copied() {
        let mut service = service(json!({}));
        let mut slices = Vec::new();
        apply(&mut slices, planned(&service, &numbered(1), &[]));
        service.metadata.labels = Some(BTreeMap::from([("team".to_owned(), "b".to_owned())]));
        let plan = planned(&service, &numbered(1), &slices);
        assert_eq!(plan.update[0].labels()["team"], "b");
    }

    #[test]
    fn a_service_of_a_foreign_name_has_no_endpoints() {
        assert!(selector(&service(json!({"type": "ExternalName"}))).is_none());
        assert!(selector(&service(json!({"selector": null}))).is_none());
        assert!(selector(&service(json!({"selector": {}}))).is_none());
    }
}
