//! Read access to stored objects, for authorization and admission: the current objects in the
//! storage version of their kinds, without the cost of a request.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use berth_store::{Record, Store};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::auth::{Compiled, RBAC_GROUP};
use crate::connect::Dial;
use crate::crd::Accepted;
use crate::strategy::StoredObjects;
use berth_kinds::crd::names::Taken;

/// Reads stored objects, and connects to the Services among them. Cheap to clone; reads never wait.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn Store>,
    compiled: Arc<Compiled>,
    definitions: Arc<Accepted>,
    dial: Option<Dial>,
}

impl Objects {
    /// A handle on `store`.
    pub fn new(store: Arc<dyn Store>) -> Objects {
        let compiled = Arc::new(Compiled::new(store.changes(&format!("/{RBAC_GROUP}/"))));
        Objects { store, compiled, definitions: Arc::default(), dial: None }
    }

    /// This handle, with another way to connect to the addresses of Services.
    pub(crate) fn with_dial(self, dial: Option<Dial>) -> Objects {
        Objects { dial, ..self }
    }

    /// Opens a TCP connection to the host of a Service's endpoint or of a URL. Host names are
    /// resolved by this machine.
    ///
    /// # Errors
    /// The host is unknown or does not accept the connection.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        match (&self.dial, host.parse()) {
            (Some(dial), Ok(address)) => dial(SocketAddr::new(address, port)).await,
            _ => TcpStream::connect((host, port)).await,
        }
    }

    /// Roles and bindings, compiled for authorization.
    pub(crate) fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// Names of the CustomResourceDefinitions of a group that lack an accepted name, except `but`
    /// and definitions that are being deleted.
    pub(crate) fn definitions_lacking_names(&self, group: &str, but: &str) -> Vec<String> {
        self.definitions.lacking(self.store.as_ref(), group, but)
    }

    /// The object of that name, if it exists. `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.record(group, resource, namespace, name).map(|record| record.value())
    }

    /// The stored record of that object. Its revision is known without decoding the object.
    pub(crate) fn record(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Option<Arc<Record>> {
        self.store.get(&key(group, resource, namespace, name))
    }

    /// All objects of a kind in one namespace, or in all namespaces with `None`, ordered by
    /// namespace and name.
    pub fn list(&self, group: &str, resource: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let prefix = prefix(group, resource, namespace);
        let listing =
            self.store.list(&berth_store::ListQuery::all(&prefix)).expect("the current revision is never compacted");
        listing.records.iter().map(|record| record.value()).collect()
    }
}

impl StoredObjects for Objects {
    fn list(&self, group: &str, resource: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
        Objects::list(self, group, resource, namespace)
    }

    fn names_in_the_way(&self, definition: &Value) -> Taken {
        self.definitions.in_the_way(self.store.as_ref(), definition)
    }
}

/// Storage key of an object: `/<group or "core">/<plural>/<namespace>/<name>`. Cluster-scoped
/// objects have no namespace segment.
pub(crate) fn key(group: &str, resource: &str, namespace: &str, name: &str) -> String {
    let mut key = prefix(group, resource, (!namespace.is_empty()).then_some(namespace));
    key.push_str(name);
    key
}

/// Prefix of the storage keys of a kind's objects, in one namespace or in all namespaces.
pub(crate) fn prefix(group: &str, resource: &str, namespace: Option<&str>) -> String {
    let group = if group.is_empty() { "core" } else { group };
    match namespace {
        Some(namespace) => format!("/{group}/{resource}/{namespace}/"),
        None => format!("/{group}/{resource}/"),
    }
}
