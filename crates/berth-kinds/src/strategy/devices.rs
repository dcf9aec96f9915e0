//! DeviceClasses, ResourceClaims, ResourceClaimTemplates and ResourceSlices (resource.k8s.io/v1):
//! defaults and validation.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::map_mut;
use berth_apimachinery::names;
use berth_cel::device::Selector;
use serde_json::{Map, Value, json};

use super::pod_container::is_extended;
use super::pod_volumes::driver_name;
use super::rules::{items, named, number, required, text};
use super::{Context, Strategy, immutable, pod_placement, same, set_default, set_default_text, spec_mut};

/// Maximum number of selectors, and of configurations, of a device class.
const CLASS_ITEMS_MAX: usize = 32;

/// DeviceClasses: kinds of devices that requests name.
pub(crate) struct Classes;

impl Strategy for Classes {
    fn has_generation(&self) -> bool {
        true
    }

    fn validate(&self, class: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (path, spec) = (Path::new("spec"), &class["spec"]);
        for field in ["selectors", "config"] {
            let (count, at) = (items(&spec[field]).len(), path.child(field));
            if count > CLASS_ITEMS_MAX {
                errors.push(Error::too_many(&at, count as i64, CLASS_ITEMS_MAX as i64));
            }
        }
        let list = path.child("selectors");
        for (index, selector) in items(&spec["selectors"]).iter().take(CLASS_ITEMS_MAX).enumerate() {
            check_selector(selector, &list.index(index), &mut errors);
        }
        let list = path.child("config");
        for (index, config) in items(&spec["config"]).iter().take(CLASS_ITEMS_MAX).enumerate() {
            check_configuration(config, &list.index(index), &mut errors);
        }
        if let Some(resource) = spec["extendedResourceName"].as_str().filter(|name| !is_extended(name)) {
            let detail = "must be a valid extended resource name";
            errors.push(Error::invalid(&path.child("extendedResourceName"), resource, detail));
        }
        errors
    }
}

/// Validates a selector of devices.
fn check_selector(selector: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let at = path.child("cel");
    if !selector["cel"].is_object() {
        errors.push(Error::required(&at, ""));
        return;
    }
    let expression = text(&selector["cel"], "expression");
    if let Err(why) = Selector::compile(expression) {
        errors.push(Error::invalid(&at.child("expression"), expression, why));
    }
}

/// Validates the configuration of a driver.
fn check_configuration(config: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (opaque, at) = (&config["opaque"], path.child("opaque"));
    if !opaque.is_object() {
        errors.push(Error::required(&at, ""));
        return;
    }
    if required(opaque, "driver", &at, errors) {
        driver_name(text(opaque, "driver"), &at.child("driver"), errors);
    }
    let parameters = at.child("parameters");
    match &opaque["parameters"] {
        Value::Object(_) => {}
        Value::Null => errors.push(Error::required(&parameters, "")),
        _ => errors.push(Error::invalid(&parameters, "<value omitted>", "must be a valid JSON object")),
    }
}

/// Sets the defaults of a claim, also inside templates.
fn claim_spec(spec: &mut Map<String, Value>) {
    let requests = spec.get_mut("devices").and_then(|devices| devices.get_mut("requests"));
    for request in requests.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(Value::Object(exactly)) = request.get_mut("exactly") {
            default_request(exactly);
        }
        let alternatives = request.get_mut("firstAvailable").and_then(Value::as_array_mut);
        for alternative in alternatives.into_iter().flatten() {
            default_request(map_mut(alternative));
        }
    }
}

/// Sets the defaults of a device request: one device, unless its mode asks for all devices.
fn default_request(request: &mut Map<String, Value>) {
    set_default_text(request, "allocationMode", "ExactCount");
    if request["allocationMode"] == "ExactCount" {
        set_default(request, "count", 1);
        if request["count"] == 0 {
            request.insert("count".to_owned(), 1.into());
        }
    }
    for toleration in request.get_mut("tolerations").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default_text(map_mut(toleration), "operator", "Equal");
    }
}

pub(crate) struct Claims;

impl Strategy for Claims {
    fn default(&self, claim: &mut Value) {
        claim_spec(spec_mut(claim));
    }

    fn prepare_create(&self, claim: &mut Value, _context: &Context<'_>) {
        map_mut(claim).insert("status".to_owned(), json!({}));
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        immutable_spec(new, old)
    }
}

