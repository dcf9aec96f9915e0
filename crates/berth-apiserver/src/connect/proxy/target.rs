//! Finds the pod and port for a proxied request.

use std::net::IpAddr;
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::percent::decode_component;
use berth_apimachinery::status::Status;
use serde_json::Value;

/// Protocol between the server and a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

/// The name in a request's path: `name`, `name:port` or `scheme:name:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) scheme: Scheme,
    pub(super) name: String,
    /// Number or name of the port; empty for the default.
    pub(super) port: String,
}

impl Backend {
    /// Parses a name from a path; `None` if it has another form.
    pub(super) fn parse(text: &str) -> Option<Backend> {
        // Clients may escape the colons.
        let text = decode_component(&text.replace('+', "%2B"));
        let (scheme, name, port) = match *text.split(':').collect::<Vec<_>>() {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        let scheme = match scheme {
            "" | "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        (!name.is_empty()).then(|| Backend { scheme, name: name.to_owned(), port: port.to_owned() })
    }

    fn default_port(&self) -> u16 {
        if self.scheme == Scheme::Https { 443 } else { 80 }
    }
}

/// The address of a server behind a pod or service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: String,
    pub(super) port: u16,
    /// Name of the pod with this address; `None` if the endpoint is not a pod.
    pub(super) pod: Option<String>,
}

impl Endpoint {
    /// Host and port, as in a URL.
    pub(super) fn authority(&self) -> String {
        if self.address.contains(':') {
            return format!("[{}]:{}", self.address, self.port);
        }
        format!("{}:{}", self.address, self.port)
    }

    /// The address of an endpoint that is not a pod.
    ///
    /// # Errors
    /// 400 for an invalid address, and for a loopback, unspecified, link-local, multicast or
    /// IPv4-mapped address: users with permission to write endpoints must not reach services of
    /// this machine through the proxy.
    pub(super) fn outside_address(&self) -> Result<IpAddr, Status> {
        let address: IpAddr =
            self.address.parse().map_err(|_| Status::bad_request(format!("{:?} is not an address", self.address)))?;
        let is_local = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local() || address.to_ipv4_mapped().is_some(),
        };
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() || is_local {
            return Err(Status::bad_request("address not allowed"));
        }
        Ok(address)
    }
}

fn number(port: i64) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

/// The port of a pod: by number, by the name of a container's port, or the first one.
pub(super) fn pod_port(pod: &Value, backend: &Backend) -> Result<u16, Status> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    let found = match backend.port.as_str() {
        "" => {
            let first = ports.next().and_then(|port| port["containerPort"].as_i64());
            return Ok(first.and_then(number).unwrap_or(backend.default_port()));
        }
        text => match text.parse() {
            Ok(port) => Some(port),
            Err(_) => ports.find(|port| port["name"] == text).and_then(|port| port["containerPort"].as_i64()),
        },
    };
    found.and_then(number).ok_or_else(|| {
        Status::bad_request(format!(
            "pod {:?} has no port {:?}: use a number or the name of a container's port",
            backend.name, backend.port
        ))
    })
}

pub(super) fn no_endpoints(service: &str) -> Status {
    Status::service_unavailable(format!("no endpoints available for service {service:?}"))
}

/// The ready endpoints of a service's port, from its EndpointSlices.
///
/// # Errors
/// 503 if the service has no such port, or no endpoint is ready.
pub(super) fn service_endpoints(
    service: &Value,
    slices: &[Arc<Value>],
    backend: &Backend,
) -> Result<Vec<Endpoint>, Status> {
    let ports = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name_of = |port: &Value| port["name"].as_str().unwrap_or_default().to_owned();
    let wanted = match (backend.port.as_str(), ports) {
        // A single port needs no name in the request.
        ("", [only]) => Some(name_of(only)),
        (wanted, ports) => {
            let is_wanted = |port: &&Value| {
                name_of(port) == wanted || port["port"].as_u64().is_some_and(|number| number.to_string() == wanted)
            };
            ports.iter().find(is_wanted).map(name_of)
        }
    };
    let name = meta::name(service);
    let wanted = wanted.ok_or_else(|| {
        Status::service_unavailable(format!("no service port {:?} found for service {name:?}", backend.port))
    })?;
    let endpoints: Vec<Endpoint> = slices.iter().flat_map(|slice| of_slice(slice, &wanted)).collect();
    if endpoints.is_empty() { Err(no_endpoints(name)) } else { Ok(endpoints) }
}

