//! Explains why a job waits: the engine's explanation of a Workload, as an object for programs that
//! also contains a page of text for users.
//!
//! [`Explain`] runs in the process of the engine. Other processes request explanations through
//! [`ask`].

pub mod ask;
mod holders;
mod jobs;
pub(crate) mod object;
mod readers;
mod usage;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use berth_api::berth::decision::DecisionRecord;
use berth_api::berth::explanation::{Job, KIND, ObjectName, Variant, Withheld, WorkloadExplanation};
use berth_api::kueue::v1beta2::{CheckState, Workload};
use berth_engine::{Explanation, Name, NotQueued, Standing};
use berth_runtime::ObjectKey;
use jiff::Timestamp;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::concurrent_admission::{flavor_of, is_variant, parent_of};
use crate::conditions;
use crate::decisions::{self, Decisions};
use crate::provisioning;
use crate::scheduler::SchedulerState;
use crate::stores::Stores;
use crate::translate::workload_key;
use crate::workload::status;

pub use berth_api::berth::explanation::{GROUP, VERSION};
pub use readers::Reader;
use readers::Readers;
pub use usage::Unreported;

/// Explains workloads; clones share the engine.
#[derive(Clone)]
pub struct Explain {
    scheduler: SchedulerState,
    stores: Stores,
    decisions: Decisions,
    readers: Readers,
    jobs: jobs::Jobs,
    /// Lets one request at a time read the journal.
    scans: Arc<Semaphore>,
}

/// The namespaces in which a reader may list workloads.
pub struct Readable(readers::Listable);

impl Readable {
    /// True if the reader may list the workloads of the namespace.
    pub fn has(&self, namespace: &str) -> bool {
        self.0.has(namespace)
    }

    /// Why the workloads of the other namespaces are not named.
    pub fn why(&self) -> Withheld {
        self.0.why()
    }
}

/// What is said about a check without a message whose ProvisioningRequest has no answer.
const NO_ANSWER: &str =
    "its ProvisioningRequest has no answer yet; `kubectl describe provisioningrequests` shows its events";

/// Why there is no explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexplained {
    /// Neither a Workload with this name exists, nor the Workload of a job with this name.
    #[error("there is no Workload {0:?} and no Workload of a job with that name")]
    NotFound(String),
    /// Jobs of several kinds have the name.
    #[error("several jobs are named {name:?}; request one of their Workloads by its own name{}", listed(workloads))]
    Ambiguous {
        /// The name.
        name: String,
        /// Their Workloads; empty if the reader may not list them.
        workloads: Vec<String>,
    },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
}

/// A workload's explanation, and those of the variants that wait in its place.
struct Found {
    workload: Arc<Workload>,
    explanation: Explanation,
    variants: Vec<(Arc<Workload>, Explanation)>,
    /// The last decisions about it, newest first.
    decisions: Vec<DecisionRecord>,
}

impl Found {
    /// See [`Explanation::withhold`].
    fn withhold(&mut self, may_name: &mut dyn FnMut(&Name) -> bool) {
        self.explanation.withhold(may_name);
        for (_, of_variant) in &mut self.variants {
            of_variant.withhold(may_name);
        }
        for record in &mut self.decisions {
            record.withhold(&mut |namespace| may_name(&Name::from(namespace)));
        }
    }

    /// Namespaces of the workloads that the explanation names: the workload's own first, then in
    /// order of appearance.
    fn namespaces(&mut self) -> Vec<String> {
        let (mut namespaces, mut known) = (Vec::new(), BTreeSet::new());
        self.withhold(&mut |namespace| {
            if known.insert(namespace.clone()) {
                namespaces.push(namespace.to_string());
            }
            true
        });
        namespaces.sort_by_key(|namespace| **namespace != *self.explanation.workload.namespace);
        namespaces
    }

