//! Berth's own group, `berth.dev/v1alpha1`: the configuration of an embedded cluster.
//!
//! [`NodePool`] and [`ProvisioningClass`] are API objects (GKE keeps them in a cloud API, so
//! Kubernetes has no kinds for them). [`ClusterConfiguration`] is a file: `berth up --config` and
//! the `cluster` section of a scenario. Both are plain data; validation errors contain the field
//! and the accepted values. The crate berth-cluster implements them.

mod autopilot;
mod configuration;
pub mod current_jobs;
pub mod decision;
mod duration;
pub mod explanation;
mod faults;
pub mod forecast;
pub mod gpus;
mod health;
mod images;
mod machines;
mod node_pool;
mod problem;
mod provisioning_class;
mod scheduler;
mod supply;
pub mod usage;

pub use autopilot::{
    AutopilotConfiguration, AutopilotVariable, CHECKS as AUTOPILOT_CHECKS, test_name as dcgm_test_name,
};
pub(crate) use configuration::strict;
pub use configuration::{
    AutoscalingConfiguration, AutoscalingProfile, ClusterConfiguration, ExitCode, NamedNodePool,
    NamedProvisioningClass, NodeAutoProvisioning, OperatorConfiguration, ResourceLimit, RunDuration, RunRule,
    SimulatedPods,
};
pub use duration::{Duration, DurationError};
pub use faults::{FAULTS_ANNOTATION, NodeFaults, RANDOM_FAULTS_ANNOTATION, RandomFault, RandomFaults};
pub use health::{
    DCGM_LEVEL_3_LABEL, DCGM_LEVEL_3_OUTPUT_ANNOTATION, GPU_HEALTH_LABEL, NodeEffect, NodeHealthConfiguration,
    ResourceTaint, WholeNodeConfiguration, WholeNodeTaint,
};
pub use images::{ImageConfiguration, ImageFiles, ImageMapping};
pub use machines::{MachineType, allocatable_cpu_milli, allocatable_memory_bytes, machine_type, machine_types};
pub use node_pool::{
    Accelerator, Instance, LocationPolicy, MachineShape, NodePool, NodePoolSpec, NodePoolStatus, NodeTaint,
    PoolDevices, PoolRuntime, Provisioning, ResizeRequest, TaintEffect,
};
pub use problem::{ConfigurationError, Problem};
pub use provisioning_class::{
    ProvisioningClass, ProvisioningClassSpec, ProvisioningFailure, provisioning_class_name_problem,
};
pub use scheduler::{
    ClusterTopologyPlacementGroupArgs, CoschedulingArgs, NodeResourcesFitArgs, PluginConfig, RequestedToCapacityRatio,
    ResourceWeight, SchedulerConfiguration, SchedulerProfile, ScoringStrategy, ScoringStrategyType,
    UtilizationShapePoint,
};
pub use supply::{Billing, RandomSupply, Reclaim, Shortage, Supply, SupplyPeriod, Weekday};

/// The group of Berth's own kinds.
pub const GROUP: &str = "berth.dev";
/// The version of Berth's own kinds.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of Berth's own kinds.
pub const API_VERSION: &str = "berth.dev/v1alpha1";

/// Pod annotation: how long the simulated containers run, as a Go duration (`180s`, `1h30m`) or
/// `forever`.
pub const RUN_DURATION_ANNOTATION: &str = "berth.dev/run-duration";
/// Prefix of a pod annotation: how long one simulated container runs. The container's name follows
/// the prefix. Overrides [`RUN_DURATION_ANNOTATION`].
pub const CONTAINER_RUN_DURATION_PREFIX: &str = "run-duration.berth.dev/";
/// Pod annotation: the exit code of the simulated containers.
pub const EXIT_CODE_ANNOTATION: &str = "berth.dev/exit-code";
/// Annotation of a simulated pod: the output of every command of `pods/exec` in it.
pub const EXEC_OUTPUT_ANNOTATION: &str = "berth.dev/exec-output";
/// Annotation of a simulated pod: exit code of every command of `pods/exec` in it, 0 to 255.
pub const EXEC_EXIT_CODE_ANNOTATION: &str = "berth.dev/exec-exit-code";
/// Annotation on held jobs and pods: those created while no controller was available. On jobs: the
/// original value of the field that suspends them, `true` or `false`. On pods: the scheduling gates
/// that hold them, separated by commas.
pub const HELD_ANNOTATION: &str = "berth.dev/held";
/// Annotation on jobs and Workloads: name of the authenticated user that created the job. Berth
/// sets it and ignores a value from the client.
pub const SUBMITTED_BY_ANNOTATION: &str = "berth.dev/submitted-by";
/// Node annotation: when the node reports Ready (RFC 3339).
pub const READY_AT_ANNOTATION: &str = "berth.dev/ready-at";
/// Node annotation: when the accelerators' device plugin is ready (RFC 3339).
pub const ACCELERATORS_AT_ANNOTATION: &str = "berth.dev/accelerators-at";
/// NodePool annotation: when the autoscaler last added nodes (RFC 3339).
pub const SCALED_UP_AT_ANNOTATION: &str = "berth.dev/scaled-up-at";
/// Label of the nodes of pools with `runtime: hosted`: their pods run as processes.
pub const HOSTED_LABEL: &str = "berth.dev/hosted";
/// Node annotation: when the cloud takes the machine away (RFC 3339).
pub const ENDS_AT_ANNOTATION: &str = "berth.dev/ends-at";
/// Node annotation: why the cloud takes the machine away.
pub const ENDS_BECAUSE_ANNOTATION: &str = "berth.dev/ends-because";
/// Label of nodes created for one ProvisioningRequest: the request's `ResizeRequestName` (as on
/// GKE).
pub const RESIZE_REQUEST_LABEL: &str = "autoscaling.gke.io/provisioning-request";
