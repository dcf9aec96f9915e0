//! The namespace controller: creates the default objects of each namespace, and empties namespaces
//! that are being deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_runtime::{
    Action, Cache, Clock, Error, Manager, ObjectKey, Reconciler, is_already_exists, is_conflict, is_not_found, stamp,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, NamespaceCondition, ServiceAccount};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};

use super::kinds::Kinds;

/// Delay before a namespace that still has objects is reconciled again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Name of the ConfigMap with the cluster's CA certificate.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Adds the namespace controller.
pub fn install(manager: &mut Manager, kinds: Kinds, root_ca: Option<String>) {
    let namespaces: Cache<Namespace> = manager.cache();
    let accounts: Cache<ServiceAccount> = manager.cache();
    let maps: Option<Cache<ConfigMap>> = root_ca.is_some().then(|| manager.cache());
    let controller = Namespaces {
        namespaces: namespaces.clone(),
        accounts: accounts.clone(),
        client: manager.client(),
        clock: manager.clock(),
        kinds,
        root_ca: root_ca.zip(maps.clone()),
    };
    let builder = manager.controller("namespaces").watch_self(&namespaces).watch(&accounts, |delta| {
        // A deleted default service account is created again.
        let gone = delta.old.as_ref().filter(|account| delta.new.is_none() && account.name_any() == "default");
        gone.and_then(|account| account.namespace()).map(ObjectKey::cluster)
    });
    let builder = match maps {
        // A deleted or changed CA ConfigMap is restored.
        Some(maps) => builder.watch(&maps, |delta| {
            let map = Some(delta.latest()).filter(|map| map.name_any() == ROOT_CA);
            map.and_then(|map| map.namespace()).map(ObjectKey::cluster)
        }),
        None => builder,
    };
    builder.run(controller);
}

struct Namespaces {
    namespaces: Cache<Namespace>,
    accounts: Cache<ServiceAccount>,
    client: Client,
    clock: Clock,
    kinds: Kinds,
    /// The cluster's CA certificate (PEM), and the ConfigMaps that publish it.
    root_ca: Option<(String, Cache<ConfigMap>)>,
}

impl Reconciler for Namespaces {
    async fn reconcile(&self, key: ObjectKey) -> Result<Action, Error> {
        let Some(namespace) = self.namespaces.get(&key) else { return Ok(Action::Wait) };
        if namespace.metadata.deletion_timestamp.is_some() {
            return self.delete_contents(&namespace).await;
        }
        self.ensure_defaults(&key.name).await?;
        Ok(Action::Wait)
    }
}

