//! Caches of the objects that decisions depend on: one per kind. Watches fill them in a running
//! process, and tests fill them by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::frameworks::{ClusterTrainingRuntime, LeaderWorkerSet, RayCluster, TrainingRuntime};
use berth_api::jobset::v1alpha2::JobSet;
use berth_api::json::Json;
use berth_api::kueue::v1beta2::{
    AdmissionCheck, ClusterQueue, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass,
};
use berth_runtime::{Cache, Index, Manager, ObjectKey};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde_json::{Value, json};

use crate::devices::Devices;

/// Caches of everything that job integrations, webhooks and the workload controller read.
#[derive(Clone)]
pub struct Stores {
    /// Workloads.
    pub workloads: Cache<Workload>,
    /// Workloads by the UID of their owners.
    pub workloads_by_owner: Index<Workload>,
    /// Workloads by the name of their owners, as `namespace/name`: for deleted owners, whose UID is
    /// not known.
    workloads_by_owner_name: Index<Workload>,
    /// Local queues.
    pub local_queues: Cache<LocalQueue>,
    /// Cluster queues.
    pub cluster_queues: Cache<ClusterQueue>,
    /// Flavors.
    pub flavors: Cache<ResourceFlavor>,
    /// Admission checks.
    pub admission_checks: Cache<AdmissionCheck>,
    /// Kueue's priority classes.
    pub workload_priority_classes: Cache<WorkloadPriorityClass>,
    /// Kubernetes' priority classes.
    pub priority_classes: Cache<PriorityClass>,
    /// Namespaces.
    pub namespaces: Cache<Namespace>,
    /// Default and maximum resources of pods, per namespace.
    pub limit_ranges: Cache<LimitRange>,
    /// batch/v1 Jobs.
    pub jobs: Cache<Job>,
    /// Training runtimes of namespaces; empty if the TrainJob integration is off or the cluster
    /// lacks the kind.
    pub training_runtimes: Cache<TrainingRuntime>,
    /// Training runtimes of the cluster; empty in the same cases.
    pub cluster_training_runtimes: Cache<ClusterTrainingRuntime>,
    /// Ray clusters; empty if the integrations of RayJob and RayService are off or the cluster
    /// lacks the kind.
    pub ray_clusters: Cache<RayCluster>,
    /// JobSets; empty if the integration is off or the cluster lacks the kind.
    pub job_sets: Cache<JobSet>,
    /// StatefulSets; empty if the integration is off.
    pub stateful_sets: Cache<StatefulSet>,
    /// LeaderWorkerSets; empty if the integration is off or the cluster lacks the kind.
    pub leader_worker_sets: Cache<LeaderWorkerSet>,
    /// Claims, device classes and published devices, and how they are counted.
    pub devices: Devices,
    /// Metadata of objects of other watched kinds, by group and kind.
    others: BTreeMap<(String, String), Other>,
}

/// A kind of which only metadata is cached.
#[derive(Clone)]
struct Other {
    /// Plural name.
    resource: String,
    /// Finds the metadata of an object.
    find: Arc<dyn Fn(&ObjectKey) -> Option<ObjectMeta> + Send + Sync>,
}

impl Stores {
    /// The manager's caches. JobSets are watched if `job_sets` is true and the cluster serves them.
    pub fn watched(manager: &mut Manager, job_sets: bool) -> Self {
        let (workloads, jobs) = (manager.cache_to_decide_by::<Workload>(), manager.cache::<Job>());
        // Idle objects are packed to save memory: there may be a hundred thousand pending
        // workloads.
        workloads.pack_idle();
        jobs.pack_idle();
        Stores {
            devices: Devices::none(&workloads),
            workloads_by_owner: workloads.index(owner_uids),
            workloads_by_owner_name: workloads.index(owner_names),
            workloads,
            local_queues: manager.cache(),
            cluster_queues: manager.cache_to_decide_by(),
            flavors: manager.cache(),
            admission_checks: manager.cache(),
            workload_priority_classes: manager.cache(),
            priority_classes: manager.cache(),
            namespaces: manager.cache(),
            limit_ranges: manager.cache(),
            jobs,
            training_runtimes: Cache::for_tests([]),
            cluster_training_runtimes: Cache::for_tests([]),
            ray_clusters: Cache::for_tests([]),
            job_sets: if job_sets { manager.cache_if_served() } else { Cache::for_tests([]) },
            stateful_sets: Cache::for_tests([]),
            leader_worker_sets: Cache::for_tests([]),
            others: BTreeMap::new(),
        }
    }

