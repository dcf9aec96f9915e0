//! Spec and status of an AppWrapper, as the operator reads and writes them.

use std::collections::BTreeMap;

use berth_api::appwrapper::pod_sets::PodSet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodSchedulingGate, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Value of `spec.managedBy` for this operator; also the meaning of an absent value.
pub const MANAGER: &str = "workload.codeflare.dev/appwrapper-controller";
/// Label of components and their pods: name of the AppWrapper.
pub const LABEL: &str = "workload.codeflare.dev/appwrapper";
/// Label of an AppWrapper: the user that created it.
pub const USER_LABEL: &str = "workload.codeflare.dev/user";
/// Label of an AppWrapper: identifier of the user that created it.
pub const USER_ID_LABEL: &str = "workload.codeflare.dev/userid";
/// Finalizer of AppWrappers whose components may exist.
pub const FINALIZER: &str = "workload.codeflare.dev/finalizer";

/// Condition types of AppWrappers.
pub mod condition {
    /// The components may exist or be created: quota is needed.
    pub const QUOTA_RESERVED: &str = "QuotaReserved";
    /// Components may exist. Also the condition of a single component.
    pub const RESOURCES_DEPLOYED: &str = "ResourcesDeployed";
    /// All pods run or have succeeded.
    pub const PODS_READY: &str = "PodsReady";
    /// Something is wrong with components or pods.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// Components are being deleted.
    pub const DELETING_RESOURCES: &str = "DeletingResources";
}

/// Spec of an AppWrapper.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppWrapperSpec {
    /// The wrapped objects, in the order of their creation.
    pub components: Vec<Component>,
    /// True if no component may exist.
    pub suspend: bool,
    /// The controller of the AppWrapper.
    pub managed_by: Option<String>,
}

/// A wrapped object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Component {
    /// The object.
    pub template: Value,
    /// Declared pod sets; empty if they are inferred.
    pub pod_sets: Vec<PodSet>,
    /// What admission adds to the pods of each pod set.
    pub pod_set_infos: Vec<PodSetInfo>,
}

/// What admission adds to the pods of a pod set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetInfo {
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Node labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Gates that delay scheduling.
    pub scheduling_gates: Vec<PodSchedulingGate>,
}

/// Phase of an AppWrapper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Not reconciled yet.
    #[default]
    #[serde(rename = "")]
    Empty,
    /// No component exists.
    Suspended,
    /// Components are being created.
    Resuming,
    /// All components were created.
    Running,
    /// Components are deleted to be created again. Quota is kept.
    Resetting,
    /// Components are deleted because the AppWrapper is suspended.
    Suspending,
    /// All pods succeeded.
    Succeeded,
    /// The AppWrapper will not be retried.
    Failed,
    /// The AppWrapper is deleted and components remain.
    Terminating,
}

impl Phase {
    /// The phase as the API spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "",
            Self::Suspended => "Suspended",
            Self::Resuming => "Resuming",
            Self::Running => "Running",
            Self::Resetting => "Resetting",
            Self::Suspending => "Suspending",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::Empty
    }
}

/// Status of an AppWrapper.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppWrapperStatus {
    /// Phase.
    #[serde(skip_serializing_if = "Phase::is_empty")]
    pub phase: Phase,
    /// Number of resets that count towards the retry limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub resetting_count: i32,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The components, in the order of the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub component_status: Vec<ComponentStatus>,
}

/// Status of a component.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ComponentStatus {
    /// Name of the object.
    pub name: String,
    /// Kind of the object.
    pub kind: String,
    /// Group and version of the object.
    pub api_version: String,
    /// The pod sets, declared or inferred. Fixed when the AppWrapper is first reconciled.
    pub pod_sets: Vec<PodSet>,
    /// Condition `ResourcesDeployed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

fn is_zero(count: &i32) -> bool {
    *count == 0
}

impl AppWrapperSpec {
    /// Reads a spec.
    ///
    /// # Errors
    /// A field has the wrong type.
    pub fn read(spec: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(spec)
    }
}

impl AppWrapperStatus {
    /// Reads a status; an absent one is empty.
    ///
    /// # Errors
    /// A field has the wrong type, or the phase is unknown.
    pub fn read(status: Option<&Value>) -> Result<Self, serde_json::Error> {
        status.map_or_else(|| Ok(Self::default()), Self::deserialize)
    }

    /// Number of pods of all pod sets.
    pub fn expected_pods(&self) -> i32 {
        let counts = self.component_status.iter().flat_map(|component| &component.pod_sets).map(PodSet::count);
        counts.fold(0, i32::saturating_add)
    }

    /// True if the condition is True.
    pub fn is_true(&self, type_: &str) -> bool {
        is_true(&self.conditions, type_)
    }

    /// When the condition's status last changed; `None` if there is no such condition.
    pub fn since(&self, type_: &str) -> Option<Timestamp> {
        find(&self.conditions, type_).map(|condition| condition.last_transition_time.0)
    }
}

/// The condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// True if the condition is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// A status of a condition with its reason and message.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// Reason.
    pub reason: &'a str,
    /// Message, may be empty.
    pub message: &'a str,
}

impl<'a> State<'a> {
    /// A condition that is True.
    pub fn yes(reason: &'a str, message: &'a str) -> Self {
        Self { status: "True", reason, message }
    }

    /// A condition that is False.
    pub fn no(reason: &'a str, message: &'a str) -> Self {
        Self { status: "False", reason, message }
    }
}

/// Sets a condition. Its transition time moves only if its status changes.
pub fn set(conditions: &mut Vec<Condition>, type_: &str, state: State<'_>, now: Timestamp) {
    let State { status, reason, message } = state;
    let new = Condition { status: status.to_owned(), ..berth_runtime::condition(type_, false, reason, message, now) };
    berth_runtime::set_condition(conditions, new);
}
