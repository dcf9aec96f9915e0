//! Forecasts as text and JSON.

use std::collections::BTreeMap;

use berth_engine::model::Time;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::live::State;
use crate::live::forecast::JobForecast;
use crate::report::time;

/// A time of the engine as a timestamp.
pub(super) fn timestamp(at: Time) -> Option<String> {
    Timestamp::from_nanosecond(i128::from(at.0)).ok().map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// A time from now.
pub(super) fn from_now(now: Time, at: Option<Time>) -> String {
    match at {
        None => "unknown".to_owned(),
        Some(at) if at <= now => "now".to_owned(),
        Some(at) => format!("in {}", time(now.until(at).as_secs_f64())),
    }
}

/// The columns of a list of forecasts.
pub const COLUMNS: [&str; 7] = ["JOB", "CLUSTER QUEUE", "PLACE", "STARTS (MEDIAN)", "BY (90 %)", "FLAVORS", "AFTER"];

/// The cells of a forecast in a list.
pub fn cells(state: &State, forecast: &JobForecast) -> [String; 7] {
    let name = forecast.owner.as_ref().map_or(&*forecast.key.name, |owner| owner.name.as_str());
    let flavors: Vec<&str> = forecast.flavors.iter().map(|flavor| &**flavor).collect();
    let unknown = forecast.unknown.as_ref().map(ToString::to_string);
    [
        format!("{}/{name}", forecast.key.namespace),
        forecast.cluster_queue.as_deref().unwrap_or_default().to_owned(),
        forecast.place.to_string(),
        from_now(state.at, forecast.median),
        from_now(state.at, forecast.p90),
        flavors.join(","),
        unknown.unwrap_or_else(|| forecast.waits_for.join(", ")),
    ]
}

/// The median and the 90th percentile of the start as timestamps; `None` if they are unknown.
pub fn starts(forecast: &JobForecast) -> [Option<String>; 2] {
    [forecast.median, forecast.p90].map(|at| at.and_then(timestamp))
}

/// One forecast as a sentence.
pub fn sentence(state: &State, forecast: &JobForecast) -> String {
    let Some(median) = forecast.median else {
        let why = forecast.unknown.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        return format!("Forecast: the start is unknown{why}.");
    };
    let mut text = format!("Forecast: starts {}", from_now(state.at, Some(median)));
    match forecast.p90 {
        Some(p90) if p90 != median => {
            text.push_str(&format!(", with 90 % certainty {}", from_now(state.at, Some(p90))))
        }
        Some(_) => {}
        None => text.push_str(", and not for certain"),
    }
    let flavors: Vec<&str> = forecast.flavors.iter().map(|flavor| &**flavor).collect();
    if !flavors.is_empty() {
        text.push_str(&format!(", on flavor {}", flavors.join(", ")));
    }
    if !forecast.waits_for.is_empty() {
        text.push_str(&format!(", after {}", forecast.waits_for.join(", ")));
    }
    text.push('.');
    text
}

/// One JSON object.
pub fn json(at: Timestamp, forecasts: &[JobForecast]) -> Value {
    let row = |forecast: &JobForecast| {
        let owner = forecast.owner.as_ref().map(|owner| json!({"kind": owner.kind, "name": owner.name}));
        json!({
            "namespace": &*forecast.key.namespace,
            "workload": &*forecast.key.name,
            "job": owner,
            "clusterQueue": forecast.cluster_queue.as_deref(),
            "place": forecast.place,
            "start": {"median": forecast.median.and_then(timestamp), "p90": forecast.p90.and_then(timestamp)},
            "running": forecast.running.and_then(timestamp),
            "flavors": forecast.flavors.iter().map(|flavor| &**flavor).collect::<Vec<_>>(),
            "waitsFor": forecast.waits_for,
            "waitsForOthers": forecast.withheld,
            "unknown": forecast.unknown.as_ref().map(ToString::to_string),
        })
    };
    let rows: Vec<Value> = forecasts.iter().map(row).collect();
    json!({"at": at.to_string(), "forecasts": rows})
}

/// The next start and the number of starts, by namespace, cluster queue and flavor.
#[derive(Debug, Default)]
pub struct Starts(BTreeMap<(String, String, String), (Time, usize)>);

impl Starts {
    /// The starts of jobs whose median is known.
    pub fn of(forecasts: &[JobForecast]) -> Self {
        let mut starts = Self::default();
        for it in forecasts {
            let (Some(at), Some(queue)) = (it.median, &it.cluster_queue) else { continue };
            for flavor in &it.flavors {
                let key = (it.key.namespace.to_string(), queue.to_string(), flavor.to_string());
                let start = starts.0.entry(key).or_insert((at, 0));
                *start = (start.0.min(at), start.1 + 1);
            }
        }
        starts
    }

    /// One JSON object per cluster queue and flavor, of the jobs of some namespaces.
    pub fn json(&self, is_shown: &dyn Fn(&str) -> bool) -> Vec<Value> {
        let mut sums: BTreeMap<(&str, &str), (Time, usize)> = BTreeMap::new();
        // The namespace comes first in the order, so each is asked for once.
        let mut last: Option<(&str, bool)> = None;
        for ((namespace, queue, flavor), (at, jobs)) in &self.0 {
            let shown = match last {
                Some((known, shown)) if known == namespace => shown,
                _ => is_shown(namespace),
            };
            last = Some((namespace, shown));
            if shown {
                let sum = sums.entry((queue, flavor)).or_insert((*at, 0));
                *sum = (sum.0.min(*at), sum.1 + jobs);
            }
        }
        let start = |((queue, flavor), (at, jobs))| json!({"clusterQueue": queue, "flavor": flavor, "jobs": jobs, "next": timestamp(at)});
        sums.into_iter().map(start).collect()
    }
}

#[cfg(test)]
mod tests {
    use berth_engine::model::WorkloadKey;

    use super::*;

    fn forecast(namespace: &str, name: &str, queue: &str, seconds: Option<i64>) -> JobForecast {
        JobForecast {
            key: WorkloadKey { namespace: namespace.into(), name: name.into() },
            owner: None,
            cluster_queue: Some(queue.into()),
            place: 1,
            median: seconds.map(|seconds| Time(seconds * 1_000_000_000)),
            p90: None,
            drawn: None,
            running: None,
            flavors: vec!["spot".into()],
            waits_for: Vec::new(),
            unknown: None,
            withheld: 0,
        }
    }

    #[test]
    fn a_forecast_names_the_first_jobs_that_it_waits_for_and_counts_the_others() {
        let names = (0..5_000).map(|number| format!("blue/{number}")).chain(["green/a".to_owned()]);
        let mut forecast = JobForecast { waits_for: names.collect(), ..forecast("blue", "next", "q", None) };
        forecast.withhold(&|namespace| namespace == "blue");
        assert_eq!((forecast.waits_for.len(), forecast.withheld), (5_000, 1));
        forecast.name_at_most(20);
        assert_eq!((forecast.waits_for.len(), forecast.withheld), (20, 4_981));
        assert_eq!(forecast.waits_for[19], "blue/19");
    }

    #[test]
    fn starts_are_summed_over_the_shown_namespaces() {
        let starts = Starts::of(&[
            forecast("blue", "a", "q", Some(20)),
            forecast("blue", "b", "q", None),
            forecast("green", "c", "q", Some(10)),
            forecast("green", "d", "r", Some(30)),
        ]);
        let row = |queue: &str, jobs: usize, next: &str| json!({"clusterQueue": queue, "flavor": "spot", "jobs": jobs, "next": next});
        let all = [row("q", 2, "1970-01-01T00:00:10Z"), row("r", 1, "1970-01-01T00:00:30Z")];
        assert_eq!(starts.json(&|_| true), all);
        assert_eq!(starts.json(&|namespace| namespace == "blue"), [row("q", 1, "1970-01-01T00:00:20Z")]);
    }
}
