//! What the running controllers know beside the objects. It is part of snapshots.

use std::collections::{BTreeSet, HashMap};

use berth_controllers::translate::time;
use berth_engine::model::{Time, Workload, WorkloadKey};
use berth_engine::{Event, ExactTimes, Name, WaitingPreemptor};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::forecast::calibration::{Calibration, Made};

/// What the controllers know beside the objects ([`berth_engine::Memory`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Workloads that wait for preemptions that they started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preemptors: Vec<Preemptor>,
    /// Times of Workloads with parts of a second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<Times>,
    /// Earlier forecasts, and the starts that followed. They correct 90th percentiles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forecasts: Vec<PastForecast>,
}

/// An earlier forecast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastForecast {
    /// The ClusterQueue.
    pub cluster_queue: String,
    /// Namespace of the Workload.
    pub namespace: String,
    /// Name of the Workload.
    pub name: String,
    /// When the forecast was made.
    pub at: Timestamp,
    /// 90th percentile of the draws.
    pub drawn: Timestamp,
    /// The corrected percentile that was stated.
    pub stated: Timestamp,
    /// When quota was reserved for the Workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
}

/// A Workload that goes first in its ClusterQueue, because it waits for preemptions that it
/// started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Preemptor {
    /// The ClusterQueue.
    pub cluster_queue: String,
    /// Namespace of the Workload.
    pub namespace: String,
    /// Name of the Workload.
    pub name: String,
    /// Generation of the Workload that started them.
    pub generation: i64,
}

/// Times of a Workload.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Times {
    /// Namespace of the Workload.
    pub namespace: String,
    /// Name of the Workload.
    pub name: String,
    /// Its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// Its quota reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Timestamp>,
    /// Its last eviction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted: Option<Timestamp>,
    /// Its last preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Timestamp>,
}

impl From<&berth_engine::Memory> for Memory {
    fn from(memory: &berth_engine::Memory) -> Memory {
        let mut found = Memory {
            preemptors: memory.preemptors.iter().map(Preemptor::from).collect(),
            times: memory.times.iter().map(Times::from).collect(),
            forecasts: Vec::new(),
        };
        found.times.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        found
    }
}

impl From<&WaitingPreemptor> for Preemptor {
    fn from(known: &WaitingPreemptor) -> Preemptor {
        Preemptor {
            cluster_queue: known.cluster_queue.to_string(),
            namespace: known.workload.namespace.to_string(),
            name: known.workload.name.to_string(),
            generation: known.generation,
        }
    }
}

impl From<&ExactTimes> for Times {
    fn from(times: &ExactTimes) -> Times {
        let exact = |at: Option<Time>| Timestamp::from_nanosecond(i128::from(at?.0)).ok();
        Times {
            namespace: times.workload.namespace.to_string(),
            name: times.workload.name.to_string(),
            created: exact(Some(times.created)),
            reserved: exact(times.reserved),
            evicted: exact(times.evicted),
            preempted: exact(times.preempted),
        }
    }
}

impl From<&PastForecast> for Made {
    fn from(past: &PastForecast) -> Made {
        let at = time(past.at);
        Made {
            workload: WorkloadKey { namespace: past.namespace.as_str().into(), name: past.name.as_str().into() },
            cluster_queue: Name::from(past.cluster_queue.as_str()),
            at,
            drawn: at.until(time(past.drawn)),
            stated: at.until(time(past.stated)),
            started: past.started.map(time),
        }
    }
}

impl PastForecast {
    /// A forecast of the record; `None` if a time is none of the API.
    fn of(made: &Made) -> Option<PastForecast> {
        let exact = |at: Time| Timestamp::from_nanosecond(i128::from(at.0)).ok();
        Some(PastForecast {
            cluster_queue: made.cluster_queue.to_string(),
            namespace: made.workload.namespace.to_string(),
            name: made.workload.name.to_string(),
            at: exact(made.at)?,
            drawn: exact(made.at.after(made.drawn))?,
            stated: exact(made.at.after(made.stated))?,
            started: made.started.and_then(exact),
        })
    }
}

