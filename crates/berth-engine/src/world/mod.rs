//! The world: the engine's state in dense form. All decisions are made on it.
//!
//! Events change the world ([`crate::engine`]). While a decision is computed, changes are tried on
//! it. Quota and topology usage is added and removed between marks, and workloads that are assumed
//! to have left are listed in [`World::hidden`]. No function here decides anything.

pub(crate) mod ledger;
pub(crate) mod queue;
pub(crate) mod readiness;
pub(crate) mod record;
pub(crate) mod tally;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::config::{EngineConfig, QuotaCheckStrategy};
use crate::ids::{
    FlavorId, FlavorResource, FrId, Id, Interner, LocalQueueId, Name, NodeId, QueueId, ResourceId, WorkloadId,
};
use crate::model::{AdmissionCheck, Cohort, Labels, LocalQueue, ResourceFlavor};
use crate::quota::{FrAmounts, QuotaTree, Share};
use crate::status::WeightedShare;
use crate::topology::Topologies;

pub(crate) use queue::{Queue, QueueConfig};
pub(crate) use record::{Holding, Place, PodSetInfo, Record, Shape, Workloads};
pub(crate) use tally::{Requests, Tally};

/// The world. See the module's documentation.
#[derive(Debug)]
pub(crate) struct World {
    pub config: Arc<EngineConfig>,
    pub flavor_names: Interner<FlavorId>,
    pub resources: Interner<ResourceId>,
    /// The resource `pods`.
    pub pods: ResourceId,
    pub frs: FrTable,
    /// Flavor objects by id; `None` for flavors that queues name but that do not exist.
    pub flavors: Vec<Option<Arc<ResourceFlavor>>>,
    pub checks: BTreeMap<Name, AdmissionCheck>,
    pub namespaces: BTreeMap<Name, Labels>,
    /// Number of changes to namespaces and to queues' namespace selectors.
    pub selection: u64,
    pub queues: Vec<Queue>,
    /// Shared configurations of queues; see [`World::share_config`].
    configs: HashSet<Arc<QueueConfig>>,
    pub queue_ids: HashMap<Name, QueueId>,
    pub cohorts: HashMap<Name, CohortEntry>,
    pub locals: Vec<Local>,
    pub local_ids: BTreeMap<(Name, Name), LocalQueueId>,
    pub workloads: Workloads,
    pub tree: QuotaTree,
    pub topologies: Topologies,
    /// Workloads that hold quota but are assumed to have left, and the log of these changes, newest
    /// last.
    pub hidden: BTreeSet<WorkloadId>,
    hidden_log: Vec<WorkloadId>,
    /// Number of the scheduling cycle, from 1.
    pub cycle: u64,
}

/// A cohort: its node, and its object if it exists.
#[derive(Debug, Clone)]
pub(crate) struct CohortEntry {
    pub node: NodeId,
    pub spec: Option<Cohort>,
}

/// A local queue, or the name of a local queue that workloads request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Local {
    /// Namespace and name; `None` only in the default value.
    pub namespace: Option<Name>,
    pub name: Option<Name>,
    pub spec: Option<LocalQueue>,
    /// The cluster queue to which it routes, even if that does not exist.
    pub queue: Option<QueueId>,
    /// Unfinished workloads of this local queue, whether they wait or not.
    pub members: BTreeSet<WorkloadId>,
    /// Number of members that wait.
    pub waiting: u32,
    /// Quota that its members hold, by cluster queue.
    pub holding: BTreeMap<QueueId, Tally>,
    /// Cached result of whether a queue selects its namespace, for a value of [`World::selection`].
    pub selected: Option<((u64, QueueId), bool)>,
    /// Usage-based fairness (§16).
    pub ledger: ledger::Ledger,
}

/// Flavor-resources numbered in order of first appearance.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrTable {
    ids: HashMap<FlavorResource, FrId>,
    list: Vec<FlavorResource>,
}

impl FrTable {
    pub fn intern(&mut self, flavor: FlavorId, resource: ResourceId) -> FrId {
        let key = FlavorResource { flavor, resource };
        *self.ids.entry(key).or_insert_with(|| {
            self.list.push(key);
            FrId::from_index(self.list.len() - 1)
        })
    }

