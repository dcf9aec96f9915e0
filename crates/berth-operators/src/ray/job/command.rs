//! The shell command with which a submitter hands a RayJob's program to Ray.
//!
//! A submitter Job may retry the command. The command therefore first asks Ray whether the program
//! is known, submits it only if it is not, and then follows its log. A sidecar runs once, and
//! follows the log of its own submission.

use k8s_openapi::api::core::v1::Container;
use serde_json::Value;

use super::types::{RayJobSpec, RayJobStatus, SubmissionMode};
use crate::ray::constants::{DASHBOARD_PORT, DASHBOARD_PORT_NAME};
use crate::ray::types::RayClusterSpec;
use crate::ray::yaml;

/// Seconds that the dashboard gets to answer the health check.
const HEALTH_TIMEOUT_S: u32 = 10;
/// Oldest version of Ray whose `ray job submit` accepts metadata.
const METADATA_SINCE: (u64, u64) = (2, 6);

/// Why the command cannot be built.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum CommandError {
    /// The environment of the program is not YAML.
    #[error("spec.runtimeEnvYAML is not a YAML document: {0}")]
    RuntimeEnv(String),
    /// `rayVersion` of the cluster is not a version.
    #[error("spec.rayClusterSpec.rayVersion {0:?} is not a version such as 2.53.0")]
    Version(String),
    /// The version of Ray does not accept metadata.
    #[error("spec.metadata needs Ray 2.6.0 or later, and spec.rayClusterSpec.rayVersion is {0}")]
    TooOld(String),
}

/// The script of a RayJob's submitter.
///
/// # Errors
/// See [`CommandError`].
pub fn script(spec: &RayJobSpec, status: &RayJobStatus, cluster: &RayClusterSpec) -> Result<String, CommandError> {
    let is_sidecar = spec.submission_mode == SubmissionMode::SidecarMode;
    let address = if is_sidecar { local_address(cluster) } else { url(&status.dashboard_url) };
    let id = &status.job_id;
    let submission = submission(spec, &address, id, !is_sidecar)?;
    let wait = wait_for_dashboard(&address);
    if is_sidecar {
        return Ok(format!("{wait} ; {submission} ;"));
    }
    let known = format!("ray job status --address {address} {id} >/dev/null 2>&1");
    let follow = format!("ray job logs --address {address} --follow {id}");
    Ok(format!("{wait} ; if ! {known} ; then {submission} ; fi ; {follow}"))
}

/// The `ray job submit` command.
fn submission(spec: &RayJobSpec, address: &str, id: &str, returns_at_once: bool) -> Result<String, CommandError> {
    let mut words = vec!["ray job submit --address".to_owned(), address.to_owned()];
    if returns_at_once {
        words.push("--no-wait".to_owned());
    }
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    if let Some(environment) = runtime_env(spec)? {
        option("--runtime-env-json", quoted(&environment.to_string()));
    }
    if !spec.metadata.is_empty() {
        check_metadata(spec)?;
        option("--metadata-json", quoted(&serde_json::json!(spec.metadata).to_string()));
    }
    if !id.is_empty() {
        option("--submission-id", id.to_owned());
    }
    if spec.entrypoint_num_cpus > 0.0 {
        option("--entrypoint-num-cpus", format!("{:.6}", spec.entrypoint_num_cpus));
    }
    if spec.entrypoint_num_gpus > 0.0 {
        option("--entrypoint-num-gpus", format!("{:.6}", spec.entrypoint_num_gpus));
    }
    if !spec.entrypoint_resources.is_empty() {
        option("--entrypoint-resources", quoted(&spec.entrypoint_resources));
    }
    option("--", spec.entrypoint.trim().to_owned());
    Ok(words.join(" "))
}

/// A shell loop that ends once the dashboard reports that the GCS is healthy.
fn wait_for_dashboard(address: &str) -> String {
    let request = format!("urllib.request.urlopen('{address}/api/gcs_healthz', timeout={HEALTH_TIMEOUT_S})");
    let check = format!("import sys, urllib.request; sys.exit(b'success' not in {request}.read())");
    format!(
        "until python -c \"{check}\" >/dev/null 2>&1 ; \
         do echo \"Waiting for the Ray dashboard at {address}\" ; sleep 2 ; done"
    )
}

/// The environment of the program; `None` if the RayJob sets none.
///
/// # Errors
/// `runtimeEnvYAML` is not YAML.
pub fn runtime_env(spec: &RayJobSpec) -> Result<Option<Value>, CommandError> {
    if spec.runtime_env_yaml.is_empty() {
        return Ok(None);
    }
    yaml::parse(&spec.runtime_env_yaml).map(Some).map_err(CommandError::RuntimeEnv)
}

fn check_metadata(spec: &RayJobSpec) -> Result<(), CommandError> {
    let version = spec.ray_cluster_spec.as_ref().and_then(|cluster| cluster["rayVersion"].as_str());
    let Some(version) = version.filter(|version| !version.is_empty()) else { return Ok(()) };
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']).map(|part| part.parse::<u64>().ok());
    let Some(Some(major)) = numbers.next() else { return Err(CommandError::Version(version.to_owned())) };
    let minor = numbers.next().flatten().unwrap_or(0);
    if (major, minor) < METADATA_SINCE { Err(CommandError::TooOld(version.to_owned())) } else { Ok(()) }
}

