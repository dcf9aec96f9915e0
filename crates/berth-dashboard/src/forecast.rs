//! The forecasts of `explain.berth.dev`, as `berth forecast` computes them.

use berth_api::berth::explanation::{GROUP, VERSION};
use berth_apimachinery::percent::segment;
use http::Request;
use jiff::Timestamp;
use kube::Client;
use serde::Deserialize;

use crate::read::{self, Unread};
use crate::state;

/// Forecasts of the waiting jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Forecasts {
    /// One per waiting job.
    pub items: Vec<Forecast>,
}

/// The forecast of one job.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Forecast {
    /// Its namespace.
    pub namespace: String,
    /// Name of its Workload.
    pub workload: String,
    /// Its cluster queue.
    pub cluster_queue: Option<String>,
    /// Its start.
    pub start: Start,
    /// Flavors of its start at the median.
    pub flavors: Vec<String>,
    /// The forecast as a sentence.
    pub text: String,
}

/// A start that is not certain.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Start {
    /// Median; `None` if it is unknown.
    pub median: Option<Timestamp>,
    /// 90th percentile.
    pub p90: Option<Timestamp>,
}

impl Forecasts {
    /// Reads the forecasts of a namespace, or of all.
    pub async fn read(client: &Client, namespace: Option<&str>) -> Result<Forecasts, Unread> {
        let scope = namespace.map(|it| format!("namespaces/{}/", segment(it))).unwrap_or_default();
        let path = format!("/apis/{GROUP}/{VERSION}/{scope}forecasts");
        let reading = async {
            let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            client.request(request).await
        };
        read::within(reading).await
    }

    /// The next start of a job of these queues in a flavor, and the number of such jobs.
    pub fn next(&self, is_in: &dyn Fn(&str) -> bool, flavor: &str) -> Option<(Timestamp, usize)> {
        let of_flavor = self.items.iter().filter(|it| it.cluster_queue.as_deref().is_some_and(is_in));
        let starts = of_flavor.filter(|it| it.flavors.iter().any(|known| known == flavor));
        let starts: Vec<Timestamp> = starts.filter_map(|it| it.start.median).collect();
        Some((starts.iter().min().copied()?, starts.len()))
    }
}

/// A time from now.
pub fn from_now(at: Timestamp, now: Timestamp) -> String {
    match at.as_second() - now.as_second() {
        ..=0 => "now".to_owned(),
        seconds => format!("in {}", state::duration(seconds)),
    }
}
