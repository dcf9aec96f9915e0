//! The environment variables by which the pods of a job find each other, per library.
//!
//! They are appended, so that they win over variables of the same name in the template.

mod jax;
mod paddle;
mod pytorch;
mod tensorflow;
mod xgboost;

use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec};

use super::framework::Library;
use super::types::{Job, Replica};

/// Adds the environment of the pod of this replica type and index, and what else its library needs.
///
/// # Errors
/// The templates lack a container or port that the others need.
pub fn complete(job: &Job<'_>, replica: &Replica, index: i32, pod: &mut PodSpec) -> Result<(), String> {
    match job.framework.library {
        Library::PyTorch => pytorch::complete(job, replica, index, pod),
        Library::TensorFlow => tensorflow::complete(job, replica, index, pod),
        Library::XGBoost => xgboost::complete(job, replica, index, pod),
        Library::Paddle => paddle::complete(job, replica, index, pod),
        Library::Jax => jax::complete(job, index, pod),
    }
}

/// Appends variables to a container.
fn add<N: Into<String>>(container: &mut Container, variables: impl IntoIterator<Item = (N, String)>) {
    let env = container.env.get_or_insert_default();
    env.extend(variables.into_iter().map(|(name, value)| EnvVar {
        name: name.into(),
        value: Some(value),
        value_from: None,
    }));
}

/// Number of the port of the container that trains, in pods of this type.
fn port(job: &Job<'_>, type_: &str) -> Result<i32, String> {
    let framework = job.framework;
    let port = job.spec.replica(type_).and_then(|replica| replica.port(framework.container, framework.port_name));
    port.ok_or_else(|| {
        format!(
            "spec.{}[{type_}]: no container {:?} with a port {:?}",
            framework.specs, framework.container, framework.port_name
        )
    })
}

