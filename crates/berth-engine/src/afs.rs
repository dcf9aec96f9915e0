//! Usage-based fairness between the local queues of a cluster queue (§16).
//!
//! Each local queue has a ledger: its consumption, which decays with time, and penalties for
//! admissions that its usage does not show yet. The ledger decides which local queue's workloads
//! go first.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::AdmissionFairSharing;
use crate::ids::{LocalQueueId, Name, ResourceId, WorkloadId};
use crate::model::Time;
use crate::world::{Tally, World};

/// Fraction of the difference between recorded and current usage that counts after `elapsed`
/// (§16.2).
pub(crate) fn decay(elapsed: Duration, half_life: Duration) -> f64 {
    if half_life.is_zero() {
        return 1.0;
    }
    1.0 - 0.5_f64.powf(elapsed.as_secs_f64() / half_life.as_secs_f64())
}

impl World {
    /// Usage by which local queues are ordered; infinite for a weight of zero (§16.4).
    pub fn local_usage(&self, id: LocalQueueId) -> f64 {
        let Some(config) = &self.config.admission_fair_sharing else { return 0.0 };
        let local = self.local(id);
        let weight = local.spec.as_ref().map_or(1000, |spec| spec.fair_weight_milli);
        if weight <= 0 {
            return f64::INFINITY;
        }
        let mut sum = 0.0;
        for (resource, amount) in &local.ledger.consumed {
            sum += amount * self.resource_weight(config, *resource);
        }
        for penalty in local.ledger.penalties.values() {
            for (resource, amount) in penalty {
                sum += amount * self.resource_weight(config, *resource);
            }
        }
        sum / (weight as f64 / 1000.0)
    }

    fn resource_weight(&self, config: &AdmissionFairSharing, resource: ResourceId) -> f64 {
        let name: &Name = self.resource_name(resource);
        let milli = config.resource_weights_milli.get(name).copied().unwrap_or(1000);
        // Ledgers count cpu in thousandths; weights are per core.
        let unit = if &**name == "cpu" { 1000.0 } else { 1.0 };
        milli as f64 / 1000.0 / unit
    }
}

/// Result of a request to record a local queue's usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageSample {
    /// True if usage was recorded; false if the last record is recent enough.
    pub recorded: bool,
    /// When to sample again. `None` if the record changes the status of the queue, because that
    /// change triggers the next sample.
    pub next: Option<Duration>,
    /// True if workloads may be tried again: with the new usage, another one may be first in line.
    pub wake: bool,
}

impl crate::Engine {
    /// Records a local queue's usage when its last record is older than the sampling interval, or
    /// an admission is not part of it yet (§16.2). `None` without usage-based fairness or without
    /// such a queue.
    pub fn sample_usage(&mut self, namespace: &str, name: &str, now: Time) -> Option<UsageSample> {
        let interval = self.world.config.admission_fair_sharing.as_ref()?.usage_sampling_interval;
        if !self.world.config.gates.admission_fair_sharing {
            return None;
        }
        let id = *self.world.local_ids.get(&(Name::from(namespace), Name::from(name)))?;
        self.world.local(id).spec.as_ref()?;
        let ledger = &self.world.local(id).ledger;
        let elapsed = ledger.updated.map(|then| then.until(now));
        let remaining = elapsed.map_or(Duration::ZERO, |elapsed| interval.saturating_sub(elapsed));
        if !remaining.is_zero() && ledger.penalties.is_empty() {
            return Some(UsageSample { recorded: false, next: Some(remaining), wake: false });
        }
        self.sample(id, now);
        self.world.local_mut(id).ledger.accounted = true;
        let ahead = self.world.local(id).ledger.updated.is_some_and(|then| then > now);
        let queue = self.world.local(id).queue;
        let orders = queue.is_some_and(|queue| crate::waiting::order::is_usage_based(&self.world, queue));
        let wake = orders && self.has_candidates();
        Some(UsageSample { recorded: true, next: ahead.then_some(interval), wake })
    }

