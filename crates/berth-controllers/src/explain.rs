//! Why a job waits: the engine's own explanation of a Workload, as an object programs read, with the page of text people do.

use std::fmt::Write as _;
use std::sync::Arc;

use berth_api::kueue::v1beta2::Workload;
use berth_engine::model::WorkloadKey;
use berth_engine::{Level, NotQueued, Outlook, Preemptible, Shortage, Standing};
use berth_runtime::{Cache, ObjectKey};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::concurrent_admission::{flavor_of, parent_of};
use crate::scheduler::Brain;
use crate::translate::amounts::to_quantity;
use crate::translate::workload_key;
use crate::workload::status;

/// The API group explanations are served in.
pub const GROUP: &str = "explain.berth.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";

/// Explains workloads; clones share the engine.
#[derive(Clone)]
pub struct Explain {
    brain: Brain,
    workloads: Cache<Workload>,
}

/// Why there is no explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexplained {
    /// There is neither such a Workload nor one of a job of that name.
    #[error("there is no Workload {0:?}, nor one of a job of that name")]
    NotFound(String),
    /// Jobs of several kinds have the name.
    #[error("several jobs have the name {name:?}; ask for one of their Workloads: {}", workloads.join(", "))]
    Ambiguous {
        /// The name.
        name: String,
        /// Their Workloads.
        workloads: Vec<String>,
    },
}

impl Explain {
    pub(crate) fn new(brain: Brain, workloads: Cache<Workload>) -> Self {
        Explain { brain, workloads }
    }

    /// The explanation of a Workload, or of the Workload of a job of this name.
    ///
    /// # Errors
    /// There is none, or more than one job it could be about.
    pub fn of(&self, namespace: &str, name: &str) -> Result<Value, Unexplained> {
        let workload = self.find(namespace, name)?;
        let key = workload_key(&workload);
        let now = self.brain.now();
        let explained = self.brain.engine().explain(&key, now);
        let Some(explanation) = explained else { return Err(Unexplained::NotFound(name.to_owned())) };
        let mut text = berth_engine::text::explanation(&explanation);
        // Why a workload with variants waits is why each of them does.
        let mut variants = Vec::new();
        if matches!(explanation.standing, Standing::NotQueued(NotQueued::VariantsWait)) {
            for variant in self.variants_of(&workload) {
                let Some(of_variant) = self.brain.engine().explain(&workload_key(&variant), now) else { continue };
                let _ = write!(text, "\n{}", berth_engine::text::explanation(&of_variant));
                variants.push(json!({
                    "name": variant.name_any(),
                    "flavor": flavor_of(&variant),
                    "standing": standing(&of_variant.standing),
                    "outlook": of_variant.verdict.as_ref().map(outlook),
                }));
            }
        }
        let owner = workload.owner_references().iter().find(|owner| owner.controller == Some(true));
        Ok(json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": "WorkloadExplanation",
            "metadata": {"namespace": namespace, "name": workload.name_any()},
            "job": owner.map(|owner| json!({"kind": owner.kind, "name": owner.name})),
            "queue": workload.spec.queue_name,
            "clusterQueue": explanation.cluster_queue.as_deref(),
            "standing": standing(&explanation.standing),
            "outlook": explanation.verdict.as_ref().map(outlook),
            "variants": variants,
            "text": text,
        }))
    }

    fn variants_of(&self, parent: &Workload) -> Vec<Arc<Workload>> {
        let namespace = parent.metadata.namespace.as_deref().unwrap_or_default();
        let is_of_parent =
            |it: &Arc<Workload>| parent_of(it).is_some_and(|owner| Some(&owner.uid) == parent.metadata.uid.as_ref());
        self.workloads.iter_namespace(namespace).filter(is_of_parent).collect()
    }

    /// The Workload of this name, else the one of a job of this name that is not finished.
    fn find(&self, namespace: &str, name: &str) -> Result<Arc<Workload>, Unexplained> {
        if let Some(workload) = self.workloads.get(&ObjectKey::namespaced(namespace, name)) {
            return Ok(workload);
        }
        let of_job = |workload: &Arc<Workload>| workload.owner_references().iter().any(|owner| owner.name == name);
        let mut found: Vec<Arc<Workload>> = self.workloads.iter_namespace(namespace).filter(of_job).collect();
        let open = found.iter().filter(|workload| !status::is_finished(workload)).count();
        if open > 0 {
            found.retain(|workload| !status::is_finished(workload));
        }
        let kinds: std::collections::BTreeSet<&str> = found.iter().flat_map(|it| kind_of_owner(it, name)).collect();
        if kinds.len() > 1 {
            let workloads = found.iter().map(|workload| workload.name_any()).collect();
            return Err(Unexplained::Ambiguous { name: name.to_owned(), workloads });
        }
        // Of the slices of an elastic job the newest is the one that waits.
        found.sort_by_key(|it| (it.metadata.creation_timestamp.as_ref().map(|at| at.0), it.name_any()));
        found.pop().ok_or_else(|| Unexplained::NotFound(name.to_owned()))
    }
}

