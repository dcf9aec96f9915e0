//! Services: type, ports and a cluster IP. Clients expect a cluster IP, even in a cluster whose
//! pods have no network that serves it. The cluster has one address family, IPv4.

use std::collections::BTreeSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::names;
use berth_apimachinery::validation::{self, NameCheck};
use serde_json::{Map, Value, json};

use crate::service_ports;

use super::rules::{self, items, named, supported, text};
use super::{Context, StoredObjects, Strategy, set_default, set_default_text, spec_mut};

/// Range of cluster IPs, as in `kubeadm` clusters. The first ten addresses are reserved for the
/// system.
pub const RANGE: &str = "10.96.0.0/16";
const FAMILY_POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];

pub(crate) struct Services;

impl Strategy for Services {
    fn name_check(&self) -> NameCheck {
        names::is_dns1035_label
    }

    fn default(&self, service: &mut Value) {
        let spec = spec_mut(service);
        set_default_text(spec, "type", "ClusterIP");
        set_default_text(spec, "sessionAffinity", "None");
        if spec["type"] != "ExternalName" {
            set_default_text(spec, "internalTrafficPolicy", "Cluster");
        }
        if spec["sessionAffinity"] == "ClientIP" {
            let config = map_mut(spec.entry("sessionAffinityConfig").or_insert_with(|| json!({})));
            let client = map_mut(config.entry("clientIP").or_insert_with(|| json!({})));
            set_default(client, "timeoutSeconds", 10_800);
        }
        if spec["type"] == "LoadBalancer" {
            set_default(spec, "allocateLoadBalancerNodePorts", true);
        }
        if is_external(spec) {
            set_default_text(spec, "externalTrafficPolicy", "Cluster");
        }
        for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let number = port["port"].clone();
            let port = map_mut(port);
            set_default_text(port, "protocol", "TCP");
            if matches!(port.get("targetPort"), None | Some(Value::Null))
                || port["targetPort"] == 0
                || port["targetPort"] == ""
            {
                port.insert("targetPort".to_owned(), number);
            }
        }
    }

    fn prepare_create(&self, service: &mut Value, context: &Context<'_>) {
        map_mut(service).insert("status".to_owned(), json!({"loadBalancer": {}}));
        let spec = spec_mut(service);
        if spec.get("type").is_some_and(|kind| kind == "ExternalName") {
            return;
        }
        assign_address(spec, context.objects);
        set_families(spec);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, context: &Context<'_>) {
        service_ports::keep(new, old);
        let is_reachable = |service: &Value| service["spec"].as_object().is_some_and(is_external);
        let (had_balancer, had_policy) = (old["spec"]["type"] == "LoadBalancer", is_reachable(old));
        let (has_balancer, has_policy) = (new["spec"]["type"] == "LoadBalancer", is_reachable(new));
        let spec = spec_mut(new);
        let is_external_name = spec.get("type").is_some_and(|kind| kind == "ExternalName");
        // Fields that the new type does not have are removed if they are unchanged. Validation
        // rejects changed values.
        let mut gone: Vec<&str> = Vec::new();
        if had_balancer && !has_balancer {
            gone.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
        }
        if had_policy && !has_policy {
            gone.push("externalTrafficPolicy");
        }
        if is_external_name && old["spec"]["type"] != "ExternalName" {
            gone.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]);
        }
        for field in gone {
            if spec.get(field) == old["spec"].get(field) {
                spec.remove(field);
            }
        }
        if is_external_name {
            return;
        }
        // Addresses that the update omits are copied from the old Service.
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if spec.get(field).is_none_or(|given| given.is_null() || given == "")
                && let Some(value) = old["spec"].get(field)
            {
                spec.insert(field.to_owned(), value.clone());
            }
        }
        assign_address(spec, context.objects);
        set_families(spec);
    }

    fn validate(&self, service: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let path = Path::new("spec");
        let spec = &service["spec"];
        let kind = spec["type"].as_str().unwrap_or_default();
        if !TYPES.contains(&kind) {
            errors.push(Error::not_supported(&path.child("type"), kind, &TYPES));
        }
        let headless = spec["clusterIP"] == "None";
        let addresses = spec["clusterIPs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let listed = path.child("clusterIPs");
        let has_address =
            !addresses.is_empty() || spec["clusterIP"].as_str().is_some_and(|address| !address.is_empty());
        if kind == "ExternalName" && has_address {
            errors.push(Error::forbidden(&listed, "may not be set for ExternalName services"));
        }
        if headless && matches!(kind, "NodePort" | "LoadBalancer") {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.push(Error::invalid(&listed.index(0), "None", detail));
        }
        for (index, address) in addresses.iter().enumerate() {
            let text = address.as_str().unwrap_or_default();
            if index > 0 {
                let detail = "may not contain more than one address: the cluster has one IP family";
                errors.push(Error::invalid(&listed, spec["clusterIPs"].clone(), detail));
                break;
            }
            if text != "None" && text.parse::<std::net::IpAddr>().is_err() {
                let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff), or \"None\"";
                errors.push(Error::invalid(&listed.index(index), address.clone(), detail));
            }
            if spec["clusterIP"].as_str().is_some_and(|one| one != text) {
                errors.push(Error::invalid(&listed, spec["clusterIPs"].clone(), "first value must match `clusterIP`"));
            }
        }
        let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let list = path.child("ports");
        if ports.is_empty() && !headless && kind != "ExternalName" {
            errors.push(Error::required(&list, ""));
        }
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for (index, port) in ports.iter().enumerate() {
            let at = list.index(index);
            let name = port["name"].as_str().unwrap_or_default();
            if name.is_empty() {
                if ports.len() > 1 {
                    errors.push(Error::required(&at.child("name"), ""));
                }
            } else {
                for message in names::is_dns1123_label(name) {
                    errors.push(Error::invalid(&at.child("name"), name, message));
                }
                if !seen.insert(name) {
                    errors.push(Error::duplicate(&at.child("name"), name));
                }
            }
            let number = port["port"].as_i64().unwrap_or(0);
            for message in names::is_port_number(number) {
                errors.push(Error::invalid(&at.child("port"), number, message));
            }
        }
        if kind == "ExternalName" && spec["externalName"].as_str().unwrap_or_default().is_empty() {
            errors.push(Error::required(&path.child("externalName"), ""));
        }
        check_ports(ports, &list, kind, &mut errors);
        check_traffic(service, &path, &mut errors);
        check_node_ports(service, &path, &mut errors);
        check_families(spec, &path, &mut errors);
        errors
    }

    fn warnings(&self, service: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings(&service["spec"])
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        let class = |service: &Value| service["spec"]["loadBalancerClass"].clone();
        let is_balancer = |service: &Value| service["spec"]["type"] == "LoadBalancer";
        if is_balancer(old) && is_balancer(new) && class(new) != class(old) {
            let path = Path::new("spec.loadBalancerClass");
            errors.push(Error::invalid(&path, class(new), "may not change once set"));
        }
        let kept = old["spec"]["type"] != "ExternalName" && new["spec"]["type"] != "ExternalName";
        if kept && !old["spec"]["clusterIP"].is_null() && new["spec"]["clusterIP"] != old["spec"]["clusterIP"] {
            let path = Path::new("spec.clusterIPs");
            let detail = "may not change once set";
            errors.push(Error::invalid(&path.index(0), new["spec"]["clusterIP"].clone(), detail));
        }
        let both_check = service_ports::needs_health_check(old) && service_ports::needs_health_check(new);
        let had = service_ports::health_check(old).filter(|_| both_check);
        if had.is_some() && service_ports::health_check(new) != had {
            let path = Path::new("spec");
            errors.push(Error::forbidden(&path.child("healthCheckNodePort"), "field is immutable"));
        }
        errors
    }
}

