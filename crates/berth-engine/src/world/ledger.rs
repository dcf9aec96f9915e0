//! The ledger of a local queue for usage-based fairness (§16). `afs.rs` keeps it up to date.

use std::collections::BTreeMap;

use crate::ids::{ResourceId, WorkloadId};
use crate::model::Time;

/// Ledger of one local queue.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Ledger {
    /// Decayed usage per resource, in base units.
    pub consumed: BTreeMap<ResourceId, f64>,
    /// Penalties of decided admissions that are not yet part of the usage.
    pub penalties: BTreeMap<WorkloadId, BTreeMap<ResourceId, f64>>,
    pub updated: Option<Time>,
    /// True once the record of an earlier run of the process was added, or there was none. The
    /// record is added at most once.
    pub accounted: bool,
}
