//! The table of kinds. Each kind has one row, a [`ResourceInfo`]. The REST path, discovery, OpenAPI
//! and authorization read the rows, and have no code for single kinds.
//!
//! Rows of built-in kinds come from [`Registry::builtin`]. Rows of custom resources are added and
//! removed at run time, from CustomResourceDefinition objects. A `Registry` is an immutable
//! snapshot: a change creates a new one.

pub mod autoscalers;
pub mod builtin;
pub mod events;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use berth_apimachinery::meta::GroupVersionKind;
use berth_apimachinery::schema::{Schema, SchemaError};
use serde_json::Value;

/// One kind: its group, names, versions and verbs.
#[derive(Clone, Debug)]
pub struct ResourceInfo {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, such as `Pod`.
    pub kind: String,
    /// Kind of lists, such as `PodList`.
    pub list_kind: String,
    /// Name in paths, such as `pods`.
    pub plural: String,
    /// Singular name, such as `pod`.
    pub singular: String,
    /// Short names, such as `po`.
    pub short_names: Vec<String>,
    /// Categories, such as `all`.
    pub categories: Vec<String>,
    /// True if objects live in namespaces.
    pub namespaced: bool,
    /// Verbs of the main resource, as discovery lists them (`get`, `list`, `watch`, `create`, …).
    pub verbs: Vec<String>,
    /// Version in which objects are stored; names an entry of `versions`.
    pub storage_version: String,
    /// Versions, the preferred one first.
    pub versions: Vec<VersionInfo>,
    /// Origin of the row.
    pub origin: Origin,
}

/// One version of a kind.
#[derive(Clone, Debug)]
pub struct VersionInfo {
    /// Name, such as `v1` or `v1beta2`.
    pub name: String,
    /// True if the server serves this version.
    pub served: bool,
    /// Message of the `Warning` header for requests to a deprecated version.
    pub deprecation_warning: Option<String>,
    /// Subresources of this version.
    pub subresources: Vec<Subresource>,
    /// Schema of objects of this version.
    pub schema: SchemaSource,
    /// `additionalPrinterColumns` of a custom resource; built-in kinds have their own printers.
    pub columns: Vec<PrinterColumn>,
    /// JSON paths (`.spec.color`) that field selectors may use besides `metadata.name` and
    /// `metadata.namespace`.
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
    /// Verbs of the subresource.
    pub verbs: Vec<String>,
    /// Paths of the scale subresource inside the object; `None` for every other subresource.
    pub scale: Option<ScalePaths>,
}

/// Fields of an object that the `scale` subresource reads and writes, as JSON paths with a leading
/// dot (`.spec.replicas`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Path of the desired number of replicas.
    pub spec_replicas: String,
    /// Path of the observed number of replicas.
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
    /// Description of the column.
    pub description: String,
    /// Priority. Columns with 0 are always shown, others only in wide views.
    pub priority: i64,
    /// JSON path of the cell's value.
    pub json_path: String,
}

/// The schema of one version.
#[derive(Clone, Default)]
pub enum SchemaSource {
    /// No schema: objects are accepted without validation.
    #[default]
    None,
    /// From the published OpenAPI document of the built-in kinds, by group, version and kind.
    /// Parsed on first use and cached here.
    BuiltIn(Arc<OnceLock<Option<Arc<Schema>>>>),
    /// From a CustomResourceDefinition.
    Custom(Arc<CustomSchema>),
}

/// Omits whether a built-in schema is already cached, because hashes of OpenAPI documents are
/// computed from this string.
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
    /// The schema as JSON text: a tree of JSON values takes some hundred kilobytes, and is rarely
    /// needed.
    text: Box<str>,
    /// The parsed schema.
    pub schema: Arc<Schema>,
}

impl CustomSchema {
    /// Parses a schema of a CustomResourceDefinition.
    ///
    /// # Errors
    /// The schema is invalid.
    pub fn new(written: &Value) -> Result<Self, SchemaError> {
        Ok(Self { text: written.to_string().into(), schema: Schema::parse_crd(written)? })
    }

    /// The schema as its author wrote it.
    pub fn written(&self) -> Value {
        serde_json::from_str(&self.text).expect("the text of a JSON value is JSON")
    }

    /// The schema as JSON text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Origin of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Built into the server.
    #[default]
    BuiltIn,
    /// Built into the server and computed for each request; never stored (SubjectAccessReview,
    /// ComponentStatus).
    Virtual,
    /// Defined by the CustomResourceDefinition object of this name.
    Custom(String),
}

/// A snapshot of all rows.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    rows: BTreeMap<(String, String), Arc<ResourceInfo>>,
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

    /// All rows, ordered by group and plural name.
    pub fn rows(&self) -> impl Iterator<Item = &Arc<ResourceInfo>> {
        self.rows.values()
    }

    /// Adds or replaces a row.
    pub fn insert(&mut self, row: ResourceInfo) {
        self.rows.insert((row.group.clone(), row.plural.clone()), Arc::new(row));
    }

    /// Removes a row.
    pub fn remove(&mut self, group: &str, plural: &str) {
        self.rows.remove(&(group.to_owned(), plural.to_owned()));
    }
}

/// The published schema of a built-in kind.
pub fn builtin_schema(group: &str, version: &str, kind: &str) -> Option<Arc<Schema>> {
    berth_apimachinery::builtin::document().by_gvk(&GroupVersionKind::new(group, version, kind))
}

impl ResourceInfo {
    /// The version called `name`.
    pub fn version(&self, name: &str) -> Option<&VersionInfo> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Group and plural name under which objects are stored: those of the row, except for
    /// `events.k8s.io`. Its events are stored as core events, and [`events`] translates them.
    pub fn storage(&self) -> (&str, &str) {
        builtin::storage_of(self)
    }

    /// `group/version`, or the version alone for the core group.
    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() { version.to_owned() } else { format!("{}/{version}", self.group) }
    }

    /// Converts an object of a built-in kind to another version.
    pub fn convert_builtin(&self, object: Value, to_api_version: &str) -> Value {
        if self.group == "autoscaling" { autoscalers::convert(object, to_api_version) } else { object }
    }

    /// The schema of objects of `version`, if any.
    pub fn schema(&self, version: &str) -> Option<Arc<Schema>> {
        match &self.version(version)?.schema {
            SchemaSource::None => None,
            SchemaSource::BuiltIn(found) => {
                found.get_or_init(|| builtin_schema(&self.group, version, &self.kind)).clone()
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
