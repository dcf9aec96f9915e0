//! Maintains an IPAddress for each address of a Service. It is created before the Service is
//! stored, so that no two Services get the same address, and deleted after the Service. After a
//! crash in between, the next start creates missing and deletes orphaned IPAddresses.

use std::collections::BTreeSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, GroupKind};
use berth_apimachinery::status::Status;
use berth_store::{CommitError, CommitFuture, Write};
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;

use crate::fairness::BUSY_PAUSE;
use crate::registry::ResourceInfo;
use crate::rest::unwritten;
use crate::{ApiServer, objects, strategy};

const GROUP: &str = "networking.k8s.io";
const PLURAL: &str = "ipaddresses";
/// Label with the allocator of an IPAddress. IPAddresses of other allocators are not changed.
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// The store's write queue for writes under the address lock.
pub(crate) const ROW: &str = "system:addresses";
/// Attempts to delete an IPAddress while the store's queue is full.
const REMOVALS: usize = 16;
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// Whether `row` is the row of Services.
pub(crate) fn is_about(row: &ResourceInfo) -> bool {
    row.group.is_empty() && row.plural == "services"
}

/// The cluster IPs of a Service; none for headless and ExternalName Services.
fn of(service: &Value) -> impl Iterator<Item = &str> {
    let given = service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    given.filter(|address| !address.is_empty() && *address != "None")
}

/// Whether a Service has addresses or, on an update, had addresses before.
pub(crate) fn concerns(service: &Value, before: Option<&Value>) -> bool {
    of(service).chain(before.into_iter().flat_map(of)).next().is_some()
}

/// Lock of a write that changes the addresses of a Service. It is held from before the addresses
/// are claimed until the follow-up of the stored object. Without it, a Service that is created
/// while a Service of the same name is deleted would lose its address to that deletion.
pub(crate) struct Held(Option<OwnedMutexGuard<()>>);

/// Queues a write. A write under the lock goes to [`ROW`]: other Services wait for it, and must
/// not wait for its user's backlog.
pub(crate) fn commit(server: &ApiServer, held: Option<&Held>, write: Write) -> CommitFuture {
    let is_locked = held.is_some_and(|held| held.0.is_some());
    if is_locked { server.commit_in(ROW, write) } else { server.commit(write) }
}

/// Waits for the lock. A write of a Service without addresses does not need it.
pub(crate) async fn hold(server: &ApiServer, service: &Value, before: Option<&Value>) -> Held {
    if !concerns(service, before) {
        return Held(None);
    }
    Held(Some(server.inner.addresses.clone().lock_owned().await))
}

/// Claims the new addresses of a Service and returns them. With `is_chosen`, the client chose the
/// address; otherwise it is replaced if another Service claimed it first.
pub(crate) async fn claim(
    server: &ApiServer,
    service: &mut Value,
    before: Option<&Value>,
    is_chosen: bool,
) -> Result<Vec<String>, Status> {
    let kept: BTreeSet<&str> = before.into_iter().flat_map(of).collect();
    let mut taken: Vec<String> = Vec::new();
    loop {
        let mut failed = None;
        for address in of(service).filter(|address| !kept.contains(address)).map(str::to_owned).collect::<Vec<_>>() {
            match make(server, &address, service).await {
                Ok(true) => taken.push(address),
                Ok(false) => {}
                Err(error) => {
                    failed = Some((address, error));
                    break;
                }
            }
        }
        let Some((address, error)) = failed else { return Ok(taken) };
        let exists = matches!(error, CommitError::Exists { .. });
        if exists && !is_chosen && taken.is_empty() {
            let other = strategy::free_address(&server.inner.objects);
            if other != "None" {
                service["spec"]["clusterIP"] = other.clone().into();
                service["spec"]["clusterIPs"] = json!([other]);
                continue;
            }
        }
        release(server, &taken).await;
        if !exists {
            return Err(unwritten(error));
        }
        let detail = format!("failed to allocate IP {address}: provided IP is already allocated");
        let error =
            Error::invalid(&Path::new("spec").child("clusterIPs"), service["spec"]["clusterIPs"].clone(), detail);
        return Err(Status::invalid(&GroupKind::new("", "Service"), meta::name(service), &[error]));
    }
}

