//! Checks whether the servers behind APIServices respond, and writes the result into the condition
//! `Available`.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_store::{CommitError, Watcher, Write};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{join_all, select_all};
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::time::Instant;

use super::proxy::{self, Forwarded};
use super::{GROUP, PLURAL, Remote, Services};
use crate::strategy::api_service::AVAILABLE;
use crate::webhook::service::Unreachable;
use crate::{UserInfo, objects};
use berth_kinds::crd::conditions::{self, Condition};

/// Maximum duration of a check, as upstream.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks of an available server, as upstream.
const AGAIN: Duration = Duration::from_secs(30);
/// Interval of checks of an unavailable server.
const RETRY: Duration = Duration::from_secs(2);
/// Maximum size of a list of resources.
const ANSWER_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Inputs of the last check of an APIService, and the time of the next.
struct LastCheck {
    inputs: (String, Result<(String, u16), Unreachable>),
    due: Instant,
}

impl Services {
    /// Checks the APIServices with a Service: periodically, and at once when an APIService, its
    /// Service or its endpoints change. Runs until dropped. It is started with the listener, and
    /// not in virtual time.
    pub(crate) async fn follow(&self) {
        let mut checks: BTreeMap<String, LastCheck> = BTreeMap::new();
        loop {
            // Watch before the first check, so that no change in between is missed.
            let Some(mut watchers) = self.watch_inputs() else { continue };
            loop {
                let due = self.check_due(&mut checks).await;
                let changed = select_all(watchers.iter_mut().map(|watcher| watcher.next().boxed()));
                let wait = async {
                    match due {
                        Some(due) => tokio::time::sleep_until(due).await,
                        None => std::future::pending().await,
                    }
                };
                let ended = tokio::select! {
                    (change, ..) = changed => change.is_err(),
                    () = wait => false,
                };
                // Changes that have arrived since are covered by the same check.
                if ended || watchers.iter_mut().any(|watcher| drain(watcher).is_err()) {
                    break;
                }
            }
        }
    }

    fn watch_inputs(&self) -> Option<Vec<Watcher>> {
        let kinds = [(GROUP, PLURAL), ("", "services"), ("", "endpoints"), ("discovery.k8s.io", "endpointslices")];
        let watch = |(group, plural)| {
            let prefix = objects::prefix(group, plural, None);
            self.state.store().watch(&prefix, self.state.store().revision()).ok()
        };
        kinds.into_iter().map(watch).collect()
    }

    /// Checks APIServices that changed or are due. Returns when the next check is due.
    async fn check_due(&self, checks: &mut BTreeMap<String, LastCheck>) -> Option<Instant> {
        let remotes = self.remotes();
        checks.retain(|name, _| remotes.iter().any(|remote| remote.name == *name));
        let now = Instant::now();
        let mut requests = Vec::new();
        for remote in remotes.iter() {
            let object = self.state.objects.get(GROUP, PLURAL, "", &remote.name);
            let spec = object.map(|object| object["spec"].to_string()).unwrap_or_default();
            let inputs = (spec, remote.address(&self.state.objects));
            if checks.get(&remote.name).is_some_and(|before| before.inputs == inputs && before.due > now) {
                continue;
            }
            requests.push(async move { (remote, self.fetch_resources(remote).await, inputs) });
        }
        for (remote, answer, inputs) in join_all(requests).await {
            let after = if answer.is_ok() { AGAIN } else { RETRY };
            checks.insert(remote.name.clone(), LastCheck { inputs, due: Instant::now() + after });
            let (status, reason, message) = match answer {
                Ok(resources) => {
                    self.learn(&remote.name, resources);
                    ("True", "Passed", "all checks passed".to_owned())
                }
                Err((reason, message)) => ("False", reason, message),
            };
            let condition = Condition { kind: AVAILABLE, status, reason, message: &message };
            self.write_condition(&remote.name, &condition).await;
        }
        checks.values().map(|check| check.due).min()
    }

    /// Fetches the resources of an aggregated API server. The error is the reason and message of a
    /// condition.
    async fn fetch_resources(&self, remote: &Remote) -> Result<Vec<Value>, (&'static str, String)> {
        let (service, namespace) = (&remote.service, &remote.namespace);
        match remote.address(&self.state.objects) {
            Ok(_) => {}
            Err(Unreachable::NoService(_)) => {
                return Err(("ServiceNotFound", format!("service/{service} in {namespace:?} is not present")));
            }
            Err(Unreachable::NoPort { port, .. }) => {
                let message = format!("service/{service} in {namespace:?} is not listening on port {port}");
                return Err(("ServicePortError", message));
            }
            Err(why @ Unreachable::NotAPort(_)) => return Err(("ServicePortError", why.to_string())),
            Err(Unreachable::NoEndpoints(_)) => {
                let message = format!("endpoints for service/{service} in {namespace:?} have no addresses");
                return Err(("MissingEndpoints", message));
            }
        }
        let path = format!("/apis/{}/{}", remote.group, remote.version);
        let user = UserInfo::master("system:kube-aggregator");
        let request = Forwarded {
            method: &Method::GET,
            path: &path,
            query: "",
            headers: &HeaderMap::new(),
            body: Bytes::new(),
            user: &user,
        };
        let resources = async {
            let response = proxy::send(&self.state.objects, remote, request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            if !status.is_success() {
                let text: String = String::from_utf8_lossy(&body).chars().take(256).collect();
                return Err(format!("bad status {status}: {text}"));
            }
            let list: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
            Ok(list["resources"].as_array().cloned().unwrap_or_default())
        };
        let resources = tokio::time::timeout(TIMEOUT, resources).await;
        resources.unwrap_or_else(|_| Err("context deadline exceeded".to_owned())).map_err(|why| {
            let url = format!("https://{service}.{namespace}.svc:{}{path}", remote.port);
            ("FailedDiscoveryCheck", format!("failing or missing response from {url}: {why}"))
        })
    }

    /// Writes the condition unless it is unchanged.
    async fn write_condition(&self, name: &str, condition: &Condition<'_>) {
        let key = objects::key(GROUP, PLURAL, "", name);
        while let Some(record) = self.state.store().get(&key) {
            let stored = record.value();
            let found = conditions::find(&stored, condition.kind);
            let says = |field: &str| found.and_then(|found| found[field].as_str()).unwrap_or_default();
            if (says("status"), says("reason"), says("message"))
                == (condition.status, condition.reason, condition.message)
            {
                return;
            }
            let mut value = (*stored).clone();
            conditions::set(&mut value, condition, self.state.timestamp().as_str().unwrap_or_default());
            let write = Write::Update { key: key.clone(), expected: record.revision, value };
            match self.state.store().commit(write).await {
                Err(CommitError::Conflict { .. }) => {}
                Ok(_) => {
                    tracing::info!(name, available = condition.status, "{}", condition.message);
                    return self.forget();
                }
                Err(error) => return tracing::warn!(name, %error, "writing the availability of an APIService failed"),
            }
        }
    }
}

/// Discards pending events.
fn drain(watcher: &mut Watcher) -> Result<(), berth_store::WatchEnd> {
    while watcher.try_next()?.is_some() {}
    Ok(())
}
