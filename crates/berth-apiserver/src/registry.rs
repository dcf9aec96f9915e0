//! The table of kinds. Everything the server knows about a kind is one [`ResourceInfo`]; the REST path, discovery,
//! OpenAPI, printers and authorization read it and have no code of their own per kind.
//!
//! Rows of built-in kinds come from [`Registry::builtin`]; rows of custom resources are added and removed while the
//! server runs, from CustomResourceDefinition objects. A `Registry` is an immutable snapshot: a change makes a new one.

pub(crate) mod autoscalers;
pub mod builtin;
pub mod events;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_apimachinery::schema::{Schema, SchemaError};
use serde_json::Value;

/// One kind: group, names, versions and what can be done with it.
#[derive(Clone, Debug)]
pub struct ResourceInfo {
    /// API group; empty for the core group.
    pub group: String,
    /// `Pod`.
    pub kind: String,
    /// `PodList`.
    pub list_kind: String,
    /// `pods`: the name in paths.
    pub plural: String,
    /// `pod`.
    pub singular: String,
    /// `po`.
    pub short_names: Vec<String>,
    /// `all`.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs the main resource answers, as discovery lists them (`get`, `list`, `watch`, `create`, …).
    pub verbs: Vec<String>,
    /// Version objects are stored in; names an entry of `versions`.
    pub storage_version: String,
    /// Versions, the preferred one first.
    pub versions: Vec<VersionInfo>,
    /// Where the row comes from.
    pub origin: Origin,
}

/// One version of a kind.
#[derive(Clone, Debug)]
pub struct VersionInfo {
    /// `v1`, `v1beta2`.
    pub name: String,
    /// Whether clients can reach it.
    pub served: bool,
    /// Text of the `Warning` header for requests to a deprecated version.
    pub deprecation_warning: Option<String>,
    /// Subresources of this version.
    pub subresources: Vec<Subresource>,
    /// Schema objects of this version obey.
    pub schema: SchemaSource,
    /// `additionalPrinterColumns` of a custom resource; built-in kinds have printers of their own.
    pub columns: Vec<PrinterColumn>,
    /// JSON paths (`.spec.color`) a field selector may name besides `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<String>,
}

/// A subresource such as `status`, `scale`, `log`, `binding`, `eviction`, `token`, `finalize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// Name in the path.
    pub name: String,
    /// Group of the kind in its body; equal to the resource's own group for `status`.
    pub group: String,
    /// Version of the kind in its body.
    pub version: String,
    /// Kind of its body: `Scale`, `Binding`, `Eviction`, or the resource's own kind.
    pub kind: String,
    /// Verbs it answers.
    pub verbs: Vec<String>,
    /// Paths of the scale subresource inside the object; `None` for every other subresource.
    pub scale: Option<ScalePaths>,
}

/// Where the `scale` subresource finds its numbers, as JSON paths with a leading dot (`.spec.replicas`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Path of the wanted count.
    pub spec_replicas: String,
    /// Path of the observed count.
    pub status_replicas: String,
    /// Path of the selector, a string in custom resources, a LabelSelector in built-in kinds.
    pub selector: Option<String>,
}

/// An entry of `additionalPrinterColumns`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrinterColumn {
    /// Header of the column.
    pub name: String,
    /// OpenAPI type of the cells.
    pub type_: String,
    /// OpenAPI format of the cells, may be empty.
    pub format: String,
    /// What the column means.
    pub description: String,
    /// 0 is shown by default, above only in wide views.
    pub priority: i64,
    /// Where the cell's value is found.
    pub json_path: String,
}

/// The schema of one version.
#[derive(Clone, Default)]
pub enum SchemaSource {
    /// None known: objects are taken as they are.
    #[default]
    None,
    /// Looked up in the published OpenAPI document of the built-in kinds by group, version and kind, when first needed, and
    /// kept here.
    BuiltIn(Arc<OnceLock<Option<Arc<Schema>>>>),
    /// From a CustomResourceDefinition.
    Custom(Arc<CustomSchema>),
}

