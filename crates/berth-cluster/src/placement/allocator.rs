//! Chooses devices of one node for claims.
//!
//! A depth-first search over requests, their alternatives and the devices that match. Constraints
//! between devices and shared counters are checked with each device, so that most dead ends are
//! short. The search stops after [`STEPS_MAX`] steps, and then the claims do not fit.
//!
//! Devices that may be allocated several times (`allowMultipleAllocations`) are allocated once.
//!
//! Source: Kubernetes documentation, "Dynamic Resource Allocation", and KEP-4381, KEP-4815,
//! KEP-4816.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::devices::{attribute, visible};
use berth_apimachinery::quantity::Quantity;
use berth_cel::device::{Attribute, Selector, qualified};
use k8s_openapi::api::resource::v1::{
    Device, DeviceRequestAllocationResult, DeviceToleration, ResourceClaimSpec, ResourceSlice,
};
use std::sync::Arc;

/// Maximum number of devices that a search tries.
const STEPS_MAX: usize = 20_000;
/// Maximum number of devices of one claim.
const DEVICES_MAX: usize = 32;

/// Identity of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// Name within the pool.
    pub device: String,
}

impl DeviceId {
    /// The device of an allocation.
    pub fn of(result: &DeviceRequestAllocationResult) -> Self {
        DeviceId { driver: result.driver.clone(), pool: result.pool.clone(), device: result.device.clone() }
    }
}

/// Number of devices of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Exactly(usize),
    All,
}

/// One way to satisfy a request.
#[derive(Clone, Debug)]
struct Alternative {
    /// Name in results and constraints: `request`, or `request/subrequest`.
    name: String,
    count: Count,
    /// The device is also given if another claim has it.
    for_administration: bool,
    selectors: Vec<Selector>,
    tolerations: Vec<DeviceToleration>,
}

/// A claim whose requests are compiled.
#[derive(Clone, Debug)]
pub struct Requests {
    spec: ResourceClaimSpec,
    /// The alternatives of each request, in order.
    requests: Vec<Vec<Alternative>>,
}

/// The common part of exact requests and subrequests.
struct Asked<'a> {
    name: String,
    class: &'a str,
    mode: Option<&'a str>,
    count: Option<i64>,
    selectors: &'a [k8s_openapi::api::resource::v1::DeviceSelector],
    tolerations: &'a [DeviceToleration],
    for_administration: bool,
}

impl Requests {
    /// The claim's specification.
    pub fn spec(&self) -> &ResourceClaimSpec {
        &self.spec
    }

    /// Compiles the requests of a claim. `class`: the selectors of a device class.
    ///
    /// # Errors
    /// Why no node can satisfy the claim.
    pub fn compile(
        spec: &ResourceClaimSpec,
        class: impl Fn(&str) -> Result<Vec<Selector>, String>,
    ) -> Result<Self, String> {
        let mut requests = Vec::new();
        for request in spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten()) {
            let mut alternatives = Vec::new();
            if let Some(it) = &request.exactly {
                alternatives.push(Asked {
                    name: request.name.clone(),
                    class: &it.device_class_name,
                    mode: it.allocation_mode.as_deref(),
                    count: it.count,
                    selectors: it.selectors.as_deref().unwrap_or_default(),
                    tolerations: it.tolerations.as_deref().unwrap_or_default(),
                    for_administration: it.admin_access == Some(true),
                });
            }
            alternatives.extend(request.first_available.iter().flatten().map(|it| Asked {
                name: format!("{}/{}", request.name, it.name),
                class: &it.device_class_name,
                mode: it.allocation_mode.as_deref(),
                count: it.count,
                selectors: it.selectors.as_deref().unwrap_or_default(),
                tolerations: it.tolerations.as_deref().unwrap_or_default(),
                for_administration: false,
            }));
            requests.push(alternatives.into_iter().map(|it| compile(it, &class)).collect::<Result<_, _>>()?);
        }
        Ok(Requests { spec: spec.clone(), requests })
    }
}

