//! Ingresses, IngressClasses and NetworkPolicies: defaults and validation.

use std::net::IpAddr;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::map_mut;
use berth_apimachinery::{names, selector};
use serde_json::{Value, json};

use super::rules::{items, named, port_number, required, supported, text};
use super::{Context, Strategy, immutable, set_default, spec_mut};

fn list_mut<'a>(list: Option<&'a mut Value>) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

pub(crate) struct Policies;

impl Strategy for Policies {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, policy: &mut Value) {
        let spec = spec_mut(policy);
        for direction in ["ingress", "egress"] {
            for rule in list_mut(spec.get_mut(direction)) {
                for port in list_mut(rule.get_mut("ports")) {
                    set_default(map_mut(port), "protocol", "TCP");
                }
            }
        }
        let has_egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        if spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            spec.insert("policyTypes".to_owned(), types);
        }
    }

    fn validate(&self, policy: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (path, spec) = (Path::new("spec"), &policy["spec"]);
        errors.extend(selector::validate_object(&spec["podSelector"], &path.child("podSelector")));
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            let list = path.child(direction);
            for (index, rule) in items(&spec[direction]).iter().enumerate() {
                let at = list.index(index);
                let ports = at.child("ports");
                for (index, port) in items(&rule["ports"]).iter().enumerate() {
                    check_policy_port(port, &ports.index(index), &mut errors);
                }
                let list = at.child(peers);
                for (index, peer) in items(&rule[peers]).iter().enumerate() {
                    check_peer(peer, &list.index(index), &mut errors);
                }
            }
        }
        let (types, at) = (items(&spec["policyTypes"]), path.child("policyTypes"));
        if types.len() > DIRECTIONS.len() {
            let detail = "may not specify more than two policyTypes";
            errors.push(Error::invalid(&at, spec["policyTypes"].clone(), detail));
            return errors;
        }
        for (index, direction) in types.iter().enumerate() {
            let direction = direction.as_str().unwrap_or_default();
            if !DIRECTIONS.contains(&direction) {
                errors.push(Error::not_supported(&at.index(index), direction, &DIRECTIONS));
            }
        }
        errors
    }
}

/// Policy types: directions of traffic.
const DIRECTIONS: [&str; 2] = ["Ingress", "Egress"];

/// Validates a port of a rule of a NetworkPolicy.
fn check_policy_port(port: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    supported(port, "protocol", &["TCP", "UDP", "SCTP"], path, errors);
    let (start, at, end_at) = (&port["port"], path.child("port"), path.child("endPort"));
    let end = port["endPort"].as_i64();
    match start {
        Value::Null => {
            if let Some(end) = end {
                let detail = "may not be specified when `port` is not specified";
                errors.push(Error::invalid(&end_at, end, detail));
            }
        }
        Value::String(name) => {
            if let Some(end) = end {
                errors.push(Error::invalid(&end_at, end, "may not be specified when `port` is non-numeric"));
            }
            named(name, names::is_port_name, &at, errors);
        }
        number => {
            let number = number.as_i64().unwrap_or_default();
            port_number(number, &at, errors);
            if let Some(end) = end {
                if end < number {
                    errors.push(Error::invalid(&end_at, end, "must be greater than or equal to `port`"));
                }
                port_number(end, &end_at, errors);
            }
        }
    }
}

/// Validates a peer of a rule: pods, or addresses.
fn check_peer(peer: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut ways = 0;
    for field in ["podSelector", "namespaceSelector"] {
        if !peer[field].is_null() {
            ways += 1;
            errors.extend(selector::validate_object(&peer[field], &path.child(field)));
        }
    }
    let block = &peer["ipBlock"];
    if block.is_null() {
        if ways == 0 {
            errors.push(Error::required(path, "must specify a peer"));
        }
        return;
    }
    let at = path.child("ipBlock");
    check_block(block, &at, errors);
    if ways > 0 {
        errors.push(Error::forbidden(path, "may not specify both ipBlock and another peer"));
    }
}

/// Validates a range of addresses and the ranges excepted from it.
fn check_block(block: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (cidr, at) = (text(block, "cidr"), path.child("cidr"));
    if cidr.is_empty() {
        errors.push(Error::required(&at, ""));
        return;
    }
    named(cidr, names::is_cidr, &at, errors);
    let Some(whole) = range(cidr) else { return };
    let list = path.child("except");
    for (index, hole) in items(&block["except"]).iter().enumerate() {
        let (hole, at) = (hole.as_str().unwrap_or_default(), list.index(index));
        named(hole, names::is_cidr, &at, errors);
        if let Some(part) = range(hole)
            && !is_strictly_inside(part, whole)
        {
            errors.push(Error::invalid(&at, hole, "must be a strict subset of `cidr`"));
        }
    }
}

