//! Recorded cases of JobSet's controller and webhooks (suites `jobset-controller-*` and
//! `jobset-webhook-*`). They run through the functions that Berth's JobSet controller and admission
//! call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::jobset::v1alpha2::{FailurePolicyAction, FailurePolicyRule, JobSet, ReplicatedJob, StartupPolicy};
use berth_cluster::jobset::children::{self, Children};
use berth_cluster::jobset::placement::{self, ClusterView, PlacementError};
use berth_cluster::jobset::{Gates, conditions, construct, failure, in_place, names, plan, policies, webhook};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Case, Runner, Verdict};

/// The runner of a suite, if it belongs to this module.
pub fn runner(suite: &str) -> Option<Runner> {
    if let Some(suite) = suite.strip_prefix("jobset-controller-") {
        return Some(match suite {
            "add-volumes" => add_volumes,
            "all-equal" => all_equal,
            "apply-failure-policy-rule-action" => apply_action,
            "calculate-replicated-job-statuses" => statuses,
            "check-if-ttl-expired" => ttl_expired,
            "construct-jobs-from-template" => construct_jobs,
            "create-headless-svc-if-necessary" => headless_service,
            "delete-follower-pods" => delete_followers,
            "dependency-reached-status" => dependency_reached,
            "exceeded-max-restarts" => exceeded_max_restarts,
            "execute-ttl-after-finished-policy" => execute_ttl,
            "failure-policy-rule-is-applicable" => rule_applies,
            "find-first-failed-job" => first_failed,
            "find-first-failed-policy-rule-and-job" => first_rule,
            "get-in-place-restart-attempts" => attempts,
            "get-max-container-restart-count" => container_restarts,
            "get-total-number-of-pods" => pods_expected,
            "global-job-index" => global_index,
            "global-replicas" => global_replicas,
            "group-job-index" => group_index,
            "group-replicas" => group_replicas,
            "in-order-startup-policy" => in_order,
            "is-in-place-restart-strategy" => is_in_place,
            "is-job-finished" => job_finished,
            "job-matches-success-policy" => job_matches,
            "num-jobs-expected-to-succeed" => successes_needed,
            "num-jobs-matching-success-policy" => successes,
            "reconcile-in-place-restart" => reconcile_in_place,
            "reconcile-volume-claim-policies" => volume_claims,
            "replicated-job-matches-success-policy" => entry_matches,
            "replicated-job-started" => entry_started,
            "requeue-job-set-after" => requeue_after,
            "sync-job-scaling" => job_scaling,
            "time-left" => time_left,
            "update-conditions" => update_conditions,
            "update-current-in-place-restart-attempt" => update_current,
            "update-previous-in-place-restart-attempt" => update_previous,
            "validate-pod-placements" => pod_placements,
            _ => return None,
        });
    }
    Some(match suite.strip_prefix("jobset-webhook-")? {
        "default" => pod_default,
        "job-set-defaulting" => set_defaulting,
        "leader-pod-for-follower" => leader_for_follower,
        "leader-pod-name" => leader_name,
        "pods-owned-by-same-job" => same_job,
        "validate-create" => validate_create,
        "validate-update" => validate_update,
        _ => return None,
    })
}

/// An input field as a typed value. The type's default if the field is absent. Empty enumerations
/// count as absent: the recording writes zero values that the API would reject.
fn input<T: DeserializeOwned + Default>(case: &Case, field: &str) -> Result<T, String> {
    read(&case.input[field], field)
}

fn read<T: DeserializeOwned + Default>(value: &Value, what: &str) -> Result<T, String> {
    let mut value = value.clone();
    drop_empty_enums(&mut value);
    if value.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(value).map_err(|error| format!("input.{what}: {error}"))
}

