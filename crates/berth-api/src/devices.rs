//! Devices that drivers publish in ResourceSlices (resource.k8s.io/v1): as expressions see them, and
//! by pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::quantity::Quantity;
use berth_cel::device::{self, Attribute};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice};

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
