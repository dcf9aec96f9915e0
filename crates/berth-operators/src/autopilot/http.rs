//! The agents' HTTP API: checks on request, in plain text.
//!
//! One server answers for the nodes of this process. `/status?check=…&host=…` runs checks on the
//! selected nodes and returns their output; the paths `/pciebw`, `/dcgm`, … run one check, and
//! `/invasive` starts the invasive one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_apimachinery::exposition::Exposition;
use berth_apimachinery::percent::decode_component;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use parking_lot::Mutex;

use super::checks::Report;
use super::controller::Agents;
use super::metrics;
use super::probe::{LEVEL_MAX, Probe};

/// Port of the agents' Service.
pub const PORT: u16 = 3333;
/// Checks that run if a request names none.
const CHECKS_DEFAULT: [&str; 4] = ["pciebw", "dcgm", "remapped", "ping"];
/// Response to a request for the invasive check.
const INVASIVE: &str = "Launching invasive health checks. Results will be added to 'autopilot.ibm.com/gpuhealth' and \
                        'autopilot.ibm.com/dcgm.level.3' node labels";
/// Separates the output of nodes.
const RULE: &str = "-------------------------------------";

/// Access to the agents for a server; clones share it. There are no agents before
/// [`super::install`] connects them.
#[derive(Clone, Default)]
pub struct AutopilotApi(Arc<Mutex<Option<Arc<Agents>>>>);

/// Response of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status code.
    pub code: u16,
    /// Plain text.
    pub text: String,
}

impl Response {
    fn ok(text: String) -> Self {
        Self { code: 200, text }
    }

    fn bad(text: String) -> Self {
        Self { code: 400, text }
    }
}

impl AutopilotApi {
    pub(super) fn connect(&self, agents: Arc<Agents>) {
        *self.0.lock() = Some(agents);
    }

    fn agents(&self) -> Option<Arc<Agents>> {
        self.0.lock().clone()
    }

    /// Writes the agents' metrics.
    pub fn write_metrics(&self, exposition: &mut Exposition) {
        if let Some(agents) = self.agents() {
            metrics::write(&agents.results.all(), exposition);
        }
    }

    /// Responds to a GET request.
    pub async fn respond(&self, path: &str, query: &str) -> Response {
        let Some(agents) = self.agents() else {
            return Response { code: 503, text: "the health agents are starting\n".to_owned() };
        };
        let mut request = match Parameters::parse(query) {
            Ok(request) => request,
            Err(problem) => return Response::bad(format!("{problem}\n")),
        };
        match path {
            "/status" => {}
            "/invasive" => return invade(&agents, &request).await,
            "/readinessprobe" => return Response::ok("ok\n".to_owned()),
            "/metrics" => return Response::ok(Exposition::text(|exposition| self.write_metrics(exposition))),
            path => match path.strip_prefix('/').filter(|name| agents.checks.get(name).is_some()) {
                Some(name) => request.checks = vec![name.to_owned()],
                None => return Response { code: 404, text: "404 page not found\n".to_owned() },
            },
        }
        status(&agents, &request).await
    }
}

/// The parameters of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parameters {
    /// Names of checks; empty for the default.
    checks: Vec<String>,
    /// Names of nodes.
    hosts: Vec<String>,
    /// Number of nodes that are checked at once; `None` for all.
    batch: Option<usize>,
    /// Namespace, label key and label value of pods whose nodes are checked.
    job: Option<(String, String, String)>,
    /// Label key and value of nodes.
    node_label: Option<(String, String)>,
    /// Level of DCGM's diagnostics.
    level: u8,
}

