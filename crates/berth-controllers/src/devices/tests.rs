//! Tests of counting, over caches that are filled by hand.

use serde_json::{Value, json};

use super::*;

/// Devices with these mappings and objects. All gates are on.
fn devices(mappings: Value, objects: &[Value]) -> Devices {
    let gates = [
        Gate::KueueDRAIntegrationConsumableCapacity,
        Gate::KueueDRAIntegrationExtendedResource,
        Gate::KueueDRAIntegrationPartitionableDevices,
    ];
    let gates = gates.into_iter().fold(Gates::default(), |gates, gate| gates.with(gate, true));
    let mappings: Vec<DeviceClassMapping> = serde_json::from_value(mappings).expect("mappings");
    let workloads = Cache::for_tests([]);
    let devices = Devices::by_hand(&mappings, &gates, &workloads);
    for object in objects {
        match object["kind"].as_str() {
            Some("ResourceClaimTemplate") => devices.template_cache().observe(typed(object)),
            Some("DeviceClass") => devices.class_cache().observe(typed(object)),
            _ => devices.slice_cache().observe(typed(object)),
        }
    }
    devices
}

fn typed<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).expect("an object of its type")
}

fn template(requests: Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t", "namespace": "ns"}, "spec": {"spec": {"devices": {"requests": requests}}}})
}

fn exactly(class: &str, count: i64, selector: &str) -> Value {
    let selectors = if selector.is_empty() { json!([]) } else { json!([{"cel": {"expression": selector}}]) };
    json!({"name": "r", "exactly": {"deviceClassName": class, "allocationMode": "ExactCount", "count": count,
        "selectors": selectors}})
}

fn class(name: &str, selector: &str, extended: Option<&str>, created: &str) -> Value {
    let selectors = if selector.is_empty() { json!([]) } else { json!([{"cel": {"expression": selector}}]) };
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"selectors": selectors, "extendedResourceName": extended}})
}

/// A slice of the only pool of `gpu.example.com`, which has `of` slices.
fn slice(devices: Value, of: i64) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
        "spec": {"driver": "gpu.example.com", "nodeName": "n", "devices": devices,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": of}}})
}

fn partition(name: &str, profile: &str, memory: &str) -> Value {
    json!({"name": name, "attributes": {"profile": {"string": profile}},
        "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}]})
}

fn workload(pod: Value) -> Workload {
    typed(&json!({"metadata": {"name": "w", "namespace": "ns"},
        "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": pod}}]}}))
}

fn claiming() -> Workload {
    let claim = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
    workload(json!({"containers": [], "resourceClaims": [claim]}))
}

/// The amounts that a workload adds, as `resource=amount`, or the message of its problem.
fn added(devices: &Devices, workload: &Workload) -> Result<String, String> {
    let specs = || workload.spec.pod_sets.iter().filter_map(|set| set.template.spec.clone()).collect();
    let charges = devices.charges(workload, specs).map_err(|problem| problem.message)?;
    let amounts = charges.0.values().flat_map(|change| {
        let replaced = change.replaced.iter().map(|resource| format!("-{resource}"));
        replaced.chain(change.added.iter().map(|(resource, amount)| format!("{resource}={amount}")))
    });
    Ok(amounts.collect::<Vec<_>>().join(" "))
}

fn plain_mapping() -> Value {
    json!([{"name": "gpus", "deviceClassNames": ["gpu", "big-gpu"]}])
}

#[test]
fn requests_for_exact_devices_count_as_the_mapped_resource() {
    let both = template(json!([exactly("gpu", 2, ""), exactly("big-gpu", 3, "")]));
    assert_eq!(added(&devices(plain_mapping(), &[both]), &claiming()), Ok("gpus=5".to_owned()));
    let huge = template(json!([exactly("gpu", i64::MAX, ""), exactly("big-gpu", 3, "")]));
    assert_eq!(added(&devices(plain_mapping(), &[huge]), &claiming()), Ok(format!("gpus={}", i64::MAX)));
    let admin = json!({"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2,
        "adminAccess": true}});
    assert_eq!(added(&devices(plain_mapping(), &[template(json!([admin]))]), &claiming()), Ok(String::new()));
}

#[test]
fn unsupported_requests_are_problems_with_the_path_of_the_claim() {
    let check = |requests: Value, expected: &str| {
        let problem = added(&devices(plain_mapping(), &[template(requests)]), &claiming()).unwrap_err();
        assert_eq!(problem, format!("spec.podSets[0].template.spec.resourceClaims[0]{expected}"));
    };
    check(
        json!([{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]}]),
        ".devices.requests[0]: Invalid value: null: ResourceClaimTemplate t: FirstAvailable device selection is not supported",
    );
    check(
        json!([{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}]),
        ".devices.requests[0].exactly.allocationMode: Invalid value: \"All\": ResourceClaimTemplate t: AllocationMode 'All' is not supported",
    );
    check(
        json!([exactly("other", 1, "")]),
        ".resourceClaimTemplateName: Not found: \"DeviceClass other is not mapped in DRA configuration for podset main\"",
    );
    let missing = added(&devices(plain_mapping(), &[]), &claiming()).unwrap_err();
    assert_eq!(
        missing,
        "spec.podSets[0].template.spec.resourceClaims[0]: Internal error: failed to get claim spec for \
         ResourceClaimTemplate t in podset main: resourceclaimtemplates.resource.k8s.io \"t\" not found"
    );
}

