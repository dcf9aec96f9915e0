//! The checks, as plug-ins.
//!
//! A check has a name, measures its node, and decides which measurements failed. The table
//! [`Checks`] starts with Autopilot's own checks; a further one is added with [`Checks::add`].

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_runtime::Clock;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::Client;

use super::probe::{Measurement, Probe, Request, Unavailable};
use super::{AutopilotConfiguration, pvc};

/// What a check may use.
pub struct Context<'a> {
    /// The node.
    pub node: &'a Node,
    /// Measures the node.
    pub probe: &'a dyn Probe,
    /// Level and peers.
    pub request: Request,
    /// Configuration.
    pub configuration: &'a AutopilotConfiguration,
    /// Client, for checks that use the API.
    pub client: Client,
    /// Cluster time.
    pub clock: Clock,
}

/// A check.
pub trait Check: Send + Sync {
    /// Name in configuration and requests, such as `pciebw`.
    fn name(&self) -> &'static str;

    /// Name in metrics.
    fn metric(&self) -> &'static str {
        self.name()
    }

    /// The node's status in the output of requests if the check fails, such as `PCIE Failed`.
    fn failure(&self) -> &'static str;

    /// Measures the node.
    fn measure<'a>(&'a self, context: &'a Context<'a>) -> BoxFuture<'a, Result<Vec<Measurement>, Unavailable>> {
        context.probe.measure(&context.request)
    }

    /// True if the measurement fails the check.
    fn has_failed(&self, measurement: &Measurement, _configuration: &AutopilotConfiguration) -> bool {
        measurement.value != 0.0
    }

    /// Why the measurement failed, for events.
    fn explain(&self, measurement: &Measurement, _configuration: &AutopilotConfiguration) -> String {
        let detail = if measurement.detail.is_empty() { "failed" } else { &measurement.detail };
        match measurement.device.as_str() {
            "" => detail.to_owned(),
            device => format!("{} {device}: {detail}", if self.name() == "ping" { "node" } else { "GPU" }),
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Name of the check.
    pub check: &'static str,
    /// Name in metrics.
    pub metric: &'static str,
    /// Status of the node in the output of requests if the check failed.
    pub failure: &'static str,
    /// The measurements, each with its reason if it failed.
    pub result: Result<Vec<(Measurement, Option<String>)>, Unavailable>,
}

impl Report {
    /// True if a measurement failed.
    pub fn has_failed(&self) -> bool {
        self.reasons().next().is_some()
    }

    /// True if the check has a result.
    pub fn has_run(&self) -> bool {
        self.result.is_ok()
    }

    /// The reasons of failed measurements.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        let all = self.result.iter().flatten();
        all.filter_map(|(_, reason)| Some(format!("{}: {}", self.check, reason.as_ref()?)))
    }
}

/// The known checks, by name.
#[derive(Clone)]
pub struct Checks(BTreeMap<&'static str, Arc<dyn Check>>);

impl Default for Checks {
    fn default() -> Self {
        let mut checks = Self(BTreeMap::new());
        checks.add(Arc::new(PcieBandwidth));
        checks.add(Arc::new(Verdict { name: "remapped", metric: "remapped", failure: "REMAPPED Failed" }));
        checks.add(Arc::new(Verdict { name: "dcgm", metric: "dcgm", failure: "DCGM Failed" }));
        checks.add(Arc::new(Verdict { name: "ping", metric: "ping", failure: "PING Failed" }));
        checks.add(Arc::new(Verdict { name: "gpupower", metric: "power-slowdown", failure: "GPUPOWER Failed" }));
        checks.add(Arc::new(Verdict { name: "gpumem", metric: "gpumem", failure: "GPUMEM Failed" }));
        checks.add(Arc::new(pvc::VolumeCheck));
        checks
    }
}

impl Checks {
    /// Adds a check, or replaces the one of its name.
    pub fn add(&mut self, check: Arc<dyn Check>) {
        self.0.insert(check.name(), check);
    }

    /// The check of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Check>> {
        self.0.get(name)
    }

    /// Runs one check.
    pub async fn run(check: &dyn Check, context: &Context<'_>) -> Report {
        let measured = check.measure(context).await;
        let judged = measured.map(|all| {
            let judge = |measurement: Measurement| {
                let failed = check.has_failed(&measurement, context.configuration);
                let reason = failed.then(|| check.explain(&measurement, context.configuration));
                (measurement, reason)
            };
            all.into_iter().map(judge).collect()
        });
        Report { check: check.name(), metric: check.metric(), failure: check.failure(), result: judged }
    }
}

/// `pciebw`: the bandwidth from host to device of each GPU.
struct PcieBandwidth;

impl Check for PcieBandwidth {
    fn name(&self) -> &'static str {
        "pciebw"
    }

    fn failure(&self) -> &'static str {
        "PCIE Failed"
    }

    fn has_failed(&self, measurement: &Measurement, configuration: &AutopilotConfiguration) -> bool {
        measurement.value < configuration.pcie_bw
    }

    fn explain(&self, measurement: &Measurement, configuration: &AutopilotConfiguration) -> String {
        let (gpu, value, least) = (&measurement.device, measurement.value, configuration.pcie_bw);
        format!("GPU {gpu} has {value} GB/s, expected at least {least}")
    }
}

/// A check that the probe decides.
struct Verdict {
    name: &'static str,
    metric: &'static str,
    failure: &'static str,
}

impl Check for Verdict {
    fn name(&self) -> &'static str {
        self.name
    }

    fn metric(&self) -> &'static str {
        self.metric
    }

    fn failure(&self) -> &'static str {
        self.failure
    }
}

/// Measures by the probe, for checks that measure in two ways.
pub(super) fn by_probe<'a>(context: &'a Context<'a>) -> BoxFuture<'a, Result<Vec<Measurement>, Unavailable>> {
    context.probe.measure(&context.request).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_fails_below_the_threshold() {
        let configuration = AutopilotConfiguration::default();
        let failed = |value: f64| PcieBandwidth.has_failed(&Measurement::new(3, value, ""), &configuration);
        assert_eq!([2.1, 3.9, 4.0, 22.0].map(failed), [true, true, false, false]);
        let explained = PcieBandwidth.explain(&Measurement::new(3, 2.1, ""), &configuration);
        assert_eq!(explained, "GPU 3 has 2.1 GB/s, expected at least 4");
    }

    #[test]
    fn every_configured_check_exists() {
        let checks = Checks::default();
        assert!(berth_api::berth::AUTOPILOT_CHECKS.iter().all(|name| checks.get(name).is_some()));
        assert_eq!(checks.0.len(), berth_api::berth::AUTOPILOT_CHECKS.len());
        assert!(checks.get("fan").is_none());
    }
}
