//! Requirements of a pod's claims of devices on its node.
//!
//! [`DeviceStore`] has the claims, device classes and published devices. [`DeviceNeeds`] has the
//! requirements of one pod, evaluated once and then checked for each node. Devices that a decision
//! chose count as allocated until the API shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::devices::complete_pools;
use berth_cel::device::Selector;
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceClass,
    DeviceRequestAllocationResult, ResourceClaim, ResourceSlice,
};
use kube::ResourceExt;

use super::allocator::{DeviceId, Requests, allocate, held};
use super::matching::{Labels, matches_node_selector};
use super::{PodInfo, Unfit};

/// Maximum number of pods that can use a claim at once.
const USERS_MAX: usize = 256;

/// Claims of devices, device classes and published devices. Clones share the data until they
/// change.
#[derive(Clone, Debug, Default)]
pub struct DeviceStore(Arc<Inventory>);

#[derive(Clone, Debug, Default)]
struct Inventory {
    claims: BTreeMap<ObjectKey, Arc<ResourceClaim>>,
    classes: BTreeMap<String, Arc<Class>>,
    slices: BTreeMap<String, Arc<ResourceSlice>>,
    /// Names of slices by the node that they are for; those for several nodes are under "".
    by_node: BTreeMap<String, BTreeSet<String>>,
    /// Allocations that decisions chose, by claim, until the API shows them.
    chosen: BTreeMap<ObjectKey, Arc<AllocationResult>>,
    /// Number of claims that hold each device.
    taken: BTreeMap<DeviceId, usize>,
}

/// A device class with its compiled selectors.
#[derive(Debug)]
struct Class {
    object: Arc<DeviceClass>,
    selectors: Result<Vec<Selector>, String>,
}

impl DeviceStore {
    /// Sets or removes a claim.
    pub fn set_claim(&mut self, key: &ObjectKey, claim: Option<Arc<ResourceClaim>>) {
        let inventory = Arc::make_mut(&mut self.0);
        if let Some(before) = inventory.claims.remove(key).and_then(|claim| allocation(&claim).cloned()) {
            inventory.release(&before);
        }
        let Some(claim) = claim else {
            self.give_back(key);
            return;
        };
        if let Some(allocated) = allocation(&claim).cloned() {
            // The API shows the decision, or that of another scheduler.
            if let Some(chosen) = inventory.chosen.remove(key) {
                inventory.release(&chosen);
            }
            inventory.take(&allocated);
        }
        inventory.claims.insert(key.clone(), claim);
    }

    /// Sets or removes a device class.
    pub fn set_class(&mut self, name: &str, class: Option<Arc<DeviceClass>>) {
        let inventory = Arc::make_mut(&mut self.0);
        let Some(object) = class else {
            inventory.classes.remove(name);
            return;
        };
        let expressions = object.spec.selectors.iter().flatten().filter_map(|selector| selector.cel.as_ref());
        let compiled = expressions.map(|cel| Selector::compile(&cel.expression));
        let selectors = compiled.collect::<Result<_, _>>().map_err(|error| format!("deviceclass {name}: CEL {error}"));
        inventory.classes.insert(name.to_owned(), Arc::new(Class { object, selectors }));
    }

    /// Sets or removes a slice.
    pub fn set_slice(&mut self, name: &str, slice: Option<Arc<ResourceSlice>>) {
        let inventory = Arc::make_mut(&mut self.0);
        let node = |slice: &ResourceSlice| slice.spec.node_name.clone().unwrap_or_default();
        if let Some(before) = inventory.slices.remove(name) {
            let node = node(&before);
            if let Some(names) = inventory.by_node.get_mut(&node) {
                names.remove(name);
                if names.is_empty() {
                    inventory.by_node.remove(&node);
                }
            }
        }
        if let Some(slice) = slice {
            inventory.by_node.entry(node(&slice)).or_default().insert(name.to_owned());
            inventory.slices.insert(name.to_owned(), slice);
        }
    }

