//! A set of API objects: what a folder of manifests, a live cluster or a snapshot contains.
//!
//! Objects are read as the controllers read them: defaulted, checked by their definitions and by
//! the webhooks' rules, converted to the newest version, and translated by the same functions. An
//! object that is invalid is left out, with its problem. Objects of other kinds are counted.

pub mod devices;
pub mod machines;
pub mod read;
pub mod translator;
pub mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::berth::{NodePool, NodePoolSpec};
use berth_api::kueue::v1beta2 as api;
use berth_controllers::configuration::Config;
use berth_controllers::jobs::preview;
use berth_controllers::stores::Stores;
use berth_controllers::translate;
use berth_engine::model::Labels;
use berth_engine::{Event, Name};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Node, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::Value;

use crate::memory::Memory;

pub use machines::Machines;
pub use translator::Translator;

/// The node of a new machine of a pool in a zone.
pub type Template<'a> = &'a dyn Fn(&NodePool) -> Vec<Node>;

/// Where an object was read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// The file; empty for a live cluster.
    pub file: Arc<str>,
    /// First line of the document, from 1.
    pub line: usize,
}

/// A document and where it was read.
#[derive(Debug, Clone)]
pub struct Document {
    /// The object.
    pub value: Value,
    /// Its file and line; `None` in a live cluster.
    pub source: Option<Source>,
}

/// An object and where it was read.
#[derive(Debug, Clone)]
pub struct Sourced<T> {
    /// The object.
    pub object: T,
    /// Its file and line; `None` in a live cluster.
    pub source: Option<Source>,
}

