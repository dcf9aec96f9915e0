//! Volumes, claims, storage classes and drivers: defaults and validation.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::map_mut;
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::{names, selector};
use serde_json::{Map, Value, json};

use super::pod_defaults::amounts;
use super::pod_volumes::PERSISTENT;
use super::rules::{items, named, required, supported, text};
use super::{
    Context, Strategy, immutable, pod_placement, pod_volumes, same, same_as, set_default, set_default_text, spec_mut,
};

/// Sets the defaults of a claim, also inside templates.
pub(super) fn claim_spec(spec: &mut Map<String, Value>) {
    set_default_text(spec, "volumeMode", "Filesystem");
    if let Some(Value::Object(resources)) = spec.get_mut("resources") {
        amounts(resources);
    }
}

/// Sets both `dataSource` and `dataSourceRef` of a claim if only one of them is set and it names no
/// namespace. Sources without a group get the core group. Claims in templates are not changed.
fn default_data_source(spec: &mut Map<String, Value>) {
    let is_local = spec.get("dataSourceRef").is_none_or(|source| source["namespace"].is_null());
    let given = |spec: &Map<String, Value>, field: &str| spec.get(field).filter(|source| source.is_object()).cloned();
    let (mut old, mut new) = (given(spec, "dataSource"), given(spec, "dataSourceRef"));
    for source in [&mut old, &mut new].into_iter().flatten() {
        map_mut(source).entry("apiGroup").or_insert(Value::Null);
    }
    if is_local {
        if old.is_none() {
            old.clone_from(&new);
        } else if new.is_none() {
            new.clone_from(&old);
        }
    }
    for (field, source) in [("dataSource", old), ("dataSourceRef", new)] {
        if let Some(source) = source {
            spec.insert(field.to_owned(), source);
        }
    }
}

/// Access modes, in the order of error messages.
const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Validates access modes.
fn check_access(modes: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let modes = items(modes);
    for mode in modes {
        let mode = mode.as_str().unwrap_or_default();
        if !ACCESS_MODES.contains(&mode) {
            errors.push(Error::not_supported(path, mode, &ACCESS_MODES));
        }
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.push(Error::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}

/// Validates that a size is greater than zero.
fn check_size(size: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let quantity = if size.is_null() { Quantity::parse("0") } else { Quantity::from_json(size) };
    if let Ok(quantity) = quantity
        && quantity.as_approximate_f64() <= 0.0
    {
        errors.push(Error::invalid(path, quantity.to_string(), "must be greater than zero"));
    }
}

/// Validates the specification of a claim.
pub(super) fn check_claim(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    errors.extend(selector::validate_object(&spec["selector"], &path.child("selector")));
    let modes = path.child("accessModes");
    if items(&spec["accessModes"]).is_empty() {
        errors.push(Error::required(&modes, "at least 1 access mode is required"));
    }
    check_access(&spec["accessModes"], &modes, errors);
    let resources = path.child("resources");
    let size_at = resources.key("storage");
    match spec["resources"]["requests"].get("storage") {
        None => errors.push(Error::required(&size_at, "")),
        Some(size) => check_size(size, &size_at, errors),
    }
    let class = path.child("storageClassName");
    if !text(spec, "storageClassName").is_empty() {
        named(text(spec, "storageClassName"), names::is_dns1123_subdomain, &class, errors);
    }
    supported(spec, "volumeMode", &VOLUME_MODES, path, errors);
    for field in ["dataSource", "dataSourceRef"] {
        let (source, at) = (&spec[field], path.child(field));
        if !source.is_null() {
            required(source, "name", &at, errors);
            required(source, "kind", &at, errors);
            if text(source, "apiGroup").is_empty() && source["kind"] != "PersistentVolumeClaim" {
                let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
                errors.push(Error::invalid(&at, text(source, "kind"), detail));
            }
        }
    }
    if !text(spec, "volumeAttributesClassName").is_empty() {
        let at = path.child("volumeAttributesClassName");
        named(text(spec, "volumeAttributesClassName"), names::is_dns1123_subdomain, &at, errors);
    }
}

/// Validates a PersistentVolume. Only the most common sources are validated in detail.
fn check_volume(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let modes = path.child("accessModes");
    if items(&spec["accessModes"]).is_empty() {
        errors.push(Error::required(&modes, ""));
    }
    check_access(&spec["accessModes"], &modes, errors);
    let (capacity, capacity_at) = (&spec["capacity"], path.child("capacity"));
    let sizes = capacity.as_object();
    if sizes.is_none_or(Map::is_empty) {
        errors.push(Error::required(&capacity_at, ""));
    }
    if sizes.is_none_or(|sizes| sizes.len() != 1 || !sizes.contains_key("storage")) {
        errors.push(Error::not_supported(&capacity_at, capacity.clone(), &["storage"]));
    }
    if let Some(size) = sizes.and_then(|sizes| sizes.get("storage")) {
        check_size(size, &capacity_at.key("storage"), errors);
    }
    supported(spec, "persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"], path, errors);
    let affinity = path.child("nodeAffinity");
    if !spec["nodeAffinity"].is_null() {
        let required = affinity.child("required");
        if spec["nodeAffinity"]["required"].is_null() {
            errors.push(Error::required(&required, "must specify required node constraints"));
        } else {
            pod_placement::node_selector(&spec["nodeAffinity"]["required"], &required, errors);
        }
    }
    pod_volumes::persistent(spec, path, errors);
    if spec["hostPath"]["path"] == "/" && spec["persistentVolumeReclaimPolicy"] == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(Error::forbidden(&path.child("persistentVolumeReclaimPolicy"), detail));
    }
    if !spec["local"].is_null() && spec["nodeAffinity"].is_null() {
        errors.push(Error::required(&affinity, "Local volume requires node affinity"));
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        if !text(spec, field).is_empty() {
            named(text(spec, field), names::is_dns1123_subdomain, &path.child(field), errors);
        }
    }
    supported(spec, "volumeMode", &VOLUME_MODES, path, errors);
}