/// The ready endpoints of a slice.
fn of_slice(slice: &Value, port: &str) -> Vec<Endpoint> {
    let mut ports = slice["ports"].as_array().into_iter().flatten();
    let port = ports.find(|it| it["name"].as_str().unwrap_or_default() == port).and_then(|it| it["port"].as_i64());
    let Some(port) = port.and_then(number) else { return Vec::new() };
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .filter_map(|endpoint| {
            let target = &endpoint["targetRef"];
            Some(Endpoint {
                address: endpoint["addresses"][0].as_str()?.to_owned(),
                port,
                pod: target["name"].as_str().filter(|_| target["kind"] == "Pod").map(str::to_owned),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn backend(text: &str) -> Backend {
        Backend::parse(text).expect("a backend")
    }

    #[test]
    fn a_name_may_have_a_scheme_and_a_port() {
        let of =
            |scheme, name: &str, port: &str| Some(Backend { scheme, name: name.to_owned(), port: port.to_owned() });
        assert_eq!(Backend::parse("p"), of(Scheme::Http, "p", ""));
        assert_eq!(Backend::parse("p:80"), of(Scheme::Http, "p", "80"));
        assert_eq!(Backend::parse("https%3Ap%3Aweb"), of(Scheme::Https, "p", "web"));
        assert_eq!(Backend::parse(":p:"), of(Scheme::Http, "p", ""));
        for wrong in ["", "ftp:p:21", "a:b:c:d", "http::80"] {
            assert_eq!(Backend::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_pods_port_is_a_number_a_name_or_the_first_one() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "a", "ports": [{"containerPort": 8080}, {"name": "web", "containerPort": 9090}]},
        ]}});
        let port = |text: &str| pod_port(&pod, &backend(text)).map_err(|error| error.code);
        assert_eq!([port("p"), port("p:web"), port("p:7")], [Ok(8080), Ok(9090), Ok(7)]);
        assert_eq!([port("p:other"), port("p:0"), port("p:70000")], [Err(400); 3]);
        assert_eq!(pod_port(&json!({}), &backend("https:p:")), Ok(443));
    }

    #[test]
    fn a_services_port_leads_to_ready_endpoints() {
        let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [
            {"name": "web", "port": 80}, {"name": "admin", "port": 81},
        ]}});
        let slice = Arc::new(json!({
            "ports": [{"name": "web", "port": 8080}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": "p1"}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}, "targetRef": {"kind": "Pod", "name": "p2"}},
                {"addresses": ["192.0.2.7"]},
            ],
        }));
        let of = |port: &str| service_endpoints(&service, std::slice::from_ref(&slice), &backend(port));
        let first = Endpoint { address: "10.0.0.1".to_owned(), port: 8080, pod: Some("p1".to_owned()) };
        let last = Endpoint { address: "192.0.2.7".to_owned(), port: 8080, pod: None };
        assert_eq!(of("s:web"), Ok(vec![first.clone(), last.clone()]));
        assert_eq!(of("s:80"), Ok(vec![first, last]));
        let message = |port: &str| of(port).unwrap_err().message;
        assert_eq!(message("s:admin"), "no endpoints available for service \"s\"");
        assert_eq!(message("s"), "no service port \"\" found for service \"s\"");
    }

    #[test]
    fn endpoints_that_are_no_pods_cannot_be_on_this_machine() {
        let allowed =
            |address: &str| Endpoint { address: address.to_owned(), port: 80, pod: None }.outside_address().is_ok();
        assert!(allowed("192.0.2.7") && allowed("2001:db8::1"));
        for address in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "::ffff:127.0.0.1", "name"] {
            assert!(!allowed(address), "{address}");
        }
    }
}
