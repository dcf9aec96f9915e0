//! A small model of the world around an AppWrapper: the API's objects, the controllers of the
//! components, users, node health and time. Every move of it, and every way in which a step of the
//! operator can be interrupted, is one transition to another state.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::appwrapper::parameters::Parameters;
use crate::appwrapper::plan::{Act, Decision, Facts, Next, Observed, Outcome, Presence, created, plan};
use crate::appwrapper::pods::PodSummary;
use crate::appwrapper::types::{AppWrapperSpec, AppWrapperStatus, Phase, find};

/// Phase of a modelled pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// The object of a component.
#[derive(Clone, Debug)]
pub struct Object {
    pub component: usize,
    /// Deployment that created it.
    pub epoch: u32,
    pub is_deleting: bool,
    pub has_failed: bool,
}

/// The pod of an object.
#[derive(Clone, Debug)]
pub struct Pod {
    pub owner: String,
    pub epoch: u32,
    pub phase: PodPhase,
}

/// What never changes.
pub struct Constants {
    pub spec: AppWrapperSpec,
    pub parameters: Parameters,
}

impl Constants {
    /// An AppWrapper with this number of components, of one pod each. All periods last one or two
    /// seconds, so that each state has few ages.
    pub fn new(components: usize, is_named: bool, pause_after_failure: u64) -> Self {
        let field = if is_named { "name" } else { "generateName" };
        let component = |index: usize| {
            json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {field: format!("c{index}-")},
                "spec": {"containers": []}}})
        };
        let components: Vec<_> = (0..components).map(component).collect();
        let second = Duration::from_secs(1);
        let parameters = Parameters {
            admission_grace: second,
            warmup_grace: 2 * second,
            failure_grace: second,
            retry_pause: second,
            retry_limit: 1,
            forceful_deletion_grace: second,
            deletion_on_failure_grace: Duration::from_secs(pause_after_failure),
            success_ttl: second,
            terminal_exit_codes: Vec::new(),
            retryable_exit_codes: Vec::new(),
        };
        Self { spec: serde_json::from_value(json!({"components": components})).expect("a spec"), parameters }
    }
}

/// One state.
#[derive(Clone, Debug)]
pub struct World {
    pub suspend: bool,
    pub is_deleting: bool,
    pub has_finalizer: bool,
    pub status: AppWrapperStatus,
    pub objects: BTreeMap<String, Object>,
    pub pods: Vec<Pod>,
    pub is_node_bad: bool,
    /// Number of deployments so far.
    pub epoch: u32,
    pub now: Timestamp,
}

/// Ages beyond this number of seconds make no difference.
const AGE_MAX: i64 = 2;

impl World {
    pub fn new() -> Self {
        Self {
            suspend: true,
            is_deleting: false,
            has_finalizer: false,
            status: AppWrapperStatus::default(),
            objects: BTreeMap::new(),
            pods: Vec::new(),
            is_node_bad: false,
            epoch: 0,
            now: "2026-01-05T09:00:00Z".parse().expect("a time"),
        }
    }

    /// True once the API has deleted the AppWrapper.
    pub fn is_gone(&self) -> bool {
        self.is_deleting && !self.has_finalizer
    }

