//! The file kind `ClusterConfiguration`: configuration of the embedded cluster, for `berth up
//! --config` and scenarios.
//!
//! Two forms are read: a file with `apiVersion`, `kind`, `metadata` and `spec`, and the bare spec
//! (the `cluster` section of a scenario). Unknown fields are problems, and all problems are
//! reported at once with their paths.

mod autoscaling;
mod operators;
mod provisioning;
mod simulated_pods;

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::node_pool::name_problem;
use super::problem::join;
use super::{
    ConfigurationError, ImageConfiguration, NodePoolSpec, Problem, ProvisioningClassSpec, SchedulerConfiguration,
};

pub use autoscaling::{AutoscalingConfiguration, AutoscalingProfile, NodeAutoProvisioning, ResourceLimit};
pub use operators::OperatorConfiguration;
pub use provisioning::NamedProvisioningClass;
pub use simulated_pods::{ExitCode, RunDuration, RunRule, SimulatedPods};

/// The `kind` of cluster configuration files.
const KIND: &str = "ClusterConfiguration";

/// An embedded cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfiguration {
    /// Cluster name; part of node names.
    pub name: String,
    /// Region; zones default to `<region>-a`.
    pub region: String,
    /// Kubelet version that nodes report.
    pub kubernetes_version: String,
    /// The pools of the new cluster.
    pub node_pools: Vec<NamedNodePool>,
    /// When node pools grow and shrink.
    pub autoscaling: AutoscalingConfiguration,
    /// Whether pools are created for pods that fit no existing pool.
    pub node_auto_provisioning: NodeAutoProvisioning,
    /// The provisioning classes of the new cluster: how the cloud handles ProvisioningRequests.
    pub provisioning_classes: Vec<NamedProvisioningClass>,
    /// How simulated pods run.
    pub pods: SimulatedPods,
    /// The pod scheduler.
    pub scheduler: SchedulerConfiguration,
    /// Files that stand in for container images, if pods run as processes of this machine.
    pub images: ImageConfiguration,
    /// The operators of other projects that run in the cluster.
    pub operators: OperatorConfiguration,
}

/// A node pool of the configuration: its name and the spec of a NodePool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedNodePool {
    /// Name.
    pub name: String,
    /// The other fields.
    #[serde(flatten)]
    pub spec: NodePoolSpec,
}

/// All fields except the pools and classes, which are read one by one so that errors have their
/// paths.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rest {
    name: Option<String>,
    region: String,
    kubernetes_version: String,
    autoscaling: AutoscalingConfiguration,
    node_auto_provisioning: NodeAutoProvisioning,
    pods: SimulatedPods,
    scheduler: SchedulerConfiguration,
    images: ImageConfiguration,
    operators: OperatorConfiguration,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            name: None,
            region: "us-central1".into(),
            kubernetes_version: "v1.35.2".into(),
            autoscaling: AutoscalingConfiguration::default(),
            node_auto_provisioning: NodeAutoProvisioning::default(),
            pods: SimulatedPods::default(),
            scheduler: SchedulerConfiguration::default(),
            images: ImageConfiguration::default(),
            operators: OperatorConfiguration::default(),
        }
    }
}

impl Default for ClusterConfiguration {
    /// The configuration of `berth up` without `--config`: two permanent CPU nodes, a pool of 0 to
    /// 20 CPU nodes, and one of 0 to 8 nodes with 2 L4 GPUs each, with short delays.
    fn default() -> Self {
        let spec = json!({
            "name": "berth",
            "nodePools": [
                { "name": "default-pool", "machineType": "e2-standard-4", "initialNodes": 2, "minNodes": 2, "maxNodes": 2, "static": true },
                { "name": "cpu", "machineType": "n2-standard-16", "maxNodes": 20, "startUpDelay": "10s", "readyDelay": "2s" },
                { "name": "gpu-l4", "machineType": "g2-standard-24", "maxNodes": 8, "startUpDelay": "10s", "readyDelay": "2s", "acceleratorReadyDelay": "5s" },
            ],
            "autoscaling": { "profile": "optimizeUtilization" },
        });
        Self::from_value(spec).expect("the default configuration is valid, a test reads it")
    }
}