    pub fn get(&self, id: FrId) -> FlavorResource {
        self.list[id.index()]
    }
}

impl Local {
    fn tally(&mut self, holding: &Holding) {
        self.holding.entry(holding.queue).or_default().add(holding);
    }

    fn untally(&mut self, holding: &Holding) {
        if let Some(tally) = self.holding.get_mut(&holding.queue) {
            tally.remove(holding);
            if tally.is_empty() {
                self.holding.remove(&holding.queue);
            }
        }
    }
}

impl World {
    /// True if variants wait in place of the workload (§23). Either its object says so, or its
    /// queue requires variants that were not created yet.
    pub fn has_variants(&self, id: WorkloadId, queue: QueueId) -> bool {
        let facts = &self.record(id).facts;
        let is_variant = || facts.variant.as_ref().is_some_and(|variant| variant.parent.is_some());
        let wanted = || self.queue(queue).spec.as_ref().is_some_and(|spec| spec.concurrent_admission.is_some());
        self.config.gates.concurrent_admission && (facts.has_variants || wanted()) && !is_variant()
    }

    /// Position of a variant's flavor in its queue, best first (§23).
    pub fn variant_rank(&self, queue: QueueId, id: WorkloadId) -> Option<usize> {
        let variant = self.record(id).facts.variant.as_ref()?;
        let flavor = variant.allowed_flavors.first()?;
        self.queue(queue).config.flavors().iter().position(|it| self.flavor_name(*it) == flavor)
    }

    pub fn new(config: EngineConfig) -> Self {
        let topologies = Topologies::new(config.gates.tas_handle_overlapping_flavors);
        let mut resources = Interner::default();
        World {
            config: Arc::new(config),
            flavor_names: Interner::default(),
            pods: resources.intern(&Name::from("pods")),
            resources,
            frs: FrTable::default(),
            flavors: Vec::new(),
            checks: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            selection: 0,
            queues: Vec::new(),
            configs: HashSet::new(),
            queue_ids: HashMap::new(),
            cohorts: HashMap::new(),
            locals: Vec::new(),
            local_ids: BTreeMap::new(),
            workloads: Workloads::default(),
            tree: QuotaTree::default(),
            topologies,
            hidden: BTreeSet::new(),
            hidden_log: Vec::new(),
            cycle: 0,
        }
    }

    /// The id of a flavor name.
    pub fn flavor_id(&mut self, name: &Name) -> FlavorId {
        let id = self.flavor_names.intern(name);
        if self.flavors.len() <= id.index() {
            self.flavors.resize(id.index() + 1, None);
        }
        id
    }

    /// The flavor object, if it exists.
    pub fn flavor(&self, id: FlavorId) -> Option<&Arc<ResourceFlavor>> {
        self.flavors[id.index()].as_ref()
    }

    /// Id of a queue name; a new name becomes a queue that does not exist yet.
    pub fn queue_id(&mut self, name: &Name) -> QueueId {
        if let Some(&id) = self.queue_ids.get(name) {
            return id;
        }
        let id = QueueId::from_index(self.queues.len());
        let node = self.tree.add_node(name.clone(), Some(id));
        self.tree.set_alive(node, false);
        self.queues.push(Queue::named(name.clone(), node));
        self.queue_ids.insert(name.clone(), id);
        id
    }

    pub fn queue(&self, id: QueueId) -> &Queue {
        &self.queues[id.index()]
    }

    pub fn queue_mut(&mut self, id: QueueId) -> &mut Queue {
        &mut self.queues[id.index()]
    }

    /// The queue of a leaf of the tree.
    pub fn queue_of_node(&self, node: NodeId) -> Option<QueueId> {
        self.tree.node(node).queue
    }

    /// Tree node of a cohort name. A new name gets a new node.
    pub fn cohort_node(&mut self, name: &Name) -> NodeId {
        if let Some(entry) = self.cohorts.get(name) {
            return entry.node;
        }
        let node = self.tree.add_node(name.clone(), None);
        self.cohorts.insert(name.clone(), CohortEntry { node, spec: None });
        node
    }

