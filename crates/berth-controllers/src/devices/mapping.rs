//! The configured mappings of device classes to resources with quota.

use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::file::{DeviceClassMapping, DeviceSource};

/// A counter or capacity of devices that is counted as a resource.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    /// The resource that the amounts are counted as.
    pub resource: String,
    /// Name of the counter or capacity.
    pub name: String,
    /// The driver whose devices are searched.
    pub driver: String,
    /// Selects devices.
    pub expression: String,
}

/// How the devices of one class are counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// The resource that devices, or their capacities, are counted as.
    pub resource: String,
    /// Counters to add up in place of devices.
    pub counters: Vec<Source>,
    /// Capacities to add up in place of devices.
    pub capacities: Vec<Source>,
}

/// The mappings, by device class.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mappings(BTreeMap<String, Counted>);

impl Mappings {
    /// The configured mappings. A class in several mappings is counted by the counters of all of
    /// them.
    pub fn new(mappings: &[DeviceClassMapping]) -> Self {
        let mut classes: BTreeMap<String, Counted> = BTreeMap::new();
        for mapping in mappings {
            let source = |it: &DeviceSource| Source {
                resource: mapping.name.clone(),
                name: it.name.clone(),
                driver: it.driver.clone(),
                expression: it.device_selector.cel.as_ref().map(|cel| cel.expression.clone()).unwrap_or_default(),
            };
            for class in &mapping.device_class_names {
                let new = || Counted { resource: mapping.name.clone(), ..Counted::default() };
                let counted = classes.entry(class.clone()).or_insert_with(new);
                counted.counters.extend(mapping.sources.iter().filter_map(|it| it.counter.as_ref()).map(source));
                counted.capacities.extend(mapping.sources.iter().filter_map(|it| it.capacity.as_ref()).map(source));
            }
        }
        Mappings(classes)
    }

    pub fn get(&self, class: &str) -> Option<&Counted> {
        self.0.get(class)
    }

    /// Resources that count counters or capacities. Their amounts are bytes.
    pub fn binary(&self) -> BTreeSet<String> {
        let counters = self.0.values().flat_map(|it| &it.counters).map(|it| it.resource.clone());
        let shared = self.0.values().filter(|it| !it.capacities.is_empty());
        counters.chain(shared.map(|it| it.resource.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_in_several_mappings_has_the_counters_of_all() {
        let counter = |name: &str| {
            json!([{"counter": {"name": name, "driver": "gpu.example.com",
                "deviceSelector": {"cel": {"expression": "true"}}}}])
        };
        let mappings: Vec<DeviceClassMapping> = serde_json::from_value(json!([
            {"name": "gpu.memory", "deviceClassNames": ["mig", "gpu"], "sources": counter("memory")},
            {"name": "gpu.cores", "deviceClassNames": ["mig"], "sources": counter("cores")},
            {"name": "nics", "deviceClassNames": ["nic"]},
        ]))
        .expect("mappings");
        let mappings = Mappings::new(&mappings);
        let counted = |class: &str| {
            let counters = &mappings.get(class).expect("mapped").counters;
            counters.iter().map(|it| format!("{}={}", it.resource, it.name)).collect::<Vec<_>>()
        };
        assert_eq!(counted("mig"), ["gpu.memory=memory", "gpu.cores=cores"]);
        assert_eq!(counted("gpu"), ["gpu.memory=memory"]);
        assert_eq!((counted("nic").len(), mappings.get("nic").map(|it| it.resource.as_str())), (0, Some("nics")));
        assert!(mappings.get("other").is_none());
        assert_eq!(mappings.binary().into_iter().collect::<Vec<_>>(), ["gpu.cores", "gpu.memory"]);
    }
}