impl<'de> Deserialize<'de> for ClusterConfiguration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl ClusterConfiguration {
    /// Reads and validates a whole file (`apiVersion`, `kind`, `metadata`, `spec`) or a bare spec.
    pub fn from_value(value: Value) -> Result<Self, ConfigurationError> {
        let one = |path: &str, message: String| ConfigurationError { problems: vec![Problem::new(path, message)] };
        let Value::Object(mut document) = value else {
            return Err(one("", format!("expected a {KIND}, a mapping of fields")));
        };
        let is_file = ["apiVersion", "kind", "metadata", "spec"].iter().any(|field| document.contains_key(*field));
        if !is_file {
            return Self::from_spec(document, None, "");
        }
        for (field, expected) in [("apiVersion", super::API_VERSION), ("kind", KIND)] {
            match document.remove(field) {
                Some(Value::String(seen)) if seen == expected => {}
                Some(seen) => return Err(one(field, format!("{seen} is not {expected:?}"))),
                None => return Err(one(field, format!("required: {expected:?}"))),
            }
        }
        let metadata = document.remove("metadata").unwrap_or(Value::Null);
        let name = metadata.get("name").and_then(Value::as_str).map(str::to_owned);
        let spec = match document.remove("spec") {
            Some(Value::Object(spec)) => spec,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err(one("spec", "expected a mapping of fields".into())),
        };
        if let Some(unknown) = document.keys().next() {
            return Err(one(unknown, "unknown field: expected apiVersion, kind, metadata and spec".into()));
        }
        Self::from_spec(spec, name, "spec")
    }

    fn from_spec(mut spec: Map<String, Value>, name: Option<String>, path: &str) -> Result<Self, ConfigurationError> {
        let mut problems = Vec::new();
        let pools = read_named(&mut spec, path, "nodePools", "node pool", &mut problems).unwrap_or_default();
        let node_pools = pools.into_iter().map(|(name, spec)| NamedNodePool { name, spec }).collect();
        let classes = read_named(&mut spec, path, "provisioningClasses", "provisioning class", &mut problems);
        let provisioning_classes = classes.map_or_else(provisioning::default_classes, |classes| {
            classes.into_iter().map(|(name, spec)| NamedProvisioningClass { name, spec }).collect()
        });
        let rest: Rest = strict(Value::Object(spec), path, &mut problems).unwrap_or_default();
        let configuration = Self {
            name: rest.name.or(name).unwrap_or_else(|| "berth".into()),
            region: rest.region,
            kubernetes_version: rest.kubernetes_version,
            node_pools,
            autoscaling: rest.autoscaling,
            node_auto_provisioning: rest.node_auto_provisioning,
            provisioning_classes,
            pods: rest.pods,
            scheduler: rest.scheduler,
            images: rest.images,
            operators: rest.operators,
        };
        // Validation of incomplete values would only repeat the errors above.
        if problems.is_empty() {
            problems = configuration.problems(path);
        }
        if problems.is_empty() { Ok(configuration) } else { Err(ConfigurationError { problems }) }
    }

    /// The provisioning class with this name, if a new cluster handles it.
    pub fn provisioning_class(&self, name: &str) -> Option<&ProvisioningClassSpec> {
        self.provisioning_classes.iter().find(|class| class.name == name).map(|class| &class.spec)
    }

    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let at = |field: &str| join(path, field);
        if let Some(why) = name_problem(&self.name) {
            problems.push(Problem::new(at("name"), why.replace("a pool name", "a cluster name")));
        }
        // Node pools: valid, with distinct names, and at most one for this machine.
        let mut names = BTreeSet::new();
        for (i, pool) in self.node_pools.iter().enumerate() {
            let here = at(&format!("nodePools[{i}]"));
            problems.extend(pool.spec.problems(&here));
            if let Some(why) = name_problem(&pool.name) {
                problems.push(Problem::new(join(&here, "name"), why));
            }
            if !names.insert(&pool.name) {
                problems
                    .push(Problem::new(join(&here, "name"), format!("{:?} is the name of an earlier pool", pool.name)));
            }
        }
        for (i, pool) in self.node_pools.iter().enumerate().filter(|(_, pool)| pool.spec.is_process()).skip(1) {
            let message = format!("{:?}: only one pool can be this machine, which is one node", pool.name);
            problems.push(Problem::new(at(&format!("nodePools[{i}].runtime")), message));
        }
        problems.extend(self.autoscaling.problems(&at("autoscaling")));
        problems.extend(self.node_auto_provisioning.problems(&at("nodeAutoProvisioning")));
        problems.extend(self.scheduler.problems(&at("scheduler")));
        problems.extend(self.images.problems(&at("images")));
        problems.extend(self.operators.problems(&at("operators"), &self.scheduler));
        problems.extend(provisioning::problems(&self.provisioning_classes, &at("provisioningClasses")));
        problems
    }
}

