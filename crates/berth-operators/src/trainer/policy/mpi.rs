//! MPI: SSH keys for the pods, and the file with their hosts for the launcher (OpenMPI).

use serde_json::{Value, json};

use crate::trainer::constants::{LAUNCHER, NODE};
use crate::trainer::json::{container_mut, job_mut, pod_mut, set_env, upsert, variable};
use crate::trainer::resolve::Resolved;
use crate::trainer::resources;
use crate::trainer::types::{MpiPolicy, TrainJobSpec};

/// Key and file name of the list of hosts.
pub const HOSTFILE: &str = "hostfile";
const HOSTFILE_FOLDER: &str = "/etc/mpi";
const HOSTFILE_VOLUME: &str = "mpi-hostfile";
const KEYS_VOLUME: &str = "mpi-ssh-auth";
/// Folder of the keys, unless the runtime names another.
const KEYS_FOLDER: &str = "/root/.ssh";
const PRIVATE_KEY: &str = "ssh-privatekey";
const PUBLIC_KEY: &str = "ssh-publickey";

const HOSTFILE_VARIABLE: &str = "OMPI_MCA_orte_default_hostfile";
const FULL_NAMES: &str = "OMPI_MCA_orte_keep_fqdn_hostnames";
const SLOTS: &str = "OMPI_MCA_orte_set_default_slots";
const SSH_OPTIONS: &str = "OMPI_MCA_plm_rsh_args";

/// Variables that a job must not set.
pub(super) const RESERVED: [&str; 4] = [HOSTFILE_VARIABLE, FULL_NAMES, SLOTS, SSH_OPTIONS];

/// Name of the Secret with the SSH keys of a job.
pub fn secret_name(job: &str) -> String {
    format!("{job}-mpi-ssh-auth")
}

/// Name of the ConfigMap with the hosts of a job.
pub fn hostfile_name(job: &str) -> String {
    format!("{job}-mpi-hostfile")
}

/// Keys of the Secret: the private and the public key.
pub fn ssh_secret_keys() -> [&'static str; 2] {
    [PRIVATE_KEY, PUBLIC_KEY]
}

/// Adds volumes and environment. Returns the list of hosts.
pub(super) fn enforce(name: &str, job: &TrainJobSpec, policy: &MpiPolicy, resolved: &mut Resolved) -> String {
    let slots = slots(job, policy, resolved);
    let folder = policy.ssh_auth_mount_path.as_deref().unwrap_or(KEYS_FOLDER);
    for part in [NODE, LAUNCHER] {
        let Some(pod) = job_mut(&mut resolved.spec, part).map(pod_mut) else { continue };
        upsert(pod, "volumes", "name", keys_volume(name));
        if part == LAUNCHER {
            upsert(pod, "volumes", "name", hostfile_volume(name));
        }
        let Some(container) = container_mut(pod, NODE) else { continue };
        upsert(container, "volumeMounts", "mountPath", json!({"name": KEYS_VOLUME, "mountPath": folder}));
        if part == LAUNCHER {
            let mount = json!({"name": HOSTFILE_VOLUME, "mountPath": HOSTFILE_FOLDER});
            upsert(container, "volumeMounts", "mountPath", mount);
            let variables = [
                variable(HOSTFILE_VARIABLE, format!("{HOSTFILE_FOLDER}/{HOSTFILE}")),
                variable(FULL_NAMES, "true"),
                variable(SLOTS, slots),
                // A node's name may not resolve at once.
                variable(SSH_OPTIONS, "-o ConnectionAttempts=10"),
            ];
            set_env(container, variables);
        }
    }
    hosts(name, policy, resolved, slots)
}

/// Processes per node: those of the job or of the runtime, or one per GPU.
fn slots(job: &TrainJobSpec, policy: &MpiPolicy, resolved: &Resolved) -> i64 {
    let of_runtime = i64::from(policy.num_proc_per_node.unwrap_or(1));
    match job.processes() {
        Some(processes) => processes.into(),
        None if of_runtime == 1 => resources::gpus(&resolved.resources(job)).max(1),
        None => of_runtime,
    }
}

