//! The Lease with which a served API server announces itself, as kube-apiserver does (KEP-1965).
//!
//! Its renewal is also the only write of an otherwise idle server. It advances the revision, so
//! that a list after a compaction of history has a newer revision than the compaction. (On etcd,
//! each compaction is itself a write.) In virtual time this Lease does not exist.

use std::time::Duration;

use berth_apiserver::{ApiServer, UserInfo};
use berth_runtime::Clock;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

/// User of the requests, named as upstream names it.
const USER: &str = "system:apiserver";
const NAMESPACE: &str = "kube-system";
/// Only one process has a store open, so one name is enough.
const NAME: &str = "apiserver-berth";
const MANAGER: &str = "kube-apiserver";
/// Time between renewals. Shorter than the interval of compaction, so that each compaction finds a
/// new revision. Upstream's is ten seconds.
const RENEWAL: Duration = Duration::from_secs(60);
/// Upstream's `leaseDurationSeconds`: the server counts as absent an hour after its last renewal.
const DURATION_SECONDS: u32 = 3600;

/// Creates the Lease and renews it until the task is aborted. `holder` identifies this process.
pub fn announce(server: &ApiServer, clock: Clock, holder: u64) -> JoinHandle<()> {
    let client = Client::new(server.in_process(UserInfo::master(USER)), "default");
    tokio::spawn(async move {
        let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
        let acquired = clock.now();
        loop {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": NAME, "labels": {"apiserver.kubernetes.io/identity": MANAGER}},
                "spec": {
                    "holderIdentity": format!("{NAME}_{holder:016x}"),
                    "leaseDurationSeconds": DURATION_SECONDS,
                    "acquireTime": format!("{acquired:.6}"),
                    "renewTime": format!("{:.6}", clock.now()),
                },
            });
            // A full disk is reported by /readyz, and the next renewal tries again.
            if let Err(error) = leases.patch(NAME, &PatchParams::apply(MANAGER).force(), &Patch::Apply(lease)).await {
                tracing::debug!(error = berth_runtime::brief(&error), "the API server's own Lease was not renewed");
            }
            tokio::time::sleep(RENEWAL).await;
        }
    })
}
