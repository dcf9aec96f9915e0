//! Names, labels and environment variables of Kubeflow Trainer.

/// API group of Trainer.
pub const GROUP: &str = "trainer.kubeflow.org";
/// Controller name of this operator in `spec.managedBy`.
pub const CONTROLLER_NAME: &str = "trainer.kubeflow.org/trainjob-controller";
/// Field manager of the objects of a TrainJob.
pub const FIELD_MANAGER: &str = "trainer";
/// Label of a runtime's replicated job: the step of the TrainJob that it runs.
pub const STEP: &str = "trainer.kubeflow.org/trainjob-ancestor-step";
/// Finalizer of runtimes, set by older versions of Trainer.
pub const IN_USE_FINALIZER: &str = "trainer.kubeflow.org/resource-in-use";
/// Label of a runtime whose value `deprecated` makes a warning.
pub const SUPPORT: &str = "trainer.kubeflow.org/support";

/// Step that trains.
pub const TRAINER: &str = "trainer";
/// Step, replicated job and container that loads the data set.
pub const DATASET_INITIALIZER: &str = "dataset-initializer";
/// Step, replicated job and container that loads the model.
pub const MODEL_INITIALIZER: &str = "model-initializer";
/// Replicated job and container of the training nodes.
pub const NODE: &str = "node";
/// Replicated job that launches the others under MPI.
pub const LAUNCHER: &str = "launcher";
/// Volume that initializers fill.
pub const INITIALIZER_VOLUME: &str = "initializer";
/// Variable: address of what an initializer loads.
pub const STORAGE_URI: &str = "STORAGE_URI";

/// Port of the training nodes.
pub const PORT: i32 = 29500;
/// Field of a pod: index of the pod in its Job.
pub const INDEX_FIELD: &str = "metadata.annotations['batch.kubernetes.io/job-completion-index']";

/// Suffix of the ConfigMap with the runtime as it was when the TrainJob started.
pub const SNAPSHOT_SUFFIX: &str = "-runtime-snapshot";
/// Key of the snapshot in its ConfigMap.
pub const SNAPSHOT_KEY: &str = "runtime";
