//! The controller of LeaderWorkerSets: revisions, the StatefulSet of the leaders, the shared
//! Service, and the status.

use std::sync::Arc;

use berth_api::frameworks::LeaderWorkerSet;
use berth_runtime::{
    Action, Cache, Clock, Error, EventType, Index, Manager, ObjectKey, Reconciler, Recorder, Writer, is_controlled_by,
    message, owned_by, stamp,
};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use serde_json::json;

use super::constants::{FIELD_MANAGER, NAME};
use super::rollout::{self, Bounds, Leaders, Step};
use super::status::{self, Group, Observed};
use super::types::{LeaderWorkerSetSpec, LeaderWorkerSetStatus};
use super::{facts, objects, revisions};

/// Adds the controller to the manager.
pub fn install(manager: &mut Manager) {
    let sets = manager.cache_if_served::<LeaderWorkerSet>();
    let stateful_sets = manager.cache::<StatefulSet>();
    let pods = manager.cache::<Pod>();
    let services = manager.cache::<Service>();
    let all_revisions = manager.cache::<ControllerRevision>();
    let of_set = |metadata: &kube::core::ObjectMeta| {
        let name = Some(facts::label(metadata, NAME)).filter(|name| !name.is_empty())?;
        Some(ObjectKey::namespaced(metadata.namespace.clone().unwrap_or_default(), name))
    };
    let controller = SetController {
        clock: manager.clock(),
        recorder: manager.recorder("leaderworkerset"),
        leaders: pods.index(move |pod: &Pod| {
            let key = of_set(&pod.metadata).filter(|_| facts::is_leader(pod));
            key.map(|key| key.to_string()).into_iter().collect()
        }),
        revisions: of_sets(&all_revisions),
        write: Writer::new(manager, &sets),
        write_set: Writer::new(manager, &stateful_sets),
        write_service: Writer::new(manager, &services),
        write_revision: Writer::new(manager, &all_revisions),
        stateful_sets: stateful_sets.clone(),
    };
    manager
        .controller("leaderworkerset")
        .watch_self(&sets)
        .watch(&stateful_sets, move |delta| of_set(&delta.latest().metadata))
        .watch(&pods, move |delta| {
            let pod = delta.latest().as_ref();
            of_set(&pod.metadata).filter(|_| facts::is_leader(pod))
        })
        .watch_owned::<LeaderWorkerSet, _>(&services)
        .run(controller);
}

/// An index of revisions by the LeaderWorkerSet that controls them.
pub(super) fn of_sets(all: &Cache<ControllerRevision>) -> Index<ControllerRevision> {
    all.index(|revision| {
        let owner = ObjectKey::of_controller_owner::<LeaderWorkerSet>(revision);
        owner.map(|key| key.to_string()).into_iter().collect()
    })
}

/// The revisions that the set controls.
pub(super) fn revisions_of(index: &Index<ControllerRevision>, set: &LeaderWorkerSet) -> Vec<Arc<ControllerRevision>> {
    let mut known = index.get(&ObjectKey::of(set).to_string());
    known.retain(|revision| is_controlled_by(revision.as_ref(), set.metadata.uid.as_deref().unwrap_or_default()));
    known
}

struct SetController {
    clock: Clock,
    recorder: Recorder,
    stateful_sets: Cache<StatefulSet>,
    leaders: Index<Pod>,
    revisions: Index<ControllerRevision>,
    write: Writer<LeaderWorkerSet>,
    write_set: Writer<StatefulSet>,
    write_service: Writer<Service>,
    write_revision: Writer<ControllerRevision>,
}

impl Reconciler for SetController {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(set) = self.write.cache().get(&key) else { return Ok(Action::Wait) };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Wait);
        }
        let read = match read(&set) {
            Ok(read) => read,
            Err(why) => {
                self.warn(&set, "InvalidSpec", &why);
                return Ok(Action::Wait);
            }
        };
        let leaders = self.stateful_sets.get(&key);
        if leaders.as_ref().is_some_and(|leaders| leaders.metadata.deletion_timestamp.is_some()) {
            // A change of the StatefulSet reconciles the set again.
            return Ok(Action::Wait);
        }
        self.advance(&set, &read, leaders.as_deref()).await
    }
}