    /// Empty caches, to be filled by hand.
    pub fn by_hand() -> Self {
        let workloads: Cache<Workload> = Cache::for_tests([]);
        Stores {
            devices: Devices::none(&workloads),
            workloads_by_owner: workloads.index(owner_uids),
            workloads_by_owner_name: workloads.index(owner_names),
            workloads,
            local_queues: Cache::for_tests([]),
            cluster_queues: Cache::for_tests([]),
            flavors: Cache::for_tests([]),
            admission_checks: Cache::for_tests([]),
            workload_priority_classes: Cache::for_tests([]),
            priority_classes: Cache::for_tests([]),
            namespaces: Cache::for_tests([]),
            limit_ranges: Cache::for_tests([]),
            jobs: Cache::for_tests([]),
            training_runtimes: Cache::for_tests([]),
            cluster_training_runtimes: Cache::for_tests([]),
            ray_clusters: Cache::for_tests([]),
            job_sets: Cache::for_tests([]),
            stateful_sets: Cache::for_tests([]),
            leader_worker_sets: Cache::for_tests([]),
            others: BTreeMap::new(),
        }
    }

    /// A flavor by name.
    pub fn flavor(&self, name: &str) -> Option<Arc<ResourceFlavor>> {
        self.flavors.get(&ObjectKey::cluster(name))
    }

    /// A cluster queue by name.
    pub fn cluster_queue(&self, name: &str) -> Option<Arc<ClusterQueue>> {
        self.cluster_queues.get(&ObjectKey::cluster(name))
    }

    /// A local queue by namespace and name.
    pub fn local_queue(&self, namespace: &str, name: &str) -> Option<Arc<LocalQueue>> {
        self.local_queues.get(&ObjectKey::namespaced(namespace, name))
    }

    /// Name of the cluster queue of a workload's local queue; empty if there is no such local
    /// queue.
    pub fn cluster_queue_name(&self, workload: &Workload) -> String {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let local = self.local_queue(namespace, &workload.spec.queue_name);
        local.map(|queue| queue.spec.cluster_queue.clone()).unwrap_or_default()
    }

    /// Labels of a namespace; `None` if the namespace does not exist.
    pub fn namespace_labels(&self, name: &str) -> Option<BTreeMap<String, String>> {
        let namespace = self.namespaces.get(&ObjectKey::cluster(name))?;
        Some(namespace.metadata.labels.clone().unwrap_or_default())
    }

    /// Workloads with this controlling owner, in name order. The cost depends on the number of
    /// workloads whose owner has this name, not on the namespace's size.
    pub fn workloads_of(&self, namespace: &str, owner: &Owner<'_>) -> Vec<Arc<Workload>> {
        let mut found = match owner.uid {
            // Owner references can carry any UID, so the other fields are compared below.
            Some(uid) if !uid.is_empty() => self.workloads_by_owner.get(uid),
            _ => self.workloads_by_owner_name.get(&named(namespace, owner.name)),
        };
        found.retain(|workload| {
            let of_owner = controller_of(workload.meta()).is_some_and(|reference| {
                reference.kind == owner.kind
                    && reference.name == owner.name
                    && group_of(&reference.api_version) == owner.group
                    && owner.uid.is_none_or(|uid| reference.uid == uid)
            });
            of_owner && workload.metadata.namespace.as_deref().unwrap_or("") == namespace
        });
        found
    }