pub(crate) struct Claims;

impl Strategy for Claims {
    fn default(&self, claim: &mut Value) {
        let spec = spec_mut(claim);
        claim_spec(spec);
        default_data_source(spec);
    }

    fn prepare_create(&self, claim: &mut Value, _context: &Context<'_>) {
        map_mut(claim).insert("status".to_owned(), json!({"phase": "Pending"}));
    }

    fn validate(&self, claim: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        check_claim(&claim["spec"], &Path::new("spec"), &mut errors);
        errors
    }

    /// The specification is immutable, except for the size and the attributes class of a bound
    /// claim, and for a volume or storage class that is not set yet.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        let is_bound = new["status"]["phase"] == "Bound";
        let (mut before, mut after) = (old["spec"].clone(), new["spec"].clone());
        let mut adopt = |field: &str| put(&mut after, field, old["spec"].get(field));
        if old["spec"]["storageClassName"].is_null() {
            // The controller that assigns the default class may set a missing storage class, once.
            adopt("storageClassName");
        }
        if is_bound {
            adopt("volumeAttributesClassName");
            if after["resources"]["requests"].is_object() {
                let size = &old["spec"]["resources"]["requests"];
                put(&mut after["resources"]["requests"], "storage", size.get("storage"));
            }
        }
        if text(&old["spec"], "volumeName").is_empty() {
            put(&mut before, "volumeName", new["spec"].get("volumeName"));
        }
        let path = Path::new("spec");
        if !same_as("io.k8s.api.core.v1.PersistentVolumeClaimSpec", &before, &after) {
            let detail = "spec is immutable after creation except resources.requests and \
                          volumeAttributesClassName for bound claims";
            errors.push(Error::forbidden(&path, detail));
        }
        let size = |size: &Value| if size.is_null() { Some(Quantity::ZERO) } else { Quantity::from_json(size).ok() };
        let asked = |claim: &Value| size(&claim["spec"]["resources"]["requests"]["storage"]);
        // A request may be reduced to any size above the current capacity, to undo a request that
        // was too large.
        if let (Some(new), Some(old), Some(has)) = (asked(new), asked(old), size(&old["status"]["capacity"]["storage"]))
            && new < old
            && new <= has
        {
            errors.push(Error::forbidden(
                &Path::new("spec.resources.requests.storage"),
                "field can not be less than status.capacity",
            ));
        }
        volume_mode(new, old, &mut errors);
        let class = "volumeAttributesClassName";
        if new["spec"][class] != old["spec"][class] && !old["status"]["currentVolumeAttributesClassName"].is_null() {
            let nothing = match new["spec"][class].as_str() {
                None => Some("nil"),
                Some("") => Some("empty string"),
                Some(_) => None,
            };
            errors.extend(nothing.map(|nothing| {
                let detail =
                    format!("update to {nothing} is forbidden when status.currentVolumeAttributesClassName is not nil");
                Error::forbidden(&path.child(class), detail)
            }));
        }
        errors
    }
}

