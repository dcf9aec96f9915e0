//! Forecasts on Workloads: annotations with the place and the start of the first waiting workloads
//! of each ClusterQueue, for clients that read Workloads only.
//!
//! A task beside the controllers writes them, from the same forecasts that readers of the API get.
//! It costs little: rounds are [`Options::every`] apart and write a few Workloads per second
//! ([`PAUSE`]), a Workload is written at most once per round, and only if its forecast says
//! something else. The next round writes what a round has not written. No controller reads the
//! annotations, and a change to them alone changes no decision.
//!
//! Every reader of a Workload reads its annotations, so they name jobs of its own namespace only.

use std::collections::HashMap;
use std::time::Duration;

use berth_api::berth::forecast::{FORECAST_ANNOTATION, FORECAST_START_ANNOTATION, Forecast};
use berth_api::kueue::v1beta2::Workload;
use berth_controllers::workload::status::{has_quota_reservation, is_finished};
use berth_foresight::command::forecasts;
use berth_foresight::live::forecast::JobForecast;
use berth_runtime::{Clock, Index, Manager, ObjectKey, Writer, brief, is_conflict, is_not_found, is_rejected};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::Controllers;

/// The field manager of the annotations.
pub const FIELD_MANAGER: &str = "berth-forecast";
/// Time between two writes: at most five per second.
const PAUSE: Duration = Duration::from_millis(200);
/// The controller that decides.
const SCHEDULER: &str = "scheduler";
/// The value under which the index has the annotated Workloads.
const ANNOTATED: &str = "annotated";
/// Maximum number of jobs that an annotation names: annotations are part of every watch event.
const NAMES_MAX: usize = 20;

/// Which forecasts are written, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of waiting workloads per ClusterQueue, in the order of their places.
    pub places: usize,
    /// Time between two rounds.
    pub every: Duration,
}

/// Adds the task that writes forecasts on Workloads while this replica leads. `controllers` are
/// those of the manager, installed already. Controllers that do not decide write no forecast
/// either.
pub fn install(manager: &mut Manager, controllers: &Controllers, options: Options) {
    if manager.idle().contains(&SCHEDULER) {
        return;
    }
    let cache = manager.cache::<Workload>();
    let is_annotated = |workload: &Workload| match workload.annotations().contains_key(FORECAST_ANNOTATION) {
        true => vec![ANNOTATED.to_owned()],
        false => Vec::new(),
    };
    let writing = Writing {
        controllers: controllers.clone(),
        options,
        clock: manager.clock(),
        annotated: cache.index(is_annotated),
        writer: Writer::new(manager, &cache),
    };
    manager.task("forecasts on workloads", writing.run());
}

struct Writing {
    controllers: Controllers,
    options: Options,
    clock: Clock,
    annotated: Index<Workload>,
    writer: Writer<Workload>,
}

impl Writing {
    async fn run(self) {
        loop {
            self.round().await;
            self.clock.sleep(self.options.every).await;
        }
    }

    /// Removes the annotations that no longer hold, and writes new ones, first places first, until
    /// the next round is due.
    async fn round(&self) {
        let Some(installed) = self.controllers.installed() else { return };
        let end = self.clock.now() + self.options.every;
        let mut keys = self.annotated.keys(ANNOTATED);
        let wanted = match self.controllers.foresight().first(&installed, self.options.places).await {
            Ok((at, first)) => first.into_iter().filter_map(|it| written(at, it)).collect::<HashMap<_, _>>(),
            Err(status) => {
                tracing::warn!("forecasts are not written on Workloads: {}", status.message);
                // Workloads that still wait keep the last forecast, which states its time.
                keys.retain(|key| self.writer.cache().get(key).is_some_and(|workload| !waits(&workload)));
                HashMap::new()
            }
        };
        keys.retain(|key| !wanted.contains_key(key));
        let mut new: Vec<(&ObjectKey, usize)> = wanted.iter().map(|(key, it)| (key, it.place)).collect();
        new.sort_by(|(a, first), (b, second)| first.cmp(second).then_with(|| a.cmp(b)));
        keys.extend(new.into_iter().map(|(key, _)| key.clone()));
        for key in keys {
            match self.bring(&key, wanted.get(&key)).await {
                Ok(false) => {}
                Ok(true) if self.clock.now() < end => self.clock.sleep(PAUSE).await,
                Ok(true) => break,
                // The Workload changed meanwhile; the next round reads it again.
                Err(error) if is_conflict(&error) || is_not_found(&error) => {}
                Err(error) => {
                    tracing::warn!(workload = %key, error = brief(&error), "its forecast cannot be written");
                    // The rejection of one Workload says nothing about the others.
                    if !is_rejected(&error) || self.clock.now() >= end {
                        break;
                    }
                    self.clock.sleep(PAUSE).await;
                }
            }
        }
    }

