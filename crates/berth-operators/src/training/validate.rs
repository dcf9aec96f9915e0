//! The rules of the training operator's webhooks, in their words, and three of our own: names of
//! restart and clean-up policies are checked, a TFJob has no unknown replica types, and specs that
//! the operator cannot read are rejected.
//!
//! Source: `pkg/webhooks` of Kubeflow's training operator 1.9.

use berth_api::kueue::constants::MULTIKUEUE_CONTROLLER;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::names;
use serde_json::Value;

use super::framework::{ALL, Framework, Library};
use super::types::{CleanPodPolicy, RestartPolicy, Spec};

/// Accepted values of `runPolicy.managedBy`.
const MANAGERS: [&str; 2] = [super::controller::CONTROLLER_NAME, MULTIKUEUE_CONTROLLER];

/// What a webhook returns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Why the object is rejected; empty if it is accepted.
    pub errors: Vec<Error>,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

/// The kind with this name, if a webhook validates it.
pub fn validated_kind(kind: &str) -> Option<&'static Framework> {
    const KINDS: [&Framework; 5] = ALL;
    KINDS.into_iter().find(|framework| framework.kind == kind)
}

/// Name of the webhook of a kind.
pub fn webhook_name(framework: &Framework) -> String {
    format!("validator.{}.training-operator.kubeflow.org", framework.kind.to_lowercase())
}

/// Validates a job that is created, or updated from `old`.
pub fn validate(framework: &Framework, old: Option<&Value>, job: &Value) -> Verdict {
    let mut verdict = Verdict::default();
    let name = job["metadata"]["name"].as_str().unwrap_or_default();
    let problems = names::is_dns1035_label(name);
    if !problems.is_empty() {
        let metadata = Path::new("metadata");
        let why = format!("should match: {}", problems.join(","));
        verdict.errors.push(Error::invalid(&metadata.child("name"), name, why));
    }
    let (root, spec) = (Path::new("spec"), &job["spec"]);
    verdict.errors.extend(run_policy(&root, old.map(|old| &old["spec"]), spec));
    if framework.library == Library::PyTorch {
        elastic(&root, framework, spec, &mut verdict);
    }
    verdict.errors.extend(replicas(&root.child(framework.specs), framework, &spec[framework.specs]));
    if verdict.errors.is_empty()
        && let Err(why) = Spec::read(framework, spec)
    {
        verdict.errors.push(Error::invalid_without_value(&root, why));
    }
    verdict
}

fn run_policy(root: &Path<'_>, old: Option<&Value>, spec: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let policy = root.child("runPolicy");
    let (path, manager) = (policy.child("managedBy"), &spec["runPolicy"]["managedBy"]);
    if old.is_some_and(|old| old["runPolicy"]["managedBy"] != *manager) {
        errors.push(Error::invalid(&path, manager.clone(), "field is immutable"));
    }
    if manager.as_str().is_some_and(|manager| !MANAGERS.contains(&manager)) {
        errors.push(Error::not_supported(&path, manager.clone(), &MANAGERS));
    }
    let cleaning = &spec["runPolicy"]["cleanPodPolicy"];
    if cleaning.as_str().is_some_and(|name| !name.is_empty() && !CleanPodPolicy::VALUES.contains(&name)) {
        let path = policy.child("cleanPodPolicy");
        errors.push(Error::not_supported(&path, cleaning.clone(), &CleanPodPolicy::VALUES));
    }
    errors
}

fn elastic(root: &Path<'_>, framework: &Framework, spec: &Value, verdict: &mut Verdict) {
    let elastic = &spec["elasticPolicy"];
    if !elastic.is_object() {
        return;
    }
    if !spec[framework.specs]["Worker"].is_object() {
        let specs = root.child(framework.specs);
        verdict.errors.push(Error::required(&specs.key("Worker"), "must be configured if elastic policy is used"));
    }
    if elastic["nProcPerNode"].is_null() {
        return;
    }
    let policy = root.child("elasticPolicy");
    let (path, other) = (policy.child("nProcPerNode"), root.child("nprocPerNode"));
    verdict.warnings.push(format!("{path} is deprecated, use {other} instead"));
    if !spec["nprocPerNode"].is_null() {
        verdict.errors.push(Error::forbidden(&path, format!("must not be used with {other}")));
    }
}