pub(crate) struct Volumes;

impl Strategy for Volumes {
    fn default(&self, volume: &mut Value) {
        let spec = spec_mut(volume);
        set_default_text(spec, "persistentVolumeReclaimPolicy", "Retain");
        set_default_text(spec, "volumeMode", "Filesystem");
        if let Some(Value::Object(path)) = spec.get_mut("hostPath") {
            set_default(path, "type", "");
        }
    }

    fn prepare_create(&self, volume: &mut Value, context: &Context<'_>) {
        let now = context.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = json!({"phase": "Pending", "lastPhaseTransitionTime": now});
        map_mut(volume).insert("status".to_owned(), status);
    }

    fn validate(&self, volume: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        check_volume(&volume["spec"], &Path::new("spec"), &mut errors);
        errors
    }

    /// The source of a volume is immutable.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        let source = |volume: &Value| {
            let mut source: Map<String, Value> = Map::new();
            for kind in PERSISTENT {
                if let Some(given) = volume["spec"].get(kind).filter(|given| !given.is_null()) {
                    source.insert(kind.to_owned(), given.clone());
                }
            }
            Value::Object(source)
        };
        let (mut given, before) = (source(new), source(old));
        // The secret for expansion may be added later.
        if before["csi"].is_object() && before["csi"]["controllerExpandSecretRef"].is_null() && given["csi"].is_object()
        {
            put(&mut given["csi"], "controllerExpandSecretRef", None);
        }
        if !same_as("io.k8s.api.core.v1.PersistentVolumeSpec", &given, &before) {
            let detail = "spec.persistentvolumesource is immutable after creation";
            errors.push(Error::forbidden(&Path::new("spec.persistentvolumesource"), detail));
        }
        volume_mode(new, old, &mut errors);
        let affinity = "nodeAffinity";
        if !old["spec"][affinity].is_null() && !same(&new["spec"][affinity], &old["spec"][affinity]) {
            let detail = "field is immutable, except for updating from beta label to GA";
            errors.push(Error::invalid(&Path::new(affinity), new["spec"][affinity].clone(), detail));
        }
        let class = "volumeAttributesClassName";
        if !old["spec"][class].is_null() && new["spec"][class].is_null() {
            let detail = "update from non-nil value to nil is forbidden";
            errors.push(Error::forbidden(&Path::new("spec").child(class), detail));
        }
        errors
    }
}

fn put(object: &mut Value, field: &str, value: Option<&Value>) {
    match value {
        Some(value) => map_mut(object).insert(field.to_owned(), value.clone()),
        None => map_mut(object).remove(field),
    };
}

/// Reports an error if the volume mode changes. Upstream's error path omits `spec`.
fn volume_mode(new: &Value, old: &Value, errors: &mut Vec<Error>) {
    let (given, before) = (&new["spec"]["volumeMode"], &old["spec"]["volumeMode"]);
    if given != before {
        errors.push(Error::invalid(&Path::new("volumeMode"), given.clone(), "field is immutable"));
    }
}