/// Address of the dashboard for a container of the head pod.
fn local_address(cluster: &RayClusterSpec) -> String {
    let pod = cluster.head_group_spec.template.spec.as_ref();
    let head = pod.and_then(|pod| pod.containers.first());
    let port = head.map_or(DASHBOARD_PORT, |head| port_of(head, DASHBOARD_PORT_NAME, DASHBOARD_PORT));
    format!("http://127.0.0.1:{port}")
}

/// The port of this name of a container.
pub fn port_of(container: &Container, name: &str, default: i32) -> i32 {
    let ports = container.ports.iter().flatten();
    ports.filter(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port).next().unwrap_or(default)
}

fn url(host: &str) -> String {
    if host.starts_with("http://") { host.to_owned() } else { format!("http://{host}") }
}

/// A word for the shell in double quotes. Variables in it are expanded.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WAIT: &str = "until python -c \"import sys, urllib.request; sys.exit(b'success' not in \
                        urllib.request.urlopen('http://svc:8265/api/gcs_healthz', timeout=10).read())\" >/dev/null \
                        2>&1 ; do echo \"Waiting for the Ray dashboard at http://svc:8265\" ; sleep 2 ; done";

    fn status() -> RayJobStatus {
        RayJobStatus { dashboard_url: "svc:8265".into(), job_id: "demo-x7k2p".into(), ..Default::default() }
    }

    fn check(spec: Value, expected: &str) {
        let spec = RayJobSpec::read(&spec).unwrap();
        let cluster = spec.ray_cluster_spec.as_ref().map(|spec| RayClusterSpec::read(spec).unwrap());
        assert_eq!(script(&spec, &status(), &cluster.unwrap_or_default()).unwrap(), expected);
    }

    #[test]
    fn a_submitter_job_submits_once_and_follows_the_log() {
        check(
            json!({"entrypoint": " python train.py\n"}),
            &format!(
                "{WAIT} ; if ! ray job status --address http://svc:8265 demo-x7k2p >/dev/null 2>&1 ; \
                 then ray job submit --address http://svc:8265 --no-wait --submission-id demo-x7k2p -- python train.py ; \
                 fi ; ray job logs --address http://svc:8265 --follow demo-x7k2p"
            ),
        );
    }

    #[test]
    fn all_options_of_the_program_are_passed_on() {
        let spec = json!({
            "entrypoint": "echo \"a b\"", "runtimeEnvYAML": "pip:\n- jax==1\nenv_vars: {A: 'x\"y'}\n",
            "metadata": {"team": "blue"}, "entrypointNumCpus": 1.5, "entrypointNumGpus": 2,
            "entrypointResources": "{\"TPU\": 4}",
        });
        let options = "--no-wait --runtime-env-json \
                       \"{\\\"env_vars\\\":{\\\"A\\\":\\\"x\\\\\\\"y\\\"},\\\"pip\\\":[\\\"jax==1\\\"]}\" \
                       --metadata-json \"{\\\"team\\\":\\\"blue\\\"}\" --submission-id demo-x7k2p \
                       --entrypoint-num-cpus 1.500000 --entrypoint-num-gpus 2.000000 \
                       --entrypoint-resources \"{\\\"TPU\\\": 4}\" -- echo \"a b\"";
        check(
            spec,
            &format!(
                "{WAIT} ; if ! ray job status --address http://svc:8265 demo-x7k2p >/dev/null 2>&1 ; \
                 then ray job submit --address http://svc:8265 {options} ; \
                 fi ; ray job logs --address http://svc:8265 --follow demo-x7k2p"
            ),
        );
    }

    #[test]
    fn a_sidecar_submits_to_the_dashboard_of_its_own_pod() {
        let ports = json!([{"name": "dashboard", "containerPort": 9000}]);
        let head = json!({"template": {"spec": {"containers": [{"name": "ray-head", "ports": ports}]}}});
        let spec = json!({
            "entrypoint": "true", "submissionMode": "SidecarMode", "rayClusterSpec": {"headGroupSpec": head},
        });
        check(
            spec,
            &format!(
                "{} ; ray job submit --address http://127.0.0.1:9000 --submission-id demo-x7k2p -- true ;",
                WAIT.replace("svc:8265", "127.0.0.1:9000")
            ),
        );
    }

    #[test]
    fn metadata_needs_a_version_of_ray_that_takes_it() {
        let attempt = |version: &str| {
            let cluster = json!({"rayVersion": version});
            let spec = json!({"metadata": {"a": "b"}, "rayClusterSpec": cluster});
            script(&RayJobSpec::read(&spec).unwrap(), &status(), &RayClusterSpec::default()).map(|_| ())
        };
        assert_eq!(attempt("2.6.0"), Ok(()));
        assert_eq!(attempt(""), Ok(()));
        assert_eq!(attempt("2.5.1"), Err(CommandError::TooOld("2.5.1".into())));
        assert_eq!(attempt("nightly"), Err(CommandError::Version("nightly".into())));
    }
}
