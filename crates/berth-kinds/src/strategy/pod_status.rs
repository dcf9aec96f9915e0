//! Validation of a pod's status: the claims of devices that it names.

use std::collections::{BTreeMap, HashSet};

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use serde_json::Value;

use super::rules::{items, named, required, text};

/// Validates the claims of devices in a pod's status: those for `spec.resourceClaims`, and the one
/// for its extended resources.
///
/// Source: Kubernetes 1.36, fields `resourceClaimStatuses` and `extendedResourceClaimStatus` of
/// PodStatus, and KEP-5004.
pub(super) fn device_claims(pod: &Value) -> Vec<Error> {
    let (path, spec, status) = (Path::new("status"), &pod["spec"], &pod["status"]);
    let mut errors = Vec::new();
    let list = path.child("resourceClaimStatuses");
    own_claims(&status["resourceClaimStatuses"], &spec["resourceClaims"], &list, &mut errors);
    let extended = &status["extendedResourceClaimStatus"];
    if extended.is_object() {
        extended_claim(extended, spec, &path.child("extendedResourceClaimStatus"), &mut errors);
    }
    errors
}

fn own_claims(statuses: &Value, claims: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let known: HashSet<&str> = items(claims).iter().map(|claim| text(claim, "name")).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, status) in items(statuses).iter().enumerate() {
        let (at, name) = (path.index(index), text(status, "name"));
        let name_at = at.child("name");
        if !known.contains(name) {
            let detail = "must match the name of an entry in `spec.resourceClaims`";
            errors.push(Error::invalid(&name_at, name, detail));
        }
        if !seen.insert(name) {
            errors.push(Error::duplicate(&name_at, name));
        }
        if let Some(claim) = status["resourceClaimName"].as_str() {
            named(claim, names::is_dns1123_subdomain, &at.child("resourceClaimName"), errors);
        }
    }
}

fn extended_claim(status: &Value, spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let all = items(&spec["initContainers"]).iter().chain(items(&spec["containers"]));
    let containers: BTreeMap<&str, &Value> = all.map(|container| (text(container, "name"), container)).collect();
    let (mappings, list) = (items(&status["requestMappings"]), path.child("requestMappings"));
    if mappings.is_empty() {
        errors.push(Error::required(&list, "at least one request mapping is required"));
    }
    let mut seen: HashSet<[&str; 3]> = HashSet::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let at = list.index(index);
        let fields = ["containerName", "resourceName", "requestName"];
        let values = fields.map(|field| text(mapping, field));
        let [container, resource, request] = values;
        match containers.get(container) {
            None => {
                let detail = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.push(Error::invalid(&at.child(fields[0]), container, detail));
            }
            Some(found) if found["resources"]["requests"].get(resource).is_none() => {
                let detail = "must match the extended resource name of an entry in \
                              spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.push(Error::invalid(&at.child(fields[1]), resource, detail));
            }
            Some(_) => {}
        }
        named(request, names::is_dns1123_label, &at.child(fields[2]), errors);
        if !seen.insert(values) {
            errors.extend(fields.iter().zip(values).map(|(field, value)| Error::duplicate(&at.child(field), value)));
        }
    }
    if required(status, "resourceClaimName", path, errors) {
        let name = text(status, "resourceClaimName");
        named(name, names::is_dns1123_subdomain, &path.child("resourceClaimName"), errors);
    }
}
