//! Suites of webhooks: defaults and validation of Kueue's objects and of jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::jobset::v1alpha2::JobSet;
use berth_api::kueue::v1beta2::{ClusterQueue, Cohort, ResourceFlavor, Workload};
use berth_apimachinery::field::Error;
use berth_controllers::configuration::Config;
use berth_controllers::jobs::Job;
use berth_controllers::webhooks;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{gates, input};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "webhook-validate-cluster-queue" => |case| {
            errors(
                case,
                "err",
                Compare::Fields,
                webhooks::validate_cluster_queue(&input(case, "clusterQueue")?, &gates(case)),
            )
        },
        "webhook-validate-cluster-queue-update" => |case| {
            let (new, old): (ClusterQueue, ClusterQueue) =
                (input(case, "newClusterQueue")?, input(case, "oldClusterQueue")?);
            errors(case, "err", Compare::Fields, webhooks::validate_cluster_queue_update(&new, &old, &gates(case)))
        },
        "webhook-validate-cohort" => |case| {
            let cohort: Cohort = input(case, "cohort")?;
            errors(case, "err", Compare::Exact, webhooks::validate_cohort(&cohort, None))
        },
        "webhook-validate-resource-flavor" => |case| {
            let flavor: ResourceFlavor = input(case, "rf")?;
            errors(case, "err", Compare::Fields, webhooks::validate_resource_flavor(&flavor))
        },
        "webhook-validate-total-flavors" => |case| {
            let count = number(case, "numFlavors");
            rejected(case, vec![(vec!["cpu".to_owned()], names("f", count))])
        },
        "webhook-validate-total-covered-resources" => |case| {
            let count = number(case, "numCoveredRes");
            rejected(case, vec![(names("res", count), vec!["default".to_owned()])])
        },
        "webhook-validate-flavor-resource-combinations" => combinations,
        "webhook-validate-workload" => |case| {
            let workload: Workload = input(case, "workload")?;
            errors(case, "err", Compare::Fields, webhooks::validate_workload(&workload, &gates(case)))
        },
        "webhook-validate-workload-update" => |case| {
            let (new, old): (Workload, Workload) = (input(case, "after")?, input(case, "before")?);
            errors(case, "err", Compare::Fields, webhooks::validate_workload_update(&new, &old, &gates(case)))
        },
        "job-validate-create" => |case| {
            let job: BatchJob = input(case, "job")?;
            errors(case, "validationErrs", Compare::Exact, webhooks::validate_batch_job(&job, &gates(case)))
        },
        "job-validate-update" => |case| {
            let (new, old): (BatchJob, BatchJob) = (input(case, "newJob")?, input(case, "oldJob")?);
            errors(
                case,
                "validationErrs",
                Compare::Exact,
                webhooks::validate_batch_job_update(&new, &old, false, &gates(case)),
            )
        },
        "jobset-validate-create" => |case| {
            let set: JobSet = input(case, "job")?;
            errors(case, "err", Compare::Exact, webhooks::validate_job_set(&set, &gates(case)))
        },
        "jobset-validate-update" => |case| {
            let (new, old): (JobSet, JobSet) = (input(case, "newJob")?, input(case, "oldJob")?);
            errors(
                case,
                "validationErrs",
                Compare::Exact,
                webhooks::validate_job_set_update(&new, &old, false, &gates(case)),
            )
        },
        "job-default" => |case| default::<BatchJob>(case, "job"),
        "jobset-default" => |case| default::<JobSet>(case, "jobSet"),
        "jobframework-base-webhook-default" => |case| default::<BatchJob>(case, "job"),
        "jobframework-apply-default-local-queue" => default_queue,
        "jobframework-apply-default-workload-priority-class" => default_priority_class,
        _ => return None,
    })
}

/// The parts of a validation error that are compared.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Compare {
    /// Type and field. If the case names a detail or value, also those of the first error.
    Fields,
    /// Type, field and detail.
    Exact,
}

