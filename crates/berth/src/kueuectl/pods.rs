//! The pods of a job: which job `--for` names, the labels of its pods, and their columns as kubectl
//! prints them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::anyhow;
use berth_api::kueue::labels;
use berth_apimachinery::percent::{component, segment};
use http::{Request, header};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::team::in_words;

/// A job as `TYPE[.GROUP]/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRef {
    /// Kind or resource in lower case.
    kind: String,
    /// API group; `None` for any.
    group: Option<String>,
    /// Its name.
    name: String,
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = self.group.as_ref().map(|group| format!(".{group}")).unwrap_or_default();
        write!(f, "{}{group}/{}", self.kind, self.name)
    }
}

impl FromStr for JobRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = text.split_once('/').filter(|(kind, name)| !kind.is_empty() && !name.is_empty());
        let (kind, name) = found.ok_or_else(|| format!("{text:?}: expected TYPE[.GROUP]/NAME, such as job/train"))?;
        let (kind, group) = kind.split_once('.').map_or((kind, None), |(kind, group)| (kind, Some(group.to_owned())));
        Ok(Self { kind: kind.to_lowercase(), group, name: name.to_owned() })
    }
}

impl JobRef {
    /// True if an owner is this job.
    pub fn is(&self, owner: &OwnerReference) -> bool {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        owner.name == self.name
            && self.has_kind(&owner.kind.to_lowercase())
            && self.group.as_ref().is_none_or(|it| it == group)
    }

    /// True if the type is this kind, or its plural.
    fn has_kind(&self, kind: &str) -> bool {
        self.kind == kind || self.kind.strip_suffix('s') == Some(kind)
    }
}

/// Kinds of jobs in lower case, and the label of their pods that has the job's name.
const POD_LABELS: [(&str, &str); 16] = [
    ("job", "batch.kubernetes.io/job-name"),
    ("jobset", "jobset.sigs.k8s.io/jobset-name"),
    ("pytorchjob", "training.kubeflow.org/job-name"),
    ("tfjob", "training.kubeflow.org/job-name"),
    ("xgboostjob", "training.kubeflow.org/job-name"),
    ("paddlejob", "training.kubeflow.org/job-name"),
    ("jaxjob", "training.kubeflow.org/job-name"),
    ("mxjob", "training.kubeflow.org/job-name"),
    ("mpijob", "training.kubeflow.org/job-name"),
    ("trainjob", "jobset.sigs.k8s.io/jobset-name"),
    ("raycluster", "ray.io/cluster"),
    ("rayjob", "ray.io/originated-from-cr-name"),
    ("rayservice", "ray.io/originated-from-cr-name"),
    ("sparkapplication", "sparkoperator.k8s.io/app-name"),
    ("leaderworkerset", "leaderworkerset.sigs.k8s.io/name"),
    ("appwrapper", "workload.codeflare.dev/appwrapper"),
];

/// True for a label whose value is the name of the pod's job.
pub fn is_job_label(label: &str) -> bool {
    POD_LABELS.iter().any(|(_, known)| *known == label)
}

/// The label selector of the pods of a job; `None` for a kind whose pods are not known.
pub async fn selector(client: &Client, namespace: &str, job: &JobRef) -> anyhow::Result<Option<String>> {
    if job.has_kind("pod") || job.kind == "po" {
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = api.get_opt(&job.name).await.map_err(|error| in_words("pods", error))?;
        let pod = pod.ok_or_else(|| anyhow!("pod {} does not exist in namespace {namespace}", job.name))?;
        let group = pod.labels().get(labels::POD_GROUP_NAME);
        let group = group.ok_or_else(|| anyhow!("pod {} is in no group", job.name))?;
        return Ok(Some(format!("{}={group}", labels::POD_GROUP_NAME)));
    }
    let known = POD_LABELS.iter().find(|(kind, _)| job.has_kind(kind));
    Ok(known.map(|(_, label)| format!("{label}={}", job.name)))
}

/// Cells of `kubectl get pods` by column, for each pod by namespace and name.
pub type Cells = BTreeMap<(String, String), BTreeMap<String, String>>;

/// The cells of the pods of these labels, as the API server prints them.
pub async fn printed(client: &Client, namespace: Option<&String>, labels: &str) -> anyhow::Result<Cells> {
    let scope = namespace.map(|namespace| format!("namespaces/{}/", segment(namespace))).unwrap_or_default();
    let path = format!("/api/v1/{scope}pods?labelSelector={}", component(labels));
    let request = Request::get(path).header(header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table: Value = client.request(request.body(Vec::new())?).await.map_err(|error| in_words("pods", error))?;
    Ok(cells(&table))
}

fn cells(table: &Value) -> Cells {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let columns: Vec<String> = list(&table["columnDefinitions"])
        .iter()
        .map(|column| column["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    let shown = |cell: Value| match cell {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let row = |row: Value| {
        let metadata = &row["object"]["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let cells = columns.iter().cloned().zip(list(&row["cells"]).into_iter().map(shown)).collect();
        ((text("namespace"), text("name")), cells)
    };
    list(&table["rows"]).into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_is_named_by_its_type_and_name() {
        let of = |text: &str| text.parse::<JobRef>().expect(text);
        let owner = |version: &str, kind: &str| OwnerReference {
            api_version: version.to_owned(),
            kind: kind.to_owned(),
            name: "train".to_owned(),
            ..OwnerReference::default()
        };
        for text in ["job/train", "Jobs/train", "job.batch/train"] {
            assert!(of(text).is(&owner("batch/v1", "Job")), "{text}");
        }
        assert!(!of("job.other/train").is(&owner("batch/v1", "Job")));
        assert!(!of("jobset/train").is(&owner("batch/v1", "Job")));
        assert!(!of("job/other").is(&owner("batch/v1", "Job")));
        assert_eq!(of("jobset.jobset.x-k8s.io/a").to_string(), "jobset.jobset.x-k8s.io/a");
        for wrong in ["train", "/train", "job/"] {
            assert!(wrong.parse::<JobRef>().expect_err(wrong).contains("expected TYPE[.GROUP]/NAME"));
        }
    }

    #[test]
    fn cells_are_found_by_pod_and_column() {
        let table = json!({"columnDefinitions": [{"name": "Name"}, {"name": "Ready"}, {"name": "Restarts"}],
            "rows": [{"cells": ["a", "1/1", 0], "object": {"metadata": {"namespace": "team", "name": "a"}}}]});
        let found = cells(&table);
        let pod = &found[&("team".to_owned(), "a".to_owned())];
        assert_eq!((pod["Ready"].as_str(), pod["Restarts"].as_str()), ("1/1", "0"));
    }
}