const AFFINITIES: [&str; 2] = ["ClientIP", "None"];
/// Maximum duration of session affinity, in seconds: a day.
const AFFINITY_SECONDS_MAX: i64 = 86_400;
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];

/// Warnings about deprecated or ineffective fields.
fn warnings(spec: &Value) -> Vec<String> {
    let mut warnings = Vec::new();
    let is_headless = spec["clusterIP"] == "None";
    if is_headless && !text(spec, "loadBalancerIP").is_empty() {
        warnings.push("spec.loadBalancerIP is ignored when spec.clusterIP is \"None\"".to_owned());
    }
    if !items(&spec["externalIPs"]).is_empty() {
        warnings.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned());
    }
    if spec["type"] != "ExternalName" && !text(spec, "externalName").is_empty() {
        warnings.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if spec["trafficDistribution"] == "PreferClose" {
        warnings.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned());
    }
    warnings
}

/// Validates the ports: protocol, target port and application protocol of each, and that protocol
/// and number are unique.
fn check_ports(ports: &[Value], path: &Path<'_>, kind: &str, errors: &mut Vec<Error>) {
    let mut seen: BTreeSet<(&str, i64)> = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = path.index(index);
        supported(port, "protocol", &["SCTP", "TCP", "UDP"], &at, errors);
        if kind != "ExternalName" || !port["targetPort"].is_null() {
            rules::port(&port["targetPort"], &at.child("targetPort"), errors);
        }
        if let Some(protocol) = port["appProtocol"].as_str() {
            named(protocol, names::is_qualified_name, &at.child("appProtocol"), errors);
        }
        let number = port["port"].as_i64().unwrap_or_default();
        if !seen.insert((text(port, "protocol"), number)) {
            errors.push(Error::duplicate(&at, json!({"protocol": port["protocol"], "port": number})));
        }
    }
}

