//! The pod sets of an AppWrapper's components: inferred for well-known kinds, or declared and
//! checked.
//!
//! A pod set refers to a pod template by a path such as
//! `template.spec.workerGroupSpecs[0].template`. The first step is the component's object itself.
//! Queueing and the operator must agree on the pod sets, so both use this module.
//!
//! Source: `pkg/utils` of project-codeflare/appwrapper 1.2.1.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::jobset::constants::JOB_INDEX;
use crate::well_known::COMPLETION_INDEX;

/// Annotation of a pod set: the label with the index of a pod in the pod set.
pub const POD_INDEX_LABEL: &str = "workload.codeflare.dev.appwrapper/tas-pod-index-label";
/// Annotation of a pod set: the label with the index of a pod's subgroup.
pub const SUB_GROUP_INDEX_LABEL: &str = "workload.codeflare.dev.appwrapper/tas-sub-group-index-label";
/// Annotation of a pod set: the number of subgroups.
pub const SUB_GROUP_COUNT: &str = "workload.codeflare.dev.appwrapper/tas-sub-group-count";
/// Label with the index of a pod among the replicas of its type, of Kubeflow's training operator.
const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";

/// Pods of one template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSet {
    /// Number of pods; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Path of the pod template.
    #[serde(default)]
    pub path: String,
    /// How the pods are to be treated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl PodSet {
    fn new(replicas: i32, path: impl Into<String>) -> Self {
        Self { replicas: Some(replicas), path: path.into(), annotations: None }
    }

    fn annotated<const N: usize>(mut self, annotations: [(&str, String); N]) -> Self {
        self.annotations = Some(annotations.map(|(key, value)| (key.to_owned(), value)).into());
        self
    }

    /// Number of pods.
    pub fn count(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }
}

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
}

/// The steps of a path below the object.
fn steps(path: &str) -> Result<Vec<Step<'_>>, String> {
    let Some(mut rest) = path.strip_prefix("template") else {
        return Err("first element of the path must be 'template'".to_owned());
    };
    let mut steps = Vec::new();
    while !rest.is_empty() {
        let at = &path[..path.len() - rest.len()];
        if let Some(index) = rest.strip_prefix('[') {
            let Some((index, after)) = index.split_once(']') else {
                return Err(format!("at path position '{at}' invalid array index '{rest}'"));
            };
            let parsed =
                index.parse().map_err(|_| format!("at path position '{at}' invalid index expression '{index}'"))?;
            steps.push(Step::Index(parsed));
            rest = after;
        } else if let Some(field) = rest.strip_prefix('.') {
            let end = field.find(['.', '[']).unwrap_or(field.len());
            if end == 0 {
                return Err(format!("at path position '{at}.' missing field ''"));
            }
            steps.push(Step::Field(&field[..end]));
            rest = &field[end..];
        } else {
            return Err(format!("at path position '{at}' invalid path element '{rest}'"));
        }
    }
    Ok(steps)
}

/// The value at a path of the object.
///
/// # Errors
/// The path is malformed, or leads nowhere.
pub fn at<'a>(object: &'a Value, path: &str) -> Result<&'a Value, String> {
    let mut value = object;
    let mut seen = "template".to_owned();
    for step in steps(path)? {
        value = match step {
            Step::Field(field) => {
                let map = value.as_object().ok_or_else(|| format!("at path position '{seen}' non-map value"))?;
                map.get(field).ok_or_else(|| format!("at path position '{seen}' missing field '{field}'"))?
            }
            Step::Index(index) => {
                let list =
                    value.as_array().ok_or_else(|| format!("at path position '{seen}' found non-array value"))?;
                list.get(index).ok_or_else(|| format!("at path position '{seen}' out of bounds index '{index}'"))?
            }
        };
        match step {
            Step::Field(field) => seen = format!("{seen}.{field}"),
            Step::Index(index) => seen = format!("{seen}[{index}]"),
        }
    }
    Ok(value)
}

/// The JSON pointer of a path, below the component: `/template/spec/template`.
///
/// # Errors
/// The path is malformed.
pub fn pointer(path: &str) -> Result<String, String> {
    let mut pointer = "/template".to_owned();
    for step in steps(path)? {
        pointer.push('/');
        match step {
            Step::Field(field) => pointer.push_str(&field.replace('~', "~0").replace('/', "~1")),
            Step::Index(index) => pointer.push_str(&index.to_string()),
        }
    }
    Ok(pointer)
}

/// The `spec` of the pod template at this path.
fn pod_spec<'a>(object: &'a Value, path: &str) -> Result<&'a Value, String> {
    let template = at(object, path)?;
    if !template.is_object() {
        return Err(format!("at path position '{path}' non-map value"));
    }
    let spec = &template["spec"];
    if spec.is_object() { Ok(spec) } else { Err(format!("content at {path} does not contain a spec")) }
}

