//! Workload records: the newest state, the shared requests, and the quota held.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use crate::assignment::{RequestedPodSet, ScanState, requested_pod_set};
use crate::ids::{ClassId, Id, LocalQueueId, Name, QueueId, ResourceId, WorkloadId};
use crate::model::{
    Admission, Eviction, PodSet, PodTemplate, ResourceList, Time, TopologyRequest, Workload, WorkloadKey,
};
use crate::quota::FrAmounts;
use crate::topology::amounts::Demand;
use crate::topology::{Places, Topologies};
use crate::world::World;

/// One workload.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The newest state. `pod_sets` is empty; see `shape`.
    pub facts: Box<Workload>,
    /// The workload's requests, shared with every workload that has the same requests.
    pub shape: Arc<Shape>,
    pub class: ClassId,
    pub local: LocalQueueId,
    /// Effective priority (§3.1).
    pub priority: i64,
    /// Queue-order timestamp (§3.2).
    pub order_time: Time,
    pub holding: Option<Arc<Holding>>,
    /// Progress of the search through its flavors (§8.12).
    pub scan: Option<Box<ScanState>>,
    /// Generation that was evaluated last.
    pub evaluated_generation: i64,
    /// True if an eviction was decided and the object does not show it yet (§11.1).
    pub eviction_expected: bool,
    pub place: Place,
}

/// Where a workload waits (§4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Place {
    /// In no queue: it holds quota, has finished, or its queue does not exist.
    #[default]
    None,
    /// In line with its class. It may be popped, unless its class is inadmissible.
    Queued(QueueId),
    /// Inadmissible for a reason of its own, until something changes.
    Inadmissible(QueueId),
    /// Popped; the cycle decides it.
    InFlight(QueueId),
}

impl Place {
    /// The queue in which it waits.
    pub fn queue(self) -> Option<QueueId> {
        match self {
            Place::None => None,
            Place::Queued(queue) | Place::Inadmissible(queue) | Place::InFlight(queue) => Some(queue),
        }
    }
}

/// Quota a workload holds.
#[derive(Debug, Clone)]
pub(crate) struct Holding {
    pub queue: QueueId,
    pub admission: Admission,
    /// The workload's requests at the time its usage was counted.
    pub shape: Arc<Shape>,
    /// Quota per flavor-resource.
    pub usage: FrAmounts,
    /// Pods per topology domain.
    pub places: Places,
    pub admitted: bool,
    /// True while the admission was decided but the object does not show it yet.
    pub assumed: bool,
}

/// The requests of a workload.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shape {
    pub pod_sets: Vec<Arc<PodSetInfo>>,
    /// See [`Shape::totals`] and [`Shape::requested`]; computed once for all workloads with these
    /// requests.
    totals: OnceLock<Arc<Vec<(Name, ResourceList)>>>,
    requested: OnceLock<Arc<[RequestedPodSet]>>,
}

impl Shape {
    pub fn new(pod_sets: Vec<Arc<PodSetInfo>>) -> Shape {
        Shape { pod_sets, totals: OnceLock::new(), requested: OnceLock::new() }
    }

    /// Every pod set with its full count, as decisions evaluate it.
    pub fn requested(&self) -> &Arc<[RequestedPodSet]> {
        self.requested.get_or_init(|| self.pod_sets.iter().map(|info| requested_pod_set(info, info.count)).collect())
    }

    /// Total requests per pod set, for `status.resourceRequests` (§5.10).
    pub fn totals(&self, world: &World) -> &Arc<Vec<(Name, ResourceList)>> {
        self.totals.get_or_init(|| {
            let totals = self.pod_sets.iter().map(|set| {
                let amounts = set.requests.iter().map(|(resource, per_pod)| {
                    (world.resource_name(*resource).clone(), crate::amount::times(*per_pod, set.count))
                });
                (set.name.clone(), amounts.collect())
            });
            Arc::new(totals.collect())
        })
    }
}

impl PartialEq for Shape {
    fn eq(&self, other: &Shape) -> bool {
        self.pod_sets == other.pod_sets
    }
}

impl Eq for Shape {}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pod_sets.hash(state);
    }
}

/// A pod set with its requests as ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PodSetInfo {
    pub name: Name,
    /// Pods that need quota: the count without reclaimable pods.
    pub count: i32,
    /// Count in the spec.
    pub spec_count: i32,
    pub min_count: Option<i32>,
    /// Effective request of one pod, in name order.
    pub requests: Vec<(ResourceId, i64)>,
    pub template: Arc<PodTemplate>,
    pub topology: Option<TopologyRequest>,
    demand: Cached<Demand>,
}

impl PodSetInfo {
    /// A pod set of a workload's object, with its effective requests as ids.
    pub fn new(set: &PodSet, count: i32, min_count: Option<i32>, requests: Vec<(ResourceId, i64)>) -> PodSetInfo {
        PodSetInfo {
            name: set.name.clone(),
            count,
            spec_count: set.count,
            min_count,
            requests,
            template: set.template.clone(),
            topology: set.topology.clone(),
            demand: Cached::default(),
        }
    }

    /// Amounts that one of its pods uses of a node.
    pub fn demand(&self, topologies: &mut Topologies) -> &Demand {
        self.demand.0.get_or_init(|| topologies.demand(&self.template.requests))
    }
}

/// Values that are computed from the other fields on first use. Comparisons ignore them: equal
/// shapes have equal values, computed or not.
#[derive(Debug, Clone, Default)]
struct Cached<T>(OnceLock<T>);

impl<T> PartialEq for Cached<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Cached<T> {}