fn compile(asked: Asked<'_>, class: &impl Fn(&str) -> Result<Vec<Selector>, String>) -> Result<Alternative, String> {
    let mut selectors = class(asked.class)?;
    for selector in asked.selectors.iter().filter_map(|selector| selector.cel.as_ref()) {
        let compiled = Selector::compile(&selector.expression);
        selectors.push(compiled.map_err(|error| format!("request {}: CEL {error}", asked.name))?);
    }
    let count = match asked.mode {
        None | Some("ExactCount") => Count::Exactly(usize::try_from(asked.count.unwrap_or(1)).unwrap_or(0)),
        Some("All") => Count::All,
        Some(other) => return Err(format!("request {}: unsupported allocation mode {other}", asked.name)),
    };
    Ok(Alternative {
        name: asked.name,
        count,
        for_administration: asked.for_administration,
        selectors,
        tolerations: asked.tolerations.to_vec(),
    })
}

/// A device of the node.
struct Candidate<'a> {
    id: DeviceId,
    device: &'a Device,
    /// Another claim has the device.
    is_taken: bool,
}

/// A shared counter of a pool.
type CounterKey = (String, String, String, String);

/// A device chosen for a request of a claim.
#[derive(Clone, Debug)]
struct Chosen {
    claim: usize,
    name: String,
    device: usize,
    for_administration: bool,
}

/// The devices of each claim, or `None` if the node does not have them. `slices`: what the node can
/// use; `taken`: devices of other claims.
///
/// # Errors
/// A selector failed for a device.
pub fn allocate(
    claims: &[&Requests],
    slices: &[Arc<ResourceSlice>],
    taken: &dyn Fn(&DeviceId) -> bool,
) -> Result<Option<Vec<Vec<DeviceRequestAllocationResult>>>, String> {
    let mut candidates = Vec::new();
    for slice in slices {
        for device in slice.spec.devices.iter().flatten() {
            let (driver, pool) = (slice.spec.driver.clone(), slice.spec.pool.name.clone());
            let id = DeviceId { driver, pool, device: device.name.clone() };
            candidates.push(Candidate { is_taken: taken(&id), id, device });
        }
    }
    let matching = matching(claims, &candidates)?;
    let mut search = Search {
        claims,
        free: counters(slices, &candidates),
        candidates: &candidates,
        matching,
        chosen: Vec::new(),
        used: vec![false; candidates.len()],
        steps: 0,
    };
    if !search.request(0, 0) {
        return Ok(None);
    }
    let mut results = vec![Vec::new(); claims.len()];
    for chosen in &search.chosen {
        let id = &candidates[chosen.device].id;
        results[chosen.claim].push(DeviceRequestAllocationResult {
            request: chosen.name.clone(),
            driver: id.driver.clone(),
            pool: id.pool.clone(),
            device: id.device.clone(),
            admin_access: chosen.for_administration.then_some(true),
            ..DeviceRequestAllocationResult::default()
        });
    }
    Ok(Some(results))
}

/// Indexes of the devices that match, by claim, request and alternative.
type Matching = Vec<Vec<Vec<Vec<usize>>>>;

