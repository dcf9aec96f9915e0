//! Validation of runtimes, in upstream's words.

use berth_apimachinery::field::{Error, Path};
use serde_json::{Value, json};

use crate::trainer::constants::{DATASET_INITIALIZER, MODEL_INITIALIZER, NODE, STEP, TRAINER};
use crate::trainer::json::{jobs, pod};

/// Validates a new runtime of either kind.
pub fn validate_runtime(runtime: &Value) -> Vec<Error> {
    let spec = Path::new("spec.template.spec");
    let list = spec.child("replicatedJobs");
    let mut errors = Vec::new();
    for (index, job) in jobs(&runtime["spec"]["template"]["spec"]).iter().enumerate() {
        let step = job["template"]["metadata"]["labels"][STEP].as_str().unwrap_or_default();
        let container = match step {
            TRAINER => NODE,
            MODEL_INITIALIZER | DATASET_INITIALIZER => step,
            _ => continue,
        };
        let at = list.index(index);
        let replicas = job["replicas"].as_i64().unwrap_or(1);
        if replicas != 1 {
            errors.push(Error::invalid(&at.child("replicas"), replicas, "always must be 1"));
        }
        let containers = &pod(job)["containers"];
        if !containers.as_array().into_iter().flatten().any(|it| it["name"] == container) {
            let template = at.child("template");
            let spec = template.child("spec");
            let pod = spec.child("template");
            let pod_spec = pod.child("spec");
            let shown = if containers.is_null() { json!([]) } else { containers.clone() };
            let detail = format!("must contain the required container for the ancestor: {step}");
            errors.push(Error::invalid(&pod_spec.child("containers"), shown, detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::samples::{torch, with_initializer};

    #[test]
    fn the_steps_have_one_job_and_their_container() {
        assert_eq!(validate_runtime(&json!({"spec": with_initializer()})), Vec::new());
        let mut runtime = json!({"spec": torch()});
        let job = runtime.pointer_mut("/spec/template/spec/replicatedJobs/0").expect("a job");
        job["replicas"] = json!(2);
        job["template"]["spec"]["template"]["spec"]["containers"] = json!([{"name": "other"}]);
        let errors: Vec<String> = validate_runtime(&runtime).iter().map(ToString::to_string).collect();
        assert_eq!(errors[0], "spec.template.spec.replicatedJobs[0].replicas: Invalid value: 2: always must be 1");
        assert!(errors[1].starts_with("spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers:"));
        assert!(errors[1].ends_with("must contain the required container for the ancestor: trainer"));
    }
}
