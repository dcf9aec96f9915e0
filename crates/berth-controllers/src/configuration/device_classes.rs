//! Validation of `resources.deviceClassMappings`: device classes that are counted as resources.

use std::collections::{BTreeMap, BTreeSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use berth_cel::device::Selector;
use serde_json::json;

use super::file::{DeviceClassMapping, DeviceSource, Resources};
use super::validate::one_error;
use crate::gates::{Gate, Gates};

/// Maximum number of mappings.
const MAPPINGS_MAX: usize = 16;
/// Maximum number of device classes in a mapping.
const CLASSES_MAX: usize = 8;
/// Maximum length of a resource or device class name.
const NAME_MAX: usize = 253;
/// Maximum length of a driver's name, and of a capacity's domain.
const DRIVER_MAX: usize = 63;
/// Maximum length of a capacity's identifier, without its domain.
const IDENTIFIER_MAX: usize = 32;
/// Gate of counter sources.
const COUNTER_GATE: Gate = Gate::KueueDRAIntegrationPartitionableDevices;
/// Gate of capacity sources.
const CAPACITY_GATE: Gate = Gate::KueueDRAIntegrationConsumableCapacity;

/// The unit that is counted: the whole device, or a named counter or capacity of it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone)]
enum Counted {
    Device,
    Counter(String),
    Capacity(String),
}

/// Validates the mappings.
pub(super) fn validate(resources: &Resources, gates: &Gates) -> Vec<Error> {
    let path = Path::new("resources");
    let path = path.child("deviceClassMappings");
    let mappings = &resources.device_class_mappings;
    let mut errors = Vec::new();
    if mappings.len() > MAPPINGS_MAX {
        errors.push(Error::too_many(&path, mappings.len() as i64, MAPPINGS_MAX as i64));
    }
    let mut resource_names = BTreeSet::new();
    let mut counted_of: BTreeMap<&str, BTreeSet<Counted>> = BTreeMap::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let at = path.index(index);
        errors.extend(name(&mapping.name, &at.child("name")));
        if !resource_names.insert(&mapping.name) {
            errors.push(Error::duplicate(&at.child("name"), mapping.name.as_str()));
        }
        let classes = at.child("deviceClassNames");
        if mapping.device_class_names.is_empty() {
            errors.push(Error::required(&classes, "at least one device class name is required"));
        }
        if mapping.device_class_names.len() > CLASSES_MAX {
            errors.push(Error::too_many(&classes, mapping.device_class_names.len() as i64, CLASSES_MAX as i64));
        }
        let counted = counted(mapping);
        let mut seen = BTreeSet::new();
        for (index, class) in mapping.device_class_names.iter().enumerate() {
            let at = classes.index(index);
            errors.extend(name(class, &at));
            if !seen.insert(class) {
                errors.push(Error::duplicate(&at, class.as_str()));
                continue;
            }
            let known = counted_of.entry(class).or_default();
            if !known.is_empty() && !can_share(known, &counted) {
                let detail = "device class is already in another mapping: both mappings must count counters or both \
                              must count capacities, and no counter or capacity may be counted twice";
                errors.push(Error::invalid(&at, class.as_str(), detail));
            }
            known.extend(counted.iter().cloned());
        }
        errors.extend(sources(mapping, &at, gates));
    }
    errors
}

fn counted(mapping: &DeviceClassMapping) -> BTreeSet<Counted> {
    if mapping.sources.is_empty() {
        return BTreeSet::from([Counted::Device]);
    }
    let counters =
        mapping.sources.iter().filter_map(|it| it.counter.as_ref()).map(|it| Counted::Counter(it.name.clone()));
    let capacities = mapping.sources.iter().filter_map(|it| it.capacity.as_ref());
    counters.chain(capacities.map(|it| Counted::Capacity(it.name.clone()))).collect()
}

/// True if both mappings may count the same class: both count counters or both count capacities,
/// and they have no counter or capacity in common.
fn can_share(known: &BTreeSet<Counted>, new: &BTreeSet<Counted>) -> bool {
    let sort = |it: &Counted| match it {
        Counted::Device => 0,
        Counted::Counter(_) => 1,
        Counted::Capacity(_) => 2,
    };
    let sorts: BTreeSet<i32> = known.iter().chain(new).map(sort).collect();
    sorts.len() == 1 && !sorts.contains(&0) && known.is_disjoint(new)
}

