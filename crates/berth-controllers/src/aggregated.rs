//! The API groups that the controllers serve behind the API server: pending workloads
//! ([`crate::visibility`]) and explanations ([`crate::explain`]). An APIService per version refers
//! to a Service without selector: only the leading replica can respond, so it writes its own
//! address into the EndpointSlice.

use berth_apimachinery::well_known;
use serde_json::{Value, json};

use crate::{explain, rights, visibility};

/// Service by which the API server reaches the leading replica; also the name of its EndpointSlice.
pub const SERVICE: &str = "berth-visibility";

/// Name of the port, in the Service and in the EndpointSlice.
const PORT: &str = "https";
/// Group priority; the same as Kueue's, after all groups of Kubernetes.
const GROUP_PRIORITY: i64 = 100;

/// Groups and versions that are served this way, the preferred version of a group first.
fn versions() -> Vec<(&'static str, &'static str)> {
    let mut versions: Vec<_> = visibility::VERSIONS.iter().map(|version| (visibility::GROUP, *version)).collect();
    versions.push((explain::GROUP, explain::VERSION));
    versions
}

/// Names of the APIServices.
pub fn names() -> Vec<String> {
    versions().into_iter().map(|(group, version)| format!("{version}.{group}")).collect()
}

/// The Service and the APIServices of an installation in this namespace. The controllers write the
/// CA bundle.
pub fn objects(namespace: &str) -> Vec<Value> {
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": namespace, "labels": rights::labels(&[])},
        "spec": {"ports": [{"name": PORT, "port": 443, "protocol": "TCP"}]},
    })];
    for (place, (group, version)) in versions().into_iter().enumerate() {
        let place = i64::try_from(place).unwrap_or_default();
        objects.push(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}"), "labels": rights::labels(&[])},
            "spec": {
                "group": group, "version": version,
                "groupPriorityMinimum": GROUP_PRIORITY, "versionPriority": 100 - place,
                "service": {"name": SERVICE, "namespace": namespace, "port": 443},
            },
        }));
    }
    objects
}

/// The EndpointSlice with the leading replica's address, for server-side apply.
pub fn endpoint(namespace: &str, address: std::net::SocketAddr) -> Value {
    let mut labels = rights::labels(&[]);
    labels[well_known::SERVICE_NAME] = json!(SERVICE);
    labels[well_known::ENDPOINT_SLICE_MANAGED_BY] = json!(rights::NAME);
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": SERVICE, "namespace": namespace, "labels": labels},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
        "ports": [{"name": PORT, "port": address.port(), "protocol": "TCP"}],
    })
}
