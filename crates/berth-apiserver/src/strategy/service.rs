//! Services: type, ports, and an address inside the cluster that nobody routes but everybody expects.

use std::collections::BTreeSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, map_mut};
use berth_apimachinery::names;
use berth_apimachinery::validation::NameCheck;
use serde_json::{Map, Value, json};

use crate::Objects;

use super::{Context, Strategy, set_default, set_default_text, spec_mut};

/// Where addresses are from: what `kubeadm` clusters use. The first ten are left for the system.
pub(crate) const RANGE: &str = "10.96.0.0/16";
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
            set_default_text(spec, "ipFamilyPolicy", "SingleStack");
            set_default(spec, "ipFamilies", json!(["IPv4"]));
        }
        if spec["sessionAffinity"] == "ClientIP" {
            let config = map_mut(spec.entry("sessionAffinityConfig").or_insert_with(|| json!({})));
            let client = map_mut(config.entry("clientIP").or_insert_with(|| json!({})));
            set_default(client, "timeoutSeconds", 10_800);
        }
        if spec["type"] == "LoadBalancer" {
            set_default(spec, "allocateLoadBalancerNodePorts", true);
        }
        if matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer")) {
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
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, context: &Context<'_>) {
        let spec = spec_mut(new);
        if spec.get("type").is_some_and(|kind| kind == "ExternalName") {
            // What was assigned goes with the type; what is asked for is refused.
            if old["spec"]["type"] != "ExternalName" {
                for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                    if spec.get(field) == old["spec"].get(field) {
                        spec.remove(field);
                    }
                }
            }
            return;
        }
        // An address not given is the one that was assigned.
        for field in ["clusterIP", "clusterIPs"] {
            if spec.get(field).is_none_or(|given| given.is_null() || given == "")
                && let Some(value) = old["spec"].get(field)
            {
                spec.insert(field.to_owned(), value.clone());
            }
        }
        assign_address(spec, context.objects);
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
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        let kept = old["spec"]["type"] != "ExternalName" && new["spec"]["type"] != "ExternalName";
        if kept && !old["spec"]["clusterIP"].is_null() && new["spec"]["clusterIP"] != old["spec"]["clusterIP"] {
            let path = Path::new("spec.clusterIPs");
            let detail = "may not change once set";
            errors.push(Error::invalid(&path.index(0), new["spec"]["clusterIP"].clone(), detail));
        }
        errors
    }
}

/// Gives a Service an address that has none.
fn assign_address(spec: &mut Map<String, Value>, objects: &Objects) {
    if spec.get("clusterIP").and_then(Value::as_str).unwrap_or_default().is_empty() {
        let listed = spec.get("clusterIPs").and_then(|list| list.get(0)).cloned();
        spec.insert("clusterIP".to_owned(), listed.unwrap_or_else(|| free_address(objects).into()));
    }
    let address = spec["clusterIP"].clone();
    set_default(spec, "clusterIPs", json!([address]));
}

/// The first free address of [`RANGE`].
pub(crate) fn free_address(objects: &Objects) -> String {
    let addresses = objects.list("networking.k8s.io", "ipaddresses", None);
    let services = objects.list("", "services", None);
    let mut taken: BTreeSet<&str> = services.iter().filter_map(|it| it["spec"]["clusterIP"].as_str()).collect();
    taken.extend(addresses.iter().map(|address| meta::name(address)));
    (11..65_534u32)
        .map(|number| format!("10.96.{}.{}", number >> 8, number & 0xff))
        .find(|address| !taken.contains(address.as_str()))
        .unwrap_or_else(|| "None".to_owned())
}
