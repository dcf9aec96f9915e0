//! JSON of Kubernetes objects, compiled in one crate.
//!
//! The code that serde generates is generic over the format, and the compiler makes a copy of it in
//! every crate that decodes a type. A pod has a hundred parts, so such copies were a third of the
//! code of Berth's controllers and most of the time of a release build. The methods of [`Json`] are
//! not generic: a kind is compiled where it implements the trait, and nowhere else. Objects are
//! read from text and written as text. A JSON value goes through its text, because code for values
//! would be as much again for each kind, and few values are converted.

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    PodSpec, PodTemplate, PodTemplateSpec, ReplicationController, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role, RoleBinding};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::{DynamicObject, PartialObjectMeta};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Result, Value};

/// A type whose JSON is read and written by code that is compiled once. Implement it with
/// [`implement_json!`](crate::implement_json!).
pub trait Json: Serialize + DeserializeOwned {
    /// Decodes a text.
    ///
    /// # Errors
    /// The text is not JSON, or not a value of the type.
    fn from_json_text(text: &str) -> Result<Self>;

    /// Decodes a JSON value.
    ///
    /// # Errors
    /// The value is not one of the type.
    fn from_json_value(value: &Value) -> Result<Self> {
        Self::from_json_text(&value.to_string()).map_err(without_position)
    }

    /// Encodes the value as text.
    ///
    /// # Errors
    /// The value has a map with keys that are not strings, or a part that refuses to be encoded.
    fn to_json_text(&self) -> Result<Vec<u8>>;

    /// Encodes the value as a JSON value.
    ///
    /// # Errors
    /// As those of [`Json::to_json_text`].
    fn to_json_value(&self) -> Result<Value> {
        serde_json::from_slice(&self.to_json_text()?)
    }
}

/// The error without line and column: they are those of a text that the caller does not know.
fn without_position(error: serde_json::Error) -> serde_json::Error {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    serde::de::Error::custom(text.strip_suffix(&position).unwrap_or(&text))
}

/// Implements [`Json`] for types of the calling crate. The crate depends on `serde_json`.
#[macro_export]
macro_rules! implement_json {
    ($($kind:ty),* $(,)?) => {
        $(impl $crate::json::Json for $kind {
            #[inline(never)]
            fn from_json_text(text: &str) -> serde_json::Result<Self> {
                serde_json::from_str(text)
            }

            #[inline(never)]
            fn to_json_text(&self) -> serde_json::Result<Vec<u8>> {
                serde_json::to_vec(self)
            }
        })*
    };
}

// Custom resources of this crate implement the trait where they are declared.
implement_json!(
    ClusterRole,
    ConfigMap,
    Container,
    ControllerRevision,
    CronJob,
    CustomResourceDefinition,
    DaemonSet,
    Deployment,
    DeviceClass,
    DynamicObject,
    EndpointSlice,
    Endpoints,
    Event,
    HorizontalPodAutoscaler,
    Ingress,
    Job,
    Lease,
    LimitRange,
    MutatingWebhookConfiguration,
    Namespace,
    Node,
    PartialObjectMeta<DynamicObject>,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    PodSpec,
    PodTemplate,
    PodTemplateSpec,
    PriorityClass,
    ReplicaSet,
    ReplicationController,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    Role,
    RoleBinding,
    RuntimeClass,
    Secret,
    Service,
    ServiceAccount,
    StatefulSet,
    StatefulSetSpec,
    StorageClass,
    ValidatingWebhookConfiguration,
    Value,
);

/// Decodes a JSON value, like `serde_json::from_value`.
///
/// # Errors
/// The value is not one of the type.
pub fn from_value<T: Json>(value: Value) -> Result<T> {
    T::from_json_value(&value)
}

/// Encodes a value as a JSON value, like `serde_json::to_value`.
///
/// # Errors
/// As those of [`Json::to_json_text`].
pub fn to_value<T: Json>(value: &T) -> Result<Value> {
    value.to_json_value()
}

/// Reads a field of a type that derives `Deserialize`, for `#[serde(deserialize_with)]`: the code
/// of the field's type is not compiled again with the deriving type. Null is the default.
///
/// # Errors
/// The value is not one of the type.
pub fn field<'de, D: Deserializer<'de>, T: Json + Default>(deserializer: D) -> std::result::Result<T, D::Error> {
    optional_field(deserializer).map(Option::unwrap_or_default)
}

/// Like [`field`], for an optional field. Null is `None`.
///
/// # Errors
/// The value is not one of the type.
pub fn optional_field<'de, D: Deserializer<'de>, T: Json>(deserializer: D) -> std::result::Result<Option<T>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    value.map(from_value).transpose().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_and_values_are_read_and_written_as_by_serde_json() {
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}, "data": {"a": "b"}});
        let map = ConfigMap::from_json_text(&value.to_string()).expect("a ConfigMap");
        assert_eq!(from_value::<ConfigMap>(value.clone()).expect("a ConfigMap"), map);
        assert_eq!(to_value(&map).expect("a value"), value);
        let text = map.to_json_text().expect("a text");
        assert_eq!(serde_json::from_slice::<Value>(&text).expect("JSON"), value);
        for wrong in [json!({"data": []}), json!([1]), json!("text")] {
            let error = ConfigMap::from_json_text(&wrong.to_string()).expect_err("not a ConfigMap");
            assert!(error.to_string().contains("invalid type"), "{error}");
            let error = from_value::<ConfigMap>(wrong).expect_err("not a ConfigMap").to_string();
            assert!(error.starts_with("invalid type") && !error.contains("line"), "{error}");
        }
    }

    #[test]
    fn a_field_is_read_like_its_type_and_null_is_its_default() {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Group {
            #[serde(deserialize_with = "field")]
            template: PodTemplateSpec,
            #[serde(deserialize_with = "optional_field")]
            other: Option<PodTemplateSpec>,
        }
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        let typed = from_value::<PodTemplateSpec>(template.clone()).expect("a template");
        let read = |value: Value| Group::deserialize(value);
        let group = read(json!({"template": template, "other": template})).expect("a group");
        assert_eq!((group.template, group.other), (typed.clone(), Some(typed)));
        for empty in [json!({}), json!({"template": null, "other": null})] {
            let group = read(empty).expect("a group");
            assert_eq!((group.template, group.other), (PodTemplateSpec::default(), None));
        }
        assert!(read(json!({"template": {"spec": 1}})).is_err());
    }
}
