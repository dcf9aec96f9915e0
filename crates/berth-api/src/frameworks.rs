//! Job kinds of other projects that Berth queues (Kubeflow, Ray, Spark, AppWrapper,
//! LeaderWorkerSet), and the runtimes of TrainJobs. Only the common fields of objects are typed;
//! spec and status stay JSON, because their schemas belong to those projects.
//!
//! A cluster that runs such a project has its full definitions. [`crds`] returns definitions for
//! other clusters, so that manifests can be applied, queued and admitted there. Their schemas also
//! accept fields that they do not list.

use serde_json::{Value, json};

use crate::resource::custom_resource;
use crate::{
    appwrapper, frameworks_kubeflow, frameworks_leader_worker_set, frameworks_ray, frameworks_spark, frameworks_trainer,
};

macro_rules! kinds {
    ($( $(#[$meta:meta])* $kind:ident: $scope:ident $group:literal $version:literal $plural:literal; )*) => {
        $(custom_resource! {
            $(#[$meta])*
            $kind: $scope $group $version $plural {
                /// The spec as JSON.
                spec: Value,
                /// The status as JSON, written by the kind's controller.
                status: Option<Value>,
            }
        })*

        /// CustomResourceDefinitions of all kinds, in the order of their declaration. They accept
        /// unknown fields.
        pub fn crds() -> Vec<Value> {
            vec![$( definition(stringify!($kind), stringify!($scope), $group, $version, $plural), )*]
        }
    };
}

kinds! {
    /// Training with PyTorch.
    PyTorchJob: namespaced "kubeflow.org" "v1" "pytorchjobs";
    /// Training with TensorFlow.
    TFJob: namespaced "kubeflow.org" "v1" "tfjobs";
    /// Training with XGBoost.
    XGBoostJob: namespaced "kubeflow.org" "v1" "xgboostjobs";
    /// Training with PaddlePaddle.
    PaddleJob: namespaced "kubeflow.org" "v1" "paddlejobs";
    /// Training with JAX.
    JAXJob: namespaced "kubeflow.org" "v1" "jaxjobs";
    /// Training with MXNet, which Kubeflow's training operator served until version 1.7.
    MXJob: namespaced "kubeflow.org" "v1" "mxjobs";
    /// An MPI job.
    MPIJob: namespaced "kubeflow.org" "v2beta1" "mpijobs";
    /// A Ray cluster that runs one job.
    RayJob: namespaced "ray.io" "v1" "rayjobs";
    /// A Ray cluster.
    RayCluster: namespaced "ray.io" "v1" "rayclusters";
    /// A Ray cluster that serves requests.
    RayService: namespaced "ray.io" "v1" "rayservices";
    /// A schedule of RayJobs.
    RayCronJob: namespaced "ray.io" "v1" "raycronjobs";
    /// A Spark program: a driver and its executors.
    SparkApplication: namespaced "sparkoperator.k8s.io" "v1beta2" "sparkapplications";
    /// A group of arbitrary objects that are deployed together.
    AppWrapper: namespaced "workload.codeflare.dev" "v1beta2" "appwrappers";
    /// Replicas that are groups of pods: a leader and its workers.
    LeaderWorkerSet: namespaced "leaderworkerset.x-k8s.io" "v1" "leaderworkersets";
    /// Training by Kubeflow Trainer.
    TrainJob: namespaced "trainer.kubeflow.org" "v1alpha1" "trainjobs";
    /// The runtime of TrainJobs in one namespace.
    TrainingRuntime: namespaced "trainer.kubeflow.org" "v1alpha1" "trainingruntimes";
    /// The runtime of TrainJobs in any namespace.
    ClusterTrainingRuntime: cluster "trainer.kubeflow.org" "v1alpha1" "clustertrainingruntimes";
}

fn definition(kind: &str, scope: &str, group: &str, version: &str, plural: &str) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group,
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": kind.to_lowercase(),
            },
            "scope": if scope == "cluster" { "Cluster" } else { "Namespaced" },
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "apiVersion": { "type": "string" },
                        "kind": { "type": "string" },
                        "metadata": { "type": "object" },
                        "spec": open,
                        "status": open,
                    },
                } },
                "subresources": { "status": {} },
            }],
        },
    });
    frameworks_ray::complete(kind, &mut definition);
    frameworks_leader_worker_set::complete(kind, &mut definition);
    frameworks_trainer::complete(kind, &mut definition);
    appwrapper::complete(kind, &mut definition);
    frameworks_kubeflow::complete(kind, &mut definition);
    frameworks_spark::complete(kind, &mut definition);
    definition
}
