//! The forecasts of `explain.berth.dev`, as `berth forecast` computes them.

use berth_api::berth::explanation::{GROUP, VERSION};
use berth_apimachinery::percent::{component, segment};
use http::Request;
use jiff::Timestamp;
use kube::Client;
use serde::Deserialize;

use crate::read::{self, Unread};
use crate::state;

/// Forecasts of waiting jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Forecasts {
    /// The forecast of each job that was asked for.
    pub items: Vec<Forecast>,
    /// The next starts, if only a summary was asked for.
    pub starts: Vec<Next>,
}

/// The starts in a flavor of a cluster queue.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Next {
    /// The cluster queue.
    pub cluster_queue: String,
    /// The flavor.
    pub flavor: String,
    /// Number of jobs that start.
    pub jobs: usize,
    /// Median of the next start.
    pub next: Option<Timestamp>,
}

/// The forecast of one job.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Forecast {
    /// Name of its Workload.
    pub workload: String,
    /// The forecast as a sentence.
    pub text: String,
}

impl Forecasts {
    /// Reads the next starts of all queues. They are empty until the first forecasts are computed.
    pub async fn summary(client: &Client) -> Result<Forecasts, Unread> {
        Self::read(client, format!("/apis/{GROUP}/{VERSION}/forecasts?summary=true&wait=false")).await
    }

    /// Reads the forecast of one Workload, or none until the first forecasts are computed.
    pub async fn of(client: &Client, namespace: &str, workload: &str) -> Result<Forecasts, Unread> {
        let (namespace, workload) = (segment(namespace), component(workload));
        let scope = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}");
        Self::read(client, format!("{scope}/forecasts?wait=false&workload={workload}")).await
    }

    async fn read(client: &Client, path: String) -> Result<Forecasts, Unread> {
        let reading = async {
            let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
            client.request(request).await
        };
        read::within(reading).await
    }

    /// The next start of a job of these queues in a flavor, and the number of such jobs.
    pub fn next(&self, is_in: &dyn Fn(&str) -> bool, flavor: &str) -> Option<(Timestamp, usize)> {
        let of_flavor = || self.starts.iter().filter(|it| it.flavor == flavor && is_in(&it.cluster_queue));
        let next = of_flavor().filter_map(|it| it.next).min()?;
        Some((next, of_flavor().map(|it| it.jobs).sum()))
    }
}

/// A time from now.
pub fn from_now(at: Timestamp, now: Timestamp) -> String {
    match at.as_second() - now.as_second() {
        ..=0 => "now".to_owned(),
        seconds => format!("in {}", state::duration(seconds)),
    }
}
