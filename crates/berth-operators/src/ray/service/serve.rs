//! The Service of Ray Serve with the RayService's name.

use std::collections::BTreeMap;

use berth_api::frameworks::RayService;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use super::types::RayServiceSpec;
use crate::ray::constants::{CLUSTER, ORIGIN_KIND, ORIGIN_NAME, SERVE, SERVE_PORT_NAME};
use crate::ray::names;
use berth_runtime::owned_by;

/// The Service that selects the serving pods of `cluster`. Its ports are those of the cluster's
/// head Service that belong to Ray Serve; `spec.serveService` may set further fields of these
/// ports.
///
/// # Errors
/// Neither the head nor `spec.serveService` has a port of Ray Serve.
pub fn service(
    owner: &RayService,
    spec: &RayServiceSpec,
    cluster: &str,
    head_service: &Service,
) -> Result<Service, String> {
    let name = owner.name_any();
    let label = |key: &str, value: String| (key.to_owned(), value);
    let labels = BTreeMap::from([
        label(ORIGIN_NAME, name.clone()),
        label(ORIGIN_KIND, "RayService".to_owned()),
        label(SERVE, format!("{name}-serve")),
    ]);
    let selector = BTreeMap::from([label(CLUSTER, cluster.to_owned()), label(SERVE, "true".to_owned())]);
    let mut made = spec.serve_service.clone().unwrap_or_default();
    let given = made.spec.get_or_insert_default();
    let described = given.ports.take().unwrap_or_default();
    let ports = ports(head_service, &described);
    if ports.is_empty() {
        return Err("Please specify a port named 'serve' (or with the prefix 'serve-', e.g. 'serve-grpc') in the Ray \
                    head container; otherwise, the Kubernetes service for Ray Serve will not be created."
            .to_owned());
    }
    given.ports = Some(ports);
    given.selector = Some(selector);
    let default_type = spec.cluster["headGroupSpec"]["serviceType"].as_str().filter(|kind| !kind.is_empty());
    given.type_ = given.type_.take().filter(|kind| !kind.is_empty()).or(default_type.map(str::to_owned));
    let mut all = made.metadata.labels.take().unwrap_or_default();
    all.extend(labels);
    let given_name = made.metadata.name.take().filter(|given| !given.is_empty());
    made.metadata = ObjectMeta {
        name: Some(given_name.unwrap_or_else(|| names::serve_service(&name))),
        namespace: owner.namespace(),
        labels: Some(all),
        owner_references: Some(vec![owned_by(owner)]),
        ..made.metadata
    };
    made.status = None;
    Ok(made)
}

/// The ports of Ray Serve of a head. A port in `described` replaces the head's port of the same
/// name. If the head has no such ports, the ports of Ray Serve in `described`.
fn ports(head_service: &Service, described: &[ServicePort]) -> Vec<ServicePort> {
    let serves = |port: &&ServicePort| {
        let rest = port.name.as_deref().and_then(|name| name.strip_prefix(SERVE_PORT_NAME));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let of_head = head_service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let of_head: Vec<_> = of_head.into_iter().flatten().filter(serves).collect();
    if of_head.is_empty() {
        return described.iter().filter(serves).cloned().collect();
    }
    let described = |port: &ServicePort| described.iter().find(|it| it.name == port.name).cloned();
    let plain = |port: &ServicePort| ServicePort { name: port.name.clone(), port: port.port, ..Default::default() };
    of_head.into_iter().map(|port| described(port).unwrap_or_else(|| plain(port))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn made(ports: Value, serve_service: Value) -> Result<Service, String> {
        let head: Service = serde_json::from_value(json!({"spec": {"ports": ports}})).unwrap();
        let spec = RayServiceSpec::read(&json!({"serveService": serve_service})).unwrap();
        service(&RayService::named("fruit"), &spec, "fruit-aaaaa", &head)
    }

    #[test]
    fn requests_go_to_the_serving_pods_of_the_cluster() {
        let ports = json!([{"name": "dashboard", "port": 8265}, {"name": "serve", "port": 8000, "nodePort": 30000}]);
        let made = made(ports, Value::Null).unwrap();
        assert_eq!(made.name_any(), "fruit-serve-svc");
        let spec = made.spec.unwrap();
        let selector = json!({"ray.io/cluster": "fruit-aaaaa", "ray.io/serve": "true"});
        assert_eq!(json!(spec.selector), selector);
        assert_eq!(json!(spec.ports), json!([{"name": "serve", "port": 8000}]));
    }

    #[test]
    fn the_users_service_keeps_its_name_and_describes_its_ports() {
        let given = json!({
            "metadata": {"name": "mine", "labels": {"team": "blue"}},
            "spec": {"ports": [{"name": "serve-grpc", "port": 9000, "appProtocol": "kubernetes.io/h2c"}]},
        });
        let made = made(json!([{"name": "serve-grpc", "port": 9000}]), given).unwrap();
        assert_eq!((made.name_any().as_str(), made.labels()["team"].as_str()), ("mine", "blue"));
        assert_eq!(made.spec.unwrap().ports.unwrap()[0].app_protocol.as_deref(), Some("kubernetes.io/h2c"));
    }

    #[test]
    fn a_head_without_port_of_ray_serve_is_an_error() {
        let error = made(json!([{"name": "dashboard", "port": 8265}]), Value::Null).unwrap_err();
        assert!(error.starts_with("Please specify a port named 'serve'"), "{error}");
    }
}
