//! The CustomResourceDefinitions of all kinds of this crate, for Berth's own API server and for
//! installation in another cluster.
//!
//! Each kind is a row of the table below: names, scope, versions, printer columns.
//! [`structural`](crate::structural) derives the schemas from the types. The definitions declare no
//! conversion: [`kueue::conversion`] implements it, and an installation in another cluster adds its
//! conversion webhook.

use std::sync::OnceLock;

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use crate::berth::{NodePool, ProvisioningClass};
use crate::structural::Structural;
use crate::{autoscaling, jobset, kueue, monitoring, scheduling};

/// All definitions, built once, as `CustomResourceDefinition`s of `apiextensions.k8s.io/v1`: those
/// of Kueue, JobSet, ProvisioningRequest, PodGroup, NodePool and ProvisioningClass, and those of
/// [`monitoring`], which accept any spec.
pub fn crds() -> &'static [Value] {
    static CRDS: OnceLock<Vec<Value>> = OnceLock::new();
    CRDS.get_or_init(|| {
        let mut structural = Structural::default();
        let mut all: Vec<Value> = definitions(&mut structural);
        all.push(derived::<NodePool>());
        all.push(derived::<ProvisioningClass>());
        all.extend(monitoring::crds());
        all
    })
}

/// The definition of a kind of Berth's own, which kube's derive macro makes.
fn derived<K: kube::CustomResourceExt>() -> Value {
    serde_json::to_value(K::crd()).expect("a definition is plain data")
}

/// One served version of a kind.
struct Version {
    name: &'static str,
    schema: Value,
    subresources: Option<Value>,
    columns: &'static [Column],
    selectable: &'static [&'static str],
    deprecated: Option<&'static str>,
}

/// A column of `kubectl get`: name, type, JSON path, description, and priority (1: only with `-o
/// wide`).
struct Column(&'static str, &'static str, &'static str, &'static str, i32);

impl Version {
    fn new<T: JsonSchema>(structural: &mut Structural, name: &'static str) -> Self {
        let schema = structural.root::<T>();
        let subresources = schema["properties"].get("status").is_some().then(|| json!({ "status": {} }));
        Self { name, schema, subresources, columns: &[], selectable: &[], deprecated: None }
    }

    fn columns(self, columns: &'static [Column]) -> Self {
        Self { columns, ..self }
    }

    fn selectable(self, selectable: &'static [&'static str]) -> Self {
        Self { selectable, ..self }
    }

    /// Declares `subresources: {}`. Kueue's own definition of WorkloadPriorityClass, a kind without
    /// a status, contains it.
    fn empty_subresources(self) -> Self {
        Self { subresources: Some(json!({})), ..self }
    }

    fn deprecated(self, warning: &'static str) -> Self {
        Self { deprecated: Some(warning), ..self }
    }

    fn into_value(self, is_storage: bool) -> Value {
        let mut version = Map::new();
        if !self.columns.is_empty() {
            version.insert("additionalPrinterColumns".into(), self.columns.iter().map(Column::to_value).collect());
        }
        if let Some(warning) = self.deprecated {
            version.insert("deprecated".into(), true.into());
            version.insert("deprecationWarning".into(), warning.into());
        }
        version.insert("name".into(), self.name.into());
        version.insert("schema".into(), json!({ "openAPIV3Schema": self.schema }));
        if !self.selectable.is_empty() {
            let fields: Vec<Value> = self.selectable.iter().map(|path| json!({ "jsonPath": path })).collect();
            version.insert("selectableFields".into(), fields.into());
        }
        version.insert("served".into(), true.into());
        version.insert("storage".into(), is_storage.into());
        if let Some(subresources) = self.subresources {
            version.insert("subresources".into(), subresources);
        }
        version.into()
    }
}

impl Column {
    fn to_value(&self) -> Value {
        let Column(name, kind, path, description, priority) = self;
        let mut column = Map::new();
        if !description.is_empty() {
            column.insert("description".into(), (*description).into());
        }
        column.insert("jsonPath".into(), (*path).into());
        column.insert("name".into(), (*name).into());
        if *priority != 0 {
            column.insert("priority".into(), (*priority).into());
        }
        column.insert("type".into(), (*kind).into());
        column.into()
    }
}

/// Builds a definition; `storage` is the name of the storage version.
fn definition<R>(short_names: &[&str], storage: &str, versions: Vec<Version>) -> Value
where
    R: kube::Resource<DynamicType = ()>,
    R::Scope: ScopeName,
{
    let (group, kind, plural) = (R::group(&()), R::kind(&()), R::plural(&()));
    let mut names = json!({
        "kind": kind,
        "listKind": format!("{kind}List"),
        "plural": plural,
        "singular": kind.to_lowercase(),
    });
    if !short_names.is_empty() {
        names["shortNames"] = short_names.into();
    }
    let versions: Vec<Value> = versions
        .into_iter()
        .map(|version| {
            let is_storage = version.name == storage;
            version.into_value(is_storage)
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "names": names,
            "scope": <R::Scope as ScopeName>::NAME,
            "versions": versions,
        },
    })
}

