//! A CustomResourceDefinition without its schemas, which are most of its size.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionStatus,
};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A CustomResourceDefinition without its schemas.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Definition {
    /// Standard metadata.
    pub metadata: ObjectMeta,
    /// The defined kind.
    pub spec: DefinitionSpec,
    /// Conditions, such as Established.
    pub status: Option<CustomResourceDefinitionStatus>,
}

/// Spec of a [`Definition`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DefinitionSpec {
    /// API group.
    pub group: String,
    /// Names of the kind and the resource.
    pub names: CustomResourceDefinitionNames,
    /// `Namespaced` or `Cluster`.
    pub scope: String,
    /// The versions of the API.
    pub versions: Vec<DefinitionVersion>,
}

/// A version of a [`Definition`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DefinitionVersion {
    /// Name, such as `v1`.
    pub name: String,
    /// True if the API server serves this version.
    pub served: bool,
    /// True if objects are stored in this version.
    pub storage: bool,
}

berth_api::implement_json!(Definition);

impl Resource for Definition {
    type DynamicType = ();
    type Scope = <CustomResourceDefinition as Resource>::Scope;

    fn kind(dt: &()) -> Cow<'_, str> {
        CustomResourceDefinition::kind(dt)
    }

    fn group(dt: &()) -> Cow<'_, str> {
        CustomResourceDefinition::group(dt)
    }

    fn version(dt: &()) -> Cow<'_, str> {
        CustomResourceDefinition::version(dt)
    }

    fn plural(dt: &()) -> Cow<'_, str> {
        CustomResourceDefinition::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