    /// The claim with this key.
    pub fn claim(&self, key: &ObjectKey) -> Option<&Arc<ResourceClaim>> {
        self.0.claims.get(key)
    }

    /// The allocation that a decision chose for a claim, if the API does not show it yet.
    pub fn chosen(&self, claim: &ObjectKey) -> Option<Arc<AllocationResult>> {
        self.0.chosen.get(claim).cloned()
    }

    /// Chooses devices for the unallocated claims of a pod on its node, so that no other claim gets
    /// them. Chooses nothing if the node does not have them.
    pub fn choose(&mut self, pod: &Pod, node: &str, labels: &Labels) {
        let Ok(choices) = self.needs(pod).on(node, labels) else { return };
        for (claim, allocation) in choices {
            let inventory = Arc::make_mut(&mut self.0);
            inventory.take(&allocation);
            inventory.chosen.insert(claim, Arc::new(allocation));
        }
    }

    /// Reverts the choice for a claim.
    pub fn give_back(&mut self, claim: &ObjectKey) {
        if self.0.chosen.contains_key(claim) {
            let inventory = Arc::make_mut(&mut self.0);
            if let Some(chosen) = inventory.chosen.remove(claim) {
                inventory.release(&chosen);
            }
        }
    }

    /// Requirements of the pod's claims.
    pub fn needs(&self, pod: &Pod) -> DeviceNeeds {
        let mut needs = DeviceNeeds { inventory: self.0.clone(), ..DeviceNeeds::default() };
        if let Err(why) = self.collect(pod, &mut needs) {
            needs.blocked = Some(why);
        }
        needs
    }

    fn collect(&self, pod: &Pod, needs: &mut DeviceNeeds) -> Result<(), String> {
        for key in claims_of(pod)? {
            let name = &key.name;
            let claim = self.claim(&key).ok_or_else(|| format!("resourceclaim \"{name}\" not found"))?;
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("resourceclaim \"{name}\" is being deleted"));
            }
            if let Some(owner) = owner(claim)
                && Some(owner) != pod.metadata.uid.as_deref()
            {
                return Err(format!("resourceclaim \"{name}\" was not created for the pod"));
            }
            let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
            let others = users.filter(|user| Some(user.uid.as_str()) != pod.metadata.uid.as_deref()).count();
            if others >= USERS_MAX {
                return Err(format!("resourceclaim \"{name}\" is used by {USERS_MAX} pods already"));
            }
            match self.0.allocation(&key, claim) {
                Some(allocation) => needs.allocated.extend(allocation.node_selector.clone()),
                None => {
                    let requests = Requests::compile(&claim.spec, |class| self.0.selectors(class))
                        .map_err(|why| format!("resourceclaim \"{name}\": {why}"))?;
                    needs.open.push((key, requests));
                }
            }
        }
        Ok(())
    }
}

impl Inventory {
    fn allocation<'a>(&'a self, key: &ObjectKey, claim: &'a ResourceClaim) -> Option<&'a AllocationResult> {
        allocation(claim).or_else(|| self.chosen.get(key).map(Arc::as_ref))
    }

    fn selectors(&self, class: &str) -> Result<Vec<Selector>, String> {
        let found = self.classes.get(class).ok_or_else(|| format!("deviceclass \"{class}\" not found"))?;
        found.selectors.clone()
    }

    fn take(&mut self, allocation: &AllocationResult) {
        for device in held(results(allocation)) {
            *self.taken.entry(device).or_default() += 1;
        }
    }

    fn release(&mut self, allocation: &AllocationResult) {
        for device in held(results(allocation)) {
            if let Some(count) = self.taken.get_mut(&device) {
                *count -= 1;
                if *count == 0 {
                    self.taken.remove(&device);
                }
            }
        }
    }

