//! Finds resources and objects by the names that kubectl accepts.
//!
//! A scenario names a resource as `jobs`, `Job` or `clusterqueues.kueue.x-k8s.io`, and discovery
//! resolves the name. An object is found by its name or by its owner, because a Workload's name is
//! generated.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::percent;
use berth_embedded::ApiFailure;
use futures::AsyncBufReadExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta};
use kube::discovery::{ApiCapabilities, Discovery, Scope, verbs};
use kube::{Api, Client};
use parking_lot::RwLock;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::followed::{Collections, Lines, Read, read_now};
use crate::manifest::substitute;

/// The `Accept` header with which kubectl requests Tables.
const ACCEPT_TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Identifies one object.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Reference {
    /// Kind or resource; `.group` may follow.
    pub kind: String,
    /// Namespace, for namespaced kinds. Default: `default`.
    #[serde(default)]
    pub namespace: Option<String>,
    /// Name of the object.
    #[serde(default)]
    pub name: Option<String>,
    /// In place of a name: the object's owner, as `Kind/name`.
    #[serde(default)]
    pub owned_by: Option<String>,
    /// In place of a name: a label selector. The first object in name order is meant.
    #[serde(default)]
    pub selector: Option<String>,
}

impl Reference {
    /// The reference with the values of variables.
    pub(crate) fn with(&self, variables: &BTreeMap<String, String>) -> Self {
        let value = |text: &Option<String>| text.as_ref().map(|text| substitute(text, variables));
        Self {
            kind: self.kind.clone(),
            namespace: value(&self.namespace),
            name: value(&self.name),
            owned_by: value(&self.owned_by),
            selector: value(&self.selector),
        }
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " {namespace}")?;
        }
        match (&self.name, &self.owned_by, &self.selector) {
            (Some(name), ..) => write!(f, "/{name}"),
            (None, Some(owner), _) => write!(f, " owned by {owner}"),
            (None, None, Some(selector)) => write!(f, " with {selector}"),
            (None, None, None) => Ok(()),
        }
    }
}

/// Why an object or resource was not found, or why a request for it failed.
#[derive(Debug, thiserror::Error)]
pub enum ResourceError {
    /// The API does not serve the kind.
    #[error("the API serves no resource or kind {0:?}")]
    UnknownKind(String),
    /// A reference has neither a name nor an owner nor a selector.
    #[error("{0}: expected name, ownedBy or selector")]
    Unnamed(Box<Reference>),
    /// The API rejected the request or failed.
    #[error("{what}")]
    Api {
        /// The object or path of the request.
        what: String,
        /// The API's response.
        #[source]
        source: ApiFailure,
    },
}

impl ResourceError {
    /// The error of a request about `what`.
    pub fn api(what: impl Into<String>, error: kube::Error) -> Self {
        Self::Api { what: what.into(), source: ApiFailure(error) }
    }
}

/// Reads resources and objects of an API. Discovery is cached. It is repeated if a name is unknown,
/// because a manifest may have created a CustomResourceDefinition.
#[derive(Clone)]
pub struct Resources {
    client: Client,
    known: Arc<RwLock<Option<Arc<Discovery>>>>,
    /// Resources by the name by which they were found. Cleared when discovery is repeated.
    found: Arc<RwLock<BTreeMap<String, Found>>>,
    followed: Arc<Mutex<Collections>>,
}

/// A resource that the API serves.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its group, version, kind and plural name.
    pub resource: ApiResource,
    /// True if its objects are namespaced.
    pub namespaced: bool,
}

impl Found {
    fn new((resource, capabilities): (ApiResource, ApiCapabilities)) -> Self {
        Self { resource, namespaced: capabilities.scope == Scope::Namespaced }
    }

    /// An API for the objects of a namespace (default: `default`), or of the cluster.
    pub fn api(&self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        if self.namespaced {
            Api::namespaced_with(client.clone(), namespace.unwrap_or("default"), &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        }
    }

    /// Path of the objects of a namespace, or of all namespaces, with a label selector as its
    /// query.
    fn path(&self, namespace: Option<&str>, selector: Option<&str>) -> String {
        let query = selector.map(|selector| format!("?labelSelector={}", percent::component(selector)));
        self.url(namespace) + &query.unwrap_or_default()
    }

    pub(crate) fn url(&self, namespace: Option<&str>) -> String {
        let resource = &self.resource;
        let mut url = match resource.group.as_str() {
            "" => format!("/api/{}", resource.version),
            group => format!("/apis/{group}/{}", resource.version),
        };
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            url += &format!("/namespaces/{namespace}");
        }
        url + "/" + &resource.plural
    }