/// Checks that the path refers to a pod template, whose `spec` has no unknown fields.
///
/// # Errors
/// The reason why the path does not refer to a pod template.
pub fn check_template(object: &Value, path: &str) -> Result<(), String> {
    let spec = pod_spec(object, path)?;
    let wrong = |why: String| format!("content at {path}.spec not parseable as a v1.PodSpec: {why}");
    let mut unknown = Vec::new();
    let read: Result<PodSpec, _> = serde_ignored::deserialize(spec, |at| unknown.push(at.to_string()));
    read.map_err(|error| wrong(error.to_string()))?;
    match unknown.first() {
        Some(field) => Err(wrong(format!("unknown field {:?}", field.replace(".?", "")))),
        None => Ok(()),
    }
}

/// A number of pods at this field; `None` if it is absent.
fn count(value: &Value, path: &str) -> Result<Option<i32>, String> {
    match value {
        Value::Null => Ok(None),
        Value::Number(number) => match number.as_i64().and_then(|number| i32::try_from(number).ok()) {
            Some(number) if number >= 0 => Ok(Some(number)),
            _ => Err(format!("at path position '{path}' value {number} is not a number of pods")),
        },
        other => Err(format!("at path position '{path}' non-int value {other}")),
    }
}

/// Pods of one Job at a time.
fn of_job(spec: &Value, path: &str) -> Result<i32, String> {
    let parallelism = count(&spec["parallelism"], &format!("{path}.parallelism"))?.unwrap_or(1);
    let completions = count(&spec["completions"], &format!("{path}.completions"))?;
    Ok(completions.map_or(parallelism, |completions| completions.min(parallelism)))
}

fn of_job_set(spec: &Value) -> Result<Vec<PodSet>, String> {
    let jobs = spec["replicatedJobs"].as_array().into_iter().flatten().enumerate();
    let jobs = jobs.filter(|(_, job)| job.get("template").is_some());
    jobs.map(|(index, job)| {
        let path = format!("template.spec.replicatedJobs[{index}]");
        let replicas = count(&job["replicas"], &format!("{path}.replicas"))?.unwrap_or(1);
        let pods = of_job(&job["template"]["spec"], &format!("{path}.template.spec"))?;
        Ok(PodSet::new(replicas.saturating_mul(pods), format!("{path}.template.spec.template")).annotated([
            (POD_INDEX_LABEL, COMPLETION_INDEX.to_owned()),
            (SUB_GROUP_INDEX_LABEL, JOB_INDEX.to_owned()),
            (SUB_GROUP_COUNT, replicas.to_string()),
        ]))
    })
    .collect()
}

fn of_pytorch_job(spec: &Value) -> Result<Vec<PodSet>, String> {
    let types = ["Master", "Worker"].into_iter().map(|name| (name, &spec["pytorchReplicaSpecs"][name]));
    let types = types.filter(|(_, replicas)| replicas.get("template").is_some());
    types
        .map(|(name, replicas)| {
            let path = format!("template.spec.pytorchReplicaSpecs.{name}");
            let pods = count(&replicas["replicas"], &format!("{path}.replicas"))?.unwrap_or(1);
            let set = PodSet::new(pods, format!("{path}.template"));
            Ok(set.annotated([(POD_INDEX_LABEL, REPLICA_INDEX.to_owned())]))
        })
        .collect()
}

/// The head and the worker groups. `numOfHosts` does not count.
fn of_ray_cluster(spec: &Value, path: &str) -> Result<Vec<PodSet>, String> {
    let mut sets = vec![PodSet::new(1, format!("{path}.headGroupSpec.template"))];
    let groups = spec["workerGroupSpecs"].as_array().into_iter().flatten().enumerate();
    for (index, group) in groups.filter(|(_, group)| group.get("template").is_some()) {
        let path = format!("{path}.workerGroupSpecs[{index}]");
        let pods = count(&group["replicas"], &format!("{path}.replicas"))?.unwrap_or(1);
        sets.push(PodSet::new(pods, format!("{path}.template")));
    }
    Ok(sets)
}

/// The pod sets of an object of a well-known kind; empty for other kinds.
///
/// # Errors
/// A pod template or a number of pods of the object is malformed.
pub fn infer(object: &Value) -> Result<Vec<PodSet>, String> {
    infer_with(object, check_template)
}