impl Parameters {
    fn parse(query: &str) -> Result<Self, String> {
        let mut parameters = Self { level: 1, ..Self::default() };
        let list = |value: &str| -> Vec<String> {
            value.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode_component(value);
            match name {
                "check" => parameters.checks = list(&value),
                // `all` selects every node, like no selection.
                "host" if value == "all" => {}
                "host" => parameters.hosts = list(&value),
                "batch" => {
                    let batch = value.parse().ok().filter(|batch| *batch > 0);
                    parameters.batch = Some(batch.ok_or("batch: expected a number of hosts, 1 or more")?);
                }
                "job" => {
                    let parts = value.split_once(':').and_then(|(namespace, label)| {
                        let (key, value) = label.split_once('=')?;
                        Some((namespace.to_owned(), key.to_owned(), value.to_owned()))
                    });
                    parameters.job = Some(parts.ok_or("job: expected NAMESPACE:KEY=VALUE")?);
                }
                "nodelabel" => {
                    let label = value.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
                    parameters.node_label = Some(label.ok_or("nodelabel: expected KEY=VALUE")?);
                }
                "r" => {
                    let level = value.parse().ok().filter(|level| (1..=LEVEL_MAX).contains(level));
                    parameters.level = level.ok_or("r: expected a level of DCGM's diagnostics, 1 to 4")?;
                }
                // Parameters of other checks are ignored, as upstream.
                _ => {}
            }
        }
        Ok(parameters)
    }

    fn selects_nodes(&self) -> bool {
        !self.hosts.is_empty() || self.job.is_some() || self.node_label.is_some()
    }
}

type Selected = BTreeMap<String, (Arc<Node>, Arc<dyn Probe>)>;

/// The selected nodes with an agent: the union of the selections, or all.
fn selected(agents: &Agents, parameters: &Parameters) -> Selected {
    let mut all = agents.agents();
    if !parameters.selects_nodes() {
        return all;
    }
    let mut names: BTreeSet<String> = parameters.hosts.iter().cloned().collect();
    if let Some((namespace, key, value)) = &parameters.job {
        names.extend(agents.nodes_of_pods(namespace, key, value));
    }
    let has_label = |node: &Node| {
        let label = parameters.node_label.as_ref();
        label.is_some_and(|(key, value)| node.labels().get(key) == Some(value))
    };
    all.retain(|name, (node, _)| names.contains(name) || has_label(node));
    all
}

async fn invade(agents: &Agents, parameters: &Parameters) -> Response {
    for (node, probe) in selected(agents, parameters).values() {
        if let Err(error) = agents.invade(node, probe.as_ref()).await {
            return Response { code: 500, text: format!("node {}: {error}\n", node.name_any()) };
        }
    }
    Response::ok(format!("{INVASIVE}\n"))
}

