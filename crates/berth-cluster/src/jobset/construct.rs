//! The objects that a set creates: jobs from its templates, with all the labels that contain the
//! positions of pods; the headless service by which its pods find each other; and volume claims.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::jobset::constants::{
    COORDINATOR, EXCLUSIVE_TOPOLOGY, GLOBAL_REPLICAS, GROUP_NAME, GROUP_REPLICAS, JOB_GLOBAL_INDEX, JOB_GROUP_INDEX,
    JOB_INDEX, JOB_KEY, JOB_RESTARTS, JOBSET_NAME, JOBSET_UID, NAMESPACED_JOB, NO_SCHEDULE_TAINT,
    NODE_SELECTOR_STRATEGY, REPLICATED_JOB_NAME, REPLICATED_JOB_REPLICAS, RESTARTS,
};
use berth_api::jobset::v1alpha2::{JobSet, ReplicatedJob, RestartStrategy, RetentionPolicyType};
use berth_runtime::owned_by;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, PodSpec, Service, ServiceSpec, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::children::Children;
use super::gates::Gates;
use super::names::{
    claim_name, coordinator_address, global_index, global_replicas, group_index, group_replicas, job_key, job_name,
    namespace, replicas, set_name, subdomain,
};

/// The missing jobs of one replicated job, lowest index first. With `BlockingRecreate`, none are
/// created while jobs of an earlier attempt exist.
pub fn missing_jobs(set: &JobSet, entry: &ReplicatedJob, children: &Children, gates: Gates) -> Vec<Job> {
    let strategy = set.spec.failure_policy.as_ref().and_then(|policy| policy.restart_strategy);
    if strategy == Some(RestartStrategy::BlockingRecreate) && !children.previous.is_empty() {
        return Vec::new();
    }
    let known: BTreeSet<&str> = children.all().filter_map(|job| job.metadata.name.as_deref()).collect();
    (0..replicas(entry))
        .filter(|index| !known.contains(job_name(set_name(set), &entry.name, *index).as_str()))
        .map(|index| build_job(set, entry, index, gates))
        .collect()
}

/// One job of a replicated job.
pub fn build_job(set: &JobSet, entry: &ReplicatedJob, index: i32, gates: Gates) -> Job {
    let name = job_name(set_name(set), &entry.name, index);
    let marks = marks(set, entry, index, gates);
    let placement = placement_annotations(set, entry);
    let mark = |meta: Option<&ObjectMeta>| {
        let mut labels = meta.and_then(|meta| meta.labels.clone()).unwrap_or_default();
        let mut annotations = meta.and_then(|meta| meta.annotations.clone()).unwrap_or_default();
        labels.extend(marks.clone());
        annotations.extend(marks.clone());
        annotations.extend(placement.clone());
        (labels, annotations)
    };
    let mut spec = entry.template.spec.clone().unwrap_or_default();
    let (labels, annotations) = mark(entry.template.metadata.as_ref());
    let mut pod_meta = spec.template.metadata.take().unwrap_or_default();
    let (pod_labels, pod_annotations) = mark(Some(&pod_meta));
    pod_meta.labels = Some(pod_labels);
    pod_meta.annotations = Some(pod_annotations);
    spec.template.metadata = Some(pod_meta);
    let pod = spec.template.spec.get_or_insert_default();
    if set.spec.network.as_ref().is_some_and(|network| network.enable_dns_hostnames == Some(true)) {
        pod.subdomain = Some(subdomain(set).to_owned());
    }
    if placement.contains_key(EXCLUSIVE_TOPOLOGY) && placement.contains_key(NODE_SELECTOR_STRATEGY) {
        select_prepared_nodes(pod, namespace(set), &name);
    }
    add_volumes(set, pod);
    spec.suspend = Some(is_suspended(set));
    Job {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            ..Default::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// True if the set is suspended.
pub fn is_suspended(set: &JobSet) -> bool {
    set.spec.suspend == Some(true)
}

/// The headless service of the set, unless its pods have no host names.
pub fn service(set: &JobSet) -> Option<Service> {
    let network = set.spec.network.as_ref().filter(|network| network.enable_dns_hostnames == Some(true))?;
    Some(Service {
        metadata: ObjectMeta {
            name: Some(subdomain(set).to_owned()),
            namespace: set.metadata.namespace.clone(),
            owner_references: Some(vec![owned_by(set)]),
            ..Default::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            selector: Some(BTreeMap::from([(JOBSET_NAME.to_owned(), set_name(set).to_owned())])),
            publish_not_ready_addresses: Some(network.publish_not_ready_addresses.unwrap_or(true)),
            ..Default::default()
        }),
        status: None,
    })
}

/// The volume claims of the set, in the order of its templates. The set owns the claims that are
/// deleted with it.
pub fn volume_claims(set: &JobSet) -> Vec<PersistentVolumeClaim> {
    let mut claims = Vec::new();
    for policy in &set.spec.volume_claim_policies {
        let retention = policy.retention_policy.as_ref().and_then(|policy| policy.when_deleted);
        for template in &policy.templates {
            let meta = &template.metadata;
            let mut labels = meta.labels.clone();
            labels.insert(JOBSET_NAME.to_owned(), set_name(set).to_owned());
            claims.push(PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(claim_name(&meta.name, set_name(set))),
                    namespace: set.metadata.namespace.clone(),
                    labels: Some(labels),
                    annotations: (!meta.annotations.is_empty()).then(|| meta.annotations.clone()),
                    finalizers: (!meta.finalizers.is_empty()).then(|| meta.finalizers.clone()),
                    owner_references: (retention != Some(RetentionPolicyType::Retain)).then(|| vec![owned_by(set)]),
                    ..Default::default()
                },
                spec: Some(template.spec.clone()),
                status: None,
            });
        }
    }
    claims
}