fn kind_of_owner<'a>(workload: &'a Workload, name: &str) -> Option<&'a str> {
    workload.owner_references().iter().find(|owner| owner.name == name).map(|owner| owner.kind.as_str())
}

fn name_of(key: &WorkloadKey) -> Value {
    json!({"namespace": key.namespace.as_ref(), "name": key.name.as_ref()})
}

fn standing(standing: &Standing) -> Value {
    match standing {
        Standing::Holding { admitted, assumed, evicted, checks, .. } => json!({
            "state": if *admitted { "Admitted" } else { "QuotaReserved" },
            "beingWritten": assumed,
            "evicted": evicted.as_deref(),
            "checksNotReady": checks.iter().map(|check| check.as_ref()).collect::<Vec<&str>>(),
        }),
        Standing::Waiting { position, ahead, backing_off } => json!({
            "state": "Waiting",
            "priority": position.priority,
            "positionInClusterQueue": position.in_cluster_queue,
            "positionInLocalQueue": position.in_local_queue,
            "setAside": position.inadmissible,
            "backingOff": backing_off,
            "ahead": ahead.iter().map(name_of).collect::<Vec<_>>(),
        }),
        Standing::NotQueued(reason) => json!({"state": "NotQueued", "reason": format!("{reason:?}")}),
    }
}

fn outlook(outlook: &Outlook) -> Value {
    let victim = |(key, reason): &(WorkloadKey, berth_engine::PreemptionReason)| json!({"workload": name_of(key), "reason": reason.as_str()});
    json!({
        "mode": outlook.mode.as_str(),
        "reason": outlook.reason.map(|reason| reason.as_str()),
        "message": outlook.message,
        "shortages": outlook.shortages.iter().map(shortage).collect::<Vec<_>>(),
        "victims": outlook.victims.iter().map(victim).collect::<Vec<_>>(),
    })
}

fn shortage(shortage: &Shortage) -> Value {
    let resource = shortage.resource.as_ref();
    let amount = |amount: berth_engine::Amount| match amount {
        berth_engine::Amount::Unlimited => json!("Unlimited"),
        berth_engine::Amount::Bounded(amount) => json!(to_quantity(resource, amount)),
    };
    let level = |level: &Level| {
        json!({
            "name": level.name.as_ref(),
            "kind": if level.is_cohort { "Cohort" } else { "ClusterQueue" },
            "nominal": amount(level.nominal),
            "subtree": amount(level.subtree),
            "inUse": amount(level.in_use),
            "borrowingLimit": level.borrowing_limit.map(amount),
            "lendingLimit": level.lending_limit.map(amount),
            "available": amount(level.available),
        })
    };
    let holders: Vec<Value> = shortage
        .holders
        .iter()
        .map(|holder| {
            json!({
                "workload": name_of(&holder.workload),
                "clusterQueue": holder.cluster_queue.as_ref(),
                "amount": to_quantity(resource, holder.amount),
                "priority": holder.priority,
                "preemptible": preemptible(holder.preemptible),
            })
        })
        .collect();
    json!({
        "podSet": shortage.pod_set.as_ref(),
        "flavor": shortage.flavor.as_ref(),
        "resource": resource,
        "asked": to_quantity(resource, shortage.asked),
        "available": amount(shortage.available),
        "shortAt": shortage.short_at.as_ref(),
        "levels": shortage.levels.iter().map(level).collect::<Vec<_>>(),
        "holders": holders,
    })
}

fn preemptible(preemptible: Preemptible) -> &'static str {
    match preemptible {
        Preemptible::Yes => "Yes",
        Preemptible::Leaving => "Leaving",
        Preemptible::PolicyNever => "PolicyNever",
        Preemptible::PolicyExcludes(_) => "PolicyExcludes",
        Preemptible::WithinNominal => "WithinNominal",
    }
}
