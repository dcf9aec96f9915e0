//! Builds the pods of a Job: its template with the Job's labels, the completion index and the
//! tracking finalizer.

use berth_apimachinery::well_known::COMPLETION_INDEX;
use berth_runtime::owned_by;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::facts::{INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT, TRACKING_FINALIZER, is_indexed, job_spec};

/// Environment variable with the completion index.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// Maximum length of `generateName` that the API server does not truncate: 63 less the 5 random
/// characters.
const GENERATE_NAME_MAX: usize = 58;

/// Number of earlier failures of an index. Only written for Jobs with `backoffLimitPerIndex`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexFailures {
    /// Failures that count towards the limit.
    pub counted: u32,
    /// Failures that the pod failure policy ignored.
    pub ignored: u32,
}

/// A new pod of the Job; for an indexed Job, with this completion index.
pub fn build_pod(job: &Job, index: Option<u32>, failures: Option<IndexFailures>) -> Pod {
    let template = &job_spec(job).template;
    let job_name = job.metadata.name.as_deref().unwrap_or_default();
    let job_uid = job.metadata.uid.as_deref().unwrap_or_default();
    let from = template.metadata.clone().unwrap_or_default();
    let mut labels = from.labels.unwrap_or_default();
    let mut annotations = from.annotations.unwrap_or_default();
    let mut finalizers = from.finalizers.unwrap_or_default();
    // The API server adds these labels to the template of every new Job, except with
    // `manualSelector`.
    if job_spec(job).manual_selector != Some(true) {
        for prefix in ["", "batch.kubernetes.io/"] {
            labels.entry(format!("{prefix}controller-uid")).or_insert_with(|| job_uid.to_owned());
            labels.entry(format!("{prefix}job-name")).or_insert_with(|| job_name.to_owned());
        }
    }
    if !finalizers.iter().any(|finalizer| finalizer == TRACKING_FINALIZER) {
        finalizers.push(TRACKING_FINALIZER.to_owned());
    }
    let mut spec = template.spec.clone().unwrap_or_default();
    if let Some(index) = index {
        labels.insert(COMPLETION_INDEX.to_owned(), index.to_string());
        annotations.insert(COMPLETION_INDEX.to_owned(), index.to_string());
        spec.hostname = Some(format!("{job_name}-{index}"));
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            add_index_variable(container);
        }
    }
    if let Some(failures) = failures {
        annotations.insert(INDEX_FAILURE_COUNT.to_owned(), failures.counted.to_string());
        if failures.ignored > 0 {
            annotations.insert(INDEX_IGNORED_FAILURE_COUNT.to_owned(), failures.ignored.to_string());
        }
    }
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(generate_name(job_name, index.filter(|_| is_indexed(job)))),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            finalizers: Some(finalizers),
            owner_references: Some(vec![owned_by(job)]),
            ..Default::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The pod's `generateName`. A long Job name is truncated, never the index.
fn generate_name(job_name: &str, index: Option<u32>) -> String {
    let suffix = index.map_or_else(|| "-".to_owned(), |index| format!("-{index}-"));
    let stem_max = GENERATE_NAME_MAX.saturating_sub(suffix.len());
    // Valid names are ASCII. `get` avoids a panic within a multi-byte character.
    let stem = job_name.get(..stem_max.min(job_name.len())).unwrap_or(job_name);
    format!("{stem}{suffix}")
}

fn add_index_variable(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    let field_ref =
        ObjectFieldSelector { api_version: None, field_path: format!("metadata.labels['{COMPLETION_INDEX}']") };
    env.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(field_ref), ..Default::default() }),
        ..Default::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> Job {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "namespace": "ns", "uid": "u1"},
            "spec": {"completionMode": "Indexed", "completions": 3, "template": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}}
        }))
        .unwrap()
    }

    #[test]
    fn an_indexed_pod_has_its_index_in_name_label_annotation_hostname_and_environment() {
        let pod = build_pod(&job("train"), Some(2), None);
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("train-2-"));
        assert_eq!(pod.metadata.labels.as_ref().unwrap()[COMPLETION_INDEX], "2");
        assert_eq!(pod.metadata.labels.as_ref().unwrap()["batch.kubernetes.io/job-name"], "train");
        assert_eq!(pod.metadata.labels.as_ref().unwrap()["team"], "a");
        assert_eq!(pod.metadata.annotations.as_ref().unwrap()[COMPLETION_INDEX], "2");
        assert_eq!(pod.metadata.finalizers.as_ref().unwrap(), &[TRACKING_FINALIZER]);
        let spec = pod.spec.unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("train-2"));
        assert_eq!(spec.containers[0].env.as_ref().unwrap()[0].name, INDEX_VARIABLE);
    }

    #[test]
    fn a_long_job_name_is_truncated_before_the_index() {
        let pod = build_pod(&job(&"x".repeat(63)), Some(17), None);
        let prefix = pod.metadata.generate_name.unwrap();
        assert_eq!(prefix.len(), GENERATE_NAME_MAX);
        assert!(prefix.ends_with("x-17-"));
    }
}
