//! The objects of an MPIJob: a launcher Job, worker pods, a headless Service that gives all of them
//! names, a ConfigMap with the list of hosts, and a Secret with a key pair for SSH.

use std::collections::BTreeMap;
use std::fmt::Write;

use berth_runtime::owned_by;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, EnvVar, KeyToPath, Pod, PodSpec, PodTemplateSpec, Secret,
    SecretVolumeSource, Service, ServiceSpec, Volume, VolumeMount,
};
use kube::api::ObjectMeta;

use berth_api::frameworks::MPIJob;

use super::keys::Keys;
use super::types::{Implementation, Replica, SSH_PATH, Spec};
use crate::training::gang;
use crate::training::objects::{labels, run_until_deleted};

/// Value of the label of the operator.
pub const OPERATOR: &str = "mpi-operator";
/// Key of the host list in the ConfigMap.
pub const HOST_FILE: &str = "hostfile";
/// Key of the script that prints the running hosts.
pub const DISCOVER_HOSTS: &str = "discover_hosts.sh";
/// Key of the private key in the Secret.
pub const PRIVATE_KEY: &str = "ssh-privatekey";
/// Key of the public key in the Secret.
pub const PUBLIC_KEY: &str = "ssh-publickey";
/// Folder of the host list in the launcher.
const CONFIG_PATH: &str = "/etc/mpi";
/// Option of SSH: workers may start later than the launcher.
const SSH_OPTIONS: &str = "-o ConnectionAttempts=10";

/// A job, its spec, and the scheduler that starts all its pods together.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The job.
    pub job: &'a MPIJob,
    /// Its spec.
    pub spec: &'a Spec,
    /// The gang scheduler.
    pub gang_scheduler: Option<&'a str>,
}

/// Name of the launcher of a job.
pub fn launcher_name(job: &str) -> String {
    format!("{job}-launcher")
}