    /// The object with its page of text, both from the same records.
    fn object(&self, stores: &Stores, withheld: Option<Withheld>) -> Value {
        let (workload, explanation) = (&self.workload, &self.explanation);
        let mut text = berth_engine::text::explanation(explanation);
        for fact in facts(workload, stores) {
            let _ = write!(text, "\n{fact}\n");
        }
        for (variant, of_variant) in &self.variants {
            let _ = write!(text, "\n{}", berth_engine::text::explanation(of_variant));
            for fact in facts(variant, stores) {
                let _ = write!(text, "\n{fact}\n");
            }
        }
        text.push_str(&decisions::page(&self.decisions));
        if let Some(withheld) = &withheld {
            let _ = write!(text, "\n{}\n", withheld.message);
        }
        let variants = self.variants.iter().map(|(variant, of_variant)| Variant {
            name: variant.name_any(),
            flavor: flavor_of(variant).to_owned(),
            standing: object::standing(of_variant),
            outlook: object::outlook(of_variant),
        });
        let owner = workload.owner_references().iter().find(|owner| owner.controller == Some(true));
        json!(WorkloadExplanation {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            metadata: ObjectName { namespace: workload.namespace().unwrap_or_default(), name: workload.name_any() },
            job: owner.map(|owner| Job { kind: owner.kind.clone(), name: owner.name.clone() }),
            queue: workload.spec.queue_name.clone(),
            cluster_queue: explanation.cluster_queue.as_deref().map(str::to_owned),
            standing: object::standing(explanation),
            queue_inactive: explanation.queue_inactive.as_ref().map(|readiness| readiness.message()),
            outlook: object::outlook(explanation),
            variants: variants.collect(),
            decisions: self.decisions.clone(),
            withheld,
            text,
        })
    }
}

impl Explain {
    /// `client` is used to review the permissions of readers.
    pub(crate) fn new(scheduler: SchedulerState, stores: Stores, decisions: Decisions, client: Client) -> Self {
        let (readers, scans) = (Readers::new(client), Arc::new(Semaphore::new(1)));
        Explain { scheduler, stores, decisions, readers, jobs: jobs::Jobs::default(), scans }
    }

    /// The explanation of a Workload, or of the Workload of a job of this name. Workloads in
    /// namespaces where the reader may not list workloads are counted but not named.
    ///
    /// # Errors
    /// No Workload has the name, or several jobs have it.
    pub async fn of(&self, reader: &Reader, namespace: &str, name: &str) -> Result<Value, Unexplained> {
        let mut found = match self.look_up(namespace, name) {
            Ok(found) => found,
            Err(Unexplained::Ambiguous { name, mut workloads }) => {
                if !self.readers.listable(reader, &[namespace.to_owned()]).await.has(namespace) {
                    workloads.clear();
                }
                return Err(Unexplained::Ambiguous { name, workloads });
            }
            Err(error) => return Err(error),
        };
        let listable = self.readers.listable(reader, &found.namespaces()).await;
        let mut is_whole = true;
        found.withhold(&mut |namespace| {
            let may_name = listable.has(namespace);
            is_whole &= may_name;
            may_name
        });
        Ok(found.object(&self.stores, (!is_whole).then(|| listable.why())))
    }

    /// Like [`Explain::of`], but names every workload. This is for readers that may see everything.
    ///
    /// # Errors
    /// No Workload has the name, or several jobs have it.
    pub fn whole(&self, namespace: &str, name: &str) -> Result<Value, Unexplained> {
        Ok(self.look_up(namespace, name)?.object(&self.stores, None))
    }

    /// Those of the namespaces in which the reader may list workloads, and why the others are left
    /// out.
    pub async fn readable(&self, reader: &Reader, namespaces: &[String]) -> Readable {
        Readable(self.readers.listable(reader, namespaces).await)
    }

    /// What the engine knows beside the objects.
    pub fn memory(&self) -> berth_engine::Memory {
        self.scheduler.engine().memory()
    }