    /// The complete pools that a node can use.
    fn slices_for(&self, node: &str, labels: &Labels) -> Vec<Arc<ResourceSlice>> {
        let own = self.by_node.get(node).into_iter().flatten();
        let shared = self.by_node.get("").into_iter().flatten();
        let slices = own.chain(shared).filter_map(|name| self.slices.get(name));
        let reaches = |slice: &&Arc<ResourceSlice>| {
            slice.spec.node_name.is_some()
                || slice.spec.all_nodes == Some(true)
                || slice.spec.node_selector.as_ref().is_some_and(|it| matches_node_selector(it, node, labels))
        };
        complete_pools(&slices.filter(reaches).cloned().collect::<Vec<_>>())
    }

    /// The configuration that a class and a claim have for the devices of these results.
    fn configuration(
        &self,
        claim: &ResourceClaim,
        results: &[DeviceRequestAllocationResult],
    ) -> Vec<DeviceAllocationConfiguration> {
        let mut all = Vec::new();
        let spec = claim.spec.devices.as_ref();
        for request in spec.iter().flat_map(|devices| devices.requests.iter().flatten()) {
            let exactly = request.exactly.as_ref().map(|it| (request.name.clone(), &it.device_class_name));
            let alternatives = request.first_available.iter().flatten();
            let alternatives = alternatives.map(|it| (format!("{}/{}", request.name, it.name), &it.device_class_name));
            for (name, class) in exactly.into_iter().chain(alternatives) {
                if !results.iter().any(|result| result.request == name) {
                    continue;
                }
                let class = self.classes.get(class.as_str());
                let config = class.into_iter().flat_map(|class| class.object.spec.config.iter().flatten());
                all.extend(config.map(|config| DeviceAllocationConfiguration {
                    source: "FromClass".to_owned(),
                    requests: Some(vec![name.clone()]),
                    opaque: config.opaque.clone(),
                }));
            }
        }
        let own = spec.iter().flat_map(|devices| devices.config.iter().flatten());
        all.extend(own.map(|config| DeviceAllocationConfiguration {
            source: "FromClaim".to_owned(),
            requests: config.requests.clone(),
            opaque: config.opaque.clone(),
        }));
        all
    }

    /// The allocation of these devices. Devices of a node can be used on that node only.
    fn allocation_of(
        &self,
        key: &ObjectKey,
        node: &str,
        results: Vec<DeviceRequestAllocationResult>,
    ) -> AllocationResult {
        let config = self.claims.get(key).map(|claim| self.configuration(claim, &results)).unwrap_or_default();
        let on_node = self.by_node.get(node).into_iter().flatten().filter_map(|name| self.slices.get(name));
        let local: BTreeSet<(&str, &str)> =
            on_node.map(|slice| (slice.spec.driver.as_str(), slice.spec.pool.name.as_str())).collect();
        let is_local = results.iter().any(|it| local.contains(&(it.driver.as_str(), it.pool.as_str())));
        AllocationResult {
            devices: Some(DeviceAllocationResult {
                results: Some(results),
                config: (!config.is_empty()).then_some(config),
            }),
            node_selector: is_local.then(|| only_node(node)),
            allocation_timestamp: None,
        }
    }
}

/// A selector of one node.
fn only_node(node: &str) -> NodeSelector {
    let field = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm { match_fields: Some(vec![field]), ..NodeSelectorTerm::default() }],
    }
}

/// The allocation of a claim.
pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

fn results(allocation: &AllocationResult) -> &[DeviceRequestAllocationResult] {
    allocation.devices.as_ref().and_then(|devices| devices.results.as_deref()).unwrap_or_default()
}

/// UID of the pod for which the claim was created.
pub fn owner(claim: &ResourceClaim) -> Option<&str> {
    let owners = claim.owner_references().iter();
    let mut pods = owners.filter(|owner| owner.kind == "Pod" && owner.controller == Some(true));
    pods.next().map(|owner| owner.uid.as_str())
}