/// Validates the selector, session affinity, external addresses, internal traffic policy and load
/// balancer fields.
fn check_traffic(service: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let spec = &service["spec"];
    let is_balancer = spec["type"] == "LoadBalancer";
    errors.extend(validation::validate_labels(&spec["selector"], &path.child("selector")));
    supported(spec, "sessionAffinity", &AFFINITIES, path, errors);
    if spec["sessionAffinity"] == "ClientIP" {
        let client = path.child("sessionAffinityConfig");
        let client = client.child("clientIP");
        let seconds = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].as_i64().unwrap_or_default();
        if !(1..=AFFINITY_SECONDS_MAX).contains(&seconds) {
            let detail = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
            errors.push(Error::invalid(&client.child("timeoutSeconds"), seconds, detail));
        }
    }
    let outside = path.child("externalIPs");
    for (index, address) in items(&spec["externalIPs"]).iter().enumerate() {
        let (address, at) = (address.as_str().unwrap_or_default(), outside.index(index));
        named(address, names::is_ip, &at, errors);
    }
    if spec["type"] != "ExternalName" {
        supported(spec, "internalTrafficPolicy", &["Cluster", "Local"], path, errors);
    }
    supported(spec, "trafficDistribution", &DISTRIBUTIONS, path, errors);
    let ranges = items(&spec["loadBalancerSourceRanges"]);
    // Upstream's error path has a capital letter here.
    let list = path.child("LoadBalancerSourceRanges");
    if !ranges.is_empty() && !is_balancer {
        errors.push(Error::forbidden(&list, "may only be used when `type` is 'LoadBalancer'"));
    }
    for (index, range) in ranges.iter().enumerate().filter(|_| is_balancer) {
        let (range, at) = (range.as_str().unwrap_or_default(), list.index(index));
        named(range.trim(), names::is_cidr, &at, errors);
    }
    if let Some(class) = spec["loadBalancerClass"].as_str() {
        let at = path.child("loadBalancerClass");
        if is_balancer {
            named(class, names::is_qualified_name, &at, errors);
        } else {
            errors.push(Error::forbidden(&at, "may only be used when `type` is 'LoadBalancer'"));
        }
    }
}

/// True if a Service is reachable from outside the cluster, so that it has an external traffic
/// policy.
fn is_external(spec: &Map<String, Value>) -> bool {
    match spec.get("type").and_then(Value::as_str) {
        Some("NodePort" | "LoadBalancer") => true,
        Some("ClusterIP") => {
            spec.get("externalIPs").and_then(Value::as_array).is_some_and(|addresses| !addresses.is_empty())
        }
        _ => false,
    }
}

/// Validates the fields of Services that are reachable from outside.
fn check_node_ports(service: &Value, path: &Path, errors: &mut Vec<Error>) {
    let spec = &service["spec"];
    let kind = spec["type"].as_str().unwrap_or_default();
    let mut seen: BTreeSet<(&str, i64)> = BTreeSet::new();
    let list = path.child("ports");
    for (index, port) in spec["ports"].as_array().into_iter().flatten().enumerate() {
        let port_path = list.index(index);
        let at = port_path.child("nodePort");
        let Some(node_port) = port["nodePort"].as_i64().filter(|it| *it != 0) else { continue };
        if kind == "ClusterIP" {
            errors.push(Error::forbidden(&at, "may not be used when `type` is 'ClusterIP'"));
        } else if !seen.insert((port["protocol"].as_str().unwrap_or_default(), node_port)) {
            errors.push(Error::duplicate(&at, node_port));
        }
    }
    let policy = &spec["externalTrafficPolicy"];
    let at = path.child("externalTrafficPolicy");
    match policy.as_str() {
        None | Some("") => {}
        Some(_) if !spec.as_object().is_some_and(is_external) => {
            let detail = "may only be set for externally-accessible services";
            errors.push(Error::invalid(&at, policy.clone(), detail));
        }
        Some("Cluster" | "Local") => {}
        Some(other) => errors.push(Error::not_supported(&at, other, &["Cluster", "Local"])),
    }
    if !spec["allocateLoadBalancerNodePorts"].is_null() && kind != "LoadBalancer" {
        let at = path.child("allocateLoadBalancerNodePorts");
        errors.push(Error::forbidden(&at, "may only be used when `type` is 'LoadBalancer'"));
    }
    let check = spec["healthCheckNodePort"].as_i64().unwrap_or(0);
    if check != 0 && !service_ports::needs_health_check(service) {
        let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.push(Error::invalid(&path.child("healthCheckNodePort"), check, detail));
    }
}