    /// Id of a local queue name; a new name becomes a local queue that does not exist yet.
    pub fn local_id(&mut self, namespace: &Name, name: &Name) -> LocalQueueId {
        let key = (namespace.clone(), name.clone());
        if let Some(&id) = self.local_ids.get(&key) {
            return id;
        }
        let id = LocalQueueId::from_index(self.locals.len());
        self.locals.push(Local { namespace: Some(namespace.clone()), name: Some(name.clone()), ..Local::default() });
        self.local_ids.insert(key, id);
        id
    }

    /// Cluster queues that the local queues of a namespace route to.
    pub fn queues_of_namespace(&self, namespace: &Name) -> BTreeSet<QueueId> {
        let first = (namespace.clone(), Name::default());
        let of_namespace = self.local_ids.range(first..).take_while(|((of, _), _)| of == namespace);
        of_namespace.filter_map(|(_, id)| self.local(*id).queue).collect()
    }

    pub fn local(&self, id: LocalQueueId) -> &Local {
        &self.locals[id.index()]
    }

    pub fn local_mut(&mut self, id: LocalQueueId) -> &mut Local {
        &mut self.locals[id.index()]
    }

    pub fn record(&self, id: WorkloadId) -> &Record {
        self.workloads.get(id)
    }

    pub fn record_mut(&mut self, id: WorkloadId) -> &mut Record {
        self.workloads.get_mut(id)
    }

    /// Sets where a workload waits. Returns where it waited before.
    pub fn set_place(&mut self, id: WorkloadId, place: Place) -> Place {
        let record = self.record_mut(id);
        let before = std::mem::replace(&mut record.place, place);
        let local = record.local;
        if before.queue() != place.queue() {
            let shape = record.shape.clone();
            for (at, sign) in [(before.queue(), -1), (place.queue(), 1)] {
                if let Some(queue) = at {
                    self.queue_mut(queue).waiting.add(&shape, sign);
                }
            }
        }
        let local = self.local_mut(local);
        local.waiting = local.waiting + u32::from(place != Place::None) - u32::from(before != Place::None);
        before
    }

    /// Replaces a workload's shape and updates the counts of its queue.
    pub fn set_shape(&mut self, id: WorkloadId, shape: Arc<Shape>) {
        let record = self.record_mut(id);
        let before = std::mem::replace(&mut record.shape, shape.clone());
        if let Some(queue) = record.place.queue().filter(|_| !Arc::ptr_eq(&before, &shape)) {
            let waiting = &mut self.queue_mut(queue).waiting;
            waiting.add(&before, -1);
            waiting.add(&shape, 1);
        }
    }

    /// Moves a workload to another local queue and updates the counts of both.
    pub fn set_local(&mut self, id: WorkloadId, to: LocalQueueId) {
        let record = self.record_mut(id);
        let from = std::mem::replace(&mut record.local, to);
        let waits = u32::from(record.place != Place::None);
        let holding = record.holding.clone();
        if let Some(holding) = &holding {
            self.local_mut(from).untally(holding);
            self.local_mut(to).tally(holding);
        }
        let local = self.local_mut(from);
        local.members.remove(&id);
        local.waiting -= waits;
        local.ledger.penalties.remove(&id);
        let local = self.local_mut(to);
        local.members.insert(id);
        local.waiting += waits;
    }

    /// Sets the quota and places that a workload holds, and adds them to the counts of its queues.
    pub fn set_holding(&mut self, id: WorkloadId, holding: Holding) {
        self.queue_mut(holding.queue).holding.insert(id);
        self.queue_mut(holding.queue).tally.add(&holding);
        let local = self.record(id).local;
        self.local_mut(local).tally(&holding);
        self.record_mut(id).holding = Some(Arc::new(holding));
    }

    /// Removes the quota and places that a workload holds, also from the counts of its queues.
    pub fn take_holding(&mut self, id: WorkloadId) -> Option<Arc<Holding>> {
        let holding = self.record_mut(id).holding.take()?;
        self.queue_mut(holding.queue).holding.remove(&id);
        self.queue_mut(holding.queue).tally.remove(&holding);
        let local = self.record(id).local;
        self.local_mut(local).untally(&holding);
        Some(holding)
    }

