//! The accepted names of stored definitions, cached by definition. Each definition is decoded once
//! per revision. Every write of a definition checks several times whether a name is free. Without
//! the cache, the thousandth definition would cost a thousand times as much as the first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_store::{ListQuery, Store};
use parking_lot::Mutex;
use serde_json::Value;

use crate::objects;
use berth_kinds::crd::names::{Names, Taken};
use berth_kinds::crd::{GROUP, PLURAL, conditions};

/// Names of one stored definition.
struct Known {
    revision: u64,
    group: String,
    name: String,
    accepted: Names,
    /// True if some of its names are not accepted and it is not being deleted.
    lacks_names: bool,
}

impl Known {
    fn of(definition: &Value, revision: u64) -> Known {
        Known {
            revision,
            group: definition["spec"]["group"].as_str().unwrap_or_default().to_owned(),
            name: meta::name(definition).to_owned(),
            accepted: Names::accepted(definition),
            lacks_names: meta::deletion_timestamp(definition).is_none()
                && !conditions::is_true(definition, "NamesAccepted"),
        }
    }
}

/// The cached definitions.
#[derive(Default)]
pub(crate) struct Accepted(Mutex<BTreeMap<Arc<str>, Arc<Known>>>);

impl Accepted {
    /// The names of other definitions that conflict with this definition.
    pub(crate) fn in_the_way(&self, store: &dyn Store, definition: &Value) -> Taken {
        let group = definition["spec"]["group"].as_str().unwrap_or_default();
        let name = meta::name(definition);
        let known = self.refreshed(store);
        let others = known.iter().filter(|known| known.group == group && known.name != name);
        Taken::from_names(definition, others.map(|known| &known.accepted))
    }

    /// Names of the definitions of a group that lack an accepted name, except the definition `but`
    /// and definitions that are being deleted.
    pub(crate) fn lacking(&self, store: &dyn Store, group: &str, but: &str) -> Vec<String> {
        let known = self.refreshed(store);
        let lacking = known.iter().filter(|known| known.lacks_names && known.group == group && known.name != but);
        lacking.map(|known| known.name.clone()).collect()
    }

    fn refreshed(&self, store: &dyn Store) -> Vec<Arc<Known>> {
        let prefix = objects::prefix(GROUP, PLURAL, None);
        let mut known = self.0.lock();
        let records = store.list(&ListQuery::all(&prefix)).expect("the current revision is never compacted").records;
        let found = records
            .iter()
            .map(|record| match known.get(&record.key) {
                Some(known) if known.revision == record.revision => known.clone(),
                _ => {
                    let fresh = Arc::new(Known::of(&record.value(), record.revision));
                    known.insert(record.key.clone(), fresh.clone());
                    fresh
                }
            })
            .collect();
        if known.len() > records.len() {
            let there: BTreeSet<&Arc<str>> = records.iter().map(|record| &record.key).collect();
            known.retain(|key, _| there.contains(key));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use berth_store::{MemoryStore, Write};
    use serde_json::json;

    use super::*;

    fn definition(plural: &str, group: &str, short: &str, accepted: &str) -> Value {
        let names = json!({"plural": plural, "singular": "", "kind": plural, "listKind": "", "shortNames": [short]});
        json!({"metadata": {"name": format!("{plural}.{group}")}, "spec": {"group": group, "names": names},
            "status": {"acceptedNames": names, "conditions": [{"type": "NamesAccepted", "status": accepted}]}})
    }

    #[tokio::test]
    async fn the_cache_follows_the_stored_definitions() {
        let store = MemoryStore::new();
        let key = |plural: &str| objects::key(GROUP, PLURAL, "", &format!("{plural}.x.dev"));
        let index = Accepted::default();
        let asks = definition("boats", "x.dev", "sh", "True");
        let in_the_way = |index: &Accepted| index.in_the_way(&store, &asks);
        assert_eq!(in_the_way(&index), Taken::default());
        let value = definition("ships", "x.dev", "sh", "False");
        let stored = store.commit(Write::Create { key: key("ships"), value: value.clone() }).await.expect("stored");
        let own = Write::Create { key: key("boats"), value: asks.clone() };
        store.commit(own).await.expect("stored");
        let other = Write::Create { key: key("far"), value: definition("far", "y.dev", "sh", "False") };
        store.commit(other).await.expect("stored");
        assert_eq!(in_the_way(&index), Taken::by(&asks, [&value]), "its own and another group's names are free");
        assert_ne!(in_the_way(&index), Taken::default());
        assert_eq!(index.lacking(&store, "x.dev", "boats.x.dev"), ["ships.x.dev"]);
        let value = definition("ships", "x.dev", "s", "True");
        let expected = stored.record.revision;
        store.commit(Write::Update { key: key("ships"), expected, value }).await.expect("stored");
        assert_eq!(in_the_way(&index), Taken::default(), "the other definition has released the name");
        assert!(index.lacking(&store, "x.dev", "boats.x.dev").is_empty());
        let expected = store.get(&key("ships")).expect("there").revision;
        store.commit(Write::Delete { key: key("ships"), expected, last: None }).await.expect("gone");
        in_the_way(&index);
        assert_eq!(index.0.lock().len(), 2, "deleted definitions are removed from the cache");
    }
}
