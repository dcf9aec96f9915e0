//! The state that all parts of the server share: the store and its objects, the table of kinds, the
//! clock and identifiers. It depends on no request and on none of the parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::apply::{self, Set, Types};
use berth_apimachinery::builtin;
use berth_apimachinery::meta::GroupVersionKind;
use berth_apimachinery::status::Status;
use berth_kinds::crd::row::schema_with_metadata;
use berth_store::{CommitError, CommitFuture, Store, Write};
use parking_lot::{Mutex, RwLock};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde_json::Value;

use crate::Objects;
use crate::clock::Clock;
use crate::completion;
use crate::crd::CustomKind;
use crate::fairness::{RETRY_AFTER, current_user};
use crate::ids::{self, Uids};
use crate::openapi::Cache as Documents;
use crate::registry::{Origin, Registry, ResourceInfo, SchemaSource};

/// Group, kind and version.
type KindKey = (String, String, String);

/// The state that all parts of the server share.
pub(crate) struct State {
    store: Arc<dyn Store>,
    clock: Clock,
    /// Read access to stored objects.
    pub(crate) objects: Objects,
    kinds: RwLock<Arc<Kinds>>,
    /// Held while a new table of kinds is made, which readers of the current one need not await.
    changing_kinds: Mutex<()>,
    /// Field-ownership types, built on first use.
    types: Mutex<BTreeMap<KindKey, Arc<Types>>>,
    /// Fields of built-in kinds that updates never own, built on first use.
    never_owned: Mutex<BTreeMap<KindKey, Arc<Set>>>,
    uids: Mutex<Uids>,
    random: Mutex<SmallRng>,
    /// Generator of request ids. Separate from `random`, so that reads do not change the uid of
    /// the next created object.
    request_ids: Mutex<SmallRng>,
}

/// The registry and the definitions of its custom resources. Both are replaced together.
#[derive(Clone)]
pub(crate) struct Kinds {
    pub(crate) registry: Arc<Registry>,
    /// OpenAPI documents of this registry.
    pub(crate) documents: Documents,
    pub(crate) custom: BTreeMap<(String, String), Arc<CustomKind>>,
}

impl Kinds {
    /// True if `row` is a custom resource whose definition is being deleted.
    pub(crate) fn is_terminating(&self, row: &ResourceInfo) -> bool {
        self.custom.get(&(row.group.clone(), row.plural.clone())).is_some_and(|custom| custom.terminating)
    }
}

/// The error of a write that the store did not accept, for reasons other than the object.
pub(crate) fn unwritten(error: CommitError) -> Status {
    match error {
        CommitError::Busy { reason } => Status::too_many_requests(reason, RETRY_AFTER),
        CommitError::Unavailable { reason } => Status::service_unavailable(format!("the store cannot write: {reason}")),
        error => Status::service_unavailable(format!("the store cannot write: {error}")),
    }
}

impl State {
    /// The state over a store, with the built-in kinds.
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock, seed: u64) -> State {
        State {
            objects: Objects::new(store.clone()),
            store,
            clock,
            kinds: RwLock::new(Arc::new(Kinds {
                registry: Arc::new(Registry::builtin()),
                documents: Default::default(),
                custom: BTreeMap::new(),
            })),
            changing_kinds: Mutex::default(),
            types: Mutex::default(),
            never_owned: Mutex::default(),
            uids: Mutex::new(Uids::new(seed.wrapping_add(1))),
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
            request_ids: Mutex::new(SmallRng::seed_from_u64(!seed)),
        }
    }

    /// The current table of kinds.
    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.kinds.read().registry.clone()
    }

    /// The time on the server's clock.
    pub(crate) fn now(&self) -> jiff::Timestamp {
        (self.clock)()
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Queues a write in the store's queue of the user whose request is being executed.
    pub(crate) fn commit(&self, write: Write) -> CommitFuture {
        self.commit_in(&current_user(), write)
    }

    /// Queues a write in the store's queue named `queue`, which need not be that of a user.
    pub(crate) fn commit_in(&self, queue: &str, write: Write) -> CommitFuture {
        completion::note_write();
        self.store.commit_for(queue, write)
    }

    pub(crate) fn kinds(&self) -> Arc<Kinds> {
        self.kinds.read().clone()
    }

    /// Changes the table of kinds. Readers see either the old or the new table as a whole.
    pub(crate) fn change_kinds(&self, change: impl FnOnce(&mut Kinds)) {
        let _alone = self.changing_kinds.lock();
        let mut kinds = self.kinds().as_ref().clone();
        change(&mut kinds);
        kinds.documents = Default::default();
        let kinds = Arc::new(kinds);
        let before = std::mem::replace(&mut *self.kinds.write(), kinds);
        // It may have the last reference to large documents.
        drop(before);
    }

    /// Field-ownership types of a kind in `version`.
    pub(crate) fn types(&self, row: &ResourceInfo, version: &str) -> Arc<Types> {
        let key = (row.group.clone(), row.kind.clone(), version.to_owned());
        let mut types = self.types.lock();
        let make = || {
            let schema = match row.version(version).map(|version| &version.schema) {
                Some(SchemaSource::Custom(custom)) => schema_with_metadata(custom.written()),
                _ => row.schema(version),
            };
            Arc::new(schema.map_or_else(Types::deduced, |schema| Types::from_schema(&schema)))
        };
        types.entry(key).or_insert_with(make).clone()
    }

    /// Fields of a kind in `version` that updates never own.
    pub(crate) fn never_owned(&self, row: &ResourceInfo, version: &str) -> Arc<Set> {
        if matches!(row.origin, Origin::Custom(_)) {
            return apply::never_owned(&[]);
        }
        let key = (row.group.clone(), row.kind.clone(), version.to_owned());
        let mut known = self.never_owned.lock();
        let make = || {
            let kind = GroupVersionKind::new(&row.group, version, &row.kind);
            apply::never_owned(&builtin::always_there(&kind))
        };
        known.entry(key).or_insert_with(make).clone()
    }

    /// Drops the cached field-ownership types of a kind whose schema changed.
    pub(crate) fn forget_types(&self, group: &str, kind: &str) {
        let mut types = self.types.lock();
        types.retain(|(own_group, own_kind, _), _| own_group != group || own_kind != kind);
    }

    /// A new uid, greater than all earlier ones of this process, from the seeded generator.
    pub(crate) fn new_uid(&self) -> String {
        self.uids.lock().next(self.now())
    }

    /// A new id, in the form of a uid, for a request or a webhook call. Drawn from a separate
    /// generator: the uids of objects must not depend on the number of reads.
    pub(crate) fn new_request_id(&self) -> String {
        ids::random(&mut self.request_ids.lock())
    }

    /// Five characters for a generated name.
    pub(crate) fn name_suffix(&self) -> String {
        ids::suffix(&mut self.random.lock())
    }

    /// The current time as objects store it: RFC 3339 in whole seconds.
    pub(crate) fn timestamp(&self) -> Value {
        Value::String(self.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }
}
