//! The forecast of a waiting workload, as an annotation of its Workload.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Annotation of a waiting Workload: a [`Forecast`] as JSON.
pub const FORECAST_ANNOTATION: &str = "berth.dev/forecast";
/// Annotation of a waiting Workload: the median of its start in UTC, or [`UNKNOWN_START`]. Columns
/// of `kubectl get` show whole annotations only.
pub const FORECAST_START_ANNOTATION: &str = "berth.dev/forecast-start";
/// The start of a workload whose start is unknown.
pub const UNKNOWN_START: &str = "unknown";

/// Smallest change of a start that is written.
const CHANGE_MIN: SignedDuration = SignedDuration::from_secs(30);
/// A change of a start is written if it is more than one part in this many of the time until the
/// start.
const CHANGE_SHARE: i32 = 10;

/// When a waiting workload starts. The fields are those of the API's `forecasts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// Time of the state from which the forecast was computed.
    pub at: Timestamp,
    /// Place in the ClusterQueue, from 1.
    pub place: usize,
    /// When quota is reserved for the workload.
    pub start: ForecastStart,
    /// Flavors of its admission.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flavors: Vec<String>,
    /// Jobs of its namespace that end, or are evicted, when it starts; the first 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
    /// Number of such jobs that are not named: of other namespaces, and beyond the first 20.
    #[serde(default)]
    pub waits_for_others: usize,
    /// Why the start is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// The distribution of a start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForecastStart {
    /// Median; `None` if it is unknown.
    pub median: Option<Timestamp>,
    /// 90th percentile; `None` if it is unknown.
    pub p90: Option<Timestamp>,
}

impl Forecast {
    /// The value of [`FORECAST_START_ANNOTATION`].
    pub fn start_text(&self) -> String {
        self.start.median.map_or_else(|| UNKNOWN_START.to_owned(), |at| at.to_string())
    }

    /// True if the forecast differs from an earlier one by more than its time, and by more than
    /// moves of the start of at most 30 seconds, or of at most a tenth of the time until the start.
    pub fn differs_from(&self, earlier: &Self) -> bool {
        let moved = |new: Option<Timestamp>, old: Option<Timestamp>| match (new, old) {
            (Some(new), Some(old)) => {
                let ahead = new.duration_since(self.at).max(SignedDuration::ZERO);
                new.duration_since(old).abs() > CHANGE_MIN.max(ahead / CHANGE_SHARE)
            }
            (new, old) => new != old,
        };
        let same = |it: &Self| Self { at: self.at, start: self.start, ..it.clone() };
        moved(self.start.median, earlier.start.median)
            || moved(self.start.p90, earlier.start.p90)
            || same(earlier) != *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn forecast(computed: i64, median: Option<i64>) -> Forecast {
        Forecast {
            at: at(computed),
            place: 2,
            start: ForecastStart { median: median.map(at), p90: median.map(at) },
            flavors: vec!["spot".to_owned()],
            waits_for: vec!["blue/train-1".to_owned()],
            waits_for_others: 0,
            unknown: median.is_none().then(|| "it is on hold".to_owned()),
        }
    }

    #[test]
    fn small_moves_of_a_start_are_no_difference() {
        let earlier = forecast(0, Some(10_000));
        assert!(!forecast(100, Some(10_900)).differs_from(&earlier), "900 of 10,800 seconds");
        assert!(forecast(100, Some(11_200)).differs_from(&earlier), "1,200 of 11,100 seconds");
        let soon = forecast(9_990, Some(10_020));
        assert!(!soon.differs_from(&earlier), "20 seconds never matter");
        assert!(forecast(9_990, Some(10_040)).differs_from(&earlier), "40 seconds do, if the start is near");
    }

    #[test]
    fn another_place_flavor_cause_or_an_unknown_start_is_a_difference() {
        let earlier = forecast(0, Some(10_000));
        assert!(Forecast { place: 1, ..earlier.clone() }.differs_from(&earlier));
        assert!(Forecast { flavors: Vec::new(), ..earlier.clone() }.differs_from(&earlier));
        assert!(Forecast { waits_for_others: 1, ..earlier.clone() }.differs_from(&earlier));
        assert!(forecast(0, None).differs_from(&earlier) && earlier.differs_from(&forecast(0, None)));
        assert!(!forecast(60, None).differs_from(&forecast(0, None)));
    }

    #[test]
    fn an_unknown_start_is_written_as_such() {
        assert_eq!(forecast(0, None).start_text(), "unknown");
        assert_eq!(forecast(0, Some(60)).start_text(), "1970-01-01T00:01:00Z");
    }
}