pub(super) fn errors(case: &Case, field: &str, how: Compare, got: Vec<Error>) -> Verdict {
    let want = case.want[field].as_array().cloned().unwrap_or_default();
    let explicit = case.want["badValue"].as_str().unwrap_or_default();
    if !explicit.is_empty() {
        let bad = got.first().and_then(|first| first.bad_value.as_ref());
        let bad = bad.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        if bad.as_deref() != Some(explicit) {
            return Err(format!("badValue: want {explicit:?}, got {bad:?}"));
        }
    }
    let render = |error: &Error| json!({"type": error.kind.reason(), "field": error.field, "detail": error.detail});
    let got: Vec<Value> = got.iter().map(render).collect();
    let trim = |error: &Value| {
        let mut error = error.clone();
        if let Some(map) = error.as_object_mut() {
            map.remove("badValue");
            if how == Compare::Fields {
                map.remove("detail");
            }
        }
        error
    };
    let lines = differences(
        &want.iter().map(trim).collect::<Vec<_>>().into(),
        &got.iter().map(trim).collect::<Vec<_>>().into(),
        &[],
    );
    let explicit = case.want["detail"].as_str().unwrap_or_default();
    if !explicit.is_empty() && got.first().is_none_or(|first| first["detail"] != explicit) {
        return Err(format!("detail: want {explicit:?}, got {:?}", got.first()));
    }
    verdict(lines)
}

fn number(case: &Case, field: &str) -> usize {
    case.input[field].as_u64().unwrap_or(0) as usize
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{prefix}{index:03}")).collect()
}

/// Compares whether a queue with these resource groups is rejected. A group has resources and
/// flavors.
fn rejected(case: &Case, groups: Vec<(Vec<String>, Vec<String>)>) -> Verdict {
    let groups: Vec<Value> = groups
        .into_iter()
        .map(|(resources, flavors)| {
            let quotas: Vec<Value> = resources.iter().map(|r| json!({"name": r, "nominalQuota": "1"})).collect();
            let flavors: Vec<Value> = flavors.iter().map(|f| json!({"name": f, "resources": quotas})).collect();
            json!({"coveredResources": resources, "flavors": flavors})
        })
        .collect();
    let queue = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "cluster-queue"},
        "spec": {"resourceGroups": groups},
    });
    let queue: ClusterQueue = serde_json::from_value(queue).map_err(|e| e.to_string())?;
    let got = webhooks::validate_cluster_queue(&queue, &gates(case));
    let want = &case.want["err"];
    let want = want.as_bool().unwrap_or(!want.is_null());
    if got.is_empty() != want { Ok(()) } else { Err(format!("rejected: want {want}, got {got:?}")) }
}

/// Compares whether a queue with these numbers of flavors and resources is rejected.
fn combinations(case: &Case) -> Verdict {
    let (flavors, resources) = (number(case, "numFlavors"), number(case, "numResources"));
    rejected(case, vec![(names("res", resources), names("f", flavors))])
}

