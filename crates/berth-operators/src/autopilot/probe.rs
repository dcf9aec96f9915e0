//! What the checks of a node measure.

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use berth_api::berth::NodeFaults;

/// Bandwidth of a healthy simulated GPU in GB/s.
const BANDWIDTH: f64 = 24.5;
/// Highest level of DCGM's diagnostics.
pub const LEVEL_MAX: u8 = 4;

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Number of the GPU, or name of the peer; empty for the whole node.
    pub device: String,
    /// GB/s for `pciebw`. For other checks 1 if the device failed, otherwise 0.
    pub value: f64,
    /// What failed, such as the name of a test; empty if nothing did.
    pub detail: String,
}

impl Measurement {
    /// A measurement of a device.
    pub fn new(device: impl ToString, value: f64, detail: &str) -> Self {
        Self { device: device.to_string(), value, detail: detail.to_owned() }
    }

    /// A measurement of a device that passed or failed.
    pub fn verdict(device: impl ToString, failed: bool, detail: &str) -> Self {
        let detail = if failed { detail } else { "" };
        Self::new(device, f64::from(u8::from(failed)), detail)
    }
}

/// Why a check has no result, such as a missing tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// Another node that this node must reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the node.
    pub name: String,
    /// Its address.
    pub address: String,
}

/// A measurement to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the check.
    pub check: String,
    /// Level of DCGM's diagnostics, 1 to 4.
    pub level: u8,
    /// The nodes to reach, for `ping`.
    pub peers: Vec<Peer>,
}

/// Measures a node.
pub trait Probe: Send + Sync {
    /// Measures for one check.
    fn measure<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Vec<Measurement>, Unavailable>>;

    /// Why the node's machine cannot run the invasive command; `None` if it can.
    fn invasive_obstacle(&self) -> Option<Unavailable> {
        None
    }

    /// The command that the invasive Job runs.
    fn invasive_command(&self) -> Vec<String> {
        ["dcgmi", "diag", "-r", "3", "-j"].map(str::to_owned).to_vec()
    }

    /// The measurements in the output of the invasive command. `None` if the probe measures anew,
    /// because the command has no output.
    fn invasive_result(&self, output: &str) -> Option<Result<Vec<Measurement>, Unavailable>>;
}

/// The probe of a simulated node: the node's faults decide.
#[derive(Clone, Debug)]
pub struct SimulatedProbe {
    /// Faults.
    pub faults: NodeFaults,
    /// Number of GPUs.
    pub gpus: u32,
}

/// Level of DCGM's diagnostics from which a test runs. Unknown tests run at every level.
///
/// Source: DCGM's documentation of active health checks.
fn level_of(test: &str) -> u8 {
    match test.to_lowercase().as_str() {
        "pcie" | "nvlink" | "gpu memory" | "ecc" => 2,
        "memory bandwidth" | "diagnostic" | "targeted stress" | "targeted power" | "nvbandwidth" => 3,
        "memtest" | "pulse test" => 4,
        _ => 1,
    }
}

impl SimulatedProbe {
    fn values(&self, request: &Request) -> Result<Vec<Measurement>, Unavailable> {
        let faults = &self.faults;
        let of_gpus = |failed: &std::collections::BTreeSet<u32>, detail: &str| {
            (0..self.gpus).map(|gpu| Measurement::verdict(gpu, failed.contains(&gpu), detail)).collect()
        };
        Ok(match request.check.as_str() {
            "pciebw" => {
                let bandwidth = |gpu: &u32| faults.pciebw.get(gpu).copied().unwrap_or(BANDWIDTH);
                (0..self.gpus).map(|gpu| Measurement::new(gpu, bandwidth(&gpu), "")).collect()
            }
            "remapped" => of_gpus(&faults.remapped, "row remapping pending or failed"),
            "gpupower" => of_gpus(&faults.gpupower, "power slow-down is active"),
            "gpumem" => of_gpus(&faults.gpumem, "memory is slower than expected"),
            "dcgm" => self.diagnostics(request.level),
            "ping" => {
                let lost = |peer: &Peer| faults.ping.contains(&peer.name);
                let peers = request.peers.iter();
                peers.map(|peer| Measurement::verdict(&peer.name, lost(peer), "unreachable")).collect()
            }
            "pvc" => vec![Measurement::verdict("", faults.pvc, "volumes cannot be created from this node")],
            other => return Err(Unavailable(format!("a simulated node has no measurement for {other:?}"))),
        })
    }

    /// One measurement per failed test and GPU, and one per other GPU.
    fn diagnostics(&self, level: u8) -> Vec<Measurement> {
        let mut found = Vec::new();
        for gpu in 0..self.gpus {
            let tests = self.faults.dcgm.iter().filter(|(test, gpus)| gpus.contains(&gpu) && level_of(test) <= level);
            let before = found.len();
            found.extend(tests.map(|(test, _)| Measurement::verdict(gpu, true, test)));
            if found.len() == before {
                found.push(Measurement::verdict(gpu, false, ""));
            }
        }
        found
    }
}

impl Probe for SimulatedProbe {
    fn measure<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Vec<Measurement>, Unavailable>> {
        ready(self.values(request)).boxed()
    }

    fn invasive_result(&self, _output: &str) -> Option<Result<Vec<Measurement>, Unavailable>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(faults: &str, check: &str, level: u8) -> Vec<(String, f64, String)> {
        let faults = serde_json::from_str(faults).expect("faults");
        let probe = SimulatedProbe { faults, gpus: 2 };
        let peers = vec![Peer { name: "n2".into(), address: "10.0.0.2".into() }];
        let request = Request { check: check.into(), level, peers };
        let all = probe.measure(&request).now_or_never().expect("at once").expect("available");
        all.into_iter().map(|it| (it.device, it.value, it.detail)).collect()
    }

    #[test]
    fn faults_decide_what_a_simulated_node_measures() {
        let row = |device: &str, value: f64, detail: &str| (device.to_owned(), value, detail.to_owned());
        assert_eq!(measured(r#"{"pciebw": {"1": 2.1}}"#, "pciebw", 1), [row("0", 24.5, ""), row("1", 2.1, "")]);
        let remapped = [row("0", 1.0, "row remapping pending or failed"), row("1", 0.0, "")];
        assert_eq!(measured(r#"{"remapped": [0]}"#, "remapped", 1), remapped);
        assert_eq!(measured(r#"{"ping": ["n2"]}"#, "ping", 1), [row("n2", 1.0, "unreachable")]);
        assert_eq!(measured("{}", "pvc", 1), [row("", 0.0, "")]);
    }

    #[test]
    fn a_test_of_dcgm_fails_from_its_level_on() {
        let faults = r#"{"dcgm": {"PCIe": [1], "Inforom": [1], "Memory Bandwidth": [0]}}"#;
        let failed = |level: u8| -> Vec<String> {
            let all = measured(faults, "dcgm", level).into_iter().filter(|(_, value, _)| *value != 0.0);
            all.map(|(gpu, _, test)| format!("{test}.{gpu}")).collect()
        };
        assert_eq!(failed(1), ["Inforom.1"]);
        assert_eq!(failed(2), ["Inforom.1", "PCIe.1"]);
        assert_eq!(failed(3), ["Memory Bandwidth.0", "Inforom.1", "PCIe.1"]);
    }
}
