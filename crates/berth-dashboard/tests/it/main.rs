//! The pages, asked for as a browser does: against an embedded cluster, and against an API that says whatever it likes.

mod cluster;
mod hostile;

use berth_dashboard::{Dashboard, Hosts};
use berth_runtime::Clock;
use http::{Method, Request, Response, StatusCode};
use kube::Client;

/// The pages of a cluster.
pub fn dashboard(client: Client, clock: Clock) -> Dashboard {
    Dashboard { client, hosts: Hosts::default(), clock }
}

/// Asks as a browser on this machine does.
pub async fn ask(dashboard: &Dashboard, method: Method, path: &str, host: &str) -> Response<String> {
    let request = Request::builder().method(method).uri(path).header("Host", host).body(()).expect("a request");
    dashboard.answer(&request).await
}

/// A page that is there.
pub async fn get(dashboard: &Dashboard, path: &str) -> String {
    let response = ask(dashboard, Method::GET, path, "localhost:8080").await;
    assert_eq!(response.status(), StatusCode::OK, "{path}: {}", response.body());
    response.into_body()
}