impl Memory {
    /// The memory with the forecasts of a record.
    #[must_use]
    pub fn with_forecasts(self, record: &Calibration) -> Memory {
        Memory { forecasts: record.made().filter_map(PastForecast::of).collect(), ..self }
    }

    /// The record of earlier forecasts.
    pub fn calibration(&self) -> Calibration {
        let mut record = Calibration::default();
        self.forecasts.iter().for_each(|past| record.add(Made::from(past)));
        record
    }

    /// The events that follow those of the Workloads.
    pub fn events(&self) -> Vec<Event> {
        let event = |it: &Preemptor| {
            Event::PreemptorRestored(WaitingPreemptor {
                cluster_queue: Name::from(it.cluster_queue.as_str()),
                workload: WorkloadKey { namespace: it.namespace.as_str().into(), name: it.name.as_str().into() },
                generation: it.generation,
            })
        };
        self.preemptors.iter().map(event).collect()
    }

    /// The times, by namespace and name of the Workload.
    pub fn exact(&self) -> HashMap<(&str, &str), &Times> {
        self.times.iter().map(|times| ((times.namespace.as_str(), times.name.as_str()), times)).collect()
    }

    /// The namespaces of the Workloads.
    pub fn namespaces(&self) -> BTreeSet<String> {
        let namespaces = self.preemptors.iter().map(|it| &it.namespace);
        let namespaces = namespaces.chain(self.times.iter().map(|it| &it.namespace));
        namespaces.chain(self.forecasts.iter().map(|it| &it.namespace)).cloned().collect()
    }

    /// The part about Workloads of some namespaces.
    #[must_use]
    pub fn of_namespaces(mut self, is_shown: &dyn Fn(&str) -> bool) -> Memory {
        self.preemptors.retain(|it| is_shown(&it.namespace));
        self.times.retain(|it| is_shown(&it.namespace));
        self.forecasts.retain(|it| is_shown(&it.namespace));
        self
    }

    /// The memory with other names. What names something that has no other name is left out.
    pub(crate) fn renamed(&self, new: &dyn Fn(&str) -> Option<String>) -> Memory {
        let preemptor = |it: &Preemptor| {
            let (cluster_queue, namespace, name) = (new(&it.cluster_queue)?, new(&it.namespace)?, new(&it.name)?);
            Some(Preemptor { cluster_queue, namespace, name, generation: it.generation })
        };
        let times = |it: &Times| Some(Times { namespace: new(&it.namespace)?, name: new(&it.name)?, ..it.clone() });
        // Most of their Workloads have ended, and may have been deleted.
        let forecast = |it: &PastForecast| {
            let (namespace, name) = (new(&it.namespace)?, new(&it.name).unwrap_or_default());
            Some(PastForecast { cluster_queue: new(&it.cluster_queue)?, namespace, name, ..it.clone() })
        };
        Memory {
            preemptors: self.preemptors.iter().filter_map(preemptor).collect(),
            times: self.times.iter().filter_map(times).collect(),
            forecasts: self.forecasts.iter().filter_map(forecast).collect(),
        }
    }
}

impl Times {
    /// Replaces times of a Workload that are equal up to parts of a second.
    pub fn refine(&self, workload: &mut Workload) {
        let refine = |at: &mut Time, exact: Option<Timestamp>| {
            if let Some(exact) = exact.map(time).filter(|exact| exact.seconds() == at.seconds()) {
                *at = exact;
            }
        };
        refine(&mut workload.created, self.created);
        workload.reserved_at.iter_mut().for_each(|at| refine(at, self.reserved));
        workload.evicted.iter_mut().for_each(|eviction| refine(&mut eviction.at, self.evicted));
        workload.preempted.iter_mut().for_each(|eviction| refine(&mut eviction.at, self.preempted));
    }
}