/// The pod sets of an object of a well-known kind, whose templates pass `check`.
fn infer_with(object: &Value, check: impl Fn(&Value, &str) -> Result<(), String>) -> Result<Vec<PodSet>, String> {
    let spec = &object["spec"];
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let sets = match (text("apiVersion"), text("kind")) {
        ("v1", "Pod") => vec![PodSet::new(1, "template")],
        ("apps/v1", "Deployment" | "StatefulSet") if spec.get("template").is_some() => {
            let pods = count(&spec["replicas"], "template.spec.replicas")?.unwrap_or(1);
            vec![PodSet::new(pods, "template.spec.template")]
        }
        ("batch/v1", "Job") => {
            let set = PodSet::new(of_job(spec, "template.spec")?, "template.spec.template");
            vec![set.annotated([(POD_INDEX_LABEL, COMPLETION_INDEX.to_owned())])]
        }
        ("jobset.x-k8s.io/v1alpha2", "JobSet") => of_job_set(spec)?,
        ("kubeflow.org/v1", "PyTorchJob") => of_pytorch_job(spec)?,
        ("ray.io/v1", "RayCluster") => of_ray_cluster(spec, "template.spec")?,
        ("ray.io/v1", "RayJob") => of_ray_cluster(&spec["rayClusterSpec"], "template.spec.rayClusterSpec")?,
        _ => Vec::new(),
    };
    for set in &sets {
        check(object, &set.path)
            .map_err(|why| format!("{} does not refer to a v1.PodSpecTemplate: {why}", set.path))?;
    }
    Ok(sets)
}

/// The pod sets of a component (`template`, `podSets`): the declared ones, or else the inferred
/// ones. Pod templates may have fields of a newer Kubernetes version.
///
/// # Errors
/// A pod set is malformed.
pub fn of_component(component: &Value) -> Result<Vec<PodSet>, String> {
    let declared = declared(component)?;
    if !declared.is_empty() {
        return Ok(declared);
    }
    infer_with(&component["template"], |object, path| pod_spec(object, path).map(drop))
}

/// The declared pod sets of a component.
///
/// # Errors
/// The list is malformed.
pub fn declared(component: &Value) -> Result<Vec<PodSet>, String> {
    let declared = Option::<Vec<PodSet>>::deserialize(&component["podSets"]);
    declared.map(Option::unwrap_or_default).map_err(|error| error.to_string())
}

