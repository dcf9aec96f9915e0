//! Plans which machines a pool orders and removes. The plan follows from the pool's desired size,
//! its resize requests, the stock of the cloud, and the times at which machines end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::berth::{Instance, LocationPolicy, NodePool, NodePoolStatus, Shortage};
use berth_apimachinery::well_known;
use berth_runtime::stamp;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::plan::{Draft, REMOVAL_TAINT, has_taint, is_ready, later, request_of, zones};
use super::supply::{self, RECLAIMED};
use super::template::{NodeTimes, node};
use crate::Site;
use crate::random::{hash, suffix};

/// Machines that are ordered and counted together: the pool's own, or those of a resize request.
struct Group {
    /// The resize request; `None` for the pool's own machines.
    name: Option<String>,
    /// Desired number of machines.
    wanted: i32,
    /// Zone of new machines; `None` for any zone of the pool.
    zone: Option<String>,
}

impl<'a> Draft<'a> {
    /// Announces the ends of machines, and removes machines of the pool itself at their end. The
    /// machines of a resize request are removed when the request is withdrawn.
    pub(super) fn end_machines(&mut self) {
        let now = self.now;
        let announced = |node: &Node| supply::announced_end(node);
        let notice = supply::notice(self.pool);
        let mut new: BTreeMap<String, (Timestamp, String)> = BTreeMap::new();
        for together in self.together() {
            if together.iter().any(|node| announced(node).is_some()) {
                continue;
            }
            let ends = together.iter().filter_map(|node| supply::natural_end(self.pool, node, self.site)).min();
            let Some((end, why)) = ends else { continue };
            let from = end.checked_sub(notice).unwrap_or(Timestamp::MIN);
            if from > now {
                self.due.push(from);
            } else {
                new.extend(together.iter().map(|node| (node.name_any(), (end.max(now), why.to_owned()))));
            }
        }
        self.end_surplus(&mut new);
        for node in self.alive.clone() {
            let name = node.name_any();
            let end = new.get(&name).cloned().or_else(|| announced(node));
            let Some((end, _)) = end else { continue };
            if end > now {
                self.due.push(end);
            } else if request_of(node).is_none() {
                self.plan.remove.push(name);
            }
        }
        let removed: BTreeSet<String> = self.plan.remove.iter().cloned().collect();
        self.alive.retain(|node| !removed.contains(&node.name_any()));
        self.plan.announce = new.into_iter().map(|(name, (end, why))| (name, end, why)).collect();
    }

