//! The webhooks' wire format: `AdmissionReview` (admission.k8s.io/v1) and, for the versions of
//! Kueue's kinds, `ConversionReview` (apiextensions.k8s.io/v1).

use base64::Engine;
use berth_api::kueue::conversion;
use berth_apimachinery::field;
use serde_json::{Value, json};

use super::{Account, Lookup, Request, Webhooks, is_validated, submitter};

/// The kind of webhook that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Defaulting.
    Mutate,
    /// Validation.
    Validate,
}

/// A further change of objects that the webhooks default.
pub type Also<'a> = &'a dyn Fn(Request<'_>, &mut Value);

/// Parses the body of a request: here and not in the program that serves it, so that the parser is
/// compiled with the optimization of this crate.
#[inline(never)]
pub fn read(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// Responds to an AdmissionReview. An error is the message of a 400 response: the body is not a
/// valid review.
pub fn admission(webhooks: &Webhooks, stage: Stage, review: &Value, lookup: Lookup<'_>) -> Result<Value, String> {
    admission_also(webhooks, stage, review, lookup, &|_, _| {})
}

/// Like [`admission`], with a further change after the defaults.
pub fn admission_also(
    webhooks: &Webhooks,
    stage: Stage,
    review: &Value,
    lookup: Lookup<'_>,
    also: Also<'_>,
) -> Result<Value, String> {
    let asked = request(review)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, resource) = (text(&asked["resource"]["group"]), text(&asked["resource"]["resource"]));
    let namespace = text(&asked["namespace"]);
    let request = Request {
        group: &group,
        resource: &resource,
        namespace: &namespace,
        old_object: asked.get("oldObject").filter(|old| !old.is_null()),
    };
    // Other operations and subresources are allowed without validation, regardless of the webhook
    // configuration.
    let writes = matches!(asked["operation"].as_str(), Some("CREATE" | "UPDATE"));
    let part = asked["subResource"].as_str().unwrap_or_default();
    let user = asked["userInfo"]["username"].as_str().unwrap_or_default();
    let seen = part.is_empty() || (stage == Stage::Validate && is_validated(request, part, user));
    let object = asked.get("object").filter(|object| object.is_object() && writes && seen);
    let Some(object) = object else { return Ok(respond(asked, None, &[])) };
    match stage {
        Stage::Validate => {
            let groups = asked["userInfo"]["groups"].as_array().into_iter().flatten();
            let groups: Vec<String> = groups.filter_map(|group| group.as_str().map(str::to_owned)).collect();
            let mut errors = webhooks.validate(request, object, lookup);
            if part.is_empty() {
                errors.extend(webhooks.validate_account(request, Account { name: user, groups: &groups }, object));
            }
            Ok(respond(asked, None, &errors))
        }
        Stage::Mutate => {
            let mut changed = object.clone();
            let errors = webhooks.mutate(request, &mut changed, lookup).err().unwrap_or_default();
            also(request, &mut changed);
            if webhooks.concerns(request.group, request.resource) {
                submitter::stamp(request, user, &mut changed);
            }
            Ok(respond(asked, Some(&changed), &errors))
        }
    }
}

/// The request of an AdmissionReview. An error is the message of a 400 response: the body is not a
/// valid review.
pub fn request(review: &Value) -> Result<&Value, String> {
    if review["kind"] != "AdmissionReview" || review["apiVersion"] != "admission.k8s.io/v1" {
        return Err("expected an AdmissionReview of admission.k8s.io/v1".to_owned());
    }
    let asked = &review["request"];
    if asked["uid"].as_str().is_none_or(str::is_empty) {
        return Err("request.uid is missing".to_owned());
    }
    Ok(asked)
}

/// The AdmissionReview that answers a request: a rejection if there are errors, else a patch from
/// the request's object to `changed`.
pub fn respond(asked: &Value, changed: Option<&Value>, errors: &[field::Error]) -> Value {
    let mut response = json!({"uid": asked["uid"], "allowed": errors.is_empty()});
    let patch = changed.map(|changed| json_patch(&asked["object"], changed)).unwrap_or_default();
    if !errors.is_empty() {
        response["status"] = denial(&field::aggregate(errors));
    } else if !patch.is_empty() {
        let patch = Value::Array(patch).to_string();
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(base64::engine::general_purpose::STANDARD.encode(patch));
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// The Status of a rejected AdmissionReview. Kueue's and JobSet's webhooks return plain errors to
/// their library, which responds with 403. Clients check for Forbidden, not for Invalid.
pub fn denial(message: &str) -> Value {
    json!({"code": 403, "reason": "Forbidden", "message": message})
}

/// Responds to a ConversionReview. An error is the message of a 400 response: the body is not a
/// valid review.
pub fn conversion(review: &Value) -> Result<Value, String> {
    if review["kind"] != "ConversionReview" || review["apiVersion"] != "apiextensions.k8s.io/v1" {
        return Err("expected a ConversionReview of apiextensions.k8s.io/v1".to_owned());
    }
    let asked = &review["request"];
    let wanted = asked["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = asked["objects"].as_array().map(Vec::as_slice).unwrap_or_default();
    let converted: Result<Vec<Value>, String> = objects
        .iter()
        .map(|object| conversion::convert(object.clone(), wanted).map_err(|error| error.to_string()))
        .collect();
    let response = match converted {
        Ok(objects) => json!({"uid": asked["uid"], "result": {"status": "Success"}, "convertedObjects": objects}),
        Err(message) => json!({"uid": asked["uid"], "result": {"status": "Failure", "message": message}}),
    };
    Ok(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}))
}

/// The JSON patch (RFC 6902) from one value to the other. Lists are replaced as a whole.
fn json_patch(before: &Value, after: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    difference(before, after, String::new(), &mut operations);
    operations
}

fn difference(before: &Value, after: &Value, path: String, operations: &mut Vec<Value>) {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        if before != after {
            operations.push(json!({"op": "replace", "path": path, "value": after}));
        }
        return;
    };
    let at = |key: &str| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
    for (key, value) in old {
        match new.get(key) {
            None => operations.push(json!({"op": "remove", "path": at(key)})),
            Some(changed) => difference(value, changed, at(key), operations),
        }
    }
    for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
        operations.push(json!({"op": "add", "path": at(key), "value": value}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn review(object: Value) -> Value {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "CREATE", "namespace": "team",
            "resource": {"group": "batch", "version": "v1", "resource": "jobs"}, "object": object,
        }})
    }

    fn job(labels: Value) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "team", "labels": labels},
            "spec": {"suspend": false, "template": {"spec": {"containers": [], "restartPolicy": "Never"}}}})
    }

    #[test]
    fn a_job_with_a_queue_is_suspended_and_another_is_unchanged() {
        let webhooks = Webhooks::new(Config::default());
        let ask = |object| admission(&webhooks, Stage::Mutate, &review(object), &|_, _, _, _| None).unwrap();
        let held = ask(job(json!({"kueue.x-k8s.io/queue-name": "main"})));
        let patch = held["response"]["patch"].as_str().expect("a patch");
        let patch = base64::engine::general_purpose::STANDARD.decode(patch).unwrap();
        let patch: Value = serde_json::from_slice(&patch).unwrap();
        assert_eq!(patch, json!([{"op": "replace", "path": "/spec/suspend", "value": true}]));
        assert_eq!(ask(job(json!({})))["response"], json!({"uid": "u", "allowed": true}));
    }

    #[test]
    fn a_rejection_contains_the_field_path() {
        let webhooks = Webhooks::new(Config::default());
        let wrong = job(json!({"kueue.x-k8s.io/queue-name": "Not A Name"}));
        let answer = admission(&webhooks, Stage::Validate, &review(wrong), &|_, _, _, _| None).unwrap();
        assert_eq!(answer["response"]["allowed"], false);
        let message = answer["response"]["status"]["message"].as_str().unwrap();
        assert!(message.contains("metadata.labels[kueue.x-k8s.io/queue-name]"), "{message}");
        let status = &answer["response"]["status"];
        assert_eq!((&status["code"], &status["reason"]), (&json!(403), &json!("Forbidden")));
        assert!(admission(&webhooks, Stage::Validate, &json!({"kind": "Pod"}), &|_, _, _, _| None).is_err());
    }

    #[test]
    fn status_writes_of_other_controllers_are_validated() {
        let webhooks = Webhooks::new(Config::default());
        let workload = |pool: &str| {
            let updates = json!([{"name": "main", "nodeSelector": {"pool": pool}}]);
            let check = json!({"name": "check", "state": "Ready", "message": "", "podSetUpdates": updates,
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {"name": "w", "namespace": "team"}, "status": {"admissionChecks": [check]},
                "spec": {"podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": []}}}]}})
        };
        let ask = |part: &str, user: &str| {
            let request = json!({"uid": "u", "operation": "UPDATE", "namespace": "team", "subResource": part,
                "resource": {"group": "kueue.x-k8s.io", "version": "v1beta2", "resource": "workloads"},
                "userInfo": {"username": user}, "object": workload("new"), "oldObject": workload("old")});
            let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
            admission(&webhooks, Stage::Validate, &review, &|_, _, _, _| None).unwrap()["response"].clone()
        };
        let refused = ask("status", "a-check-controller");
        let message = refused["status"]["message"].as_str().unwrap_or_default();
        assert!(message.contains("status.admissionChecks[0].podSetUpdates"), "{refused}");
        assert_eq!(
            ask("status", crate::rights::USER)["allowed"],
            true,
            "the controllers' own writes are not validated"
        );
        assert_eq!(ask("scale", "a-check-controller")["allowed"], true);
    }

    #[test]
    fn accounts_that_may_not_set_owner_references_are_rejected() {
        let mut config = Config::default();
        let ask = |config: &Config, groups: &[&str]| {
            let mut object = job(json!({}));
            object["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "mine", "uid": "u", "controller": true}]);
            let mut review = review(object);
            review["request"]["userInfo"] = json!({"username": "tenant", "groups": groups});
            let webhooks = Webhooks::new(config.clone());
            let answer = admission(&webhooks, Stage::Validate, &review, &|_, _, _, _| None).unwrap();
            answer["response"]["allowed"] == true
        };
        assert!(ask(&config, &["tenants"]));
        let groups = vec!["controllers".to_owned()];
        config.integrations.owner_reference_writers =
            Some(crate::configuration::Accounts { users: Vec::new(), groups });
        assert!(!ask(&config, &["tenants"]));
        assert!(ask(&config, &["tenants", "controllers"]));
    }

    #[test]
    fn versions_are_converted_and_failures_reported() {
        let ask = |wanted: &str| {
            conversion(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
                "uid": "u", "desiredAPIVersion": wanted, "objects": [{"apiVersion": "kueue.x-k8s.io/v1beta1",
                    "kind": "LocalQueue", "metadata": {"name": "q", "namespace": "n"}, "spec": {"clusterQueue": "c"}}]}}))
            .unwrap()["response"]
                .clone()
        };
        let done = ask("kueue.x-k8s.io/v1beta2");
        assert_eq!(done["result"]["status"], "Success");
        assert_eq!(done["convertedObjects"][0]["apiVersion"], "kueue.x-k8s.io/v1beta2");
        assert_eq!(ask("kueue.x-k8s.io/v9")["result"]["status"], "Failure");
    }
}
