//! The runtime of a TrainJob as it was when the job started, in a ConfigMap of the job: a changed
//! or deleted runtime does not change jobs that exist.

use berth_api::frameworks::TrainJob;
use berth_runtime::is_controlled_by;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::build::owned;
use super::constants::{GROUP, SNAPSHOT_KEY, SNAPSHOT_SUFFIX};
use super::types::{RuntimeKind, RuntimeRef};

/// Name of the ConfigMap of a job.
pub fn name(job: &TrainJob) -> String {
    format!("{}{SNAPSHOT_SUFFIX}", job.name_any())
}

/// The ConfigMap with this runtime.
///
/// # Errors
/// The runtime cannot be written as YAML.
pub fn write(job: &TrainJob, kind: RuntimeKind, runtime: &str, spec: &Value) -> Result<Value, String> {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1alpha1"),
        "kind": kind.as_str(),
        "metadata": {"name": runtime},
        "spec": spec,
    });
    if kind == RuntimeKind::Namespaced {
        object["metadata"]["namespace"] = json!(job.namespace());
    }
    let text = serde_saphyr::to_string(&object).map_err(|error| error.to_string())?;
    let mut map = owned(job, "v1", "ConfigMap", &name(job));
    map["data"] = json!({SNAPSHOT_KEY: text});
    Ok(map)
}

/// The spec of the runtime in a ConfigMap.
///
/// # Errors
/// The ConfigMap is not the snapshot of the job's runtime.
pub fn read(job: &TrainJob, wanted: &RuntimeRef, map: &ConfigMap) -> Result<Value, String> {
    let invalid = |why: &str| format!("invalid runtime snapshot {}: {why}", name(job));
    if !is_controlled_by(map, job.metadata.uid.as_deref().unwrap_or_default()) {
        return Err(invalid("a ConfigMap of this name belongs to another object"));
    }
    let text = map.data.as_ref().and_then(|data| data.get(SNAPSHOT_KEY));
    let text = text.ok_or_else(|| invalid(&format!("the ConfigMap has no key {SNAPSHOT_KEY:?}")))?;
    let runtime: Value = serde_saphyr::from_str(text).map_err(|error| invalid(&error.to_string()))?;
    let kind = runtime["kind"].as_str().unwrap_or_default();
    let found = runtime["metadata"]["name"].as_str().unwrap_or_default();
    if format!("{kind}.{GROUP}") != wanted.group_kind() || found != wanted.name {
        let expected = format!("{} {}", wanted.group_kind(), wanted.name);
        return Err(invalid(&format!("the snapshot is of {kind} {found}, not of {expected}")));
    }
    Ok(runtime["spec"].clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::samples::torch;

    fn job(name: &str, uid: &str) -> TrainJob {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns", "uid": uid}, "spec": {}}))
            .expect("a TrainJob")
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written() {
        let job = job("train", "u");
        let map = write(&job, RuntimeKind::Cluster, "torch", &torch()).expect("a ConfigMap");
        let map: ConfigMap = serde_json::from_value(map).expect("a ConfigMap");
        assert_eq!(map.metadata.name.as_deref(), Some("train-runtime-snapshot"));
        let wanted = RuntimeRef { name: "torch".to_owned(), ..RuntimeRef::default() };
        assert_eq!(read(&job, &wanted, &map), Ok(torch()));
        let other = RuntimeRef { name: "jax".to_owned(), ..RuntimeRef::default() };
        assert!(read(&job, &other, &map).is_err_and(|error| error.contains("not of ClusterTrainingRuntime")));
        let successor = super::tests::job("train", "later");
        assert!(read(&successor, &wanted, &map).is_err_and(|error| error.contains("belongs to another object")));
    }
}