/// Kind, namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// Kind.
    pub kind: String,
    /// Namespace; empty for objects of the cluster.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectRef {
    /// An object of the cluster.
    pub fn cluster(kind: &str, name: &str) -> ObjectRef {
        ObjectRef { kind: kind.to_owned(), namespace: String::new(), name: name.to_owned() }
    }

    /// An object of a namespace.
    pub fn namespaced(kind: &str, namespace: &str, name: &str) -> ObjectRef {
        ObjectRef { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The reference of a JSON object.
    pub fn of(value: &Value) -> ObjectRef {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &value["metadata"];
        ObjectRef { kind: text(&value["kind"]), namespace: text(&metadata["namespace"]), name: text(&metadata["name"]) }
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.namespace.as_str() {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// An object that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// The object; its kind is `File` for a file that cannot be read.
    pub object: ObjectRef,
    /// The problems, each with its field.
    pub problems: Vec<String>,
    /// Where it was read.
    pub source: Option<Source>,
}

/// A name within a namespace.
pub type Namespaced = (String, String);

/// A set of API objects.
#[derive(Debug, Default)]
pub struct Objects {
    /// Kueue's configuration, or the defaults.
    pub config: Config,
    /// The set has a Configuration.
    pub has_configuration: bool,
    /// Objects that cannot be used.
    pub invalid: Vec<Invalid>,
    /// Number of objects that no rule uses, by kind.
    pub ignored: BTreeMap<String, usize>,
    /// Namespaces.
    pub namespaces: BTreeMap<String, Sourced<Namespace>>,
    /// Nodes.
    pub nodes: BTreeMap<String, Sourced<Node>>,
    /// Pods that run on nodes.
    pub pods: BTreeMap<Namespaced, Pod>,
    /// Node pools, of the cluster or of a ClusterConfiguration.
    pub node_pools: BTreeMap<String, Sourced<NodePool>>,
    /// True if nodes are created for pods that fit no pool.
    pub has_auto_provisioning: bool,
    /// Resource flavors.
    pub flavors: BTreeMap<String, Sourced<api::ResourceFlavor>>,
    /// Topologies.
    pub topologies: BTreeMap<String, Sourced<api::Topology>>,
    /// Cohorts.
    pub cohorts: BTreeMap<String, Sourced<api::Cohort>>,
    /// Cluster queues.
    pub cluster_queues: BTreeMap<String, Sourced<api::ClusterQueue>>,
    /// Local queues.
    pub local_queues: BTreeMap<Namespaced, Sourced<api::LocalQueue>>,
    /// Admission checks.
    pub admission_checks: BTreeMap<String, Sourced<api::AdmissionCheck>>,
    /// Configurations of provisioning checks.
    pub provisioning_configs: BTreeMap<String, Sourced<api::ProvisioningRequestConfig>>,
    /// Kueue's priority classes.
    pub workload_classes: BTreeMap<String, Sourced<api::WorkloadPriorityClass>>,
    /// Kubernetes' priority classes.
    pub priority_classes: BTreeMap<String, Sourced<PriorityClass>>,
    /// Limits per namespace.
    pub limit_ranges: BTreeMap<Namespaced, LimitRange>,
    /// Runtime classes.
    pub runtime_classes: BTreeMap<String, RuntimeClass>,
    /// Templates of the claims of pods.
    pub claim_templates: BTreeMap<Namespaced, ResourceClaimTemplate>,
    /// Device classes.
    pub device_classes: BTreeMap<String, DeviceClass>,
    /// Devices that drivers publish.
    pub device_slices: BTreeMap<String, ResourceSlice>,
    /// Workloads.
    pub workloads: BTreeMap<Namespaced, Sourced<api::Workload>>,
    /// Jobs of integrated kinds, as they were written.
    pub jobs: Vec<Sourced<Value>>,
    /// What the controllers know beside the objects, if they were asked.
    pub memory: Option<Memory>,
    /// Objects on which the Workloads of jobs depend, as they were written.
    surroundings: Vec<Value>,
}

/// A job and its Workload, or why it has none.
#[derive(Debug, Clone)]
pub struct JobWorkload {
    /// The job.
    pub job: ObjectRef,
    /// Where the job was read.
    pub source: Option<Source>,
    /// The Workload that the controllers would create.
    pub workload: Result<api::Workload, String>,
}

impl Objects {
    /// The environment of the Workloads of jobs.
    pub fn surroundings(&self) -> Stores {
        preview::surroundings(&self.surroundings)
    }

    /// The Workloads that the controllers would create for the jobs of the set.
    pub fn workloads_of_jobs(&self, now: Timestamp) -> Vec<JobWorkload> {
        let stores = self.surroundings();
        let of = |job: &Sourced<Value>| {
            let workload = preview::workload(&job.object, &stores, &self.config, now)?;
            Some(JobWorkload { job: ObjectRef::of(&job.object), source: job.source.clone(), workload })
        };
        self.jobs.iter().filter_map(of).collect()
    }

    /// Labels of the namespaces, and of those that are only mentioned by queues and workloads.
    pub fn namespace_labels(&self) -> BTreeMap<String, Labels> {
        let mut all: BTreeMap<String, Labels> = BTreeMap::new();
        let mentioned = self.local_queues.keys().chain(self.workloads.keys()).map(|(namespace, _)| namespace);
        for namespace in mentioned.chain(self.namespaces.keys()) {
            let known = self.namespaces.get(namespace);
            let mut labels = translate::labels(known.and_then(|it| it.object.metadata.labels.as_ref()));
            labels.insert(Name::from("kubernetes.io/metadata.name"), Name::from(namespace.as_str()));
            all.insert(namespace.clone(), labels);
        }
        all
    }

    /// The configuration as events, ordered so that every referenced object exists. Workloads are
    /// not among them.
    pub fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for (name, labels) in self.namespace_labels() {
            events.push(Event::NamespaceUpserted { name: Name::from(name), labels });
        }
        events.extend(self.topologies.values().map(|it| Event::TopologyUpserted(translate::topology(&it.object))));
        events.extend(self.nodes.values().map(|it| Event::NodeUpserted(translate::node(&it.object))));
        events.extend(self.pods.values().filter_map(translate::node_pod).map(Event::NodePodUpserted));
        let checks = self.admission_checks.values();
        events.extend(checks.map(|it| Event::AdmissionCheckUpserted(translate::admission_check(&it.object))));
        events.extend(self.flavors.values().map(|it| Event::FlavorUpserted(translate::flavor(&it.object))));
        events.extend(self.cohorts.values().map(|it| Event::CohortUpserted(translate::cohort(&it.object))));
        let queues = self.cluster_queues.values();
        events.extend(queues.map(|it| Event::ClusterQueueUpserted(translate::cluster_queue(&it.object))));
        events
            .extend(self.local_queues.values().map(|it| Event::LocalQueueUpserted(translate::local_queue(&it.object))));
        events.extend(self.local_queues.values().filter_map(|it| translate::queues::recorded_usage(&it.object)));
        events
    }

    /// Number of objects that rules use.
    pub fn count(&self) -> usize {
        let cluster = self.nodes.len() + self.node_pools.len() + self.namespaces.len() + self.pods.len();
        let queues = self.cohorts.len() + self.cluster_queues.len() + self.local_queues.len();
        let capacity = self.flavors.len() + self.topologies.len();
        let checks = self.admission_checks.len() + self.provisioning_configs.len();
        let classes = self.workload_classes.len() + self.priority_classes.len() + self.runtime_classes.len();
        let jobs = self.jobs.len() + self.workloads.len() + self.limit_ranges.len();
        let devices = self.claim_templates.len() + self.device_classes.len() + self.device_slices.len();
        cluster + queues + capacity + checks + classes + jobs + devices + usize::from(self.has_configuration)
    }

    /// The machines of the nodes and pools.
    pub fn machines(&self, template: Template<'_>) -> Vec<Machines> {
        machines::all(self, template)
    }
}

/// A pool of a ClusterConfiguration as the object that the cluster would have.
fn pool(name: &str, spec: NodePoolSpec) -> NodePool {
    NodePool::new(name, spec)
}