fn drop_empty_enums(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for key in ["operator", "action", "startupPolicyOrder", "restartStrategy"] {
                if fields.get(key).and_then(Value::as_str) == Some("") {
                    fields.remove(key);
                }
            }
            fields.values_mut().for_each(drop_empty_enums);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty_enums),
        _ => {}
    }
}

/// Names of JobSet's feature gates that Berth has.
pub const GATES: [&str; 3] = ["ElasticJobSet", "InPlaceRestart", "RestartJob"];

fn gates(case: &Case) -> Gates {
    let on = |name: &str| case.data["featureGates"][name] == true;
    // Some suites set gates in fields of the input.
    let field = |name: &str| case.input[name] == true;
    let restart_job = field("enableRestartJob") | field("restartJobEnabled");
    Gates {
        restart_job: on("RestartJob") || restart_job,
        in_place_restart: field("enableInPlaceRestart") || on("InPlaceRestart"),
        elastic_jobset: field("enableElasticJobSet") || on("ElasticJobSet"),
    }
}

fn now(case: &Case) -> Timestamp {
    case.data["now"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn want<'a>(case: &'a Case, field: &str) -> &'a Value {
    &case.want[field]
}

/// Compares a result with an expected field. An absent field expects the zero value.
fn expect(case: &Case, field: &str, got: impl Serialize) -> Verdict {
    let got = normal(&serde_json::to_value(got).map_err(|error| error.to_string())?);
    let wanted = normal(want(case, field));
    if got == wanted || is_zero(&wanted) && is_zero(&got) {
        return Ok(());
    }
    Err(difference(field, &wanted, &got))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// The value without nulls, empty lists, empty objects and the fields that the recording omits or
/// writes differently.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept =
                fields.iter().filter(|(key, _)| !matches!(key.as_str(), "creationTimestamp" | "apiVersion" | "kind"));
            Value::Object(
                kept.map(|(key, value)| (key.clone(), normal(value)))
                    .filter(|(_, value)| {
                        !value.is_null()
                            && !value.as_object().is_some_and(serde_json::Map::is_empty)
                            && !value.as_array().is_some_and(Vec::is_empty)
                    })
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(normal).collect()),
        other => other.clone(),
    }
}

fn difference(path: &str, wanted: &Value, got: &Value) -> String {
    if let (Value::Object(wanted), Value::Object(got)) = (wanted, got) {
        let keys = wanted.keys().chain(got.keys().filter(|key| !wanted.contains_key(*key)));
        let lines: Vec<String> = keys
            .filter(|key| wanted.get(*key) != got.get(*key))
            .map(|key| {
                let side = |fields: &serde_json::Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
                difference(&format!("{path}.{key}"), &side(wanted), &side(got))
            })
            .collect();
        return lines.join("\n");
    }
    if let (Value::Array(wanted), Value::Array(got)) = (wanted, got)
        && wanted.len() == got.len()
    {
        let lines = wanted.iter().zip(got).enumerate().filter(|(_, (w, g))| w != g);
        return lines.map(|(at, (w, g))| difference(&format!("{path}[{at}]"), w, g)).collect::<Vec<_>>().join("\n");
    }
    format!("{path}: want {wanted}, got {got}")
}

/// Compares an error. The field `flag` says whether one is expected, and `text` has its message.
fn expect_error(case: &Case, flag: &str, text: &str, got: Option<String>) -> Verdict {
    expect(case, flag, got.is_some())?;
    match want(case, text).as_str().filter(|text| !text.is_empty()) {
        Some(wanted) if got.as_deref() != Some(wanted) => Err(format!("error: want {wanted:?}, got {got:?}")),
        _ => Ok(()),
    }
}

fn go_seconds(left: Duration) -> String {
    format!("{}s", left.as_secs())
}

fn shared(jobs: Vec<Job>) -> Vec<Arc<Job>> {
    jobs.into_iter().map(Arc::new).collect()
}

