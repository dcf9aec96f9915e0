//! Chooses the groups that are evicted for a gang of higher priority. Whole groups are evicted,
//! never parts of one.
//!
//! Sakkara's KEP shows that groups of lower priority are preempted, and leaves the choice open.
//! Here groups are removed until the gang fits: first those that are being deleted anyway, then the
//! lowest priority, then the latest start, then by name. Then as many as possible are put back, the
//! most important first. Priorities are those of the groups' ConfigMaps; a PodGroup has that of its
//! most important pod. Pods without a group are not evicted.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::gangs::{Gang, GangKind};
use super::profile::Profile;
use super::state::State;
use super::whole::{Complete, GroupPreemption};
use crate::placement::{Capacity, PodInfo};

/// A group with pods on nodes.
struct Candidate {
    gang: Gang,
    priority: i32,
    started: Timestamp,
    is_going: bool,
    /// Its pods with their nodes.
    pods: Vec<(Arc<PodInfo>, String)>,
}

impl State {
    /// The groups whose eviction lets the gang be placed; `None` if there are none. `capacity` is
    /// that of the nodes as they are.
    pub(super) fn preempt_groups(
        &self,
        gang: &Gang,
        complete: &Complete,
        profile: &Profile,
        mut capacity: Capacity,
    ) -> Option<GroupPreemption> {
        if !profile.preemption || !complete.pods.iter().all(|pod| pod.may_preempt()) {
            return None;
        }
        let candidates = self.candidates(gang, complete.group.priority);
        if candidates.is_empty() {
            return None;
        }
        let request = complete.request(profile);
        let mut cluster = self.cluster.clone();
        let mut removed = Vec::new();
        let mut plan = None;
        for candidate in candidates {
            for (pod, _) in &candidate.pods {
                cluster.remove_pod(&pod.key);
            }
            request.update_capacity(&mut capacity, &cluster, candidate.nodes());
            removed.push(candidate);
            plan = request.place(&cluster, &capacity).ok();
            if plan.is_some() {
                break;
            }
        }
        plan.as_ref()?;
        // Put back the most important groups first.
        removed.sort_by_key(|it| (it.is_going, Reverse(it.priority), it.started, it.gang.clone()));
        let mut evicted = Vec::new();
        for candidate in removed {
            if candidate.is_going {
                evicted.push(candidate);
                continue;
            }
            for (pod, node) in &candidate.pods {
                cluster.place(pod.clone(), node);
            }
            request.update_capacity(&mut capacity, &cluster, candidate.nodes());
            match request.place(&cluster, &capacity) {
                Ok(without) => plan = Some(without),
                Err(_) => {
                    for (pod, _) in &candidate.pods {
                        cluster.remove_pod(&pod.key);
                    }
                    request.update_capacity(&mut capacity, &cluster, candidate.nodes());
                    evicted.push(candidate);
                }
            }
        }
        let staying = |(pod, _): &(Arc<PodInfo>, String)| (!pod.is_terminating()).then(|| pod.clone());
        Some(GroupPreemption {
            plan: plan?,
            victims: evicted.iter().flat_map(|it| it.pods.iter().filter_map(staying)).collect(),
            groups: evicted.iter().map(|it| format!("{} (priority {})", it.gang.title(), it.priority)).collect(),
        })
    }

    /// Groups of lower priority with pods on nodes, in the order in which they are removed.
    fn candidates(&self, preemptor: &Gang, priority: i32) -> Vec<Candidate> {
        let mut gangs = BTreeSet::new();
        for key in self.gangs.all_pods() {
            let Some(pod) = self.cluster.pod(key) else { continue };
            gangs.extend(self.profile_of(pod).and_then(|profile| Gang::of(pod, profile)));
        }
        let others = gangs.into_iter().filter(|gang| gang != preemptor && gang.kind != GangKind::Coscheduled);
        let mut candidates: Vec<Candidate> =
            others.filter_map(|gang| self.candidate(gang)).filter(|it| it.priority < priority).collect();
        candidates.sort_by_key(|it| (!it.is_going, it.priority, Reverse(it.started), it.gang.clone()));
        candidates
    }

    fn candidate(&self, gang: Gang) -> Option<Candidate> {
        let placed = self.gangs.pods(&gang).filter_map(|key| {
            let pod = self.cluster.pod(key)?;
            Some((pod.clone(), self.cluster.place_of(key)?.to_owned()))
        });
        let pods: Vec<(Arc<PodInfo>, String)> = placed.collect();
        let of_pods = pods.iter().map(|(pod, _)| pod.priority).max()?;
        let declared = self.gangs.declared(&gang).filter(|_| gang.kind == GangKind::Sakkara);
        let declared = declared.and_then(|declared| declared.group.ok());
        Some(Candidate {
            priority: declared.map_or(of_pods, |group| group.priority),
            started: pods.iter().filter_map(|(pod, _)| pod.started()).min().unwrap_or(Timestamp::MAX),
            is_going: pods.iter().all(|(pod, _)| pod.is_terminating()),
            gang,
            pods,
        })
    }
}

impl Candidate {
    fn nodes(&self) -> impl Iterator<Item = &str> {
        let nodes: BTreeSet<&str> = self.pods.iter().map(|(_, node)| node.as_str()).collect();
        nodes.into_iter()
    }
}