async fn status(agents: &Agents, parameters: &Parameters) -> Response {
    let names: Vec<&str> = match parameters.checks.as_slice() {
        [] => CHECKS_DEFAULT.to_vec(),
        [one] if one == "all" => berth_api::berth::AUTOPILOT_CHECKS.to_vec(),
        list => list.iter().map(String::as_str).collect(),
    };
    if let Some(unknown) = names.iter().find(|name| agents.checks.get(name).is_none()) {
        return Response::ok(format!("check not supported: {unknown}\n"));
    }
    let started = agents.now();
    let nodes = selected(agents, parameters);
    let mut text = match parameters.selects_nodes() {
        false => "Checking status on all nodes\n\n".to_owned(),
        true => {
            let names: Vec<&str> = nodes.keys().map(String::as_str).collect();
            format!("Checking status on nodes {}\n\n", names.join(","))
        }
    };
    let mut summary = Vec::new();
    let all: Vec<_> = nodes.values().collect();
    for batch in all.chunks(parameters.batch.unwrap_or(usize::MAX)) {
        let runs = batch.iter().map(|(node, probe)| agents.on_request(node, probe.as_ref(), &names, parameters.level));
        for ((node, _), reports) in batch.iter().zip(join_all(runs).await) {
            text.push_str(&of_node(node, &names, &reports));
            summary.push(format!("'{}': [{}]", node.name_any(), statuses(&reports, "'").join(", ")));
        }
    }
    text.push_str(&format!("Node Summary:\n\n{{{}}}\n\n", summary.join(",\n ")));
    text.push_str(&format!("runtime: {:.3} sec\n", seconds(started, agents.now())));
    Response::ok(text)
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// The output of one node.
fn of_node(node: &Node, names: &[&str], reports: &[Report]) -> String {
    let name = node.name_any();
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let address = addresses.into_iter().flatten().find(|address| address.type_ == "InternalIP");
    let address = address.map_or(name.as_str(), |address| address.address.as_str());
    let checks = names.join(",");
    let mut text = format!(
        "Autopilot Endpoint: {address}\nNode: {name}\nurl(s): http://{address}:{PORT}/status?host={name}&check={checks}\n\
         Response:\nChecking system status of host {name} (localhost)\n\n"
    );
    for report in reports {
        text.push_str(&of_check(&name, report));
    }
    text.push_str(&format!("Node Status: {}\n{RULE}\n\n", statuses(reports, "").join(", ")));
    text
}

/// The output of one check.
fn of_check(node: &str, report: &Report) -> String {
    let title = report.check.to_uppercase();
    let measured = match &report.result {
        Ok(measured) => measured,
        Err(why) => return format!("[[ {title} ]] SKIP: {why}\n\n"),
    };
    let verdict = if report.has_failed() { "FAIL" } else { "SUCCESS" };
    let values: Vec<String> = measured.iter().map(|(measurement, _)| measurement.value.to_string()).collect();
    let mut text = format!("[[ {title} ]] {verdict}\nHost  {node}\n{}\n", values.join(" "));
    for reason in report.reasons() {
        text.push_str(&format!("{reason}\n"));
    }
    text.push('\n');
    text
}

/// The failures of a node, or `Ok`.
fn statuses(reports: &[Report], quote: &str) -> Vec<String> {
    let failed: Vec<String> = reports
        .iter()
        .filter(|report| report.has_failed())
        .map(|report| format!("{quote}{}{quote}", report.failure))
        .collect();
    if failed.is_empty() { vec![format!("{quote}Ok{quote}")] } else { failed }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::probe::{Measurement, Unavailable};
    use super::*;

    #[test]
    fn parameters_select_checks_and_nodes() {
        let parsed = Parameters::parse("check=pciebw,dcgm&host=n1,n2&batch=4&job=blue:a%2Fb=c&nodelabel=k=v&r=3");
        let expected = Parameters {
            checks: vec!["pciebw".into(), "dcgm".into()],
            hosts: vec!["n1".into(), "n2".into()],
            batch: Some(4),
            job: Some(("blue".into(), "a/b".into(), "c".into())),
            node_label: Some(("k".into(), "v".into())),
            level: 3,
        };
        assert_eq!(parsed, Ok(expected));
        assert!(!Parameters::parse("check=all&host=all").expect("valid").selects_nodes());
        for (query, problem) in
            [("batch=0", "batch: "), ("job=blue", "job: "), ("nodelabel=k", "nodelabel: "), ("r=5", "r: ")]
        {
            let error = Parameters::parse(query).expect_err(query);
            assert!(error.starts_with(problem), "{error}");
        }
    }

    #[test]
    fn the_output_names_the_failed_check_and_its_values() {
        let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]}});
        let node: Node = serde_json::from_value(node).expect("a node");
        let slow = (Measurement::new(1, 2.1, ""), Some("GPU 1 has 2.1 GB/s, expected at least 4".to_owned()));
        let reports = [
            Report {
                check: "pciebw",
                metric: "pciebw",
                failure: "PCIE Failed",
                result: Ok(vec![(Measurement::new(0, 24.5, ""), None), slow]),
            },
            Report {
                check: "dcgm",
                metric: "dcgm",
                failure: "DCGM Failed",
                result: Err(Unavailable("dcgmi was not found".into())),
            },
        ];
        let expected = "Autopilot Endpoint: 10.0.0.7\nNode: n1\n\
                        url(s): http://10.0.0.7:3333/status?host=n1&check=pciebw,dcgm\nResponse:\n\
                        Checking system status of host n1 (localhost)\n\n\
                        [[ PCIEBW ]] FAIL\nHost  n1\n24.5 2.1\npciebw: GPU 1 has 2.1 GB/s, expected at least 4\n\n\
                        [[ DCGM ]] SKIP: dcgmi was not found\n\nNode Status: PCIE Failed\n\
                        -------------------------------------\n\n";
        assert_eq!(of_node(&node, &["pciebw", "dcgm"], &reports), expected);
        assert_eq!(statuses(&reports[1..], "'"), ["'Ok'"]);
    }
}