fn name(text: &str, path: &Path<'_>) -> Option<Error> {
    let mut problems = names::is_qualified_name(text);
    if text.len() > NAME_MAX {
        problems.push(format!("must be no more than {NAME_MAX} characters"));
    }
    one_error(problems, text, path)
}

fn sources(mapping: &DeviceClassMapping, at: &Path<'_>, gates: &Gates) -> Vec<Error> {
    let path = at.child("sources");
    let mut errors = Vec::new();
    let counters = mapping.sources.iter().any(|source| source.counter.is_some());
    let capacities = mapping.sources.iter().any(|source| source.capacity.is_some());
    for (index, source) in mapping.sources.iter().enumerate() {
        let at = path.index(index);
        match (&source.counter, &source.capacity) {
            (None, None) => errors.push(Error::required(&at, "exactly one of counter and capacity must be set")),
            (Some(_), Some(_)) => {
                errors.push(Error::invalid(&at, json!(source), "exactly one of counter and capacity must be set"));
            }
            (Some(counter), None) => {
                let at = at.child("counter");
                match gates.on(COUNTER_GATE) {
                    false => errors.push(gate_needed(&at, COUNTER_GATE)),
                    true => errors.extend(figure(counter, &at, counter_name)),
                }
            }
            (None, Some(capacity)) => {
                let at = at.child("capacity");
                match gates.on(CAPACITY_GATE) {
                    false => errors.push(gate_needed(&at, CAPACITY_GATE)),
                    true => errors.extend(figure(capacity, &at, capacity_name)),
                }
            }
        }
    }
    if counters && capacities {
        let detail = "counter and capacity sources cannot be mixed in one mapping";
        errors.push(Error::invalid(&path, json!(mapping.sources), detail));
    }
    errors
}

fn gate_needed(at: &Path<'_>, gate: Gate) -> Error {
    Error::invalid(at, json!({}), format!("requires the {gate} feature gate"))
}

fn figure(source: &DeviceSource, at: &Path<'_>, name_rule: fn(&str, &Path<'_>) -> Vec<Error>) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = at.child("name");
    match source.name.is_empty() {
        true => errors.push(Error::required(&path, "must be specified")),
        false => errors.extend(name_rule(&source.name, &path)),
    }
    let path = at.child("driver");
    if source.driver.is_empty() {
        errors.push(Error::required(&path, "must be specified"));
    } else {
        let mut problems = names::is_dns1123_subdomain(&source.driver);
        if source.driver.len() > DRIVER_MAX {
            problems.push(format!("must be no more than {DRIVER_MAX} characters"));
        }
        errors.extend(one_error(problems, &source.driver, &path));
    }
    let expression = source.device_selector.cel.as_ref().map_or("", |cel| cel.expression.as_str());
    let path = at.child("deviceSelector");
    if expression.is_empty() {
        errors.push(Error::required(&path, "must have a CEL expression"));
    } else if let Err(problem) = Selector::compile(expression) {
        let path = path.child("cel");
        errors.push(Error::invalid(&path.child("expression"), expression, problem));
    }
    errors
}

fn counter_name(text: &str, path: &Path<'_>) -> Vec<Error> {
    one_error(names::is_dns1123_label(text), text, path).into_iter().collect()
}

/// Validates a name like `domain/identifier` or `identifier`.
fn capacity_name(text: &str, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let (domain, identifier) = match text.split_once('/') {
        Some((domain, identifier)) => (Some(domain), identifier),
        None => (None, text),
    };
    match domain {
        Some("") => errors.push(Error::required(path, "the domain must not be empty")),
        Some(domain) if domain.len() > DRIVER_MAX => errors.push(Error::too_long(path, DRIVER_MAX as i64)),
        Some(domain) => {
            errors.extend(one_error(names::is_dns1123_subdomain_caseless(domain), domain, path));
        }
        None => {}
    }
    if identifier.is_empty() {
        errors.push(Error::required(path, "the name must not be empty"));
    } else if identifier.len() > IDENTIFIER_MAX {
        errors.push(Error::too_long(path, IDENTIFIER_MAX as i64));
    } else {
        errors.extend(one_error(names::is_c_identifier(identifier), identifier, path));
    }
    errors
}
