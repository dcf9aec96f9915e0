//! The pages as a browser requests them: over an embedded cluster, and over an API with any
//! content.

mod cluster;
mod hostile;
mod readers;

use berth_dashboard::{Dashboard, Hosts, Session};
use berth_foresight::policy::Prices;
use berth_runtime::Clock;
use http::{Method, Request, Response, StatusCode};
use kube::Client;

/// The pages of a cluster.
pub fn dashboard(client: Client, clock: Clock) -> Dashboard {
    Dashboard { client, hosts: Hosts::default(), clock, session: Session::default(), prices: |_, _| Prices::default() }
}

/// Sends a request as a browser on this machine does.
pub async fn ask(dashboard: &Dashboard, method: Method, path: &str, host: &str) -> Response<String> {
    let request = Request::builder().method(method).uri(path).header("Host", host);
    let request = request.body(String::new()).expect("a request");
    dashboard.answer(&request).await
}

/// A page that exists.
pub async fn get(dashboard: &Dashboard, path: &str) -> String {
    let response = ask(dashboard, Method::GET, path, "localhost:8080").await;
    assert_eq!(response.status(), StatusCode::OK, "{path}: {}", response.body());
    response.into_body()
}