/// The spec and its bounds.
struct Read {
    spec: LeaderWorkerSetSpec,
    bounds: Bounds,
}

fn read(set: &LeaderWorkerSet) -> Result<Read, String> {
    let spec = LeaderWorkerSetSpec::read(&set.spec)
        .map_err(|error| format!("The spec of LeaderWorkerSet {} is invalid: {error}", set.name_any()))?;
    let bounds = Bounds::of(&spec)?;
    Ok(Read { spec, bounds })
}

impl SetController {
    fn warn(&self, set: &LeaderWorkerSet, reason: &str, message: &str) {
        self.recorder.event(set, EventType::Warning, reason, message);
    }

    fn note(&self, set: &LeaderWorkerSet, reason: &str, message: &str) {
        self.recorder.event(set, EventType::Normal, reason, message);
    }

    async fn advance(
        &self,
        set: &LeaderWorkerSet,
        read: &Read,
        leaders: Option<&StatefulSet>,
    ) -> Result<Action, Error> {
        let (revision, is_new) = self.revision(set, leaders).await?;
        let revision = revisions::key_of(&revision).to_owned();
        let old = leaders.map(Leaders::of);
        let step = self.step(set, read, old, is_new, &revision);
        self.write_leaders(set, read, step, &revision, old).await?;
        self.report_step(set, step, old, is_new);
        self.make_service(set, &read.spec).await?;
        let is_done = self.write_status(set, read, &revision).await?;
        if is_done {
            for old in revisions_of(&self.revisions, set) {
                if revisions::key_of(&old) != revision {
                    self.write_revision.delete(&old).await?;
                }
            }
        }
        Ok(Action::Wait)
    }

    /// The current revision, created if it does not exist, and whether the templates have changed
    /// since the leaders' StatefulSet was written.
    async fn revision(
        &self,
        set: &LeaderWorkerSet,
        leaders: Option<&StatefulSet>,
    ) -> Result<(Arc<ControllerRevision>, bool), Error> {
        let known = revisions_of(&self.revisions, set);
        let key = leaders.map_or("", |leaders| facts::revision_of(&leaders.metadata));
        let Some(used) = revisions::find(&known, key) else {
            let what = match key {
                "" => ("revision", "a newly created LeaderWorkerSet"),
                _ => ("missing revision", "existing LeaderWorkerSet"),
            };
            return Ok((self.make_revision(set, &known, key, what).await?, false));
        };
        if revisions::is_current(set, used) {
            return Ok((used.clone(), false));
        }
        Ok((self.make_revision(set, &known, "", ("revision", "updated LWS")).await?, true))
    }

    /// Creates the revision of the current spec, unless an interrupted step has created it.
    async fn make_revision(
        &self,
        set: &LeaderWorkerSet,
        known: &[Arc<ControllerRevision>],
        key: &str,
        (what, whose): (&str, &str),
    ) -> Result<Arc<ControllerRevision>, Error> {
        let newest = known.iter().max_by_key(|revision| revision.revision);
        if let Some(made) = newest.filter(|it| key.is_empty() && revisions::is_current(set, it)) {
            return Ok(made.clone());
        }
        let made = self.write_revision.create(&revisions::new(set, known, key)).await?;
        let key = revisions::key_of(&made);
        self.note(set, "CreatingRevision", &format!("Creating {what} with key {key} for {whose}"));
        Ok(Arc::new(made))
    }

