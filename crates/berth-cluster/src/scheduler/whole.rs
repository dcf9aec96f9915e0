//! Gangs that are placed as a whole: Sakkara's groups, and PodGroups of Sakkara's profiles.
//!
//! A gang is tried once it has all its pods. Either all of them get a node in one step, or none. If
//! there is no room, whole groups of lower priority are evicted for it.
//!
//! Choices where Sakkara's KEP is silent: a group of which a pod is bound or has succeeded is
//! formed, and its other pods are placed without the constraints being applied to the bound ones.
//! Pods beyond `size` wait. A PodGroup of a Sakkara profile is a group of `minMember` pods without
//! constraints, whose pods may have different requests; further pods are placed one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::scheduling::{SAKKARA_RANK_LABEL, SAKKARA_RETRIES_LABEL, SAKKARA_STATUS_LABEL};
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use super::decide::{Round, Unplaced, wait_decision};
use super::gangs::{Gang, GangKind};
use super::profile::{GangPlugin, Profile};
use super::state::{Decision, Preparing, Results, State};
use crate::gangs::constraints::Constraints;
use crate::gangs::group::{self, Group};
use crate::gangs::member::{Member, in_order};
use crate::gangs::plan::{Misfit, Plan, Request};
use crate::gangs::pod_group::{check_resources, check_siblings};
use crate::gangs::topology::Topology;
use crate::placement::{PodInfo, can_place};

/// A gang that has its pods.
pub(super) struct Complete {
    /// The pods to place now.
    pub(super) pods: Vec<Arc<PodInfo>>,
    /// Further pods, and why they wait. Without a reason they are placed one by one.
    rest: Vec<Arc<PodInfo>>,
    rest_waits: Option<String>,
    pub(super) group: Group,
    pub(super) topology: Topology,
}

impl State {
    /// Tries a gang.
    pub(super) fn try_whole(
        &mut self,
        gang: &Gang,
        profile: &Arc<Profile>,
        round: &mut Round,
        decisions: &mut Vec<Decision>,
    ) {
        let declared = self.gangs.declared(gang).filter(|_| gang.kind == GangKind::Sakkara);
        let config_map = declared.map(|declared| declared.config_map);
        // The gang's own reservations after a preemption must not stand in its way.
        let waiting = self.waiting_members(gang);
        for pod in &waiting {
            self.cluster.remove_pod(&pod.key);
        }
        let complete = match self.complete(gang, profile, waiting.clone()) {
            Ok(complete) => complete,
            Err(why) => return self.hold_back(gang, config_map.as_ref(), &waiting, &why, profile, decisions),
        };
        if let Some(why) = &complete.rest_waits {
            for pod in &complete.rest {
                decisions.extend(self.blocked(pod, why, profile));
            }
        }
        let memory = self.gangs.memory_mut(gang);
        memory.began.get_or_insert(round.now);
        let request = complete.request(profile);
        let capacity = request.capacity(&self.cluster);
        match request.place(&self.cluster, &capacity) {
            Ok(plan) => {
                let placed = self.place_whole(gang, config_map.as_ref(), &complete.group, &plan);
                match placed {
                    Ok(decision) => decisions.push(decision),
                    Err(why) => {
                        self.gangs.memory_mut(gang).retries += 1;
                        self.hold_back(gang, config_map.as_ref(), &complete.pods, &why, profile, decisions);
                    }
                }
                if complete.rest_waits.is_none() {
                    for pod in complete.rest {
                        self.wait(pod);
                    }
                }
            }
            Err(misfit) => {
                self.gangs.memory_mut(gang).retries += 1;
                self.note_crowded_out(&complete.pods[0].key, round);
                let why = describe(&misfit, gang, complete.pods.len());
                match self.preempt_groups(gang, &complete, profile, capacity) {
                    Some(preemption) => {
                        self.report_status(gang, config_map.as_ref(), &why, decisions);
                        self.nominate_all(preemption, &why, decisions);
                    }
                    None if complete.rest_waits.is_none() => {
                        self.hold_back(gang, config_map.as_ref(), &waiting, &why, profile, decisions);
                    }
                    None => self.hold_back(gang, config_map.as_ref(), &complete.pods, &why, profile, decisions),
                }
            }
        }
    }