    /// The time on the cluster's clock.
    pub fn clock_now(&self) -> Timestamp {
        self.scheduler.clock_now()
    }

    fn look_up(&self, namespace: &str, name: &str) -> Result<Found, Unexplained> {
        let workload = self.find(namespace, name)?;
        let now = self.scheduler.now();
        let explained = self.scheduler.engine().explain(&workload_key(&workload), now);
        let Some(explanation) = explained else { return Err(Unexplained::NotFound(name.to_owned())) };
        // A workload with variants waits for the reasons of its variants.
        let mut variants = Vec::new();
        if matches!(explanation.standing, Standing::NotQueued(NotQueued::VariantsWait)) {
            for variant in self.variants_of(&workload) {
                let Some(of_variant) = self.scheduler.engine().explain(&workload_key(&variant), now) else { continue };
                variants.push((variant, of_variant));
            }
        }
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        let decisions = self.decisions.of(&ObjectKey::of(workload.as_ref()), uid);
        Ok(Found { workload, explanation, variants, decisions })
    }

    fn variants_of(&self, parent: &Workload) -> Vec<Arc<Workload>> {
        let uid = parent.metadata.uid.as_deref().unwrap_or_default();
        let mut variants = self.stores.workloads_by_owner.get(uid);
        variants.retain(|it| {
            it.metadata.namespace == parent.metadata.namespace && parent_of(it).is_some_and(|owner| owner.uid == uid)
        });
        variants.sort_by_key(|it| it.name_any());
        variants
    }

    /// The Workload with this name, or else the newest Workload of a job with this name. Finished
    /// Workloads of jobs are used only if there is no other.
    fn find(&self, namespace: &str, name: &str) -> Result<Arc<Workload>, Unexplained> {
        if let Some(workload) = self.stores.workloads.get(&ObjectKey::namespaced(namespace, name)) {
            return Ok(workload);
        }
        let mut found = self.stores.workloads_of_owners_named(namespace, name);
        let open = found.iter().filter(|workload| !status::is_finished(workload)).count();
        if open > 0 {
            found.retain(|workload| !status::is_finished(workload));
        }
        let kinds: std::collections::BTreeSet<&str> = found.iter().flat_map(|it| kind_of_owner(it, name)).collect();
        if kinds.len() > 1 {
            let workloads = found.iter().map(|workload| workload.name_any()).collect();
            return Err(Unexplained::Ambiguous { name: name.to_owned(), workloads });
        }
        // The newest slice of an elastic job is the one that waits.
        found.sort_by_key(|it| (it.metadata.creation_timestamp.as_ref().map(|at| at.0), it.name_any()));
        found.pop().ok_or_else(|| Unexplained::NotFound(name.to_owned()))
    }
}

/// Facts of the object on which no decision depends: messages of its admission checks, its
/// eviction, its back-off and the readiness of its pods.
fn facts(workload: &Workload, stores: &Stores) -> Vec<String> {
    let mut facts = Vec::new();
    if status::is_finished(workload) {
        return facts;
    }
    let state = workload.status.as_ref();
    if let Some(evicted) = status::true_condition(workload, conditions::EVICTED) {
        let at = &evicted.last_transition_time.0;
        facts.push(format!("It was evicted at {at} ({}): {}", evicted.reason, evicted.message));
    }
    // The policy of concurrent admission activates and deactivates variants.
    if !status::is_active(workload) && !is_variant(workload) {
        let name = ObjectKey::of(workload);
        facts.push(format!("It is not queued until `berth release {name}`, or any user, sets spec.active to true."));
    }
    if let Some(at) = state.and_then(|state| state.requeue_state.as_ref()?.requeue_at.as_ref())
        && !status::has_quota_reservation(workload)
    {
        facts.push(format!("Its back-off ends at {}.", at.0));
    }
    if status::has_quota_reservation(workload) && !status::is_admitted(workload) {
        let checks = state.iter().flat_map(|state| &state.admission_checks);
        for check in checks.filter(|check| check.state != CheckState::Ready) {
            let by = stores.admission_checks.get(&ObjectKey::cluster(check.name.as_str()));
            let by = by.as_ref().map(|by| by.spec.controller_name.as_str());
            let said = match check.message.as_str() {
                "" if by == Some(provisioning::CONTROLLER_NAME) => NO_ANSWER,
                "" => "no message yet",
                message => message,
            };
            let by = by.map(|by| format!(", decided by {by}")).unwrap_or_default();
            let since = &check.last_transition_time.0;
            facts.push(format!("Admission check {} has been {} since {since}{by}: {said}", check.name, check.state));
        }
    }
    if let Some(ready) = status::condition(workload, conditions::PODS_READY).filter(|ready| ready.status != "True")
        && status::is_admitted(workload)
    {
        let since = &ready.last_transition_time.0;
        facts.push(format!("Its pods have not been ready since {since} ({}): {}", ready.reason, ready.message));
    }
    facts
}

