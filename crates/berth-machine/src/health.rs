//! Health of the machine's NVIDIA GPUs, measured with the vendor's tools: `nvidia-smi`, `dcgmi` and
//! `nvbandwidth`; and `ping` to other machines.
//!
//! The functions block until the tool ends. A missing tool is an error that names it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::tool::{ToolError, run};

/// Time limit of `nvidia-smi` and `ping`.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of `nvbandwidth`.
const TIMEOUT_BANDWIDTH: Duration = Duration::from_secs(300);
/// Time limit of DCGM's diagnostics per level.
const TIMEOUT_DIAGNOSTICS: Duration = Duration::from_secs(1800);
/// Seconds that `ping` waits for a response.
const PING_SECONDS: &str = "2";

/// A measured value of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Number of the GPU, or name of the peer.
    pub device: String,
    /// GB/s for a bandwidth. Otherwise 1 if the device failed, and 0 if it passed.
    pub value: f64,
    /// What failed; empty if nothing did.
    pub detail: String,
}

impl Reading {
    fn verdict(device: impl ToString, failed: bool, detail: &str) -> Self {
        let detail = if failed { detail.to_owned() } else { String::new() };
        Self { device: device.to_string(), value: f64::from(u8::from(failed)), detail }
    }
}

/// The tools of a system.
#[derive(Clone, Debug)]
pub struct HealthTools {
    root: PathBuf,
}

impl HealthTools {
    /// The tools of the system whose root folder is `root`, normally `/`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Bandwidth from host to device of each GPU, by `nvbandwidth`.
    ///
    /// # Errors
    /// The tool is missing or failed.
    pub fn bandwidth(&self) -> Result<Vec<Reading>, ToolError> {
        let arguments = ["-t", "host_to_device_memcpy_ce", "-j"];
        parse_bandwidth(&run(&self.root, "nvbandwidth", &arguments, TIMEOUT_BANDWIDTH)?)
    }

    /// GPUs with a pending or failed row remapping, by `nvidia-smi`.
    ///
    /// # Errors
    /// The tool is missing or failed.
    pub fn remapped_rows(&self) -> Result<Vec<Reading>, ToolError> {
        let query = "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure";
        let text = run(&self.root, "nvidia-smi", &[query, "--format=csv,noheader,nounits"], TIMEOUT)?;
        Ok(parse_rows(&text))
    }

    /// GPUs that the hardware slows down, by `nvidia-smi`.
    ///
    /// # Errors
    /// The tool is missing or failed.
    pub fn power_slowdown(&self) -> Result<Vec<Reading>, ToolError> {
        let query = |prefix: &str| {
            let fields = format!("--query-gpu=index,{prefix}.hw_slowdown,{prefix}.hw_power_brake_slowdown");
            run(&self.root, "nvidia-smi", &[&fields, "--format=csv,noheader"], TIMEOUT)
        };
        // Drivers before 535 have another name.
        let text = query("clocks_event_reasons").or_else(|error| match error {
            ToolError::Failed { .. } => query("clocks_throttle_reasons"),
            other => Err(other),
        })?;
        Ok(parse_power(&text))
    }

    /// DCGM's diagnostics of a level.
    ///
    /// # Errors
    /// The tool is missing, or the diagnostics could not run, such as on GPUs in use.
    pub fn diagnostics(&self, level: u8) -> Result<Vec<Reading>, ToolError> {
        self.dcgm(&level.to_string())
    }

    /// DCGM's test of memory bandwidth.
    ///
    /// # Errors
    /// As [`Self::diagnostics`].
    pub fn memory(&self) -> Result<Vec<Reading>, ToolError> {
        self.dcgm("memory_bandwidth")
    }

    fn dcgm(&self, tests: &str) -> Result<Vec<Reading>, ToolError> {
        match run(&self.root, "dcgmi", &["diag", "-r", tests, "-j"], TIMEOUT_DIAGNOSTICS) {
            Ok(text) => parse_diagnostics(&text),
            Err(error) => Err(error),
        }
    }

    /// True if `dcgmi` can be run.
    ///
    /// # Errors
    /// The tool is missing or failed.
    pub fn has_diagnostics(&self) -> Result<(), ToolError> {
        run(&self.root, "dcgmi", &["--version"], TIMEOUT).map(drop)
    }

