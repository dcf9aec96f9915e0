//! Rights: those that the controller needs in a cluster with access control, and those that the
//! creator of an AppWrapper must have.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::admission::{Verdict, kinds};
use super::components::Components;

/// Kinds that are wrapped most often: group and resources. A cluster whose AppWrappers have other
/// components needs a further role for them.
const COMPONENTS: &[(&str, &[&str])] = &[
    ("", &["configmaps", "pods", "services"]),
    ("apps", &["deployments", "statefulsets"]),
    ("batch", &["jobs"]),
    ("jobset.x-k8s.io", &["jobsets"]),
    ("kubeflow.org", &["jaxjobs", "mpijobs", "paddlejobs", "pytorchjobs", "tfjobs", "xgboostjobs"]),
    ("leaderworkerset.x-k8s.io", &["leaderworkersets"]),
    ("ray.io", &["rayclusters", "rayjobs", "rayservices"]),
    ("scheduling.sigs.k8s.io", &["podgroups"]),
    ("scheduling.x-k8s.io", &["podgroups"]),
    ("trainer.kubeflow.org", &["trainjobs"]),
];

/// The rules of the controller's ClusterRole.
pub fn rules() -> Vec<Value> {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let group = "workload.codeflare.dev";
    let mut rules = vec![
        rule(group, &["appwrappers"], &["get", "list", "watch", "update"]),
        rule(group, &["appwrappers/status", "appwrappers/finalizers"], &["update"]),
        rule("", &["events"], &["create", "patch"]),
        rule("", &["nodes"], &["list", "watch"]),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["get", "list", "watch"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ];
    let verbs = &["get", "list", "watch", "create", "delete"];
    rules.extend(COMPONENTS.iter().map(|(group, resources)| rule(group, resources, verbs)));
    rules
}

/// Whether the user of an AdmissionReview (its `userInfo`) may create the components of the object.
pub async fn verdicts(client: &Client, object: &Value, namespace: &str, user: &Value) -> Vec<Verdict> {
    let components = Components::new(client.clone());
    let mut verdicts = Vec::new();
    for kind in kinds(object) {
        let (group, version, resource) = match kind {
            Some(kind) => {
                let resource = components.resource(&kind.api_version(), &kind.kind).await;
                (kind.group, kind.version, resource.unwrap_or_else(|| "*".to_owned()))
            }
            None => ("*".to_owned(), "*".to_owned(), "*".to_owned()),
        };
        let attributes = ResourceAttributes {
            group: Some(group),
            version: Some(version),
            resource: Some(resource.clone()),
            verb: Some("create".to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        verdicts.push(Verdict { resource, is_allowed: is_allowed(client, attributes, user).await });
    }
    verdicts
}

async fn is_allowed(client: &Client, attributes: ResourceAttributes, user: &Value) -> Result<bool, String> {
    let read = |field: &str| serde_json::from_value(user[field].clone()).unwrap_or_default();
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            user: user["username"].as_str().map(str::to_owned),
            uid: user["uid"].as_str().map(str::to_owned),
            groups: read("groups"),
            extra: serde_json::from_value(user["extra"].clone()).unwrap_or_default(),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(|error| berth_runtime::message(&error))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