impl Namespaces {
    /// Creates the default service account and the CA ConfigMap of a namespace, and restores the
    /// data of the ConfigMap.
    async fn ensure_defaults(&self, name: &str) -> Result<(), Error> {
        let metadata =
            |object: &str| ObjectMeta { name: Some(object.into()), namespace: Some(name.into()), ..Default::default() };
        if self.accounts.get(&ObjectKey::namespaced(name, "default")).is_none() {
            let account = ServiceAccount { metadata: metadata("default"), ..ServiceAccount::default() };
            let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
            match berth_runtime::write::create(&api, &PostParams::default(), &account).await {
                Ok(account) => self.accounts.observe(account),
                Err(error) if is_already_exists(&error) || is_terminating(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if let Some((root_ca, maps)) = &self.root_ca {
            let data = Some([("ca.crt".to_owned(), root_ca.clone())].into());
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), name);
            let written = match maps.get(&ObjectKey::namespaced(name, ROOT_CA)) {
                Some(map) if map.data == data => return Ok(()),
                // A user changed the ConfigMap, or the cluster's CA changed.
                Some(map) => {
                    let map = ConfigMap { data, ..(*map).clone() };
                    berth_runtime::write::replace(&api, ROOT_CA, &PostParams::default(), &map).await
                }
                None => {
                    let map = ConfigMap { metadata: metadata(ROOT_CA), data, ..ConfigMap::default() };
                    berth_runtime::write::create(&api, &PostParams::default(), &map).await
                }
            };
            match written {
                Ok(map) => maps.observe(map),
                Err(error) if is_already_exists(&error) || is_terminating(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Deletes all objects of a namespace, then removes the namespace's finalizer.
    async fn delete_contents(&self, namespace: &Namespace) -> Result<Action, Error> {
        let name = namespace.name_any();
        let has_finalizer =
            namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref()).is_some_and(|f| !f.is_empty());
        if !has_finalizer {
            return Ok(Action::Wait);
        }
        let mut kinds: Vec<ApiResource> = self.kinds.namespaced().into_iter().map(|kind| kind.resource).collect();
        if kinds.is_empty() {
            // Discovery has not completed: without the kinds, every namespace would seem empty.
            return Ok(Action::After(RECHECK_INTERVAL));
        }
        kinds.push(ApiResource::erase::<k8s_openapi::api::core::v1::Event>(&()));
        let (pods, others): (Vec<_>, Vec<_>) =
            kinds.into_iter().partition(|kind| kind.group.is_empty() && kind.plural == "pods");
        let mut remaining = Remaining::default();
        for kinds in [pods, others] {
            for kind in kinds {
                let api: Api<PartialObjectMeta<DynamicObject>> =
                    Api::namespaced_with(self.client.clone(), &name, &kind);
                if let Err(error) = delete_all_of(&api, &kind, &mut remaining).await {
                    // The deletion continues with the other kinds.
                    remaining.failures.push(error);
                }
            }
            // The other kinds are deleted after the last pod: a terminating pod still reads its
            // secrets and is still subject to network policies.
            if !remaining.is_empty() {
                break;
            }
        }
        let mut finalized = self.write_conditions(namespace, &remaining).await?;
        if let Some(error) = remaining.failures.pop() {
            return Err(error.into());
        }
        if !remaining.objects.is_empty() {
            tracing::debug!(namespace = name, ?remaining.objects, "namespace is not empty yet");
            return Ok(Action::After(RECHECK_INTERVAL));
        }
        finalized.spec.get_or_insert_default().finalizers = Some(Vec::new());
        let api: Api<Namespace> = Api::all(self.client.clone());
        match api.replace_subresource("finalize", &name, &PostParams::default(), &finalized).await {
            Ok(_) => tracing::debug!(namespace = name, at = %stamp(self.clock.now()).0, "namespace finalized"),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Action::Wait)
    }

    /// Writes to the namespace's conditions why it still exists. Returns the written namespace.
    async fn write_conditions(&self, namespace: &Namespace, remaining: &Remaining) -> Result<Namespace, Error> {
        let mut updated = namespace.clone();
        let conditions = updated.status.get_or_insert_default().conditions.get_or_insert_default();
        if conditions.is_empty() && remaining.is_empty() {
            // The namespace is finalized right after this; its conditions would never be read.
            return Ok(updated);
        }
        remaining.write(conditions, self.clock.now());
        if updated.status == namespace.status {
            return Ok(updated);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let params = PostParams::default();
        let updated = berth_runtime::write::replace_status(&api, &updated.name_any(), &params, &updated).await?;
        self.namespaces.observe(updated.clone());
        Ok(updated)
    }
}

/// Deletes the objects of a kind, and adds to `remaining` those that still exist afterwards.
async fn delete_all_of(
    api: &Api<PartialObjectMeta<DynamicObject>>,
    kind: &ApiResource,
    remaining: &mut Remaining,
) -> Result<(), kube::Error> {
    if list(api, ListParams::default().limit(1)).await?.is_empty() {
        return Ok(());
    }
    match api.delete_collection(&DeleteParams::background(), &ListParams::default()).await {
        Ok(_) => {}
        Err(error) if is_not_found(&error) || is_conflict(&error) => {}
        Err(error) => remaining.failures.push(error),
    }
    let objects = list(api, ListParams::default()).await?;
    if !objects.is_empty() {
        remaining.objects.insert(format!("{}.{}", kind.plural, kind.group), objects.len());
    }
    for finalizer in objects.iter().flat_map(|object| object.metadata.finalizers.iter().flatten()) {
        *remaining.finalizers.entry(finalizer.clone()).or_insert(0) += 1;
    }
    Ok(())
}

async fn list(
    api: &Api<PartialObjectMeta<DynamicObject>>,
    params: ListParams,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, kube::Error> {
    match berth_runtime::write::list(api, &params).await {
        Ok(list) => Ok(list.items),
        Err(error) if is_not_found(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The obstacles to a namespace's deletion.
#[derive(Debug, Default)]
struct Remaining {
    /// Number of objects by kind (`plural.group`).
    objects: BTreeMap<String, usize>,
    /// Number of objects by finalizer.
    finalizers: BTreeMap<String, usize>,
    /// Errors of the deletions that failed.
    failures: Vec<kube::Error>,
}

impl Remaining {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty()
    }

    /// Sets the conditions of a terminating namespace, with Kubernetes' reasons and messages.
    ///
    /// Source: Kubernetes' API documentation of NamespaceCondition, and the output of
    /// `kubectl get namespace -o yaml` for a namespace that waits for a finalizer.
    fn write(&self, conditions: &mut Vec<NamespaceCondition>, now: Timestamp) {
        let each = |counts: &BTreeMap<String, usize>, verb: &str| {
            let texts: Vec<_> =
                counts.iter().map(|(what, n)| format!("{what} {verb} {n} resource instances")).collect();
            texts.join(", ")
        };
        let failures: Vec<_> = self.failures.iter().map(berth_runtime::message).collect();
        let failed = (!failures.is_empty()).then(|| {
            let (count, causes) = (failures.len(), failures.join(", "));
            format!("Failed to delete all resource types, {count} remaining: {causes}")
        });
        let remaining =
            (!self.objects.is_empty()).then(|| format!("Some resources are remaining: {}", each(&self.objects, "has")));
        let finalizers = (!self.finalizers.is_empty()).then(|| {
            format!("Some content in the namespace has finalizers remaining: {}", each(&self.finalizers, "in"))
        });
        let all = [
            (
                "NamespaceDeletionDiscoveryFailure",
                None,
                "",
                ("ResourcesDiscovered", "All resources successfully discovered"),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                "",
                ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            ),
            (
                "NamespaceDeletionContentFailure",
                failed,
                "ContentDeletionFailed",
                ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            ),
            (
                "NamespaceContentRemaining",
                remaining,
                "SomeResourcesRemain",
                ("ContentRemoved", "All content successfully removed"),
            ),
            (
                "NamespaceFinalizersRemaining",
                finalizers,
                "SomeFinalizersRemain",
                ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
            ),
        ];
        for (type_, problem, reason, (healthy_reason, healthy_message)) in all {
            let (status, reason, message) = match problem {
                Some(problem) => ("True", reason, problem),
                None => ("False", healthy_reason, healthy_message.to_owned()),
            };
            let condition = NamespaceCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_transition_time: Some(stamp(now)),
            };
            match conditions.iter_mut().find(|known| known.type_ == type_) {
                Some(known) => {
                    // A new message alone is not a transition.
                    let since = (known.status == status).then(|| known.last_transition_time.clone()).flatten();
                    let last_transition_time = since.or_else(|| condition.last_transition_time.clone());
                    *known = NamespaceCondition { last_transition_time, ..condition };
                }
                None => conditions.push(condition),
            }
        }
    }
}

/// True if the API server rejected a create because the namespace is terminating or deleted.
fn is_terminating(error: &kube::Error) -> bool {
    is_not_found(error) || matches!(error, kube::Error::Api(status) if status.code == 403)
}
