//! Requirements of a pod's claims of devices on its node.
//!
//! [`DeviceStore`] has the claims, device classes and published devices. [`DeviceNeeds`] has the
//! requirements of one pod, evaluated once and then checked for each node. Devices that a decision
//! chose count as allocated until the API shows it.
//!
//! A node must have the devices of a pod beside those of the pods that are placed there without
//! devices yet (in a plan of several pods, for example of the autoscaler), and those of the pods
//! for which preemption made room there.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::devices::{backing_class, complete_pools, implicit_class};
use berth_cel::device::Selector;
use berth_runtime::ObjectKey;
use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodResourceClaimStatus,
};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceClass,
    DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimSpec, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;

use super::allocator::{DeviceId, Requests, allocate, held};
use super::extended::{ExtendedClaim, ExtendedNeeds, is_extended_claim};
use super::matching::matches_node_selector;
use super::{Cluster, NodeState, PodInfo, Resources, Unfit};

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
    /// Allocated claims by the UIDs of the pods that use them.
    used: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// Claims that the scheduler made for extended resources, by UID of their pod.
    made: BTreeMap<String, BTreeSet<ObjectKey>>,
    /// Claims for extended resources that are to be made, by pod, until the API shows their
    /// devices.
    to_make: BTreeMap<ObjectKey, Arc<ExtendedClaim>>,
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
        if let Some(before) = inventory.claims.remove(key) {
            inventory.forget_made(key, &before);
            inventory.forget_users(key, &before);
            if let Some(before) = allocation(&before) {
                inventory.release(before);
            }
            // Devices that were chosen for a claim do not suit a later claim of the same name.
            if claim.as_ref().is_none_or(|claim| claim.metadata.uid != before.metadata.uid) {
                inventory.forget_chosen(key);
            }
        }
        let Some(claim) = claim else { return };
        if let Some(allocated) = allocation(&claim).cloned() {
            // The API shows the decision, or that of another scheduler.
            inventory.forget_chosen(key);
            inventory.take(&allocated);
            for user in users(&claim) {
                inventory.used.entry(user.uid.clone()).or_default().insert(key.clone());
            }
        }
        inventory.note_made(key, &claim);
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

    /// The claim for the extended resources of a pod that is to be made, if there is one.
    pub fn claim_to_make(&self, pod: &ObjectKey) -> Option<Arc<ExtendedClaim>> {
        self.0.to_make.get(pod).cloned()
    }

    /// The claims that exist for the extended resources of a pod with this UID.
    pub fn made_claims(&self, uid: &str) -> impl Iterator<Item = &ObjectKey> {
        self.0.made.get(uid).into_iter().flatten()
    }

    /// True if a device class backs any of the requested extended resources.
    pub fn backs_any(&self, requests: &Resources) -> bool {
        !self.0.classes.is_empty() && requests.extended().any(|(resource, _)| self.0.backing(resource).is_some())
    }

    /// Takes the devices that were chosen for the claims and the extended resources of a pod, so
    /// that no other claim gets them.
    pub fn take(&mut self, pod: &ObjectKey, choices: DeviceChoices) {
        let inventory = Arc::make_mut(&mut self.0);
        for (claim, allocation) in choices.claims {
            inventory.take(&allocation);
            inventory.chosen.insert(claim, Arc::new(allocation));
        }
        if let Some(claim) = choices.extended {
            inventory.take(&claim.allocation);
            inventory.to_make.insert(pod.clone(), Arc::new(claim));
        }
    }

    /// The first claim of a pod whose devices some node cannot use, and that no other pod uses. If
    /// its devices are released, the pod may get others there.
    ///
    /// Source: kube-scheduler's plugin DynamicResources, which takes any of these claims.
    pub fn releasable(&self, pod: &PodInfo, cluster: &Cluster) -> Option<ObjectKey> {
        let is_releasable = |claim: &ResourceClaim| {
            let selector = allocation(claim).and_then(|allocation| allocation.node_selector.as_ref());
            let is_elsewhere = |node: &NodeState| {
                selector.is_some_and(|selector| !matches_node_selector(selector, node.name(), node.labels()))
            };
            claim.metadata.deletion_timestamp.is_none()
                && are_users(claim, |user| user.uid == pod.uid())
                && cluster.nodes().any(is_elsewhere)
        };
        let claims = claims_of(&pod.pod).unwrap_or_default();
        claims.into_iter().find(|key| self.claim(key).is_some_and(|claim| is_releasable(claim)))
    }

    /// Reverts the choice for the extended resources of a pod.
    pub fn give_back_extended(&mut self, pod: &ObjectKey) {
        if self.0.to_make.contains_key(pod) {
            Arc::make_mut(&mut self.0).forget_choice(pod);
        }
    }

    /// Reverts the choice for a claim.
    pub fn give_back(&mut self, claim: &ObjectKey) {
        if self.0.chosen.contains_key(claim) {
            Arc::make_mut(&mut self.0).forget_chosen(claim);
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
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(left) = self.made_claims(uid).next() {
            // Of an attempt that did not end with a binding; the scheduler deletes it.
            return Err(format!("cannot schedule extended resource claim \"{}\"", left.name));
        }
        let class = |resource: &str| self.0.backing(resource).map(str::to_owned);
        let spec = pod.spec.as_ref().filter(|_| !self.0.classes.is_empty());
        needs.extended = spec.and_then(|spec| ExtendedNeeds::of(spec, class, |class| self.0.selectors(class)));
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

    /// The device class that backs an extended resource. There are few classes, so they need no
    /// index.
    fn backing(&self, resource: &str) -> Option<&str> {
        if let Some(class) = implicit_class(resource) {
            return self.classes.get_key_value(class).map(|(name, _)| name.as_str());
        }
        backing_class(resource, self.classes.values().map(|class| &class.object))?.metadata.name.as_deref()
    }

    /// Notes a claim that was made for extended resources. If it has the devices that were chosen
    /// for the pod, the choice is written. The claim of an earlier pod of the same name has other
    /// devices.
    fn note_made(&mut self, key: &ObjectKey, claim: &ResourceClaim) {
        let Some(pod) = pod_owner(claim).filter(|_| is_extended_claim(claim)) else { return };
        self.made.entry(pod.uid.clone()).or_default().insert(key.clone());
        let pod = ObjectKey::namespaced(&key.namespace, &pod.name);
        let written = allocation(claim).map(results);
        if self.to_make.get(&pod).is_some_and(|chosen| Some(results(&chosen.allocation)) == written) {
            self.forget_choice(&pod);
        }
    }

    fn forget_made(&mut self, key: &ObjectKey, claim: &ResourceClaim) {
        let Some(uid) = owner(claim).filter(|_| is_extended_claim(claim)) else { return };
        if let Some(claims) = self.made.get_mut(uid) {
            claims.remove(key);
            if claims.is_empty() {
                self.made.remove(uid);
            }
        }
    }

    fn forget_users(&mut self, key: &ObjectKey, claim: &ResourceClaim) {
        for user in users(claim) {
            if let Some(claims) = self.used.get_mut(&user.uid) {
                claims.remove(key);
                if claims.is_empty() {
                    self.used.remove(&user.uid);
                }
            }
        }
    }

    /// Number of claims that would release each device if these pods were evicted, and pods of
    /// `ended` are gone.
    fn freed(&self, evicted: &BTreeSet<String>, ended: &BTreeSet<String>) -> BTreeMap<DeviceId, usize> {
        let keys: BTreeSet<&ObjectKey> = evicted.iter().filter_map(|uid| self.used.get(uid)).flatten().collect();
        let claims = keys.into_iter().filter_map(|key| self.claims.get(key));
        let is_gone = |uid: &String| evicted.contains(uid) || ended.contains(uid);
        let mut freed = BTreeMap::new();
        for claim in claims.filter(|claim| are_users(claim, |user| is_gone(&user.uid))) {
            count_held(claim, &mut freed);
        }
        freed
    }

    fn forget_choice(&mut self, pod: &ObjectKey) {
        if let Some(claim) = self.to_make.remove(pod) {
            self.release(&claim.allocation);
        }
    }

    fn forget_chosen(&mut self, claim: &ObjectKey) {
        if let Some(chosen) = self.chosen.remove(claim) {
            self.release(&chosen);
        }
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
    fn slices_for(&self, node: &NodeState) -> Vec<Arc<ResourceSlice>> {
        let (name, labels) = (node.name(), node.labels());
        let own = self.by_node.get(name).into_iter().flatten();
        let shared = self.by_node.get("").into_iter().flatten();
        let slices: Vec<_> = own.chain(shared).filter_map(|name| self.slices.get(name)).cloned().collect();
        let reaches = |slice: &Arc<ResourceSlice>| {
            slice.spec.node_name.is_some()
                || slice.spec.all_nodes == Some(true)
                || slice.spec.node_selector.as_ref().is_some_and(|it| matches_node_selector(it, name, labels))
        };
        let pool = |slice: &ResourceSlice| (slice.spec.driver.clone(), slice.spec.pool.name.clone());
        let published: BTreeSet<_> = slices.iter().filter(|slice| reaches(slice)).map(|slice| pool(slice)).collect();
        let is_published = |slice: &Arc<ResourceSlice>| published.contains(&pool(slice));
        let expected: Vec<_> = node.expected.iter().filter(|slice| !is_published(slice)).cloned().collect();
        // A pool may have slices for several groups of nodes: it is complete with the slices of
        // all.
        let mut usable = complete_pools(&slices);
        usable.retain(reaches);
        usable.extend(complete_pools(&expected));
        usable
    }

    /// The configuration that a class and a claim have for the devices of these results.
    fn configuration(
        &self,
        claim: &ResourceClaimSpec,
        results: &[DeviceRequestAllocationResult],
    ) -> Vec<DeviceAllocationConfiguration> {
        let mut all = Vec::new();
        let spec = claim.devices.as_ref();
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
        claim: &ResourceClaimSpec,
        node: &str,
        results: Vec<DeviceRequestAllocationResult>,
    ) -> AllocationResult {
        let config = self.configuration(claim, &results);
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

/// The pods that use a claim.
fn users(claim: &ResourceClaim) -> impl Iterator<Item = &ResourceClaimConsumerReference> {
    let users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    users.filter(|user| is_pod(user))
}

/// True if all users of a claim are pods of this kind.
fn are_users(claim: &ResourceClaim, is: impl Fn(&ResourceClaimConsumerReference) -> bool) -> bool {
    let mut users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    users.all(|user| is_pod(user) && is(user))
}

fn is_pod(user: &ResourceClaimConsumerReference) -> bool {
    user.resource == "pods" && user.api_group.as_deref().is_none_or(str::is_empty)
}

/// Adds the devices of a claim to numbers of claims by device.
fn count_held(claim: &ResourceClaim, counts: &mut BTreeMap<DeviceId, usize>) {
    for device in allocation(claim).into_iter().flat_map(|allocation| held(results(allocation))) {
        *counts.entry(device).or_default() += 1;
    }
}

/// UID of the pod for which the claim was created.
pub fn owner(claim: &ResourceClaim) -> Option<&str> {
    pod_owner(claim).map(|owner| owner.uid.as_str())
}

/// The pod for which the claim was created.
pub fn pod_owner(claim: &ResourceClaim) -> Option<&OwnerReference> {
    let owners = claim.owner_references().iter();
    let mut pods = owners.filter(|owner| owner.kind == "Pod" && owner.controller == Some(true));
    pods.next()
}

/// The claims that were created for a pod.
pub fn created_claims(pod: &Pod) -> Option<&Vec<PodResourceClaimStatus>> {
    pod.status.as_ref()?.resource_claim_statuses.as_ref()
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

/// Devices for a pod on one node.
#[derive(Clone, Debug, Default)]
pub struct DeviceChoices {
    /// Those of each claim that has none.
    pub claims: Vec<(ObjectKey, AllocationResult)>,
    /// The claim to make for its extended resources.
    pub extended: Option<ExtendedClaim>,
}

/// Requirements of the claims and of the extended resources of one pod on its node.
#[derive(Clone, Debug, Default)]
pub struct DeviceNeeds {
    /// Why no node is suitable now.
    pub blocked: Option<String>,
    /// Nodes on which allocated devices can be used.
    allocated: Vec<NodeSelector>,
    /// Claims without devices.
    open: Vec<(ObjectKey, Requests)>,
    /// Extended resources that device classes back.
    extended: Option<ExtendedNeeds>,
    /// Requirements of the pods that come first on a node, because preemption made room for them
    /// there.
    ahead: BTreeMap<String, Vec<DeviceNeeds>>,
    /// UIDs of pods that have ended, and still have devices.
    ended: BTreeSet<String>,
    /// Number of claims of such pods only that hold each device.
    releases: BTreeMap<DeviceId, usize>,
    inventory: Arc<Inventory>,
}

impl DeviceNeeds {
    /// True if a node without this extended resource may give devices instead.
    pub fn covers(&self, resource: &str) -> bool {
        self.extended.as_ref().is_some_and(|extended| extended.covers(resource))
    }

    /// The same requirements behind those of other pods, each with the node on which it comes
    /// first.
    pub fn behind(mut self, others: impl Iterator<Item = (String, DeviceNeeds)>) -> Self {
        for (node, needs) in others {
            self.ahead.entry(node).or_default().push(needs);
        }
        self
    }

    /// The same requirements if claims without users are released, as they soon are; `None` if all
    /// users of claims are alive. `is_alive`: true if the pod of this key and UID has not ended.
    pub fn after_releases(&self, is_alive: impl Fn(&ObjectKey, &str) -> bool) -> Option<Self> {
        let mut after = self.clone();
        for (key, claim) in self.inventory.claims.iter().filter(|(_, claim)| allocation(claim).is_some()) {
            let has_ended = |user: &ResourceClaimConsumerReference| {
                !is_alive(&ObjectKey::namespaced(&key.namespace, user.name.as_str()), &user.uid)
            };
            after.ended.extend(users(claim).filter(|user| has_ended(user)).map(|user| user.uid.clone()));
            if are_users(claim, has_ended) {
                count_held(claim, &mut after.releases);
            }
        }
        (!after.ended.is_empty() || after.expects_releases()).then_some(after)
    }

    /// True if some devices count as free that are to be released.
    pub fn expects_releases(&self) -> bool {
        !self.releases.is_empty()
    }

    /// What the pod asks for, as text; `None` if it has devices already. Pods of one text get
    /// devices on the same nodes.
    pub fn asked(&self) -> Option<String> {
        let open: Vec<_> = self.open.iter().map(|(_, requests)| requests.spec()).collect();
        let extended = self.extended.as_ref().map(ExtendedNeeds::spec);
        self.allocated.is_empty().then(|| serde_json::json!([open, extended]).to_string())
    }

    /// The devices of the open claims and of the extended resources on a node.
    ///
    /// # Errors
    /// The reason why the node does not fit.
    pub fn on(&self, node: &NodeState) -> Result<DeviceChoices, Unfit> {
        if let Some(why) = &self.blocked {
            return Err(Unfit::Claims(why.clone()));
        }
        let (name, labels) = (node.name(), node.labels());
        if !self.allocated.iter().all(|selector| matches_node_selector(selector, name, labels)) {
            return Err(Unfit::DevicesElsewhere);
        }
        let extended = self.extended.as_ref().and_then(|extended| extended.on(&node.allocatable));
        if let Some(Err(why)) = extended.as_ref().map(|asked| asked.requests.as_ref()) {
            return Err(Unfit::Claims(why.clone()));
        }
        if self.open.is_empty() && extended.is_none() {
            return Ok(DeviceChoices::default());
        }
        let others = self.others_on(node);
        let own = self.open.iter().map(|(_, requests)| requests);
        let own = own.chain(extended.iter().filter_map(|asked| asked.requests.as_ref().ok()));
        let requests: Vec<&Requests> = others.iter().map(Cow::as_ref).chain(own).collect();
        let slices = self.inventory.slices_for(node);
        let freed = self.inventory.freed(&node.evicted, &self.ended);
        let is_taken = |id: &DeviceId| {
            let count = |counts: &BTreeMap<DeviceId, usize>| counts.get(id).copied().unwrap_or(0);
            count(&self.inventory.taken) > count(&freed) + count(&self.releases)
        };
        let chosen = allocate(&requests, &slices, &is_taken).map_err(Unfit::Claims)?.ok_or(Unfit::Devices)?;
        let mut chosen = chosen.into_iter().skip(others.len());
        let claims = self.open.iter().zip(chosen.by_ref()).map(|((key, requests), results)| {
            (key.clone(), self.inventory.allocation_of(requests.spec(), name, results))
        });
        let claims = claims.collect();
        let extended = extended.zip(chosen.next()).map(|(asked, results)| ExtendedClaim {
            allocation: self.inventory.allocation_of(&asked.spec, name, results),
            mappings: asked.mappings.clone(),
            spec: asked.spec.clone(),
        });
        Ok(DeviceChoices { claims, extended })
    }

    /// The requests of other pods that the node must satisfy, too. A claim that this pod shares
    /// counts once.
    fn others_on<'a>(&'a self, node: &'a NodeState) -> Vec<Cow<'a, Requests>> {
        let planned = node.pods.values().filter_map(|pod| pod.devices());
        let ahead = self.ahead.get(node.name()).into_iter().flatten();
        let others = planned.chain(ahead).filter(|needs| needs.blocked.is_none());
        let mut seen: BTreeSet<&ObjectKey> = self.open.iter().map(|(key, _)| key).collect();
        let mut requests = Vec::new();
        for needs in others {
            requests.extend(needs.open.iter().filter(|(key, _)| seen.insert(key)).map(|(_, it)| Cow::Borrowed(it)));
            requests.extend(needs.extended.as_ref().and_then(|extended| match extended.on(&node.allocatable)? {
                Cow::Borrowed(asked) => asked.requests.as_ref().ok().map(Cow::Borrowed),
                Cow::Owned(asked) => asked.requests.ok().map(Cow::Owned),
            }));
        }
        requests
    }
}

impl PodInfo {
    /// True if it gets devices by claims: it has claims, or requests an extended resource that a
    /// device class backs.
    pub fn claims_devices(&self) -> bool {
        self.names_claims() || self.is_backed()
    }

    /// True if it has claims of devices.
    pub fn names_claims(&self) -> bool {
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
    fn check(store: &DeviceStore, claims: &[&str], name: &str) -> Result<Vec<String>, String> {
        let choices = store.needs(&pod(claims)).on(&node(name, 0)).map_err(|unfit| unfit.to_string())?;
        Ok(choices.claims.into_iter().map(|(key, _)| key.name).collect())
    }

    /// A node with this many GPUs of a device plugin.
    fn node(name: &str, gpus: i64) -> NodeState {
        let object =
            json!({"metadata": {"name": name}, "status": {"allocatable": {"example.com/gpu": gpus.to_string()}}});
        NodeState::new(Arc::new(serde_json::from_value(object).expect("a node")))
    }

    /// Chooses devices for a claim on a node.
    fn choose(store: &mut DeviceStore, claim: &str, name: &str) {
        let choices = store.needs(&pod(&[claim])).on(&node(name, 0)).expect("devices");
        store.take(&ObjectKey::namespaced("ns", "p"), choices);
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
        let a = ObjectKey::namespaced("ns", "a");
        choose(&mut store, "a", "n1");
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
        assert_eq!(check(&store, &["a"], "n2"), Err("resourceclaim not available on the node".to_owned()));
        assert_eq!(check(&store, &["b"], "n2"), Ok(vec!["b".to_owned()]));
        store.set_claim(&a, Some(claim("a", json!({}))));
        assert_eq!(check(&store, &["b"], "n1"), Ok(vec!["b".to_owned()]));
    }

    #[test]
    fn a_choice_that_was_not_written_is_given_back() {
        let mut store = store();
        choose(&mut store, "a", "n1");
        store.give_back(&ObjectKey::namespaced("ns", "a"));
        assert_eq!(check(&store, &["b"], "n1"), Ok(vec!["b".to_owned()]));
        choose(&mut store, "a", "n1");
        store.set_claim(&ObjectKey::namespaced("ns", "a"), None);
        assert_eq!(check(&store, &["b"], "n1"), Ok(vec!["b".to_owned()]), "the claim was deleted");
    }

    #[test]
    fn a_choice_for_a_claim_is_not_used_for_a_later_claim_of_the_same_name() {
        let mut store = store();
        let a = ObjectKey::namespaced("ns", "a");
        let with_uid = |uid: &str| {
            let mut claim = claim("a", json!({})).as_ref().clone();
            claim.metadata.uid = Some(uid.to_owned());
            Some(Arc::new(claim))
        };
        store.set_claim(&a, with_uid("1"));
        choose(&mut store, "a", "n1");
        store.set_claim(&a, with_uid("1"));
        assert!(store.chosen(&a).is_some(), "another change of the claim");
        store.set_claim(&a, with_uid("2"));
        assert_eq!(store.chosen(&a), None);
        assert_eq!(check(&store, &["b"], "n1"), Ok(vec!["b".to_owned()]), "the devices are free");
    }

    #[test]
    fn a_pool_with_slices_for_several_groups_of_nodes_serves_each_of_them() {
        let mut store = store();
        let slice = |name: &str, node: &str, of: i64| {
            let fields = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
            let object = json!({"metadata": {"name": name}, "spec": {"driver": "d", "devices": [{"name": name}],
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
                "pool": {"name": "shared", "generation": 1, "resourceSliceCount": of}}});
            Some(Arc::new(serde_json::from_value::<ResourceSlice>(object).expect("a slice")))
        };
        store.set_slice("s2", slice("s2", "n2", 2));
        assert_eq!(check(&store, &["a"], "n2"), Err("cannot allocate all claims".to_owned()), "it is incomplete");
        store.set_slice("s3", slice("s3", "n3", 2));
        for node in ["n2", "n3"] {
            assert_eq!(check(&store, &["a"], node), Ok(vec!["a".to_owned()]));
        }
        assert_eq!(check(&store, &["a", "b"], "n2"), Err("cannot allocate all claims".to_owned()), "one is for n3");
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
