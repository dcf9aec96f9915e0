//! Environment variables that describe the Services of a pod's namespace.

use std::net::{Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

use super::Context;
use crate::kubelet::options::ServiceAddresses;

/// Namespace and name of the Service whose variables every pod gets.
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
    services.iter().flat_map(|service| of_service(service, context.services)).collect()
}

fn of_service(service: &Service, addresses: &dyn ServiceAddresses) -> Vec<(String, String)> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let address = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None");
    let (Some(address), Some(ports)) = (address, &spec.ports) else { return Vec::new() };
    let served = |port: i32| served(service, address, port, addresses);
    let Some(first) = ports.first() else { return Vec::new() };
    let prefix = upper(&service.name_any());
    let (host, number) = served(first.port);
    let mut list =
        vec![(format!("{prefix}_SERVICE_HOST"), host), (format!("{prefix}_SERVICE_PORT"), number.to_string())];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            list.push((format!("{prefix}_SERVICE_PORT_{}", upper(name)), served(port.port).1.to_string()));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let (address, number) = served(port.port);
        let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
        let url = format!("{}://{host}:{number}", protocol.to_lowercase());
        if index == 0 {
            list.push((format!("{prefix}_PORT"), url.clone()));
        }
        let prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        list.push((prefix.clone(), url));
        list.push((format!("{prefix}_PROTO"), protocol.to_lowercase()));
        list.push((format!("{prefix}_PORT"), number.to_string()));
        list.push((format!("{prefix}_ADDR"), address));
    }
    list
}

/// The address and port at which pods reach a port of a Service.
fn served(service: &Service, cluster_ip: &str, port: i32, addresses: &dyn ServiceAddresses) -> (String, i32) {
    let (Ok(address), Ok(number)) = (cluster_ip.parse::<Ipv4Addr>(), u16::try_from(port)) else {
        return (cluster_ip.to_owned(), port);
    };
    if (service.namespace().as_deref(), service.name_any().as_str()) == (Some(API_SERVICE.0), API_SERVICE.1) {
        let served = addresses.api_server(SocketAddr::new(address.into(), number));
        return (served.ip().to_string(), served.port().into());
    }
    (addresses.service(address).to_string(), port)
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}