#[test]
fn a_claim_by_name_is_a_problem() {
    let by_name = workload(json!({"containers": [], "resourceClaims": [{"name": "g", "resourceClaimName": "shared"}]}));
    let devices = devices(plain_mapping(), &[]);
    let problem = added(&devices, &by_name).unwrap_err();
    assert_eq!(problem, "KueueDRAIntegration feature does not support use of resource claims");
}

#[test]
fn without_the_gate_claims_are_rejected_unless_another_gate_lets_them_pass() {
    let workloads = Cache::for_tests([]);
    let of = |rejects: bool| {
        let gates = Gates::default()
            .with(Gate::KueueDRAIntegration, false)
            .with(Gate::KueueDRARejectWorkloadsWhenDRADisabled, rejects);
        added(&Devices::by_hand(&[], &gates, &workloads), &claiming())
    };
    let message = "Workload uses DRA resources but the KueueDRAIntegration feature gate is not enabled";
    assert_eq!(of(true), Err(message.to_owned()));
    assert_eq!(of(false), Ok(String::new()));
}

#[test]
fn a_selector_needs_enough_matching_devices_in_the_cluster() {
    let asked = |selector: &str, slices: &[Value]| {
        let mut objects = vec![
            template(json!([exactly("gpu", 2, selector)])),
            class("gpu", "device.driver == 'gpu.example.com'", None, "2026-01-01T00:00:00Z"),
        ];
        objects.extend_from_slice(slices);
        added(&devices(plain_mapping(), &objects), &claiming())
    };
    let two = slice(json!([partition("a", "big", "1"), partition("b", "big", "1"), partition("c", "small", "1")]), 1);
    let big = "device.attributes['gpu.example.com'].profile == 'big'";
    assert_eq!(asked(big, std::slice::from_ref(&two)), Ok("gpus=2".to_owned()));
    let small = "device.attributes['gpu.example.com'].profile == 'small'";
    let problem = asked(small, std::slice::from_ref(&two)).unwrap_err();
    assert_eq!(
        problem,
        "spec.podSets[0].template.spec.resourceClaims[0].devices.requests[0].exactly.selectors: Internal error: \
         ResourceClaimTemplate t: insufficient matching devices for CEL selector in DeviceClass gpu: 1 device(s) match \
         in the cluster but 2 requested"
    );
    assert!(asked(big, &[]).unwrap_err().contains("0 device(s) match"));
    let unknown = asked("device.attributes['gpu.example.com'].none == 1", &[two]).unwrap_err();
    assert!(unknown.contains("CEL evaluation failed for DeviceClass gpu: no such key: none"), "{unknown}");
    let malformed = asked("device.driver ==", &[]).unwrap_err();
    assert!(
        malformed.contains("exactly.selectors[0].cel.expression: Invalid value: \"device.driver ==\""),
        "{malformed}"
    );
}

fn source(kind: &str) -> Value {
    json!({kind: {"name": "memory", "driver": "gpu.example.com",
        "deviceSelector": {"cel": {"expression": "device.driver == 'gpu.example.com'"}}}})
}

#[test]
fn counters_of_partitions_are_counted_in_place_of_devices() {
    let mapping = json!([{"name": "gpu.memory", "deviceClassNames": ["mig"], "sources": [source("counter")]}]);
    let check = |count: i64, selector: &str, slices: i64| {
        let partitions = json!([
            partition("a", "1g", "4864Mi"),
            partition("b", "1g", "4864Mi"),
            partition("c", "7g", "40320Mi"),
            {"name": "d", "attributes": {"profile": {"string": "none"}}},
        ]);
        let objects = [
            template(json!([exactly("mig", count, selector)])),
            class("mig", "", None, "2026-01-01T00:00:00Z"),
            slice(partitions, slices),
        ];
        added(&devices(mapping.clone(), &objects), &claiming())
    };
    let mib = |amount: i64| Ok(format!("gpu.memory={}", amount << 20));
    assert_eq!(check(1, "device.attributes['gpu.example.com'].profile == '1g'", 1), mib(4864));
    assert_eq!(check(2, "device.attributes['gpu.example.com'].profile == '1g'", 1), mib(2 * 4864));
    assert_eq!(check(1, "", 1), mib(40320), "the largest counter of a matching device counts");
    let incomplete = check(1, "", 2).unwrap_err();
    assert!(incomplete.contains("insufficient matching devices for counter driver: 0 device(s) match"), "{incomplete}");
    let none = check(1, "device.attributes['gpu.example.com'].profile == 'none'", 1).unwrap_err();
    assert!(none.ends_with("matched devices have no consumesCounters entry for counter \"memory\""), "{none}");
}

