//! Stand-ins for parts of berth-apimachinery that have not landed; goes when they do.

pub(crate) mod apply {
    use std::sync::Arc;

    use berth_apimachinery::patch::apply_merge;
    use berth_apimachinery::schema::Schema;
    use berth_apimachinery::status::Status;
    use serde_json::Value;

    pub(crate) struct FieldManager;

    pub(crate) fn manager_name(given: &str, user_agent: &str) -> String {
        if given.is_empty() { user_agent.split('/').next().unwrap_or_default().to_owned() } else { given.to_owned() }
    }

    impl FieldManager {
        pub(crate) fn new(_schema: Option<Arc<Schema>>) -> FieldManager {
            FieldManager
        }

        pub(crate) fn update(
            &self,
            _live: Option<&Value>,
            new: Value,
            _manager: &str,
            _subresource: &str,
            _now: jiff::Timestamp,
        ) -> Value {
            new
        }

        pub(crate) fn apply(
            &self,
            live: Option<&Value>,
            applied: &Value,
            _manager: &str,
            _subresource: &str,
            _force: bool,
            _now: jiff::Timestamp,
        ) -> Result<Option<Value>, Status> {
            let Some(live) = live else { return Ok(Some(applied.clone())) };
            let mut merged = live.clone();
            apply_merge(&mut merged, applied);
            Ok(Some(merged))
        }
    }
}
