//! What the collector reads of a CustomResourceDefinition: everything but its schemas, which are most of it.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionStatus,
};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;

/// A definition without its schemas.
#[derive(Clone, Debug, Deserialize)]
pub struct Definition {
    /// Standard metadata.
    pub metadata: ObjectMeta,
    /// What it defines.
    pub spec: DefinitionSpec,
    /// Whether it is served, as conditions.
    pub status: Option<CustomResourceDefinitionStatus>,
}

/// See [`Definition`].
#[derive(Clone, Debug, Deserialize)]
pub struct DefinitionSpec {
    /// API group.
    pub group: String,
    /// Kind and resource.
    pub names: CustomResourceDefinitionNames,
    /// `Namespaced` or `Cluster`.
    pub scope: String,
    /// The versions.
    pub versions: Vec<DefinitionVersion>,
}

/// See [`Definition`].
#[derive(Clone, Debug, Deserialize)]
pub struct DefinitionVersion {
    /// Such as `v1`.
    pub name: String,
    /// Does the API serve it?
    pub served: bool,
    /// Are objects stored in it?
    pub storage: bool,
}

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