fn replicas(path: &Path<'_>, framework: &Framework, specs: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let Some(specs) = specs.as_object() else { return vec![Error::required(path, "must be required")] };
    for (name, replica) in specs {
        let role = path.key(name);
        if framework.library == Library::TensorFlow {
            // TFJob accepts its types in any case.
            if framework.replica_type(name).is_none() {
                errors.push(Error::not_supported(&role, name.as_str(), framework.types));
            }
        } else if !framework.types.contains(&name.as_str()) {
            errors.push(Error::not_supported(&role, name.as_str(), framework.types));
        }
        errors.extend(containers(&role, framework, &replica["template"]["spec"]["containers"]));
        errors.extend(count(&role, framework, name, &replica["replicas"]));
        let policy = &replica["restartPolicy"];
        if policy.as_str().is_some_and(|name| !name.is_empty() && RestartPolicy::named(name).is_none()) {
            errors.push(Error::not_supported(&role.child("restartPolicy"), policy.clone(), &RestartPolicy::VALUES));
        }
    }
    match framework.library {
        Library::XGBoost if !specs.contains_key("Master") => {
            errors.push(Error::required(&path.key("Master"), "must be present"));
        }
        Library::TensorFlow if specs.contains_key("Chief") && specs.contains_key("Master") => {
            errors.push(Error::forbidden(path, "must not have more than 1 Chief or Master role"));
        }
        _ => {}
    }
    errors
}

fn containers(role: &Path<'_>, framework: &Framework, containers: &Value) -> Vec<Error> {
    let mut errors = Vec::new();
    let template = role.child("template");
    let spec = template.child("spec");
    let path = spec.child("containers");
    let containers = containers.as_array().map(Vec::as_slice).unwrap_or_default();
    if containers.is_empty() {
        errors.push(Error::required(&path, "must be specified"));
    }
    for (index, container) in containers.iter().enumerate() {
        if container["image"].as_str().is_none_or(str::is_empty) {
            errors.push(Error::required(&path.index(index).child("image"), "must be required"));
        }
    }
    if !containers.iter().any(|container| container["name"] == framework.container) {
        let name = framework.container;
        let name = if framework.library == Library::Paddle { format!("{name:?}") } else { name.to_owned() };
        errors.push(Error::required(&path, format!("must have at least one container with name {name}")));
    }
    errors
}