/// Releases the addresses that were claimed for a Service that could not be stored.
pub(crate) async fn release(server: &ApiServer, taken: &[String]) {
    for address in taken {
        remove(server, address).await;
    }
}

/// After a Service was written: ensures an IPAddress for each of its addresses, and deletes its
/// others.
pub(crate) async fn follow(server: &ApiServer, service: &Value, gone: bool) {
    let kept: BTreeSet<&str> = if gone { BTreeSet::new() } else { of(service).collect() };
    for address in &kept {
        // Errors are ignored: an IPAddress that is not of this Service was created by a user.
        let _ = make(server, address, service).await;
    }
    for address in server.inner.objects.list(GROUP, PLURAL, None) {
        if is_of(&address, service) && !kept.contains(meta::name(&address)) {
            remove(server, meta::name(&address)).await;
        }
    }
}

/// At a start: creates missing IPAddresses of Services, and deletes those of deleted Services.
pub(crate) async fn repair(server: &ApiServer) {
    let services = server.inner.objects.list("", "services", None);
    for service in &services {
        for address in of(service) {
            let _ = make(server, address, service).await;
        }
    }
    for address in server.inner.objects.list(GROUP, PLURAL, None) {
        let parent = &address["spec"]["parentRef"];
        let managed = meta::labels(&address).is_some_and(|labels| labels.get(MANAGED_BY) == Some(&ALLOCATOR.into()));
        let has = |service: &Value| is_of(&address, service) && of(service).any(|own| own == meta::name(&address));
        if managed && parent["resource"] == "services" && !services.iter().any(|service| has(service)) {
            remove(server, meta::name(&address)).await;
        }
    }
}

fn is_of(address: &Value, service: &Value) -> bool {
    let parent = &address["spec"]["parentRef"];
    meta::labels(address).is_some_and(|labels| labels.get(MANAGED_BY) == Some(&ALLOCATOR.into()))
        && parent["resource"] == "services"
        && parent["namespace"] == meta::namespace(service)
        && parent["name"] == meta::name(service)
}

/// Creates a Service's IPAddress; `false` if it exists already.
async fn make(server: &ApiServer, address: &str, service: &Value) -> Result<bool, CommitError> {
    let key = objects::key(GROUP, PLURAL, "", address);
    if let Some(record) = server.store().get(&key) {
        // It may remain from a Service of this name that could not be stored.
        let revision = record.revision;
        return if is_of(&record.value(), service) { Ok(false) } else { Err(CommitError::Exists { key, revision }) };
    }
    let family = if address.contains(':') { "IPv6" } else { "IPv4" };
    let value = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {
            "name": address, "uid": server.new_uid(), "creationTimestamp": server.timestamp(),
            "labels": {FAMILY: family, MANAGED_BY: ALLOCATOR},
        },
        "spec": {"parentRef": {
            "resource": "services", "namespace": meta::namespace(service), "name": meta::name(service),
        }},
    });
    server.commit_in(ROW, Write::Create { key, value }).await.map(|_| true)
}

/// Deletes an IPAddress. Failures are repaired at the next start; a full store queue is temporary
/// and retried.
async fn remove(server: &ApiServer, address: &str) {
    let key = objects::key(GROUP, PLURAL, "", address);
    for _ in 0..REMOVALS {
        let Some(record) = server.store().get(&key) else { return };
        let write = Write::Delete { key: key.clone(), expected: record.revision, last: None };
        match server.commit_in(ROW, write).await {
            Ok(_) => return,
            Err(CommitError::Busy { .. }) => tokio::time::sleep(BUSY_PAUSE).await,
            Err(error) => {
                tracing::debug!(%address, %error, "could not delete the IPAddress of a Service; the next start tries again");
                return;
            }
        }
    }
    tracing::warn!(%address, "could not delete the IPAddress of a Service, as too many writes wait for the disk; the next start tries again");
}
