//! Autopilot: a health agent per node with GPUs, in place of IBM's Autopilot.
//!
//! Each agent runs [`checks`] on its node: periodically, on request ([`http`]), and, if no pod uses
//! the GPUs, an invasive one in a Job. The results become labels of the node ([`label`]), metrics
//! ([`metrics`]) and events. What a check measures comes from a [`Probe`]: of a simulated node its
//! faults, of a real machine the vendor's tools. A check whose tool is missing has no result.
//!
//! The agents of all nodes run in one controller. A node whose machine belongs to another process
//! has no agent here.
//!
//! Source: IBM/autopilot, as its documents and its chart describe it. Difference: the invasive Job
//! requests all GPUs of the node, not always 8 (`invasiveGpus`).

pub mod checks;
mod controller;
pub mod http;
pub mod invasive;
pub mod label;
pub mod metrics;
mod probe;
mod pvc;
mod results;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use berth_api::berth::AutopilotConfiguration;
pub use controller::install;
pub use http::AutopilotApi;
pub use probe::{Measurement, Peer, Probe, Request, SimulatedProbe, Unavailable};

/// Label of nodes with GPUs.
pub const GPU_PRESENT: &str = "nvidia.com/gpu.present";
/// Resource of the GPUs that are checked.
pub const GPU: &str = "nvidia.com/gpu";

/// Options of the agents.
#[derive(Clone, Default)]
pub struct Options {
    /// Configuration.
    pub configuration: Arc<AutopilotConfiguration>,
    /// The known checks; [`checks::Checks::add`] adds a plug-in.
    pub checks: checks::Checks,
    /// Probes of real machines, by node. Other nodes are simulated.
    pub probes: BTreeMap<String, Arc<dyn Probe>>,
    /// Serves the agents' HTTP API and metrics once the agents run.
    pub api: AutopilotApi,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("configuration", &self.configuration).finish_non_exhaustive()
    }
}