pub(crate) struct Classes;

impl Strategy for Classes {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn default(&self, class: &mut Value) {
        let class = map_mut(class);
        set_default(class, "reclaimPolicy", "Delete");
        set_default(class, "volumeBindingMode", "Immediate");
    }

    fn validate(&self, class: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let root = Path::root();
        check_provisioner(class, "provisioner", &mut errors);
        supported(class, "reclaimPolicy", &["Delete", "Retain"], &root, &mut errors);
        supported(class, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"], &root, &mut errors);
        check_parameters(&class["parameters"], &Path::new("parameters"), &mut errors);
        check_topologies(&class["allowedTopologies"], &Path::new("allowedTopologies"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            if !same(&new[field], &old[field]) {
                errors.push(Error::invalid(&Path::new(field), new[field].clone(), "field is immutable"));
            }
        }
        errors
    }
}

/// Maximum number of parameters of a class, and maximum total length of their keys and values.
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_BYTES_MAX: usize = 256 * 1024;

/// Validates the parameters for the provisioner.
fn check_parameters(parameters: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let Some(parameters) = parameters.as_object() else { return };
    if parameters.len() > PARAMETERS_MAX {
        errors.push(Error::too_long(path, PARAMETERS_MAX as i64));
        return;
    }
    if parameters.keys().any(String::is_empty) {
        errors.push(Error::invalid(path, "", "field can not be empty."));
    }
    let bytes: usize = parameters.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > PARAMETERS_BYTES_MAX {
        errors.push(Error::too_long(path, PARAMETERS_BYTES_MAX as i64));
    }
}

/// Validates allowed topologies: alternative terms, each with node labels and their values.
fn check_topologies(terms: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut seen: Vec<Value> = Vec::new();
    for (index, term) in items(terms).iter().enumerate() {
        let at = path.index(index);
        let list = at.child("matchLabelExpressions");
        let mut keys: HashSet<&str> = HashSet::new();
        for (index, requirement) in items(&term["matchLabelExpressions"]).iter().enumerate() {
            let at = list.index(index);
            let (key, key_at, values_at) = (text(requirement, "key"), at.child("key"), at.child("values"));
            let values = items(&requirement["values"]);
            if values.is_empty() {
                errors.push(Error::required(&values_at, ""));
            }
            named(key, names::is_qualified_name, &key_at, errors);
            for (index, value) in values.iter().enumerate() {
                if values[..index].contains(value) {
                    errors.push(Error::duplicate(&values_at.index(index), value.clone()));
                }
            }
            if !keys.insert(key) {
                errors.push(Error::duplicate(&key_at, key));
            }
        }
        // As upstream, an empty term is reported as a duplicate.
        let expressions = term["matchLabelExpressions"].clone();
        if items(&expressions).is_empty() || seen.contains(&expressions) {
            errors.push(Error::duplicate(&list, ""));
        }
        seen.push(expressions);
    }
}

/// Validates the name of the provisioner.
fn check_provisioner(class: &Value, field: &str, errors: &mut Vec<Error>) {
    if required(class, field, &Path::root(), errors) {
        named(&text(class, field).to_lowercase(), names::is_qualified_name, &Path::new(field), errors);
    }
}

/// VolumeAttributesClasses: mutable parameters of volumes.
pub(crate) struct AttributesClasses;

impl Strategy for AttributesClasses {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate(&self, class: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        check_provisioner(class, "driverName", &mut errors);
        if class["parameters"].as_object().is_none_or(Map::is_empty) {
            let detail = "must contain at least one key/value pair";
            errors.push(Error::required(&Path::new("parameters"), detail));
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        for field in ["driverName", "parameters"] {
            if !same(&new[field], &old[field]) {
                errors.push(Error::forbidden(&Path::new(field), format!("updates to {field} are forbidden.")));
            }
        }
        errors.extend(self.validate(new));
        errors
    }
}

/// Maximum length of a node's id at a driver.
const NODE_ID_MAX: usize = 256;

/// CSINodes: the drivers of a node.
pub(crate) struct NodeDrivers;

impl Strategy for NodeDrivers {
    fn creates_on_update(&self) -> bool {
        true
    }

    fn validate(&self, node: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let path = Path::new("spec");
        let list = path.child("drivers");
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, driver) in items(&node["spec"]["drivers"]).iter().enumerate() {
            let at = list.index(index);
            if required(driver, "name", &at, &mut errors) {
                pod_volumes::driver_name(text(driver, "name"), &at.child("name"), &mut errors);
            }
            if required(driver, "nodeID", &at, &mut errors) && text(driver, "nodeID").len() > NODE_ID_MAX {
                let detail = format!("must be {NODE_ID_MAX} characters or less");
                errors.push(Error::invalid(&at.child("nodeID"), text(driver, "nodeID"), detail));
            }
            let mut keys: HashSet<&str> = HashSet::new();
            for key in items(&driver["topologyKeys"]) {
                let key = key.as_str().unwrap_or_default();
                if key.is_empty() {
                    errors.push(Error::required(&at, ""));
                } else if !keys.insert(key) {
                    errors.push(Error::duplicate(&at, key));
                }
                named(key, names::is_qualified_name, &at, &mut errors);
            }
            let name = text(driver, "name");
            if !seen.insert(name) {
                errors.push(Error::duplicate(&at.child("name"), name));
            }
        }
        errors
    }
}

pub(crate) struct Drivers;

impl Strategy for Drivers {
    fn default(&self, driver: &mut Value) {
        let spec = spec_mut(driver);
        set_default(spec, "attachRequired", true);
        set_default_text(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        for field in ["podInfoOnMount", "requiresRepublish", "seLinuxMount", "storageCapacity"] {
            set_default(spec, field, false);
        }
        set_default(spec, "volumeLifecycleModes", json!(["Persistent"]));
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        // Upstream's error path has `attachedRequired` here.
        if new["spec"]["attachRequired"] != old["spec"]["attachRequired"] {
            let path = Path::new("spec");
            let value = new["spec"]["attachRequired"].clone();
            errors.push(Error::invalid(&path.child("attachedRequired"), value, "field is immutable"));
        }
        immutable(new, old, &["spec", "volumeLifecycleModes"], &mut errors);
        errors
    }
}

/// CSIStorageCapacities: free capacity of a driver for one class and some nodes.
pub(crate) struct Capacities;

impl Strategy for Capacities {
    /// Nodes and storage class are immutable; the capacity may change.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        for field in ["nodeTopology", "storageClassName"] {
            if !same(&new[field], &old[field]) {
                errors.push(Error::invalid(&Path::new(field), new[field].clone(), "field is immutable"));
            }
        }
        errors
    }
}

pub(crate) struct Attachments;

impl Strategy for Attachments {
    fn prepare_create(&self, attachment: &mut Value, _context: &Context<'_>) {
        map_mut(attachment).insert("status".to_owned(), json!({"attached": false}));
    }

    fn validate(&self, attachment: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (path, spec) = (Path::new("spec"), &attachment["spec"]);
        if required(spec, "attacher", &path, &mut errors) {
            pod_volumes::driver_name(text(spec, "attacher"), &path.child("attacher"), &mut errors);
        }
        let (source, source_at) = (&spec["source"], path.child("source"));
        match (source["persistentVolumeName"].as_str(), source["inlineVolumeSpec"].is_null()) {
            (Some(name), true) => {
                let at = source_at.child("persistentVolumeName");
                if name.is_empty() {
                    errors.push(Error::required(&at, "must specify non empty persistentVolumeName"));
                }
                named(name, names::is_dns1123_subdomain, &at, &mut errors);
            }
            (None, false) => {}
            _ => {
                let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
                errors.push(Error::required(&source_at, detail));
            }
        }
        named(text(spec, "nodeName"), names::is_dns1123_subdomain, &path.child("nodeName"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Error> {
        let mut errors = self.validate(new);
        immutable(new, old, &["spec"], &mut errors);
        errors
    }
}
