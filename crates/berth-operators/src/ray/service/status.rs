//! The status of a RayService: suspension, promotion of a pending cluster, and conditions. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::frameworks::{RayCluster, RayService};
use berth_runtime::set_condition;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::clusters::{needs_new, observed};
use super::types::{
    ApplicationState, ClusterState, DeploymentState, RayServiceSpec, RayServiceStatus, condition, reason,
};
use super::validate::initializing_timeout;
use crate::ray::dashboard::Application;
use crate::ray::names;

/// Sets a condition. Its transition time changes only if its value changes.
fn set(status: &mut RayServiceStatus, kind: &str, value: &str, reason: &str, message: &str, now: Timestamp) {
    let condition = Condition {
        status: value.to_owned(),
        observed_generation: status.observed_generation,
        ..berth_runtime::condition(kind, false, reason, message, now)
    };
    set_condition(&mut status.conditions, condition);
}

/// Records that the spec is not valid.
pub fn refuse(service: &RayService, status: &mut RayServiceStatus, message: &str, now: Timestamp) {
    status.observed_generation = service.metadata.generation;
    set(status, condition::READY, "False", reason::VALIDATION_FAILED, message, now);
}

/// How a step continues after [`suspension`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspension {
    /// The service is not suspended.
    Run,
    /// Only the status is written.
    Stop,
    /// All objects are deleted, and the status is written.
    Delete,
}

/// Takes the next step of a suspension. A suspension that has begun is completed, even if the user
/// resumes the service meanwhile.
pub fn suspension(
    service: &RayService,
    spec: &RayServiceSpec,
    status: &mut RayServiceStatus,
    has_objects: bool,
    now: Timestamp,
) -> Suspension {
    let all = |status: &mut RayServiceStatus, why: &str, ready: &str| {
        set(status, condition::READY, "False", why, ready, now);
        set(status, condition::UPGRADE_IN_PROGRESS, "False", why, "No upgrade in progress.", now);
        set(status, condition::ROLLBACK_IN_PROGRESS, "False", why, "No rollback in progress.", now);
    };
    if status.is_true(condition::SUSPENDED) {
        if spec.suspend {
            return Suspension::Stop;
        }
        status.observed_generation = service.metadata.generation;
        let message = "Spec.Suspend is false; RayService has resumed.";
        set(status, condition::SUSPENDED, "False", reason::RESUMED, message, now);
        // The time limit for becoming ready starts again now.
        status.conditions.retain(|known| ![condition::READY, condition::UPGRADE_IN_PROGRESS].contains(&&*known.type_));
        let message = "RayService is initializing after resuming from suspend.";
        set(status, condition::READY, "False", reason::INITIALIZING, message, now);
        set(status, condition::UPGRADE_IN_PROGRESS, "False", reason::INITIALIZING, message, now);
        return Suspension::Run;
    }
    if !status.is_true(condition::SUSPENDING) {
        if !spec.suspend {
            return Suspension::Run;
        }
        status.observed_generation = service.metadata.generation;
        let message = "Spec.Suspend is true; will delete all Kubernetes resources owned by this RayService.";
        set(status, condition::SUSPENDING, "True", reason::SUSPEND_REQUESTED, message, now);
        all(status, reason::SUSPEND_IN_PROGRESS, "RayService is suspending.");
        status.active_service_status = ClusterState::default();
        status.pending_service_status = ClusterState::default();
        status.num_serve_endpoints = 0;
        status.service_status = String::new();
        return Suspension::Stop;
    }
    if has_objects {
        let message = "Waiting for all Kubernetes resources owned by this RayService to be deleted.";
        set(status, condition::SUSPENDING, "True", reason::SUSPEND_IN_PROGRESS, message, now);
        return Suspension::Delete;
    }
    let message = "All owned resources have been deleted.";
    set(status, condition::SUSPENDING, "False", reason::SUSPEND_COMPLETE, message, now);
    set(status, condition::SUSPENDED, "True", reason::SUSPEND_COMPLETE, message, now);
    all(status, reason::SUSPEND_COMPLETE, "RayService is suspended.");
    Suspension::Stop
}

