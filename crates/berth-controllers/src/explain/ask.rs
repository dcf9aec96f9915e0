//! Asking for an explanation over the Kubernetes API, with the asker's own rights.

use std::fmt::Write as _;

use berth_api::berth::explanation::{GROUP, VERSION};
use http::Request;
use kube::Client;
use serde_json::Value;

/// Asks the API server, which has explanations as an API group of their own: embedded, or served by the controllers behind
/// it. `name` is that of the Workload, or of its job.
///
/// # Errors
/// What the API server answered instead; see [`is_elsewhere`].
pub async fn api_server(client: &Client, namespace: &str, name: &str) -> kube::Result<Value> {
    let (namespace, name) = (segment(namespace), segment(name));
    get(client, &format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/workloads/{name}/explanation")).await
}

/// Asks the API server who holds quota of a cluster queue: the first so many, longest first, and how many there are.
///
/// # Errors
/// What the API server answered instead.
pub async fn holders(client: &Client, cluster_queue: &str, limit: usize, offset: usize) -> kube::Result<Value> {
    let name = segment(cluster_queue);
    get(client, &format!("/apis/{GROUP}/{VERSION}/clusterqueues/{name}/holders?limit={limit}&offset={offset}")).await
}

/// Asks the controllers themselves, where `client` leads to the address of their metrics on this machine.
///
/// # Errors
/// What was answered instead.
pub async fn controllers(client: &Client, namespace: &str, name: &str) -> kube::Result<Value> {
    get(client, &format!("/explain/{}/{}", segment(namespace), segment(name))).await
}

/// True if whoever was asked does not have the controllers, so that it is worth asking elsewhere.
pub fn is_elsewhere(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let names_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    (status.code == 404 && !names_object) || status.code == 503
}

async fn get(client: &Client, path: &str) -> kube::Result<Value> {
    client.request(Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?).await
}

/// A name as one segment of a path, whatever is in it.
fn segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => text.push(char::from(byte)),
            b'.' if !name.trim_matches('.').is_empty() => text.push('.'),
            other => {
                let _ = write!(text, "%{other:02X}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        assert_eq!(segment("job-a.b"), "job-a.b");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("ü"), "%C3%BC");
    }
}