/// Parses a CIDR range to its address and prefix length.
fn range(cidr: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = cidr.split_once('/')?;
    Some((address.parse().ok()?, bits.parse().ok()?))
}

fn is_strictly_inside(part: (IpAddr, u32), whole: (IpAddr, u32)) -> bool {
    let shared = match (part.0, whole.0) {
        (IpAddr::V4(part), IpAddr::V4(whole)) => (u32::from(part) ^ u32::from(whole)).leading_zeros(),
        (IpAddr::V6(part), IpAddr::V6(whole)) => (u128::from(part) ^ u128::from(whole)).leading_zeros(),
        _ => return false,
    };
    part.1 > whole.1 && shared >= whole.1
}

/// Annotation with the class of an Ingress, older than the field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

pub(crate) struct Ingresses;

impl Strategy for Ingresses {
    fn has_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, ingress: &mut Value, _context: &Context<'_>) {
        map_mut(ingress).insert("status".to_owned(), json!({"loadBalancer": {}}));
    }

    fn warnings(&self, ingress: &Value, old: Option<&Value>) -> Vec<String> {
        let says = |ingress: &Value| !ingress["metadata"]["annotations"][CLASS_ANNOTATION].is_null();
        if !says(ingress) || old.is_some_and(says) {
            return Vec::new();
        }
        vec![format!("annotation \"{CLASS_ANNOTATION}\" is deprecated, please use 'spec.ingressClassName' instead")]
    }

    fn validate(&self, ingress: &Value) -> Vec<Error> {
        let mut errors = check_ingress(&ingress["spec"]);
        let (class, spec) = (&ingress["metadata"]["annotations"][CLASS_ANNOTATION], &ingress["spec"]);
        if let Some(class) = class.as_str()
            && !spec["ingressClassName"].is_null()
        {
            let annotations = Path::new("annotations");
            let detail = "can not be set when the class field is also set";
            errors.insert(0, Error::invalid(&annotations.child(CLASS_ANNOTATION), class, detail));
        }
        errors
    }

    fn validate_update(&self, new: &Value, _old: &Value) -> Vec<Error> {
        check_ingress(&new["spec"])
    }
}

/// Validates an Ingress: hosts, paths and backends.
fn check_ingress(spec: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let (rules, list) = (items(&spec["rules"]), path.child("rules"));
    if rules.is_empty() && spec["defaultBackend"].is_null() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(Error::invalid(&path, spec["rules"].clone(), detail));
    }
    let tls = path.child("tls");
    for (index, entry) in items(&spec["tls"]).iter().enumerate() {
        let at = tls.index(index);
        let hosts = at.child("hosts");
        for (index, host) in items(&entry["hosts"]).iter().enumerate() {
            check_host(host.as_str().unwrap_or_default(), &hosts.index(index), &mut errors);
        }
        let secret = text(entry, "secretName");
        if !secret.is_empty() {
            named(secret, names::is_dns1123_subdomain, &at.child("secretName"), &mut errors);
        }
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = list.index(index);
        let host = text(rule, "host");
        if !host.is_empty() {
            let at = at.child("host");
            if host.parse::<IpAddr>().is_ok() {
                errors.push(Error::invalid(&at, host, "must be a DNS name, not an IP address"));
            }
            check_host(host, &at, &mut errors);
        }
        if !rule["http"].is_null() {
            let http = at.child("http");
            let paths = http.child("paths");
            if items(&rule["http"]["paths"]).is_empty() {
                errors.push(Error::required(&paths, ""));
            }
            for (index, entry) in items(&rule["http"]["paths"]).iter().enumerate() {
                check_path(entry, &paths.index(index), &mut errors);
            }
        }
    }
    if !spec["defaultBackend"].is_null() {
        check_backend(&spec["defaultBackend"], &path.child("defaultBackend"), &mut errors);
    }
    if let Some(class) = spec["ingressClassName"].as_str() {
        named(class, names::is_dns1123_subdomain, &path.child("ingressClassName"), &mut errors);
    }
    errors
}

/// Validates a host. Its first label may be a star.
fn check_host(host: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    let check = if host.contains('*') { names::is_wildcard_dns1123_subdomain } else { names::is_dns1123_subdomain };
    named(host, check, path, errors);
}

/// Substrings and suffixes that a path must not have, because they make it equivalent to another
/// path.
const NOT_IN_PATHS: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const NOT_AT_END: [&str; 2] = ["/..", "/."];

