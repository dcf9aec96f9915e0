//! `berth migrate --storage`: all objects of Kueue's kinds stored in one version.
//!
//! The API server keeps each object in the version in which it was last written, and the definition
//! lists the versions in which objects may be stored. Neither changes by itself when another
//! version becomes the storage version.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use berth_runtime::{is_conflict, is_not_found};
use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::KUEUE;
use crate::team::in_words;

/// Number of objects in one response of a list.
const PAGE: u32 = 500;
/// Number of writes at once.
const AT_ONCE: usize = 16;
/// How often a write or list that another write prevented is sent.
const ATTEMPTS: usize = 5;
/// Number of failed writes of a kind that are named.
const NAMED: usize = 10;
/// Time until every API server stores objects as the definitions say. They watch definitions, and
/// none reports which one it has seen.
const SETTLING: Duration = Duration::from_secs(10);
/// The status code of a list whose continuation is too old.
const GONE: u16 = 410;

/// A definition, as far as storage is concerned.
#[derive(Clone, Debug, PartialEq)]
struct Stored {
    /// Name of the definition.
    name: String,
    resource_version: String,
    /// Changes with the spec only.
    generation: i64,
    /// The version in which the API server writes objects.
    storage: String,
    /// The versions in which objects may be stored.
    stored: Vec<String>,
    /// The kind in a served version, preferably the storage version.
    resource: ApiResource,
    /// All versions in their order, and which of them are served.
    versions: Vec<(String, bool)>,
}

impl Stored {
    /// `None` if no version of the kind is served.
    fn of(definition: &CustomResourceDefinition) -> Option<Self> {
        let spec = &definition.spec;
        let storage = spec.versions.iter().find(|version| version.storage)?;
        let version = Some(storage).filter(|it| it.served).or_else(|| spec.versions.iter().find(|it| it.served))?;
        let stored = definition.status.as_ref().and_then(|status| status.stored_versions.clone());
        Some(Stored {
            name: definition.name_any(),
            resource_version: definition.resource_version().unwrap_or_default(),
            generation: definition.metadata.generation.unwrap_or_default(),
            storage: storage.name.clone(),
            stored: stored.unwrap_or_default(),
            resource: ApiResource {
                group: spec.group.clone(),
                version: version.name.clone(),
                api_version: format!("{}/{}", spec.group, version.name),
                kind: spec.names.kind.clone(),
                plural: spec.names.plural.clone(),
            },
            versions: spec.versions.iter().map(|it| (it.name.clone(), it.served)).collect(),
        })
    }

    /// True if no object can be stored in another version than the storage version.
    fn is_done(&self) -> bool {
        self.stored == [self.storage.clone()]
    }

    /// The changes of the definition that make a version its storage version. Fails if the version
    /// is not served; `None` if nothing changes.
    fn storing(&self, wanted: &str) -> anyhow::Result<Option<Value>> {
        if self.storage == wanted {
            return Ok(None);
        }
        if !self.versions.iter().any(|(name, served)| name == wanted && *served) {
            let served: Vec<&str> = self.versions.iter().filter(|it| it.1).map(|it| it.0.as_str()).collect();
            bail!(
                "--storage-version {wanted}: {} does not serve this version; it serves {}",
                self.name,
                served.join(", ")
            );
        }
        let mut changes = vec![replace("/metadata/resourceVersion", json!(self.resource_version))];
        for (index, (name, _)) in self.versions.iter().enumerate() {
            changes.push(replace(&format!("/spec/versions/{index}/storage"), json!(name == wanted)));
        }
        Ok(Some(json!(changes)))
    }
}

fn replace(path: &str, value: Value) -> Value {
    json!({"op": "replace", "path": path, "value": value})
}

/// Makes `version` the storage version, if one is given, writes all objects that may be stored in
/// another version, and removes those versions from the status of the definitions. A repeated run
/// continues: the API server does not store an object again that is stored in the storage version.
///
/// # Errors
///
/// If the definitions cannot be read or written, or a kind lacks the version. Objects that cannot
/// be written are printed, and make the result false.
pub async fn run(client: &Client, version: Option<&str>) -> anyhow::Result<bool> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut kinds = definitions(&api).await?;
    if kinds.is_empty() {
        bail!("the cluster has no kinds of {KUEUE}");
    }
    if let Some(version) = version {
        // All are judged before the first is changed.
        let changes: Vec<Option<Value>> = kinds.iter().map(|it| it.storing(version)).collect::<Result<_, _>>()?;
        for (kind, change) in kinds.iter().zip(changes) {
            let Some(change) = change else { continue };
            let change = Patch::Json::<()>(serde_json::from_value(change)?);
            let sent = api.patch(&kind.name, &PatchParams::default(), &change).await;
            sent.map_err(|error| in_words(&kind.name, error))?;
            say!("{}: storage version changed from {} to {version}", kind.name, kind.storage);
        }
        kinds = definitions(&api).await?;
    }
    if kinds.iter().any(|kind| !kind.is_done()) {
        tokio::time::sleep(SETTLING).await;
    }
    let mut failed = false;
    for kind in &kinds {
        if kind.is_done() {
            say!("{}: all objects are stored in {}", kind.name, kind.storage);
        } else {
            failed |= !rewrite(client, &api, kind).await?;
        }
    }
    if failed {
        eprintln!(
            "berth: some objects are still stored in another version; remove the obstacles and run the command again"
        );
    }
    Ok(!failed)
}