/// The claims of a pod that exist or must exist. A template may say that a pod needs no claim.
///
/// # Errors
/// A claim was not created from its template yet.
pub fn claims_of(pod: &Pod) -> Result<Vec<ObjectKey>, String> {
    let namespace = pod.namespace().unwrap_or_default();
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let mut keys = Vec::new();
    for claim in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        let name = match &claim.resource_claim_name {
            Some(name) => Some(name),
            None => {
                let mut created = statuses.clone().filter(|status| status.name == claim.name);
                let created = created.next().ok_or_else(|| {
                    format!(
                        "waiting for the resource claim controller to create the resourceclaim of \"{}\"",
                        claim.name
                    )
                })?;
                created.resource_claim_name.as_ref()
            }
        };
        keys.extend(name.map(|name| ObjectKey::namespaced(&namespace, name)));
    }
    Ok(keys)
}

/// Requirements of the claims of one pod on its node.
#[derive(Clone, Debug, Default)]
pub struct DeviceNeeds {
    /// Why no node is suitable now.
    pub blocked: Option<String>,
    /// Nodes on which allocated devices can be used.
    allocated: Vec<NodeSelector>,
    /// Claims without devices.
    open: Vec<(ObjectKey, Requests)>,
    inventory: Arc<Inventory>,
}

impl DeviceNeeds {
    /// The allocations of the open claims on a node.
    ///
    /// # Errors
    /// The reason why the node does not fit.
    pub fn on(&self, node: &str, labels: &Labels) -> Result<Vec<(ObjectKey, AllocationResult)>, Unfit> {
        if let Some(why) = &self.blocked {
            return Err(Unfit::Claims(why.clone()));
        }
        if !self.allocated.iter().all(|selector| matches_node_selector(selector, node, labels)) {
            return Err(Unfit::DevicesElsewhere);
        }
        if self.open.is_empty() {
            return Ok(Vec::new());
        }
        let requests: Vec<&Requests> = self.open.iter().map(|(_, requests)| requests).collect();
        let slices = self.inventory.slices_for(node, labels);
        let is_taken = |id: &DeviceId| self.inventory.taken.contains_key(id);
        let chosen = allocate(&requests, &slices, &is_taken).map_err(Unfit::Claims)?.ok_or(Unfit::Devices)?;
        let allocations = self
            .open
            .iter()
            .zip(chosen)
            .map(|((key, _), results)| (key.clone(), self.inventory.allocation_of(key, node, results)));
        Ok(allocations.collect())
    }
}