/// The name of a scope in a definition.
trait ScopeName {
    /// `Namespaced` or `Cluster`.
    const NAME: &'static str;
}
impl ScopeName for kube::core::NamespaceResourceScope {
    const NAME: &'static str = "Namespaced";
}
impl ScopeName for kube::core::ClusterResourceScope {
    const NAME: &'static str = "Cluster";
}

const USE_V1BETA2: &str = "This version is deprecated. Use v1beta2 instead.";
const CLUSTER_QUEUE_STRATEGY: Column =
    Column("Strategy", "string", ".spec.queueingStrategy", "The queueing strategy used to prioritize workloads", 1);
const CLUSTER_QUEUE_PENDING: Column =
    Column("Pending Workloads", "integer", ".status.pendingWorkloads", "Number of pending workloads", 0);
const CLUSTER_QUEUE_ADMITTED: Column = Column(
    "Admitted Workloads",
    "integer",
    ".status.admittedWorkloads",
    "Number of admitted workloads that haven't finished yet",
    1,
);
const COHORT: &str = "Cohort that this ClusterQueue belongs to";
const CLUSTER_QUEUE_COLUMNS: &[Column] = &[
    Column("Cohort", "string", ".spec.cohortName", COHORT, 0),
    CLUSTER_QUEUE_STRATEGY,
    CLUSTER_QUEUE_PENDING,
    CLUSTER_QUEUE_ADMITTED,
];
const CLUSTER_QUEUE_V1BETA1_COLUMNS: &[Column] = &[
    Column("Cohort", "string", ".spec.cohort", COHORT, 0),
    CLUSTER_QUEUE_STRATEGY,
    CLUSTER_QUEUE_PENDING,
    CLUSTER_QUEUE_ADMITTED,
];
const LOCAL_QUEUE_COLUMNS: &[Column] = &[
    Column("ClusterQueue", "string", ".spec.clusterQueue", "Backing ClusterQueue", 0),
    Column("Pending Workloads", "integer", ".status.pendingWorkloads", "Number of pending workloads", 0),
    Column(
        "Admitted Workloads",
        "integer",
        ".status.admittedWorkloads",
        "Number of admitted workloads that haven't finished yet.",
        0,
    ),
];
const WORKLOAD_COLUMNS: &[Column] = &[
    Column("Queue", "string", ".spec.queueName", "Name of the queue this workload was submitted to", 0),
    Column(
        "Reserved in",
        "string",
        ".status.admission.clusterQueue",
        "Name of the ClusterQueue where the workload is reserving quota",
        0,
    ),
    Column("Admitted", "string", ".status.conditions[?(@.type=='Admitted')].status", "Admission status", 0),
    Column("Finished", "string", ".status.conditions[?(@.type=='Finished')].status", "Workload finished", 0),
    Column("Age", "date", ".metadata.creationTimestamp", "Time this workload was created", 0),
    // Kueue's definition lacks this column; it has `-o wide` only.
    Column(
        "Forecast",
        "string",
        ".metadata.annotations.berth\\.dev/forecast-start",
        "Forecast of the start of a waiting workload",
        1,
    ),
];
const PRIORITY_CLASS_COLUMNS: &[Column] =
    &[Column("Value", "integer", ".value", "Value of workloadPriorityClass's Priority", 0)];
const MULTIKUEUE_CLUSTER_COLUMNS: &[Column] = &[
    Column(
        "Connected",
        "string",
        ".status.conditions[?(@.type=='Active')].status",
        "MultiKueueCluster is connected",
        0,
    ),
    Column("Age", "date", ".metadata.creationTimestamp", "Time this workload was created", 0),
];
const JOBSET_COLUMNS: &[Column] = &[
    Column("TerminalState", "string", ".status.terminalState", "Final state of JobSet", 0),
    Column("Restarts", "string", ".status.restarts", "Number of restarts", 0),
    Column("Completed", "string", ".status.conditions[?(@.type==\"Completed\")].status", "", 0),
    Column("Suspended", "string", ".spec.suspend", "JobSet suspended", 0),
    Column("Age", "date", ".metadata.creationTimestamp", "Time this JobSet was created", 0),
];
const POD_GROUP_COLUMNS: &[Column] = &[
    Column("Phase", "string", ".status.phase", "Phase of the group", 0),
    Column("MinMember", "integer", ".spec.minMember", "Number of pods that are scheduled together", 0),
    Column("Running", "integer", ".status.running", "Number of running pods", 0),
    Column("Succeeded", "integer", ".status.succeeded", "Number of pods that succeeded", 0),
    Column("Failed", "integer", ".status.failed", "Number of pods that failed", 0),
    Column("Age", "date", ".metadata.creationTimestamp", "Time since the group was created", 0),
];
/// The columns that GKE prints. The definition of the autoscaler's repository has only the age.
const PROVISIONING_REQUEST_COLUMNS: &[Column] = &[
    Column("Accepted", "string", ".status.conditions[?(@.type=='Accepted')].status", "", 0),
    Column("Provisioned", "string", ".status.conditions[?(@.type=='Provisioned')].status", "", 0),
    Column("Failed", "string", ".status.conditions[?(@.type=='Failed')].status", "", 0),
    Column("Age", "date", ".metadata.creationTimestamp", "", 0),
];

