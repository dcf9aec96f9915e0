//! Where things listen and who may talk to them: defaults of endpoints, policies and ingresses.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::map_mut;
use berth_apimachinery::names;
use serde_json::{Value, json};

use super::rules::{items, named, number, port_number, required, supported, text};
use super::{Context, Strategy, immutable, set_default, set_default_text, spec_mut};

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

/// Checks addresses that share their ports.
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
            // Upstream asks twice: whether it is written well, and whether it is one at all.
            let messages = names::is_ip(ip);
            let is_none = messages.iter().any(|message| message.starts_with("must be a valid"));
            errors.extend(messages.into_iter().map(|message| Error::invalid(&at, ip, message)));
            if is_none {
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
            set_default_text(port, "protocol", "TCP");
        }
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["addressType"], &mut errors);
        errors
    }
}

pub(crate) struct Policies;

impl Strategy for Policies {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, policy: &mut Value) {
        let spec = spec_mut(policy);
        for direction in ["ingress", "egress"] {
            for rule in ports(spec.get_mut(direction)) {
                for port in ports(rule.get_mut("ports")) {
                    set_default_text(map_mut(port), "protocol", "TCP");
                }
            }
        }
        let has_egress = spec.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
        let types = if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        if spec.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            spec.insert("policyTypes".to_owned(), types);
        }
    }
}

pub(crate) struct Ingresses;

impl Strategy for Ingresses {
    fn has_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, ingress: &mut Value, _context: &Context<'_>) {
        map_mut(ingress).insert("status".to_owned(), json!({"loadBalancer": {}}));
    }
}

/// The longest name of what serves ingresses.
const CONTROLLER_NAME_MAX: usize = 250;

pub(crate) struct IngressClasses;

impl Strategy for IngressClasses {
    fn has_generation(&self) -> bool {
        true
    }

    fn default(&self, class: &mut Value) {
        if let Some(Value::Object(parameters)) = spec_mut(class).get_mut("parameters") {
            set_default_text(parameters, "scope", "Cluster");
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
            let at = path.child("parameters");
            for field in ["kind", "name"] {
                required(&spec["parameters"], field, &at, &mut errors);
            }
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

pub(crate) struct DisruptionBudgets;

impl Strategy for DisruptionBudgets {
    fn has_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, budget: &mut Value, _context: &Context<'_>) {
        let status = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
        map_mut(budget).insert("status".to_owned(), status);
    }
}