    /// Workloads owned by an object of this name. If existing objects of watched kinds own any,
    /// only those are returned; otherwise the workloads of any owner of this name (a pod, or a
    /// deleted owner).
    pub fn workloads_of_owners_named(&self, namespace: &str, name: &str) -> Vec<Arc<Workload>> {
        let key = ObjectKey::namespaced(namespace, name);
        let jobs = self.jobs.get(&key).map(|job| job.metadata.clone());
        let job_sets = self.job_sets.get(&key).map(|set| set.metadata.clone());
        let others = self.others.values().filter_map(|other| (other.find)(&key));
        let uids: BTreeSet<String> =
            jobs.into_iter().chain(job_sets).chain(others).filter_map(|metadata| metadata.uid).collect();
        let mut named = self.workloads_by_owner_name.get(&named(namespace, name));
        let is_of_live = |workload: &Arc<Workload>| {
            workload.metadata.owner_references.iter().flatten().any(|owner| uids.contains(&owner.uid))
        };
        if named.iter().any(is_of_live) {
            named.retain(is_of_live);
        }
        named
    }

    /// Adds a kind whose objects [`Stores::named_owner`] and [`Stores::other`] can find.
    pub fn add_owners<K>(&mut self, cache: Cache<K>)
    where
        K: Resource<DynamicType = ()> + Send + Sync + 'static,
    {
        let kind = (K::group(&()).into_owned(), K::kind(&()).into_owned());
        let find = Arc::new(move |key: &ObjectKey| Some(cache.get(key)?.meta().clone()));
        self.others.insert(kind, Other { resource: K::plural(&()).into_owned(), find });
    }

    /// The metadata of an object of a kind that [`Stores::add_owners`] added.
    pub fn other(&self, group: &str, resource: &str, key: &ObjectKey) -> Option<ObjectMeta> {
        let mut others = self.others.iter();
        let (_, other) = others.find(|((of, _), other)| of == group && other.resource == resource)?;
        (other.find)(key)
    }

    /// An object as JSON, by group, resource, namespace and name ([`crate::webhooks::Lookup`]). For
    /// other projects' kinds it contains only metadata, which is enough to look up owners.
    pub fn find(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        fn one<K: Resource + Json + Send + Sync + 'static>(
            cache: &Cache<K>,
            namespace: &str,
            name: &str,
        ) -> Option<Arc<Value>> {
            let object = cache.get(&ObjectKey::namespaced(namespace, name))?;
            berth_api::json::to_value(object.as_ref()).ok().map(Arc::new)
        }
        match (group, resource) {
            ("", "namespaces") => one(&self.namespaces, "", name),
            ("batch", "jobs") => one(&self.jobs, namespace, name),
            ("jobset.x-k8s.io", "jobsets") => one(&self.job_sets, namespace, name),
            ("leaderworkerset.x-k8s.io", "leaderworkersets") => one(&self.leader_worker_sets, namespace, name),
            ("kueue.x-k8s.io", "admissionchecks") => one(&self.admission_checks, "", name),
            ("kueue.x-k8s.io", "clusterqueues") => one(&self.cluster_queues, "", name),
            ("kueue.x-k8s.io", "localqueues") => one(&self.local_queues, namespace, name),
            ("kueue.x-k8s.io", "resourceflavors") => one(&self.flavors, "", name),
            ("kueue.x-k8s.io", "workloadpriorityclasses") => one(&self.workload_priority_classes, "", name),
            ("kueue.x-k8s.io", "workloads") => one(&self.workloads, namespace, name),
            ("trainer.kubeflow.org", "trainingruntimes") => one(&self.training_runtimes, namespace, name),
            ("trainer.kubeflow.org", "clustertrainingruntimes") => one(&self.cluster_training_runtimes, "", name),
            _ => {
                let metadata = self.other(group, resource, &ObjectKey::namespaced(namespace, name))?;
                Some(Arc::new(json!({ "metadata": metadata })))
            }
        }
    }

    /// The metadata of the object that an owner reference names, regardless of its UID: `None` if
    /// its kind is not watched, `Some(None)` if the object does not exist.
    pub fn named_owner(&self, namespace: &str, reference: &OwnerReference) -> Option<Option<ObjectMeta>> {
        let key = ObjectKey::namespaced(namespace, &reference.name);
        match (group_of(&reference.api_version), reference.kind.as_str()) {
            ("batch", "Job") => Some(self.jobs.get(&key).map(|job| job.metadata.clone())),
            ("jobset.x-k8s.io", "JobSet") => Some(self.job_sets.get(&key).map(|set| set.metadata.clone())),
            (group, kind) => {
                let other = self.others.get(&(group.to_owned(), kind.to_owned()))?;
                Some((other.find)(&key))
            }
        }
    }
}

