//! `metadata.managedFields`: who set which field, and server-side apply. A thin layer over
//! [`berth_apimachinery::apply`]; this module only finds the schema and the manager's name.

use std::sync::Arc;

use crate::machinery::apply::{self, FieldManager};
use berth_apimachinery::status::Status;
use serde_json::Value;

use super::call::Call;
use super::create::Tracking;

impl Call {
    /// The manager this request writes as.
    pub(crate) fn manager_name(&self) -> String {
        apply::manager_name(&self.options.field_manager, &self.user_agent)
    }

    fn field_manager(&self) -> FieldManager {
        FieldManager::new(self.row.schema(&self.version().name))
    }

    /// Records the creation of `object`.
    pub(crate) fn track(&self, object: &mut Value, tracking: &Tracking) {
        if let Tracking::Update(manager) = tracking {
            let new = std::mem::take(object);
            *object = self.field_manager().update(None, new, manager, &self.info.subresource, self.server.now());
        }
    }

    /// Records the change from `old` to `new`.
    pub(crate) fn track_update(&self, new: &mut Value, old: &Arc<Value>, tracking: &Tracking) {
        if let Tracking::Update(manager) = tracking {
            let value = std::mem::take(new);
            *new = self.field_manager().update(Some(old), value, manager, &self.info.subresource, self.server.now());
        }
    }

    /// Server-side apply of a configuration to the live object.
    pub(crate) fn apply(&self, live: Option<&Arc<Value>>, applied: &Value) -> Result<Value, Status> {
        let result = self.field_manager().apply(
            live.map(Arc::as_ref),
            applied,
            &self.options.field_manager,
            &self.info.subresource,
            self.options.force == Some(true),
            self.server.now(),
        )?;
        // Nothing to change: the live object.
        Ok(match (result, live) {
            (Some(object), _) => object,
            (None, Some(live)) => live.as_ref().clone(),
            (None, None) => applied.clone(),
        })
    }
}