/// The applications of a cluster, and whether all of them run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Serving {
    /// True if there is an application and all run.
    pub is_ready: bool,
    /// The applications.
    pub applications: BTreeMap<String, ApplicationState>,
}

impl Serving {
    /// The applications as the dashboard reports them.
    pub fn of(reported: BTreeMap<String, Application>) -> Self {
        let is_ready = !reported.is_empty() && reported.values().all(|application| application.status == "RUNNING");
        let applications = reported.into_iter().map(|(name, application)| {
            let deployments = application.deployments.into_iter().map(|(name, deployment)| {
                (name, DeploymentState { status: deployment.status, message: deployment.message })
            });
            let state = ApplicationState {
                serve_deployment_statuses: deployments.collect(),
                status: application.status,
                message: application.message,
            };
            (if name.is_empty() { "default".to_owned() } else { name }, state)
        });
        Self { is_ready, applications: applications.collect() }
    }
}

/// What a status depends on.
#[derive(Clone, Debug, Default)]
pub struct Observed<'a> {
    /// The active cluster.
    pub active: Option<&'a RayCluster>,
    /// The pending cluster.
    pub pending: Option<&'a RayCluster>,
    /// Applications of the active cluster.
    pub on_active: BTreeMap<String, ApplicationState>,
    /// Applications of the pending cluster.
    pub on_pending: BTreeMap<String, ApplicationState>,
    /// Name of the cluster that the Services select, if one is ready.
    pub points_to: Option<String>,
    /// Number of pods that serve requests.
    pub endpoints: usize,
}

/// Computes the status. Returns the message of an event if the service times out in this step, or
/// the remaining time until it would.
pub fn update(
    service: &RayService,
    spec: &RayServiceSpec,
    status: &mut RayServiceStatus,
    seen: Observed<'_>,
    now: Timestamp,
) -> (Option<String>, Option<Duration>) {
    status.observed_generation = service.metadata.generation;
    status.active_service_status.ray_cluster_status = observed(seen.active);
    status.pending_service_status.ray_cluster_status = observed(seen.pending);
    status.active_service_status.application_statuses = seen.on_active;
    status.pending_service_status.application_statuses = seen.on_pending;
    let mut pending_serves = false;
    if let Some(name) = seen.points_to {
        pending_serves = name == status.pending_service_status.ray_cluster_name;
        if pending_serves {
            status.active_service_status = std::mem::take(&mut status.pending_service_status);
        }
    }
    // The name of a pending cluster is not replaced before the cluster exists.
    let awaited = !status.pending_service_status.ray_cluster_name.is_empty() && seen.pending.is_none();
    if !pending_serves && !awaited && needs_new(spec, seen.active, seen.pending) {
        let (uid, version) = (service.uid().unwrap_or_default(), service.resource_version().unwrap_or_default());
        let name = format!("{}-{}", service.name_any(), names::suffix(&[&uid, &version, "cluster"]));
        status.pending_service_status = ClusterState { ray_cluster_name: name, ..ClusterState::default() };
    }
    status.num_serve_endpoints = i32::try_from(seen.endpoints).unwrap_or(i32::MAX);
    let timeout = conditions(service, status, now);
    status.service_status = if status.is_true(condition::READY) { "Running" } else { "" }.to_owned();
    timeout
}

