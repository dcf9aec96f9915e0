//! `metadata.managedFields` (ownership of fields) and server-side apply. A thin layer over
//! [`berth_apimachinery::apply`]; this module finds types, conversions and the manager's name.

use std::sync::Arc;

use berth_apimachinery::apply::{
    self, ConversionError, DEDUCED, FieldManager, Ignored, PathElement, Pattern, Set, TypeRef, Types, Typing, Versions,
    Write,
};
use berth_apimachinery::meta::{self, GroupVersionKind};
use berth_apimachinery::packed;
use berth_apimachinery::status::Status;
use parking_lot::Mutex;
use serde_json::Value;

use super::call::Call;
use super::create::Tracking;
use crate::ApiServer;
use crate::crd::CustomKind;
use crate::registry::ResourceInfo;

/// Versions of one kind, for field ownership.
struct KindVersions {
    server: ApiServer,
    row: Arc<ResourceInfo>,
    custom: Option<Arc<CustomKind>>,
    /// The version used last, because one request uses the same version many times.
    known: Mutex<Option<(String, Typing)>>,
}

impl Versions for KindVersions {
    fn typing(&self, api_version: &str) -> Result<Typing, ConversionError> {
        let mut known = self.known.lock();
        if let Some((_, typing)) = known.as_ref().filter(|(known, _)| known == api_version) {
            return Ok(typing.clone());
        }
        let version = api_version.rsplit('/').next().unwrap_or_default();
        if self.row.version(version).is_none() || self.row.api_version(version) != api_version {
            return Err(ConversionError::NoSuchVersion);
        }
        // Without a schema, types are inferred from the objects.
        let root = match self.row.schema(version) {
            Some(_) => Types::root(),
            None => TypeRef::Named(DEDUCED.to_owned(), None),
        };
        let typing = Typing { types: self.server.types(&self.row, version), root };
        *known = Some((api_version.to_owned(), typing.clone()));
        Ok(typing)
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Value, ConversionError> {
        self.typing(to)?;
        match &self.custom {
            Some(custom) if from != to => {
                custom.convert(object.clone(), to).map_err(|status| ConversionError::Failed(status.message))
            }
            None if from != to => Ok(self.row.convert_builtin(object.clone(), to)),
            _ => Ok(object.clone()),
        }
    }
}

/// The fields that a write to `pods/resize` can own.
fn resized() -> Pattern {
    let field = |name: &str, below: Pattern| Pattern {
        everything: false,
        members: vec![(Some(PathElement::field(name)), below)],
    };
    let of_containers = |list: &str, resource: &str| {
        let all = field(resource, Pattern { everything: true, members: Vec::new() });
        field("spec", field(list, Pattern { everything: false, members: vec![(None, all)] }))
    };
    let members = ["containers", "initContainers"].into_iter().flat_map(|list| {
        ["resources", "resizePolicy"].into_iter().flat_map(move |resource| of_containers(list, resource).members)
    });
    Pattern { everything: false, members: members.collect() }
}

/// The fields that a write to `pods/ephemeralcontainers` can own.
fn added() -> Pattern {
    let below = |name: &str, pattern: Pattern| Pattern {
        everything: false,
        members: vec![(Some(PathElement::field(name)), pattern)],
    };
    below("spec", below("ephemeralContainers", Pattern { everything: true, members: Vec::new() }))
}

impl Call {
    /// The field manager of this request.
    pub(crate) fn manager_name(&self) -> String {
        apply::manager_name(&self.options.field_manager, &self.user_agent)
    }

    fn field_manager(&self) -> FieldManager {
        let versions = KindVersions {
            server: self.server.clone(),
            row: self.row.clone(),
            custom: self.custom.clone(),
            known: Mutex::default(),
        };
        let never = self.server.never_owned(&self.row, &self.version().name);
        let mut manager =
            FieldManager::new(Arc::new(versions)).packed(self.server.inner.owned.clone()).never_owning(never);
        if self.info.subresource == "resize" {
            manager = manager.ignoring(&self.api_version(), Ignored::AllBut(resized()));
        } else if self.info.subresource == "ephemeralcontainers" {
            manager = manager.ignoring(&self.api_version(), Ignored::AllBut(added()));
        } else if self.has_status_subresource() {
            // A write does not own fields that it cannot change.
            let fields: &[&[&str]] = match (self.info.subresource.as_str(), self.custom.is_some()) {
                ("status", true) => &[&["spec"], &["metadata"]],
                ("status", false) => &[&["spec"], &["metadata", "ownerReferences"]],
                ("binding" | "finalize", _) => &[],
                _ => &[&["status"]],
            };
            let mut set = Set::new();
            for path in fields {
                let path: Vec<PathElement> = path.iter().map(|name| PathElement::field(name)).collect();
                set.insert(&path);
            }
            manager = manager.ignoring(&self.api_version(), Ignored::Fields(set));
        }
        manager
    }

    /// The subresource that `managedFields` records for this write. Writes of `binding` and
    /// `finalize` count as writes of the main resource.
    fn tracked_subresource(&self) -> &str {
        match self.info.subresource.as_str() {
            "binding" | "finalize" => "",
            other => other,
        }
    }

    /// Records the creation of `new` or its change from `old`. Returns the packed list of owners
    /// and removes it from the object, so that the object can be validated as its type. A list that
    /// the client sent stays in the object, and is validated as well.
    pub(crate) fn track(&self, new: &mut Value, old: Option<&Value>, tracking: &Tracking) -> Option<Value> {
        if !self.server.inner.config.field_owners && matches!(tracking, Tracking::Update(_)) {
            // The fields that a server-side apply owns stay.
            meta::take_managed_fields(new);
            return old.and_then(|old| old.pointer("/metadata/managedFields").cloned());
        }
        let is_sent = new.pointer("/metadata/managedFields").is_some_and(|list| packed::text_of(list).is_none());
        if let Tracking::Update(manager) = tracking {
            let now = self.server.timestamp();
            let now = now.as_str().unwrap_or_default();
            let write = Write { manager, subresource: self.tracked_subresource(), now };
            self.field_manager().update(old, new, write);
        }
        if is_sent {
            packed::expand(new);
        }
        packed::take(new)
    }

    /// Checks that a configuration to apply has the type of this request's kind.
    pub(crate) fn check_applied_type(&self, applied: &Value) -> Result<(), Status> {
        self.field_manager().check(applied, &self.kind_of_row())
    }

    fn kind_of_row(&self) -> GroupVersionKind {
        GroupVersionKind::new(&self.row.group, &self.version().name, &self.row.kind)
    }

    /// Server-side apply of a configuration to the live object.
    pub(crate) fn apply(&self, live: Option<&Arc<Value>>, applied: &Value) -> Result<Value, Status> {
        let now = self.server.timestamp();
        let write = Write {
            manager: &self.options.field_manager,
            subresource: self.tracked_subresource(),
            now: now.as_str().unwrap_or_default(),
        };
        let gvk = self.kind_of_row();
        let force = self.options.force == Some(true);
        let live = live.map(|live| packed::expanded(live));
        let mut object = self.field_manager().apply(live.as_deref(), applied, &gvk, write, force)?;
        packed::pack(&mut object);
        Ok(object)
    }
}
