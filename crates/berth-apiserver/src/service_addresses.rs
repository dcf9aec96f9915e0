//! Maintains an IPAddress for each address of a Service. It is created before the Service is
//! stored, so that no two Services get the same address, and deleted after the Service. After a
//! crash in between, the next start creates missing and deletes orphaned IPAddresses.

use std::collections::BTreeSet;

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, GroupKind};
use berth_apimachinery::status::Status;
use berth_store::{CommitError, Write};
use serde_json::{Value, json};

use crate::fairness::BUSY_PAUSE;
use crate::objects;
use crate::state::{State, unwritten};
use crate::strategy::free_address;

const GROUP: &str = "networking.k8s.io";
const PLURAL: &str = "ipaddresses";
/// Label with the allocator of an IPAddress. IPAddresses of other allocators are not changed.
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// The store's write queue for writes under the address lock.
pub(crate) const QUEUE: &str = "system:addresses";
/// Attempts to delete an IPAddress while the store's queue is full.
const REMOVALS: usize = 16;
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// The cluster IPs of a Service; none for headless and ExternalName Services.
fn of(service: &Value) -> impl Iterator<Item = &str> {
    let given = service["spec"]["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
    given.filter(|address| !address.is_empty() && *address != "None")
}

/// True if a Service has addresses or, on an update, had addresses before.
pub(crate) fn concerns(service: &Value, before: Option<&Value>) -> bool {
    of(service).chain(before.into_iter().flat_map(of)).next().is_some()
}

/// Claims the new addresses of a Service. Returns the addresses whose IPAddress it created. With
/// `is_chosen`, the client chose the address; otherwise it is replaced if another Service claimed
/// it first.
pub(crate) async fn claim(
    state: &State,
    service: &mut Value,
    before: Option<&Value>,
    is_chosen: bool,
) -> Result<Vec<String>, Status> {
    let kept: BTreeSet<&str> = before.into_iter().flat_map(of).collect();
    let mut taken: Vec<String> = Vec::new();
    loop {
        let mut failed = None;
        for address in of(service).filter(|address| !kept.contains(address)).map(str::to_owned).collect::<Vec<_>>() {
            match make(state, &address, service).await {
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
            let other = free_address(&state.objects);
            if other != "None" {
                service["spec"]["clusterIP"] = other.clone().into();
                service["spec"]["clusterIPs"] = json!([other]);
                continue;
            }
        }
        release(state, &taken).await;
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
pub(crate) async fn release(state: &State, taken: &[String]) {
    for address in taken {
        remove(state, address).await;
    }
}

/// After a Service was written: ensures that each of its addresses has an IPAddress, and deletes
/// its other IPAddresses.
pub(crate) async fn follow(state: &State, service: &Value, gone: bool) {
    let kept: BTreeSet<&str> = if gone { BTreeSet::new() } else { of(service).collect() };
    for address in &kept {
        // Errors are ignored: an IPAddress that is not of this Service was created by a user.
        let _ = make(state, address, service).await;
    }
    for address in state.objects.list(GROUP, PLURAL, None) {
        if is_of(&address, service) && !kept.contains(meta::name(&address)) {
            remove(state, meta::name(&address)).await;
        }
    }
}

/// When the server starts: creates missing IPAddresses of Services, and deletes those of deleted
/// Services.
pub(crate) async fn repair(state: &State) {
    let services = state.objects.list("", "services", None);
    for service in &services {
        for address in of(service) {
            let _ = make(state, address, service).await;
        }
    }
    for address in state.objects.list(GROUP, PLURAL, None) {
        let parent = &address["spec"]["parentRef"];
        let managed = meta::labels(&address).is_some_and(|labels| labels.get(MANAGED_BY) == Some(&ALLOCATOR.into()));
        let has = |service: &Value| is_of(&address, service) && of(service).any(|own| own == meta::name(&address));
        if managed && parent["resource"] == "services" && !services.iter().any(|service| has(service)) {
            remove(state, meta::name(&address)).await;
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
async fn make(state: &State, address: &str, service: &Value) -> Result<bool, CommitError> {
    let key = objects::key(GROUP, PLURAL, "", address);
    if let Some(record) = state.store().get(&key) {
        // It may remain from an earlier attempt to create a Service of this name.
        let revision = record.revision;
        return if is_of(&record.value(), service) { Ok(false) } else { Err(CommitError::Exists { key, revision }) };
    }
    let family = if address.contains(':') { "IPv6" } else { "IPv4" };
    let value = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {
            "name": address, "uid": state.new_uid(), "creationTimestamp": state.timestamp(),
            "labels": {FAMILY: family, MANAGED_BY: ALLOCATOR},
        },
        "spec": {"parentRef": {
            "resource": "services", "namespace": meta::namespace(service), "name": meta::name(service),
        }},
    });
    state.commit_in(QUEUE, Write::Create { key, value }).await.map(|_| true)
}

/// Deletes an IPAddress. If the store's queue is full, the deletion is retried. After other
/// failures, the next start deletes the IPAddress.
async fn remove(state: &State, address: &str) {
    let key = objects::key(GROUP, PLURAL, "", address);
    for _ in 0..REMOVALS {
        let Some(record) = state.store().get(&key) else { return };
        let write = Write::Delete { key: key.clone(), expected: record.revision, last: None };
        match state.commit_in(QUEUE, write).await {
            Ok(_) => return,
            Err(CommitError::Busy { .. }) => tokio::time::sleep(BUSY_PAUSE).await,
            Err(error) => {
                tracing::debug!(%address, %error, "could not delete the IPAddress of a Service; the next start tries again");
                return;
            }
        }
    }
    tracing::warn!(%address, "could not delete the IPAddress of a Service because too many writes wait for the disk; the next start tries again");
}