    fn step(&self, set: &LeaderWorkerSet, read: &Read, old: Option<Leaders>, is_new: bool, revision: &str) -> Step {
        let pods = self.leaders.get(&ObjectKey::of(set).to_string());
        let namespace = set.namespace().unwrap_or_default();
        rollout::step(read.spec.groups(), read.bounds, old, is_new, |count| {
            let workers: Vec<_> = (0..count).map(|index| self.workers(&namespace, &set.name_any(), index)).collect();
            rollout::states(
                &set.name_any(),
                &read.spec,
                count,
                revision,
                |name| pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name)).map(AsRef::as_ref),
                |name| {
                    let mut all = workers.iter().flatten();
                    all.find(|set| set.metadata.name.as_deref() == Some(name)).map(AsRef::as_ref)
                },
            )
        })
    }

    /// The StatefulSet of a group's workers.
    fn workers(&self, namespace: &str, set: &str, index: i32) -> Option<Arc<StatefulSet>> {
        self.stateful_sets.get(&ObjectKey::namespaced(namespace, format!("{set}-{index}")))
    }

    async fn write_leaders(
        &self,
        set: &LeaderWorkerSet,
        read: &Read,
        step: Step,
        revision: &str,
        old: Option<Leaders>,
    ) -> Result<(), Error> {
        let wanted = objects::leaders(set, &read.spec, read.bounds, step, revision);
        if let Err(error) = self.write_set.apply(&wanted, FIELD_MANAGER).await {
            let (reason, verb) = if old.is_none() { ("FailedCreate", "create") } else { ("FailedUpdate", "update") };
            let name = set.name_any();
            self.warn(set, reason, &format!("Failed to {verb} leader statefulset {name}: {}", message(&error)));
            return Err(error.into());
        }
        Ok(())
    }

    /// Reports the creation of the leaders, surge groups that are deleted, and groups that are
    /// updated.
    fn report_step(&self, set: &LeaderWorkerSet, step: Step, old: Option<Leaders>, is_new: bool) {
        let name = set.name_any();
        let Some(old) = old else {
            return self.note(set, "GroupsProgressing", &format!("Created leader statefulset {name}"));
        };
        let (first, last) = (step.replicas, old.replicas - 1);
        if first == last {
            self.note(set, "GroupsProgressing", &format!("deleting surge replica {name}-{first}"));
        } else if first < last {
            let message = format!("deleting surge replicas from {name}-{first} to {name}-{last}");
            self.note(set, "GroupsProgressing", &message);
        }
        if is_new || step.partition == old.partition {
            return;
        }
        let last = old.partition - 1;
        let message = match step.partition == last {
            true => format!("Updating replica {last}"),
            false => format!("Updating replicas {} to {last} (inclusive)", step.partition),
        };
        self.note(set, "GroupsUpdating", &message);
    }

    async fn make_service(&self, set: &LeaderWorkerSet, spec: &LeaderWorkerSetSpec) -> Result<(), Error> {
        if spec.has_service_per_group() || self.write_service.cache().get(&ObjectKey::of(set)).is_some() {
            return Ok(());
        }
        let name = set.name_any();
        let service = objects::service(set, &name, owned_by(set), [(NAME, name.clone())]);
        if let Err(error) = self.write_service.create_owned(&service, set).await {
            let message = format!("Failed to create headless service for error: {}", message(&error));
            self.warn(set, "FailedCreate", &message);
            return Err(error.into());
        }
        Ok(())
    }

    /// Writes the status. True if all groups are ready and of the current revision.
    async fn write_status(&self, set: &LeaderWorkerSet, read: &Read, revision: &str) -> Result<bool, Error> {
        let key = ObjectKey::of(set);
        let pods = self.leaders.get(&key.to_string());
        let workers: Vec<_> = pods.iter().map(|pod| self.stateful_sets.get(&ObjectKey::of(pod.as_ref()))).collect();
        let leaders = self.stateful_sets.get(&key);
        let groups = pods.iter().zip(&workers);
        let name = set.name_any();
        let observed = Observed {
            name: &name,
            spec: &read.spec,
            partition: read.bounds.partition,
            generation: set.metadata.generation.unwrap_or(0),
            leaders: leaders.and_then(|set| set.status.as_ref().map(|status| status.replicas)).unwrap_or(0),
            groups: groups.map(|(leader, workers)| Group { leader, workers: workers.as_deref() }).collect(),
            revision,
            now: stamp(self.clock.now()),
        };
        let old = LeaderWorkerSetStatus::read(set.status.as_ref());
        let next = status::next(&observed, &old);
        if next.status != old {
            let mut changed = set.clone();
            changed.status = Some(json!(next.status));
            self.write.replace_status(&changed).await?;
            if let Some((reason, message)) = &next.event {
                self.note(set, reason, message);
            }
        }
        Ok(next.is_done)
    }
}