    /// All that distinguishes this state from others: times as ages, names by what they refer to.
    pub fn key(&self) -> Vec<u8> {
        let mut key = vec![
            self.suspend.into(),
            self.is_deleting.into(),
            self.has_finalizer.into(),
            self.is_node_bad.into(),
            self.status.phase as u8,
            self.status.resetting_count as u8,
        ];
        for type_ in ["QuotaReserved", "ResourcesDeployed", "PodsReady", "Unhealthy", "DeletingResources"] {
            let Some(condition) = find(&self.status.conditions, type_) else {
                key.push(255);
                continue;
            };
            let has_age = !matches!(type_, "QuotaReserved" | "PodsReady");
            let age = self.now.duration_since(condition.last_transition_time.0).as_secs().min(AGE_MAX);
            key.extend([condition.status.len() as u8, if has_age { age as u8 } else { 0 }]);
            key.push((condition.reason == "DeletionPaused").into());
        }
        for component in &self.status.component_status {
            let condition = component.conditions.first();
            key.push(condition.map_or(0, |it| it.status.len() as u8));
            key.push(condition.is_some_and(|it| it.reason == "ComponentCreationErrored").into());
            key.push(component.name.is_empty().into());
            key.push(self.objects.contains_key(&component.name).into());
        }
        let recorded = |name: &str| self.status.component_status.iter().any(|it| it.name == name);
        let relative = |epoch: u32| self.epoch.saturating_sub(epoch).min(2) as u8;
        let mut objects: Vec<[u8; 5]> = self
            .objects
            .iter()
            .map(|(name, it)| {
                let flags = [it.is_deleting.into(), it.has_failed.into(), recorded(name).into()];
                [it.component as u8, relative(it.epoch), flags[0], flags[1], flags[2]]
            })
            .collect();
        objects.sort_unstable();
        key.push(objects.len() as u8);
        key.extend(objects.concat());
        let mut pods: Vec<[u8; 4]> = self
            .pods
            .iter()
            .map(|pod| {
                let owner = self.objects.get(&pod.owner).map_or(255, |owner| owner.component as u8);
                [owner, relative(pod.epoch), pod.phase as u8, recorded(&pod.owner).into()]
            })
            .collect();
        pods.sort_unstable();
        key.extend(pods.concat());
        key
    }

    fn observed(&self) -> Observed {
        let presence = |name: &str| match self.objects.get(name) {
            Some(object) => Presence::Present { is_deleting: object.is_deleting, has_failed: object.has_failed },
            None => Presence::Absent,
        };
        let components = self.status.component_status.iter().map(|it| presence(&it.name)).collect();
        let count = |phase| self.pods.iter().filter(|pod| pod.phase == phase).count() as i32;
        let running = count(PodPhase::Running);
        let mut pods = PodSummary {
            pending: count(PodPhase::Pending),
            running,
            succeeded: count(PodPhase::Succeeded),
            failed: count(PodPhase::Failed),
            total: self.pods.len(),
            ..PodSummary::default()
        };
        if self.is_node_bad && running > 0 {
            pods.leaving.insert("node".to_owned());
        }
        Observed { components, pods }
    }