fn owned_jobs(case: &Case, field: &str) -> Result<Children, String> {
    let list = |name: &str| read::<Vec<Job>>(&case.input[field][name], name).map(shared);
    Ok(Children {
        active: list("active")?,
        successful: list("successful")?,
        failed: list("failed")?,
        previous: list("previous")?,
    })
}

fn add_volumes(case: &Case) -> Verdict {
    let job: Job = input(case, "job")?;
    let mut pod = job.spec.unwrap_or_default().template.spec.unwrap_or_default();
    construct::add_volumes(&input(case, "jobSet")?, &mut pod);
    expect(case, "volumes", pod.volumes)
}

fn all_equal(case: &Case) -> Verdict {
    expect(case, "result", in_place::all_equal(&input::<Vec<i32>>(case, "values")?))
}

fn apply_action(case: &Case) -> Verdict {
    let set: JobSet = input(case, "jobSet")?;
    let mut status = set.status.clone().unwrap_or_default();
    let action: FailurePolicyAction = input(case, "failurePolicyAction")?;
    let rule: Option<FailurePolicyRule> = input(case, "rule")?;
    let job: Job = input(case, "matchingFailedJob")?;
    failure::apply_action(&set, &mut status, action, rule.as_ref(), Some(&job), now(case));
    let mut got = serde_json::to_value(&status).map_err(|error| error.to_string())?;
    for condition in got["conditions"].as_array_mut().into_iter().flatten() {
        condition["message"] = json!("");
        condition.as_object_mut().and_then(|condition| condition.remove("lastTransitionTime"));
    }
    got["restarts"] = json!(status.restarts);
    expect(case, "jobSetStatus", got)
}

fn statuses(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let got = children::replicated_job_statuses(&set, &owned_jobs(case, "jobs")?, gates(case));
    expect(case, "result", got)
}

