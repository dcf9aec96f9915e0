//! API groups of aggregated API servers: an APIService names the Service that serves a group's
//! version. Requests for that version are authorized here. They are forwarded with a certificate
//! that identifies this server and with headers that name the user. Discovery includes the
//! version's resources.
//!
//! Requests for built-in kinds are never forwarded. An APIService without a Service means that this
//! server serves the group. A Kubernetes cluster has one for every version; here such objects are
//! stored and have no effect.

mod availability;
pub(crate) mod discovery;
mod proxy;

pub(crate) use proxy::{Forwarded, forward};

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use berth_apimachinery::meta;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::RwLock;
use serde_json::{Value, json};

use crate::kind_hooks::{Commit, KindHook};
use crate::own_requests::OwnRequests;
use crate::pki::{FRONT_PROXY_NAME, FrontProxy};
use crate::registry::{Origin, ResourceInfo};
use crate::state::State;
use crate::strategy::api_service::{AVAILABLE, PORT};
use crate::webhook::connection;
use crate::webhook::service::{self, Unreachable};
use crate::{Objects, Registry, RequestInfo};

/// API group of APIServices.
pub(crate) const GROUP: &str = "apiregistration.k8s.io";
/// Plural name of APIServices.
pub(crate) const PLURAL: &str = "apiservices";

/// A version of a group that a Service provides.
pub(crate) struct Remote {
    /// Name of the APIService.
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) version: String,
    group_priority: i64,
    version_priority: i64,
    namespace: String,
    service: String,
    port: i64,
    tls: Result<Arc<rustls::ClientConfig>, String>,
    /// Status and message of the condition `Available`, from the last check.
    available: Option<(bool, String)>,
}

impl Remote {
    fn new(object: &Value, front_proxy: Option<&FrontProxy>) -> Option<Remote> {
        let spec = &object["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if !spec["service"].is_object() {
            return None;
        }
        let found = berth_kinds::crd::conditions::find(object, AVAILABLE);
        Some(Remote {
            name: meta::name(object).to_owned(),
            group: text(&spec["group"]),
            version: text(&spec["version"]),
            group_priority: spec["groupPriorityMinimum"].as_i64().unwrap_or_default(),
            version_priority: spec["versionPriority"].as_i64().unwrap_or_default(),
            namespace: text(&spec["service"]["namespace"]),
            service: text(&spec["service"]["name"]),
            port: spec["service"]["port"].as_i64().unwrap_or(PORT),
            tls: connection::authenticated(
                spec["caBundle"].as_str(),
                spec["insecureSkipTLSVerify"] == true,
                front_proxy.map(|proxy| &proxy.identity),
            ),
            available: found.map(|it| (it["status"] == "True", text(&it["message"]))),
        })
    }

    /// The current address of the server.
    fn address(&self, objects: &Objects) -> Result<(String, u16), Unreachable> {
        service::address(objects, &self.namespace, &self.service, self.port)
    }
}

/// The cached APIServices with a Service, and the resources that their servers list.
pub(crate) struct Services {
    state: Arc<State>,
    front_proxy: Option<FrontProxy>,
    remotes: RwLock<Option<Arc<Vec<Arc<Remote>>>>>,
    /// Resources by the name of the APIService, as its server's discovery lists them.
    resources: RwLock<BTreeMap<String, Arc<Vec<Value>>>>,
}

impl Services {
    /// The stored APIServices. `front_proxy` authenticates this server to their servers.
    pub(crate) fn new(state: Arc<State>, front_proxy: Option<FrontProxy>) -> Services {
        Services { state, front_proxy, remotes: RwLock::default(), resources: RwLock::default() }
    }

    /// Clears the cache after an APIService was written.
    pub(crate) fn forget(&self) {
        *self.remotes.write() = None;
    }

    fn resources(&self, name: &str) -> Option<Arc<Vec<Value>>> {
        self.resources.read().get(name).cloned()
    }

    fn learn(&self, name: &str, resources: Vec<Value>) {
        let mut known = self.resources.write();
        known.insert(name.to_owned(), Arc::new(resources));
    }

    /// The versions behind Services, sorted by the priority of their group, then by their own.
    pub(crate) fn remotes(&self) -> Arc<Vec<Arc<Remote>>> {
        if let Some(remotes) = self.remotes.read().as_ref() {
            return remotes.clone();
        }
        let mut slot = self.remotes.write();
        let load = || {
            let objects = self.state.objects.list(GROUP, PLURAL, None);
            let front_proxy = self.front_proxy.as_ref();
            let mut remotes: Vec<Arc<Remote>> =
                objects.iter().filter_map(|object| Remote::new(object, front_proxy)).map(Arc::new).collect();
            let priority = |remote: &Remote| {
                let of_group = remotes.iter().filter(|other| other.group == remote.group);
                of_group.map(|other| other.group_priority).max().unwrap_or_default()
            };
            let groups: BTreeMap<String, i64> =
                remotes.iter().map(|remote| (remote.group.clone(), priority(remote))).collect();
            remotes.sort_by(|a, b| {
                let key = |it: &Remote| (Reverse(groups[&it.group]), it.group.clone(), Reverse(it.version_priority));
                key(a).cmp(&key(b)).then_with(|| meta::compare_versions(&a.version, &b.version))
            });
            Arc::new(remotes)
        };
        slot.get_or_insert_with(load).clone()
    }
}

impl Services {
    /// The aggregated API server of the requested version, if there is one.
    pub(crate) fn find(&self, registry: &Registry, info: &RequestInfo) -> Option<Arc<Remote>> {
        let remotes = self.remotes();
        if remotes.is_empty() {
            return None;
        }
        let rest = info.path.strip_prefix("/apis/")?;
        let mut parts = rest.split('/');
        let (group, version) = (parts.next()?, parts.next()?);
        let remote = remotes.iter().find(|remote| remote.group == group && remote.version == version)?;
        let is_ours = registry.rows().any(|row| row.group == group && !matches!(row.origin, Origin::Custom(_)));
        (!is_ours).then(|| remote.clone())
    }
}

/// The hook of APIServices: a write clears the cache.
impl KindHook for Services {
    fn is_about(&self, row: &ResourceInfo) -> bool {
        row.group == GROUP
    }

    fn after_commit<'a>(&'a self, _requests: &'a dyn OwnRequests, _commit: Commit<'a>) -> BoxFuture<'a, ()> {
        self.forget();
        ready(()).boxed()
    }
}

/// The ConfigMap `kube-system/extension-apiserver-authentication`, from which aggregated API
/// servers learn which certificates to trust.
pub(crate) fn authentication(front_proxy: &FrontProxy) -> Value {
    let list = |items: &[&str]| json!(items).to_string();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": AUTHENTICATION, "namespace": "kube-system"},
        "data": {
            "client-ca-file": front_proxy.client_authority_pem,
            "requestheader-allowed-names": list(&[FRONT_PROXY_NAME]),
            "requestheader-client-ca-file": front_proxy.authority_pem,
            "requestheader-extra-headers-prefix": list(&["X-Remote-Extra-"]),
            "requestheader-group-headers": list(&["X-Remote-Group"]),
            "requestheader-uid-headers": list(&["X-Remote-Uid"]),
            "requestheader-username-headers": list(&["X-Remote-User"]),
        },
    })
}

/// Name of that ConfigMap.
pub(crate) const AUTHENTICATION: &str = "extension-apiserver-authentication";