    /// An API for the objects of all namespaces.
    pub fn everywhere(&self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.resource)
    }
}

impl Resources {
    /// Creates a reader that uses this client.
    pub fn new(client: Client) -> Self {
        Self { client, known: Arc::default(), found: Arc::default(), followed: Arc::default() }
    }

    /// The client of this reader.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Finds a resource by exact apiVersion and kind.
    pub async fn by_kind(&self, api_version: &str, kind: &str) -> Result<Found, ResourceError> {
        let matches = |resource: &ApiResource| resource.api_version == api_version && resource.kind == kind;
        self.find(&format!("{api_version} {kind}"), &matches).await
    }

    /// Finds a resource by any name that kubectl accepts except a short name: kube's discovery
    /// does not report short names.
    pub async fn by_name(&self, name: &str) -> Result<Found, ResourceError> {
        let (plain, group) = match name.split_once('.') {
            Some((plain, group)) => (plain, Some(group)),
            None => (name, None),
        };
        let lower = plain.to_ascii_lowercase();
        let matches = |resource: &ApiResource| {
            (resource.plural == lower || resource.kind.eq_ignore_ascii_case(&lower))
                && group.is_none_or(|group| resource.group == group)
        };
        self.find(name, &matches).await
    }

    async fn find(&self, name: &str, matches: &(dyn Fn(&ApiResource) -> bool + Sync)) -> Result<Found, ResourceError> {
        if let Some(found) = self.found.read().get(name) {
            return Ok(found.clone());
        }
        for fresh in [false, true] {
            let discovery = self.discovery(fresh).await?;
            // For an ambiguous name kubectl prefers the core group. Resources that can be listed
            // come first: the visibility API also serves "clusterqueues", and discovery lists it
            // last.
            let mut groups: Vec<_> = discovery.groups().collect();
            groups.sort_by_key(|group| (!group.name().is_empty(), group.name().to_owned()));
            let mut found = groups.into_iter().flat_map(|group| {
                let preferred = group.recommended_resources();
                let versioned = group.versions().flat_map(|version| group.versioned_resources(version));
                preferred.into_iter().chain(versioned).filter(|(resource, _)| matches(resource)).collect::<Vec<_>>()
            });
            let is_listed = |(_, can): &(ApiResource, ApiCapabilities)| can.supports_operation(verbs::LIST);
            let first = found.next();
            let chosen = match first {
                Some(first) if !is_listed(&first) => found.find(is_listed).or(Some(first)),
                first => first,
            };
            if let Some(chosen) = chosen {
                let chosen = Found::new(chosen);
                self.found.write().insert(name.to_owned(), chosen.clone());
                return Ok(chosen);
            }
        }
        Err(ResourceError::UnknownKind(name.to_owned()))
    }

    async fn discovery(&self, fresh: bool) -> Result<Arc<Discovery>, ResourceError> {
        if !fresh && let Some(known) = self.known.read().clone() {
            return Ok(known);
        }
        let discovery = Discovery::new(self.client.clone())
            .run()
            .await
            .map_err(|source| ResourceError::api("discovery", source))?;
        let discovery = Arc::new(discovery);
        *self.known.write() = Some(discovery.clone());
        self.found.write().clear();
        Ok(discovery)
    }

    /// The objects of one namespace or of all, as JSON without `managedFields`.
    pub async fn list(
        &self,
        found: &Found,
        namespace: Option<&str>,
        selector: Option<&str>,
    ) -> Result<Vec<Arc<Value>>, ResourceError> {
        let path = found.path(namespace, selector);
        let objects = self.followed.lock().await.now(&self.client, &path).await;
        objects.map_err(|error| ResourceError::api(found.resource.plural.clone(), error))
    }