async fn definitions(api: &Api<CustomResourceDefinition>) -> anyhow::Result<Vec<Stored>> {
    let found = api.list(&ListParams::default()).await.map_err(|error| in_words("customresourcedefinitions", error))?;
    Ok(found.items.iter().filter(|it| it.spec.group == KUEUE).filter_map(Stored::of).collect())
}

/// Writes all objects of a kind, and then the status of its definition. False if some object could
/// not be written.
async fn rewrite(client: &Client, api: &Api<CustomResourceDefinition>, kind: &Stored) -> anyhow::Result<bool> {
    let names = names(client, &kind.resource).await.map_err(|error| in_words(&kind.name, error))?;
    let writes = names.iter().map(|(namespace, name)| async move {
        let written = write(client, &kind.resource, namespace.as_deref(), name).await;
        written.map_err(|error| {
            let namespace = namespace.as_ref().map(|namespace| format!("{namespace}/")).unwrap_or_default();
            (berth_runtime::message(&error), format!("{namespace}{name}"))
        })
    });
    let results: Vec<Result<(), (String, String)>> =
        futures::stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
    let refused: BTreeMap<String, String> =
        results.into_iter().filter_map(Result::err).map(|(message, object)| (object, message)).collect();
    if !refused.is_empty() {
        say!("{}: {} of {} objects could not be written in {}", kind.name, refused.len(), names.len(), kind.storage);
        for (object, message) in refused.iter().take(NAMED) {
            eprintln!("berth: {} {object}: {message}", kind.resource.kind);
        }
        return Ok(false);
    }
    finish(api, kind).await?;
    let (count, before) = (names.len(), kind.stored.join(", "));
    say!("{}: {count} objects are stored in {}; status.storedVersions was {before}", kind.name, kind.storage);
    Ok(true)
}

/// Namespaces and names of all objects of a kind.
async fn names(client: &Client, resource: &ApiResource) -> Result<Vec<(Option<String>, String)>, kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let mut attempts = 0;
    'whole: loop {
        attempts += 1;
        let (mut names, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            match api.list_metadata(&params).await {
                Ok(page) => {
                    names.extend(page.items.iter().map(|it| (it.namespace(), it.name_any())));
                    match page.metadata.continue_.filter(|token| !token.is_empty()) {
                        Some(token) => params = params.continue_token(&token),
                        None => return Ok(names),
                    }
                }
                // The revision of the first page was compacted meanwhile.
                Err(kube::Error::Api(status)) if status.code == GONE && attempts < ATTEMPTS => continue 'whole,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes an object without a change. The API server stores it in the storage version.
async fn write(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
    name: &str,
) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    for attempt in 1.. {
        match api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(json!({}))).await {
            Ok(_) => break,
            // A deleted object is stored in no version.
            Err(error) if is_not_found(&error) => break,
            Err(error) if is_conflict(&error) && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes the other versions from the status of a definition, unless its spec changed since `kind`
/// was read: objects may then have been written in another version.
async fn finish(api: &Api<CustomResourceDefinition>, kind: &Stored) -> anyhow::Result<()> {
    for attempt in 1.. {
        let found = api.get(&kind.name).await.map_err(|error| in_words(&kind.name, error))?;
        let now = Stored::of(&found).with_context(|| format!("{} is no longer served", kind.name))?;
        if now.generation != kind.generation {
            bail!("{} was changed while its objects were written; run the command again", kind.name);
        }
        let status = json!({"metadata": {"resourceVersion": now.resource_version},
            "status": {"storedVersions": [kind.storage]}});
        match api.patch_status(&kind.name, &PatchParams::default(), &Patch::Merge(status)).await {
            Ok(_) => break,
            Err(error) if is_conflict(&error) && attempt < ATTEMPTS => {}
            Err(error) => return Err(in_words(&kind.name, error)),
        }
    }
    Ok(())
}
