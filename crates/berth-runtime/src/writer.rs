//! The writes of controllers that create objects for other objects. A writer writes objects of one
//! kind, and adds each written object to the cache at once, so that no object is created twice.

use berth_api::json::Json;
use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::{Cache, Manager, is_already_exists, is_not_found, write};

/// The reference of an object to its controlling owner.
pub fn owned_by<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    controlling(shared_by(owner))
}

/// The reference of an object to its controlling owner, whose parts are known and not its type.
pub fn owned_by_named(api_version: &str, kind: &str, name: &str, uid: &str) -> OwnerReference {
    let owner = OwnerReference { api_version: api_version.to_owned(), kind: kind.to_owned(), ..Default::default() };
    controlling(OwnerReference { name: name.to_owned(), uid: uid.to_owned(), ..owner })
}

fn controlling(owner: OwnerReference) -> OwnerReference {
    OwnerReference { controller: Some(true), block_owner_deletion: Some(true), ..owner }
}

/// The reference of an object to an owner that does not control it.
pub fn shared_by<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}

/// True if the object with this UID controls `object`.
pub fn is_controlled_by<K: Resource>(object: &K, uid: &str) -> bool {
    object.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// A kind whose objects a [`Writer`] can write.
pub trait Written:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Json + Send + Sync + 'static
{
}

impl<K> Written for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Json + Send + Sync + 'static
{
}

/// Writes objects of one kind.
pub struct Writer<K> {
    client: Client,
    cache: Cache<K>,
}

impl<K: Written> Writer<K> {
    /// A writer that adds the written objects to this cache.
    pub fn new(manager: &Manager, cache: &Cache<K>) -> Self {
        Self { client: manager.client(), cache: cache.clone() }
    }

    /// The cache that gets the written objects.
    pub fn cache(&self) -> &Cache<K> {
        &self.cache
    }

    /// The API of the namespace of `object`.
    pub fn api(&self, object: &K) -> Api<K> {
        Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default())
    }

    /// Creates an object in its namespace.
    ///
    /// # Errors
    /// The API rejects the object.
    pub async fn create(&self, object: &K) -> kube::Result<K> {
        let made = write::create(&self.api(object), &PostParams::default(), object).await?;
        self.cache.observe(made.clone());
        Ok(made)
    }

    /// Creates an object that `owner` controls. It is no error if the object already exists and
    /// `owner` controls it, because then an interrupted step has created it.
    ///
    /// # Errors
    /// The API rejects the object, or another object has its name.
    pub async fn create_owned<O: Resource>(&self, object: &K, owner: &O) -> kube::Result<()> {
        match self.create(object).await {
            Ok(_) => Ok(()),
            Err(error) if is_already_exists(&error) => {
                let known = write::get(&self.api(object), &object.name_any()).await?;
                if !is_controlled_by(&known, owner.meta().uid.as_deref().unwrap_or_default()) {
                    return Err(error);
                }
                self.cache.observe(known);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces an object; its `resourceVersion` must be current.
    ///
    /// # Errors
    /// The API rejects the write.
    pub async fn replace(&self, object: &K) -> kube::Result<K> {
        let api = self.api(object);
        let stored = write::replace(&api, &object.name_any(), &PostParams::default(), object).await?;
        self.cache.observe(stored.clone());
        Ok(stored)
    }

    /// Applies an object (server-side apply). `manager` takes over fields that other managers own.
    /// The object names its fields only, so it is given as JSON.
    ///
    /// # Errors
    /// The API rejects the write.
    pub async fn apply(&self, object: &Value, manager: &str) -> kube::Result<K> {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let api: Api<K> = Api::namespaced(self.client.clone(), text("namespace"));
        let params = PatchParams::apply(manager).force();
        let stored = write::patch(&api, text("name"), &params, &Patch::Apply(object)).await?;
        self.cache.observe(stored.clone());
        Ok(stored)
    }

    /// Applies a merge patch to an object. `manager` owns the fields that it sets.
    ///
    /// # Errors
    /// The API rejects the write.
    pub async fn merge(&self, object: &K, patch: &Value, manager: &str) -> kube::Result<K> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let stored = write::patch(&self.api(object), &object.name_any(), &params, &Patch::Merge(patch)).await?;
        self.cache.observe(stored.clone());
        Ok(stored)
    }

    /// Sets a label.
    ///
    /// # Errors
    /// The API rejects the write.
    pub async fn label(&self, object: &K, key: &str, value: &str) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"uid": object.uid(), "labels": {key: value}}}));
        let (name, params) = (object.name_any(), PatchParams::default());
        self.cache.observe(write::patch(&self.api(object), &name, &params, &patch).await?);
        Ok(())
    }

    /// Replaces the status of an object; its `resourceVersion` must be current.
    ///
    /// # Errors
    /// The API rejects the write.
    pub async fn replace_status(&self, object: &K) -> kube::Result<K> {
        let (api, params) = (self.api(object), PostParams::default());
        let stored = write::replace_status(&api, &object.name_any(), &params, object).await?;
        self.cache.observe(stored.clone());
        Ok(stored)
    }

    /// Applies a strategic merge patch. Returns `None` if the object does not exist any more.
    ///
    /// # Errors
    /// The API rejects the write.
    pub async fn patch(&self, object: &K, patch: &Value) -> kube::Result<Option<K>> {
        let (name, params) = (object.name_any(), PatchParams::default());
        match write::patch(&self.api(object), &name, &params, &Patch::Strategic(patch)).await {
            Ok(patched) => {
                self.cache.observe(patched.clone());
                Ok(Some(patched))
            }
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the object. It is no error if no object of this name exists. If another object has
    /// replaced it, that one stays, and the API reports a conflict.
    ///
    /// # Errors
    /// The API rejects the deletion.
    pub async fn delete(&self, object: &K) -> kube::Result<()> {
        self.delete_with(object, DeleteParams::background()).await
    }

    /// Like [`Writer::delete`], but the objects that it owns are deleted before it.
    ///
    /// # Errors
    /// The API rejects the deletion.
    pub async fn delete_after_dependents(&self, object: &K) -> kube::Result<()> {
        self.delete_with(object, DeleteParams::foreground()).await
    }

    async fn delete_with(&self, object: &K, params: DeleteParams) -> kube::Result<()> {
        let preconditions = Preconditions { uid: object.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..params };
        match write::delete(&self.api(object), &object.name_any(), &params).await {
            Ok(answer) => {
                // The API returns the object while it terminates, or a Status once it is gone.
                match answer {
                    Some(left) => self.cache.observe(left),
                    None => self.cache.observe_deleted(object),
                }
                Ok(())
            }
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