    fn with_facts<T>(&self, constants: &Constants, decide: impl FnOnce(&Facts<'_>) -> T) -> T {
        let spec = AppWrapperSpec { suspend: self.suspend, ..constants.spec.clone() };
        decide(&Facts {
            uid: "u",
            spec: &spec,
            status: &self.status,
            is_deleting: self.is_deleting,
            has_finalizer: self.has_finalizer,
            parameters: &constants.parameters,
            observed: &self.observed(),
            now: self.now,
        })
    }

    pub fn decide(&self, constants: &Constants) -> Decision {
        self.with_facts(constants, plan)
    }

    fn write_status(&mut self, status: AppWrapperStatus) {
        if status.phase == Phase::Resuming && self.status.phase != Phase::Resuming {
            self.epoch += 1;
        }
        self.status = status;
    }

    /// The states after a step of the operator: completed, or interrupted after any of its writes,
    /// and with any result of a creation. The first is that of a step in which all goes well.
    pub fn steps(&self, constants: &Constants) -> Vec<(&'static str, World, Next)> {
        let decision = self.decide(constants);
        let mut world = self.clone();
        let mut states = Vec::new();
        let next = decision.next;
        if decision.status != self.status {
            world.write_status(decision.status);
            states.push(("step, interrupted", world.clone(), Next::Again));
        }
        for act in decision.acts {
            if let Act::Create(index) = act {
                world.attempts(index, constants, &mut states);
                states.rotate_right(1);
                return states;
            }
            world.act(act);
            states.push(("step, interrupted", world.clone(), Next::Again));
        }
        if let Some(last) = states.pop() {
            states.insert(0, ("step", last.1, next));
        } else {
            states.push(("step", world, next));
        }
        states
    }

    /// The states after an attempt to create a component. The last is that of a success.
    fn attempts(&self, index: usize, constants: &Constants, states: &mut Vec<(&'static str, World, Next)>) {
        let name = self.status.component_status[index].name.clone();
        let object = Object { component: index, epoch: self.epoch, is_deleting: false, has_failed: false };
        let refused = |is_fatal| Outcome::Rejected { message: "error".into(), is_fatal };
        let mut with = self.clone();
        // An object of the recorded name is the one of an interrupted attempt.
        with.objects.entry(name).or_insert(object);
        states.push(("creation, interrupted", with.clone(), Next::Again));
        for (label, world, outcome) in [
            ("creation fails", self, refused(false)),
            ("creation fails for good", self, refused(true)),
            ("creation, response lost", &with, refused(false)),
            ("creation", &with, Outcome::Created),
        ] {
            let decision = world.with_facts(constants, |facts| created(facts, index, &outcome));
            let mut world = world.clone();
            world.write_status(decision.status);
            states.push((label, world, decision.next));
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::AddFinalizer => self.has_finalizer = true,
            Act::RemoveFinalizer => self.has_finalizer = false,
            Act::Delete { index, .. } => {
                let name = &self.status.component_status[index].name;
                if let Some(object) = self.objects.get_mut(name) {
                    object.is_deleting = true;
                }
            }
            Act::DeletePods => self.pods.clear(),
            Act::Create(_) => unreachable!("handled by the caller"),
        }
    }

    /// The states after a move of anything but the operator.
    pub fn moves(&self) -> Vec<(&'static str, World)> {
        let mut states = Vec::new();
        let mut add = |label, change: &dyn Fn(&mut World)| {
            let mut world = self.clone();
            change(&mut world);
            states.push((label, world));
        };
        add("a second passes", &|world| world.now += SignedDuration::from_secs(1));
        add("node health changes", &|world| world.is_node_bad = !world.is_node_bad);
        if !self.is_deleting {
            add("suspend changes", &|world| world.suspend = !world.suspend);
            add("deletion", &|world| world.is_deleting = true);
        }
        for (name, object) in &self.objects {
            let with = |change: fn(&mut Object)| {
                move |world: &mut World| change(world.objects.get_mut(name).expect("it exists"))
            };
            if object.is_deleting {
                add("component is gone", &|world| {
                    world.objects.remove(name);
                });
                continue;
            }
            add("component is deleted by a user", &with(|object| object.is_deleting = true));
            let pods: Vec<&Pod> = self.pods.iter().filter(|pod| pod.owner == *name).collect();
            if pods.iter().any(|pod| pod.phase == PodPhase::Failed) && !object.has_failed {
                add("component fails", &with(|object| object.has_failed = true));
            }
            if pods.iter().all(|pod| pod.phase == PodPhase::Failed) && pods.len() < 2 && !object.has_failed {
                let pod = Pod { owner: name.clone(), epoch: object.epoch, phase: PodPhase::Pending };
                add("component makes a pod", &|world| world.pods.push(pod.clone()));
            }
        }
        for (index, pod) in self.pods.iter().enumerate() {
            let become_ = |phase| move |world: &mut World| world.pods[index].phase = phase;
            match pod.phase {
                PodPhase::Pending => add("pod starts", &become_(PodPhase::Running)),
                PodPhase::Running => {
                    add("pod succeeds", &become_(PodPhase::Succeeded));
                    add("pod fails", &become_(PodPhase::Failed));
                }
                PodPhase::Succeeded | PodPhase::Failed => {}
            }
            if self.objects.get(&pod.owner).is_none_or(|owner| owner.is_deleting) {
                add("pod is collected", &|world| {
                    world.pods.remove(index);
                });
            }
        }
        states
    }
}