fn ttl_expired(case: &Case) -> Verdict {
    let set: JobSet = input(case, "jobset")?;
    let now = case.input["clock"]["time"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
    let left = policies::time_left(&set, now);
    expect_error(case, "expectErr", "expectErrStr", left.as_ref().err().map(ToString::to_string))?;
    expect(case, "expectExpired", left == Ok(Some(Duration::ZERO)))
}

fn construct_jobs(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let children = owned_jobs(case, "ownedJobs")?;
    let entries = set.spec.replicated_jobs.iter();
    let jobs: Vec<Job> =
        entries.flat_map(|entry| construct::missing_jobs(&set, entry, &children, gates(case))).collect();
    expect(case, "result", jobs)
}

fn headless_service(case: &Case) -> Verdict {
    let set: JobSet = input(case, "jobSet")?;
    if want(case, "expectErrStr") == "unexpected error" {
        // The API rejects the request in this case: compare whether one is sent.
        expect(case, "expectErr", construct::service(&set).is_some())?;
        expect(case, "expectServiceCreate", false)?;
        expect(case, "expectServiceName", "")?;
        return expect(case, "expectPublishNotReadyAddresses", false);
    }
    expect(case, "expectErr", false)?;
    expect(case, "expectErrStr", "")?;
    let service = construct::service(&set).filter(|_| case.input["existingService"] != true);
    let (meta, spec) = service.clone().map(|service| (service.metadata, service.spec.unwrap_or_default())).unzip();
    expect(case, "expectServiceCreate", service.is_some())?;
    expect(case, "expectServiceName", meta.and_then(|meta| meta.name))?;
    expect(case, "expectPublishNotReadyAddresses", spec.and_then(|spec| spec.publish_not_ready_addresses))
}

fn delete_followers(case: &Case) -> Verdict {
    let pods: Vec<Pod> = input(case, "pods")?;
    let removals = placement::follower_removals(&pods, now(case));
    let fails = case.input["forceClientErr"] == true && !removals.is_empty();
    expect(case, "err", fails.then_some("example error"))?;
    expect(case, "podsDeletedCount", if fails { 0 } else { removals.len() })
}

fn dependency_reached(case: &Case) -> Verdict {
    let entry: ReplicatedJob = input(case, "rJob")?;
    let replicas: BTreeMap<String, i32> = input(case, "rJobReplicas")?;
    expect(case, "result", policies::dependencies_reached(&entry, &replicas, &input::<Vec<_>>(case, "rJobsStatuses")?))
}

fn exceeded_max_restarts(case: &Case) -> Verdict {
    let attempts: Vec<i32> = input(case, "inPlaceRestartAttempts")?;
    expect(case, "result", in_place::exceeds_max_restarts(&input(case, "js")?, &attempts))
}

fn execute_ttl(case: &Case) -> Verdict {
    let set: JobSet = input(case, "jobset")?;
    let left = policies::time_left(&set, now(case));
    let error = left.as_ref().err().map(|error| format!("error checking if ttl expired: {error}"));
    expect_error(case, "expectErr", "expectErrStr", error)?;
    let left = left.ok().flatten();
    expect(case, "expectDeletion", left == Some(Duration::ZERO))?;
    expect(case, "expectRequeueAfter", go_seconds(left.unwrap_or_default()))
}

fn rule_applies(case: &Case) -> Verdict {
    let failed = JobCondition {
        type_: "Failed".into(),
        status: "True".into(),
        reason: input(case, "jobFailureReason")?,
        message: input(case, "jobFailureMessage")?,
        ..Default::default()
    };
    let rule: FailurePolicyRule = input(case, "rule")?;
    expect(case, "result", failure::rule_applies(&rule, &input(case, "failedJob")?, &failed))
}

fn name_of(job: Option<&Job>) -> Value {
    json!({"name": job.and_then(|job| job.metadata.name.as_deref())})
}

fn first_failed(case: &Case) -> Verdict {
    let jobs = shared(input(case, "failedJobs")?);
    let got = name_of(failure::first_failed(&jobs));
    let wanted = json!({"name": want(case, "result")["metadata"]["name"]});
    if got == wanted { Ok(()) } else { Err(difference("result", &wanted, &got)) }
}

fn first_rule(case: &Case) -> Verdict {
    let jobs = shared(input(case, "failedOwnedJobs")?);
    let rules: Vec<FailurePolicyRule> = input(case, "rules")?;
    let found = failure::first_matching_rule(&rules, &jobs);
    let got = json!([found.map(|(rule, _)| rule), name_of(found.map(|(_, job)| job))]);
    let rule: Option<FailurePolicyRule> = read(want(case, "failurePolicyRule"), "rule")?;
    let wanted = json!([rule, {"name": want(case, "job")["metadata"]["name"]}]);
    if got == wanted { Ok(()) } else { Err(difference("result", &wanted, &got)) }
}

fn child_pods(case: &Case) -> Result<Vec<Pod>, String> {
    read(&case.input["childPods"]["items"], "childPods")
}

fn attempts(case: &Case) -> Verdict {
    let got = in_place::attempts(&child_pods(case)?);
    expect(case, "err", got.is_err())?;
    expect(case, "result", got.unwrap_or_default())
}

fn container_restarts(case: &Case) -> Verdict {
    expect(case, "result", in_place::container_restarts_max(&child_pods(case)?))
}

fn pods_expected(case: &Case) -> Verdict {
    let got = in_place::pods_expected(&input(case, "js")?);
    expect(case, "err", got.is_err())?;
    expect(case, "result", got.unwrap_or(0))
}

fn text(number: Option<i32>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn global_index(case: &Case) -> Verdict {
    let (entry, index): (String, i32) = (input(case, "replicatedJob")?, input(case, "jobIdx")?);
    expect(case, "jobGlobalIndex", text(names::global_index(&input(case, "jobSet")?, &entry, index)))
}

fn global_replicas(case: &Case) -> Verdict {
    expect(case, "globalReplicas", names::global_replicas(&input(case, "jobSet")?).to_string())
}

fn group_index(case: &Case) -> Verdict {
    let (entry, index): (String, i32) = (input(case, "replicatedJob")?, input(case, "jobIdx")?);
    let group: String = input(case, "groupName")?;
    expect(case, "groupJobIndex", text(names::group_index(&input(case, "jobSet")?, &group, &entry, index)))
}

fn group_replicas(case: &Case) -> Verdict {
    let group: String = input(case, "groupName")?;
    expect(case, "groupReplicas", names::group_replicas(&input(case, "jobSet")?, &group).to_string())
}

fn in_order(case: &Case) -> Verdict {
    let policy: Option<StartupPolicy> = input(case, "startupPolicy")?;
    expect(case, "result", policies::is_in_order(policy.as_ref()))
}

fn is_in_place(case: &Case) -> Verdict {
    expect(case, "result", in_place::is_in_place(&input(case, "js")?))
}

fn job_finished(case: &Case) -> Verdict {
    let conditions: Vec<JobCondition> = input(case, "conditions")?;
    let finished = children::finished_by(&conditions);
    if case.input["finished"].as_bool().unwrap_or_default() != finished.is_some() {
        return Err(format!("finished: want {}, got {finished:?}", case.input["finished"]));
    }
    expect(case, "conditionType", finished)
}

fn job_matches(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let got = policies::job_counts_for_success(set.spec.success_policy.as_ref(), &input(case, "job")?);
    expect(case, "result", got)
}

fn successes_needed(case: &Case) -> Verdict {
    expect(case, "result", policies::successes_needed(&input(case, "js")?))
}

fn successes(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let jobs: Vec<Job> = input(case, "jobs")?;
    expect(case, "result", policies::successes(set.spec.success_policy.as_ref(), &jobs))
}

fn reconcile_in_place(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let pods: Vec<Pod> = input(case, "pods")?;
    let before = set.status.clone().unwrap_or_default();
    let mut status = before.clone();
    let verdict = in_place::reconcile(&set, &mut status, &pods.iter().collect::<Vec<_>>(), now(case));
    let verdict = verdict.map_err(|error| error.to_string())?;
    expect(case, "failed", matches!(verdict, in_place::Verdict::Failed(_)))?;
    expect(case, "shouldUpdate", verdict != in_place::Verdict::Unchanged)?;
    // The recorded inputs omit zeros: absent and zero are equal.
    for (field, got) in [
        ("previousInPlaceRestartAttempt", status.previous_in_place_restart_attempt),
        ("currentInPlaceRestartAttempt", status.current_in_place_restart_attempt),
        ("restarts", Some(status.restarts)),
    ] {
        let wanted = want(case, "status")[field].as_i64().unwrap_or(0);
        if i64::from(got.unwrap_or(0)) != wanted {
            return Err(format!("status.{field}: want {wanted}, got {got:?}"));
        }
    }
    Ok(())
}

fn volume_claims(case: &Case) -> Verdict {
    if want(case, "expectErrStr") == "unexpected error" {
        // The API rejects the request in this case: compare whether one is sent.
        let has_claims = !construct::volume_claims(&input(case, "jobSet")?).is_empty();
        return if has_claims { Ok(()) } else { Err("expectErrStr: want an error, but no claim is created".into()) };
    }
    expect(case, "expectErrStr", "")?;
    let existing: Option<PersistentVolumeClaim> = input(case, "existingPVC")?;
    let existing = existing.and_then(|claim| claim.metadata.name);
    let mut claims = construct::volume_claims(&input(case, "jobSet")?);
    claims.retain(|claim| existing.is_none() || claim.metadata.name != existing);
    expect(case, "pVCs", claims)
}

fn entry_matches(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let entry: ReplicatedJob = input(case, "replicatedJob")?;
    expect(case, "result", policies::counts_for_success(set.spec.success_policy.as_ref(), &entry.name))
}

fn entry_started(case: &Case) -> Verdict {
    let replicas: i32 = input(case, "replicas")?;
    expect(case, "result", policies::has_started(replicas, Some(&input(case, "replicatedJobStatus")?)))
}

fn requeue_after(case: &Case) -> Verdict {
    let left = policies::time_left(&input(case, "js")?, now(case));
    expect_error(case, "expectErr", "expectErrStr", left.as_ref().err().map(ToString::to_string))?;
    expect(case, "expectRequeueAfter", go_seconds(left.ok().flatten().unwrap_or_default()))
}

fn job_scaling(case: &Case) -> Verdict {
    let jobs = shared(input(case, "activeJobs")?);
    let resized = plan::resized_jobs(&input(case, "jobSet")?, &jobs, gates(case));
    expect(case, "expectPatch", !resized.is_empty())
}

fn time_left(case: &Case) -> Verdict {
    let set: JobSet = input(case, "jobset")?;
    let finished = policies::finished_at(&set);
    expect_error(case, "expectErr", "expectErrStr", finished.as_ref().err().map(ToString::to_string))?;
    if finished.is_err() {
        return Ok(());
    }
    let left = policies::time_left(&set, now(case)).map_err(|error| error.to_string())?;
    expect(case, "timeLeft", left.map(go_seconds))
}

fn update_conditions(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let mut condition = case.input["opts"]["condition"].clone();
    if condition.is_object() && condition["lastTransitionTime"].is_null() {
        condition["lastTransitionTime"] = json!(now(case));
    }
    let condition: Option<Condition> = read(&condition, "opts.condition")?;
    let mut status = set.status.unwrap_or_default();
    expect(case, "update", condition.is_some_and(|condition| conditions::set_condition(&mut status, condition)))
}

fn update_current(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let attempts: Vec<i32> = input(case, "inPlaceRestartAttempts")?;
    let mut status = set.status.unwrap_or_default();
    expect(case, "updated", in_place::update_current(&mut status, &attempts, attempts.len()))?;
    expect(case, "status", status.current_in_place_restart_attempt)
}

fn update_previous(case: &Case) -> Verdict {
    let set: JobSet = input(case, "js")?;
    let attempts: Vec<i32> = input(case, "inPlaceRestartAttempts")?;
    let mut status = set.status.unwrap_or_default();
    expect(case, "updated", in_place::update_previous(&mut status, &attempts))?;
    expect(case, "status", status.previous_in_place_restart_attempt)
}

fn pod_placements(case: &Case) -> Verdict {
    if case.input["forceClientErr"] == true {
        return Err("nodes are read from a cache, which cannot fail like the API request of this case".into());
    }
    let leader: Pod = input(case, "leaderPod")?;
    let pods: Vec<Pod> = read(&case.input["podList"]["items"], "podList")?;
    let is_gone = case.input["forceNodeNotFound"] == true;
    let node: Option<Node> = input::<Option<Node>>(case, "node")?.filter(|_| !is_gone);
    let got = placement::placements_match(&leader, &pods, node.as_ref());
    expect(case, "err", got.as_ref().err().map(ToString::to_string))?;
    expect(case, "matched", got.unwrap_or(false))
}

/// The objects of a case, as a view of the cluster.
struct Existing {
    pods: Vec<Pod>,
    nodes: Vec<Node>,
}

impl Existing {
    fn of(case: &Case, field: &str) -> Result<Self, String> {
        let mut existing = Existing { pods: Vec::new(), nodes: Vec::new() };
        for object in case.input[field].as_array().into_iter().flatten() {
            match object["kind"].as_str() {
                Some("Node") => existing.nodes.push(read(object, field)?),
                _ => existing.pods.push(read(object, field)?),
            }
        }
        Ok(existing)
    }
}

impl ClusterView for Existing {
    fn pods_of_set(&self, namespace: &str, _set: &str) -> Vec<Pod> {
        self.pods.iter().filter(|pod| pod.metadata.namespace.as_deref() == Some(namespace)).cloned().collect()
    }

    fn node(&self, name: &str) -> Option<Node> {
        self.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name)).cloned()
    }
}