/// Validates a path and its backend.
fn check_path(entry: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (given, at) = (text(entry, "path"), path.child("path"));
    match entry["pathType"].as_str() {
        None => {
            // As upstream, the path and backend are not validated in this case.
            errors.push(Error::required(&path.child("pathType"), "pathType must be specified"));
            return;
        }
        Some("Exact" | "Prefix") => {
            if !given.starts_with('/') {
                errors.push(Error::invalid(&at, given, "must be an absolute path"));
            }
            for part in NOT_IN_PATHS.iter().filter(|part| given.contains(**part)) {
                errors.push(Error::invalid(&at, given, format!("must not contain '{part}'")));
            }
            for end in NOT_AT_END.iter().filter(|end| given.ends_with(**end)) {
                errors.push(Error::invalid(&at, given, format!("cannot end with '{end}'")));
            }
        }
        Some("ImplementationSpecific") => {
            if !given.is_empty() && !given.starts_with('/') {
                errors.push(Error::invalid(&at, given, "must be an absolute path"));
            }
        }
        Some(other) => {
            let known = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.push(Error::not_supported(&path.child("pathType"), other, &known));
        }
    }
    check_backend(&entry["backend"], &path.child("backend"), errors);
}

/// Validates a backend: a port of a Service, or an object.
fn check_backend(backend: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (service, resource) = (&backend["service"], &backend["resource"]);
    match (service.is_null(), resource.is_null()) {
        (false, false) => {
            errors.push(Error::invalid(path, "", "cannot set both resource and service backends"));
        }
        (true, false) => check_reference(resource, &path.child("resource"), errors),
        (true, true) => errors.push(Error::invalid(path, "", "resource or service backend is required")),
        (false, true) => {
            let at = path.child("service");
            let (name, name_at) = (text(service, "name"), at.child("name"));
            if name.is_empty() {
                errors.push(Error::required(&name_at, ""));
            } else {
                named(name, names::is_dns1123_label, &name_at, errors);
            }
            let (port, port_at) = (&service["port"], at.child("port"));
            let (port_name, number) = (text(port, "name"), super::rules::number(port, "number"));
            match (port_name.is_empty(), number == 0) {
                (false, false) => {
                    errors.push(Error::invalid(path, "", "cannot set both port name & port number"));
                }
                (false, true) => named(port_name, names::is_port_name, &port_at.child("name"), errors),
                (true, false) => port_number(number, &port_at.child("number"), errors),
                (true, true) => errors.push(Error::required(path, "port name or number is required")),
            }
        }
    }
}

/// Validates a reference to an object of any kind.
fn check_reference(reference: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(group) = reference["apiGroup"].as_str() {
        named(group, names::is_dns1123_subdomain, &path.child("apiGroup"), errors);
    }
    for field in ["kind", "name"] {
        let (given, at) = (text(reference, field), path.child(field));
        if given.is_empty() {
            errors.push(Error::required(&at, ""));
        } else {
            named(given, names::is_path_segment_name, &at, errors);
        }
    }
}

/// Maximum length of the name of an Ingress controller.
const CONTROLLER_NAME_MAX: usize = 250;

pub(crate) struct IngressClasses;

impl Strategy for IngressClasses {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, class: &mut Value) {
        if let Some(Value::Object(parameters)) = spec_mut(class).get_mut("parameters") {
            set_default(parameters, "scope", "Cluster");
        }
    }

    fn validate(&self, class: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (path, spec) = (Path::new("spec"), &class["spec"]);
        let (controller, at) = (text(spec, "controller"), path.child("controller"));
        if required(spec, "controller", &path, &mut errors) {
            if controller.len() > CONTROLLER_NAME_MAX {
                errors.push(Error::too_long(&at, CONTROLLER_NAME_MAX as i64));
            }
            named(controller, names::is_domain_prefixed_path, &at, &mut errors);
        }
        if !spec["parameters"].is_null() {
            check_parameters(&spec["parameters"], &path.child("parameters"), &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        immutable(new, old, &["spec", "controller"], &mut errors);
        errors.extend(self.validate(new));
        errors
    }
}

/// Validates the reference to the parameters of a class. It has a namespace if and only if its
/// scope is a namespace.
fn check_parameters(parameters: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    check_reference(parameters, path, errors);
    let namespace_at = path.child("namespace");
    let namespace = parameters["namespace"].as_str();
    match text(parameters, "scope") {
        "Namespace" => match namespace {
            None => {
                let detail = "`parameters.scope` is set to 'Namespace'";
                errors.push(Error::required(&namespace_at, detail));
            }
            Some(namespace) => named(namespace, names::is_dns1123_label, &namespace_at, errors),
        },
        "Cluster" => {
            if namespace.is_some() {
                let detail = "`parameters.scope` is set to 'Cluster'";
                errors.push(Error::forbidden(&namespace_at, detail));
            }
        }
        other => errors.push(Error::not_supported(&path.child("scope"), other, &["Cluster", "Namespace"])),
    }
}
