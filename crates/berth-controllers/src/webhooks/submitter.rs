//! The user that created a job, as an annotation: Kubernetes records it nowhere else, and usage is
//! reported by user.

use berth_api::berth::SUBMITTED_BY_ANNOTATION;
use berth_api::kueue::constants::GROUP;
use berth_api::kueue::labels::QUEUE_NAME;
use berth_apimachinery::meta;
use serde_json::{Value, json};

use super::Request;

/// Sets the annotation on a new job that names a queue, in place of one that the client set. An
/// update keeps the annotation as it is.
pub fn stamp(request: Request<'_>, user: &str, object: &mut Value) {
    if request.group == GROUP || user.is_empty() {
        return;
    }
    let Some(old) = request.old_object else {
        if meta::label(object, QUEUE_NAME).is_some_and(|queue| !queue.is_empty()) {
            object["metadata"]["annotations"][SUBMITTED_BY_ANNOTATION] = json!(user);
        }
        return;
    };
    let before = old["metadata"]["annotations"].get(SUBMITTED_BY_ANNOTATION);
    match (before, object["metadata"].get_mut("annotations").and_then(Value::as_object_mut)) {
        (Some(before), _) => object["metadata"]["annotations"][SUBMITTED_BY_ANNOTATION] = before.clone(),
        (None, Some(annotations)) => drop(annotations.remove(SUBMITTED_BY_ANNOTATION)),
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(old: Option<Value>, mut object: Value) -> Value {
        let request = Request { group: "batch", resource: "jobs", namespace: "team", old_object: old.as_ref() };
        stamp(request, "alice", &mut object);
        object["metadata"]["annotations"].take()
    }

    #[test]
    fn the_user_of_a_queued_job_is_recorded_and_cannot_be_chosen() {
        let job =
            |annotations: Value| json!({"metadata": {"labels": {QUEUE_NAME: "main"}, "annotations": annotations}});
        let alice = json!({SUBMITTED_BY_ANNOTATION: "alice"});
        assert_eq!(stamped(None, json!({"metadata": {"labels": {QUEUE_NAME: "main"}}})), alice);
        assert_eq!(stamped(None, job(json!({SUBMITTED_BY_ANNOTATION: "bob"}))), alice);
        assert_eq!(stamped(None, json!({"metadata": {}})), Value::Null, "the job names no queue");
        assert_eq!(stamped(Some(job(alice.clone())), job(json!({SUBMITTED_BY_ANNOTATION: "bob"}))), alice);
        assert_eq!(stamped(Some(job(alice.clone())), json!({"metadata": {}})), alice);
        assert_eq!(stamped(Some(job(json!({}))), job(json!({SUBMITTED_BY_ANNOTATION: "bob"}))), json!({}));
    }
}