fn matching(claims: &[&Requests], candidates: &[Candidate<'_>]) -> Result<Matching, String> {
    let seen: Vec<_> = candidates.iter().map(|it| visible(&it.id.driver, it.device)).collect();
    let of_alternative = |alternative: &Alternative| {
        let mut found = Vec::new();
        for (index, device) in seen.iter().enumerate() {
            if !tolerates(&alternative.tolerations, candidates[index].device) {
                continue;
            }
            let mut all = true;
            for selector in &alternative.selectors {
                all = all
                    && selector.matches(device).map_err(|error| {
                        let DeviceId { driver, pool, device } = &candidates[index].id;
                        format!("request {}: CEL for device {driver}/{pool}/{device}: {error}", alternative.name)
                    })?;
            }
            if all {
                found.push(index);
            }
        }
        Ok(found)
    };
    claims
        .iter()
        .map(|claim| {
            let of_request =
                |request: &Vec<Alternative>| request.iter().map(of_alternative).collect::<Result<_, String>>();
            claim.requests.iter().map(of_request).collect()
        })
        .collect()
}

/// True if the request tolerates the taints of the device that keep it from being allocated.
fn tolerates(tolerations: &[DeviceToleration], device: &Device) -> bool {
    let mut taints = device.taints.iter().flatten().filter(|taint| taint.effect != "None");
    taints.all(|taint| {
        tolerations.iter().any(|it| {
            it.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == taint.effect)
                && it.key.as_deref().is_none_or(|key| key.is_empty() || key == taint.key)
                && (it.operator.as_deref() == Some("Exists")
                    || it.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default())
        })
    })
}

/// What is left of the shared counters of the pools.
fn counters(slices: &[Arc<ResourceSlice>], candidates: &[Candidate<'_>]) -> BTreeMap<CounterKey, Quantity> {
    let mut free = BTreeMap::new();
    for slice in slices {
        for set in slice.spec.shared_counters.iter().flatten() {
            for (name, counter) in &set.counters {
                if let Ok(value) = Quantity::parse(&counter.value.0) {
                    let (driver, pool) = (slice.spec.driver.clone(), slice.spec.pool.name.clone());
                    free.insert((driver, pool, set.name.clone(), name.clone()), value);
                }
            }
        }
    }
    for taken in candidates.iter().filter(|it| it.is_taken) {
        for (key, amount) in consumption(taken) {
            if let Some(left) = free.get_mut(&key) {
                left.sub(amount);
            }
        }
    }
    free
}

/// The shared counters that a device uses.
fn consumption(candidate: &Candidate<'_>) -> Vec<(CounterKey, Quantity)> {
    let sets = candidate.device.consumes_counters.iter().flatten();
    sets.flat_map(|set| {
        set.counters.iter().filter_map(|(name, counter)| {
            let DeviceId { driver, pool, .. } = &candidate.id;
            let key = (driver.clone(), pool.clone(), set.counter_set.clone(), name.clone());
            Some((key, Quantity::parse(&counter.value.0).ok()?))
        })
    })
    .collect()
}

struct Search<'a> {
    claims: &'a [&'a Requests],
    candidates: &'a [Candidate<'a>],
    matching: Matching,
    /// What is left of shared counters.
    free: BTreeMap<CounterKey, Quantity>,
    chosen: Vec<Chosen>,
    /// Devices that a request of the claims has.
    used: Vec<bool>,
    steps: usize,
}