/// Compares declared pod sets with the inferred ones. Without declared ones, any are fine.
///
/// # Errors
/// The first difference.
pub fn compare(declared: &[PodSet], inferred: &[PodSet]) -> Result<(), String> {
    let mut by_path = BTreeMap::new();
    for set in declared {
        if by_path.insert(set.path.as_str(), set).is_some() {
            return Err(format!("multiple DeclaredPodSets with path '{}'", set.path));
        }
    }
    if declared.is_empty() || inferred.is_empty() {
        return Ok(());
    }
    if inferred.len() != declared.len() {
        let (found, expected) = (declared.len(), inferred.len());
        return Err(format!("DeclaredPodSet count {found} differs from inferred count {expected}"));
    }
    for set in inferred {
        let Some(declared) = by_path.get(set.path.as_str()) else {
            return Err(format!("PodSet with path '{}' is missing", set.path));
        };
        let (found, expected) = (declared.count(), set.count());
        if found != expected {
            return Err(format!(
                "replica count {found} differs from inferred count {expected} for PodSet at path position '{}'",
                set.path
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> Value {
        json!({"spec": {"containers": [{"name": "main", "image": "program"}]}})
    }

    #[track_caller]
    fn check(object: Value, expected: &[(i32, &str)]) {
        let sets = infer(&object).expect("well-formed");
        let found: Vec<_> = sets.iter().map(|set| (set.count(), set.path.as_str())).collect();
        assert_eq!(found, expected);
        for set in &sets {
            let pointer = pointer(&set.path).unwrap();
            assert_eq!(json!({"template": object}).pointer(&pointer), Some(at(&object, &set.path).unwrap()));
        }
    }

    fn job(spec: Value) -> Value {
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": spec});
        job["spec"]["template"] = template();
        job
    }

    #[test]
    fn pod_sets_of_well_known_kinds_are_inferred() {
        let mut pod = template();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        check(pod, &[(1, "template")]);
        for kind in ["Deployment", "StatefulSet"] {
            let of = |spec: Value| json!({"apiVersion": "apps/v1", "kind": kind, "spec": spec});
            check(of(json!({"template": template()})), &[(1, "template.spec.template")]);
            check(of(json!({"replicas": 4, "template": template()})), &[(4, "template.spec.template")]);
        }
        check(job(json!({})), &[(1, "template.spec.template")]);
        check(job(json!({"parallelism": 3})), &[(3, "template.spec.template")]);
        check(job(json!({"parallelism": 3, "completions": 2})), &[(2, "template.spec.template")]);
        check(job(json!({"parallelism": 3, "completions": 5})), &[(3, "template.spec.template")]);
        check(json!({"apiVersion": "v1", "kind": "Service", "spec": {}}), &[]);
    }

    #[test]
    fn pod_sets_of_groups_of_pods_are_inferred_in_order() {
        let jobs = json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": [
            {"replicas": 2, "template": {"spec": {"parallelism": 3, "template": template()}}},
            {"template": {"spec": {"template": template()}}}]}});
        let path = |index: usize| format!("template.spec.replicatedJobs[{index}].template.spec.template");
        check(jobs, &[(6, &path(0)), (1, &path(1))]);
        let torch = json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {"pytorchReplicaSpecs": {
            "Worker": {"replicas": 7, "template": template()}, "Master": {"template": template()}}}});
        let path = |name: &str| format!("template.spec.pytorchReplicaSpecs.{name}.template");
        check(torch, &[(1, &path("Master")), (7, &path("Worker"))]);
        let cluster = json!({"headGroupSpec": {"template": template()}, "workerGroupSpecs": [
            {"replicas": 7, "numOfHosts": 2, "template": template()}]});
        check(
            json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": cluster}),
            &[(1, "template.spec.headGroupSpec.template"), (7, "template.spec.workerGroupSpecs[0].template")],
        );
        check(
            json!({"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"rayClusterSpec": cluster}}),
            &[
                (1, "template.spec.rayClusterSpec.headGroupSpec.template"),
                (7, "template.spec.rayClusterSpec.workerGroupSpecs[0].template"),
            ],
        );
    }

    #[test]
    fn a_path_must_lead_to_a_pod_template() {
        let object = job(json!({"list": [template()]}));
        let check = |path: &str| check_template(&object, path);
        assert_eq!(check("template.spec.list[0]"), Ok(()));
        for (path, why) in [
            ("spec.template", "first element of the path must be 'template'"),
            ("templates", "at path position 'template' invalid path element 's'"),
            ("template.spec.list[1]", "at path position 'template.spec.list' out of bounds index '1'"),
            ("template.spec.list[-1]", "at path position 'template.spec.list' invalid index expression '-1'"),
            ("template.spec.list[0", "at path position 'template.spec.list' invalid array index '[0'"),
            ("template.spec[0]", "at path position 'template.spec' found non-array value"),
            ("template.spec.foo", "at path position 'template.spec' missing field 'foo'"),
            ("template..spec", "at path position 'template.' missing field ''"),
            ("template.kind.foo", "at path position 'template.kind' non-map value"),
            ("template.kind", "at path position 'template.kind' non-map value"),
            ("template.spec.template.spec", "content at template.spec.template.spec does not contain a spec"),
        ] {
            assert_eq!(check(path), Err(why.to_owned()), "{path}");
        }
        let unknown = check("template").unwrap_err();
        assert!(unknown.contains("not parseable as a v1.PodSpec"), "{unknown}");
    }

    #[test]
    fn an_unknown_field_of_a_pod_spec_is_rejected() {
        let mut object = job(json!({}));
        object["spec"]["template"]["spec"]["containers"][0]["resource"] = json!({});
        let why = infer(&object).unwrap_err();
        assert!(why.ends_with("unknown field \"containers.0.resource\""), "{why}");
        let object = job(json!({"parallelism": "2"}));
        assert_eq!(infer(&object).unwrap_err(), "at path position 'template.spec.parallelism' non-int value \"2\"");
    }

    #[test]
    fn declared_pod_sets_must_equal_the_inferred_ones() {
        let set = |count: i32, path: &str| PodSet::new(count, path);
        let inferred = [set(1, "template.a"), set(2, "template.b")];
        assert_eq!(compare(&[], &inferred), Ok(()));
        assert_eq!(compare(&[set(2, "template.b"), set(1, "template.a")], &inferred), Ok(()));
        let implied = PodSet { path: "template.a".into(), ..PodSet::default() };
        assert_eq!(compare(&[implied, set(2, "template.b")], &inferred), Ok(()));
        assert_eq!(compare(&[set(5, "template.c")], &[]), Ok(()));
        for (declared, why) in [
            (vec![set(1, "template.a"), set(1, "template.a")], "multiple DeclaredPodSets with path 'template.a'"),
            (vec![set(1, "template.a")], "DeclaredPodSet count 1 differs from inferred count 2"),
            (vec![set(1, "template.a"), set(2, "template.c")], "PodSet with path 'template.b' is missing"),
            (
                vec![set(1, "template.a"), set(3, "template.b")],
                "replica count 3 differs from inferred count 2 for PodSet at path position 'template.b'",
            ),
        ] {
            assert_eq!(compare(&declared, &inferred), Err(why.to_owned()));
        }
    }
}