/// Adds a volume to the pod for every claim template that one of its containers mounts.
pub fn add_volumes(set: &JobSet, pod: &mut PodSpec) {
    let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let mounted: BTreeSet<String> =
        containers.flat_map(|container| container.volume_mounts.iter().flatten()).map(|m| m.name.clone()).collect();
    let templates = set.spec.volume_claim_policies.iter().flat_map(|policy| &policy.templates);
    for template in templates.filter(|template| mounted.contains(&template.metadata.name)) {
        pod.volumes.get_or_insert_default().push(Volume {
            name: template.metadata.name.clone(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim_name(&template.metadata.name, set_name(set)),
                read_only: None,
            }),
            ..Default::default()
        });
    }
}

/// Labels and annotations with the position of the job in the set.
fn marks(set: &JobSet, entry: &ReplicatedJob, index: i32, gates: Gates) -> BTreeMap<String, String> {
    let number = |number: Option<i32>| number.map(|number| number.to_string()).unwrap_or_default();
    let status = set.status.clone().unwrap_or_default();
    let name = job_name(set_name(set), &entry.name, index);
    let mut marks = BTreeMap::from([
        (JOBSET_NAME, set_name(set).to_owned()),
        (JOBSET_UID, set.metadata.uid.clone().unwrap_or_default()),
        (REPLICATED_JOB_NAME, entry.name.clone()),
        (REPLICATED_JOB_REPLICAS, replicas(entry).to_string()),
        (RESTARTS, status.restarts.to_string()),
        (GLOBAL_REPLICAS, global_replicas(set).to_string()),
        (JOB_INDEX, index.to_string()),
        (JOB_GLOBAL_INDEX, number(global_index(set, &entry.name, index))),
        (JOB_KEY, job_key(namespace(set), &name)),
        (GROUP_NAME, entry.group_name.clone()),
        (GROUP_REPLICAS, group_replicas(set, &entry.group_name).to_string()),
        (JOB_GROUP_INDEX, number(group_index(set, &entry.group_name, &entry.name, index))),
    ]);
    if gates.restart_job {
        let known = status.replicated_jobs_status.iter().find(|known| known.name == entry.name);
        let position = usize::try_from(index).unwrap_or(usize::MAX);
        let restarts = known.and_then(|known| known.job_restarts.get(position)).copied().unwrap_or(0);
        marks.insert(JOB_RESTARTS, restarts.to_string());
    }
    if let Some(address) = coordinator_address(set) {
        marks.insert(COORDINATOR, address);
    }
    marks.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// The requested exclusive placement: that of the replicated job, or else that of the set.
fn placement_annotations(set: &JobSet, entry: &ReplicatedJob) -> BTreeMap<String, String> {
    let of_entry = entry.template.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
    let mut found = BTreeMap::new();
    for annotations in [set.metadata.annotations.as_ref(), of_entry].into_iter().flatten() {
        let Some(topology) = annotations.get(EXCLUSIVE_TOPOLOGY) else { continue };
        found.insert(EXCLUSIVE_TOPOLOGY.to_owned(), topology.clone());
        if let Some(strategy) = annotations.get(NODE_SELECTOR_STRATEGY) {
            found.insert(NODE_SELECTOR_STRATEGY.to_owned(), strategy.clone());
        }
    }
    found
}

/// Limits the pods to nodes that an administrator has prepared for this job.
fn select_prepared_nodes(pod: &mut PodSpec, namespace: &str, job: &str) {
    pod.node_selector.get_or_insert_default().insert(NAMESPACED_JOB.to_owned(), format!("{namespace}_{job}"));
    pod.tolerations.get_or_insert_default().push(Toleration {
        key: Some(NO_SCHEDULE_TAINT.to_owned()),
        operator: Some("Exists".into()),
        effect: Some("NoSchedule".into()),
        ..Default::default()
    });
}
