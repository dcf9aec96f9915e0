//! Reads manifests from files and folders, substitutes variables, and applies their objects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::Value;

use crate::ahead::Ahead;
use crate::resource::{Found, ResourceError, Resources};

/// Field manager of applied manifests.
const FIELD_MANAGER: &str = "berth-run";

/// Why manifests could not be read or applied.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file or folder cannot be read.
    #[error("{}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file contains a document that is not a manifest.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The API does not serve the kind, or rejected the request.
    #[error("{origin}")]
    Api {
        /// Origin of the manifest.
        origin: String,
        /// The API's response.
        #[source]
        source: ResourceError,
    },
}

/// One manifest, with its origin for error messages.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// File name, or place in the scenario.
    pub origin: String,
    /// The object.
    pub object: Value,
}

/// Replaces `$NAME` and `${NAME}` for the names in `variables`. Everything else stays unchanged.
pub fn substitute(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let name_end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let (name, tail) = braced.unwrap_or((&after[..name_end], &after[name_end..]));
        match variables.get(name) {
            Some(value) => {
                result.push_str(value);
                rest = tail;
            }
            None => {
                result.push('$');
                rest = after;
            }
        }
    }
    result + rest
}

/// Returns the path itself if it is a file, and the manifests below it in name order if it is a
/// folder.
pub fn expand(path: &Path) -> Result<Vec<PathBuf>, ManifestError> {
    let read = |source| ManifestError::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(read)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read)? {
        entries.push(entry.map_err(read)?.path());
    }
    entries.sort();
    let mut files = Vec::new();
    for entry in entries {
        let is_manifest = entry.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if entry.is_dir() {
            files.extend(expand(&entry)?);
        } else if is_manifest {
            files.push(entry);
        }
    }
    Ok(files)
}

/// Reads the objects of one file, or takes the documents already parsed in `ahead`.
pub(crate) fn read(
    path: &Path,
    variables: &BTreeMap<String, String>,
    ahead: &Ahead,
) -> Result<Vec<Manifest>, ManifestError> {
    let text = std::fs::read_to_string(path).map_err(|source| ManifestError::Read { path: path.to_owned(), source })?;
    let invalid = |problem: &dyn std::fmt::Display| ManifestError::Invalid {
        path: path.to_owned(),
        problem: problem.to_string(),
    };
    let text = substitute(&text, variables);
    let documents = match ahead.take(&text) {
        Some(documents) => documents,
        None => berth_apimachinery::decode::documents(&text).map_err(|error| invalid(&error))?,
    };
    let origin = path.display().to_string();
    let mut manifests = Vec::new();
    for object in documents {
        if object.is_null() {
            continue;
        }
        match object.get("items").and_then(Value::as_array) {
            Some(items) if object["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => {
                manifests
                    .extend(items.iter().map(|object| Manifest { origin: origin.clone(), object: object.clone() }));
            }
            // A folder may contain JSON that is not a manifest, such as a dashboard. kubectl
            // rejects it as well.
            _ if object["kind"].as_str().is_none() || object["apiVersion"].as_str().is_none() => {
                return Err(invalid(&"expected apiVersion and kind"));
            }
            _ => manifests.push(Manifest { origin: origin.clone(), object }),
        }
    }
    Ok(manifests)
}

impl Manifest {
    /// Creates the object, or updates it with server-side apply if it exists. Returns `created` or
    /// `configured`, and the object's name.
    pub async fn apply(
        &self,
        resources: &Resources,
        namespace: Option<&str>,
    ) -> Result<(&'static str, String), ManifestError> {
        let (found, object) = self.typed(resources, namespace).await?;
        let api = found.api(resources.client(), object.metadata.namespace.as_deref());
        let name = object.metadata.name.clone().unwrap_or_default();
        match api.create(&post_params(), &object).await {
            Ok(created) => return Ok(("created", created.name_any())),
            Err(error) if berth_runtime::is_already_exists(&error) => {}
            Err(source) => return Err(self.failed(source)),
        }
        let params = PatchParams::apply(FIELD_MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(&object)).await.map_err(|source| self.failed(source))?;
        Ok(("configured", name))
    }

