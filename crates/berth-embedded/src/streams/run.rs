//! Selects the run of a container for a request, by the pod's status. The rules and messages are
//! those of kubelets.

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_pod_runtime::{ContainerId, PodUid};
use serde_json::Value;

/// Lists of containers' states in a pod's status.
const LISTS: [&str; 3] = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];

/// An error that a kubelet reports with code 500, in its own words.
pub(super) fn kubelet_error(message: String) -> Status {
    Status { message, ..Status::internal("") }
}

fn status_of<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let mut all = LISTS.iter().flat_map(|list| pod["status"][*list].as_array().into_iter().flatten());
    all.find(|status| status["name"] == name)
}

/// The run with the ID `shown` (`berth://UID_NAME_ATTEMPT`); without such an ID, the run with
/// number `attempt`.
fn id(pod: &Value, name: &str, shown: &Value, attempt: u64) -> ContainerId {
    let shown = shown.as_str().and_then(|id| id.rsplit_once('_')).and_then(|(_, attempt)| attempt.parse().ok());
    let attempt = shown.unwrap_or(u32::try_from(attempt).unwrap_or(u32::MAX));
    ContainerId { pod: PodUid(meta::uid(pod).to_owned()), name: name.to_owned(), attempt }
}

/// The current run of a running container.
///
/// # Errors
/// 500 if the container does not run.
pub(super) fn running(pod: &Value, name: &str) -> Result<ContainerId, Status> {
    let status = status_of(pod, name).filter(|status| status["state"]["running"].is_object());
    let status = status.ok_or_else(|| kubelet_error(format!("container not found ({name:?})")))?;
    Ok(id(pod, name, &status["containerID"], status["restartCount"].as_u64().unwrap_or(0)))
}

/// The run whose log is requested: the current one, or the previous one if `previous` is true or
/// the current one did not start.
///
/// # Errors
/// 400 if that run does not exist.
pub(super) fn logged(pod: &Value, name: &str, previous: bool) -> Result<ContainerId, Status> {
    let pod_name = meta::name(pod);
    let refused = |why: &str| Status::bad_request(format!("container {name:?} in pod {pod_name:?} {why}"));
    let status = status_of(pod, name).ok_or_else(|| refused("is not available"))?;
    let restarts = status["restartCount"].as_u64().unwrap_or(0);
    let (state, last) = (&status["state"], &status["lastState"]["terminated"]);
    let waits = !state["running"].is_object() && !state["terminated"].is_object();
    let of_last = || id(pod, name, &last["containerID"], restarts.saturating_sub(u64::from(!waits)));
    if previous {
        return if last.is_object() {
            Ok(of_last())
        } else {
            let text = format!("previous terminated container {name:?} in pod {pod_name:?} not found");
            Err(Status::bad_request(text))
        };
    }
    if state["running"].is_object() {
        return Ok(id(pod, name, &status["containerID"], restarts));
    }
    if let Some(terminated) = state.get("terminated").filter(|it| it.is_object()) {
        // A container that could not be started has no log; an earlier run may have one.
        let has_run = terminated["startedAt"].is_string() || terminated["containerID"].is_string();
        return match (has_run, last.is_object()) {
            (true, _) => Ok(id(pod, name, &terminated["containerID"], restarts)),
            (false, true) => Ok(of_last()),
            (false, false) => Err(refused("is terminated")),
        };
    }
    if last.is_object() {
        return Ok(of_last());
    }
    Err(match state["waiting"]["reason"].as_str() {
        Some("ErrImagePull") => refused("is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => refused("is waiting to start: trying and failing to pull image"),
        Some(reason) => refused(&format!("is waiting to start: {reason}")),
        None => refused("is waiting to start - no logs yet"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: Value) -> Value {
        let mut status = status;
        status["name"] = json!("main");
        json!({"metadata": {"name": "p", "uid": "u1"}, "status": {"ephemeralContainerStatuses": [status]}})
    }

    fn attempt(result: Result<ContainerId, Status>) -> Result<u32, (u16, String)> {
        result.map(|id| id.attempt).map_err(|error| (error.code, error.message))
    }

    #[test]
    fn a_command_runs_in_the_current_run_of_a_running_container() {
        let of = |status: Value| attempt(running(&pod(status), "main"));
        let state = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        assert_eq!(of(json!({"state": state, "restartCount": 2})), Ok(2));
        assert_eq!(of(json!({"state": state, "restartCount": 2, "containerID": "berth://u1_main_3"})), Ok(3));
        let missing = Err((500, "container not found (\"main\")".to_owned()));
        assert_eq!(of(json!({"state": {"terminated": {"exitCode": 0}}})), missing);
        assert_eq!(attempt(running(&json!({}), "main")), missing);
    }

    #[test]
    fn a_log_is_of_the_current_or_the_previous_run() {
        let of = |status: Value, previous| attempt(logged(&pod(status), "main", previous));
        let ended = json!({"terminated": {"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z"}});
        let again = json!({"state": {"running": {}}, "lastState": ended, "restartCount": 3});
        assert_eq!((of(again.clone(), false), of(again, true)), (Ok(3), Ok(2)));
        let backs_off =
            json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended, "restartCount": 3});
        assert_eq!((of(backs_off.clone(), false), of(backs_off, true)), (Ok(3), Ok(3)));
        assert_eq!(of(json!({"state": ended, "restartCount": 0}), false), Ok(0));
    }

    #[test]
    fn a_container_without_a_run_has_no_log_and_the_reason_is_reported() {
        let of = |status: Value, previous| attempt(logged(&pod(status), "main", previous)).unwrap_err();
        let text = |end: &str| (400, format!("container \"main\" in pod \"p\" {end}"));
        let waiting = |reason: &str| json!({"state": {"waiting": {"reason": reason}}});
        let creating = waiting("ContainerCreating");
        assert_eq!(of(creating.clone(), false), text("is waiting to start: ContainerCreating"));
        assert_eq!(of(waiting("ErrImagePull"), false), text("is waiting to start: image can't be pulled"));
        assert_eq!(of(json!({}), false), text("is waiting to start - no logs yet"));
        assert_eq!(of(json!({"state": {"terminated": {"exitCode": 128}}}), false), text("is terminated"));
        let previous = (400, "previous terminated container \"main\" in pod \"p\" not found".to_owned());
        assert_eq!(of(creating, true), previous);
        assert_eq!(attempt(logged(&json!({}), "main", false)).unwrap_err().0, 400);
    }
}