impl PodInfo {
    /// True if it has claims of devices.
    pub fn claims_devices(&self) -> bool {
        let claims = self.pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
        claims.is_some_and(|claims| !claims.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(name: &str, status: Value) -> Arc<ResourceClaim> {
        let request =
            json!({"name": "r", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}});
        let opaque = json!({"driver": "d", "parameters": {"share": true}});
        let object = json!({"metadata": {"name": name, "namespace": "ns"}, "status": status,
            "spec": {"devices": {"requests": [request], "config": [{"opaque": opaque}]}}});
        Arc::new(serde_json::from_value(object).expect("a claim"))
    }

    fn pod(claims: &[&str]) -> Pod {
        let claims: Vec<Value> = claims.iter().map(|name| json!({"name": name, "resourceClaimName": name})).collect();
        let object = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "resourceClaims": claims}});
        serde_json::from_value(object).expect("a pod")
    }

    fn slice(node: &str) -> Arc<ResourceSlice> {
        let object = json!({"metadata": {"name": node}, "spec": {"driver": "d", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]}});
        Arc::new(serde_json::from_value(object).expect("a slice"))
    }

    fn store() -> DeviceStore {
        let mut store = DeviceStore::default();
        let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'd'"}}]}});
        store.set_class("gpu", Some(Arc::new(serde_json::from_value(class).expect("a class"))));
        store.set_slice("n1", Some(slice("n1")));
        for name in ["a", "b"] {
            store.set_claim(&ObjectKey::namespaced("ns", name), Some(claim(name, json!({}))));
        }
        store
    }

    /// Names of the claims that get devices on the node, or the reason why they do not.
    fn check(store: &DeviceStore, claims: &[&str], node: &str) -> Result<Vec<String>, String> {
        let allocations = store.needs(&pod(claims)).on(node, &Labels::new()).map_err(|unfit| unfit.to_string())?;
        Ok(allocations.into_iter().map(|(key, _)| key.name).collect())
    }

    #[test]
    fn a_pod_fits_where_its_claims_get_devices() {
        let store = store();
        assert_eq!(check(&store, &["a"], "n1"), Ok(vec!["a".to_owned()]));
        assert_eq!(check(&store, &["a"], "n2"), Err("cannot allocate all claims".to_owned()));
        assert_eq!(check(&store, &["a", "b"], "n1"), Err("cannot allocate all claims".to_owned()));
        assert_eq!(check(&store, &["none"], "n1"), Err("resourceclaim \"none\" not found".to_owned()));
    }

    #[test]
    fn chosen_devices_are_taken_until_the_claim_is_released() {
        let mut store = store();
        let (a, labels) = (ObjectKey::namespaced("ns", "a"), Labels::new());
        store.choose(&pod(&["a"]), "n1", &labels);
        assert_eq!(check(&store, &["b"], "n1"), Err("cannot allocate all claims".to_owned()));
        let allocation = store.chosen(&a).expect("an allocation");
        let written = serde_json::to_value(&*allocation).expect("JSON");
        assert_eq!(
            written["devices"]["results"],
            json!([{"request": "r", "driver": "d", "pool": "n1", "device": "gpu-0"}])
        );
        assert_eq!(written["devices"]["config"][0]["source"], "FromClaim");
        // The API shows the allocation.
        store.set_claim(&a, Some(claim("a", json!({"allocation": written}))));
        assert_eq!(store.chosen(&a), None);
        assert_eq!(check(&store, &["b"], "n1"), Err("cannot allocate all claims".to_owned()));
        assert_eq!(check(&store, &["a"], "n1"), Ok(Vec::new()), "it has its devices");
        store.set_slice("n2", Some(slice("n2")));
        assert_eq!(check(&store, &["a"], "n2"), Err("node(s) cannot use the devices that the claims have".to_owned()));
        assert_eq!(check(&store, &["b"], "n2"), Ok(vec!["b".to_owned()]));
        store.set_claim(&a, Some(claim("a", json!({}))));
        assert_eq!(check(&store, &["b"], "n1"), Ok(vec!["b".to_owned()]));
    }

    #[test]
    fn a_choice_that_was_not_written_is_given_back() {
        let mut store = store();
        store.choose(&pod(&["a"]), "n1", &Labels::new());
        store.give_back(&ObjectKey::namespaced("ns", "a"));
        assert_eq!(check(&store, &["b"], "n1"), Ok(vec!["b".to_owned()]));
        store.choose(&pod(&["a"]), "n1", &Labels::new());
        store.set_claim(&ObjectKey::namespaced("ns", "a"), None);
        assert_eq!(check(&store, &["b"], "n1"), Ok(vec!["b".to_owned()]), "the claim was deleted");
    }

    #[test]
    fn a_pod_waits_until_its_claims_are_created_from_their_templates() {
        let object = |statuses: Value| -> Pod {
            let claim = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
            let object = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
                "spec": {"containers": [], "resourceClaims": [claim]}, "status": {"resourceClaimStatuses": statuses}});
            serde_json::from_value(object).expect("a pod")
        };
        let message = "waiting for the resource claim controller to create the resourceclaim of \"gpu\"";
        assert_eq!(claims_of(&object(json!([]))), Err(message.to_owned()));
        let created = object(json!([{"name": "gpu", "resourceClaimName": "p-gpu-x"}]));
        assert_eq!(claims_of(&created), Ok(vec![ObjectKey::namespaced("ns", "p-gpu-x")]));
        assert_eq!(claims_of(&object(json!([{"name": "gpu"}]))), Ok(Vec::new()));
    }
}
