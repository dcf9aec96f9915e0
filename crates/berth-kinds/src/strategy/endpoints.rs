//! Endpoints and EndpointSlices: defaults and validation.

use std::collections::HashSet;
use std::net::IpAddr;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::map_mut;
use berth_apimachinery::names;
use berth_apimachinery::validation::NameCheck;
use serde_json::Value;

use super::rules::{items, named, number, port_number, supported, text};
use super::{Strategy, immutable, set_default, set_default_text};

fn ports<'a>(list: Option<&'a mut Value>) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

pub(crate) struct Endpoints;

impl Strategy for Endpoints {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, endpoints: &mut Value) {
        for subset in ports(endpoints.get_mut("subsets")) {
            for port in ports(subset.get_mut("ports")) {
                set_default_text(map_mut(port), "protocol", "TCP");
            }
        }
    }

    fn validate(&self, endpoints: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let list = Path::new("subsets");
        for (index, subset) in items(&endpoints["subsets"]).iter().enumerate() {
            check_subset(subset, &list.index(index), &mut errors);
        }
        errors
    }
}

/// Validates a subset: addresses with the same ports.
fn check_subset(subset: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let lists = ["addresses", "notReadyAddresses"];
    if lists.iter().all(|list| items(&subset[*list]).is_empty()) {
        errors.push(Error::required(path, "must specify `addresses` or `notReadyAddresses`"));
    }
    for kind in lists {
        let list = path.child(kind);
        for (index, address) in items(&subset[kind]).iter().enumerate() {
            let at = list.index(index);
            let (ip, at) = (text(address, "ip"), at.child("ip"));
            // Upstream runs two checks: whether the string is an IP address in canonical form, and
            // whether it is an IP address at all. A string that is not an address fails both.
            let messages = names::is_ip(ip);
            let is_no_address = messages.iter().any(|message| message.starts_with("must be a valid"));
            errors.extend(messages.into_iter().map(|message| Error::invalid(&at, ip, message)));
            if is_no_address {
                errors.push(Error::invalid(&at, ip, "must be a valid IP address"));
            }
        }
    }
    let (given, list) = (items(&subset["ports"]), path.child("ports"));
    for (index, port) in given.iter().enumerate() {
        let at = list.index(index);
        if text(port, "name").is_empty() && given.len() > 1 {
            errors.push(Error::required(&at.child("name"), ""));
        } else if !text(port, "name").is_empty() {
            named(text(port, "name"), names::is_dns1123_label, &at.child("name"), errors);
        }
        port_number(number(port, "port"), &at.child("port"), errors);
        supported(port, "protocol", &["SCTP", "TCP", "UDP"], &at, errors);
    }
}

pub(crate) struct Slices;

impl Strategy for Slices {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, slice: &mut Value) {
        for port in ports(slice.get_mut("ports")) {
            let port = map_mut(port);
            set_default(port, "name", "");
            set_default(port, "protocol", "TCP");
        }
    }

    fn validate(&self, slice: &Value) -> Vec<Error> {
        check_slice(slice)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["addressType"], &mut errors);
        errors
    }
}

/// Maximum numbers for a slice: endpoints, addresses per endpoint, ports, and hints per endpoint.
const SLICE_ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const SLICE_PORTS_MAX: usize = 20_000;
const HINTS_MAX: usize = 8;
const ADDRESS_TYPES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];

