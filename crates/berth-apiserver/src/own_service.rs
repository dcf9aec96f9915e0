//! Maintains the Service `default/kubernetes`, through which pods reach the API server, with the
//! address at which this server listens. As in kube-apiserver, a missing Service is created and
//! changes to it are reverted.
//!
//! Endpoints cannot be loopback addresses, because no other machine could reach them. A server that
//! listens at a loopback address has the Service without endpoints, and so has one that listens at
//! the unspecified address. At a loopback address, the server deletes endpoints that it created
//! itself at an earlier address, and keeps endpoints that other clients wrote.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::{ApiServer, UserInfo};

/// Interval of reconciliation, as upstream.
const EVERY: Duration = Duration::from_secs(10);
const NAME: &str = "kubernetes";
/// The first address of the range of cluster IPs.
const CLUSTER_IP: &str = "10.96.0.1";
const PORT_NAME: &str = "https";

const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
/// Field manager of the writes of this module.
const MANAGER: &str = "kube-apiserver";

/// Reconciles the Service until the future is dropped.
pub(crate) async fn keep(server: ApiServer, address: SocketAddr) {
    // A persistent error (another Service has the address) is logged once.
    let mut logged: BTreeMap<&str, String> = BTreeMap::new();
    loop {
        let mut outcomes = Vec::new();
        for (collection, wanted, fields) in wanted(address) {
            outcomes.push((collection, reconcile(&server, collection, &wanted, fields).await));
        }
        if address.ip().is_loopback() {
            for collection in [ENDPOINTS, SLICES] {
                outcomes.push((collection, remove_own(&server, collection).await));
            }
        }
        for (collection, outcome) in outcomes {
            match outcome {
                Ok(()) => drop(logged.remove(collection)),
                Err(why) if logged.get(collection) == Some(&why) => {}
                Err(why) => {
                    tracing::warn!(path = %format_args!("{collection}/{NAME}"), %why, "the API server's own Service could not be reconciled");
                    logged.insert(collection, why);
                }
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Collection paths, the wanted objects, and the fields of each that are reconciled.
fn wanted(address: SocketAddr) -> Vec<(&'static str, Value, &'static [&'static str])> {
    let port = address.port();
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": CLUSTER_IP, "clusterIPs": [CLUSTER_IP], "type": "ClusterIP", "sessionAffinity": "None",
            "ports": [{"name": PORT_NAME, "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    });
    let mut wanted: Vec<(&str, Value, &[&str])> =
        vec![("/api/v1/namespaces/default/services", service, &["/spec/type", "/spec/ports"])];
    let ip = address.ip();
    if ip.is_loopback() || ip.is_unspecified() {
        return wanted;
    }
    let ports = json!([{"name": PORT_NAME, "port": port, "protocol": "TCP"}]);
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": NAME, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": ip.to_string()}], "ports": ports}],
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": NAME, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": if ip.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [ip.to_string()], "conditions": {"ready": true}}],
        "ports": ports,
    });
    wanted.push((ENDPOINTS, endpoints, &["/subsets"]));
    wanted.push((SLICES, slice, &["/endpoints", "/ports"]));
    wanted
}

/// Creates the object if it is missing, and sets `fields` where they differ. After a conflict, the
/// next reconciliation tries again.
async fn reconcile(server: &ApiServer, collection: &str, wanted: &Value, fields: &[&str]) -> Result<(), String> {
    let path = format!("{collection}/{NAME}");
    let (code, mut found) = send(server, Method::GET, &path, &Value::Null).await?;
    // The address type of an EndpointSlice is immutable.
    let must_replace = code.is_success() && found.get("addressType") != wanted.get("addressType");
    if must_replace {
        done(send(server, Method::DELETE, &path, &Value::Null).await?)?;
    }
    if code == StatusCode::NOT_FOUND || must_replace {
        return done(send(server, Method::POST, collection, wanted).await?);
    }
    if !code.is_success() || !set_differing(&mut found, wanted, fields) {
        return done((code, found));
    }
    done(send(server, Method::PUT, &path, &found).await?)
}

/// Sets the `fields` that differ or are missing. Returns whether any did.
fn set_differing(found: &mut Value, wanted: &Value, fields: &[&str]) -> bool {
    let mut differs = false;
    for field in fields {
        let value = wanted.pointer(field);
        let (parent, name) = field.rsplit_once('/').unwrap_or_default();
        if found.pointer(field) != value
            && let (Some(value), Some(Value::Object(parent))) = (value, found.pointer_mut(parent))
        {
            parent.insert(name.to_owned(), value.clone());
            differs = true;
        }
    }
    differs
}

/// Deletes an object that this server created and no other client has written to.
async fn remove_own(server: &ApiServer, collection: &str) -> Result<(), String> {
    let path = format!("{collection}/{NAME}");
    let (code, found) = send(server, Method::GET, &path, &Value::Null).await?;
    let mut writers = found["metadata"]["managedFields"].as_array().into_iter().flatten().peekable();
    let is_own = writers.peek().is_some() && writers.all(|entry| entry["manager"] == MANAGER);
    if !code.is_success() || !is_own {
        return Ok(());
    }
    done(send(server, Method::DELETE, &path, &Value::Null).await?)
}

/// The message of an error response as an error. Conflicts (409) are ignored: the next
/// reconciliation handles them.
fn done((code, answer): (StatusCode, Value)) -> Result<(), String> {
    if code.is_success() || code == StatusCode::CONFLICT {
        return Ok(());
    }
    Err(answer["message"].as_str().unwrap_or_default().to_owned())
}