/// Takes the list in this field: the name and the other fields of each element. `None` if the field
/// is absent. Messages call an element `what`.
fn read_named<T: DeserializeOwned>(
    spec: &mut Map<String, Value>,
    path: &str,
    field: &str,
    what: &str,
    problems: &mut Vec<Problem>,
) -> Option<Vec<(String, T)>> {
    let path = join(path, field);
    match spec.remove(field) {
        None | Some(Value::Null) => None,
        Some(Value::Array(elements)) => {
            let elements = elements.into_iter().enumerate();
            let read = elements.filter_map(|(i, it)| read_element(it, &format!("{path}[{i}]"), what, problems));
            Some(read.collect())
        }
        Some(_) => {
            problems.push(Problem::new(&path, format!("expected a list, each element a {what}")));
            None
        }
    }
}

fn read_element<T: DeserializeOwned>(
    value: Value,
    path: &str,
    what: &str,
    problems: &mut Vec<Problem>,
) -> Option<(String, T)> {
    let Value::Object(mut fields) = value else {
        problems.push(Problem::new(path, format!("expected a {what}, a mapping of fields")));
        return None;
    };
    let name = match fields.remove("name") {
        Some(Value::String(name)) => name,
        Some(_) => {
            problems.push(Problem::new(join(path, "name"), "expected a string"));
            return None;
        }
        None => {
            problems.push(Problem::new(join(path, "name"), "required"));
            return None;
        }
    };
    let spec = strict(Value::Object(fields), path, problems)?;
    Some((name, spec))
}

/// Reads a value. Reports a wrong type, and every unknown field, with its path.
pub(crate) fn strict<T: DeserializeOwned>(value: Value, path: &str, problems: &mut Vec<Problem>) -> Option<T> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let read = {
        let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
        serde_ignored::deserialize(deserializer, |at| unknown.push(at.to_string()))
    };
    for at in unknown {
        problems.push(Problem::new(join(path, &brackets(&at)), "unknown field"));
    }
    match read {
        Ok(read) => Some(read),
        Err(error) => {
            let at = track.path().to_string();
            let at = if at == "." { String::new() } else { at };
            problems.push(Problem::new(join(path, &at), error.to_string()));
            None
        }
    }
}