fn count(role: &Path<'_>, framework: &Framework, type_: &str, replicas: &Value) -> Option<Error> {
    let path = role.child("replicas");
    let has_single_master = matches!(framework.library, Library::PyTorch | Library::XGBoost);
    if type_ == "Master" && has_single_master {
        return (replicas.as_i64() != Some(1)).then(|| Error::forbidden(&path, "must be 1"));
    }
    let is_pytorch = framework.library == Library::PyTorch;
    (is_pytorch && replicas.as_i64().is_some_and(|count| count < 1))
        .then(|| Error::forbidden(&path, "must be at least 1"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::training::framework::{JAX, PADDLE, PYTORCH, TENSORFLOW, XGBOOST};
    use crate::training::tests::replica;

    /// The errors about a job with these replicas and other fields, as the API prints them.
    fn errors(framework: &Framework, replicas: &Value, more: &Value) -> Vec<String> {
        let mut job = json!({"metadata": {"name": "train"}, "spec": more});
        job["spec"][framework.specs] = replicas.clone();
        validate(framework, None, &job).errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn jobs_of_each_kind_are_accepted() {
        for (framework, types) in [
            (&PYTORCH, vec!["Master", "Worker"]),
            (&TENSORFLOW, vec!["Chief", "PS", "Worker", "Evaluator"]),
            (&XGBOOST, vec!["Master", "Worker"]),
            (&PADDLE, vec!["Worker"]),
            (&JAX, vec!["Worker"]),
        ] {
            let replicas = types.into_iter().map(|type_| (type_.to_owned(), replica(framework, 1, "")));
            let replicas = Value::Object(replicas.collect());
            assert_eq!(errors(framework, &replicas, &json!({})), Vec::<String>::new(), "{}", framework.kind);
        }
    }

    #[test]
    fn errors_are_in_the_words_of_the_webhook() {
        let worker = replica(&PYTORCH, 0, "");
        let seen = errors(&PYTORCH, &json!({"Master": replica(&PYTORCH, 2, ""), "Worker": worker}), &json!({}));
        assert_eq!(
            seen,
            [
                "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",
                "spec.pytorchReplicaSpecs[Worker].replicas: Forbidden: must be at least 1",
            ]
        );
        let other = json!({"replicas": 1, "template": {"spec": {"containers": [{"name": "other"}]}}});
        let seen = errors(&PYTORCH, &json!({"Chief": other}), &json!({}));
        assert_eq!(
            seen,
            [
                "spec.pytorchReplicaSpecs[Chief]: Unsupported value: \"Chief\": supported values: \"Master\", \"Worker\"",
                "spec.pytorchReplicaSpecs[Chief].template.spec.containers[0].image: Required value: must be required",
                "spec.pytorchReplicaSpecs[Chief].template.spec.containers: Required value: must have at least one \
                 container with name pytorch",
            ]
        );
        assert_eq!(errors(&JAX, &Value::Null, &json!({})), ["spec.jaxReplicaSpecs: Required value: must be required"]);
        let seen = errors(&XGBOOST, &json!({"Worker": replica(&XGBOOST, 1, "")}), &json!({}));
        assert_eq!(seen, ["spec.xgbReplicaSpecs[Master]: Required value: must be present"]);
        let both = json!({"Chief": replica(&TENSORFLOW, 1, ""), "Master": replica(&TENSORFLOW, 1, "")});
        let seen = errors(&TENSORFLOW, &both, &json!({}));
        assert_eq!(seen, ["spec.tfReplicaSpecs: Forbidden: must not have more than 1 Chief or Master role"]);
        let replicas = json!({"Worker": replica(&PADDLE, 1, "")});
        let seen = errors(&PADDLE, &replicas, &json!({"runPolicy": {"managedBy": "other"}}));
        assert_eq!(
            seen,
            ["spec.runPolicy.managedBy: Unsupported value: \"other\": supported values: \
              \"kubeflow.org/training-operator\", \"kueue.x-k8s.io/multikueue\""]
        );
    }

    #[test]
    fn an_elastic_policy_needs_workers_and_one_number_of_processes() {
        let policy = json!({"elasticPolicy": {"nProcPerNode": 2}, "nprocPerNode": "2"});
        let seen = errors(&PYTORCH, &json!({"Master": replica(&PYTORCH, 1, "")}), &policy);
        assert_eq!(
            seen,
            [
                "spec.pytorchReplicaSpecs[Worker]: Required value: must be configured if elastic policy is used",
                "spec.elasticPolicy.nProcPerNode: Forbidden: must not be used with spec.nprocPerNode",
            ]
        );
        let job = json!({"metadata": {"name": "train"}, "spec": {
            "elasticPolicy": {"nProcPerNode": 2}, "pytorchReplicaSpecs": {"Worker": replica(&PYTORCH, 1, "")}}});
        let warnings = validate(&PYTORCH, None, &job).warnings;
        assert_eq!(warnings, ["spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"]);
    }

    #[test]
    fn names_and_managers_are_checked() {
        let mut job = json!({"metadata": {"name": "0-train"}, "spec": {
            "runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"},
            "jaxReplicaSpecs": {"Worker": replica(&JAX, 1, "")}}});
        let seen = validate(&JAX, None, &job).errors[0].to_string();
        assert!(
            seen.starts_with("metadata.name: Invalid value: \"0-train\": should match: a DNS-1035 label"),
            "{seen}"
        );
        let old = job.clone();
        job["metadata"]["name"] = json!("train");
        job["spec"]["runPolicy"] = json!({});
        let seen = validate(&JAX, Some(&old), &job).errors;
        assert_eq!(seen[0].to_string(), "spec.runPolicy.managedBy: Invalid value: null: field is immutable");
    }
}
