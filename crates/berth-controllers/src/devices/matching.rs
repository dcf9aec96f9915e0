//! Devices that selectors match: compiled expressions, and the devices of published slices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::devices::visible;
use berth_apimachinery::field::Error;
use berth_cel::device::{self, Selector};
use k8s_openapi::api::resource::v1::{DeviceSelector, ExactDeviceRequest, ResourceClaimSpec, ResourceSlice};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Devices;
use super::problem::{internal, invalid, not_found};

/// Maximum number of compiled expressions to keep.
const PROGRAMS_MAX: usize = 1024;

/// Compiled expressions by their text; clones share them.
#[derive(Clone, Default)]
pub(super) struct Programs(Arc<Mutex<BTreeMap<String, Result<Selector, String>>>>);

impl Programs {
    fn compile(&self, expression: &str) -> Result<Selector, String> {
        let mut programs = self.0.lock();
        if let Some(known) = programs.get(expression) {
            return known.clone();
        }
        if programs.len() >= PROGRAMS_MAX {
            programs.clear();
        }
        let compiled = Selector::compile(expression);
        programs.insert(expression.to_owned(), compiled.clone());
        compiled
    }

    /// Compiles a list of selectors. `field` is the path of the list; `context` precedes the
    /// message about an expression that does not compile.
    pub fn compile_all(
        &self,
        list: &[DeviceSelector],
        field: &str,
        context: &str,
    ) -> Result<Vec<Selector>, Vec<Error>> {
        let (mut compiled, mut errors) = (Vec::new(), Vec::new());
        for (index, selector) in list.iter().enumerate() {
            let Some(cel) = &selector.cel else { continue };
            match self.compile(&cel.expression) {
                Ok(program) => compiled.push(program),
                Err(problem) => errors.push(invalid(
                    format!("{field}[{index}].cel.expression"),
                    json!(cel.expression),
                    format!("{context}: {problem}"),
                )),
            }
        }
        if errors.is_empty() { Ok(compiled) } else { Err(errors) }
    }

    /// Compiles the selector of a configured source.
    pub fn compile_source(&self, expression: &str, field: &str) -> Result<Selector, Vec<Error>> {
        self.compile(expression).map_err(|problem| {
            let detail = format!("deviceSelector CEL compilation failed: {problem}");
            vec![invalid(format!("{field}[0].cel.expression"), json!(expression), detail)]
        })
    }
}

/// True if all selectors match.
pub(super) fn matches(selectors: &[Selector], device: &device::Device<'_>) -> Result<bool, String> {
    for selector in selectors {
        if !selector.matches(device).map_err(|error| error.to_string())? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Devices {
    /// Compiled selectors of a device class.
    pub(super) fn class_selectors(&self, class: &str, field: &str) -> Result<Vec<Selector>, Vec<Error>> {
        if class.is_empty() {
            return Ok(Vec::new());
        }
        let Some(found) = self.class(class) else {
            let detail = format!("failed to get DeviceClass {class}: {}", not_found("deviceclasses", class));
            return Err(vec![internal(field.to_owned(), detail)]);
        };
        let context = format!("DeviceClass {class} has invalid CEL selector");
        let selectors = found.spec.selectors.as_deref().unwrap_or_default();
        // One error is enough to reject the request.
        self.programs.compile_all(selectors, field, &context).map_err(|errors| errors.into_iter().take(1).collect())
    }

    /// Verifies that the cluster has the devices that the selectors of a claim's requests ask for.
    /// `base` is the path of the claim.
    pub(super) fn verify_selectors(&self, claim: &ResourceClaimSpec, base: &str) -> Vec<Error> {
        let requests: Vec<(usize, &ExactDeviceRequest)> = exact_requests(claim)
            .filter(|(_, request)| request.selectors.iter().flatten().any(|selector| selector.cel.is_some()))
            .collect();
        if requests.is_empty() {
            return Vec::new();
        }
        let slices = self.slices_for(requests.iter().map(|(_, request)| request.device_class_name.as_str()));
        let devices: Vec<device::Device<'_>> = slices
            .iter()
            .flat_map(|slice| {
                slice.spec.devices.iter().flatten().map(|device| visible(slice.spec.driver.as_str(), device))
            })
            .collect();
        let mut taken = vec![false; devices.len()];
        let mut errors = Vec::new();
        for (index, request) in requests {
            if let Err(found) = self.verify_request(index, request, base, &devices, &mut taken) {
                errors.extend(found);
            }
        }
        errors
    }

    /// Takes the devices of one request.
    fn verify_request(
        &self,
        index: usize,
        request: &ExactDeviceRequest,
        base: &str,
        devices: &[device::Device<'_>],
        taken: &mut [bool],
    ) -> Result<(), Vec<Error>> {
        let (class, at) = (&request.device_class_name, format!("{base}.devices.requests[{index}]"));
        let field = format!("{at}.exactly.selectors");
        let of_class = self.class_selectors(class, &at)?;
        let own = request.selectors.as_deref().unwrap_or_default();
        let own = self.programs.compile_all(own, &field, "CEL compilation failed")?;
        let (needed, mut found) = (request.count.unwrap_or(1), 0);
        for (device, taken) in devices.iter().zip(taken.iter_mut()).filter(|(_, taken)| !**taken) {
            if found >= needed {
                break;
            }
            let both = matches(&of_class, device).and_then(|first| Ok(first && matches(&own, device)?));
            match both {
                Ok(true) => {
                    *taken = true;
                    found += 1;
                }
                Ok(false) => {}
                Err(error) => {
                    let detail = format!("CEL evaluation failed for DeviceClass {class}: {error}");
                    return Err(vec![invalid(field, Value::Null, detail)]);
                }
            }
        }
        if found < needed {
            let detail = format!(
                "insufficient matching devices for CEL selector in DeviceClass {class}: {found} device(s) match in the cluster but {needed} requested"
            );
            return Err(vec![internal(field, detail)]);
        }
        Ok(())
    }

    /// The published slices that requests for these classes concern: those of the drivers that
    /// count the classes, or all slices if a class has no such driver.
    fn slices_for<'a>(&self, classes: impl Iterator<Item = &'a str>) -> Vec<Arc<ResourceSlice>> {
        let mut drivers: BTreeSet<&str> = BTreeSet::new();
        for class in classes {
            let before = drivers.len();
            let counted = self.settings.mappings.get(class);
            let sources = counted.into_iter().flat_map(|it| it.counters.iter().chain(&it.capacities));
            drivers.extend(sources.map(|source| source.driver.as_str()));
            let known = counted.is_some_and(|it| !it.counters.is_empty() || !it.capacities.is_empty());
            if drivers.len() == before && !known {
                return self.all_slices();
            }
        }
        drivers.into_iter().flat_map(|driver| self.slices_of(driver)).collect()
    }
}

/// Requests for exact devices, with their index.
pub(super) fn exact_requests(claim: &ResourceClaimSpec) -> impl Iterator<Item = (usize, &ExactDeviceRequest)> {
    let requests = claim.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    requests.enumerate().filter_map(|(index, request)| Some((index, request.exactly.as_ref()?)))
}

/// True if the request gives access to devices for administration, which needs no quota.
pub(super) fn is_for_administration(request: &ExactDeviceRequest) -> bool {
    request.admin_access == Some(true)
}