/// Converts `rules.0.selector` to `rules[0].selector`; `?`, which marks an option, is removed.
fn brackets(path: &str) -> String {
    let mut text = String::new();
    for part in path.split('.').filter(|part| *part != "?") {
        if part.bytes().all(|b| b.is_ascii_digit()) {
            text.push_str(&format!("[{part}]"));
        } else {
            text = join(&text, part);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::ImageFiles;
    use super::*;

    fn problems(spec: Value) -> Vec<String> {
        let error = ClusterConfiguration::from_value(spec).expect_err("must be rejected");
        error.problems.iter().map(ToString::to_string).collect()
    }

    fn pool(fields: Value) -> Value {
        let mut pool = json!({ "name": "a", "machineType": "e2-standard-4" });
        pool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        pool
    }

    #[test]
    fn the_gang_scheduler_is_one_that_starts_pod_groups() {
        let spec = |name: &str, profiles: Value| json!({ "operators": { "gangSchedulerName": name }, "scheduler": { "profiles": profiles } });
        let gangs = json!([{ "schedulerName": "gangs", "pluginConfig": [{ "name": "Coscheduling", "args": {} }] }]);
        let packs = json!([{ "schedulerName": "packs" }]);
        let accepted = |spec: Value| ClusterConfiguration::from_value(spec).is_ok();
        assert!(accepted(spec("gangs", gangs.clone())) && accepted(spec("", packs.clone())));
        assert!(accepted(json!({ "operators": { "gangSchedulerName": "sakkara-scheduler" } })), "a default profile");
        let expected = |name: &str, known: &str| {
            format!(
                "operators.gangSchedulerName: {name:?} is not a scheduler of this cluster that starts PodGroups of \
                 scheduling.x-k8s.io: expected a name from scheduler.profiles with plugin Coscheduling or \
                 ClusterTopologyPlacementGroup ({known})"
            )
        };
        assert_eq!(problems(spec("volcano", gangs)), [expected("volcano", "gangs")]);
        assert_eq!(problems(spec("packs", packs)), [expected("packs", "none has one")]);
    }

    #[test]
    fn the_default_cluster_is_valid_and_survives_a_round_trip() {
        let configuration = ClusterConfiguration::default();
        let written = serde_json::to_value(&configuration).unwrap();
        assert_eq!(ClusterConfiguration::from_value(written).unwrap(), configuration);
    }

    #[test]
    fn a_file_has_a_kind_and_takes_its_name_from_the_metadata() {
        let file = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "ClusterConfiguration",
            "metadata": { "name": "batch-dev" }, "spec": { "region": "europe-west4" } });
        let configuration = ClusterConfiguration::from_value(file).unwrap();
        assert_eq!((configuration.name.as_str(), configuration.region.as_str()), ("batch-dev", "europe-west4"));
        let wrong = json!({ "apiVersion": "v1", "kind": "ClusterConfiguration" });
        assert_eq!(problems(wrong), [r#"apiVersion: "v1" is not "berth.dev/v1alpha1""#]);
    }

    #[test]
    fn invalid_numbers_are_reported_with_pool_and_bound() {
        let spec = json!({ "nodePools": [
            pool(json!({ "minNodes": 5, "maxNodes": 3, "initialNodes": 5 })),
            pool(json!({ "initialNodes": -1 })),
        ] });
        assert_eq!(
            problems(spec),
            [
                "nodePools[0].minNodes: 5 is more than maxNodes (3)",
                "nodePools[0].initialNodes: 5 is more than maxNodes (3)",
                "nodePools[1].initialNodes: -1 is outside 0 to 15000",
                "nodePools[1].initialNodes: -1 is less than minNodes (0)",
                "nodePools[1].name: \"a\" is the name of an earlier pool",
            ]
        );
    }

    #[test]
    fn a_process_pool_rejects_machine_fields() {
        let process = json!({ "name": "machine", "runtime": "process", "reserve": { "cpu": "1" } });
        ClusterConfiguration::from_value(json!({ "nodePools": [process, pool(json!({}))] })).expect("valid");
        let spec = json!({ "nodePools": [
            { "name": "one", "runtime": "process", "machineType": "e2-standard-4", "maxNodes": 3,
              "reserve": { "gpu": "1", "memory": "much" } },
            { "name": "two", "runtime": "process" },
            pool(json!({ "name": "three", "reserve": { "cpu": "1" } })),
        ] });
        let not_taken = "a pool with runtime: process is this machine and does not have this field";
        assert_eq!(
            problems(spec),
            [
                format!("nodePools[0].machineType: {not_taken}"),
                format!("nodePools[0].maxNodes: {not_taken}"),
                "nodePools[0].reserve[gpu]: \"gpu\" cannot be reserved: expected cpu, ephemeral-storage, memory".into(),
                "nodePools[0].reserve[memory]: \"much\" is not an amount: expected a quantity of 0 or more, such as \
                 \"4\", \"500m\" or \"16Gi\""
                    .into(),
                "nodePools[2].reserve: only a pool with runtime: process can reserve amounts of its machine".into(),
                "nodePools[1].runtime: \"two\": only one pool can be this machine, which is one node".into(),
            ]
        );
    }

    #[test]
    fn image_mappings_name_files_of_the_host_or_the_registry() {
        let spec = json!({ "images": { "otherwise": "strict", "mappings": [
            { "image": "pytorch/*", "files": "/srv/images/torch", "entrypoint": ["python3"], "env": ["A=1"] },
            { "image": "registry.lan/*", "files": "pull" },
        ] } });
        let images = ClusterConfiguration::from_value(spec).expect("valid").images;
        assert_eq!(images.otherwise, ImageFiles::Strict);
        assert_eq!(images.mappings[0].files, ImageFiles::Folder("/srv/images/torch".into()));
        let written = serde_json::to_value(&images).expect("written");
        assert_eq!(serde_json::from_value::<ImageConfiguration>(written).expect("read"), images);
        let spec = json!({ "images": { "mappings": [
            { "files": "pull", "user": "1000" },
            { "image": "a", "env": ["A"], "workingDir": "srv" },
        ] } });
        assert_eq!(
            problems(spec),
            [
                "images.mappings[0].image: required: a pattern of image names, such as \"pytorch/*\"",
                "images.mappings[0].user: may be set only if files is host or a folder, because a stored image declares its own value",
                "images.mappings[1].env[0]: \"A\" is not NAME=value",
                "images.mappings[1].workingDir: \"srv\" is not an absolute path",
            ]
        );
        let spec = json!({ "images": { "otherwise": "never" } });
        assert!(problems(spec)[0].starts_with("images.otherwise: \"never\" is not host, pull, strict or"));
    }

    #[test]
    fn unknown_fields_and_wrong_types_are_reported_with_their_paths() {
        let spec = json!({ "nodePool": [], "nodePools": [
            pool(json!({ "taints": [{ "key": "a" }] })),
            pool(json!({ "machine": { "gpus": 1 }, "provisioning": "preemptible" })),
        ], "pods": { "rules": [{ "duration": "5" }] } });
        let problems = problems(spec);
        for expected in [
            "nodePool: unknown field",
            "nodePools[0].taints[0]: missing field `effect`",
            "nodePools[1].machine.gpus: unknown field",
            "nodePools[1].provisioning: unknown variant `preemptible`",
            "pods.rules[0].duration: \"5\" is not a duration",
        ] {
            assert!(problems.iter().any(|problem| problem.starts_with(expected)), "{expected} not in {problems:#?}");
        }
    }

    #[test]
    fn label_keys_taints_and_machine_types_are_checked() {
        let spec = json!({ "nodePools": [pool(json!({
            "machineType": "z9-huge", "labels": { "-bad": "x", "ok": "not ok!" },
            "taints": [{ "key": "", "effect": "NoSchedule" }],
        }))] });
        let problems = problems(spec);
        for expected in [
            "nodePools[0].machineType: \"z9-huge\" is not a known machine type",
            "nodePools[0].labels[-bad]: \"-bad\" is not a label key",
            "nodePools[0].labels[ok]: \"not ok!\" is not a label value",
            "nodePools[0].taints[0].key: \"\" is not a label key",
        ] {
            assert!(problems.iter().any(|problem| problem.starts_with(expected)), "{expected} not in {problems:#?}");
        }
    }

    #[test]
    fn amounts_are_checked() {
        let spec = json!({
            "nodePools": [{ "name": "a", "machine": { "cpu": "four", "memory": "-1Gi" }, "allocatable": { "cpu": "3.5x" } }],
            "nodeAutoProvisioning": { "enabled": true, "limits": { "cpu": { "max": "many" }, "memory": { "max": "1Ti" } } },
        });
        let expected = "is not an amount: expected a quantity of 0 or more, such as \"4\", \"500m\" or \"16Gi\"";
        assert_eq!(
            problems(spec),
            [
                format!("nodePools[0].machine.cpu: \"four\" {expected}"),
                format!("nodePools[0].machine.memory: \"-1Gi\" {expected}"),
                format!("nodePools[0].allocatable[cpu]: \"3.5x\" {expected}"),
                format!("nodeAutoProvisioning.limits.cpu.max: \"many\" {expected}"),
            ]
        );
    }
}