    /// Groups of nodes that end together: the nodes of a resize request, the nodes of a TPU slice,
    /// or a single node.
    fn together(&self) -> Vec<Vec<&'a Arc<Node>>> {
        let mut groups: BTreeMap<String, Vec<&'a Arc<Node>>> = BTreeMap::new();
        for node in &self.alive {
            let key = match request_of(node) {
                Some(request) => format!("request/{request}"),
                None if self.pool.spec.is_slice() => "slice".to_owned(),
                None => format!("node/{}", node.name_any()),
            };
            groups.entry(key).or_default().push(*node);
        }
        groups.into_values().collect()
    }

    /// If the cloud takes machines back (`reclaim`) and its stock is smaller than the number of
    /// machines in use, the newest machines end.
    fn end_surplus(&mut self, new: &mut BTreeMap<String, (Timestamp, String)>) {
        let reclaims = self.pool.spec.supply.as_ref().is_some_and(|supply| supply.reclaim.is_some());
        let stock = supply::stock(self.pool, self.site, self.now);
        let Some(stock) = stock.filter(|_| reclaims).and_then(|stock| usize::try_from(stock).ok()) else { return };
        let ends = |node: &Node| new.contains_key(&node.name_any()) || supply::announced_end(node).is_some();
        let mut kept: Vec<Vec<&Arc<Node>>> = self.together();
        kept.retain(|together| !together.iter().any(|node| ends(node)));
        let mut in_use: usize = kept.iter().map(Vec::len).sum();
        let age = |together: &Vec<&Arc<Node>>| {
            let created = together.iter().filter_map(|node| Some(node.metadata.creation_timestamp.as_ref()?.0)).min();
            (created, together.first().map(|node| node.name_any()))
        };
        kept.sort_by_key(age);
        let end = later(self.now, supply::notice(self.pool));
        while in_use > stock {
            let Some(together) = kept.pop() else { break };
            in_use -= together.len();
            new.extend(together.iter().map(|node| (node.name_any(), (end, RECLAIMED.to_owned()))));
        }
    }

    /// The groups of machines with their desired numbers. The groups of withdrawn resize requests
    /// have the desired number 0.
    fn groups(&self) -> Vec<Group> {
        let spec = &self.pool.spec;
        let mut groups = vec![Group { name: None, wanted: spec.nodes_own(), zone: None }];
        groups.extend(spec.resize_requests.iter().map(|request| Group {
            name: Some(request.name.clone()),
            wanted: spec.whole_slices(request.nodes.max(0)),
            zone: request.zone.clone(),
        }));
        let known: BTreeSet<Option<&str>> = groups.iter().map(|group| group.name.as_deref()).collect();
        let of_nodes = self.alive.iter().map(|node| request_of(node));
        let ordered = self.status.creating.iter().map(|instance| instance.resize_request.as_deref());
        let orphaned: BTreeSet<String> =
            of_nodes.chain(ordered).filter(|group| !known.contains(group)).flatten().map(str::to_owned).collect();
        groups.extend(orphaned.into_iter().map(|name| Group { name: Some(name), wanted: 0, zone: None }));
        groups
    }

    /// For each group, orders the missing machines or removes the surplus.
    pub(super) fn order_and_remove(&mut self, pod_counts: &BTreeMap<String, usize>) {
        for group in self.groups() {
            let name = group.name.as_deref();
            let here: Vec<&Arc<Node>> = self.alive.iter().copied().filter(|node| request_of(node) == name).collect();
            let is_of_group = |instance: &Instance| instance.resize_request.as_deref() == name;
            let have = here.len() + self.status.creating.iter().filter(|instance| is_of_group(instance)).count();
            let wanted = usize::try_from(group.wanted).unwrap_or(0);
            if have > wanted {
                self.remove(name, here, have - wanted, pod_counts);
            } else if self.pool.spec.is_slice() && (1..wanted).contains(&have) {
                // A slice that has lost a machine is created anew as a whole.
                self.remove(name, here, have, pod_counts);
            } else {
                self.order(&group, have, wanted);
            }
        }
        let removed: BTreeSet<&String> = self.plan.remove.iter().collect();
        self.alive.retain(|node| !removed.contains(&node.name_any()));
    }

    fn order(&mut self, group: &Group, have: usize, wanted: usize) {
        let missing = wanted.saturating_sub(have);
        let ordered = self.available(group, missing);
        let initial = usize::try_from(self.pool.spec.initial_nodes).unwrap_or(0);
        for position in have..have + ordered {
            let zone = group.zone.clone().unwrap_or_else(|| self.next_zone());
            let instance = Instance {
                name: self.next_name(&zone),
                zone,
                ordered_at: stamp(self.now),
                resize_request: group.name.clone(),
            };
            if self.is_new && group.name.is_none() && position < initial {
                // The initial machines of a pool exist as soon as the pool is created.
                let times = NodeTimes { registered: self.now, ready: self.now, accelerators: self.now };
                self.plan.register.push(node(self.pool, self.site, &instance.zone, &instance.name, times, self.now));
            } else {
                self.status.creating.push(instance);
            }
        }
        if group.name.is_none() {
            self.note_shortage(i32::try_from(missing - ordered).unwrap_or(i32::MAX), ordered);
        }
    }

    /// How many of the missing machines the cloud has. Resize requests and TPU slices get all or
    /// none.
    fn available(&self, group: &Group, missing: usize) -> usize {
        let stock = supply::stock(self.pool, self.site, self.now).and_then(|stock| usize::try_from(stock).ok());
        let Some(stock) = stock.filter(|_| !self.is_new) else { return missing };
        let in_use = self.alive.len() + self.status.creating.len();
        let available = stock.saturating_sub(in_use).min(missing);
        let is_whole = group.name.is_some() || self.pool.spec.is_slice();
        if is_whole && available < missing { 0 } else { available }
    }

    /// Records an order that the cloud could not fulfil, or forgets it after a success.
    fn note_shortage(&mut self, missing: i32, ordered: usize) {
        let known = self.status.shortage.take();
        self.status.shortage = match known {
            None if missing == 0 => None,
            Some(_) if missing == 0 && ordered > 0 => None,
            Some(known) if missing == 0 || known.missing > 0 => Some(Shortage { missing, ..known }),
            known => {
                self.plan.out_of_stock = Some(missing);
                let failures = known.map_or(0, |known| known.failures).saturating_add(1);
                Some(Shortage { missing, since: stamp(self.now), failures })
            }
        };
    }

    fn remove(
        &mut self,
        group: Option<&str>,
        mut candidates: Vec<&Arc<Node>>,
        mut surplus: usize,
        pod_counts: &BTreeMap<String, usize>,
    ) {
        // Machines that have not registered yet are removed first.
        while surplus > 0 {
            let creating = &mut self.status.creating;
            let last = creating.iter().rposition(|instance| instance.resize_request.as_deref() == group);
            let Some(last) = last else { break };
            creating.remove(last);
            surplus -= 1;
        }
        candidates.sort_by_key(|node| {
            let pods = pod_counts.get(&node.name_any()).copied().unwrap_or(0);
            let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (!has_taint(node, REMOVAL_TAINT), is_ready(node), pods, std::cmp::Reverse(created), node.name_any())
        });
        self.plan.remove.extend(candidates.into_iter().take(surplus).map(|node| node.name_any()));
        if group.is_none() {
            self.note_shortage(0, 0);
        }
    }

    fn next_zone(&self) -> String {
        next_zone(self.pool, &self.alive, &self.status.creating, self.site)
    }

    fn next_name(&mut self, zone: &str) -> String {
        next_name(&self.pool.name_any(), zone, &mut self.status, &self.registered, self.site)
    }
}

