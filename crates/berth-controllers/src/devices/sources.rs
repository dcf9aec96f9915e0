//! Counts counters of partitionable devices, and capacities of devices that can be shared, in place
//! of whole devices.

use std::sync::Arc;

use berth_api::devices::{complete_pools, visible};
use berth_apimachinery::field::Error;
use berth_apimachinery::quantity::Quantity;
use berth_cel::device::Selector;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceCapacity, ExactDeviceRequest, ResourceSlice,
};
use serde_json::Value;

use super::claims::Used;
use super::mapping::{Counted, Source};
use super::matching::{exact_requests, is_for_administration, matches};
use super::problem::{internal, invalid};
use super::{Charges, Devices};
use crate::translate::amounts::parse;

/// The sort of figure that a source counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Counter,
    Capacity,
}

impl Figure {
    fn sources(self, counted: &Counted) -> &[Source] {
        match self {
            Figure::Counter => &counted.counters,
            Figure::Capacity => &counted.capacities,
        }
    }
}

/// A request for devices of a claim, with its compiled selectors.
struct Asked<'a> {
    request: &'a ExactDeviceRequest,
    field: String,
    of_class: Vec<Selector>,
    own: Vec<Selector>,
}

impl Devices {
    /// Adds the counters, or the capacities, of the devices that a template requests.
    pub(super) fn count_figures(&self, figure: Figure, used: &Used, charges: &mut Charges) -> Result<(), Vec<Error>> {
        for (index, request) in exact_requests(used.claim()) {
            let Some(counted) = self.settings.mappings.get(&request.device_class_name) else { continue };
            let sources = figure.sources(counted);
            if sources.is_empty() || is_for_administration(request) {
                continue;
            }
            let field = format!("{}.devices.requests[{index}]", used.field);
            let of_class = self.class_selectors(&request.device_class_name, &field)?;
            let own = request.selectors.as_deref().unwrap_or_default();
            let at = format!("{field}.exactly.selectors");
            let own = self.programs.compile_all(own, &at, "CEL compilation failed")?;
            let asked = Asked { request, field, of_class, own };
            for source in sources {
                let amount = self.amount(figure, source, &asked)?;
                charges.add(used.pod_set, &source.resource, amount);
            }
        }
        Ok(())
    }

    /// The amount that a source counts for a request: the largest amount of a device that matches,
    /// for each device.
    fn amount(&self, figure: Figure, source: &Source, asked: &Asked<'_>) -> Result<i64, Vec<Error>> {
        let slices = complete_pools(&self.slices_of(&source.driver));
        let matched = self.matching(source, asked, &slices)?;
        let count = asked.request.count.unwrap_or(1);
        let failure = |detail: String| vec![internal(asked.field.clone(), detail)];
        if i64::try_from(matched.len()).unwrap_or(i64::MAX) < count {
            let sort = if figure == Figure::Counter { "counter" } else { "capacity" };
            return Err(failure(format!(
                "insufficient matching devices for {sort} driver: {} device(s) match but {count} requested",
                matched.len()
            )));
        }
        let largest = match figure {
            Figure::Counter => largest_counter(&matched, &source.name).ok_or_else(|| {
                failure(format!("matched devices have no consumesCounters entry for counter {:?}", source.name))
            })?,
            Figure::Capacity => largest_capacity(&matched, source, asked)?,
        };
        Ok(largest.value().max(0).saturating_mul(count.max(1)))
    }

    /// The devices of a source that a request may get.
    fn matching<'a>(
        &self,
        source: &Source,
        asked: &Asked<'_>,
        slices: &'a [Arc<ResourceSlice>],
    ) -> Result<Vec<&'a Device>, Vec<Error>> {
        let of_source = [self.programs.compile_source(&source.expression, &asked.field)?];
        let steps: [(&str, &[Selector]); 3] = [
            ("deviceSelector", &of_source),
            ("DeviceClass selector", &asked.of_class),
            ("request selector", &asked.own),
        ];
        let mut matched = Vec::new();
        for device in slices.iter().flat_map(|slice| slice.spec.devices.iter().flatten()) {
            let seen = visible(&source.driver, device);
            let mut all = true;
            for (place, selectors) in steps {
                all = all
                    && matches(selectors, &seen).map_err(|error| {
                        let detail = format!("CEL evaluation error in {place} for device {}: {error}", device.name);
                        vec![internal(asked.field.clone(), detail)]
                    })?;
            }
            if all {
                matched.push(device);
            }
        }
        Ok(matched)
    }
}

