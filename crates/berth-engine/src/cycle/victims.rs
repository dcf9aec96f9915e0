//! The record of a preemption: its victims, and quota and shares before and after (§11).

use std::sync::Arc;

use super::Entry;
use crate::amount::Amount;
use crate::decision::{Balance, Preemption, Priority, QuotaChange, Victim};
use crate::ids::{FrId, NodeId};
use crate::preemption::Target;
use crate::preemption::candidates::is_evicted;
use crate::quota::FrAmounts;
use crate::status::WeightedShare;
use crate::world::{Record, World};

/// Maximum number of queues and cohorts whose quota use a preemption records.
const BALANCES_MAX: usize = 32;

/// The victims to evict for an entry, and the record of the preemption. `usage` is the quota that
/// the entry takes.
pub(crate) fn victims(world: &mut World, entry: &Entry, usage: &FrAmounts) -> Vec<Victim> {
    let balances = balances(world, entry, usage);
    let queue = world.queue(entry.queue);
    let record = world.record(entry.workload);
    let preemption = Arc::new(Preemption {
        workload: record.key().clone(),
        uid: record.facts.uid.clone(),
        job_uid: record.facts.job_uid.clone(),
        cluster_queue: queue.name.clone(),
        path: world.tree.names_from_root(queue.node),
        priority: priority(record),
        policies: queue.config.preemption,
        // The last search is the one that found the targets.
        search: entry.assignment.searches.last().map(|search| search.named(world)),
        balances,
    });
    let victim = |target: &Target| {
        let victim = world.record(target.workload);
        let holding = victim.holding.as_ref()?;
        let queue = world.queue(holding.queue);
        Some(Victim {
            workload: victim.key().clone(),
            uid: victim.facts.uid.clone(),
            cluster_queue: queue.name.clone(),
            path: world.tree.names_from_root(queue.node),
            reason: target.reason,
            write: !is_evicted(world, target.workload),
            priority: priority(victim),
            preemption: preemption.clone(),
        })
    };
    entry.targets.iter().filter_map(victim).collect()
}

fn priority(record: &Record) -> Priority {
    Priority { base: record.facts.priority, boost: record.priority - record.facts.priority }
}

/// Quota use and shares before and after a preemption. Covers the queues of the preemptor and of
/// its victims, and the cohorts above them.
fn balances(world: &mut World, entry: &Entry, usage: &FrAmounts) -> Vec<Balance> {
    let own = world.queue(entry.queue).node;
    let mut nodes: Vec<NodeId> = world.tree.path_to_root(own).collect();
    for target in &entry.targets {
        let Some(holding) = &world.record(target.workload).holding else { continue };
        for node in world.tree.path_to_root(world.queue(holding.queue).node) {
            if nodes.len() < BALANCES_MAX && !nodes.contains(&node) {
                nodes.push(node);
            }
        }
    }
    let frs: Vec<FrId> = usage.iter().map(|(fr, _)| *fr).collect();
    let mark = world.mark();
    let before: Vec<Use> = nodes.iter().map(|node| Use::of(world, *node, &frs)).collect();
    for target in &entry.targets {
        world.hide(target.workload);
    }
    world.add_usage(own, usage);
    let after: Vec<Use> = nodes.iter().map(|node| Use::of(world, *node, &frs)).collect();
    world.rollback(mark);
    let world: &World = world;
    let sides = before.into_iter().zip(after);
    nodes.iter().zip(sides).map(|(node, (before, after))| balance(world, *node, &frs, before, after)).collect()
}

/// Usage of a queue or cohort at one moment.
struct Use {
    /// Amounts in the order of the flavor-resources.
    amounts: Vec<Amount>,
    share: Option<WeightedShare>,
}

impl Use {
    fn of(world: &World, node: NodeId, frs: &[FrId]) -> Use {
        Use {
            amounts: frs.iter().map(|fr| world.tree.cell(node, *fr).usage).collect(),
            share: world.is_fair_sharing().then(|| world.weighted_share(node)),
        }
    }
}

fn balance(world: &World, node: NodeId, frs: &[FrId], before: Use, after: Use) -> Balance {
    let changes = frs.iter().zip(before.amounts.into_iter().zip(after.amounts));
    let quotas = changes.map(|(fr, (before, after))| {
        let named = world.frs.get(*fr);
        QuotaChange {
            flavor: world.flavor_name(named.flavor).clone(),
            resource: world.resource_name(named.resource).clone(),
            quota: world.tree.cell(node, *fr).subtree,
            before,
            after,
        }
    });
    let mut quotas: Vec<QuotaChange> = quotas.collect();
    // Ids follow the order in which objects were created; names do not.
    quotas.sort_by(|a, b| (&a.flavor, &a.resource).cmp(&(&b.flavor, &b.resource)));
    Balance {
        name: world.tree.node(node).name.clone(),
        is_cohort: !world.tree.node(node).is_queue,
        quotas,
        shares: before.share.zip(after.share),
    }
}
