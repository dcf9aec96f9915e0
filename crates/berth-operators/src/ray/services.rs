//! Services that a RayJob or RayService has in addition to those of its cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::constants::{CLUSTER, IDENTIFIER, NODE_TYPE, ORIGIN_KIND, ORIGIN_NAME};
use super::names;
use berth_runtime::owned_by;

/// A copy of the cluster's head Service with a name after `owner`. The name stays the same when the
/// cluster of the owner is replaced.
pub fn head_of_owner<K>(owner: &K, kind: &str, of_cluster: &Service) -> Service
where
    K: Resource<DynamicType = ()>,
{
    let name = owner.name_any();
    let label = |key: &str, value: String| (key.to_owned(), value);
    let labels = BTreeMap::from([
        label(ORIGIN_NAME, name.clone()),
        label(ORIGIN_KIND, kind.to_owned()),
        label(NODE_TYPE, "head".to_owned()),
        label(IDENTIFIER, names::checked_label(&format!("{name}-head"))),
    ]);
    Service {
        metadata: ObjectMeta {
            name: Some(names::default_head_service(&name)),
            namespace: owner.namespace(),
            labels: Some(labels),
            annotations: of_cluster.metadata.annotations.clone(),
            owner_references: Some(vec![owned_by(owner)]),
            ..ObjectMeta::default()
        },
        spec: of_cluster.spec.as_ref().map(copied),
        status: None,
    }
}

/// The spec of a Service without what the API server assigned.
fn copied(spec: &ServiceSpec) -> ServiceSpec {
    let port = |port: &ServicePort| ServicePort { node_port: None, ..port.clone() };
    ServiceSpec {
        selector: spec.selector.clone(),
        ports: spec.ports.as_ref().map(|ports| ports.iter().map(port).collect()),
        type_: spec.type_.clone(),
        cluster_ip: spec.cluster_ip.clone().filter(|ip| ip == "None"),
        publish_not_ready_addresses: spec.publish_not_ready_addresses,
        ..ServiceSpec::default()
    }
}

/// `existing`, changed to select the pods of the cluster of `wanted`; `None` if it already does.
pub fn retargeted(existing: &Service, wanted: &Service) -> Option<Service> {
    if cluster_of(existing) == cluster_of(wanted) {
        return None;
    }
    let mut changed = existing.clone();
    let mut spec = wanted.spec.clone().unwrap_or_default();
    // An assigned address cannot be changed.
    if let Some(known) = &existing.spec {
        spec.cluster_ip = known.cluster_ip.clone();
        spec.cluster_ips = known.cluster_ips.clone();
        spec.ip_families = known.ip_families.clone();
        spec.ip_family_policy = known.ip_family_policy.clone();
    }
    changed.spec = Some(spec);
    Some(changed)
}

/// Name of the RayCluster whose pods a Service selects.
pub fn cluster_of(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.selector.as_ref()?.get(CLUSTER).map(String::as_str)
}

/// `host:port` of a Service, for its port with this name.
pub fn address(service: &Service, port: &str) -> Option<String> {
    let ports = service.spec.as_ref()?.ports.as_ref()?;
    let number = ports.iter().find(|it| it.name.as_deref() == Some(port))?.port;
    let host = names::dns_name(&service.name_any(), &service.namespace().unwrap_or_default());
    Some(format!("{host}:{number}"))
}

#[cfg(test)]
mod tests {
    use berth_api::frameworks::RayJob;
    use serde_json::json;

    use super::*;

    fn of_cluster(cluster: &str) -> Service {
        let ports =
            json!([{"name": "dashboard", "port": 8265, "nodePort": 30001}, {"name": "gcs-server", "port": 6379}]);
        let spec = json!({
            "selector": {"ray.io/cluster": cluster, "ray.io/node-type": "head"}, "ports": ports, "type": "ClusterIP",
            "clusterIP": "None", "clusterIPs": ["None"], "publishNotReadyAddresses": true,
        });
        let metadata = json!({"name": format!("{cluster}-head-svc"), "namespace": "default"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn the_service_of_an_owner_follows_its_cluster() {
        let mut job = RayJob::named("demo");
        job.metadata.namespace = Some("default".into());
        let first = head_of_owner(&job, "RayJob", &of_cluster("demo-aaaaa"));
        assert_eq!(first.name_any(), "demo-head-svc");
        assert_eq!(first.labels()["ray.io/originated-from-cr-name"], "demo");
        let spec = first.spec.as_ref().unwrap();
        assert_eq!((spec.cluster_ip.as_deref(), spec.publish_not_ready_addresses), (Some("None"), Some(true)));
        assert!(spec.ports.as_ref().unwrap().iter().all(|port| port.node_port.is_none()));
        assert_eq!(address(&first, "dashboard").as_deref(), Some("demo-head-svc.default.svc.cluster.local:8265"));
        assert_eq!(address(&first, "serve"), None);

        let second = head_of_owner(&job, "RayJob", &of_cluster("demo-bbbbb"));
        assert_eq!(retargeted(&first, &first), None);
        assert_eq!(cluster_of(&retargeted(&first, &second).unwrap()), Some("demo-bbbbb"));
    }
}