    /// Adds the usage that an earlier run of the process recorded (§16.5).
    pub(crate) fn restore_usage(
        &mut self,
        namespace: &Name,
        name: &Name,
        consumed: &crate::model::ResourceList,
        at: Time,
    ) {
        let id = self.world.local_id(namespace, name);
        let consumed: BTreeMap<ResourceId, f64> =
            consumed.iter().map(|(name, amount)| (self.world.resources.intern(name), *amount as f64)).collect();
        let ledger = &mut self.world.local_mut(id).ledger;
        if !ledger.accounted {
            // The consumption may already contain the penalty of an admission, so the restored
            // usage is added to it.
            for (resource, amount) in consumed {
                *ledger.consumed.entry(resource).or_default() += amount;
            }
            ledger.updated = ledger.updated.max(Some(at));
            ledger.accounted = true;
        }
    }

    /// Adds a penalty for an admission to its local queue. It stays until the usage includes the
    /// admission (§16.3).
    pub(crate) fn push_penalty(&mut self, id: WorkloadId) {
        let Some(config) = self.world.config.admission_fair_sharing.clone() else { return };
        let Some(queue) = self.world.record(id).holding.as_ref().map(|holding| holding.queue) else { return };
        if !crate::waiting::order::is_usage_based(&self.world, queue) {
            return;
        }
        let share = decay(config.usage_sampling_interval, config.usage_half_life);
        let ignores_undeclared = self.world.ignores_undeclared();
        let mut penalty: BTreeMap<ResourceId, f64> = BTreeMap::new();
        for set in &self.world.record(id).shape.pod_sets {
            for (resource, per_pod) in &set.requests {
                // Resources that the queue does not count are not charged either (§2.7).
                if ignores_undeclared && self.world.queue(queue).config.group_of(*resource).is_none() {
                    continue;
                }
                *penalty.entry(*resource).or_default() += crate::amount::times(*per_pod, set.count) as f64 * share;
            }
        }
        let local = self.world.record(id).local;
        self.world.local_mut(local).ledger.penalties.insert(id, penalty);
    }

    /// Moves the penalty of an admitted workload into the consumption of its local queue (§16.3).
    pub(crate) fn settle_penalty(&mut self, id: WorkloadId, now: Time) {
        let local = self.world.record(id).local;
        if !self.world.local(local).ledger.penalties.contains_key(&id) {
            return;
        }
        self.sample(local, now);
        let ledger = &mut self.world.local_mut(local).ledger;
        for (resource, amount) in ledger.penalties.remove(&id).unwrap_or_default() {
            *ledger.consumed.entry(resource).or_default() += amount;
        }
    }

    /// Drops the penalty of a workload that was deleted or no longer holds quota.
    pub(crate) fn drop_penalty(&mut self, id: WorkloadId) {
        let local = self.world.record(id).local;
        self.world.local_mut(local).ledger.penalties.remove(&id);
    }

    /// Decays the recorded usage towards the current usage (§16.2).
    pub(crate) fn sample(&mut self, local: LocalQueueId, now: Time) {
        let Some(config) = self.world.config.admission_fair_sharing.clone() else { return };
        let mut current: BTreeMap<ResourceId, f64> = BTreeMap::new();
        for (fr, amount) in self.world.local(local).holding.values().flat_map(Tally::used_amounts) {
            *current.entry(self.world.frs.get(fr).resource).or_default() += amount;
        }
        let ledger = &mut self.world.local_mut(local).ledger;
        let elapsed = ledger.updated.map_or(Duration::ZERO, |then| then.until(now));
        let alpha = decay(elapsed, config.usage_half_life);
        if config.usage_half_life.is_zero() {
            ledger.consumed.clear();
        } else {
            for amount in ledger.consumed.values_mut() {
                *amount *= 1.0 - alpha;
            }
            for (resource, amount) in current {
                *ledger.consumed.entry(resource).or_default() += alpha * amount;
            }
        }
        // The last update may be later than `now`, because `settle_penalty` may get the time of a
        // clock that is ahead.
        ledger.updated = ledger.updated.max(Some(now));
    }
}
