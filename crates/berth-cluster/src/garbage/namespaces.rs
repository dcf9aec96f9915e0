//! Namespaces: what every one has, and emptying those that are deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_runtime::{
    Action, Cache, Clock, Error, Manager, ObjectKey, Reconciler, is_already_exists, is_conflict, is_not_found,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, NamespaceCondition, ServiceAccount};
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
        // Somebody deleted a namespace's default account: it comes back.
        let gone = delta.old.as_ref().filter(|account| delta.new.is_none() && account.name_any() == "default");
        gone.and_then(|account| account.namespace()).map(ObjectKey::cluster)
    });
    let builder = match maps {
        // Nor does anybody take the CA away or change it for long.
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
    /// The cluster's CA, and the config maps it is published in.
    root_ca: Option<(String, Cache<ConfigMap>)>,
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
        if let Some((root_ca, maps)) = &self.root_ca {
            let data = Some([("ca.crt".to_owned(), root_ca.clone())].into());
            let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), name);
            let written = match maps.get(&ObjectKey::namespaced(name, ROOT_CA)) {
                Some(map) if map.data == data => return Ok(()),
                // Somebody changed it, or the cluster has another CA than it had.
                Some(map) => {
                    let map = ConfigMap { data, ..(*map).clone() };
                    api.replace(ROOT_CA, &PostParams::default(), &map).await
                }
                None => {
                    let map = ConfigMap { metadata: metadata(ROOT_CA), data, ..ConfigMap::default() };
                    api.create(&PostParams::default(), &map).await
                }
            };
            match written {
                Ok(map) => maps.observe(map),
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
        let (pods, others): (Vec<_>, Vec<_>) =
            kinds.into_iter().partition(|kind| kind.group.is_empty() && kind.plural == "pods");
        let mut left = Left::default();
        for kinds in [pods, others] {
            for kind in kinds {
                let api: Api<PartialObjectMeta<DynamicObject>> =
                    Api::namespaced_with(self.client.clone(), &name, &kind);
                if let Err(error) = empty_of(&api, &kind, &mut left).await {
                    // The rest goes nevertheless.
                    left.failures.push(error);
                }
            }
            // Pods go first, and what they use after the last of them: one that is ending still reads its secrets, and its network
            // policies still hold for it.
            if !left.is_nothing() {
                break;
            }
        }
        let mut finalized = self.tell(namespace, &left).await?;
        if let Some(error) = left.failures.pop() {
            return Err(error.into());
        }
        if !left.objects.is_empty() {
            tracing::debug!(namespace = name, ?left.objects, "namespace is not empty yet");
            return Ok(Action::After(AGAIN));
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

    /// Says in the namespace's conditions why it is still there; the namespace as it is then.
    async fn tell(&self, namespace: &Namespace, left: &Left) -> Result<Namespace, Error> {
        let mut told = namespace.clone();
        let conditions = told.status.get_or_insert_default().conditions.get_or_insert_default();
        if conditions.is_empty() && left.is_nothing() {
            // It goes at once: nobody asks.
            return Ok(told);
        }
        left.write(conditions, self.clock.now());
        if told.status == namespace.status {
            return Ok(told);
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let params = PostParams::default();
        let told = berth_runtime::write::replace_status(&api, &told.name_any(), &params, &told).await?;
        self.namespaces.observe(told.clone());
        Ok(told)
    }
}

/// Deletes the objects of a kind, and notes what stays.
async fn empty_of(
    api: &Api<PartialObjectMeta<DynamicObject>>,
    kind: &ApiResource,
    left: &mut Left,
) -> Result<(), kube::Error> {
    if list(api, ListParams::default().limit(1)).await?.is_empty() {
        return Ok(());
    }
    match api.delete_collection(&DeleteParams::background(), &ListParams::default()).await {
        Ok(_) => {}
        Err(error) if is_not_found(&error) || is_conflict(&error) => {}
        Err(error) => left.failures.push(error),
    }
    let objects = list(api, ListParams::default()).await?;
    if !objects.is_empty() {
        left.objects.insert(format!("{}.{}", kind.plural, kind.group), objects.len());
    }
    for finalizer in objects.iter().flat_map(|object| object.metadata.finalizers.iter().flatten()) {
        *left.finalizers.entry(finalizer.clone()).or_insert(0) += 1;
    }
    Ok(())
}

async fn list(
    api: &Api<PartialObjectMeta<DynamicObject>>,
    params: ListParams,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, kube::Error> {
    match api.list(&params).await {
        Ok(list) => Ok(list.items),
        Err(error) if is_not_found(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// What keeps a namespace that is to go.
#[derive(Debug, Default)]
struct Left {
    /// Objects by kind (`plural.group`).
    objects: BTreeMap<String, usize>,
    /// Objects by the finalizers they have.
    finalizers: BTreeMap<String, usize>,
    /// Why objects could not be deleted.
    failures: Vec<kube::Error>,
}

impl Left {
    fn is_nothing(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty()
    }

    /// The conditions of a namespace that is being emptied, with Kubernetes' reasons and messages.
    ///
    /// Source of the behaviour: Kubernetes' API documentation of NamespaceCondition and what `kubectl get namespace -o yaml`
    /// shows of one that waits for a finalizer.
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
        for (type_, problem, reason, (fine, fine_message)) in all {
            let (status, reason, message) = match problem {
                Some(problem) => ("True", reason, problem),
                None => ("False", fine, fine_message.to_owned()),
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
                    // What it says may change without its being another state.
                    let since = (known.status == status).then(|| known.last_transition_time.clone()).flatten();
                    let last_transition_time = since.or_else(|| condition.last_transition_time.clone());
                    *known = NamespaceCondition { last_transition_time, ..condition };
                }
                None => conditions.push(condition),
            }
        }
    }
}

/// True when the namespace is on its way out and takes nothing new.
fn is_going(error: &kube::Error) -> bool {
    is_not_found(error) || matches!(error, kube::Error::Api(status) if status.code == 403)
}