/// Whether a built-in schema was needed so far does not show: the hashes of OpenAPI documents are made of this.
impl std::fmt::Debug for SchemaSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SchemaSource::None => formatter.write_str("None"),
            SchemaSource::BuiltIn(_) => formatter.write_str("BuiltIn"),
            SchemaSource::Custom(custom) => formatter.debug_tuple("Custom").field(custom).finish(),
        }
    }
}

/// A structural schema from a CustomResourceDefinition.
#[derive(Debug)]
pub struct CustomSchema {
    /// As written, as JSON: a tree of it takes some hundred kilobytes, and few ask for it.
    text: Box<str>,
    /// Parsed.
    pub schema: Arc<Schema>,
}

impl CustomSchema {
    /// A schema as written.
    ///
    /// # Errors
    /// What cannot be read of it.
    pub fn new(written: &Value) -> Result<Self, SchemaError> {
        Ok(Self { text: written.to_string().into(), schema: Schema::parse_crd(written)? })
    }

    /// As written.
    pub fn written(&self) -> Value {
        serde_json::from_str(&self.text).expect("the text of a JSON value is JSON")
    }

    /// As written, as JSON.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Where a row comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Part of the server.
    #[default]
    BuiltIn,
    /// Answered by the server from nothing stored (SubjectAccessReview, ComponentStatus).
    Virtual,
    /// Defined by the CustomResourceDefinition object of this name.
    Custom(String),
}

/// All rows, a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    rows: BTreeMap<(String, String), Arc<ResourceInfo>>,
    /// OpenAPI documents made for these rows; emptied (not shared any more) when a row changes.
    documents: crate::openapi::Cache,
}

impl Registry {
    /// The row of `plural` in `group`.
    pub fn get(&self, group: &str, plural: &str) -> Option<&Arc<ResourceInfo>> {
        self.rows.get(&(group.to_owned(), plural.to_owned()))
    }

    /// The row of `kind` in `group`.
    pub fn by_kind(&self, group: &str, kind: &str) -> Option<&Arc<ResourceInfo>> {
        self.rows().find(|row| row.group == group && row.kind == kind)
    }

    /// Every row, by group and plural name.
    pub fn rows(&self) -> impl Iterator<Item = &Arc<ResourceInfo>> {
        self.rows.values()
    }

    pub(crate) fn documents(&self) -> &crate::openapi::Cache {
        &self.documents
    }

    /// Adds or replaces a row.
    pub fn insert(&mut self, row: ResourceInfo) {
        self.documents = Default::default();
        self.rows.insert((row.group.clone(), row.plural.clone()), Arc::new(row));
    }

    /// Removes a row.
    pub fn remove(&mut self, group: &str, plural: &str) {
        self.documents = Default::default();
        self.rows.remove(&(group.to_owned(), plural.to_owned()));
    }
}

impl ResourceInfo {
    /// The version called `name`.
    pub fn version(&self, name: &str) -> Option<&VersionInfo> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Group and plural name objects are stored under. The row's own, except where one store shows under two groups
    /// (`events.k8s.io` and core events); then [`events`] translates.
    pub fn storage(&self) -> (&str, &str) {
        builtin::storage_of(self)
    }

    /// `group/version`, or the version alone for the core group.
    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }

    /// An object of a built-in kind in another of its versions.
    pub(crate) fn convert_builtin(&self, object: Value, to_api_version: &str) -> Value {
        if self.group == "autoscaling" { autoscalers::convert(object, to_api_version) } else { object }
    }

    /// The schema objects of `version` obey, if one is known.
    pub fn schema(&self, version: &str) -> Option<Arc<Schema>> {
        match &self.version(version)?.schema {
            SchemaSource::None => None,
            SchemaSource::BuiltIn(found) => {
                found.get_or_init(|| crate::openapi::builtin_schema(&self.group, version, &self.kind)).clone()
            }
            SchemaSource::Custom(custom) => Some(custom.schema.clone()),
        }
    }
}

impl VersionInfo {
    /// The subresource called `name`.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }
}