fn kind_of_owner<'a>(workload: &'a Workload, name: &str) -> Option<&'a str> {
    workload.owner_references().iter().find(|owner| owner.name == name).map(|owner| owner.kind.as_str())
}

#[cfg(test)]
mod tests {
    use berth_api::kueue::reasons;

    use super::*;

    #[test]
    fn a_deactivated_workload_says_what_queues_it_again() {
        let of = |owners: Value| {
            let object = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {"name": "w", "namespace": "ns", "ownerReferences": owners},
                "spec": {"podSets": [], "active": false}});
            facts(&serde_json::from_value(object).expect("a workload"), &Stores::by_hand())
        };
        let way = "It is not queued until `berth release ns/w`, or any user, sets spec.active to true.";
        assert_eq!(of(json!([])), [way]);
        let parent = json!([{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": "parent",
            "uid": "1", "controller": true}]);
        assert!(of(parent).is_empty(), "the policy of its parent activates a variant");
    }

    #[test]
    fn an_explanation_includes_messages_of_checks_pods_and_evictions() {
        const AT: &str = "2026-01-01T00:00:00Z";
        let of = |conditions: &[(&str, &str, &str, &str)], rest: Value| {
            let conditions: Vec<Value> = conditions
                .iter()
                .map(|(type_, status, reason, message)| {
                    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT})
                })
                .collect();
            let mut object = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {"name": "w", "namespace": "ns"}, "spec": {"podSets": []}, "status": rest});
            object["status"]["conditions"] = json!(conditions);
            facts(&serde_json::from_value(object).expect("a workload"), &Stores::by_hand())
        };
        let reserved = (conditions::QUOTA_RESERVED, "True", reasons::admission::QUOTA_RESERVED, "");
        let checks = json!({"admissionChecks": [
            {"name": "done", "state": "Ready", "lastTransitionTime": AT, "message": ""},
            {"name": "nodes", "state": "Pending", "lastTransitionTime": AT, "message": "ETA: 2h"}]});
        assert_eq!(
            of(&[reserved], checks.clone()),
            ["Admission check nodes has been Pending since 2026-01-01T00:00:00Z: ETA: 2h"]
        );
        let admitted = ("Admitted", "True", "Admitted", "");
        let unready = ("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded");
        assert_eq!(
            of(&[reserved, admitted, unready], checks),
            [
                "Its pods have not been ready since 2026-01-01T00:00:00Z (WaitForStart): Not all pods are ready or succeeded"
            ]
        );
        let evicted = ("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout ns/w");
        assert_eq!(
            of(&[evicted], json!({"requeueState": {"count": 1, "requeueAt": "2026-01-01T00:01:00Z"}})),
            [
                "It was evicted at 2026-01-01T00:00:00Z (PodsReadyTimeout): Exceeded the PodsReady timeout ns/w",
                "Its back-off ends at 2026-01-01T00:01:00Z."
            ]
        );
    }
}