    /// The pods of a gang that are to be placed, or why the gang has to wait.
    fn complete(&self, gang: &Gang, profile: &Profile, waiting: Vec<Arc<PodInfo>>) -> Result<Complete, String> {
        let GangPlugin::PlacementGroup { topology_namespace } = &profile.gangs else {
            return Err("the scheduler does not place whole groups".into());
        };
        let topology = self.gangs.topology(topology_namespace)?;
        let waiting = in_order(waiting, |pod| &pod.key.name);
        let waiting: Vec<_> = waiting.into_iter().map(|pod| self.with_volumes(pod)).collect();
        if let Some(why) = waiting.iter().find_map(|pod| pod.blocked().map(str::to_owned)) {
            return Err(why);
        }
        if gang.kind == GangKind::Whole {
            return self.complete_pod_group(gang, topology, waiting);
        }
        let Some(declared) = self.gangs.declared(gang) else {
            return Err(format!(
                "no ConfigMap in namespace {} has label sakkara.group and data.name {:?}",
                gang.key.namespace, gang.key.name
            ));
        };
        let at = ObjectKey::of(declared.config_map.as_ref());
        let group = declared.group.map_err(|error| format!("ConfigMap {at}: {error}"))?;
        group.check_levels(&topology.levels).map_err(|error| format!("ConfigMap {at}: {error}"))?;
        let formed = self.bound_members(gang).len() + self.gangs.succeeded(gang, &waiting);
        if formed == 0 && waiting.len() < group.size {
            return Err(format!("{} has {} of its {} pods", gang.title(), waiting.len(), group.size));
        }
        let wanted = group.size.saturating_sub(formed);
        let surplus = format!("{} already has its {} pods", gang.title(), group.size);
        if wanted == 0 {
            return Err(surplus);
        }
        let (pods, rest) = split(waiting, wanted);
        let complete = Complete { pods, rest, rest_waits: Some(surplus), group, topology };
        match complete.pods.iter().find(|pod| !pod.is_placed_like(&complete.pods[0])) {
            Some(other) => Err(format!(
                "the pods of {} must be equal, but the requests or node rules of {} and {} differ",
                gang.title(),
                complete.pods[0].key.name,
                other.key.name
            )),
            None => Ok(complete),
        }
    }

    fn complete_pod_group(
        &self,
        gang: &Gang,
        topology: Topology,
        waiting: Vec<Arc<PodInfo>>,
    ) -> Result<Complete, String> {
        let Some(rules) = self.gangs.rules(gang) else { return Err("PodGroup not found".into()) };
        let formed = self.assigned(gang);
        let wanted = rules.min_member.saturating_sub(formed);
        let first = waiting.first().map_or("", |pod| pod.key.name.as_str());
        check_siblings(first, &rules, self.gangs.siblings(gang))?;
        check_resources(&gang.key.to_string(), &rules, &self.free_for(gang))?;
        if waiting.len() < wanted {
            return Err(format!("{} of the {wanted} missing pods of {} can be placed", waiting.len(), gang.title()));
        }
        let (pods, rest) = split(waiting, wanted);
        let priority = pods.iter().map(|pod| pod.priority).min().unwrap_or(0);
        let group = Group { size: rules.min_member, priority, constraints: Constraints::new() };
        Ok(Complete { pods, rest, rest_waits: None, group, topology })
    }

    /// The pods of a gang on a node that are not being deleted.
    fn bound_members(&self, gang: &Gang) -> Vec<Arc<PodInfo>> {
        let placed = self.gangs.pods(gang).filter_map(|key| self.cluster.pod(key));
        placed.filter(|pod| !pod.is_terminating()).cloned().collect()
    }

    /// Counts all pods on their nodes, and returns the writes.
    fn place_whole(
        &mut self,
        gang: &Gang,
        config_map: Option<&Arc<ConfigMap>>,
        group: &Group,
        plan: &Plan,
    ) -> Result<Decision, String> {
        let has_unbound = plan.places.iter().any(|(pod, _)| !pod.volumes().are_bound());
        let mut results = config_map.map(|config_map| self.results(gang, config_map, group, plan));
        let memory = self.gangs.memory_mut(gang);
        memory.retries = 0;
        match results.as_mut() {
            Some(results) if has_unbound => results.completes = None,
            _ => memory.began = None,
        }
        let mut members = Vec::new();
        let mut counted: Vec<Arc<PodInfo>> = Vec::new();
        for (pod, node) in &plan.places {
            // Volumes that an earlier pod of the gang has taken are no longer free.
            let pod = self.with_volumes(pod.clone());
            let node = plan.node(*node).to_owned();
            if (has_unbound || pod.claims_devices()) && !can_place(&pod, &self.cluster, &node) {
                for pod in counted {
                    self.stop_assuming(&pod.key);
                    self.cluster.remove_pod(&pod.key);
                    self.enqueue(pod, false);
                }
                return Err(format!("the claims of the pods of {} cannot all have volumes or devices", gang.title()));
            }
            let pod = self.count_on(pod, &node);
            counted.push(pod.clone());
            if !has_unbound {
                members.push(Decision::Bind { pod, node });
            } else if pod.volumes().are_bound() {
                // Bound with the others, once their claims have volumes.
                let preparing = Preparing { node, is_written: true, gang: Some(gang.clone()) };
                self.preparing.insert(pod.key.clone(), preparing);
            } else {
                members.push(self.prepare_for(pod, node, Some(gang.clone())));
            }
        }
        Ok(Decision::Gang { results, members })
    }

