//! `--forecast-annotations`: forecasts on Workloads.

use std::time::Duration;

use berth_embedded::written_forecasts;
use clap::Args;

/// Which forecasts the controllers write on Workloads.
#[derive(Args)]
pub struct ForecastOptions {
    /// Write the forecasts of the first PLACES waiting workloads of each ClusterQueue on their
    /// Workloads, as annotation berth.dev/forecast. The annotation is removed after the workload
    /// got quota. 0 writes none.
    #[arg(long, value_name = "PLACES", default_value_t = 0)]
    forecast_annotations: usize,
    /// Seconds between two writes of the same Workload, at least 5.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    forecast_annotations_interval: u64,
}

impl ForecastOptions {
    /// The forecasts to write, if any.
    pub fn written(&self) -> Option<written_forecasts::Options> {
        let every = Duration::from_secs(self.forecast_annotations_interval);
        (self.forecast_annotations > 0)
            .then_some(written_forecasts::Options { places: self.forecast_annotations, every })
    }
}
