//! Printers of Services, endpoints and ingresses.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{NONE, UNKNOWN, UNSET, age, items, joined, labels, number, selector, text, text_or};
use super::{AGE, Printer, printer};

const S: &str = "string";
/// Number of endpoints that are shown before `+ n more...`.
const ENDPOINTS_SHOWN: usize = 3;

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "",
        "Service",
        &[("Type", S, 0), ("Cluster-IP", S, 0), ("External-IP", S, 0), ("Port(s)", S, 0), AGE, ("Selector", S, 1)],
        service,
    ),
    printer("", "Endpoints", &[("Endpoints", S, 0), AGE], endpoints),
    printer(
        "discovery.k8s.io",
        "EndpointSlice",
        &[("AddressType", S, 0), ("Ports", S, 0), ("Endpoints", S, 0), AGE],
        endpoint_slice,
    ),
    printer(
        "networking.k8s.io",
        "Ingress",
        &[("Class", S, 0), ("Hosts", S, 0), ("Address", S, 0), ("Ports", S, 0), AGE],
        ingress,
    ),
    printer("networking.k8s.io", "IngressClass", &[("Controller", S, 0), ("Parameters", S, 0), AGE], ingress_class),
    printer("networking.k8s.io", "NetworkPolicy", &[("Pod-Selector", S, 0), AGE], |object, now| {
        vec![selector(object.pointer("/spec/podSelector")).into(), age(object, now)]
    }),
    printer("networking.k8s.io", "IPAddress", &[("ParentRef", S, 0), AGE], |object, now| {
        vec![parent(object).into(), age(object, now)]
    }),
    printer("networking.k8s.io", "ServiceCIDR", &[("CIDRs", S, 0), AGE], |object, now| {
        let cidrs: Vec<&str> = items(object, "/spec/cidrs").filter_map(Value::as_str).collect();
        vec![cidrs.join(",").into(), age(object, now)]
    }),
];

/// The parent of an IPAddress, such as `services/default/kubernetes`.
fn parent(object: &Value) -> String {
    let at = |field: &str| text(object, &format!("/spec/parentRef/{field}")).to_owned();
    if at("resource").is_empty() {
        return NONE.to_owned();
    }
    let group = at("group");
    let resource = if group.is_empty() { at("resource") } else { format!("{}.{group}", at("resource")) };
    let parts = [resource.to_lowercase(), at("namespace"), at("name")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    let kind = text_or(object, "/spec/type", "ClusterIP");
    let external: Vec<String> =
        items(object, "/spec/externalIPs").filter_map(Value::as_str).map(str::to_owned).collect();
    let shown = match kind {
        "LoadBalancer" => {
            let assigned = addresses(object).into_iter().chain(external).collect::<Vec<_>>();
            if assigned.is_empty() { "<pending>".to_owned() } else { assigned.join(",") }
        }
        "ExternalName" => text(object, "/spec/externalName").to_owned(),
        _ => joined(external, ","),
    };
    let ports = items(object, "/spec/ports").map(|port| {
        let (number, protocol) = (number(port, "/port"), text_or(port, "/protocol", "TCP"));
        match super::cells::number(port, "/nodePort") {
            0 => format!("{number}/{protocol}"),
            node => format!("{number}:{node}/{protocol}"),
        }
    });
    vec![
        kind.into(),
        text_or(object, "/spec/clusterIP", NONE).into(),
        shown.into(),
        joined(ports, ",").into(),
        age(object, now),
        labels(object.pointer("/spec/selector")).into(),
    ]
}

fn addresses(object: &Value) -> Vec<String> {
    let points = items(object, "/status/loadBalancer/ingress");
    points.map(|it| text_or(it, "/ip", text(it, "/hostname")).to_owned()).filter(|it| !it.is_empty()).collect()
}

fn some(all: Vec<String>) -> String {
    let more = all.len().saturating_sub(ENDPOINTS_SHOWN);
    let shown = joined(all.into_iter().take(ENDPOINTS_SHOWN), ",");
    if more > 0 { format!("{shown} + {more} more...") } else { shown }
}

fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in items(object, "/subsets") {
        let ports: Vec<i64> = items(subset, "/ports").map(|port| number(port, "/port")).collect();
        for address in items(subset, "/addresses").map(|address| text(address, "/ip")) {
            if ports.is_empty() {
                all.push(address.to_owned());
            }
            all.extend(ports.iter().map(|port| format!("{address}:{port}")));
        }
    }
    vec![some(all).into(), age(object, now)]
}

fn endpoint_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let ports: Vec<String> = items(object, "/ports")
        .map(|port| match number(port, "/port") {
            0 => "*".to_owned(),
            number => number.to_string(),
        })
        .collect();
    let addresses: Vec<String> = items(object, "/endpoints")
        .flat_map(|endpoint| items(endpoint, "/addresses"))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    let unset = |list: Vec<String>| if list.is_empty() { UNSET.to_owned() } else { some(list) };
    vec![text(object, "/addressType").into(), unset(ports).into(), unset(addresses).into(), age(object, now)]
}

fn ingress(object: &Value, now: Timestamp) -> Vec<Value> {
    let hosts: Vec<String> = items(object, "/spec/rules")
        .map(|it| text(it, "/host"))
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect();
    let hosts = if hosts.is_empty() { "*".to_owned() } else { some(hosts) };
    let ports = if super::cells::count(object, "/spec/tls") > 0 { "80, 443" } else { "80" };
    vec![
        text_or(object, "/spec/ingressClassName", NONE).into(),
        hosts.into(),
        addresses(object).join(",").into(),
        ports.into(),
        age(object, now),
    ]
}

fn ingress_class(object: &Value, now: Timestamp) -> Vec<Value> {
    let parameters = match text(object, "/spec/parameters/kind") {
        "" => NONE.to_owned(),
        kind => {
            let group = text(object, "/spec/parameters/apiGroup");
            let kind = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
            format!("{kind}/{}", text_or(object, "/spec/parameters/name", UNKNOWN))
        }
    };
    vec![text(object, "/spec/controller").into(), parameters.into(), age(object, now)]
}