fn hosts(name: &str, policy: &MpiPolicy, resolved: &Resolved, slots: i64) -> String {
    let subdomain = resolved.subdomain(name);
    let is_host = |part: &str| part == NODE || (policy.run_launcher_as_node && part == LAUNCHER);
    let mut hosts = String::new();
    for part in resolved.parts.iter().filter(|part| is_host(&part.name)) {
        for replica in 0..part.replicas {
            for pod in 0..part.count {
                hosts.push_str(&format!("{name}-{}-{replica}-{pod}.{subdomain} slots={slots}\n", part.name));
            }
        }
    }
    hosts
}

fn keys_volume(job: &str) -> Value {
    let item = |key: &str, path: &str, mode: u32| json!({"key": key, "path": path, "mode": mode});
    json!({"name": KEYS_VOLUME, "secret": {"secretName": secret_name(job), "defaultMode": 0o400, "items": [
        item(PRIVATE_KEY, "id_rsa", 0o640),
        item(PUBLIC_KEY, "id_rsa.pub", 0o644),
        item(PUBLIC_KEY, "authorized_keys", 0o644),
    ]}})
}

fn hostfile_volume(job: &str) -> Value {
    let item = json!({"key": HOSTFILE, "path": HOSTFILE, "mode": 0o444});
    json!({"name": HOSTFILE_VOLUME, "configMap": {"name": hostfile_name(job), "items": [item]}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::json::pod;
    use crate::trainer::policy::enforce as enforce_policy;
    use crate::trainer::resolve::resolve;
    use crate::trainer::samples::{job, mpi};

    fn made(spec: Value, launcher_is_node: bool) -> (Resolved, String) {
        let job = job(spec);
        let mut resolved = resolve(&job, &mpi(launcher_is_node)).expect("a resolved runtime");
        let extras = enforce_policy("train", &job, &mut resolved).expect("a policy");
        (resolved, extras.hostfile.expect("a hostfile"))
    }

    #[test]
    fn hosts_are_the_nodes_and_the_launcher_if_it_is_one() {
        let spec = json!({"trainer": {"numNodes": 2, "numProcPerNode": 4}});
        let (_, hosts) = made(spec.clone(), false);
        assert_eq!(hosts, "train-node-0-0.train slots=4\ntrain-node-0-1.train slots=4\n");
        let (_, hosts) = made(spec, true);
        assert_eq!(hosts, "train-node-0-0.train slots=4\ntrain-launcher-0-0.train slots=4\n");
        let gpus = json!({"trainer": {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}});
        assert_eq!(made(gpus, false).1, "train-node-0-0.train slots=8\n");
    }

    #[test]
    fn all_pods_get_the_keys_and_the_launcher_gets_the_hosts() {
        let (resolved, _) = made(json!({}), false);
        let (node, launcher) = (pod(&resolved.spec["replicatedJobs"][0]), pod(&resolved.spec["replicatedJobs"][1]));
        assert_eq!(node["volumes"].as_array().map(Vec::len), Some(1));
        assert_eq!(node["volumes"][0]["secret"]["secretName"], "train-mpi-ssh-auth");
        assert_eq!(node["containers"][0]["volumeMounts"], json!([{"name": "mpi-ssh-auth", "mountPath": "/root/.ssh"}]));
        assert!(node["containers"][0]["env"].is_null());
        assert_eq!(launcher["volumes"][1]["configMap"]["name"], "train-mpi-hostfile");
        assert_eq!(
            launcher["containers"][0]["env"],
            json!([{"name": "OMPI_MCA_orte_default_hostfile", "value": "/etc/mpi/hostfile"},
                {"name": "OMPI_MCA_orte_keep_fqdn_hostnames", "value": "true"},
                {"name": "OMPI_MCA_orte_set_default_slots", "value": "1"},
                {"name": "OMPI_MCA_plm_rsh_args", "value": "-o ConnectionAttempts=10"}])
        );
    }
}