#[test]
fn capacities_of_shared_devices_are_counted_in_place_of_devices() {
    let mapping = json!([{"name": "gpu.memory", "deviceClassNames": ["vgpu"], "sources": [source("capacity")]}]);
    let check = |requested: Option<&str>, capacity: Value| {
        let mut request = exactly("vgpu", 2, "");
        if let Some(amount) = requested {
            request["exactly"]["capacity"] = json!({"requests": {"memory": amount}});
        }
        let device = json!({"name": "a", "allowMultipleAllocations": true, "capacity": capacity});
        let objects = [
            template(json!([request])),
            class("vgpu", "", None, "2026-01-01T00:00:00Z"),
            slice(json!([device, {"name": "b"}]), 1),
        ];
        added(&devices(mapping.clone(), &objects), &claiming())
    };
    let memory = json!({"memory": {"value": "80", "requestPolicy": {"default": "10", "validValues": ["10", "20"]}}});
    assert_eq!(check(None, memory.clone()), Ok("gpu.memory=20".to_owned()));
    assert_eq!(check(Some("15"), memory.clone()), Ok("gpu.memory=40".to_owned()));
    let beyond = check(Some("30"), memory).unwrap_err();
    assert!(beyond.contains("Invalid value: null: capacity request cannot be satisfied"), "{beyond}");
    let none = check(None, json!({})).unwrap_err();
    assert!(none.ends_with("matched devices have no capacity dimension \"memory\""), "{none}");
}

#[test]
fn an_extended_resource_counts_as_the_devices_of_the_class_that_backs_it() {
    let pod = |init: &str, amounts: &[&str]| {
        let container =
            |amount: &&str| json!({"name": "c", "resources": {"requests": {"example.com/gpu": amount, "cpu": "1"}}});
        workload(json!({"initContainers": [container(&init)],
            "containers": amounts.iter().map(container).collect::<Vec<_>>()}))
    };
    let backing = |name: &str, created: &str| class(name, "", Some("example.com/gpu"), created);
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let unmapped = devices(plain_mapping(), &[backing("other", early)]);
    let own = "-example.com/gpu example.com/gpu=3";
    assert_eq!(added(&unmapped, &pod("1", &["1", "2"])), Ok(own.to_owned()));
    let mapped = devices(plain_mapping(), &[backing("other", early), backing("gpu", late)]);
    assert_eq!(added(&mapped, &pod("1", &["1", "2"])), Ok("-example.com/gpu gpus=3".to_owned()));
    assert_eq!(added(&mapped, &pod("7", &["1", "2"])), Ok("-example.com/gpu gpus=7".to_owned()));
    let same_time = devices(plain_mapping(), &[backing("other", late), backing("gpu", late)]);
    assert_eq!(added(&same_time, &pod("0", &["1"])), Ok("-example.com/gpu gpus=1".to_owned()), "the first by name");
    let fraction = added(&mapped, &pod("0", &["500m", "500m"])).unwrap_err();
    assert!(
        fraction.contains("containers[0].resources.requests.example.com/gpu: Invalid value: \"500m\": extended resource quantity must be an integer"),
        "{fraction}"
    );
    assert_eq!(added(&devices(plain_mapping(), &[]), &pod("1", &["1"])), Ok(String::new()));
    let counted = json!([{"name": "gpu.memory", "deviceClassNames": ["gpu"], "sources": [source("counter")]}]);
    let rejected = added(&devices(counted, &[backing("gpu", late)]), &pod("0", &["1"])).unwrap_err();
    assert!(rejected.contains("resolves to DeviceClass gpu with counters configured"), "{rejected}");
}

#[test]
fn charges_replace_extended_resources_and_add_devices() {
    let mut charges = Charges::default();
    charges.replace(0, "example.com/gpu");
    charges.add(0, "gpus", 2);
    charges.add(0, "gpus", 1);
    let mut workload = berth_engine::model::Workload::new("ns", "w");
    let requests = [("example.com/gpu".into(), 3), ("cpu".into(), 500)];
    workload.pod_sets = vec![berth_engine::model::PodSet {
        name: "main".into(),
        count: 1,
        min_count: None,
        reclaimable: 0,
        requests: requests.into(),
        template: Arc::default(),
        topology: None,
    }];
    charges.apply(&mut workload);
    let requests: Vec<(&str, i64)> = workload.pod_sets[0].requests.iter().map(|(name, it)| (&**name, *it)).collect();
    assert_eq!(requests, [("cpu", 500), ("gpus", 3)]);
}

#[test]
fn amounts_of_counters_are_written_with_binary_suffixes() {
    let devices = devices(
        json!([{"name": "gpu.memory", "deviceClassNames": ["mig"], "sources": [source("counter")]},
            {"name": "gpus", "deviceClassNames": ["gpu"]}]),
        &[],
    );
    let restated = |resource: &str, amount: &str| {
        let mut amount = ApiQuantity(amount.to_owned());
        devices.restate(resource, &mut amount);
        amount.0
    };
    assert_eq!(restated("gpu.memory", "5100273664"), "4864Mi");
    assert_eq!(restated("gpus", "1024"), "1024");
}