impl Search<'_> {
    /// Chooses devices for this request and all later ones.
    fn request(&mut self, claim: usize, request: usize) -> bool {
        let Some(of_claim) = self.claims.get(claim) else { return true };
        let Some(alternatives) = of_claim.requests.get(request) else { return self.request(claim + 1, 0) };
        (0..alternatives.len()).any(|alternative| {
            let needed = match alternatives[alternative].count {
                Count::Exactly(count) => count,
                // All devices that match, of which the node must have one.
                Count::All => self.matching[claim][request][alternative].len().max(1),
            };
            let of_claim = self.chosen.iter().filter(|chosen| chosen.claim == claim).count();
            of_claim + needed <= DEVICES_MAX && self.devices(claim, request, alternative, needed, 0)
        })
    }

    /// Chooses the remaining devices of an alternative, from this position of its matching devices.
    fn devices(&mut self, claim: usize, request: usize, alternative: usize, needed: usize, from: usize) -> bool {
        if needed == 0 {
            return self.request(claim, request + 1);
        }
        let count = self.matching[claim][request][alternative].len();
        for position in from..count {
            if count - position < needed || self.steps >= STEPS_MAX {
                return false;
            }
            self.steps += 1;
            let device = self.matching[claim][request][alternative][position];
            if !self.take(claim, request, alternative, device) {
                continue;
            }
            if self.devices(claim, request, alternative, needed - 1, position + 1) {
                return true;
            }
            self.give_back();
        }
        false
    }

    /// Takes a device, if it is free and no constraint forbids it.
    fn take(&mut self, claim: usize, request: usize, alternative: usize, device: usize) -> bool {
        let wanted = &self.claims[claim].requests[request][alternative];
        let for_administration = wanted.for_administration;
        if !for_administration && (self.candidates[device].is_taken || self.used[device]) {
            return false;
        }
        let chosen = Chosen { claim, name: wanted.name.clone(), device, for_administration };
        if !self.is_allowed(&chosen) {
            return false;
        }
        if !for_administration {
            let consumed = consumption(&self.candidates[device]);
            let fits = |(key, amount): &(CounterKey, Quantity)| self.free.get(key).is_some_and(|left| left >= amount);
            if !consumed.iter().all(fits) {
                return false;
            }
            for (key, amount) in consumed {
                if let Some(left) = self.free.get_mut(&key) {
                    left.sub(amount);
                }
            }
            self.used[device] = true;
        }
        self.chosen.push(chosen);
        true
    }

    /// Returns the device that was taken last.
    fn give_back(&mut self) {
        let Some(chosen) = self.chosen.pop().filter(|chosen| !chosen.for_administration) else { return };
        self.used[chosen.device] = false;
        for (key, amount) in consumption(&self.candidates[chosen.device]) {
            if let Some(left) = self.free.get_mut(&key) {
                left.add(amount);
            }
        }
    }

    /// True if all constraints of the claim hold with one more device.
    fn is_allowed(&self, new: &Chosen) -> bool {
        let constraints = self.claims[new.claim].spec.devices.iter().flat_map(|it| it.constraints.iter().flatten());
        for constraint in constraints {
            let names = constraint.requests.as_deref().unwrap_or_default();
            let concerns = |chosen: &Chosen| {
                let request = chosen.name.split('/').next().unwrap_or_default();
                names.is_empty() || names.iter().any(|name| *name == chosen.name || name == request)
            };
            if !concerns(new) {
                continue;
            }
            let others = self.chosen.iter().filter(|it| it.claim == new.claim && concerns(it));
            if let Some(name) = &constraint.match_attribute {
                let Some(value) = self.value(new, name) else { return false };
                if others.clone().any(|other| self.value(other, name) != Some(value)) {
                    return false;
                }
            }
            if let Some(name) = &constraint.distinct_attribute {
                let Some(value) = self.value(new, name) else { return false };
                if others.clone().any(|other| self.value(other, name) == Some(value)) {
                    return false;
                }
            }
        }
        true
    }

    /// The value of a chosen device's attribute.
    fn value(&self, chosen: &Chosen, name: &str) -> Option<Attribute<'_>> {
        let candidate = &self.candidates[chosen.device];
        let driver = candidate.id.driver.as_str();
        let wanted = qualified(driver, name);
        let attributes = candidate.device.attributes.as_ref()?;
        let found = attributes.iter().find(|(known, _)| qualified(driver, known) == wanted);
        attribute(found?.1)
    }
}

