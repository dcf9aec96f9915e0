//! The devices that machines have, by the resources that they are counted as.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::devices::visible;
use k8s_openapi::api::resource::v1::ResourceSlice;

use super::Devices;
use super::mapping::Counted;
use super::matching::matches;

impl Devices {
    /// Number of the devices of these slices by resource: of mapped classes, and of the extended
    /// resources that device classes back. A class with an expression that does not compile has no
    /// device. Classes that are counted by counters or capacities are left out
    /// ([`Devices::unmeasured`]).
    pub fn supply<'a>(&self, slices: impl Iterator<Item = &'a ResourceSlice> + Clone) -> BTreeMap<String, i64> {
        let mut supply: BTreeMap<String, i64> = BTreeMap::new();
        for class in self.classes.iter().filter(|_| self.settings.counts) {
            let name = class.metadata.name.as_deref().unwrap_or_default();
            let counted = self.settings.mappings.get(name);
            let extended = class.spec.extended_resource_name.as_deref().filter(|_| self.settings.extended);
            let Some(resource) = counted.map(|it| it.resource.as_str()).or(extended) else { continue };
            if counted.is_some_and(|it| self.is_by_figures(it)) {
                continue;
            }
            let Ok(selectors) = self.class_selectors(name, "") else { continue };
            let devices = slices.clone().flat_map(|slice| {
                let devices = slice.spec.devices.iter().flatten();
                devices.map(|device| visible(slice.spec.driver.as_str(), device))
            });
            let count = devices.filter(|device| matches(&selectors, device) == Ok(true)).count();
            *supply.entry(resource.to_owned()).or_default() += i64::try_from(count).unwrap_or(i64::MAX);
        }
        supply
    }

    /// Resources that count counters or capacities of devices: how much machines have is not known.
    pub fn unmeasured(&self) -> &BTreeSet<String> {
        &self.settings.binary
    }

    fn is_by_figures(&self, counted: &Counted) -> bool {
        let by_counters = self.settings.partitions && !counted.counters.is_empty();
        by_counters || (self.settings.shares && !counted.capacities.is_empty())
    }
}