    /// Machines that do not respond to `ping`. `peers` are names and addresses.
    ///
    /// # Errors
    /// The tool is missing.
    pub fn ping(&self, peers: &[(String, String)]) -> Result<Vec<Reading>, ToolError> {
        let reach = |(name, address): &(String, String)| match run(
            &self.root,
            "ping",
            &["-c", "1", "-W", PING_SECONDS, address],
            TIMEOUT,
        ) {
            Ok(_) => Ok(Reading::verdict(name, false, "")),
            Err(error @ ToolError::Missing { .. }) => Err(error),
            Err(_) => Ok(Reading::verdict(name, true, "unreachable")),
        };
        peers.iter().map(reach).collect()
    }
}

/// Reads the JSON of `nvbandwidth`: a matrix with the bandwidth of each GPU.
fn parse_bandwidth(text: &str) -> Result<Vec<Reading>, ToolError> {
    let unreadable = |problem: &str| ToolError::Unreadable { program: "nvbandwidth".into(), problem: problem.into() };
    let document: Value = json_of(text).ok_or_else(|| unreadable("expected JSON"))?;
    let cases = document["nvbandwidth"]["testcases"].as_array().ok_or_else(|| unreadable("expected testcases"))?;
    let matrix = cases.iter().find_map(|case| case["bandwidth_matrix"].as_array());
    let matrix = matrix.ok_or_else(|| unreadable("expected a bandwidth_matrix"))?;
    let cells = matrix.iter().filter_map(Value::as_array).flatten();
    let number = |cell: &Value| cell.as_f64().or_else(|| cell.as_str()?.trim().parse().ok());
    let readings = cells.filter_map(number).enumerate();
    Ok(readings.map(|(gpu, value)| Reading { device: gpu.to_string(), value, detail: String::new() }).collect())
}

/// Reads pairs of pending and failed row remappings. GPUs without row remapping report `[N/A]`.
fn parse_rows(text: &str) -> Vec<Reading> {
    let is_set = |field: &str| matches!(field, "Yes" | "1");
    let row = |(gpu, line): (usize, &str)| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [_, pending, failure] = fields.as_slice() else { return None };
        let detail = if is_set(failure) { "row remapping failed" } else { "row remapping is pending" };
        Some(Reading::verdict(gpu, is_set(pending) || is_set(failure), detail))
    };
    text.lines().filter(|line| !line.trim().is_empty()).enumerate().filter_map(row).collect()
}

/// Reads the reasons for slow clocks.
fn parse_power(text: &str) -> Vec<Reading> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [gpu, reasons @ ..] = fields.as_slice() else { return None };
        let gpu: u32 = gpu.parse().ok()?;
        Some(Reading::verdict(gpu, reasons.contains(&"Active"), "power slow-down is active"))
    };
    text.lines().filter_map(row).collect()
}

/// Reads the JSON of `dcgmi diag -j`, of DCGM 3 and 4: one reading per failed test and GPU, and one
/// per GPU that passed.
///
/// # Errors
/// The text is not the result of diagnostics, such as an error message.
pub fn parse_diagnostics(text: &str) -> Result<Vec<Reading>, ToolError> {
    let unreadable = |problem: String| ToolError::Unreadable { program: "dcgmi".into(), problem };
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output").trim();
    let document = json_of(text).ok_or_else(|| unreadable(format!("expected JSON, found {last:?}")))?;
    let tree = document.as_object().into_iter().flatten().find_map(|(_, tree)| tree["test_categories"].as_array());
    let categories = tree.ok_or_else(|| unreadable("expected test_categories".to_owned()))?;
    let tests = categories.iter().filter_map(|category| category["tests"].as_array()).flatten();
    let (mut failed, mut seen) = (Vec::new(), BTreeSet::new());
    for test in tests {
        let name = test["name"].as_str().unwrap_or("unknown test");
        for result in test["results"].as_array().into_iter().flatten() {
            let gpus = gpus_of(result);
            let has_failed = result["status"].as_str().is_some_and(|status| status.eq_ignore_ascii_case("fail"));
            if has_failed {
                // A test of the software has no GPU.
                let devices = if gpus.is_empty() { vec![String::new()] } else { gpus.clone() };
                failed.extend(devices.into_iter().map(|gpu| Reading::verdict(gpu, true, name)));
            }
            seen.extend(gpus);
        }
    }
    let passed = seen.into_iter().filter(|gpu| !failed.iter().any(|reading| reading.device == *gpu));
    let passed: Vec<Reading> = passed.map(|gpu| Reading::verdict(gpu, false, "")).collect();
    failed.extend(passed);
    Ok(failed)
}