pub(crate) struct Templates;

impl Strategy for Templates {
    fn default(&self, template: &mut Value) {
        if let Some(Value::Object(spec)) = spec_mut(template).get_mut("spec") {
            claim_spec(spec);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        immutable_spec(new, old)
    }
}

/// Returns an error if the specification changes.
fn immutable_spec(new: &Value, old: &Value) -> Vec<Error> {
    if same(&new["spec"], &old["spec"]) {
        return Vec::new();
    }
    vec![Error::invalid(&Path::new("spec"), new["spec"].clone(), "field is immutable")]
}

/// ResourceSlices: the devices that nodes offer.
pub(crate) struct Slices;

impl Strategy for Slices {
    fn has_generation(&self) -> bool {
        true
    }

    fn validate(&self, slice: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (path, spec) = (Path::new("spec"), &slice["spec"]);
        if required(spec, "driver", &path, &mut errors) {
            driver_name(text(spec, "driver"), &path.child("driver"), &mut errors);
        }
        let (pool, pool_at) = (&spec["pool"], path.child("pool"));
        if required(pool, "name", &pool_at, &mut errors) {
            let (name, at) = (text(pool, "name"), pool_at.child("name"));
            if name.len() > POOL_NAME_MAX {
                errors.push(Error::too_long(&at, POOL_NAME_MAX as i64));
            }
            for part in name.split('/') {
                named(part, names::is_dns1123_subdomain, &at, &mut errors);
            }
        }
        let (count, generation) = (number(pool, "resourceSliceCount"), number(pool, "generation"));
        if count <= 0 {
            errors.push(Error::invalid(&pool_at.child("resourceSliceCount"), count, "must be greater than zero"));
        }
        if generation < 0 {
            let detail = "must be greater than or equal to zero";
            errors.push(Error::invalid(&pool_at.child("generation"), generation, detail));
        }
        check_nodes(spec, &path, &mut errors);
        let list = path.child("devices");
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, device) in items(&spec["devices"]).iter().enumerate() {
            let (at, name) = (list.index(index), text(device, "name"));
            named(name, names::is_dns1123_label, &at.child("name"), &mut errors);
            if !seen.insert(name) {
                errors.push(Error::duplicate(&at, name));
            }
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        for path in [&["spec", "pool", "name"][..], &["spec", "driver"], &["spec", "nodeName"]] {
            immutable(new, old, path, &mut errors);
        }
        errors
    }
}

/// Maximum length of the name of a device pool.
const POOL_NAME_MAX: usize = 253;
const ONE_WAY: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
/// Fields that select the nodes with access to the devices.
const NODES: [&str; 4] = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];

/// Validates that exactly one field selects the nodes.
fn check_nodes(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if let Some(name) = spec["nodeName"].as_str() {
        let at = path.child("nodeName");
        if name.is_empty() {
            errors.push(Error::invalid(&at, "", "must be either unset or set to a non-empty string"));
        } else {
            named(name, names::is_dns1123_subdomain, &at, errors);
        }
    }
    if !spec["nodeSelector"].is_null() {
        let at = path.child("nodeSelector");
        pod_placement::node_selector(&spec["nodeSelector"], &at, errors);
        let terms = &spec["nodeSelector"]["nodeSelectorTerms"];
        if items(terms).len() != 1 {
            let detail = "must have exactly one node selector term";
            errors.push(Error::invalid(&at.child("nodeSelectorTerms"), terms.clone(), detail));
        }
    }
    for field in ["allNodes", "perDeviceNodeSelection"] {
        if spec[field] == false {
            errors.push(Error::invalid(&path.child(field), false, "must be either unset or set to true"));
        }
    }
    let is_set = |field: &&str| !matches!(&spec[*field], Value::Null | Value::Bool(false)) && spec[*field] != "";
    let set: Vec<String> = NODES.iter().copied().filter(is_set).map(|field| format!("`{field}`")).collect();
    match set.len() {
        0 => errors.push(Error::required(path, ONE_WAY)),
        1 => {}
        _ => {
            let detail = format!("{ONE_WAY}, but multiple fields are set");
            errors.push(Error::invalid(path, format!("{{{}}}", set.join(", ")), detail));
        }
    }
}