async fn send(server: &ApiServer, method: Method, path: &str, body: &Value) -> Result<(StatusCode, Value), String> {
    let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder()
        .method(method)
        .uri(format!("{path}?fieldManager={MANAGER}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(bytes))
        .map_err(|error| error.to_string())?;
    let response = server.handle(request, UserInfo::master("system:apiserver")).await;
    let code = response.status();
    let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok((code, serde_json::from_slice(&body).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_changed_or_deleted_service_is_restored() {
        let now = "2026-01-01T00:00:00Z".parse().expect("a timestamp");
        let store = Arc::new(berth_store::MemoryStore::new());
        let server = ApiServer::new(crate::Config::new(store, Arc::new(move || now)));
        let keeper = tokio::spawn(keep(server.clone(), "192.0.2.7:6443".parse().expect("an address")));
        tokio::time::sleep(Duration::from_millis(1)).await;
        let path = "/api/v1/namespaces/default/services/kubernetes";
        let get = |path: &'static str| send(&server, Method::GET, path, &Value::Null);
        let (_, mut service) = get(path).await.expect("a response");
        assert_eq!(service["spec"]["clusterIPs"], json!([CLUSTER_IP]));
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 6443);
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
        let (_, slice) = get(slices).await.expect("a response");
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));

        service["spec"]["ports"] = json!([{"name": "other", "port": 1, "protocol": "TCP", "targetPort": 2}]);
        let (code, _) = send(&server, Method::PUT, path, &service).await.expect("a response");
        assert_eq!(code, StatusCode::OK);
        send(&server, Method::DELETE, slices, &Value::Null).await.expect("a response");
        tokio::time::sleep(EVERY).await;
        assert_eq!(get(path).await.expect("a response").1["spec"]["ports"][0]["port"], 443);
        assert_eq!(get(slices).await.expect("a response").0, StatusCode::OK);
        let before = server.store().revision();
        tokio::time::sleep(2 * EVERY).await;
        assert_eq!(server.store().revision(), before, "objects without differences are not written");
        keeper.abort();
    }

    fn server() -> ApiServer {
        let now = "2026-01-01T00:00:00Z".parse().expect("a timestamp");
        let store = Arc::new(berth_store::MemoryStore::new());
        ApiServer::new(crate::Config::new(store, Arc::new(move || now)))
    }

    /// Reconciles for a while, as a server that listens at `address`.
    async fn listen(server: &ApiServer, address: &str) {
        let keeper = tokio::spawn(keep(server.clone(), address.parse().expect("an address")));
        tokio::time::sleep(2 * EVERY).await;
        keeper.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_field_is_restored() {
        let server = server();
        listen(&server, "192.0.2.7:6443").await;
        for (collection, field) in [(ENDPOINTS, "subsets"), (SLICES, "ports")] {
            let path = format!("{collection}/{NAME}");
            let (_, mut found) = send(&server, Method::GET, &path, &Value::Null).await.expect("a response");
            let wanted = found.as_object_mut().expect("an object").remove(field).expect("the field exists");
            let (code, left) = send(&server, Method::PUT, &path, &found).await.expect("a response");
            assert!(code.is_success() && left.get(field) != Some(&wanted), "{left}");
            listen(&server, "192.0.2.7:6443").await;
            assert_eq!(send(&server, Method::GET, &path, &Value::Null).await.expect("a response").1[field], wanted);
        }
        listen(&server, "[2001:db8::7]:6443").await;
        let path = format!("{SLICES}/{NAME}");
        let (_, slice) = send(&server, Method::GET, &path, &Value::Null).await.expect("a response");
        assert_eq!(
            (&slice["addressType"], slice["endpoints"][0]["addresses"][0].as_str()),
            (&json!("IPv6"), Some("2001:db8::7"))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn at_a_loopback_address_only_endpoints_of_other_clients_are_kept() {
        let server = server();
        listen(&server, "192.0.2.7:6443").await;
        let path = format!("{ENDPOINTS}/{NAME}");
        let touched = format!("{path}?fieldManager=other");
        let (_, mut found) = send(&server, Method::GET, &path, &Value::Null).await.expect("a response");
        found["metadata"]["labels"]["a"] = json!("b");
        let request = Request::put(touched).header(http::header::CONTENT_TYPE, "application/json");
        let request = request.body(Full::new(Bytes::from(found.to_string()))).expect("a request");
        assert!(server.handle(request, UserInfo::master("other")).await.status().is_success());
        listen(&server, "127.0.0.1:6443").await;
        let get = async |path: &str| send(&server, Method::GET, path, &Value::Null).await.expect("a response").0;
        assert_eq!(get(&path).await, StatusCode::OK);
        assert_eq!(get(&format!("{SLICES}/{NAME}")).await, StatusCode::NOT_FOUND);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_ip_of_another_service_is_reported() {
        let server = server();
        let services = "/api/v1/namespaces/default/services";
        let other = json!({"metadata": {"name": "other"}, "spec": {"clusterIP": CLUSTER_IP, "ports": [{"port": 1}]}});
        assert!(send(&server, Method::POST, services, &other).await.expect("a response").0.is_success());
        let (collection, service, fields) = wanted("127.0.0.1:1".parse().expect("an address")).remove(0);
        let why = reconcile(&server, collection, &service, fields).await.expect_err("the address is taken");
        assert!(why.contains("provided IP is already allocated"), "{why}");
    }
}