/// Validates an EndpointSlice.
fn check_slice(slice: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let kind = text(slice, "addressType");
    let at = Path::new("addressType");
    if kind.is_empty() {
        errors.push(Error::required(&at, ""));
    } else {
        supported(slice, "addressType", &ADDRESS_TYPES, &Path::root(), &mut errors);
    }
    let (endpoints, list) = (items(&slice["endpoints"]), Path::new("endpoints"));
    if endpoints.len() > SLICE_ENDPOINTS_MAX {
        errors.push(Error::too_many(&list, endpoints.len() as i64, SLICE_ENDPOINTS_MAX as i64));
    } else {
        for (index, endpoint) in endpoints.iter().enumerate() {
            check_endpoint(endpoint, kind, &list.index(index), &mut errors);
        }
    }
    let (given, list) = (items(&slice["ports"]), Path::new("ports"));
    if given.len() > SLICE_PORTS_MAX {
        errors.push(Error::too_many(&list, given.len() as i64, SLICE_PORTS_MAX as i64));
        return errors;
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, port) in given.iter().enumerate() {
        let (at, name) = (list.index(index), text(port, "name"));
        let name_at = at.child("name");
        if !name.is_empty() {
            named(name, names::is_dns1123_label, &name_at, &mut errors);
        }
        if !seen.insert(name) {
            errors.push(Error::duplicate(&name_at, name));
        }
        supported(port, "protocol", &["SCTP", "TCP", "UDP"], &at, &mut errors);
        if let Some(protocol) = port["appProtocol"].as_str() {
            named(protocol, names::is_qualified_name, &at.child("appProtocol"), &mut errors);
        }
    }
    errors
}

/// Validates an endpoint: addresses of the slice's type, node, host name and hints.
fn check_endpoint(endpoint: &Value, kind: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (addresses, list) = (items(&endpoint["addresses"]), path.child("addresses"));
    if addresses.is_empty() {
        errors.push(Error::required(&list, "must contain at least 1 address"));
    } else if addresses.len() > ADDRESSES_MAX {
        errors.push(Error::too_many(&list, addresses.len() as i64, ADDRESSES_MAX as i64));
    }
    for (index, address) in addresses.iter().enumerate() {
        let (address, at) = (address.as_str().unwrap_or_default(), list.index(index));
        match kind {
            "IPv4" | "IPv6" => check_address(address, kind, &at, errors),
            "FQDN" => named(address, names::is_fully_qualified_domain_name, &at, errors),
            _ => {}
        }
    }
    if let Some(node) = endpoint["nodeName"].as_str() {
        named(node, names::is_dns1123_subdomain, &path.child("nodeName"), errors);
    }
    if let Some(name) = endpoint["hostname"].as_str() {
        named(name, names::is_dns1123_label, &path.child("hostname"), errors);
    }
    let hints = path.child("hints");
    let zones = (items(&endpoint["hints"]["forZones"]), hints.child("forZones"));
    let nodes = (items(&endpoint["hints"]["forNodes"]), hints.child("forNodes"));
    for ((hints, list), check) in
        [(zones, names::is_label_value as NameCheck), (nodes, names::is_dns1123_subdomain as NameCheck)]
    {
        if hints.len() > HINTS_MAX {
            errors.push(Error::too_many(&list, hints.len() as i64, HINTS_MAX as i64));
            continue;
        }
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, hint) in hints.iter().enumerate() {
            let at = list.index(index);
            let (name, at) = (text(hint, "name"), at.child("name"));
            if !seen.insert(name) {
                errors.push(Error::duplicate(&at, name));
            }
            named(name, check, &at, errors);
        }
    }
}

/// Validates a unicast address of one family. Unlike upstream, loopback addresses are valid:
/// webhooks and aggregated API servers of an embedded cluster listen there.
fn check_address(address: &str, kind: &str, path: &Path<'_>, errors: &mut Vec<Error>) {
    named(address, names::is_ip, path, errors);
    let Ok(ip) = address.parse::<IpAddr>() else { return };
    if ip.is_ipv4() != (kind == "IPv4") {
        errors.push(Error::invalid(path, address, format!("must be an {kind} address")));
        return;
    }
    let range = match ip {
        IpAddr::V4(v4) if v4.is_link_local() => Some("(169.254.0.0/16, fe80::/10)"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("(169.254.0.0/16, fe80::/10)"),
        _ => None,
    };
    let is_link_local_group = match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.is_multicast() && v6.segments()[0] & 0xf == 2,
    };
    let mut reject = |detail: String| errors.push(Error::invalid(path, address, detail));
    if ip.is_unspecified() {
        reject(format!("may not be unspecified ({ip})"));
    }
    if let Some(range) = range {
        reject(format!("may not be in the link-local range {range}"));
    }
    if is_link_local_group {
        reject("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned());
    }
}