/// True if the Service is headless and has no selector. The server assigns it neither cluster IPs
/// nor endpoints, so the client may use either address family for it.
fn is_without_addresses(spec: &Map<String, Value>) -> bool {
    let is_set = |field: &str| spec.get(field).and_then(Value::as_object).is_some_and(|map| !map.is_empty());
    spec.get("clusterIP").is_some_and(|address| address == "None") && !is_set("selector")
}

/// Sets the defaults of the address families of a Service.
fn set_families(spec: &mut Map<String, Value>) {
    let both = is_without_addresses(spec);
    set_default_text(spec, "ipFamilyPolicy", if both { "RequireDualStack" } else { "SingleStack" });
    if spec.get("ipFamilies").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("ipFamilies".to_owned(), json!(["IPv4"]));
    }
    if both
        && spec["ipFamilyPolicy"] != "SingleStack"
        && let Some([only]) = spec["ipFamilies"].as_array().map(Vec::as_slice)
    {
        let other = if only == "IPv6" { "IPv4" } else { "IPv6" };
        spec["ipFamilies"] = json!([only, other]);
    }
}

fn check_families(spec: &Value, path: &Path, errors: &mut Vec<Error>) {
    let (policy, families) = (path.child("ipFamilyPolicy"), path.child("ipFamilies"));
    let given = spec["ipFamilies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let given_policy = spec["ipFamilyPolicy"].as_str().unwrap_or_default();
    if spec["type"] == "ExternalName" {
        for (at, is_set) in [(&families, !given.is_empty()), (&policy, !given_policy.is_empty())] {
            if is_set {
                errors.push(Error::forbidden(at, "may not be set for ExternalName services"));
            }
        }
        return;
    }
    let before = errors.len();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    if !given_policy.is_empty() && !FAMILY_POLICIES.contains(&given_policy) {
        errors.push(Error::not_supported(&policy, given_policy, &FAMILY_POLICIES));
    }
    for (index, family) in given.iter().enumerate() {
        let (at, text) = (families.index(index), family.as_str().unwrap_or_default());
        if !matches!(text, "IPv4" | "IPv6") {
            errors.push(Error::not_supported(&at, text, &["IPv4", "IPv6"]));
        } else if !seen.insert(text) {
            errors.push(Error::duplicate(&at, family.clone()));
        }
    }
    if errors.len() > before {
        return;
    }
    if given.len() > 1 && given_policy == "SingleStack" {
        let detail = "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified";
        errors.push(Error::invalid(&policy, given_policy, detail));
        return;
    }
    if spec.as_object().is_some_and(is_without_addresses) {
        return;
    }
    for (index, _) in given.iter().enumerate().filter(|(_, family)| *family == "IPv6") {
        errors.push(Error::invalid(&families.index(index), "IPv6", "not configured on this cluster"));
    }
    if given_policy == "RequireDualStack" {
        let detail = "this cluster is not configured for dual-stack services";
        errors.push(Error::invalid(&policy, given_policy, detail));
    }
}

/// Assigns a cluster IP to a Service without one.
fn assign_address(spec: &mut Map<String, Value>, objects: &dyn StoredObjects) {
    if spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default().is_empty() {
        let listed = spec.get("clusterIPs").and_then(|list| list.get(0)).cloned();
        spec.insert("clusterIP".to_owned(), listed.unwrap_or_else(|| free_address(objects).into()));
    }
    let address = spec["clusterIP"].clone();
    set_default(spec, "clusterIPs", json!([address]));
}

/// The first free address of [`RANGE`].
pub fn free_address(objects: &dyn StoredObjects) -> String {
    let addresses = objects.list("networking.k8s.io", "ipaddresses", None);
    let services = objects.list("", "services", None);
    let mut taken: BTreeSet<&str> = services.iter().filter_map(|it| it["spec"]["clusterIP"].as_str()).collect();
    taken.extend(addresses.iter().map(|address| meta::name(address)));
    (11..65_534u32)
        .map(|number| format!("10.96.{}.{}", number >> 8, number & 0xff))
        .find(|address| !taken.contains(address.as_str()))
        .unwrap_or_else(|| "None".to_owned())
}
