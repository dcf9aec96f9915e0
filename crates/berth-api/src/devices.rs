//! Devices that drivers publish in ResourceSlices (resource.k8s.io/v1): as expressions see them,
//! and by pool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_apimachinery::quantity::Quantity;
use berth_cel::device::{self, Attribute};
use k8s_openapi::api::resource::v1::{
    CELDeviceSelector, Device, DeviceAttribute, DeviceCapacity, DeviceClass, DeviceClassSpec, DeviceSelector,
    ResourceSlice,
};
use kube::api::ObjectMeta;

use crate::berth::PoolDevices;

/// The value of an attribute; `None` if it has none.
pub fn attribute(it: &DeviceAttribute) -> Option<Attribute<'_>> {
    Some(match (&it.bool, &it.int, &it.string, &it.version) {
        (Some(value), ..) => Attribute::Bool(*value),
        (_, Some(value), ..) => Attribute::Int(*value),
        (.., Some(text), _) => Attribute::String(text),
        (.., Some(text)) => Attribute::Version(text),
        _ => return None,
    })
}

/// A published device as expressions see it.
pub fn visible<'a>(driver: &'a str, it: &'a Device) -> device::Device<'a> {
    let attributes = it.attributes.iter().flatten();
    let attributes = attributes.filter_map(|(name, value)| Some((name.as_str(), attribute(value)?)));
    let capacity = it.capacity.iter().flatten();
    let capacity = capacity.filter_map(|(name, it)| Some((name.as_str(), Quantity::parse(&it.value.0).ok()?)));
    device::Device::new(driver, attributes, capacity, it.allow_multiple_allocations == Some(true))
}

/// The devices that a node of a pool with these groups publishes, by driver.
pub fn published(groups: &[PoolDevices]) -> BTreeMap<&str, Vec<Device>> {
    let mut by_driver: BTreeMap<&str, Vec<Device>> = BTreeMap::new();
    let mut numbers: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for group in groups {
        for _ in 0..group.count {
            let number = numbers.entry((&group.driver, group.device_name())).or_default();
            let capacity = group
                .capacity
                .iter()
                .map(|(name, value)| (name.clone(), DeviceCapacity { value: value.clone(), request_policy: None }));
            by_driver.entry(&group.driver).or_default().push(Device {
                name: format!("{}-{number}", group.device_name()),
                attributes: (!group.attributes.is_empty()).then(|| group.attributes.clone()),
                capacity: (!group.capacity.is_empty()).then(|| capacity.collect()),
                ..Device::default()
            });
            *number += 1;
        }
    }
    by_driver
}

/// The device classes that a pool with these groups creates unless they exist. Each class selects
/// all devices of one driver.
pub fn pool_classes(groups: &[PoolDevices]) -> Vec<DeviceClass> {
    let named = groups.iter().filter_map(|group| Some((group.device_class.as_deref()?, group.driver.as_str())));
    named.collect::<BTreeSet<_>>().into_iter().map(|(name, driver)| class(name, driver)).collect()
}

fn class(name: &str, driver: &str) -> DeviceClass {
    let expression = format!("device.driver == '{driver}'");
    DeviceClass {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: DeviceClassSpec {
            selectors: Some(vec![DeviceSelector { cel: Some(CELDeviceSelector { expression }) }]),
            ..DeviceClassSpec::default()
        },
    }
}

/// Prefix of implicit extended resources. Each device class backs one, which has the name of the
/// class after the prefix.
const CLASS_RESOURCE_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// The device class from which a scheduler allocates devices for requests of an extended resource:
/// the one that names the resource in `spec.extendedResourceName`. Of several classes, the newest
/// is taken. Of classes with the same creation time, the first by name is taken.
///
/// Source: KEP-5004.
pub fn backing_class<'a>(
    resource: &str,
    classes: impl Iterator<Item = &'a Arc<DeviceClass>>,
) -> Option<&'a Arc<DeviceClass>> {
    let backing = classes.filter(|class| class.spec.extended_resource_name.as_deref() == Some(resource));
    backing.min_by(|a, b| {
        let (created_a, created_b) = (&a.metadata.creation_timestamp, &b.metadata.creation_timestamp);
        created_b.cmp(created_a).then_with(|| a.metadata.name.cmp(&b.metadata.name))
    })
}

/// The name of the device class of an implicit extended resource
/// (`deviceclass.resource.kubernetes.io/NAME`), which backs it if it exists.
pub fn implicit_class(resource: &str) -> Option<&str> {
    resource.strip_prefix(CLASS_RESOURCE_PREFIX)
}

/// The slices of the newest generation of each complete pool. A pool is incomplete while its driver
/// publishes it.
pub fn complete_pools(slices: &[Arc<ResourceSlice>]) -> Vec<Arc<ResourceSlice>> {
    let mut pools: BTreeMap<(&str, &str), Vec<&Arc<ResourceSlice>>> = BTreeMap::new();
    for slice in slices {
        let key = (slice.spec.driver.as_str(), slice.spec.pool.name.as_str());
        let pool = pools.entry(key).or_default();
        let newest = pool.first().map(|it| it.spec.pool.generation);
        if newest.is_some_and(|newest| slice.spec.pool.generation > newest) {
            pool.clear();
        }
        if newest.is_none_or(|newest| slice.spec.pool.generation >= newest) {
            pool.push(slice);
        }
    }
    let complete = pools.into_values().filter(|pool| {
        let published = pool.first().map_or(0, |it| it.spec.pool.resource_slice_count);
        i64::try_from(pool.len()) == Ok(published)
    });
    complete.flatten().cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pool_has_its_newest_generation_once_it_is_complete() {
        let slice = |name: &str, pool: &str, generation: i64, of: i64| -> Arc<ResourceSlice> {
            let spec =
                json!({"driver": "d", "pool": {"name": pool, "generation": generation, "resourceSliceCount": of}});
            Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("a slice"))
        };
        let names = |slices: &[Arc<ResourceSlice>]| -> Vec<String> {
            complete_pools(slices).iter().filter_map(|it| it.metadata.name.clone()).collect()
        };
        let all = [slice("a", "p", 1, 2), slice("b", "p", 1, 2), slice("c", "q", 1, 1)];
        assert_eq!(names(&all), ["a", "b", "c"]);
        assert_eq!(names(&all[1..]), ["c"]);
        let newer = [slice("a", "p", 1, 2), slice("n", "p", 2, 1), slice("b", "p", 1, 2)];
        assert_eq!(names(&newer), ["n"]);
    }
}