fn next_zone(pool: &NodePool, alive: &[&Arc<Node>], creating: &[Instance], site: &Site) -> String {
    let zones = zones(pool, site);
    if pool.spec.location_policy == LocationPolicy::Any {
        return zones[0].clone();
    }
    let count = |zone: &str| {
        let standing = alive.iter().filter(|node| node.labels().get(well_known::ZONE).is_some_and(|z| z == zone));
        standing.count() + creating.iter().filter(|instance| instance.zone == zone).count()
    };
    zones.iter().min_by_key(|zone| count(zone)).unwrap_or(&zones[0]).clone()
}

/// `gke-<cluster>-<pool>-<8 hexadecimal digits of the zone's group>-<4 characters>`, at most 63
/// characters.
fn next_name(
    pool: &str,
    zone: &str,
    status: &mut NodePoolStatus,
    registered: &BTreeSet<String>,
    site: &Site,
) -> String {
    let group = hash(&["instance-group", &site.cluster, pool, zone]) as u32;
    let mut prefix = format!("gke-{}-{pool}", site.cluster);
    prefix.truncate(63 - 14);
    let prefix = prefix.trim_end_matches('-');
    loop {
        status.ordered += 1;
        let tail = suffix(site.seed, &["node", pool, &status.ordered.to_string()], 4);
        let name = format!("{prefix}-{group:08x}-{tail}");
        if !registered.contains(&name) && status.creating.iter().all(|instance| instance.name != name) {
            return name;
        }
    }
}
