//! Cache of compiled roles and bindings, dropped when one of them changes.
//!
//! Without it, a request of a user with an aggregated role would read every role of the cluster,
//! which takes longer than the rest of the request.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::rbac::{Binding, Rule};

/// Maximum number of cached namespaces, and of cached roles; a full cache is emptied.
const CACHED_MAX: usize = 4096;
/// Longer than any valid name; results for longer keys are not cached.
const KEY_MAX: usize = 512;

type Rules = Result<Arc<Vec<Rule>>, String>;

/// Cached bindings and rules.
pub(crate) struct Compiled {
    /// Change counter of roles and bindings, increased before a change becomes readable.
    changes: Arc<AtomicU64>,
    cached: RwLock<Cached>,
}

#[derive(Default)]
struct Cached {
    /// Value of the change counter before any cached entry was read.
    at: u64,
    bindings: HashMap<String, Arc<Vec<Binding>>>,
    rules: HashMap<String, Rules>,
}

impl Compiled {
    pub(crate) fn new(changes: Arc<AtomicU64>) -> Compiled {
        Compiled { changes, cached: RwLock::default() }
    }

    /// The bindings of a namespace (empty: of the cluster).
    pub(crate) fn bindings(&self, namespace: &str, read: impl FnOnce() -> Vec<Binding>) -> Arc<Vec<Binding>> {
        self.cached(namespace, |cached| &mut cached.bindings, |cached| &cached.bindings, || Arc::new(read()))
    }

    /// The rules of a role.
    pub(crate) fn rules(
        &self,
        kind: &str,
        name: &str,
        namespace: &str,
        read: impl FnOnce() -> Result<Vec<Rule>, String>,
    ) -> Rules {
        let namespace = if kind == "Role" { namespace } else { "" };
        let key = format!("{kind}/{namespace}/{name}");
        self.cached(&key, |cached| &mut cached.rules, |cached| &cached.rules, || read().map(Arc::new))
    }

    fn cached<T: Clone>(
        &self,
        key: &str,
        map_mut: impl FnOnce(&mut Cached) -> &mut HashMap<String, T>,
        map: impl FnOnce(&Cached) -> &HashMap<String, T>,
        read: impl FnOnce() -> T,
    ) -> T {
        // Read the counter first: the data read afterwards is at least as new.
        let now = self.changes.load(Ordering::Acquire);
        {
            let cached = self.cached.read();
            if cached.at == now
                && let Some(known) = map(&cached).get(key)
            {
                return known.clone();
            }
        }
        let value = read();
        let mut cached = self.cached.write();
        if cached.at < now {
            *cached = Cached { at: now, ..Cached::default() };
        }
        // Another thread may have cached newer entries in between.
        if cached.at == now && key.len() <= KEY_MAX {
            let map = map_mut(&mut cached);
            if map.len() >= CACHED_MAX {
                map.clear();
            }
            map.insert(key.to_owned(), value.clone());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn compiled_roles_are_cached_until_something_changes() {
        let changes = Arc::new(AtomicU64::new(0));
        let compiled = Compiled::new(changes.clone());
        let read = Cell::new(0);
        let ask = |kind: &str, namespace: &str| {
            let rules = compiled.rules(kind, "r", namespace, || {
                read.set(read.get() + 1);
                Ok(vec![Rule { verbs: vec![read.get().to_string()], ..Rule::default() }])
            });
            rules.expect("found")[0].verbs[0].clone()
        };
        // A ClusterRole is the same wherever it is bound; a Role is not.
        assert_eq!(
            [ask("ClusterRole", "a"), ask("ClusterRole", "b"), ask("Role", "a"), ask("Role", "b")],
            ["1", "1", "2", "3"]
        );
        changes.fetch_add(1, Ordering::AcqRel);
        assert_eq!([ask("ClusterRole", "a"), ask("Role", "b"), ask("Role", "b")], ["4", "5", "5"]);
    }

    #[test]
    fn roles_that_change_while_they_are_read_are_read_again() {
        let changes = Arc::new(AtomicU64::new(0));
        let compiled = Compiled::new(changes.clone());
        let first = compiled.rules("Role", "r", "a", || {
            changes.fetch_add(1, Ordering::AcqRel);
            Err("old".to_owned())
        });
        assert_eq!(first, Err("old".to_owned()));
        assert_eq!(compiled.rules("Role", "r", "a", || Err("new".to_owned())), Err("new".to_owned()));
    }
}