/// Sets the conditions of a service that is not suspended.
fn conditions(
    service: &RayService,
    status: &mut RayServiceStatus,
    now: Timestamp,
) -> (Option<String>, Option<Duration>) {
    if status.conditions.is_empty() {
        for kind in [condition::READY, condition::UPGRADE_IN_PROGRESS] {
            set(status, kind, "False", reason::INITIALIZING, "RayService is initializing", now);
        }
    }
    let mut timeout = (None, None);
    if status.num_serve_endpoints > 0 {
        let message = "Number of serve endpoints is greater than 0";
        set(status, condition::READY, "True", reason::NON_ZERO_ENDPOINTS, message, now);
    } else if status.is_true(condition::READY) {
        let message = "Number of serve endpoints dropped to 0";
        set(status, condition::READY, "False", reason::ZERO_ENDPOINTS, message, now);
    } else {
        timeout = time_out(service, status, now);
    }
    let has = |state: &ClusterState| !state.ray_cluster_name.is_empty();
    let kind = condition::UPGRADE_IN_PROGRESS;
    match (has(&status.active_service_status), has(&status.pending_service_status)) {
        (true, true) => {
            set(status, kind, "True", reason::BOTH_CLUSTERS, "Both active and pending Ray clusters exist", now);
        }
        (true, false) => {
            let message = "Active Ray cluster exists and no pending Ray cluster";
            set(status, kind, "False", reason::NO_PENDING_CLUSTER, message, now);
        }
        (false, _) => {
            let known = status.condition(kind).map(|known| known.reason.clone()).unwrap_or_default();
            if ![reason::INITIALIZING, reason::INITIALIZING_TIMEOUT].contains(&known.as_str()) {
                let message = "No active Ray cluster exists, and the RayService is not initializing.";
                set(status, kind, "Unknown", reason::NO_ACTIVE_CLUSTER, message, now);
            }
        }
    }
    timeout
}

