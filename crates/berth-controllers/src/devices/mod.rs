//! Dynamic resource allocation: what the devices of a workload add to its requests (semantics
//! §2.9).
//!
//! A pod claims devices with a ResourceClaimTemplate, or with an extended resource that a
//! DeviceClass backs. The configuration maps device classes to resources with quota. Their amount
//! is the number of devices, or a counter (`sources`) or capacity of the devices that match.
//!
//! [`Devices::charges`] reads caches and decides; the scheduler adds its result to the requests of
//! pod sets, and the workload controller reports a [`Problem`]. Both are evaluated again when a
//! template, a device class or a slice of published devices changes.
//!
//! | purpose | module |
//! |---|---|
//! | configured mappings | `mapping` |
//! | ResourceClaimTemplates | `claims` |
//! | devices that selectors match | `matching` |
//! | counters and capacities | `sources` |
//! | extended resources | `extended` |
//! | devices of machines | `supply` |
//! | errors | `problem` |

mod claims;
mod extended;
mod mapping;
mod matching;
mod problem;
mod sources;
mod supply;
#[cfg(test)]
mod tests;

pub use extended::is_extended;
pub use problem::Problem;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::devices::backing_class;
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::field::Error;
use berth_apimachinery::quantity::Format;
use berth_engine::model::ResourceList;
use berth_runtime::{Cache, Index, Manager, ObjectKey};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::configuration::file::DeviceClassMapping;
use crate::gates::{Gate, Gates};
use crate::translate::amounts::parse;
use crate::workload::status;
use mapping::Mappings;
use matching::Programs;
use sources::Figure;

/// Index value of workloads that use any ResourceClaimTemplate. No template has this name.
const ANY_TEMPLATE: &str = "";

/// What the configuration says about devices.
#[derive(Clone, Debug, Default, PartialEq)]
struct Settings {
    /// Devices are counted.
    counts: bool,
    /// Workloads with claims are rejected while devices are not counted.
    rejects: bool,
    /// Extended resources that device classes back are counted as devices.
    extended: bool,
    /// Counters of partitionable devices are counted.
    partitions: bool,
    /// Capacities of devices that can be shared are counted.
    shares: bool,
    mappings: Mappings,
    /// Resources whose amounts are bytes.
    binary: BTreeSet<String>,
}

impl Settings {
    fn of(mappings: &[DeviceClassMapping], gates: &Gates) -> Self {
        let mappings = Mappings::new(mappings);
        let counts = gates.on(Gate::KueueDRAIntegration);
        Settings {
            counts,
            rejects: gates.on(Gate::KueueDRARejectWorkloadsWhenDRADisabled),
            extended: gates.on(Gate::KueueDRAIntegrationExtendedResource),
            partitions: gates.on(Gate::KueueDRAIntegrationPartitionableDevices),
            shares: gates.on(Gate::KueueDRAIntegrationConsumableCapacity),
            binary: if counts { mappings.binary() } else { BTreeSet::new() },
            mappings,
        }
    }
}

/// Claims, device classes and published devices, and how the configuration counts them. Clones
/// share the caches.
#[derive(Clone)]
pub struct Devices {
    settings: Arc<Settings>,
    templates: Cache<ResourceClaimTemplate>,
    classes: Cache<DeviceClass>,
    slices: Cache<ResourceSlice>,
    slices_by_driver: Index<ResourceSlice>,
    workloads: Cache<Workload>,
    /// Workloads by `namespace/template`, and by [`ANY_TEMPLATE`].
    by_template: Index<Workload>,
    programs: Programs,
}

/// What the devices of a workload change in the requests of one pod, by index of the pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charges(BTreeMap<usize, Change>);

/// A change of the requests of a pod set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Change {
    /// Extended resources that are counted as others.
    replaced: BTreeSet<String>,
    /// Amounts to add, in whole units.
    added: BTreeMap<String, i64>,
}

impl Charges {
    /// Adds an amount in whole units to the requests of one pod.
    pub fn add(&mut self, pod_set: usize, resource: &str, amount: i64) {
        let added = &mut self.0.entry(pod_set).or_default().added;
        let total = added.entry(resource.to_owned()).or_default();
        *total = total.saturating_add(amount);
    }

    /// Removes an extended resource, which is counted as another resource.
    pub fn replace(&mut self, pod_set: usize, resource: &str) {
        self.0.entry(pod_set).or_default().replaced.insert(resource.to_owned());
    }

    /// Changes the requests of a workload.
    pub fn apply(&self, workload: &mut berth_engine::model::Workload) {
        for (index, set) in workload.pod_sets.iter_mut().enumerate() {
            self.apply_to(index, &mut set.requests);
        }
    }

    /// Changes the requests of one pod of a pod set.
    pub fn apply_to(&self, pod_set: usize, requests: &mut ResourceList) {
        let Some(change) = self.0.get(&pod_set) else { return };
        requests.retain(|resource, _| !change.replaced.contains(&**resource));
        for (resource, amount) in &change.added {
            let unit = if resource == "cpu" { 1000 } else { 1 };
            let request = requests.entry(resource.as_str().into()).or_default();
            *request = request.saturating_add(amount.saturating_mul(unit));
        }
    }
}

