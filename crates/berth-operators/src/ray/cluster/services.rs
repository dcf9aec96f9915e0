//! The Services of a cluster: of the head, of Ray Serve, and of workers that talk to each other.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::facts::Facts;
use crate::ray::constants::{
    APP_NAME, APPLICATION, CLIENT_PORT, CLUSTER, COMPONENT, CREATED_BY, DASHBOARD_PORT, DASHBOARD_PORT_NAME, GCS_PORT,
    HEADLESS_SERVICE, IDENTIFIER, METRICS_PORT, NODE_TYPE, ORIGIN_KIND, ORIGIN_NAME, SERVE, SERVE_PORT,
    SERVE_PORT_NAME,
};
use crate::ray::names;

type Labels = BTreeMap<String, String>;

fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// The labels of the head's Service, which are also its selector.
pub fn head_labels(facts: &Facts<'_>) -> Labels {
    let template = facts.spec.head_group_spec.template.metadata.as_ref();
    let application = template.and_then(|metadata| metadata.labels.as_ref()).and_then(|labels| labels.get(APP_NAME));
    labels([
        (CLUSTER, facts.name),
        (NODE_TYPE, "head"),
        (IDENTIFIER, &names::checked_label(&format!("{}-head", facts.name))),
        (APP_NAME, application.map_or(APPLICATION, String::as_str)),
        (CREATED_BY, COMPONENT),
    ])
}

/// Ports of the head's Ray container by name, or Ray's default ports if it has none. The metrics
/// port is always included.
pub fn head_ports(facts: &Facts<'_>) -> BTreeMap<String, i32> {
    let spec = facts.spec.head_group_spec.template.spec.as_ref();
    let ray = spec.and_then(|spec| spec.containers.first());
    let given = ray.into_iter().flat_map(|ray| ray.ports.iter().flatten());
    let mut ports: BTreeMap<_, _> = given
        .map(|port| {
            let name = port.name.clone().filter(|name| !name.is_empty());
            (name.unwrap_or_else(|| format!("{}-port", port.container_port)), port.container_port)
        })
        .collect();
    if ports.is_empty() {
        ports = [
            ("client", CLIENT_PORT),
            ("gcs-server", GCS_PORT),
            (DASHBOARD_PORT_NAME, DASHBOARD_PORT),
            (SERVE_PORT_NAME, SERVE_PORT),
        ]
        .map(|(name, port)| (name.to_owned(), port))
        .into();
    }
    ports.entry("metrics".to_owned()).or_insert(METRICS_PORT);
    ports
}

/// The head's Service. It is headless, because there is one head, unless the spec sets a type other
/// than ClusterIP or contains the Service itself.
pub fn head(facts: &Facts<'_>) -> Service {
    let group = &facts.spec.head_group_spec;
    let selector = head_labels(facts);
    let ports = head_ports(facts).into_iter().map(|(name, port)| ServicePort {
        name: Some(name),
        port,
        app_protocol: Some("tcp".to_owned()),
        ..ServicePort::default()
    });
    let of_group = Some(group.service_type.clone()).filter(|given| !given.is_empty());
    if let Some(given) = &group.head_service {
        let mut service = given.clone();
        let spec = service.spec.get_or_insert_default();
        spec.selector = Some(selector.clone());
        spec.ports.get_or_insert_default().extend(ports);
        spec.type_ = spec.type_.take().filter(|given| !given.is_empty()).or(of_group);
        let mut annotations = service.metadata.annotations.take().unwrap_or_default();
        annotations.extend(facts.spec.head_service_annotations.clone());
        let mut all = service.metadata.labels.take().unwrap_or_default();
        all.extend(selector);
        let metadata = ObjectMeta { annotations: Some(annotations), labels: Some(all), ..service.metadata };
        return Service { metadata: named(facts, facts.head_service(), metadata), spec: service.spec, status: None };
    }
    let is_headless = matches!(group.service_type.as_str(), "" | "ClusterIP");
    let spec = ServiceSpec {
        selector: Some(selector.clone()),
        ports: Some(ports.collect()),
        type_: of_group,
        cluster_ip: is_headless.then(|| "None".to_owned()),
        publish_not_ready_addresses: is_headless.then_some(true),
        ..ServiceSpec::default()
    };
    let annotations = Some(facts.spec.head_service_annotations.clone()).filter(|annotations| !annotations.is_empty());
    let metadata = ObjectMeta { labels: Some(selector), annotations, ..ObjectMeta::default() };
    Service { metadata: named(facts, facts.head_service(), metadata), spec: Some(spec), status: None }
}

fn named(facts: &Facts<'_>, name: String, metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(facts.namespace.to_owned()),
        owner_references: Some(vec![facts.owner()]),
        ..metadata
    }
}

/// True for the names of Ray Serve's ports: `serve`, and names that start with `serve-`.
fn serves(port: &str) -> bool {
    port.strip_prefix(SERVE_PORT_NAME).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The Service of Ray Serve for a RayCluster that asks for it by an annotation; `None` if the head
/// has no port of Ray Serve.
pub fn serve(facts: &Facts<'_>) -> Option<Service> {
    let ports = head_ports(facts).into_iter().filter(|(name, _)| serves(name));
    let ports: Vec<_> =
        ports.map(|(name, port)| ServicePort { name: Some(name), port, ..ServicePort::default() }).collect();
    if ports.is_empty() {
        return None;
    }
    let all =
        labels([(ORIGIN_NAME, facts.name), (ORIGIN_KIND, "RayCluster"), (SERVE, &format!("{}-serve", facts.name))]);
    let spec = ServiceSpec {
        selector: Some(labels([(CLUSTER, facts.name)])),
        ports: Some(ports),
        type_: Some(facts.spec.head_group_spec.service_type.clone()).filter(|given| !given.is_empty()),
        ..ServiceSpec::default()
    };
    let metadata = ObjectMeta { labels: Some(all), ..ObjectMeta::default() };
    let metadata = named(facts, names::serve_service(facts.name), metadata);
    Some(Service { metadata, spec: Some(spec), status: None })
}

/// The headless Service of the workers if a group has several hosts per replica. It also lists
/// hosts that are not ready yet.
pub fn headless(facts: &Facts<'_>) -> Option<Service> {
    if !facts.spec.worker_group_specs.iter().any(|group| group.hosts() > 1) {
        return None;
    }
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        type_: Some("ClusterIP".to_owned()),
        selector: Some(labels([(CLUSTER, facts.name), (NODE_TYPE, "worker")])),
        publish_not_ready_addresses: Some(true),
        ..ServiceSpec::default()
    };
    let metadata = ObjectMeta { labels: Some(labels([(HEADLESS_SERVICE, facts.name)])), ..ObjectMeta::default() };
    let metadata = named(facts, names::headless_service(facts.name), metadata);
    Some(Service { metadata, spec: Some(spec), status: None })
}
