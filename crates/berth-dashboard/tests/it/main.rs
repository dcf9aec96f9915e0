//! The pages as a browser requests them: over an embedded cluster, and over an API with any
//! content.

mod browser;
mod cluster;
mod hostile;
mod readers;

use berth_api::berth::NodePool;
use berth_api::kueue::v1beta2::ResourceFlavor;
use berth_dashboard::{Dashboard, Hosts, Prices, Session};
use berth_runtime::Clock;
use http::{Method, Request, Response, StatusCode};
use kube::Client;

/// Prices that are entered as `FLAVOR/RESOURCE=PRICE`.
fn prices(entered: &str, _: &[NodePool], _: &[ResourceFlavor]) -> Result<Prices, String> {
    let price = |text: &str| {
        let (key, price) = text.split_once('=').ok_or_else(|| format!("{text}: expected FLAVOR/RESOURCE=PRICE"))?;
        let (flavor, resource) = key.split_once('/').expect("a flavor");
        Ok(((resource.to_owned(), Some(flavor.to_owned())), price.parse().expect("a price")))
    };
    entered.split(',').filter(|text| !text.is_empty()).map(price).collect()
}

/// The pages of a cluster.
pub fn dashboard(client: Client, clock: Clock) -> Dashboard {
    Dashboard { client, hosts: Hosts::default(), clock, session: Session::default(), prices }
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
