//! Devices that containers request.

use std::collections::BTreeMap;

use berth_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::Container;

/// Number of devices that a container requests, by extended resource. Resources of which the node
/// has no devices are left out.
pub fn wanted_devices(container: &Container, capacity: &BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    let resources = container.resources.as_ref();
    let limits = resources.and_then(|it| it.limits.as_ref().or(it.requests.as_ref()));
    let wanted = limits.into_iter().flatten().filter(|(name, _)| capacity.contains_key(*name));
    let counted = wanted.filter_map(|(name, amount)| {
        let count = usize::try_from(Quantity::parse(&amount.0).ok()?.value()).ok()?;
        (count > 0).then(|| (name.clone(), count))
    });
    counted.collect()
}