/// Gives up a service that did not become ready in time.
fn time_out(service: &RayService, status: &mut RayServiceStatus, now: Timestamp) -> (Option<String>, Option<Duration>) {
    let limit = initializing_timeout(service.annotations()).ok().flatten();
    let initializing = status.condition(condition::READY).filter(|ready| ready.reason == reason::INITIALIZING);
    let (Some(limit), Some(ready)) = (limit, initializing) else { return (None, None) };
    let since = ready.last_transition_time.0;
    let until = SignedDuration::try_from(limit).ok().and_then(|limit| since.checked_add(limit).ok());
    let until = until.unwrap_or(Timestamp::MAX);
    if until > now {
        return (None, Duration::try_from(until.duration_since(now)).ok());
    }
    let spent = now.duration_since(since).as_secs();
    let limit = limit.as_secs();
    let message = format!(
        "RayService failed to become ready within the configured timeout of {limit}s. Time spent initializing: {spent}s"
    );
    status.active_service_status.ray_cluster_name.clear();
    status.pending_service_status.ray_cluster_name.clear();
    set(status, condition::READY, "False", reason::INITIALIZING_TIMEOUT, &message, now);
    let event = format!("RayService initializing timeout exceeded after {spent}s (configured timeout: {limit}s)");
    (Some(event), None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ray::service::clusters::cluster;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + seconds).unwrap()
    }

    fn service(image: &str) -> (RayService, RayServiceSpec) {
        let template = json!({"spec": {"containers": [{"name": "ray-head", "image": image}]}});
        let mut service = RayService::named("fruit");
        service.metadata.uid = Some("u1".into());
        service.metadata.resource_version = Some("5".into());
        service.spec = json!({"rayClusterConfig": {"headGroupSpec": {"template": template}}});
        let spec = RayServiceSpec::read(&service.spec).unwrap();
        (service, spec)
    }

    /// Names of the active and the pending cluster.
    fn clusters(status: &RayServiceStatus) -> (&str, &str) {
        (&status.active_service_status.ray_cluster_name, &status.pending_service_status.ray_cluster_name)
    }

    fn reasons(status: &RayServiceStatus) -> Vec<(&str, &str)> {
        status.conditions.iter().map(|it| (it.status.as_str(), it.reason.as_str())).collect()
    }

    #[test]
    fn a_new_service_names_a_pending_cluster_and_promotes_it_once_it_serves() {
        let (fruit, spec) = service("ray:1");
        let mut status = RayServiceStatus::default();
        update(&fruit, &spec, &mut status, Observed::default(), at(0));
        let first = status.pending_service_status.ray_cluster_name.clone();
        assert!(first.starts_with("fruit-"), "{first}");
        assert_eq!(reasons(&status), [("False", "Initializing"), ("False", "Initializing")]);
        let made = cluster(&fruit, &spec, &first);
        let seen = || Observed { pending: Some(&made), ..Observed::default() };
        update(&fruit, &spec, &mut status, seen(), at(1));
        assert_eq!(clusters(&status), ("", first.as_str()));
        let serving = Observed { points_to: Some(first.clone()), endpoints: 2, ..seen() };
        update(&fruit, &spec, &mut status, serving, at(2));
        assert_eq!((clusters(&status), status.service_status.as_str()), ((first.as_str(), ""), "Running"));
        assert_eq!(reasons(&status), [("True", "NonZeroServeEndpoints"), ("False", "NoPendingCluster")]);
        let seen = Observed { active: Some(&made), points_to: Some(first.clone()), ..Observed::default() };
        update(&fruit, &spec, &mut status, seen, at(3));
        assert_eq!(reasons(&status), [("False", "ZeroServeEndpoints"), ("False", "NoPendingCluster")]);
        assert_eq!((clusters(&status), status.service_status.as_str()), ((first.as_str(), ""), ""));
    }

    #[test]
    fn another_image_is_served_by_another_cluster() {
        let (old, old_spec) = service("ray:1");
        let active = cluster(&old, &old_spec, "fruit-aaaaa");
        let (fruit, spec) = service("ray:2");
        let mut status = RayServiceStatus::default();
        status.active_service_status.ray_cluster_name = "fruit-aaaaa".into();
        let seen = || Observed { active: Some(&active), endpoints: 1, ..Observed::default() };
        update(&fruit, &spec, &mut status, seen(), at(0));
        let next = status.pending_service_status.ray_cluster_name.clone();
        assert!(!next.is_empty() && next != "fruit-aaaaa", "{next}");
        assert_eq!(reasons(&status)[1], ("True", "BothActivePendingClustersExist"));
        update(&fruit, &spec, &mut status, seen(), at(1));
        assert_eq!(clusters(&status), ("fruit-aaaaa", next.as_str()), "the name stays until the cluster exists");
        let made = cluster(&fruit, &spec, &next);
        let seen = Observed { pending: Some(&made), points_to: Some(next.clone()), ..seen() };
        update(&fruit, &spec, &mut status, seen, at(2));
        assert_eq!(clusters(&status), (next.as_str(), ""));
        assert_eq!(reasons(&status)[1], ("False", "NoPendingCluster"));
    }

    #[test]
    fn suspension_is_carried_through_and_undone() {
        let (mut fruit, mut spec) = service("ray:1");
        fruit.metadata.generation = Some(2);
        spec.suspend = true;
        let mut status = RayServiceStatus::default();
        status.active_service_status.ray_cluster_name = "fruit-aaaaa".into();
        assert_eq!(suspension(&fruit, &spec, &mut status, true, at(0)), Suspension::Stop);
        assert_eq!((status.is_true(condition::SUSPENDING), clusters(&status)), (true, ("", "")));
        spec.suspend = false;
        assert_eq!(suspension(&fruit, &spec, &mut status, true, at(1)), Suspension::Delete);
        assert_eq!(suspension(&fruit, &spec, &mut status, false, at(2)), Suspension::Stop);
        assert_eq!((status.is_true(condition::SUSPENDED), status.is_true(condition::SUSPENDING)), (true, false));
        assert_eq!(suspension(&fruit, &spec, &mut status, false, at(3)), Suspension::Run);
        let ready = status.condition(condition::READY).unwrap();
        assert_eq!((ready.reason.as_str(), ready.last_transition_time.0), ("Initializing", at(3)));
    }

    #[test]
    fn a_service_that_does_not_become_ready_in_time_is_given_up() {
        let (mut fruit, spec) = service("ray:1");
        fruit.metadata.annotations = Some(BTreeMap::from([("ray.io/initializing-timeout".into(), "60".into())]));
        let mut status = RayServiceStatus::default();
        let (event, after) = update(&fruit, &spec, &mut status, Observed::default(), at(0));
        assert_eq!((event, after.unwrap().as_secs()), (None, 60));
        let (event, _) = update(&fruit, &spec, &mut status, Observed::default(), at(60));
        assert!(event.unwrap().contains("timeout exceeded after 60s"));
        assert!(status.has_timed_out());
        assert_eq!(clusters(&status), ("", ""));
    }
}