impl Devices {
    /// The caches of a manager. Nothing is watched if the gates switch counting off.
    pub fn watched(
        manager: &mut Manager,
        mappings: &[DeviceClassMapping],
        gates: &Gates,
        workloads: &Cache<Workload>,
    ) -> Self {
        let settings = Settings::of(mappings, gates);
        match settings.counts {
            true => {
                let (templates, classes) = (manager.cache_if_served(), manager.cache_if_served());
                Self::over(settings, templates, classes, manager.cache_if_served(), workloads)
            }
            false => Self::empty(settings, workloads),
        }
    }

    /// Empty caches, to be filled by hand.
    pub fn by_hand(mappings: &[DeviceClassMapping], gates: &Gates, workloads: &Cache<Workload>) -> Self {
        Self::empty(Settings::of(mappings, gates), workloads)
    }

    /// Counts the devices of workloads over these objects, which do not change.
    pub fn of_objects(
        mappings: &[DeviceClassMapping],
        gates: &Gates,
        templates: impl IntoIterator<Item = ResourceClaimTemplate>,
        classes: impl IntoIterator<Item = DeviceClass>,
        slices: impl IntoIterator<Item = ResourceSlice>,
    ) -> Self {
        let (templates, classes) = (Cache::for_tests(templates), Cache::for_tests(classes));
        Self::over(Settings::of(mappings, gates), templates, classes, Cache::for_tests(slices), &Cache::for_tests([]))
    }

    /// Counts no devices, and rejects no claims.
    pub fn none(workloads: &Cache<Workload>) -> Self {
        Self::empty(Settings::default(), workloads)
    }

    fn empty(settings: Settings, workloads: &Cache<Workload>) -> Self {
        Self::over(settings, Cache::for_tests([]), Cache::for_tests([]), Cache::for_tests([]), workloads)
    }

    fn over(
        settings: Settings,
        templates: Cache<ResourceClaimTemplate>,
        classes: Cache<DeviceClass>,
        slices: Cache<ResourceSlice>,
        workloads: &Cache<Workload>,
    ) -> Self {
        let by_template =
            if settings.counts { workloads.index(template_values) } else { workloads.index(|_| Vec::new()) };
        let slices_by_driver = slices.index(|slice: &ResourceSlice| vec![slice.spec.driver.clone()]);
        let (settings, workloads, programs) = (Arc::new(settings), workloads.clone(), Programs::default());
        Devices { settings, templates, classes, slices, slices_by_driver, workloads, by_template, programs }
    }

    // -- decisions --------------------------------------------------------------------------------

    /// What the devices of a workload change in its requests. `specs`: the pods of its pod sets,
    /// with the requests that limits and LimitRanges imply.
    pub fn charges(&self, workload: &Workload, specs: impl FnOnce() -> Vec<PodSpec>) -> Result<Charges, Problem> {
        let (by_name, by_template) = (claims::uses_claims_by_name(workload), claims::uses_templates(workload));
        if !self.settings.counts {
            let rejected = self.settings.rejects && (by_name || by_template);
            return if rejected { Err(Problem::switched_off()) } else { Ok(Charges::default()) };
        }
        if by_name {
            return Err(Problem::claims_by_name());
        }
        let mut charges = Charges::default();
        if by_template {
            self.count_templates(workload, &mut charges).map_err(|errors| Problem::of(&errors))?;
        }
        if self.has_extended() {
            let mut errors = Vec::new();
            for (index, spec) in specs().iter().enumerate() {
                errors.extend(self.count_extended(index, spec, &mut charges));
            }
            if !errors.is_empty() {
                return Err(Problem::of(&errors));
            }
        }
        Ok(charges)
    }

    fn count_templates(&self, workload: &Workload, charges: &mut Charges) -> Result<(), Vec<Error>> {
        let used = self.templates(workload)?;
        for used in &used {
            self.count_devices(used, &workload.spec.pod_sets[used.pod_set].name, charges)?;
        }
        for (figure, on) in [(Figure::Counter, self.settings.partitions), (Figure::Capacity, self.settings.shares)] {
            for used in used.iter().filter(|_| on) {
                self.count_figures(figure, used, charges)?;
            }
        }
        Ok(())
    }

    /// Writes an amount of a resource that counts bytes with binary suffixes.
    pub fn restate(&self, resource: &str, amount: &mut ApiQuantity) {
        if self.settings.binary.contains(resource)
            && let Some(parsed) = parse(amount)
            && let Some(binary) =
                berth_apimachinery::quantity::Quantity::from_scaled(i128::from(parsed.value()), 0, Format::BinarySi)
        {
            *amount = ApiQuantity(binary.to_string());
        }
    }

