//! The Service by which pods reach the API server: `kubernetes` in `default`, with the address this server listens at.
//! Made when it is missing and put right when somebody changes it, as kube-apiserver does.
//!
//! Endpoints cannot be loopback addresses. A server that listens at one has the Service alone: nobody on another machine
//! could reach it.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::{ApiServer, UserInfo};

/// Time between two looks, as upstream.
const EVERY: Duration = Duration::from_secs(10);
const NAME: &str = "kubernetes";
/// The first address of the range services have theirs from.
const CLUSTER_IP: &str = "10.96.0.1";
const PORT_NAME: &str = "https";

/// Keeps it until the future is dropped.
pub(crate) async fn keep(server: ApiServer, address: SocketAddr) {
    loop {
        for (collection, wanted, fields) in wanted(address) {
            if let Err(why) = reconcile(&server, collection, &wanted, fields).await {
                tracing::debug!(%collection, %why, "the API server's own Service");
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Paths of collections, the objects they should have, and what of those is put right.
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
    wanted.push(("/api/v1/namespaces/default/endpoints", endpoints, &["/subsets"]));
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    wanted.push((slices, slice, &["/endpoints", "/ports"]));
    wanted
}

/// Makes the object if it is missing, and sets `fields` where they differ. What others wrote meanwhile is looked at next
/// time.
async fn reconcile(server: &ApiServer, collection: &str, wanted: &Value, fields: &[&str]) -> Result<(), String> {
    let path = format!("{collection}/{NAME}");
    let (code, mut found) = send(server, Method::GET, &path, &Value::Null).await?;
    let (code, answer) = if code == StatusCode::NOT_FOUND {
        send(server, Method::POST, collection, wanted).await?
    } else {
        let mut differs = false;
        for field in fields {
            if let (Some(has), Some(wanted)) = (found.pointer_mut(field), wanted.pointer(field))
                && has != wanted
            {
                *has = wanted.clone();
                differs = true;
            }
        }
        if !differs {
            return Ok(());
        }
        send(server, Method::PUT, &path, &found).await?
    };
    if code.is_success() { Ok(()) } else { Err(answer["message"].as_str().unwrap_or_default().to_owned()) }
}

async fn send(server: &ApiServer, method: Method, path: &str, body: &Value) -> Result<(StatusCode, Value), String> {
    let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let request = Request::builder()
        .method(method)
        .uri(format!("{path}?fieldManager=kube-apiserver"))
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
    async fn it_comes_back_and_is_put_right() {
        let now = "2026-01-01T00:00:00Z".parse().expect("a timestamp");
        let store = Arc::new(berth_store::MemoryStore::new());
        let server = ApiServer::new(crate::Config::new(store, Arc::new(move || now)));
        let keeper = tokio::spawn(keep(server.clone(), "192.0.2.7:6443".parse().expect("an address")));
        tokio::time::sleep(Duration::from_millis(1)).await;
        let path = "/api/v1/namespaces/default/services/kubernetes";
        let get = |path: &'static str| send(&server, Method::GET, path, &Value::Null);
        let (_, mut service) = get(path).await.expect("an answer");
        assert_eq!(service["spec"]["clusterIPs"], json!([CLUSTER_IP]));
        assert_eq!(service["spec"]["ports"][0]["targetPort"], 6443);
        let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
        let (_, slice) = get(slices).await.expect("an answer");
        assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));

        service["spec"]["ports"] = json!([{"name": "other", "port": 1, "protocol": "TCP", "targetPort": 2}]);
        let (code, _) = send(&server, Method::PUT, path, &service).await.expect("an answer");
        assert_eq!(code, StatusCode::OK);
        send(&server, Method::DELETE, slices, &Value::Null).await.expect("an answer");
        tokio::time::sleep(EVERY).await;
        assert_eq!(get(path).await.expect("an answer").1["spec"]["ports"][0]["port"], 443);
        assert_eq!(get(slices).await.expect("an answer").0, StatusCode::OK);
        let before = server.store().revision();
        tokio::time::sleep(2 * EVERY).await;
        assert_eq!(server.store().revision(), before, "what is right is left alone");
        keeper.abort();
    }
}