    /// The Table that `kubectl get` requests. Rows include their objects' metadata only if
    /// `with_metadata`, because half of the metadata is `managedFields`.
    pub async fn table<T: DeserializeOwned>(
        &self,
        found: &Found,
        namespace: Option<&str>,
        selector: Option<&str>,
        with_metadata: bool,
    ) -> Result<T, ResourceError> {
        let mut path = found.path(namespace, selector);
        path.push(if path.contains('?') { '&' } else { '?' });
        path += if with_metadata { "includeObject=Metadata" } else { "includeObject=None" };
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, ACCEPT_TABLE)
            .body(Vec::new())
            .expect("a path of names and an encoded selector is a valid request");
        let answer = self.client.request(request).await;
        answer.map_err(|error| ResourceError::api(found.resource.plural.clone(), error))
    }

    /// The API's current revision. While it is unchanged, so are all objects.
    pub async fn revision(&self) -> Result<Option<String>, ResourceError> {
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
        let list = api.list_metadata(&ListParams::default().limit(1)).await;
        Ok(list.map_err(|error| ResourceError::api("revision", error))?.metadata.resource_version)
    }

    /// Follows changes to all objects of these kinds after a revision (see
    /// [`Resources::revision`]).
    pub async fn changes(
        &self,
        kinds: impl IntoIterator<Item = &str>,
        revision: Option<String>,
    ) -> Result<Changes, ResourceError> {
        let mut watches = Vec::new();
        for kind in kinds {
            let found = self.by_name(kind).await?;
            watches.push(Watch { url: found.url(None), stream: None, revision: revision.clone() });
        }
        Ok(Changes { resources: self.clone(), watches })
    }

    async fn watch(&self, watch: &Watch) -> Result<Lines, ResourceError> {
        let revision = watch.revision.as_ref().map(|revision| format!("&resourceVersion={revision}"));
        let url = format!("{}?watch=true{}", watch.url, revision.unwrap_or_default());
        let request =
            http::Request::get(&url).body(Vec::new()).expect("a path of names and a number is a valid request");
        let stream = self.client.request_stream(request).await;
        stream.map(|stream| Box::pin(stream) as Lines).map_err(|error| ResourceError::api(url, error))
    }

    /// Fetches one object; `None` if it does not exist.
    pub async fn get(&self, reference: &Reference) -> Result<Option<Arc<Value>>, ResourceError> {
        let found = self.by_name(&reference.kind).await?;
        let api = found.api(&self.client, reference.namespace.as_deref());
        let failed = |source| ResourceError::api(reference.to_string(), source);
        if let Some(name) = &reference.name {
            let object = api.get_opt(name).await.map_err(failed)?;
            return Ok(object.map(|object| Arc::new(to_value(object))));
        }
        let namespace = reference.namespace.as_deref().unwrap_or("default");
        if let (None, Some(selector)) = (&reference.owned_by, &reference.selector) {
            let objects = self.list(&found, Some(namespace), Some(selector)).await?;
            return Ok(objects.into_iter().next());
        }
        let owner = reference.owned_by.as_deref().ok_or_else(|| ResourceError::Unnamed(Box::new(reference.clone())))?;
        let (kind, name) = owner.split_once('/').ok_or_else(|| ResourceError::Unnamed(Box::new(reference.clone())))?;
        let objects = self.list(&found, Some(namespace), None).await?;
        Ok(objects.into_iter().find(|object| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.into_iter().flatten().any(|owner| owner["kind"] == kind && owner["name"] == name)
        }))
    }
}

/// Reports whether objects of some kinds have changed. Events of the watches are not decoded.
pub struct Changes {
    resources: Resources,
    watches: Vec<Watch>,
}

struct Watch {
    url: String,
    stream: Option<Lines>,
    revision: Option<String>,
}

impl Changes {
    /// True if an object has changed since the last call, or since the first revision. Does not
    /// wait for a change.
    pub async fn any(&mut self) -> Result<bool, ResourceError> {
        let mut changed = false;
        for watch in &mut self.watches {
            if watch.stream.is_none() {
                watch.stream = Some(self.resources.watch(watch).await?);
            }
            while let Some(stream) = &mut watch.stream {
                match read_now(stream) {
                    Read::Nothing => break,
                    Read::Bytes(length) => {
                        stream.consume_unpin(length);
                        changed = true;
                    }
                    // The server ended the watch. Events may be missed, so this counts as a change.
                    // The next watch begins at the current revision.
                    Read::Ended => {
                        watch.stream = None;
                        watch.revision = self.resources.revision().await?;
                        changed = true;
                    }
                }
            }
        }
        Ok(changed)
    }
}

/// The object as JSON.
pub fn to_value(object: DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object that was parsed from JSON can be serialized")
}