/// The devices that allocations hold, without those for administration.
pub fn held(results: &[DeviceRequestAllocationResult]) -> BTreeSet<DeviceId> {
    results.iter().filter(|result| result.admin_access != Some(true)).map(DeviceId::of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(devices: Value) -> Arc<ResourceSlice> {
        let object = json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": devices,
            "sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]}});
        Arc::new(serde_json::from_value(object).expect("a slice"))
    }

    /// Eight GPUs: four of each model, two per NUMA node.
    fn gpus() -> Value {
        let gpu = |index: i64| {
            let model = if index < 4 { "big" } else { "small" };
            json!({"name": format!("gpu-{index}"), "attributes": {"model": {"string": model},
                "numa": {"int": index / 2}, "example.com/slot": {"int": index}}})
        };
        (0..8).map(gpu).collect()
    }

    fn of_model(model: &str) -> Value {
        json!([{"cel": {"expression": format!("device.attributes['gpu.example.com'].model == '{model}'")}}])
    }

    fn exactly(name: &str, count: i64, selectors: Value) -> Value {
        json!({"name": name, "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count,
            "selectors": selectors}})
    }

    /// Names of the devices that one claim gets, as `request=device`.
    fn check(devices: Value, claim: Value, taken: &[&str]) -> Result<Option<String>, String> {
        let spec: ResourceClaimSpec = serde_json::from_value(json!({"devices": claim})).expect("a claim");
        let requests = Requests::compile(&spec, |class| match class {
            "gpu" => Ok(vec![Selector::compile("device.driver == 'gpu.example.com'").expect("a selector")]),
            other => Err(format!("deviceclass {other} not found")),
        })?;
        let results = allocate(&[&requests], &[slice(devices)], &|id| taken.contains(&id.device.as_str()))?;
        Ok(results.map(|claims| {
            let names = claims[0].iter().map(|it| format!("{}={}", it.request, it.device));
            names.collect::<Vec<_>>().join(" ")
        }))
    }

    fn some(text: &str) -> Result<Option<String>, String> {
        Ok(Some(text.to_owned()))
    }

    #[test]
    fn a_request_gets_free_devices_that_match() {
        let two = |model: &str| json!({"requests": [exactly("r", 2, of_model(model))]});
        assert_eq!(check(gpus(), two("small"), &[]), some("r=gpu-4 r=gpu-5"));
        assert_eq!(check(gpus(), two("small"), &["gpu-4", "gpu-6"]), some("r=gpu-5 r=gpu-7"));
        assert_eq!(check(gpus(), two("small"), &["gpu-4", "gpu-5", "gpu-6"]), Ok(None));
        assert_eq!(check(gpus(), two("other"), &[]), Ok(None));
        let unknown = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "nic"}}]});
        assert_eq!(check(gpus(), unknown, &[]), Err("deviceclass nic not found".to_owned()));
    }

    #[test]
    fn requests_of_one_claim_do_not_share_devices() {
        let both = json!({"requests": [exactly("a", 2, json!([])), exactly("b", 3, of_model("big"))]});
        // The first request leaves enough devices for the second, which is pickier.
        assert_eq!(check(gpus(), both, &[]), some("a=gpu-0 a=gpu-4 b=gpu-1 b=gpu-2 b=gpu-3"));
    }

    #[test]
    fn all_devices_are_only_given_together() {
        let all = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "All",
            "selectors": of_model("big")}}]});
        assert_eq!(check(gpus(), all.clone(), &[]), some("r=gpu-0 r=gpu-1 r=gpu-2 r=gpu-3"));
        assert_eq!(check(gpus(), all.clone(), &["gpu-2"]), Ok(None));
        assert_eq!(check(json!([]), all, &[]), Ok(None));
    }

    #[test]
    fn the_first_available_alternative_is_taken() {
        let request = json!({"requests": [{"name": "r", "firstAvailable": [
            {"name": "big", "deviceClassName": "gpu", "count": 4, "selectors": of_model("big")},
            {"name": "small", "deviceClassName": "gpu", "count": 2, "selectors": of_model("small")},
        ]}]});
        let big = some("r/big=gpu-0 r/big=gpu-1 r/big=gpu-2 r/big=gpu-3");
        assert_eq!(check(gpus(), request.clone(), &[]), big);
        assert_eq!(check(gpus(), request, &["gpu-0"]), some("r/small=gpu-4 r/small=gpu-5"));
    }

    #[test]
    fn constraints_hold_for_all_devices_of_their_requests() {
        let claim = |constraint: Value, count: i64| json!({"requests": [exactly("a", 1, json!([])), exactly("b", count, json!([]))], "constraints": [constraint]});
        let same = json!({"matchAttribute": "gpu.example.com/numa"});
        assert_eq!(check(gpus(), claim(same.clone(), 1), &["gpu-1", "gpu-2"]), some("a=gpu-4 b=gpu-5"));
        assert_eq!(check(gpus(), claim(same, 2), &[]), Ok(None), "a NUMA node has two devices");
        let only_b = json!({"requests": ["b"], "matchAttribute": "gpu.example.com/numa"});
        assert_eq!(check(gpus(), claim(only_b, 2), &[]), some("a=gpu-0 b=gpu-2 b=gpu-3"));
        let distinct = json!({"distinctAttribute": "gpu.example.com/numa"});
        assert_eq!(check(gpus(), claim(distinct, 3), &[]), some("a=gpu-0 b=gpu-2 b=gpu-4 b=gpu-6"));
        let unknown = json!({"matchAttribute": "gpu.example.com/none"});
        assert_eq!(check(gpus(), claim(unknown, 1), &[]), Ok(None));
    }

    #[test]
    fn partitions_share_the_counters_of_their_device() {
        let partition = |name: &str, memory: &str| json!({"name": name, "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": memory}}}]});
        let devices = json!([partition("whole", "40Gi"), partition("half-0", "20Gi"), partition("half-1", "20Gi")]);
        let claim = |count: i64| json!({"requests": [exactly("r", count, json!([]))]});
        assert_eq!(check(devices.clone(), claim(1), &[]), some("r=whole"));
        assert_eq!(check(devices.clone(), claim(2), &[]), some("r=half-0 r=half-1"));
        assert_eq!(check(devices.clone(), claim(1), &["half-0"]), some("r=half-1"));
        assert_eq!(check(devices, claim(1), &["whole"]), Ok(None));
    }

    #[test]
    fn access_for_administration_does_not_need_a_free_device() {
        let claim = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "adminAccess": true,
            "allocationMode": "All", "selectors": of_model("big")}}]});
        let all = some("r=gpu-0 r=gpu-1 r=gpu-2 r=gpu-3");
        assert_eq!(check(gpus(), claim, &["gpu-0", "gpu-1", "gpu-2", "gpu-3"]), all);
    }

    #[test]
    fn a_tainted_device_needs_a_toleration() {
        let devices = json!([{"name": "a", "taints": [{"key": "broken", "effect": "NoSchedule"}]}]);
        let claim = |tolerations: Value| json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu", "tolerations": tolerations}}]});
        assert_eq!(check(devices.clone(), claim(json!([])), &[]), Ok(None));
        assert_eq!(check(devices, claim(json!([{"key": "broken", "operator": "Exists"}])), &[]), some("r=a"));
    }

    #[test]
    fn a_selector_that_fails_is_an_error() {
        let claim = json!({"requests": [exactly("r", 1, json!([{"cel": {"expression":
            "device.attributes['gpu.example.com'].none == 1"}}]))]});
        let error = check(gpus(), claim, &[]).unwrap_err();
        assert_eq!(error, "request r: CEL for device gpu.example.com/n/gpu-0: no such key: none");
    }

    #[test]
    fn a_search_without_result_ends() {
        let many: Value = (0..32)
            .map(|index| json!({"name": format!("d-{index}"), "attributes": {"model": {"int": index}}}))
            .collect();
        let claim = json!({"requests": [exactly("a", 8, json!([])), exactly("b", 8, json!([])), exactly("c", 8, json!([]))],
            "constraints": [{"requests": ["c"], "matchAttribute": "gpu.example.com/model"}]});
        assert_eq!(check(many, claim, &[]), Ok(None));
    }
}
