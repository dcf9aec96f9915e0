//! Mirrors Endpoints objects that users keep for Services without a selector to EndpointSlices,
//! because proxies and name servers read only those.
//!
//! Source: Kubernetes documentation, "EndpointSlices: EndpointSlice mirroring".

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_apimachinery::well_known::{ENDPOINT_SLICE_MANAGED_BY, SERVICE_NAME};
use berth_runtime::{Action, Cache, Error, Index, Manager, ObjectKey, Reconciler, Writer, owned_by};
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::ResourceExt;

use super::arrange::{Family, Group, IPV4, arrange};
use super::{apply, sides};

/// Value of [`ENDPOINT_SLICE_MANAGED_BY`] for mirrored slices, as upstream.
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
/// Label of Endpoints objects that must not be mirrored.
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Annotation of Endpoints objects that are locks of leader elections.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that are not copied, because they concern the Endpoints object alone.
const NOT_COPIED: [&str; 2] =
    ["kubectl.kubernetes.io/last-applied-configuration", "endpoints.kubernetes.io/last-change-trigger-time"];
/// Maximum number of addresses to mirror per subset. The others are left out.
const ADDRESSES_MAX: usize = 1000;

/// Adds the controller.
pub fn install(manager: &mut Manager) {
    let (services, endpoints, slices) =
        (manager.cache::<Service>(), manager.cache::<Endpoints>(), manager.cache::<EndpointSlice>());
    let controller = Controller {
        services: services.clone(),
        endpoints: endpoints.clone(),
        of_service: slices.index(|slice| service_of(slice).map(|key| key.to_string()).into_iter().collect()),
        slices: Writer::new(manager, &slices),
    };
    manager
        .controller("endpointslicemirroring")
        .watch_self(&endpoints)
        .watch(&services, |delta| {
            // Most Services have a selector, so there is nothing to mirror.
            let concerned = sides(delta).any(|service| !has_selector(service));
            concerned.then(|| ObjectKey::of(delta.latest().as_ref()))
        })
        .watch(&slices, |delta| sides(delta).filter_map(|slice| service_of(slice)).collect::<BTreeSet<_>>())
        .run(controller);
}

/// The Service of a mirrored slice.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.labels();
    let is_mirrored = labels.get(ENDPOINT_SLICE_MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let name = labels.get(SERVICE_NAME).filter(|_| is_mirrored)?;
    Some(ObjectKey::namespaced(slice.namespace().unwrap_or_default(), name))
}

fn has_selector(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.selector.as_ref().is_some_and(|selector| !selector.is_empty()))
}

fn is_mirrored(endpoints: &Endpoints) -> bool {
    endpoints.labels().get(SKIP).is_none_or(|value| value != "true") && !endpoints.annotations().contains_key(LEADER)
}

struct Controller {
    services: Cache<Service>,
    endpoints: Cache<Endpoints>,
    of_service: Index<EndpointSlice>,
    slices: Writer<EndpointSlice>,
}

impl Reconciler for Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let service = self.services.get(&key).filter(|service| !has_selector(service));
        let endpoints = self.endpoints.get(&key).filter(|it| is_mirrored(it) && service.is_some());
        let slices = self.of_service.get(&key.to_string());
        let plan = match endpoints.filter(|endpoints| endpoints.metadata.deletion_timestamp.is_none()) {
            Some(endpoints) => arrange(&family(&endpoints), groups(&endpoints), &slices),
            None => super::arrange::Plan { delete: slices, ..Default::default() },
        };
        apply(&self.slices, plan).await?;
        Ok(Action::Wait)
    }
}

fn family(endpoints: &Endpoints) -> Family {
    let mut labels = endpoints.labels().clone();
    labels.insert(SERVICE_NAME.to_owned(), endpoints.name_any());
    labels.insert(ENDPOINT_SLICE_MANAGED_BY.to_owned(), MANAGER.to_owned());
    let annotations: BTreeMap<String, String> =
        endpoints.annotations().iter().filter(|(name, _)| !NOT_COPIED.contains(&name.as_str())).map(own).collect();
    Family {
        name: endpoints.name_any(),
        namespace: endpoints.namespace(),
        owner: owned_by(endpoints),
        labels,
        annotations: Some(annotations),
    }
}

fn own((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// The addresses of an Endpoints object by address type and ports.
fn groups(endpoints: &Endpoints) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let others = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, is_ready) in ready.chain(others).take(ADDRESSES_MAX) {
            let Ok(ip) = address.ip.parse::<IpAddr>() else { continue };
            let address_type = if ip.is_ipv4() { IPV4 } else { "IPv6" };
            let endpoint = endpoint(address, is_ready);
            match groups.iter_mut().find(|it| it.ports == ports && it.address_type == address_type) {
                Some(group) => group.endpoints.push(endpoint),
                None => groups.push(Group { address_type, ports: ports.clone(), endpoints: vec![endpoint] }),
            }
        }
    }
    groups
}

fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let ports = subset.ports.iter().flatten().map(|port| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    });
    ports.collect()
}

fn endpoint(address: &EndpointAddress, is_ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(is_ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn endpoints(metadata: Value, subsets: Value) -> Endpoints {
        let mut whole = json!({"name": "db", "namespace": "ns", "uid": "e"});
        whole.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": whole, "subsets": subsets})).unwrap()
    }

    #[test]
    fn a_mirrored_slice_has_the_addresses_labels_and_annotations_of_its_endpoints_object() {
        let subsets = json!([{
            "addresses": [{"ip": "192.0.2.1", "hostname": "a"}, {"ip": "2001:db8::1"}],
            "notReadyAddresses": [{"ip": "192.0.2.2"}], "ports": [{"port": 5432}],
        }]);
        let metadata = json!({"labels": {"team": "a"}, "annotations": {"note": "x", NOT_COPIED[0]: "{}"}});
        let endpoints = endpoints(metadata, subsets);
        let plan = arrange(&family(&endpoints), groups(&endpoints), &[]);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (2, 0, 0));
        let want = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "generateName": "db-", "namespace": "ns", "annotations": {"note": "x"},
                "labels": {"team": "a", SERVICE_NAME: "db", ENDPOINT_SLICE_MANAGED_BY: MANAGER},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Endpoints", "name": "db", "uid": "e",
                    "controller": true, "blockOwnerDeletion": true}],
            },
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["192.0.2.1"], "conditions": {"ready": true}, "hostname": "a"},
                {"addresses": ["192.0.2.2"], "conditions": {"ready": false}},
            ],
            "ports": [{"name": "", "port": 5432, "protocol": "TCP"}],
        });
        assert_eq!(serde_json::to_value(&plan.create[0]).unwrap(), want);
        assert_eq!((plan.create[1].address_type.as_str(), plan.create[1].endpoints.len()), ("IPv6", 1));
        let slices: Vec<_> = plan.create.into_iter().map(Arc::new).collect();
        assert_eq!(arrange(&family(&endpoints), groups(&endpoints), &slices), Default::default());
    }

    #[test]
    fn locks_and_objects_with_the_label_are_not_mirrored() {
        assert!(is_mirrored(&endpoints(json!({}), json!([]))));
        assert!(!is_mirrored(&endpoints(json!({"labels": {SKIP: "true"}}), json!([]))));
        assert!(!is_mirrored(&endpoints(json!({"annotations": {LEADER: "{}"}}), json!([]))));
    }
}
