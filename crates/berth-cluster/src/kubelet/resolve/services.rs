//! Variables that describe the services of a pod's namespace.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::Context;

/// Namespace and name of the service that every pod gets variables of.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

/// The service variables of a pod, in the order of services.
///
/// Source: Kubernetes documentation, "Discovering services"; Docker's legacy container links.
pub fn variables(context: &Context<'_>) -> Vec<(String, String)> {
    let has_links = context.pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let (api_namespace, api_name) = API_SERVICE;
    let mut services = context.objects.services.list_namespace(context.namespace());
    services.retain(|_| has_links);
    if !services.iter().any(|service| service.name_any() == api_name) {
        let key = berth_runtime::ObjectKey::namespaced(api_namespace, api_name);
        services.extend(context.objects.services.get(&key));
    }
    services.iter().flat_map(|service| of_service(service)).collect()
}

fn of_service(service: &Service) -> Vec<(String, String)> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let address = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None");
    let (Some(address), Some(ports)) = (address, &spec.ports) else { return Vec::new() };
    let Some(first) = ports.first() else { return Vec::new() };
    let prefix = upper(&service.name_any());
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let mut list = vec![
        (format!("{prefix}_SERVICE_HOST"), address.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            list.push((format!("{prefix}_SERVICE_PORT_{}", upper(name)), port.port.to_string()));
        }
    }
    for (number, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
        if number == 0 {
            list.push((format!("{prefix}_PORT"), url.clone()));
        }
        let prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        list.push((prefix.clone(), url));
        list.push((format!("{prefix}_PROTO"), protocol.to_lowercase()));
        list.push((format!("{prefix}_PORT"), port.port.to_string()));
        list.push((format!("{prefix}_ADDR"), address.to_owned()));
    }
    list
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}
