//! The Ingress of a cluster's dashboard.

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule, IngressServiceBackend, IngressSpec,
    IngressTLS, ServiceBackendPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::facts::Facts;
use super::services;
use crate::ray::constants::{
    APP_NAME, APPLICATION, CLUSTER, COMPONENT, CREATED_BY, DASHBOARD_PORT, DASHBOARD_PORT_NAME, IDENTIFIER,
};
use crate::ray::names;

/// Annotation of a RayCluster: class of the Ingress.
const CLASS: &str = "kubernetes.io/ingress.class";

/// The Ingress, if the spec asks for it. It has the annotations of the cluster, except the class,
/// which is set as `ingressClassName`.
pub fn dashboard(facts: &Facts<'_>) -> Option<Ingress> {
    let group = &facts.spec.head_group_spec;
    if group.enable_ingress != Some(true) {
        return None;
    }
    let options = group.ingress_options.clone().unwrap_or_default();
    let port = services::head_ports(facts).get(DASHBOARD_PORT_NAME).copied().unwrap_or(DASHBOARD_PORT);
    let backend = IngressBackend {
        service: Some(IngressServiceBackend {
            name: facts.head_service(),
            port: Some(ServiceBackendPort { number: Some(port), name: None }),
        }),
        resource: None,
    };
    let path = HTTPIngressPath {
        path: Some(options.path.unwrap_or_else(|| "/".to_owned())),
        path_type: options.path_type.unwrap_or_else(|| "Prefix".to_owned()),
        backend,
    };
    let rule = IngressRule { host: options.host, http: Some(HTTPIngressRuleValue { paths: vec![path] }) };
    let mut annotations = facts.annotations.clone();
    let class = annotations.remove(CLASS);
    let identifier = names::checked_label(&format!("{}-head", facts.name));
    let labels =
        [(CLUSTER, facts.name), (IDENTIFIER, identifier.as_str()), (APP_NAME, APPLICATION), (CREATED_BY, COMPONENT)];
    Some(Ingress {
        metadata: ObjectMeta {
            name: Some(names::checked(&format!("{}-head-ingress", facts.name))),
            namespace: Some(facts.namespace.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: Some(annotations),
            owner_references: Some(vec![facts.owner()]),
            ..ObjectMeta::default()
        },
        spec: Some(IngressSpec {
            ingress_class_name: class,
            rules: Some(vec![rule]),
            tls: options.tls.filter(|tls: &Vec<IngressTLS>| !tls.is_empty()),
            ..IngressSpec::default()
        }),
        status: None,
    })
}