/// An owner of workloads.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// API group.
    pub group: &'a str,
    /// Kind.
    pub kind: &'a str,
    /// Name.
    pub name: &'a str,
    /// UID; `None` if the owner is deleted and only its name is known.
    pub uid: Option<&'a str>,
}

/// The controlling owner of an object.
pub fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|reference| reference.controller == Some(true))
}

/// The group of an `apiVersion`; empty for the core group.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

fn owner_uids(workload: &Workload) -> Vec<String> {
    workload.metadata.owner_references.iter().flatten().map(|reference| reference.uid.clone()).collect()
}

fn owner_names(workload: &Workload) -> Vec<String> {
    let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
    workload.metadata.owner_references.iter().flatten().map(|reference| named(namespace, &reference.name)).collect()
}

/// Key in the index by owner name. Neither part contains a slash.
fn named(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_found_by_the_name_of_their_job_and_of_an_unwatched_owner() {
        let stores = Stores::by_hand();
        let workload = |name: &str, kind: &str, owner: &str, uid: &str| {
            stores.workloads.observe(
                serde_json::from_value::<Workload>(json!({
                    "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"podSets": []},
                    "metadata": {"name": name, "namespace": "ns", "ownerReferences": [
                        {"apiVersion": "v1", "kind": kind, "name": owner, "uid": uid, "controller": true}]},
                }))
                .expect("a workload"),
            );
        };
        let job = json!({"metadata": {"name": "train", "namespace": "ns", "uid": "new"}});
        stores.jobs.observe(serde_json::from_value::<Job>(job).expect("a job"));
        workload("job-train", "Job", "train", "new");
        workload("job-train-before", "Job", "train", "old");
        workload("pod-alone", "Pod", "alone", "pod");
        let named = |owner: &str| -> Vec<String> {
            let found = stores.workloads_of_owners_named("ns", owner);
            found.iter().filter_map(|workload| workload.metadata.name.clone()).collect()
        };
        assert_eq!(named("train"), ["job-train"]);
        assert_eq!(named("alone"), ["pod-alone"]);
        assert_eq!(named("none"), [""; 0]);
        assert!(stores.workloads_of_owners_named("other", "train").is_empty());
    }

    #[test]
    fn finding_the_workloads_of_an_owner_reads_only_those() {
        const WORKLOADS: u64 = 6000;
        let stores = Stores::by_hand();
        stores.workloads.pack_idle();
        for number in 0..WORKLOADS {
            let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": format!("train-{number}"),
                               "uid": format!("uid-{number}"), "controller": true});
            let workload = json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"podSets": []},
                "metadata": {"name": format!("job-train-{number}"), "namespace": "ns", "ownerReferences": [owner]},
            });
            stores.workloads.observe(serde_json::from_value::<Workload>(workload).expect("a workload"));
        }
        let before = stores.workloads.unpacked();
        for number in 0..WORKLOADS {
            let name = format!("train-{number}");
            let gone = Owner { group: "batch", kind: "Job", name: &name, uid: None };
            assert_eq!(stores.workloads_of("ns", &gone).len(), 1);
            assert_eq!(stores.workloads_of_owners_named("ns", &name).len(), 1);
            assert!(stores.workloads_of("other", &gone).is_empty());
        }
        let read = stores.workloads.unpacked() - before;
        assert!(read <= 2 * WORKLOADS, "{read} workloads were read for two lookups of {WORKLOADS} owners each");
    }
}
