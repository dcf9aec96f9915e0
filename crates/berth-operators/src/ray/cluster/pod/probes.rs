//! Probes of a Ray node. The dashboard agent reports the health of its node, and the dashboard
//! reports the health of the head's GCS.

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::NodeType;
use super::start::Params;
use crate::ray::cluster::facts::{Creator, Facts};
use crate::ray::constants::{AGENT_PORT, DASHBOARD_PORT, SERVE_PORT, SERVE_PORT_NAME};
use crate::ray::version;

/// The first version of Ray whose agent reports the health of the whole node at one address.
const UNIFIED: (u64, u64, u64) = (2, 53, 0);

/// Adds the probes that the container does not have.
pub fn add(facts: &Facts<'_>, node_type: NodeType, params: &Params, ray: &mut Container) {
    let is_unified = version::parse(&facts.spec.ray_version).is_some_and(|version| version >= UNIFIED);
    let port = |option: &str, default: i32| params.get(option).and_then(|text| text.parse().ok()).unwrap_or(default);
    let agent = port("dashboard-agent-listen-port", AGENT_PORT);
    let mut commands = vec![answers(agent, "api/local_raylet_healthz", 2)];
    if node_type == NodeType::Head {
        commands.push(answers(port("dashboard-port", DASHBOARD_PORT), "api/gcs_healthz", 10));
    }
    let timeout = if node_type == NodeType::Head { 5 } else { 2 };
    let probe = |initial_delay: i32, failure_threshold: i32| {
        let probe = Probe {
            initial_delay_seconds: Some(initial_delay),
            timeout_seconds: Some(timeout),
            period_seconds: Some(5),
            success_threshold: Some(1),
            failure_threshold: Some(failure_threshold),
            ..Probe::default()
        };
        if is_unified {
            let path = Some("/api/healthz".to_owned());
            Probe {
                http_get: Some(HTTPGetAction { path, port: IntOrString::Int(agent), ..HTTPGetAction::default() }),
                ..probe
            }
        } else {
            Probe { exec: Some(exec(&commands)), ..probe }
        }
    };
    let (liveness, mut readiness) = (probe(30, 120), probe(10, 10));
    if facts.creator() == Creator::RayService && node_type == NodeType::Worker {
        // A worker of a RayService gets requests only while its Serve proxy answers.
        let serve = ray.ports.iter().flatten().find(|port| port.name.as_deref() == Some(SERVE_PORT_NAME));
        let serve = serve.map_or(SERVE_PORT, |port| port.container_port);
        commands.push(answers(serve, "-/healthz", 10));
        readiness = Probe { failure_threshold: Some(1), http_get: None, exec: Some(exec(&commands)), ..readiness };
    }
    ray.liveness_probe.get_or_insert(liveness);
    ray.readiness_probe.get_or_insert(readiness);
}

/// A shell command that succeeds if the response at this port and path of the node contains
/// `success`.
fn answers(port: i32, path: &str, timeout_s: u32) -> String {
    format!("wget --tries 1 -T {timeout_s} -q -O- http://localhost:{port}/{path} | grep success")
}

fn exec(commands: &[String]) -> ExecAction {
    ExecAction { command: Some(vec!["bash".to_owned(), "-c".to_owned(), commands.join(" && ")]) }
}