fn definitions(s: &mut Structural) -> Vec<Value> {
    /// A Kueue kind with both versions and the same columns in both.
    macro_rules! kueue {
        ($kind:ident, $short:expr, $columns:expr) => {
            kueue!($kind, $short, $columns, $columns)
        };
        ($kind:ident, $short:expr, $old_columns:expr, $columns:expr) => {
            definition::<kueue::v1beta2::$kind>(
                $short,
                "v1beta2",
                vec![
                    Version::new::<kueue::v1beta1::$kind>(s, "v1beta1").columns($old_columns).deprecated(USE_V1BETA2),
                    Version::new::<kueue::v1beta2::$kind>(s, "v1beta2").columns($columns),
                ],
            )
        };
    }
    vec![
        kueue!(AdmissionCheck, &["ac"], &[]),
        kueue!(ClusterQueue, &["cq"], CLUSTER_QUEUE_V1BETA1_COLUMNS, CLUSTER_QUEUE_COLUMNS),
        kueue!(Cohort, &["co"], &[]),
        kueue!(LocalQueue, &["queue", "queues", "lq"], LOCAL_QUEUE_COLUMNS),
        kueue!(MultiKueueCluster, &["mkc"], MULTIKUEUE_CLUSTER_COLUMNS),
        definition::<kueue::v1beta2::MultiKueueConfig>(
            &["mkconf"],
            "v1beta2",
            vec![
                Version::new::<kueue::v1beta1::MultiKueueConfig>(s, "v1beta1"),
                Version::new::<kueue::v1beta2::MultiKueueConfig>(s, "v1beta2"),
            ],
        ),
        kueue!(ProvisioningRequestConfig, &["prc"], &[]),
        kueue!(ResourceFlavor, &["flavor", "flavors", "rf"], &[]),
        kueue!(Topology, &["topo"], &[]),
        definition::<kueue::v1beta2::WorkloadPriorityClass>(
            &["wpc"],
            "v1beta2",
            vec![
                Version::new::<kueue::v1beta1::WorkloadPriorityClass>(s, "v1beta1")
                    .columns(PRIORITY_CLASS_COLUMNS)
                    .empty_subresources()
                    .deprecated(USE_V1BETA2),
                Version::new::<kueue::v1beta2::WorkloadPriorityClass>(s, "v1beta2")
                    .columns(PRIORITY_CLASS_COLUMNS)
                    .empty_subresources(),
            ],
        ),
        definition::<kueue::v1beta2::Workload>(
            &["kwl", "kueueworkload", "kueueworkloads"],
            "v1beta2",
            vec![
                Version::new::<kueue::v1beta1::Workload>(s, "v1beta1")
                    .columns(WORKLOAD_COLUMNS)
                    .deprecated(USE_V1BETA2),
                Version::new::<kueue::v1beta2::Workload>(s, "v1beta2")
                    .columns(WORKLOAD_COLUMNS)
                    .selectable(&[".status.admission.clusterQueue"]),
            ],
        ),
        definition::<jobset::v1alpha2::JobSet>(
            &[],
            "v1alpha2",
            vec![Version::new::<jobset::v1alpha2::JobSet>(s, "v1alpha2").columns(JOBSET_COLUMNS)],
        ),
        definition::<autoscaling::v1::ProvisioningRequest>(
            &["provreq", "provreqs"],
            "v1",
            vec![
                Version::new::<autoscaling::v1::ProvisioningRequest>(s, "v1").columns(PROVISIONING_REQUEST_COLUMNS),
                Version::new::<autoscaling::v1::ProvisioningRequest>(s, "v1beta1")
                    .columns(PROVISIONING_REQUEST_COLUMNS)
                    .deprecated("autoscaling.k8s.io/v1beta1 API is deprecated"),
            ],
        ),
        definition::<scheduling::PodGroup>(
            &["pg", "pgs"],
            "v1alpha1",
            vec![Version::new::<scheduling::PodGroup>(s, "v1alpha1").columns(POD_GROUP_COLUMNS)],
        ),
    ]
}