    /// True if a queue's namespace selector matches a local queue's namespace; false for an
    /// unknown namespace.
    pub fn is_selected(&mut self, queue: QueueId, local: LocalQueueId) -> bool {
        let state = (self.selection, queue);
        if let Some((known, selected)) = self.local(local).selected
            && known == state
        {
            return selected;
        }
        let selector = self.queue(queue).spec.as_ref().and_then(|spec| spec.namespace_selector.as_ref());
        let labels = self.local(local).namespace.as_ref().and_then(|namespace| self.namespaces.get(namespace));
        let selected = selector.zip(labels).is_some_and(|(selector, labels)| selector.matches(labels));
        self.local_mut(local).selected = Some((state, selected));
        selected
    }

    pub fn resource_name(&self, id: ResourceId) -> &Name {
        self.resources.name(id)
    }

    pub fn flavor_name(&self, id: FlavorId) -> &Name {
        self.flavor_names.name(id)
    }

    /// Adds quota usage at a queue's leaf.
    pub fn add_usage(&mut self, node: NodeId, usage: &FrAmounts) {
        for &(fr, amount) in usage {
            self.tree.add_usage(node, fr, amount);
        }
    }

    /// Removes quota usage at a queue's leaf.
    pub fn remove_usage(&mut self, node: NodeId, usage: &FrAmounts) {
        for &(fr, amount) in usage {
            self.tree.remove_usage(node, fr, amount);
        }
    }

    /// Assumes that a workload has left: its quota and its places on nodes are free. Undone by
    /// [`World::unhide`], or by rolling back to an earlier [`World::mark`].
    pub fn hide(&mut self, id: WorkloadId) {
        let Some(holding) = self.record(id).holding.clone() else { return };
        if self.hidden.insert(id) {
            self.hidden_log.push(id);
            let node = self.queue(holding.queue).node;
            self.remove_usage(node, &holding.usage);
            self.topologies.remove_usage(&holding.places);
        }
    }

    /// Undoes [`World::hide`].
    pub fn unhide(&mut self, id: WorkloadId) {
        let Some(holding) = self.record(id).holding.clone() else { return };
        if self.hidden.remove(&id) {
            self.hidden_log.push(id);
            let node = self.queue(holding.queue).node;
            self.add_usage(node, &holding.usage);
            self.topologies.add_usage(&holding.places);
        }
    }

    /// Marks the current state, for [`World::rollback`].
    pub fn mark(&mut self) -> WorldMark {
        WorldMark { tree: self.tree.mark(), topologies: self.topologies.mark(), hidden: self.hidden_log.len() }
    }

    /// Undoes all changes since a mark. Marks nest.
    pub fn rollback(&mut self, mark: WorldMark) {
        self.tree.rollback(mark.tree);
        self.topologies.rollback(mark.topologies);
        for id in self.hidden_log.drain(mark.hidden..).rev() {
            if !self.hidden.remove(&id) {
                self.hidden.insert(id);
            }
        }
    }

    /// The dominant resource share of a node as statuses show it (§10.3).
    pub fn weighted_share(&self, node: NodeId) -> WeightedShare {
        let share = self.share(node);
        WeightedShare {
            value: share.rounded(),
            dominant_resource: share.dominant.map(|id| self.resource_name(id).clone()),
            borrowing: share.is_borrowing(),
            precise: share.precise(),
        }
    }

    /// The current share of a node, for comparisons (§10.1).
    pub fn share(&self, node: NodeId) -> Share {
        Share::of_node(
            &self.tree,
            node,
            |fr| self.frs.get(fr).resource,
            |a, b| self.resource_name(a) < self.resource_name(b),
        )
    }

    /// True if resources that a queue does not declare are ignored. Otherwise they keep a workload
    /// from being admitted (§2.7).
    pub fn ignores_undeclared(&self) -> bool {
        self.config.gates.quota_check_strategy
            && self.config.quota_check_strategy == QuotaCheckStrategy::IgnoreUndeclared
    }

    /// True if fair sharing between queues is configured.
    pub fn is_fair_sharing(&self) -> bool {
        self.config.fair_sharing.is_some()
    }
}

/// A state to which the world can be rolled back, made by [`World::mark`].
#[must_use]
#[derive(Debug)]
pub(crate) struct WorldMark {
    tree: crate::quota::tree::Mark,
    topologies: crate::topology::Mark,
    hidden: usize,
}
