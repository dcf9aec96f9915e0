//! The table of definitions: names, scope, versions and printer columns of each kind, with the
//! schemas of the types.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::structural;
use crate::berth::{NodePool, ProvisioningClass};
use crate::{autoscaling, jobset, kueue, scheduling};

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
    fn new<T: JsonSchema>(name: &'static str) -> Self {
        Self::with_schema(name, structural::root::<T>())
    }

    /// With a schema as that of kube's derive macro.
    fn nullable<T: JsonSchema>(name: &'static str) -> Self {
        Self::with_schema(name, structural::nullable_root::<T>())
    }

    fn with_schema(name: &'static str, schema: Value) -> Self {
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

    /// Adds the subresource `scale` with the fields of the desired and the current number.
    fn scalable(mut self, desired: &str, current: &str) -> Self {
        let subresources = self.subresources.get_or_insert_default();
        subresources["scale"] = json!({ "specReplicasPath": desired, "statusReplicasPath": current });
        self
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

const NODE_POOL_COLUMNS: &[Column] = &[
    Column("Machine", "string", ".spec.machineType", "", 0),
    Column("Provisioning", "string", ".spec.provisioning", "", 0),
    Column("Nodes", "integer", ".status.nodes", "", 0),
    Column("Ready", "integer", ".status.readyNodes", "", 0),
    Column("Min", "integer", ".spec.minNodes", "", 0),
    Column("Max", "integer", ".spec.maxNodes", "", 0),
    Column("Stock", "integer", ".status.stock", "", 0),
    Column("Cost", "string", ".status.billing.cost", "", 0),
    Column("Age", "date", ".metadata.creationTimestamp", "", 0),
];
const PROVISIONING_CLASS_COLUMNS: &[Column] = &[
    Column("Accept", "string", ".spec.acceptDelay", "", 0),
    Column("Provision", "string", ".spec.provisionDelay", "", 0),
    Column("Booking", "string", ".spec.bookingTime", "", 0),
    Column("Max-Run", "string", ".spec.maxRunDuration", "", 0),
    Column("Max-Wait", "string", ".spec.maxWait", "", 0),
    Column("Age", "date", ".metadata.creationTimestamp", "", 0),
];

/// The definitions of this crate in the order in which they are installed, except those of
/// [`monitoring`](crate::monitoring), with the keyword `x-embed`.
pub(super) fn definitions() -> Vec<Value> {
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
                    Version::new::<kueue::v1beta1::$kind>("v1beta1").columns($old_columns).deprecated(USE_V1BETA2),
                    Version::new::<kueue::v1beta2::$kind>("v1beta2").columns($columns),
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
                Version::new::<kueue::v1beta1::MultiKueueConfig>("v1beta1"),
                Version::new::<kueue::v1beta2::MultiKueueConfig>("v1beta2"),
            ],
        ),
        kueue!(ProvisioningRequestConfig, &["prc"], &[]),
        kueue!(ResourceFlavor, &["flavor", "flavors", "rf"], &[]),
        kueue!(Topology, &["topo"], &[]),
        definition::<kueue::v1beta2::WorkloadPriorityClass>(
            &["wpc"],
            "v1beta2",
            vec![
                Version::new::<kueue::v1beta1::WorkloadPriorityClass>("v1beta1")
                    .columns(PRIORITY_CLASS_COLUMNS)
                    .empty_subresources()
                    .deprecated(USE_V1BETA2),
                Version::new::<kueue::v1beta2::WorkloadPriorityClass>("v1beta2")
                    .columns(PRIORITY_CLASS_COLUMNS)
                    .empty_subresources(),
            ],
        ),
        definition::<kueue::v1beta2::Workload>(
            &["kwl", "kueueworkload", "kueueworkloads"],
            "v1beta2",
            vec![
                Version::new::<kueue::v1beta1::Workload>("v1beta1").columns(WORKLOAD_COLUMNS).deprecated(USE_V1BETA2),
                Version::new::<kueue::v1beta2::Workload>("v1beta2")
                    .columns(WORKLOAD_COLUMNS)
                    .selectable(&[".status.admission.clusterQueue"]),
            ],
        ),
        definition::<jobset::v1alpha2::JobSet>(
            &[],
            "v1alpha2",
            vec![Version::new::<jobset::v1alpha2::JobSet>("v1alpha2").columns(JOBSET_COLUMNS)],
        ),
        definition::<autoscaling::v1::ProvisioningRequest>(
            &["provreq", "provreqs"],
            "v1",
            vec![
                Version::new::<autoscaling::v1::ProvisioningRequest>("v1").columns(PROVISIONING_REQUEST_COLUMNS),
                Version::new::<autoscaling::v1::ProvisioningRequest>("v1beta1")
                    .columns(PROVISIONING_REQUEST_COLUMNS)
                    .deprecated("autoscaling.k8s.io/v1beta1 API is deprecated"),
            ],
        ),
        definition::<scheduling::PodGroup>(
            &["pg", "pgs"],
            "v1alpha1",
            vec![Version::new::<scheduling::PodGroup>("v1alpha1").columns(POD_GROUP_COLUMNS)],
        ),
        definition::<NodePool>(
            &["np"],
            "v1alpha1",
            vec![
                Version::nullable::<NodePool>("v1alpha1")
                    .columns(NODE_POOL_COLUMNS)
                    .scalable(".spec.nodes", ".status.nodes"),
            ],
        ),
        definition::<ProvisioningClass>(
            &[],
            "v1alpha1",
            vec![Version::nullable::<ProvisioningClass>("v1alpha1").columns(PROVISIONING_CLASS_COLUMNS)],
        ),
    ]
}