    /// The pods of a gang whose claims all have volumes are bound together.
    pub(super) fn bind_gang(&mut self, gang: &Gang) -> Option<Decision> {
        let members = self.preparing.iter().filter(|(_, it)| it.gang.as_ref() == Some(gang));
        let members: Vec<(ObjectKey, String)> = members.map(|(key, it)| (key.clone(), it.node.clone())).collect();
        if !members.iter().all(|(key, _)| self.is_prepared(key) == Some(true)) {
            return None;
        }
        let mut binds = Vec::new();
        for (key, node) in members {
            let Some(pod) = self.cluster.pod(&key).cloned() else { continue };
            self.stop_preparing(&key);
            binds.push(Decision::Bind { pod: self.with_volumes(pod), node });
        }
        let declared = self.gangs.declared(gang).filter(|_| gang.kind == GangKind::Sakkara);
        let completes = self.gangs.memory_mut(gang).began.take();
        let results = declared.map(|declared| Results {
            config_map: declared.config_map,
            data: BTreeMap::new(),
            labels: Vec::new(),
            completes,
        });
        Some(Decision::Gang { results, members: binds })
    }

    /// What is written about a placed group: all of its pods, those bound before included.
    fn results(&mut self, gang: &Gang, config_map: &Arc<ConfigMap>, group: &Group, plan: &Plan) -> Results {
        let indexes: BTreeMap<&str, usize> =
            plan.tree.nodes().map(|node| (plan.tree.unit(node).name.as_str(), node)).collect();
        let mut members = self.ranked_members(gang, &indexes);
        let taken: Vec<usize> = members.iter().map(|member| member.rank).collect();
        let free = (0..).filter(|rank| !taken.contains(rank));
        let memory = self.gangs.memory_mut(gang);
        let retries = memory.retries.to_string();
        let began = memory.began;
        // Pods that an interrupted write has bound.
        let mut labels = self.unlabelled(gang);
        for ((pod, node), rank) in plan.places.iter().zip(free) {
            members.push(Member { pod: pod.key.name.clone(), node: *node, rank });
            let of_pod = [(SAKKARA_RANK_LABEL, rank.to_string()), (SAKKARA_RETRIES_LABEL, retries.clone())];
            labels.push((pod.clone(), of_pod.map(|(key, value)| (key.to_owned(), value)).into()));
        }
        members.sort_by_key(|member| member.rank);
        let mut unmet = plan.given_up.clone();
        unmet.extend(group.unknown_levels(&plan.tree.levels).into_iter().map(str::to_owned));
        let began_text = began.map(|began| began.to_string());
        let data = [
            ("placement", Some(group::placement(&plan.tree, &members))),
            ("rank", Some(group::ranks(&members))),
            ("schedBeginTime", began_text),
            ("unmetConstraints", (!unmet.is_empty()).then(|| unmet.join(", "))),
            ("message", None),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value)).into();
        Results { config_map: config_map.clone(), data, labels, completes: began }
    }

    /// The bound pods of a group that have a rank. `indexes` are those of the nodes in the tree.
    fn ranked_members(&self, gang: &Gang, indexes: &BTreeMap<&str, usize>) -> Vec<Member> {
        let bound = self.bound_members(gang);
        let ranked = bound.iter().filter_map(|pod| {
            let rank = pod.label(SAKKARA_RANK_LABEL)?.parse().ok()?;
            let node = *indexes.get(self.cluster.place_of(&pod.key)?)?;
            Some(Member { pod: pod.key.name.clone(), node, rank })
        });
        ranked.collect()
    }

    /// The bound pods of a group without the label that says so, with this label.
    fn unlabelled(&self, gang: &Gang) -> Vec<(Arc<PodInfo>, BTreeMap<String, String>)> {
        let label = BTreeMap::from([(SAKKARA_STATUS_LABEL.to_owned(), group::BOUND.to_owned())]);
        let bound = self.bound_members(gang).into_iter();
        bound.filter(|pod| pod.label(SAKKARA_STATUS_LABEL).is_none()).map(|pod| (pod, label.clone())).collect()
    }

    /// States in the ConfigMaps of groups that all of their pods are bound, if the process ended
    /// before it could.
    pub(super) fn report_bound(&mut self, now: Timestamp) -> Vec<Decision> {
        let gangs = std::mem::take(&mut self.unreported);
        gangs.into_iter().filter_map(|gang| self.report_bound_group(&gang, now)).collect()
    }

    fn report_bound_group(&self, gang: &Gang, now: Timestamp) -> Option<Decision> {
        let declared = self.gangs.declared(gang)?;
        let group = declared.group.ok()?;
        let bound = self.bound_members(gang);
        let is_writing = bound.iter().any(|pod| self.assumed.contains(&pod.key));
        if is_writing
            || !self.gangs.is_unreported(gang)
            || bound.len() + self.gangs.succeeded(gang, &bound) < group.size
        {
            return None;
        }
        let began = declared.config_map.data.as_ref().and_then(|data| data.get("schedBeginTime"));
        let results = Results {
            labels: self.unlabelled(gang),
            data: BTreeMap::from([("message".to_owned(), None)]),
            completes: Some(began.and_then(|text| text.parse().ok()).unwrap_or(now)),
            config_map: declared.config_map,
        };
        Some(Decision::Gang { results: Some(results), members: Vec::new() })
    }

    /// Says of all pods why their gang waits.
    fn hold_back(
        &mut self,
        gang: &Gang,
        config_map: Option<&Arc<ConfigMap>>,
        pods: &[Arc<PodInfo>],
        why: &str,
        profile: &Profile,
        decisions: &mut Vec<Decision>,
    ) {
        self.report_status(gang, config_map, why, decisions);
        let without_pods = Profile { preemption: false, ..profile.clone() };
        for pod in pods {
            decisions.extend(self.blocked(pod, why, &without_pods));
        }
    }

    /// Writes to the group's ConfigMap that it waits, and why.
    fn report_status(
        &self,
        gang: &Gang,
        config_map: Option<&Arc<ConfigMap>>,
        why: &str,
        decisions: &mut Vec<Decision>,
    ) {
        // A formed group keeps its status while a pod of it is replaced.
        let Some(config_map) = config_map.filter(|_| self.bound_members(gang).is_empty()) else { return };
        let known = |key: &str| config_map.data.as_ref().and_then(|data| data.get(key)).map(String::as_str);
        if known("status") == Some(group::PENDING) && known("message") == Some(why) {
            return;
        }
        let mut data: BTreeMap<String, Option<String>> =
            ["placement", "rank", "schedBeginTime", "schedEndTime", "schedTotalTimeMilli", "schedSolverTimeMilli"]
                .map(|key| (key.to_owned(), None))
                .into();
        data.insert("status".into(), Some(group::PENDING.into()));
        data.insert("message".into(), Some(why.to_owned()));
        let results = Results { config_map: config_map.clone(), data, labels: Vec::new(), completes: None };
        decisions.push(Decision::Gang { results: Some(results), members: Vec::new() });
    }

    fn nominate_all(&mut self, preemption: GroupPreemption, why: &str, decisions: &mut Vec<Decision>) {
        let GroupPreemption { plan, mut victims, groups } = preemption;
        let count = self.cluster.node_count();
        let message = format!("0/{count} nodes are available: {why}. preemption: evicting {}.", groups.join(", "));
        for (pod, node) in &plan.places {
            let node = plan.node(*node).to_owned();
            self.cluster.nominate(pod.clone(), &node);
            let (message, nominated) = (message.clone(), Some(node));
            let victims = std::mem::take(&mut victims);
            decisions.extend(wait_decision(pod.clone(), Unplaced { message, nominated, victims }));
        }
    }
}

