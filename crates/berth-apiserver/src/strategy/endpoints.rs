//! Where things listen and who may talk to them: defaults of endpoints, policies and ingresses.

use berth_apimachinery::meta::map_mut;
use serde_json::{Value, json};

use super::{Context, Strategy, set_default, set_default_text, spec_mut};

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
