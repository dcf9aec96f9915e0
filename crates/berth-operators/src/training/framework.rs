//! The kinds of the training operator, one row each. All share one engine; a row says how a kind
//! differs.

use std::fmt::Debug;

use berth_api::frameworks::{JAXJob, PaddleJob, PyTorchJob, TFJob, XGBoostJob};
use berth_runtime::Written;
use serde_json::Value;

use super::types::RestartPolicy;

/// API version of the kinds.
pub const API_VERSION: &str = "kubeflow.org/v1";

/// A training library, with rules of its own for the environment and the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// PyTorch.
    PyTorch,
    /// TensorFlow.
    TensorFlow,
    /// XGBoost, and LightGBM.
    XGBoost,
    /// PaddlePaddle.
    Paddle,
    /// JAX.
    Jax,
}

/// A kind.
#[derive(Debug)]
pub struct Framework {
    /// The library.
    pub library: Library,
    /// Name in metrics.
    pub name: &'static str,
    /// The kind's name.
    pub kind: &'static str,
    /// Name of the controller, in labels and events.
    pub controller: &'static str,
    /// Field of the spec with the replica specs.
    pub specs: &'static str,
    /// Replica types, in the order in which they are reconciled.
    pub types: &'static [&'static str],
    /// Name of the container that trains.
    pub container: &'static str,
    /// Name of that container's port.
    pub port_name: &'static str,
    /// Number of that port, unless the template sets it.
    pub port: i32,
    /// Restart policy of replicas without one.
    pub restart_policy: RestartPolicy,
}

impl Framework {
    /// The condition or event reason `word` of this kind, such as `PyTorchJobRunning`.
    pub fn reason(&self, word: &str) -> String {
        format!("{}{word}", self.kind)
    }

    /// The replica type of this name in any case.
    pub fn replica_type(&self, name: &str) -> Option<&'static str> {
        self.types.iter().find(|known| known.eq_ignore_ascii_case(name)).copied()
    }
}

/// PyTorchJob.
pub const PYTORCH: Framework = Framework {
    library: Library::PyTorch,
    name: "pytorch",
    kind: "PyTorchJob",
    controller: "pytorchjob-controller",
    specs: "pytorchReplicaSpecs",
    types: &["Master", "Worker"],
    container: "pytorch",
    port_name: "pytorchjob-port",
    port: 23456,
    restart_policy: RestartPolicy::OnFailure,
};

/// TFJob.
pub const TENSORFLOW: Framework = Framework {
    library: Library::TensorFlow,
    name: "tensorflow",
    kind: "TFJob",
    controller: "tfjob-controller",
    specs: "tfReplicaSpecs",
    types: &["Chief", "Evaluator", "Master", "PS", "Worker"],
    container: "tensorflow",
    port_name: "tfjob-port",
    port: 2222,
    restart_policy: RestartPolicy::Never,
};

/// XGBoostJob.
pub const XGBOOST: Framework = Framework {
    library: Library::XGBoost,
    name: "xgboost",
    kind: "XGBoostJob",
    controller: "xgboostjob-controller",
    specs: "xgbReplicaSpecs",
    types: &["Master", "Worker"],
    container: "xgboost",
    port_name: "xgboostjob-port",
    port: 9999,
    restart_policy: RestartPolicy::Never,
};

/// PaddleJob.
pub const PADDLE: Framework = Framework {
    library: Library::Paddle,
    name: "paddle",
    kind: "PaddleJob",
    controller: "paddlejob-controller",
    specs: "paddleReplicaSpecs",
    types: &["Master", "Worker"],
    container: "paddle",
    port_name: "master",
    port: 36543,
    restart_policy: RestartPolicy::OnFailure,
};

/// JAXJob.
pub const JAX: Framework = Framework {
    library: Library::Jax,
    name: "jax",
    kind: "JAXJob",
    controller: "jaxjob-controller",
    specs: "jaxReplicaSpecs",
    types: &["Worker"],
    container: "jax",
    port_name: "jaxjob-port",
    port: 6666,
    restart_policy: RestartPolicy::Never,
};

/// All kinds.
pub const ALL: [&Framework; 5] = [&PYTORCH, &TENSORFLOW, &XGBOOST, &PADDLE, &JAX];

/// The Rust type of a kind.
pub trait Kind: Written + Send + Sync + Debug {
    /// The kind's row.
    const FRAMEWORK: &'static Framework;

    /// The spec as written.
    fn spec(&self) -> &Value;

    /// The status as stored.
    fn status(&self) -> Option<&Value>;

    /// A copy with this status.
    fn with_status(&self, status: Value) -> Self;
}

macro_rules! kinds {
    ($($kind:ident: $framework:ident;)*) => {
        $(impl Kind for $kind {
            const FRAMEWORK: &'static Framework = &$framework;

            fn spec(&self) -> &Value {
                &self.spec
            }

            fn status(&self) -> Option<&Value> {
                self.status.as_ref()
            }

            fn with_status(&self, status: Value) -> Self {
                Self { status: Some(status), ..self.clone() }
            }
        })*
    };
}

kinds! {
    PyTorchJob: PYTORCH;
    TFJob: TENSORFLOW;
    XGBoostJob: XGBOOST;
    PaddleJob: PADDLE;
    JAXJob: JAX;
}
