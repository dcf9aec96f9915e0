//! Why a job waits: the engine's own explanation of a Workload, as an object programs read, with the page of text people do.
//!
//! [`Explain`] answers where the engine is; [`ask`] is how everybody else asks for it.

pub mod ask;
mod holders;
mod object;

use std::fmt::Write as _;
use std::sync::Arc;

use berth_api::berth::explanation::{Job, KIND, ObjectName, Variant, WorkloadExplanation};
use berth_api::kueue::v1beta2::Workload;
use berth_engine::{NotQueued, Standing};
use berth_runtime::ObjectKey;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::concurrent_admission::{flavor_of, parent_of};
use crate::scheduler::Brain;
use crate::stores::Stores;
use crate::translate::workload_key;
use crate::workload::status;

pub use berth_api::berth::explanation::{GROUP, VERSION};

/// Explains workloads; clones share the engine.
#[derive(Clone)]
pub struct Explain {
    brain: Brain,
    stores: Stores,
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
    pub(crate) fn new(brain: Brain, stores: Stores) -> Self {
        Explain { brain, stores }
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
                variants.push(Variant {
                    name: variant.name_any(),
                    flavor: flavor_of(&variant).to_owned(),
                    standing: object::standing(&of_variant.standing),
                    outlook: object::outlook(&of_variant),
                });
            }
        }
        let owner = workload.owner_references().iter().find(|owner| owner.controller == Some(true));
        let explained = WorkloadExplanation {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            metadata: ObjectName { namespace: namespace.to_owned(), name: workload.name_any() },
            job: owner.map(|owner| Job { kind: owner.kind.clone(), name: owner.name.clone() }),
            queue: workload.spec.queue_name.clone(),
            cluster_queue: explanation.cluster_queue.as_deref().map(str::to_owned),
            standing: object::standing(&explanation.standing),
            queue_inactive: explanation.queue_inactive.clone(),
            outlook: object::outlook(&explanation),
            variants,
            text,
        };
        Ok(json!(explained))
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

    /// The Workload of this name, else the one of a job of this name that is not finished.
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
        // Of the slices of an elastic job the newest is the one that waits.
        found.sort_by_key(|it| (it.metadata.creation_timestamp.as_ref().map(|at| at.0), it.name_any()));
        found.pop().ok_or_else(|| Unexplained::NotFound(name.to_owned()))
    }
}

fn kind_of_owner<'a>(workload: &'a Workload, name: &str) -> Option<&'a str> {
    workload.owner_references().iter().find(|owner| owner.name == name).map(|owner| owner.kind.as_str())
}