impl Facts<'_> {
    /// Name of the job and of its Service.
    pub fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    /// Namespace.
    pub fn namespace(&self) -> &str {
        self.job.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Name of the launcher Job.
    pub fn launcher_name(&self) -> String {
        launcher_name(self.name())
    }

    /// Name of the ConfigMap.
    pub fn config_name(&self) -> String {
        format!("{}-config", self.name())
    }

    /// Name of the Secret.
    pub fn secret_name(&self) -> String {
        format!("{}-ssh", self.name())
    }

    /// Name of a worker.
    pub fn worker_name(&self, index: i32) -> String {
        format!("{}-worker-{index}", self.name())
    }

    /// Name of a pod in the DNS.
    fn host(&self, pod: &str) -> String {
        format!("{pod}.{}.{}.svc", self.name(), self.namespace())
    }

    fn metadata(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace().to_owned()),
            labels: Some([("app".to_owned(), self.name().to_owned())].into()),
            owner_references: Some(vec![owned_by(self.job)]),
            ..ObjectMeta::default()
        }
    }

    fn job_labels(&self) -> BTreeMap<String, String> {
        let labels = [(labels::OPERATOR, OPERATOR), (labels::JOB, self.name())];
        labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// The Service that gives launcher and workers their names.
pub fn service(facts: &Facts<'_>) -> Service {
    Service {
        metadata: facts.metadata(facts.name().to_owned()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(facts.job_labels()),
            // A launcher that waits for its own name is not ready.
            publish_not_ready_addresses: Some(facts.spec.launcher_is_worker),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The ConfigMap with the hosts. `running` are the names of running workers, in order.
pub fn config(facts: &Facts<'_>, running: &[String]) -> ConfigMap {
    let launcher = facts.spec.launcher_is_worker.then(|| facts.launcher_name());
    let workers = (0..facts.spec.workers()).map(|index| facts.worker_name(index));
    let mut hosts = String::new();
    for name in launcher.iter().cloned().chain(workers) {
        let (host, slots) = (facts.host(&name), facts.spec.slots_per_worker);
        let line = match facts.spec.implementation {
            Implementation::OpenMPI => format!("{host} slots={slots}"),
            Implementation::Intel | Implementation::MPICH => format!("{host}:{slots}"),
        };
        hosts.push_str(&line);
        hosts.push('\n');
    }
    let mut script = "#!/bin/sh\n".to_owned();
    for name in launcher.iter().chain(running) {
        writeln!(script, "echo {}", facts.host(name)).expect("a string takes any text");
    }
    let data = [(HOST_FILE, hosts), (DISCOVER_HOSTS, script)];
    ConfigMap {
        metadata: facts.metadata(facts.config_name()),
        data: Some(data.into_iter().map(|(key, text)| (key.to_owned(), text)).collect()),
        ..ConfigMap::default()
    }
}

/// The Secret with the key pair.
pub fn secret(facts: &Facts<'_>, keys: Keys) -> Secret {
    let data = [(PRIVATE_KEY, keys.private), (PUBLIC_KEY, keys.public)];
    Secret {
        metadata: facts.metadata(facts.secret_name()),
        type_: Some("kubernetes.io/ssh-auth".to_owned()),
        data: Some(data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect()),
        ..Secret::default()
    }
}

/// The worker pod with this index.
pub fn worker(facts: &Facts<'_>, replica: &Replica, index: i32) -> Pod {
    let name = facts.worker_name(index);
    let (mut metadata, mut spec) = parts(facts, replica, "worker", &name);
    // Pods of a topology have different indexes, so a launcher that is a worker has the first.
    let padded = if facts.spec.launcher_is_worker { index + 1 } else { index };
    metadata.labels.get_or_insert_default().insert(labels::INDEX.to_owned(), padded.to_string());
    // Some MPI libraries reach the launcher by its host name.
    let search = format!("{}.{}.svc.cluster.local", facts.name(), facts.namespace());
    spec.dns_config.get_or_insert_default().searches.get_or_insert_default().push(search);
    spec.restart_policy = Some(replica.restart_policy.of_pods().to_owned());
    if let Some(container) = main_container(facts, &mut spec) {
        let is_empty = |words: &Option<Vec<String>>| words.as_ref().is_none_or(Vec::is_empty);
        if is_empty(&container.command) && is_empty(&container.args) {
            container.command = Some(vec!["/usr/sbin/sshd".to_owned(), "-De".to_owned()]);
        }
        set(container, "K_MPI_JOB_ROLE", "worker");
    }
    mount_keys(facts, &mut spec);
    run_until_deleted(&mut metadata.annotations);
    metadata.name = Some(name);
    metadata.namespace = Some(facts.namespace().to_owned());
    metadata.owner_references = Some(vec![owned_by(facts.job)]);
    Pod { metadata, spec: Some(spec), status: None }
}

/// The launcher Job.
pub fn launcher(facts: &Facts<'_>) -> Job {
    let policy = &facts.spec.run_policy;
    Job {
        metadata: facts.metadata(facts.launcher_name()),
        spec: Some(JobSpec {
            ttl_seconds_after_finished: policy.ttl_seconds_after_finished,
            active_deadline_seconds: policy.active_deadline_seconds,
            backoff_limit: policy.backoff_limit,
            template: launcher_template(facts),
            pod_replacement_policy: Some("Failed".to_owned()),
            suspend: facts.spec.is_suspended().then_some(true),
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// The pod template of the launcher Job.
pub fn launcher_template(facts: &Facts<'_>) -> PodTemplateSpec {
    let replica = &facts.spec.launcher;
    let (mut metadata, mut spec) = parts(facts, replica, "launcher", &facts.launcher_name());
    if facts.spec.launcher_is_worker {
        metadata.labels.get_or_insert_default().insert(labels::INDEX.to_owned(), "0".to_owned());
    }
    spec.restart_policy = Some(replica.restart_policy.of_pods().to_owned());
    if let Some(container) = main_container(facts, &mut spec) {
        set(container, "K_MPI_JOB_ROLE", "launcher");
        set_hosts(facts, container);
        if !facts.spec.launcher_is_worker {
            // A launcher without processes uses no GPU, even if its image asks for all.
            set(container, "NVIDIA_VISIBLE_DEVICES", "");
            set(container, "NVIDIA_DRIVER_CAPABILITIES", "");
        }
    }
    mount_keys(facts, &mut spec);
    mount_hosts(facts, &mut spec);
    PodTemplateSpec { metadata: Some(metadata), spec: Some(spec) }
}

/// Metadata and spec of a pod with this role and host name, from the template.
fn parts(facts: &Facts<'_>, replica: &Replica, role: &str, host: &str) -> (ObjectMeta, PodSpec) {
    let template = replica.template.clone();
    let given = template.metadata.unwrap_or_default();
    let mut labels = given.labels.unwrap_or_default();
    labels.extend(facts.job_labels());
    labels.insert(labels::ROLE.to_owned(), role.to_owned());
    let mut spec = template.spec.unwrap_or_default();
    spec.hostname = Some(host.to_owned());
    spec.subdomain = Some(facts.name().to_owned());
    if spec.host_network == Some(true) {
        spec.dns_policy = Some("ClusterFirstWithHostNet".to_owned());
    }
    if let Some(scheduler) = facts.gang_scheduler {
        spec.scheduler_name = Some(scheduler.to_owned());
        gang::join(facts.name(), scheduler, &mut labels, &mut spec);
    }
    (ObjectMeta { labels: Some(labels), annotations: given.annotations, ..ObjectMeta::default() }, spec)
}

/// The container that runs MPI: the one that the job names, or the first.
fn main_container<'a>(facts: &Facts<'_>, spec: &'a mut PodSpec) -> Option<&'a mut Container> {
    let named = spec.containers.iter().position(|it| Some(&it.name) == facts.spec.main_container.as_ref());
    spec.containers.get_mut(named.unwrap_or(0))
}

fn set(container: &mut Container, name: &str, value: &str) {
    let value = Some(value.to_owned()).filter(|value| !value.is_empty());
    container.env.get_or_insert_default().push(EnvVar { name: name.to_owned(), value, value_from: None });
}

/// The variables by which the MPI library finds the hosts.
fn set_hosts(facts: &Facts<'_>, container: &mut Container) {
    let (file, slots) = (format!("{CONFIG_PATH}/{HOST_FILE}"), facts.spec.slots_per_worker.to_string());
    match facts.spec.implementation {
        Implementation::OpenMPI => {
            // Hosts are reached by their names in the Service.
            set(container, "OMPI_MCA_orte_keep_fqdn_hostnames", "true");
            set(container, "OMPI_MCA_orte_default_hostfile", &file);
            set(container, "OMPI_MCA_plm_rsh_args", SSH_OPTIONS);
            set(container, "OMPI_MCA_orte_set_default_slots", &slots);
        }
        Implementation::Intel => {
            set(container, "I_MPI_HYDRA_HOST_FILE", &file);
            set(container, "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", SSH_OPTIONS);
            set(container, "I_MPI_PERHOST", &slots);
        }
        Implementation::MPICH => {
            set(container, "HYDRA_HOST_FILE", &file);
            set(container, "HYDRA_LAUNCH_EXTRA_ARGS", SSH_OPTIONS);
        }
    }
}

fn item(key: &str, path: &str, mode: Option<i32>) -> KeyToPath {
    KeyToPath { key: key.to_owned(), path: path.to_owned(), mode }
}

fn mount(facts: &Facts<'_>, spec: &mut PodSpec, volume: Volume, path: &str) {
    let mount = VolumeMount { name: volume.name.clone(), mount_path: path.to_owned(), ..VolumeMount::default() };
    spec.volumes.get_or_insert_default().push(volume);
    if let Some(container) = main_container(facts, spec) {
        container.volume_mounts.get_or_insert_default().push(mount);
    }
}

fn mount_keys(facts: &Facts<'_>, spec: &mut PodSpec) {
    let items = [
        item(PRIVATE_KEY, "id_rsa", None),
        item(PUBLIC_KEY, "id_rsa.pub", None),
        item(PUBLIC_KEY, "authorized_keys", None),
    ];
    let source = SecretVolumeSource {
        // SSH rejects keys of root that others can read.
        default_mode: (facts.spec.ssh_path == SSH_PATH).then_some(0o600),
        secret_name: Some(facts.secret_name()),
        items: Some(items.to_vec()),
        ..SecretVolumeSource::default()
    };
    let volume = Volume { name: "ssh-auth".to_owned(), secret: Some(source), ..Volume::default() };
    mount(facts, spec, volume, &facts.spec.ssh_path);
}

fn mount_hosts(facts: &Facts<'_>, spec: &mut PodSpec) {
    let items = [item(HOST_FILE, HOST_FILE, Some(0o444)), item(DISCOVER_HOSTS, DISCOVER_HOSTS, Some(0o555))];
    let source = ConfigMapVolumeSource {
        name: facts.config_name(),
        items: Some(items.to_vec()),
        ..ConfigMapVolumeSource::default()
    };
    let volume = Volume { name: "mpi-job-config".to_owned(), config_map: Some(source), ..Volume::default() };
    mount(facts, spec, volume, CONFIG_PATH);
}

/// The launcher Job with the scheduling fields of the current template, and no longer suspended.
/// Admission may have changed them while the Job was suspended.
pub fn resumed(facts: &Facts<'_>, launcher: &Job) -> Job {
    let wanted = launcher_template(facts);
    let mut resumed = launcher.clone();
    let Some(job) = &mut resumed.spec else { return resumed };
    job.suspend = Some(false);
    let metadata = job.template.metadata.get_or_insert_default();
    let given = wanted.metadata.unwrap_or_default();
    metadata.labels.get_or_insert_default().extend(given.labels.unwrap_or_default());
    if let Some(annotations) = given.annotations {
        metadata.annotations.get_or_insert_default().extend(annotations);
    }
    if let (Some(spec), Some(given)) = (&mut job.template.spec, wanted.spec) {
        spec.node_selector = given.node_selector;
        spec.tolerations = given.tolerations;
        spec.scheduling_gates = given.scheduling_gates;
    }
    resumed
}

/// True if a template sets a restart policy, which the replica spec overrides.
pub fn sets_restart_policy(spec: &Spec) -> bool {
    let pod = spec.launcher.template.spec.as_ref();
    pod.and_then(|pod| pod.restart_policy.as_deref()).is_some_and(|policy| !policy.is_empty())
}