    /// Writes the amounts in a workload's status with the suffixes of their resources.
    pub fn restate_status(&self, workload: &mut Workload) {
        let Some(status) = workload.status.as_mut().filter(|_| !self.settings.binary.is_empty()) else { return };
        let assigned = status.admission.iter_mut().flat_map(|admission| &mut admission.pod_set_assignments);
        let lists = assigned.map(|set| &mut set.resource_usage);
        for list in lists.chain(status.resource_requests.iter_mut().map(|set| &mut set.resources)) {
            for (resource, amount) in list.iter_mut() {
                self.restate(resource, amount);
            }
        }
    }

    // -- what a change concerns -------------------------------------------------------------------

    /// The cache of templates, to watch.
    pub fn template_cache(&self) -> &Cache<ResourceClaimTemplate> {
        &self.templates
    }

    /// The cache of device classes, to watch.
    pub fn class_cache(&self) -> &Cache<DeviceClass> {
        &self.classes
    }

    /// The cache of published devices, to watch.
    pub fn slice_cache(&self) -> &Cache<ResourceSlice> {
        &self.slices
    }

    /// Pending workloads that use a template.
    pub fn users_of_template(&self, template: &ResourceClaimTemplate) -> Vec<ObjectKey> {
        self.pending(self.by_template.keys(&ObjectKey::of(template).to_string()))
    }

    /// Pending workloads whose devices a change of this class may change.
    pub fn users_of_class(&self, old: Option<&DeviceClass>, new: Option<&DeviceClass>) -> Vec<ObjectKey> {
        let mut users: BTreeSet<ObjectKey> = self.by_template.keys(ANY_TEMPLATE).into_iter().collect();
        let resources: BTreeSet<&str> = [old, new]
            .into_iter()
            .flatten()
            .filter(|_| self.settings.extended)
            .filter_map(|class| class.spec.extended_resource_name.as_deref())
            .collect();
        if !resources.is_empty() {
            let requests = |workload: &Workload| resources.iter().any(|resource| requests_resource(workload, resource));
            users.extend(self.workloads.iter().filter(|it| requests(it)).map(|it| ObjectKey::of(it.as_ref())));
        }
        self.pending(users)
    }

    /// Pending workloads whose devices a change of published devices may change: those with
    /// selectors or with counters or capacities.
    pub fn users_of_slices(&self) -> Vec<ObjectKey> {
        let mut users = self.pending(self.by_template.keys(ANY_TEMPLATE));
        users.retain(|key| self.workloads.get(key).is_some_and(|workload| self.depends_on_slices(&workload)));
        users
    }

    fn depends_on_slices(&self, workload: &Workload) -> bool {
        let Ok(used) = self.templates(workload) else { return false };
        used.iter().flat_map(|used| matching::exact_requests(used.claim())).any(|(_, request)| {
            let counted = self.settings.mappings.get(&request.device_class_name);
            request.selectors.iter().flatten().next().is_some()
                || counted.is_some_and(|it| !it.counters.is_empty() || !it.capacities.is_empty())
        })
    }

    fn pending(&self, keys: impl IntoIterator<Item = ObjectKey>) -> Vec<ObjectKey> {
        let is_pending =
            |workload: &Workload| !status::has_quota_reservation(workload) && !status::is_finished(workload);
        keys.into_iter().filter(|key| self.workloads.get(key).is_some_and(|it| is_pending(&it))).collect()
    }

    // -- objects ----------------------------------------------------------------------------------

    fn template(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaimTemplate>> {
        self.templates.get(&ObjectKey::namespaced(namespace, name))
    }

    fn class(&self, name: &str) -> Option<Arc<DeviceClass>> {
        self.classes.get(&ObjectKey::cluster(name))
    }

    /// True if a device class may back an extended resource.
    fn has_extended(&self) -> bool {
        self.settings.extended && !self.classes.is_empty()
    }

    /// The device class that backs an extended resource. There are few classes, so they need no
    /// index.
    fn class_of_resource(&self, resource: &str) -> Option<Arc<DeviceClass>> {
        backing_class(resource, self.classes.list().iter()).cloned()
    }

    /// All published slices, in name order.
    fn all_slices(&self) -> Vec<Arc<ResourceSlice>> {
        self.slices.list()
    }

    fn slices_of(&self, driver: &str) -> Vec<Arc<ResourceSlice>> {
        self.slices_by_driver.get(driver)
    }
}

/// Values of the index of workloads by template.
fn template_values(workload: &Workload) -> Vec<String> {
    let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
    let names = workload.spec.pod_sets.iter().flat_map(claims::template_names);
    let mut values: BTreeSet<String> =
        names.map(|(_, name)| ObjectKey::namespaced(namespace, name).to_string()).collect();
    if !values.is_empty() {
        values.insert(ANY_TEMPLATE.to_owned());
    }
    values.into_iter().collect()
}

/// True if a container requests the resource, or limits it.
fn requests_resource(workload: &Workload, resource: &str) -> bool {
    let specs = workload.spec.pod_sets.iter().filter_map(|set| set.template.spec.as_ref());
    let mut containers = specs.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    containers.any(|container| {
        let resources = container.resources.as_ref();
        let lists = resources.into_iter().flat_map(|it| [it.requests.as_ref(), it.limits.as_ref()]);
        lists.flatten().any(|list| list.contains_key(resource))
    })
}
