//! Namespaces: what every one has, and emptying those that are deleted.

use std::time::Duration;

use berth_runtime::{
    Action, Cache, Clock, Error, Manager, ObjectKey, Reconciler, is_already_exists, is_conflict, is_not_found,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};

use super::kinds::Kinds;
use crate::time::stamp;

/// Wait before looking again whether a namespace is empty.
const AGAIN: Duration = Duration::from_secs(1);
/// The config map with the cluster's CA.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Adds the namespace controller.
pub fn install(manager: &mut Manager, kinds: Kinds, root_ca: Option<String>) {
    let namespaces: Cache<Namespace> = manager.cache();
    let accounts: Cache<ServiceAccount> = manager.cache();
    let controller = Namespaces {
        namespaces: namespaces.clone(),
        accounts: accounts.clone(),
        client: manager.client(),
        clock: manager.clock(),
        kinds,
        root_ca,
    };
    manager
        .controller("namespaces")
        .watch_self(&namespaces)
        .watch(&accounts, |delta| {
            // Somebody deleted a namespace's default account: it comes back.
            let gone = delta.old.as_ref().filter(|account| delta.new.is_none() && account.name_any() == "default");
            gone.and_then(|account| account.namespace()).map(ObjectKey::cluster)
        })
        .run(controller);
}

struct Namespaces {
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
    client: Client,
    clock: Clock,
    kinds: Kinds,
    root_ca: Option<String>,
}

impl Reconciler for Namespaces {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(namespace) = self.namespaces.get(&key) else { return Ok(Action::Wait) };
        if namespace.metadata.deletion_timestamp.is_some() {
            return self.empty(&namespace).await;
        }
        self.furnish(&key.name).await?;
        Ok(Action::Wait)
    }
}

impl Namespaces {
    /// The account pods run as, and the CA they trust.
    async fn furnish(&self, name: &str) -> Result<(), Error> {
        let metadata =
            |object: &str| ObjectMeta { name: Some(object.into()), namespace: Some(name.into()), ..Default::default() };
        if self.accounts.get(&ObjectKey::namespaced(name, "default")).is_none() {
            let account = ServiceAccount { metadata: metadata("default"), ..ServiceAccount::default() };
            let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
            match api.create(&PostParams::default(), &account).await {
                Ok(account) => self.accounts.observe(account),
                Err(error) if is_already_exists(&error) || is_going(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(root_ca) = &self.root_ca {
            let map = ConfigMap {
                metadata: metadata(ROOT_CA),
                data: Some([("ca.crt".to_owned(), root_ca.clone())].into()),
                ..ConfigMap::default()
            };
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), name);
            match api.create(&PostParams::default(), &map).await {
                Ok(_) => {}
                Err(error) if is_already_exists(&error) || is_going(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Deletes everything in a namespace and then lets it go.
    async fn empty(&self, namespace: &Namespace) -> Result<Action, Error> {
        let name = namespace.name_any();
        let has_finalizer =
            namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref()).is_some_and(|f| !f.is_empty());
        if !has_finalizer {
            return Ok(Action::Wait);
        }
        let mut kinds: Vec<ApiResource> = self.kinds.namespaced().into_iter().map(|kind| kind.resource).collect();
        if kinds.is_empty() {
            // Discovery has not been heard yet; nothing may be taken for empty.
            return Ok(Action::After(AGAIN));
        }
        kinds.push(ApiResource::erase::<k8s_openapi::api::core::v1::Event>(&()));
        let mut remaining = Vec::new();
        for kind in kinds {
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::namespaced_with(self.client.clone(), &name, &kind);
            if self.count(&api).await? == 0 {
                continue;
            }
            match api.delete_collection(&DeleteParams::background(), &ListParams::default()).await {
                Ok(_) => {}
                Err(error) if is_not_found(&error) || is_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
            let left = self.count(&api).await?;
            if left > 0 {
                remaining.push(format!("{}.{} has {left} resource instances", kind.plural, kind.group));
            }
        }
        if !remaining.is_empty() {
            tracing::debug!(namespace = name, ?remaining, "namespace is not empty yet");
            return Ok(Action::After(AGAIN));
        }
        let mut finalized = namespace.clone();
        finalized.spec.get_or_insert_default().finalizers = Some(Vec::new());
        let api: Api<Namespace> = Api::all(self.client.clone());
        match api.replace_subresource("finalize", &name, &PostParams::default(), &finalized).await {
            Ok(_) => tracing::debug!(namespace = name, at = %stamp(self.clock.now()).0, "namespace finalized"),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }

    async fn count(&self, api: &Api<PartialObjectMeta<DynamicObject>>) -> Result<usize, Error> {
        match api.list(&ListParams::default().limit(100)).await {
            Ok(list) => Ok(list.items.len()),
            Err(error) if is_not_found(&error) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// True when the namespace is on its way out and takes nothing new.
fn is_going(error: &kube::Error) -> bool {
    is_not_found(error) || matches!(error, kube::Error::Api(status) if status.code == 403)
}
