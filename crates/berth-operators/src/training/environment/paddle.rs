//! PaddlePaddle: collective training meets at the first worker, and training with parameter servers
//! at the master.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec};

use super::{add, unbuffered};
use crate::training::types::{Job, Replica};

/// Variable with the pod's address, for the variable of the meeting point.
const POD_IP: &str = "POD_IP_DUMMY";

pub(super) fn complete(job: &Job<'_>, replica: &Replica, index: i32, pod: &mut PodSpec) -> Result<(), String> {
    let has_master = job.spec.replica("Master").is_some();
    let meeting = if has_master { "Master" } else { "Worker" };
    let framework = job.framework;
    let given = job.spec.replica(meeting).and_then(|it| it.port(framework.container, framework.port_name));
    let port = given.unwrap_or(framework.port);
    let is_meeting_point = index == 0 && replica.type_ == meeting;
    for container in &mut pod.containers {
        let variables =
            [unbuffered(), ("PADDLE_JOB_ID", job.name().to_owned()), ("PADDLE_NNODES", job.spec.total().to_string())];
        add(container, variables);
        if is_meeting_point {
            container.env.get_or_insert_default().push(pod_ip());
            add(container, [("PADDLE_MASTER", format!("$({POD_IP}):{port}"))]);
        } else {
            add(container, [("PADDLE_MASTER", format!("{}:{port}", job.replica_name(meeting, 0)))]);
        }
        if has_master {
            let role = if replica.type_ == "Master" { "PADDLE_SERVER_NUM" } else { "PADDLE_TRAINER_NUM" };
            add(container, [(role, "1".to_owned())]);
        }
    }
    Ok(())
}

fn pod_ip() -> EnvVar {
    let field = ObjectFieldSelector { field_path: "status.podIP".to_owned(), ..ObjectFieldSelector::default() };
    EnvVar {
        name: POD_IP.to_owned(),
        value: None,
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
    }
}