fn pod_default(case: &Case) -> Verdict {
    let mut pod: Pod = input(case, "pod")?;
    match placement::prepare_pod(&mut pod, &Existing::of(case, "existingObjs")?) {
        Ok(()) if want(case, "err").is_null() => expect_pod(case, "pod", &pod),
        Err(PlacementError::NodeMissing(_)) if want(case, "err")["code"] == 404 => Ok(()),
        other => Err(format!("err: want {}, got {other:?}", want(case, "err"))),
    }
}

/// Compares a pod. Empty values count: an empty namespace selector of an affinity term selects all
/// namespaces.
fn expect_pod(case: &Case, field: &str, pod: &Pod) -> Verdict {
    let wanted: Pod = read(want(case, field), field)?;
    if wanted == *pod {
        return Ok(());
    }
    let json = |pod: &Pod| serde_json::to_value(pod).unwrap_or_default();
    Err(difference(field, &json(&wanted), &json(pod)))
}

fn set_defaulting(case: &Case) -> Verdict {
    let mut set = case.input["js"].clone();
    webhook::default_jobset(&mut set);
    expect(case, "result", set)
}

fn leader_for_follower(case: &Case) -> Verdict {
    let got = placement::leader_of(&input(case, "followerPod")?, &Existing::of(case, "existingPods")?);
    match got {
        Ok(leader) => {
            expect(case, "err", "")?;
            expect_pod(case, "leaderPod", &leader)
        }
        Err(error) => expect(case, "err", error.to_string()),
    }
}