/// Python writes its output at once, not in blocks.
fn unbuffered() -> (&'static str, String) {
    ("PYTHONUNBUFFERED", "1".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::api::ObjectMeta;
    use serde_json::{Value, json};

    use super::*;
    use crate::training::framework::{Framework, JAX, PADDLE, PYTORCH, TENSORFLOW, XGBOOST};
    use crate::training::types::Spec;

    /// The environment of a pod: variables with a value, as the container sees them.
    fn environment(
        framework: &'static Framework,
        mut spec: Value,
        replicas: &[(&str, i32)],
        (type_, index): (&str, i32),
    ) -> Result<BTreeMap<String, String>, String> {
        let pods = replicas.iter().map(|(type_, count)| {
            let containers = json!([{"name": framework.container}]);
            ((*type_).to_owned(), json!({"replicas": count, "template": {"spec": {"containers": containers}}}))
        });
        spec[framework.specs] = Value::Object(pods.collect());
        let spec = Spec::read(framework, &spec).expect("a spec");
        let metadata =
            ObjectMeta { name: Some("train".into()), namespace: Some("team".into()), ..ObjectMeta::default() };
        let job = Job { framework, metadata: &metadata, spec: &spec };
        let replica = spec.replica(type_).expect("a replica");
        let mut pod = replica.template.spec.clone().expect("a pod");
        complete(&job, replica, index, &mut pod)?;
        let env = pod.containers.remove(0).env.unwrap_or_default();
        Ok(env.into_iter().filter_map(|variable| Some((variable.name, variable.value?))).collect())
    }

    fn check(seen: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
        let seen: Vec<(&str, &str)> = seen.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn pods_of_a_pytorch_job_know_the_master_and_their_rank() {
        let replicas = [("Master", 1), ("Worker", 2)];
        let spec = json!({"nprocPerNode": "4"});
        let worker = environment(&PYTORCH, spec.clone(), &replicas, ("Worker", 1)).expect("complete");
        let expected = [
            ("MASTER_ADDR", "train-master-0"),
            ("MASTER_PORT", "23456"),
            ("PET_MASTER_ADDR", "train-master-0"),
            ("PET_MASTER_PORT", "23456"),
            ("PET_NNODES", "3"),
            ("PET_NODE_RANK", "2"),
            ("PET_NPROC_PER_NODE", "4"),
            ("PYTHONUNBUFFERED", "1"),
            ("RANK", "2"),
            ("WORLD_SIZE", "12"),
        ];
        check(&worker, &expected);
        let master = environment(&PYTORCH, json!({}), &replicas, ("Master", 0)).expect("complete");
        assert_eq!((master["RANK"].as_str(), master["WORLD_SIZE"].as_str()), ("0", "3"));
        assert_eq!(master["PET_NPROC_PER_NODE"], "auto");
    }

    #[test]
    fn pods_of_an_elastic_pytorch_job_know_the_rendezvous() {
        let policy = json!({"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 10, "rdzvId": "r",
            "rdzvConf": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}], "standalone": true});
        let spec = json!({"elasticPolicy": policy});
        let worker = environment(&PYTORCH, spec, &[("Worker", 2)], ("Worker", 1)).expect("complete");
        let expected = [
            ("PET_MAX_RESTARTS", "10"),
            ("PET_NNODES", "1:3"),
            ("PET_NPROC_PER_NODE", "auto"),
            ("PET_RDZV_BACKEND", "c10d"),
            ("PET_RDZV_CONF", "a=1,b=2"),
            ("PET_RDZV_ENDPOINT", "train-worker-0:23456"),
            ("PET_RDZV_ID", "r"),
            ("PET_STANDALONE", ""),
            ("PYTHONUNBUFFERED", "1"),
        ];
        check(&worker, &expected);
        let policy = json!({"rdzvBackend": "etcd", "rdzvHost": "etcd", "rdzvPort": 2379, "nProcPerNode": 2});
        let spec = json!({"elasticPolicy": policy});
        let worker = environment(&PYTORCH, spec, &[("Worker", 2)], ("Worker", 0)).expect("complete");
        let expected = [
            ("PET_NNODES", "2:2"),
            ("PET_NPROC_PER_NODE", "2"),
            ("PET_RDZV_BACKEND", "etcd"),
            ("PET_RDZV_ENDPOINT", "etcd:2379"),
            ("PYTHONUNBUFFERED", "1"),
        ];
        check(&worker, &expected);
    }

    #[test]
    fn pods_of_a_tensorflow_job_know_the_cluster_and_their_task() {
        let replicas = [("PS", 1), ("Worker", 2)];
        let worker = environment(&TENSORFLOW, json!({}), &replicas, ("Worker", 1)).expect("complete");
        check(
            &worker,
            &[(
                "TF_CONFIG",
                r#"{"cluster":{"ps":["train-ps-0.team.svc:2222"],"worker":["train-worker-0.team.svc:2222","train-worker-1.team.svc:2222"]},"task":{"type":"worker","index":1},"environment":"cloud"}"#,
            )],
        );
        let alone = environment(&TENSORFLOW, json!({}), &[("Worker", 1)], ("Worker", 0)).expect("complete");
        assert!(alone.is_empty(), "one pod is no cluster");
    }

    #[test]
    fn dynamic_workers_of_a_tensorflow_job_know_the_parameter_servers_and_themselves() {
        let spec = json!({"enableDynamicWorker": true});
        let config = |at| {
            let replicas = [("PS", 2), ("Worker", 2)];
            environment(&TENSORFLOW, spec.clone(), &replicas, at).expect("complete")["TF_CONFIG"].clone()
        };
        assert_eq!(
            config(("Worker", 1)),
            r#"{"cluster":{"worker":{"1":"train-worker-1.team.svc:2222"},"ps":["train-ps-0.team.svc:2222","train-ps-1.team.svc:2222"]},"task":{"type":"worker","index":1}}"#
        );
        assert_eq!(
            config(("PS", 1)),
            r#"{"cluster":{"worker":{},"ps":["train-ps-1.team.svc:2222"]},"task":{"type":"ps","index":1}}"#
        );
    }

    #[test]
    fn pods_of_an_xgboost_job_know_the_tracker_and_the_workers() {
        let replicas = [("Master", 1), ("Worker", 2)];
        let worker = environment(&XGBOOST, json!({}), &replicas, ("Worker", 0)).expect("complete");
        let expected = [
            ("MASTER_ADDR", "train-master-0"),
            ("MASTER_PORT", "9999"),
            ("PYTHONUNBUFFERED", "1"),
            ("RANK", "1"),
            ("WORKER_ADDRS", "train-worker-0,train-worker-1"),
            ("WORKER_PORT", "9999"),
            ("WORLD_SIZE", "3"),
        ];
        check(&worker, &expected);
        let error = environment(&XGBOOST, json!({}), &[("Worker", 2)], ("Worker", 0)).expect_err("no master");
        assert_eq!(error, "spec.xgbReplicaSpecs[Master]: no container \"xgboost\" with a port \"xgboostjob-port\"");
    }

    #[test]
    fn pods_of_a_paddle_job_know_the_first_worker_or_the_master() {
        let collective =
            |index| environment(&PADDLE, json!({}), &[("Worker", 2)], ("Worker", index)).expect("complete");
        let expected = [
            ("PADDLE_JOB_ID", "train"),
            ("PADDLE_MASTER", "train-worker-0:36543"),
            ("PADDLE_NNODES", "2"),
            ("PYTHONUNBUFFERED", "1"),
        ];
        check(&collective(1), &expected);
        assert_eq!(collective(0)["PADDLE_MASTER"], "$(POD_IP_DUMMY):36543");
        let replicas = [("Master", 1), ("Worker", 1)];
        let master = environment(&PADDLE, json!({}), &replicas, ("Master", 0)).expect("complete");
        assert_eq!(master["PADDLE_MASTER"], "$(POD_IP_DUMMY):36543");
        assert_eq!(master["PADDLE_SERVER_NUM"], "1");
        let worker = environment(&PADDLE, json!({}), &replicas, ("Worker", 0)).expect("complete");
        assert_eq!(worker["PADDLE_MASTER"], "train-master-0:36543");
        assert_eq!(worker["PADDLE_TRAINER_NUM"], "1");
    }

    #[test]
    fn pods_of_a_jax_job_know_the_coordinator_and_their_process() {
        let worker = environment(&JAX, json!({}), &[("Worker", 2)], ("Worker", 1)).expect("complete");
        let expected = [
            ("COORDINATOR_ADDRESS", "train-worker-0"),
            ("COORDINATOR_PORT", "6666"),
            ("NUM_PROCESSES", "2"),
            ("PROCESS_ID", "1"),
            ("PYTHONUNBUFFERED", "1"),
        ];
        check(&worker, &expected);
    }
}