impl<T> Hash for Cached<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Record {
    pub fn key(&self) -> &WorkloadKey {
        &self.facts.key
    }

    /// Namespace and name of the variant's parent; `None` if the workload is not a variant.
    fn family(&self) -> Option<(Name, Name)> {
        let parent = self.facts.variant.as_ref()?.parent.clone()?;
        Some((self.facts.key.namespace.clone(), parent))
    }

    /// The eviction that its object reports, if any. Quota that was assigned since then ends the
    /// eviction (§5.6), even before the object shows the quota.
    pub fn eviction(&self) -> Option<&Eviction> {
        let again = self.holding.as_ref().is_some_and(|holding| holding.assumed);
        self.facts.evicted.as_ref().filter(|_| !again)
    }

    /// The flavor of its quota for a pod set and resource.
    pub fn held_flavor(&self, pod_set: &str, resource: &str) -> Option<&Name> {
        let holding = self.holding.as_ref()?;
        holding.admission.pod_sets.iter().find(|set| &*set.name == pod_set)?.flavors.get(resource)
    }
}

/// All workloads, by id and by key. Slots of removed workloads are reused.
#[derive(Debug, Default)]
pub(crate) struct Workloads {
    slots: Vec<Option<Record>>,
    free: Vec<WorkloadId>,
    ids: HashMap<WorkloadKey, WorkloadId>,
    shapes: HashSet<Arc<Shape>>,
    shapes_prune_at: usize,
    /// Concurrent-admission variants by namespace and parent (§23).
    variants: BTreeMap<(Name, Name), BTreeSet<WorkloadId>>,
    classes: HashMap<ClassKey, (Arc<Shape>, ClassId)>,
    classes_made: usize,
}

/// Properties that scheduling equivalence depends on (§4.8).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClassKey {
    priority: i64,
    /// Address of the shared shape. Equal shapes are shared, so equal addresses mean equal shapes.
    shape: usize,
    allowed_flavors: Vec<Name>,
}

impl Workloads {
    pub fn id(&self, key: &WorkloadKey) -> Option<WorkloadId> {
        self.ids.get(key).copied()
    }

    pub fn get(&self, id: WorkloadId) -> &Record {
        self.slots[id.index()].as_ref().expect("ids of removed workloads are dropped with them")
    }

    pub fn get_mut(&mut self, id: WorkloadId) -> &mut Record {
        self.slots[id.index()].as_mut().expect("ids of removed workloads are dropped with them")
    }

    pub fn insert(&mut self, record: Record) -> WorkloadId {
        let key = record.key().clone();
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id.index()] = Some(record);
                id
            }
            None => {
                self.slots.push(Some(record));
                WorkloadId::from_index(self.slots.len() - 1)
            }
        };
        self.ids.insert(key, id);
        self.list_variant(id);
        id
    }

    /// Replaces the facts of a workload.
    pub fn set_facts(&mut self, id: WorkloadId, facts: Workload) {
        let same = self.get(id).facts.variant == facts.variant;
        if !same {
            self.unlist_variant(id);
        }
        *self.get_mut(id).facts = facts;
        if !same {
            self.list_variant(id);
        }
    }

    fn list_variant(&mut self, id: WorkloadId) {
        if let Some(family) = self.get(id).family() {
            self.variants.entry(family).or_default().insert(id);
        }
    }

    fn unlist_variant(&mut self, id: WorkloadId) {
        let Some(family) = self.get(id).family() else { return };
        if let Some(members) = self.variants.get_mut(&family) {
            members.remove(&id);
            if members.is_empty() {
                self.variants.remove(&family);
            }
        }
    }

    /// The other variants of a variant's parent, in order of their ids.
    pub fn siblings(&self, id: WorkloadId) -> impl Iterator<Item = WorkloadId> + '_ {
        let family = self.get(id).family().and_then(|family| self.variants.get(&family));
        family.into_iter().flatten().copied().filter(move |other| *other != id)
    }

    pub fn remove(&mut self, id: WorkloadId) -> Option<Record> {
        self.unlist_variant(id);
        let record = self.slots[id.index()].take()?;
        self.ids.remove(record.key());
        self.free.push(id);
        Some(record)
    }

    pub fn iter(&self) -> impl Iterator<Item = (WorkloadId, &Record)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| Some((WorkloadId::from_index(at), slot.as_ref()?)))
    }

    /// The shared copy of a shape.
    pub fn share_shape(&mut self, shape: Shape) -> Arc<Shape> {
        if let Some(shared) = self.shapes.get(&shape) {
            return shared.clone();
        }
        if self.shapes.len() >= self.shapes_prune_at.max(1024) {
            // Drops classes and shapes that no workload uses any more.
            self.classes.retain(|_, (shape, _)| Arc::strong_count(shape) > 2);
            self.shapes.retain(|shape| Arc::strong_count(shape) > 1);
            self.shapes_prune_at = self.shapes.len() * 2;
        }
        let shared = Arc::new(shape);
        self.shapes.insert(shared.clone());
        shared
    }

    /// The class of workloads with this priority, shape and flavor restriction.
    pub fn class(&mut self, priority: i64, shape: &Arc<Shape>, allowed_flavors: &[Name]) -> ClassId {
        let key = ClassKey { priority, shape: Arc::as_ptr(shape).addr(), allowed_flavors: allowed_flavors.to_vec() };
        let made = &mut self.classes_made;
        // The entry keeps the shape alive, so that its address is not reused for another shape.
        let (_, class) = self.classes.entry(key).or_insert_with(|| {
            *made += 1;
            (shape.clone(), ClassId::from_index(*made - 1))
        });
        *class
    }
}