/// Compares a job after the webhook set its defaults.
fn default<J: Job>(case: &Case, field: &str) -> Verdict {
    let object = case.input.whole();
    let mut job = object[field].clone();
    let mut config = Config { managed_jobs_namespace_selector: LabelSelector::default(), ..Config::default() };
    if let Some(text) = object["managedJobsNamespaceSelector"].as_str()
        && let Some((key, rest)) = text.split_once(" notin (")
    {
        let values = rest.trim_end_matches(')').split(',').map(|value| value.trim().to_owned()).collect();
        config.managed_jobs_namespace_selector.match_expressions = Some(vec![LabelSelectorRequirement {
            key: key.to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(values),
        }]);
    }
    config.manage_jobs_without_queue_name = object["manageJobsWithoutQueueName"].as_bool().unwrap_or(false);
    // The objects that the webhook can look up, by resource and name.
    let mut objects: BTreeMap<(String, String), Arc<Value>> = BTreeMap::new();
    let mut add = |resource: &str, object: &Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        objects.insert((resource.to_owned(), name), Arc::new(object.clone()));
    };
    for (field, resource) in
        [("queues", "localqueues"), ("clusterQueues", "clusterqueues"), ("namespaces", "namespaces")]
    {
        for object in object[field].as_array().into_iter().flatten() {
            add(resource, object);
        }
    }
    if !object["admissionCheck"].is_null() {
        add("admissionchecks", &object["admissionCheck"]);
    }
    if object["defaultLqExist"] == true {
        add("localqueues", &json!({"metadata": {"name": "default", "namespace": "default"}}));
    }
    if case.suite == "jobframework-base-webhook-default" {
        // In upstream's test of this suite, the queue manager has one queue with a MultiKueue
        // check.
        add("localqueues", &json!({"metadata": {"name": "multikueue"}, "spec": {"clusterQueue": "mk"}}));
        let strategy = json!({"admissionChecks": [{"name": "mk"}]});
        add("clusterqueues", &json!({"metadata": {"name": "mk"}, "spec": {"admissionChecksStrategy": strategy}}));
        add(
            "admissionchecks",
            &json!({"metadata": {"name": "mk"}, "spec": {"controllerName": "kueue.x-k8s.io/multikueue"}}),
        );
    }
    for other in object["objs"].as_array().into_iter().flatten() {
        let kind = other["kind"].as_str().unwrap_or_default().to_lowercase();
        add(&format!("{kind}s"), other);
    }
    let lookup = |_group: &str, resource: &str, _namespace: &str, name: &str| {
        objects.get(&(resource.to_owned(), name.to_owned())).cloned()
    };
    let namespace = job["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
    webhooks::default_job::<J>(&mut job, &namespace, &config, &gates(case), &lookup).map_err(|e| format!("{e:?}"))?;
    let want = &case.want;
    if want["result"].is_null() {
        let managed = want["managedBy"].as_str().unwrap_or_default();
        let got = job["spec"]["managedBy"].as_str().unwrap_or_default();
        return if managed == got { Ok(()) } else { Err(format!("managedBy: want {managed:?}, got {got:?}")) };
    }
    verdict(differences(&want["result"], &job, &[]))
}

fn default_queue(case: &Case) -> Verdict {
    let mut job = case.input["job"].clone();
    let mut config = Config::default();
    config.managed_jobs_namespace_selector.match_expressions = Some(vec![LabelSelectorRequirement {
        key: "kubernetes.io/metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec!["managed-ns".to_owned()]),
    }]);
    let lookup = |_: &str, resource: &str, _: &str, name: &str| {
        (resource == "localqueues" && name == "default").then(|| Arc::new(json!({"metadata": {"name": "default"}})))
    };
    let namespace = job["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    webhooks::default_job::<BatchJob>(&mut job, &namespace, &config, &gates(case), &lookup)
        .map_err(|e| format!("{e:?}"))?;
    label(&job, "kueue.x-k8s.io/queue-name", &case.want["queueLabel"])
}

fn default_priority_class(case: &Case) -> Verdict {
    let mut job = case.input["job"].clone();
    let config = Config { manage_jobs_without_queue_name: true, ..Config::default() };
    let classes = case.input["wpcObjects"].as_array().cloned().unwrap_or_default();
    let lookup = |_: &str, resource: &str, _: &str, name: &str| {
        if resource == "jobs" && name == "parent" {
            // Every case of this suite has this managed job.
            return Some(Arc::new(json!({"metadata": {"name": "parent", "uid": "parent"}})));
        }
        let class = classes.iter().find(|class| class["metadata"]["name"] == name);
        class.filter(|_| resource == "workloadpriorityclasses").cloned().map(Arc::new)
    };
    webhooks::default_job::<BatchJob>(&mut job, "default", &config, &gates(case), &lookup)
        .map_err(|e| format!("{e:?}"))?;
    label(&job, "kueue.x-k8s.io/priority-class", &case.want["priorityClassLabel"])
}

fn label(job: &Value, key: &str, want: &Value) -> Verdict {
    let (got, want) = (job["metadata"]["labels"][key].as_str().unwrap_or_default(), want.as_str().unwrap_or_default());
    if got == want { Ok(()) } else { Err(format!("want {want:?}, got {got:?}")) }
}
