//! The part of a Workload that filters, orders and groups use.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use berth_api::berth::usage::{Stay, StayState};
use berth_api::kueue::v1beta2::Workload;
use berth_apimachinery::selector::Labels;
use parking_lot::Mutex;

use crate::concurrent_admission::is_variant;
use crate::decisions::stay;

/// A row: what it has in common with other rows, and what is its own.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) shape: Shape,
    /// Creation in seconds since 1970.
    pub(super) created: i64,
    pub(super) own: Own,
}

/// What many jobs have in common, in the order in which the index has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) namespace: Arc<str>,
    /// The local queue.
    pub(super) queue: Arc<str>,
    /// The cluster queue whose quota they hold.
    pub(super) held_in: Option<Arc<str>>,
    pub(super) user: Arc<str>,
    pub(super) state: StayState,
    pub(super) reason: Arc<str>,
    pub(super) priority: i64,
    pub(super) pods: u32,
}

/// What only one job has.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Name of the job, or of the Workload without job.
    pub(super) job: Box<str>,
    labels: Box<[(Arc<str>, Arc<str>)]>,
    /// The stay of a running job, as its object shows it.
    pub(super) running: Option<Box<Stay>>,
}

/// Texts that rows share.
#[derive(Default)]
pub(super) struct Names(Mutex<HashSet<Arc<str>>>);

/// Maximum number of shared texts. Further ones are stored per row.
const NAMES_MAX: usize = 100_000;

impl Names {
    fn share(&self, text: &str) -> Arc<str> {
        let mut names = self.0.lock();
        if let Some(known) = names.get(text) {
            return known.clone();
        }
        let name: Arc<str> = text.into();
        if names.len() < NAMES_MAX {
            names.insert(name.clone());
        }
        name
    }
}

impl Row {
    /// The row of a Workload; `None` for variants, whose parent has the row.
    pub(super) fn of(workload: &Workload, names: &Names) -> Option<Row> {
        if is_variant(workload) {
            return None;
        }
        let stay = stay::of(workload, None, "");
        let job = stay.job.as_ref().map_or(&stay.workload.name, |job| &job.name);
        let labels = workload.metadata.labels.iter().flatten();
        let own = Own {
            job: job.as_str().into(),
            labels: labels.map(|(key, value)| (names.share(key), names.share(value))).collect(),
            // The row has the labels.
            running: (stay.state == StayState::Running)
                .then(|| Box::new(Stay { labels: BTreeMap::new(), ..stay.clone() })),
        };
        let shape = Shape {
            namespace: names.share(&stay.workload.namespace),
            queue: names.share(&stay.queue),
            held_in: Some(stay.cluster_queue.as_str()).filter(|it| !it.is_empty()).map(|it| names.share(it)),
            user: names.share(&stay.user),
            state: stay.state,
            reason: names.share(&stay.reason),
            priority: stay.priority,
            pods: u32::try_from(stay.pods).unwrap_or(0),
        };
        Some(Row { shape, created: stay.queued.map_or(0, |at| at.0.as_second()), own })
    }
}

impl Labels for Own {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| **known == *key).map(|(_, value)| &**value)
    }
}