fn largest_counter(devices: &[&Device], name: &str) -> Option<Quantity> {
    let consumed = devices.iter().flat_map(|device| device.consumes_counters.iter().flatten());
    consumed.filter_map(|it| parse(&it.counters.get(name)?.value)).max()
}

fn largest_capacity(devices: &[&Device], source: &Source, asked: &Asked<'_>) -> Result<Quantity, Vec<Error>> {
    let requests = asked.request.capacity.as_ref().and_then(|capacity| capacity.requests.as_ref());
    let requested = requests.and_then(|requests| requests.get(&source.name)).and_then(parse);
    let capacities: Vec<&DeviceCapacity> =
        devices.iter().filter_map(|device| device.capacity.as_ref()?.get(&source.name)).collect();
    if capacities.is_empty() {
        let detail = format!("matched devices have no capacity dimension {:?}", source.name);
        return Err(vec![internal(asked.field.clone(), detail)]);
    }
    capacities.into_iter().filter_map(|capacity| consumed(capacity, requested)).max().ok_or_else(|| {
        let detail = format!(
            "capacity request cannot be satisfied by any matched device's RequestPolicy for dimension {:?}",
            source.name
        );
        vec![invalid(asked.field.clone(), Value::Null, detail)]
    })
}

/// The capacity that a request uses of one device: the requested amount, else the device's default,
/// else all of it, rounded up as the device's policy says. `None` if the policy allows no such
/// amount.
pub(super) fn consumed(capacity: &DeviceCapacity, requested: Option<Quantity>) -> Option<Quantity> {
    let policy = capacity.request_policy.as_ref();
    let default = policy.and_then(|policy| policy.default.as_ref()).and_then(parse);
    let base = match requested.or(default) {
        Some(base) => base,
        None => parse(&capacity.value)?,
    };
    match policy {
        Some(policy) => rounded(base, policy),
        None => Some(base),
    }
}

fn rounded(base: Quantity, policy: &CapacityRequestPolicy) -> Option<Quantity> {
    let values = policy.valid_values.as_deref().unwrap_or_default();
    if !values.is_empty() {
        return values.iter().filter_map(parse).find(|value| *value >= base);
    }
    policy.valid_range.as_ref().map_or(Some(base), |range| within(base, range))
}

/// Rounds up to the range's minimum plus a multiple of its step. `None` beyond its maximum.
fn within(base: Quantity, range: &CapacityRequestPolicyRange) -> Option<Quantity> {
    let min = parse(&range.min).map_or(0, |min| min.value());
    let mut value = base.value().max(min);
    let step = range.step.as_ref().and_then(parse).map_or(0, |step| step.value());
    if step > 0 {
        let steps = value.saturating_sub(min).div_euclid(step);
        let rest = value.saturating_sub(min).rem_euclid(step);
        value = min.saturating_add(steps.saturating_add(i64::from(rest > 0)).saturating_mul(step));
    }
    let max = range.max.as_ref().and_then(parse).map_or(i64::MAX, |max| max.value());
    let format = berth_apimachinery::quantity::Format::DecimalSi;
    if value > max { None } else { Quantity::from_scaled(i128::from(value), 0, format) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn used(capacity: serde_json::Value, requested: Option<&str>) -> Option<i64> {
        let capacity: DeviceCapacity = serde_json::from_value(capacity).expect("a capacity");
        let requested = requested.map(|text| Quantity::parse(text).expect("a quantity"));
        consumed(&capacity, requested).map(|quantity| quantity.value())
    }

    #[test]
    fn a_capacity_request_is_rounded_by_the_policy_of_the_device() {
        assert_eq!(used(json!({"value": "80"}), None), Some(80));
        assert_eq!(used(json!({"value": "80"}), Some("7")), Some(7));
        let values = json!({"value": "80", "requestPolicy": {"default": "10", "validValues": ["10", "20", "40"]}});
        assert_eq!(used(values.clone(), None), Some(10));
        assert_eq!(used(values.clone(), Some("11")), Some(20));
        assert_eq!(used(values, Some("41")), None);
        let range = |step: Option<&str>| json!({"value": "80", "requestPolicy": {"validRange": {"min": "4", "max": "64", "step": step}}});
        assert_eq!(used(range(Some("8")), Some("1")), Some(4));
        assert_eq!(used(range(Some("8")), Some("5")), Some(12));
        assert_eq!(used(range(Some("8")), Some("12")), Some(12));
        assert_eq!(used(range(Some("8")), Some("61")), None, "the next step is beyond the maximum");
        assert_eq!(used(range(None), Some("61")), Some(61));
    }
}