fn leader_name(case: &Case) -> Verdict {
    let got = placement::leader_name(&input(case, "pod")?);
    expect(case, "err", got.is_err())?;
    expect(case, "result", got.unwrap_or_default())
}

fn same_job(case: &Case) -> Verdict {
    let got = placement::same_job(&input(case, "leaderPod")?, &input(case, "followerPod")?);
    expect(case, "result", got.err().map(|error| error.to_string()))
}

fn validate_create(case: &Case) -> Verdict {
    let claims: Vec<PersistentVolumeClaim> = input(case, "existingObjs")?;
    let lookup = |namespace: &str, name: &str| {
        let mut claims = claims.iter().map(|claim| (&claim.metadata, claim));
        let found =
            claims.find(|(meta, _)| meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name));
        found.map(|(_, claim)| claim.clone())
    };
    let errors = webhook::validate_create(&input(case, "js")?, gates(case), &lookup);
    let text = errors.iter().map(|error| error.to_string()).collect::<Vec<_>>().join("\n");
    match want(case, "result").as_str().filter(|wanted| !wanted.is_empty()) {
        None if errors.is_empty() => Ok(()),
        None => Err(format!("want no error, got {text}")),
        Some(wanted) => match wanted.lines().find(|line| !text.contains(line)) {
            None => Ok(()),
            Some(line) => Err(format!("want {line:?}, got {text:?}")),
        },
    }
}

fn validate_update(case: &Case) -> Verdict {
    let errors = webhook::validate_update(&input(case, "oldJs")?, &input(case, "js")?, gates(case));
    let wanted = want(case, "result").as_array().cloned().unwrap_or_default();
    if errors.is_empty() != wanted.is_empty() {
        return Err(format!("want {wanted:?}, got {errors:?}"));
    }
    for error in &errors {
        let got = json!([error.kind.reason(), error.field, error.detail]);
        if !wanted.iter().any(|wanted| json!([wanted["type"], wanted["field"], wanted["detail"]]) == got) {
            return Err(format!("want one of {wanted:?}, got {got}"));
        }
    }
    Ok(())
}