impl Complete {
    pub(super) fn request<'a>(&'a self, profile: &'a Profile) -> Request<'a> {
        Request {
            pods: &self.pods,
            constraints: &self.group.constraints,
            topology: &self.topology,
            ranking: &profile.ranking,
        }
    }
}

/// Groups that make room for a gang.
pub(super) struct GroupPreemption {
    /// Where the gang will be.
    pub(super) plan: Plan,
    /// Pods to evict; pods that are being deleted already are not among them.
    pub(super) victims: Vec<Arc<PodInfo>>,
    /// Names of the groups, for the message.
    pub(super) groups: Vec<String>,
}

fn split(mut pods: Vec<Arc<PodInfo>>, count: usize) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let rest = pods.split_off(count.min(pods.len()));
    (pods, rest)
}

fn describe(misfit: &Misfit, gang: &Gang, size: usize) -> String {
    let title = gang.title();
    let mut text = match misfit.fits {
        Some(fits) => format!("{fits} of the {size} pods of {title} fit"),
        None => format!("the hard constraints of {title} cannot be met: {}", misfit.hard.join(", ")),
    };
    let mut reasons: Vec<String> = misfit.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    if !reasons.is_empty() {
        text.push_str("; nodes without room: ");
        text.push_str(&reasons.join(", "));
    }
    text
}
