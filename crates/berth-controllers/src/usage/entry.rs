//! Stays as sums need them: a few numbers, and shared names.
//!
//! An [`Entry`] takes a seventh of the memory of a [`Stay`], so that memory keeps those of a whole
//! journal, and a report reads no file.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use berth_api::berth::explanation::Held;
use berth_api::berth::usage::{Stay, StayState};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::translate::amounts;

/// The names by which stays are grouped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names {
    /// Namespace.
    pub namespace: Arc<str>,
    /// User that created the job; empty if not known.
    pub user: Arc<str>,
    /// Local queue as `NAMESPACE/NAME`.
    pub local_queue: Arc<str>,
    /// Cluster queue.
    pub cluster_queue: Arc<str>,
}

/// An amount of quota.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Amount {
    /// Flavor.
    pub flavor: Arc<str>,
    /// Resource.
    pub resource: Arc<str>,
    /// Base units: thousandths of a CPU, whole units of everything else.
    pub amount: i64,
}

/// A stay. Times are seconds since 1970.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Hash of the UID of the Workload.
    pub uid: u64,
    /// Its names.
    pub names: Arc<Names>,
    /// The quota that it held.
    pub holds: Arc<Vec<Amount>>,
    /// Start of the wait.
    pub queued: Option<i64>,
    /// Start of the wait, or of the quota reservation if the former is not known.
    pub began: Option<i64>,
    /// Admission.
    pub admitted: Option<i64>,
    /// End; `None` for a current stay.
    pub ended: Option<i64>,
    /// State at its end, or now.
    pub state: StayState,
}

impl Entry {
    /// The entry of a stay, with names of its own.
    pub fn of(stay: &Stay) -> Entry {
        Shared::default().entry(stay)
    }
}

/// Names and amounts that entries share.
#[derive(Debug, Default)]
pub struct Shared {
    names: HashMap<Names, Arc<Names>>,
    holds: HashMap<Vec<Amount>, Arc<Vec<Amount>>>,
}

impl Shared {
    /// The entry of a stay.
    pub fn entry(&mut self, stay: &Stay) -> Entry {
        let namespace = stay.workload.namespace.as_str();
        let names = Names {
            namespace: namespace.into(),
            user: stay.user.as_str().into(),
            local_queue: format!("{namespace}/{}", stay.queue).into(),
            cluster_queue: stay.cluster_queue.as_str().into(),
        };
        let holds: Vec<Amount> = stay.holds.iter().map(amount).collect();
        let mut hasher = DefaultHasher::new();
        stay.uid.hash(&mut hasher);
        let second = |at: &Option<Time>| at.as_ref().map(|at| at.0.as_second());
        Entry {
            uid: hasher.finish(),
            names: self.names.entry(names).or_insert_with_key(|names| Arc::new(names.clone())).clone(),
            holds: self.holds.entry(holds).or_insert_with_key(|holds| Arc::new(holds.clone())).clone(),
            queued: second(&stay.queued),
            began: second(&stay.queued).or(second(&stay.reserved)),
            admitted: second(&stay.admitted),
            ended: second(&stay.ended),
            state: stay.state,
        }
    }

    /// Forgets the names and amounts of which no entry is left.
    pub fn tidy(&mut self) {
        self.names.retain(|_, names| Arc::strong_count(names) > 1);
        self.holds.retain(|_, holds| Arc::strong_count(holds) > 1);
    }
}

fn amount(held: &Held) -> Amount {
    let amount = amounts::parse(&held.amount).map_or(0, |amount| amounts::request(&held.resource, &amount));
    Amount { flavor: held.flavor.as_str().into(), resource: held.resource.as_str().into(), amount }
}
