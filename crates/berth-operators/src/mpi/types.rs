//! The spec of an MPIJob, as the operator reads it, with the MPI operator's defaults.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::Deserialize;
use serde_json::Value;

use crate::training::types::{CleanPodPolicy, RestartPolicy, RunPolicy, lenient};

/// Where the keys for SSH are mounted, unless the job says otherwise.
pub const SSH_PATH: &str = "/root/.ssh";
/// Values of `runPolicy.managedBy` of jobs that this operator reconciles. The second is of version
/// v1, which the training operator has.
pub const CONTROLLER_NAMES: [&str; 2] = ["kubeflow.org/mpi-operator", "kubeflow.org/training-operator"];

/// An MPI library, by the names of its variables and the format of its host file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Implementation {
    /// Open MPI.
    #[default]
    OpenMPI,
    /// Intel MPI.
    Intel,
    /// MPICH.
    MPICH,
}

/// Equal pods of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Number of pods.
    pub count: i32,
    /// What happens when one fails.
    pub restart_policy: RestartPolicy,
    /// The pod.
    pub template: PodTemplateSpec,
}

/// The spec of a job, with defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// How the job runs and ends.
    pub run_policy: RunPolicy,
    /// Which worker pods remain after the end.
    pub clean_pod_policy: CleanPodPolicy,
    /// The pod that runs `mpirun`.
    pub launcher: Replica,
    /// The pods that run the processes.
    pub worker: Option<Replica>,
    /// Processes per worker.
    pub slots_per_worker: i32,
    /// True: the launcher runs processes, too.
    pub launcher_is_worker: bool,
    /// True: the launcher is created when all workers are ready.
    pub waits_for_workers: bool,
    /// Where the keys for SSH are mounted.
    pub ssh_path: String,
    /// The MPI library.
    pub implementation: Implementation,
    /// Name of the container that runs MPI. Absent: the first.
    pub main_container: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Written {
    #[serde(deserialize_with = "lenient")]
    run_policy: RunPolicy,
    clean_pod_policy: Option<CleanPodPolicy>,
    #[serde(deserialize_with = "lenient")]
    mpi_replica_specs: BTreeMap<String, Option<WrittenReplica>>,
    slots_per_worker: Option<i32>,
    run_launcher_as_worker: Option<bool>,
    ssh_auth_mount_path: Option<String>,
    launcher_creation_policy: Option<String>,
    mpi_implementation: Option<Implementation>,
    main_container: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenReplica {
    replicas: Option<i32>,
    restart_policy: Option<String>,
    #[serde(deserialize_with = "berth_api::json::field")]
    template: PodTemplateSpec,
}

impl WrittenReplica {
    fn complete(self, count: i32, policy: RestartPolicy) -> Replica {
        let restart_policy = self.restart_policy.as_deref().and_then(RestartPolicy::named);
        Replica {
            count: self.replicas.unwrap_or(count),
            restart_policy: restart_policy.unwrap_or(policy),
            template: self.template,
        }
    }
}

impl Spec {
    /// Reads the spec of a valid job ([`super::validate`]).
    ///
    /// # Errors
    /// A field has another type, or there is no launcher.
    pub fn read(spec: &Value) -> Result<Self, String> {
        let mut written = Written::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
        let launcher = written.mpi_replica_specs.remove("Launcher").flatten();
        let launcher = launcher.ok_or("spec.mpiReplicaSpecs[Launcher]: required")?;
        let worker = written.mpi_replica_specs.remove("Worker").flatten();
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        let clean_pod_policy = written.run_policy.clean_pod_policy.or(written.clean_pod_policy);
        Ok(Self {
            run_policy: written.run_policy,
            clean_pod_policy: clean_pod_policy.unwrap_or_default(),
            launcher: launcher.complete(1, RestartPolicy::OnFailure),
            worker: worker.map(|worker| worker.complete(0, RestartPolicy::Never)),
            slots_per_worker: written.slots_per_worker.unwrap_or(1),
            launcher_is_worker: written.run_launcher_as_worker == Some(true),
            waits_for_workers: written.launcher_creation_policy.as_deref() == Some("WaitForWorkersReady"),
            ssh_path: text(written.ssh_auth_mount_path).unwrap_or_else(|| SSH_PATH.to_owned()),
            implementation: written.mpi_implementation.unwrap_or_default(),
            main_container: text(written.main_container),
        })
    }

    /// Number of workers.
    pub fn workers(&self) -> i32 {
        self.worker.as_ref().map_or(0, |worker| worker.count)
    }

    /// True: no pods.
    pub fn is_suspended(&self) -> bool {
        self.run_policy.suspend == Some(true)
    }
}