/// The GPUs of a result: a number or a list in text (`0,1`).
fn gpus_of(result: &Value) -> Vec<String> {
    let is_other = result["entity_group"].as_str().is_some_and(|group| group != "GPU");
    let id = ["gpu_id", "gpu_ids", "entity_id"].iter().map(|key| &result[*key]).find(|id| !id.is_null());
    match id {
        Some(Value::Number(gpu)) if !is_other => vec![gpu.to_string()],
        Some(Value::String(list)) if !is_other => {
            list.split(',').map(|gpu| gpu.trim().to_owned()).filter(|gpu| !gpu.is_empty()).collect()
        }
        _ => Vec::new(),
    }
}

/// The JSON object in a text. Tools write messages before it.
fn json_of(text: &str) -> Option<Value> {
    let (start, end) = (text.find('{')?, text.rfind('}')?);
    serde_json::from_str(text.get(start..=end)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(readings: &[Reading]) -> Vec<(&str, f64, &str)> {
        readings.iter().map(|it| (it.device.as_str(), it.value, it.detail.as_str())).collect()
    }

    #[test]
    fn bandwidth_is_read_from_the_matrix() {
        let text = "nvbandwidth Version: v0.8\n{\"nvbandwidth\": {\"testcases\": [{\"name\": \"host_to_device_memcpy_ce\", \
                    \"status\": \"Passed\", \"bandwidth_matrix\": [[\"55.64\", \"2.10\"]]}]}}\n";
        assert_eq!(rows(&parse_bandwidth(text).expect("readable")), [("0", 55.64, ""), ("1", 2.1, "")]);
        assert!(parse_bandwidth("no device").is_err());
    }

    #[test]
    fn row_remappings_and_slow_clocks_are_read() {
        let text = "GPU-a, No, No\nGPU-b, Yes, No\nGPU-c, 0, 1\nGPU-d, [N/A], [N/A]\n";
        let expected = [
            ("0", 0.0, ""),
            ("1", 1.0, "row remapping is pending"),
            ("2", 1.0, "row remapping failed"),
            ("3", 0.0, ""),
        ];
        assert_eq!(rows(&parse_rows(text)), expected);
        let text = "0, Not Active, Not Active\n1, Not Active, Active\n";
        assert_eq!(rows(&parse_power(text)), [("0", 0.0, ""), ("1", 1.0, "power slow-down is active")]);
    }

    #[test]
    fn diagnostics_of_both_formats_are_read() {
        let old = r#"{"DCGM GPU Diagnostic": {"test_categories": [
            {"category": "Deployment", "tests": [{"name": "Denylist", "results": [{"status": "Pass"}]}]},
            {"category": "Integration", "tests": [{"name": "PCIe", "results": [
                {"gpu_ids": "0", "status": "Pass"}, {"gpu_ids": "1", "status": "Fail", "warnings": "slow"}]}]}]}}"#;
        assert_eq!(rows(&parse_diagnostics(old).expect("readable")), [("1", 1.0, "PCIe"), ("0", 0.0, "")]);
        let new = r#"{"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [
            {"name": "memory", "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Fail"},
                {"entity_group": "CPU", "entity_id": 1, "status": "Pass"}]}]}]}}"#;
        assert_eq!(rows(&parse_diagnostics(new).expect("readable")), [("0", 1.0, "memory")]);
        let error = parse_diagnostics("Error: unable to establish a connection").expect_err("no JSON").to_string();
        assert!(error.contains("unable to establish a connection"), "{error}");
    }

    #[test]
    fn a_missing_tool_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let tools = HealthTools::new(folder.path());
        // The name is searched in PATH, too; no machine has this one.
        let error = run(&tools.root, "berth-no-such-tool", &[], TIMEOUT).expect_err("missing");
        assert_eq!(error.to_string(), "berth-no-such-tool was not found: install it to use this check");
    }

    #[cfg(unix)]
    #[test]
    fn the_tools_of_the_system_are_run() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join("usr/bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        for (name, script) in [
            (
                "nvidia-smi",
                "#!/bin/sh\ncase \"$1\" in *remapped*) echo 'GPU-a, No, Yes';; *event*) exit 2;; *) echo '0, Active';; esac\n",
            ),
            ("dcgmi", "#!/bin/sh\necho 'GPUs are in use' >&2\nexit 1\n"),
        ] {
            let path = bin.join(name);
            std::fs::write(&path, script).expect("a script");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
        }
        let tools = HealthTools::new(folder.path());
        assert_eq!(rows(&tools.remapped_rows().expect("runs")), [("0", 1.0, "row remapping failed")]);
        assert_eq!(rows(&tools.power_slowdown().expect("runs")), [("0", 1.0, "power slow-down is active")]);
        let error = tools.diagnostics(1).expect_err("fails").to_string();
        assert!(error.starts_with("dcgmi failed with ") && error.ends_with(": GPUs are in use"), "{error}");
    }
}
