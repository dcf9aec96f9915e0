//! The deletion of a cluster whose state is in Redis: a finalizer keeps the RayCluster until a Job
//! has deleted the data.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{EnvVar, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::facts::Facts;
use super::pod;
use crate::ray::constants::{DELETION_TIMEOUT, NODE_TYPE};
use crate::ray::names;

/// Value of the label `ray.io/node-type` of the Job.
pub const NODE_TYPE_CLEANUP: &str = "redis-cleanup";
/// Default number of seconds after which the finalizer of a deleted cluster is removed even if its
/// data has not been deleted. Also the deadline of the Job.
const TIMEOUT_S: i64 = 300;
/// The program of the Job. It succeeds if the data is deleted, or was never there.
const PROGRAM: &str = "\
import os, sys
from urllib.parse import urlparse
from ray._private.gcs_utils import cleanup_redis_storage
address = os.environ.get('RAY_REDIS_ADDRESS', '').split(',')[0]
url = urlparse(address if '://' in address else 'redis://' + address)
options = {'host': url.hostname, 'port': url.port, 'use_ssl': url.scheme == 'rediss',
           'password': os.environ.get('REDIS_PASSWORD', url.password or ''),
           'storage_namespace': os.environ['RAY_external_storage_namespace']}
if 'REDIS_USERNAME' in os.environ:
    options['username'] = os.environ['REDIS_USERNAME']
sys.exit(0 if cleanup_redis_storage(**options) else 1)
";

/// Name of the Job of a cluster.
pub fn job_name(cluster: &str) -> String {
    names::checked_label(&format!("{cluster}-redis-cleanup"))
}

/// True if the Job has ended, with or without success.
pub fn has_ended(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed" | "FailureTarget") && condition.status == "True"
    })
}

/// Time after the deletion of a cluster at which its finalizer is removed even without a clean-up.
pub fn timeout(facts: &Facts<'_>) -> SignedDuration {
    let given = facts.annotations.get(DELETION_TIMEOUT).and_then(|text| text.parse::<i64>().ok());
    SignedDuration::from_secs(given.filter(|seconds| *seconds > 0).unwrap_or(TIMEOUT_S))
}

/// Time for which the clean-up may still run.
pub fn left(facts: &Facts<'_>, deleted_at: Timestamp, now: Timestamp) -> SignedDuration {
    timeout(facts) - now.duration_since(deleted_at)
}

/// The Job: the Ray container of the head, with another program and without probes.
pub fn job(facts: &Facts<'_>) -> Job {
    let head = pod::head(facts);
    let mut labels = head.metadata.labels.unwrap_or_default();
    labels.insert(NODE_TYPE.to_owned(), NODE_TYPE_CLEANUP.to_owned());
    let mut spec = head.spec.unwrap_or_default();
    spec.containers.truncate(1);
    spec.restart_policy = Some("Never".to_owned());
    spec.service_account_name =
        facts.spec.head_group_spec.template.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    if let Some(ray) = spec.containers.first_mut() {
        ray.command = Some(vec!["python".to_owned(), "-c".to_owned(), PROGRAM.to_owned()]);
        ray.args = None;
        ray.liveness_probe = None;
        ray.readiness_probe = None;
        ray.startup_probe = None;
        ray.resources = Some(pod::fixed("200m", "256Mi"));
        // Redis has a minute to answer: 120 attempts, one every 500 ms.
        let variables = [("RAY_redis_db_connect_retries", "120"), ("RAY_redis_db_connect_wait_milliseconds", "500")];
        let variables = variables.map(|(name, value)| EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        });
        ray.env.get_or_insert_default().extend(variables);
    }
    let annotations = template_annotations(facts);
    let template =
        ObjectMeta { labels: Some(labels.clone()), annotations: annotations.clone(), ..ObjectMeta::default() };
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(facts.name)),
            namespace: Some(facts.namespace.to_owned()),
            labels: Some(labels),
            annotations,
            owner_references: Some(vec![facts.owner()]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            active_deadline_seconds: Some(TIMEOUT_S),
            template: PodTemplateSpec { metadata: Some(template), spec: Some(spec) },
            ..JobSpec::default()
        }),
        status: None,
    }
}

fn template_annotations(facts: &Facts<'_>) -> Option<std::collections::BTreeMap<String, String>> {
    facts.spec.head_group_spec.template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone())
}