    /// Creates the object, which must not exist. Returns `created`, and the object's name.
    pub async fn create(
        &self,
        resources: &Resources,
        namespace: Option<&str>,
    ) -> Result<(&'static str, String), ManifestError> {
        let (found, object) = self.typed(resources, namespace).await?;
        let api = found.api(resources.client(), object.metadata.namespace.as_deref());
        let created = api.create(&post_params(), &object).await.map_err(|source| self.failed(source))?;
        Ok(("created", created.name_any()))
    }

    /// Deletes the object if it exists. Returns `deleted` or `absent`.
    pub async fn delete(&self, resources: &Resources, namespace: Option<&str>) -> Result<&'static str, ManifestError> {
        let (found, object) = self.typed(resources, namespace).await?;
        let api = found.api(resources.client(), object.metadata.namespace.as_deref());
        let name = object.metadata.name.clone().unwrap_or_default();
        match api.delete(&name, &DeleteParams::background()).await {
            Ok(_) => Ok("deleted"),
            Err(error) if berth_runtime::is_not_found(&error) => Ok("absent"),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// The object's kind, group and name as kubectl prints them: `job.batch/name`.
    pub fn title(&self) -> String {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let group = text(&self.object["apiVersion"]).split_once('/').map(|(group, _)| format!(".{group}"));
        let kind = text(&self.object["kind"]).to_lowercase();
        let metadata = &self.object["metadata"];
        let name = if metadata["name"].is_string() { &metadata["name"] } else { &metadata["generateName"] };
        format!("{kind}{}/{}", group.unwrap_or_default(), text(name))
    }

    async fn typed(
        &self,
        resources: &Resources,
        namespace: Option<&str>,
    ) -> Result<(Found, DynamicObject), ManifestError> {
        let api_error = |source| ManifestError::Api { origin: self.origin.clone(), source };
        let text = |key: &str| self.object[key].as_str().unwrap_or_default();
        let found = resources.by_kind(text("apiVersion"), text("kind")).await.map_err(api_error)?;
        let mut object: DynamicObject = serde_json::from_value(self.object.clone()).map_err(|error| {
            ManifestError::Invalid { path: PathBuf::from(&self.origin), problem: error.to_string() }
        })?;
        if found.namespaced && object.metadata.namespace.is_none() {
            object.metadata.namespace = Some(namespace.unwrap_or("default").to_owned());
        }
        Ok((found, object))
    }

    fn failed(&self, source: kube::Error) -> ManifestError {
        ManifestError::Api { origin: self.origin.clone(), source: ResourceError::api(self.title(), source) }
    }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() }
}

/// A client that sends impersonation headers for this user.
pub fn impersonate(client: &Client, user: &crate::scenario::User) -> Client {
    let mut headers = vec![(http::HeaderName::from_static("impersonate-user"), user.user.clone())];
    headers.extend(user.groups.iter().map(|g| (http::HeaderName::from_static("impersonate-group"), g.clone())));
    let client = client.clone();
    let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
        for (name, value) in &headers {
            if let Ok(value) = http::HeaderValue::from_str(value) {
                request.headers_mut().append(name.clone(), value);
            }
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    Client::new(service, "default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declared_variables_are_substituted() {
        let variables = BTreeMap::from([("REGION".to_owned(), "us".to_owned()), ("team".to_owned(), "a".to_owned())]);
        let text = "$REGION-docker ${team}/x $JOB_COMPLETION_INDEX $REGIONAL $$ ${RANK} cost: 5$";
        let expected = "us-docker a/x $JOB_COMPLETION_INDEX $REGIONAL $$ ${RANK} cost: 5$";
        assert_eq!(substitute(text, &variables), expected);
    }
}
