//! Resolves a Service to addresses from stored objects: its ExternalName, or the addresses of its
//! EndpointSlices or Endpoints. Its cluster IP is not used, as this network would not forward it.

use serde_json::Value;

use crate::Objects;

/// Why a Service cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreachable {
    #[error("service \"{0}\" not found")]
    NoService(String),
    #[error("no service port {port} found for service \"{name}\"")]
    NoPort { name: String, port: i64 },
    #[error("no endpoints available for service \"{0}\"")]
    NoEndpoints(String),
    #[error("{0} is not a port")]
    NotAPort(i64),
}

/// The host name that the server's certificate must have.
pub(crate) fn server_name(namespace: &str, name: &str) -> String {
    format!("{name}.{namespace}.svc")
}

/// Host and port behind a Service's port.
pub(crate) fn address(objects: &Objects, namespace: &str, name: &str, port: i64) -> Result<(String, u16), Unreachable> {
    let service = objects.get("", "services", namespace, name);
    let service = service.ok_or_else(|| Unreachable::NoService(name.to_owned()))?;
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        let host = spec["externalName"].as_str().unwrap_or_default();
        return Ok((host.to_owned(), number(port)?));
    }
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let served = ports.iter().find(|served| served["port"].as_i64() == Some(port));
    let served = served.ok_or_else(|| Unreachable::NoPort { name: name.to_owned(), port })?;
    let port_name = served["name"].as_str().unwrap_or_default();
    if let Some(found) = slice_address(objects, namespace, name, port_name) {
        return found;
    }
    let endpoints = objects.get("", "endpoints", namespace, name);
    let subsets = endpoints.as_ref().and_then(|it| it["subsets"].as_array()).into_iter().flatten();
    for subset in subsets {
        let address = subset["addresses"][0]["ip"].as_str();
        let target = subset["ports"].as_array().into_iter().flatten();
        let target = target.into_iter().find(|it| it["name"].as_str().unwrap_or_default() == port_name);
        if let (Some(address), Some(target)) = (address, target.and_then(|it| it["port"].as_i64())) {
            return Ok((address.to_owned(), number(target)?));
        }
    }
    Err(Unreachable::NoEndpoints(name.to_owned()))
}

fn number(port: i64) -> Result<u16, Unreachable> {
    u16::try_from(port).map_err(|_| Unreachable::NotAPort(port))
}

fn slice_address(
    objects: &Objects,
    namespace: &str,
    name: &str,
    port: &str,
) -> Option<Result<(String, u16), Unreachable>> {
    let label = "kubernetes.io/service-name";
    for slice in objects.list("discovery.k8s.io", "endpointslices", Some(namespace)) {
        if berth_apimachinery::meta::label(&slice, label) != Some(name) {
            continue;
        }
        let ports = slice["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(target) = ports.iter().find(|it| it["name"].as_str().unwrap_or_default() == port) else { continue };
        let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
        let endpoint = slice["endpoints"].as_array().into_iter().flatten().find(ready);
        if let (Some(address), Some(port)) =
            (endpoint.and_then(|it| it["addresses"][0].as_str()), target["port"].as_i64())
        {
            return Some(number(port).map(|port| (address.to_owned(), port)));
        }
    }
    None
}