    /// Writes or removes the annotations of one Workload. True if a write was needed.
    async fn bring(&self, key: &ObjectKey, wanted: Option<&Forecast>) -> kube::Result<bool> {
        let Some(workload) = self.writer.cache().get(key) else { return Ok(false) };
        let is_annotated = workload.annotations().contains_key(FORECAST_ANNOTATION);
        match wanted.filter(|_| waits(&workload)) {
            Some(forecast) if !is_annotated || known(&workload).is_none_or(|it| forecast.differs_from(&it)) => {
                self.writer.apply(&applied(&workload, forecast), FIELD_MANAGER).await?;
                Ok(true)
            }
            None if is_annotated => {
                self.writer.merge(&workload, &removed(&workload), FIELD_MANAGER).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// True for a workload that may have a forecast.
fn waits(workload: &Workload) -> bool {
    let is_deleted = workload.metadata.deletion_timestamp.is_some();
    !is_deleted && !has_quota_reservation(workload) && !is_finished(workload)
}

/// The forecast that a Workload has already.
fn known(workload: &Workload) -> Option<Forecast> {
    serde_json::from_str(workload.annotations().get(FORECAST_ANNOTATION)?).ok()
}

/// The annotation of a forecast: without names of other namespaces, and with few of its own.
fn written(at: Timestamp, mut forecast: JobForecast) -> Option<(ObjectKey, Forecast)> {
    let own = forecast.key.namespace.clone();
    forecast.withhold(&|namespace| *namespace == *own);
    forecast.name_at_most(NAMES_MAX);
    let mut document = forecasts::json(at, std::slice::from_ref(&forecast));
    let mut row = document["forecasts"][0].take();
    row["at"] = document["at"].take();
    let key = ObjectKey::namespaced(own.to_string(), forecast.key.name.to_string());
    Some((key, serde_json::from_value(row).ok()?))
}

/// The fields of a Workload that this field manager owns. Identity and version guard against
/// another Workload of the same name, and against a decision that was made meanwhile.
fn applied(workload: &Workload, forecast: &Forecast) -> Value {
    let annotations =
        json!({FORECAST_ANNOTATION: json!(forecast).to_string(), FORECAST_START_ANNOTATION: forecast.start_text()});
    let mut object = identity(workload);
    object["apiVersion"] = json!("kueue.x-k8s.io/v1beta2");
    object["kind"] = json!("Workload");
    object["metadata"]["name"] = json!(workload.name_any());
    object["metadata"]["namespace"] = json!(workload.namespace());
    object["metadata"]["annotations"] = annotations;
    object
}

fn removed(workload: &Workload) -> Value {
    let mut object = identity(workload);
    object["metadata"]["annotations"] = json!({FORECAST_ANNOTATION: null, FORECAST_START_ANNOTATION: null});
    object
}

fn identity(workload: &Workload) -> Value {
    json!({"metadata": {"uid": workload.uid(), "resourceVersion": workload.resource_version()}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_with_quota_or_an_end_have_no_forecast() {
        let workload = |status: Value| -> Workload {
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"podSets": []}, "status": status}))
                .expect("a workload")
        };
        assert!(waits(&workload(json!({}))));
        for type_ in ["QuotaReserved", "Finished"] {
            let condition = json!({"type": type_, "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            assert!(!waits(&workload(json!({"conditions": [condition]}))), "{type_}");
        }
    }
}
