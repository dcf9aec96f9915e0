//! Why a job waits, as `berth explain` tells it.

use berth_controllers::explain::{GROUP, VERSION};
use kube::Client;
use serde_json::Value;

use crate::resource::ResourceError;

/// The explanation of a Workload, or of the Workload of a job of this name, if there is one.
pub async fn fetch(client: &Client, namespace: Option<&str>, name: &str) -> Result<Option<Value>, ResourceError> {
    let namespace = namespace.unwrap_or("default");
    let path = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/workloads/{name}/explanation");
    let what = || format!("explanation of {name} in {namespace}");
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|error| ResourceError::api(what(), kube::Error::HttpError(error)))?;
    match client.request(request).await {
        Ok(explanation) => Ok(Some(explanation)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(ResourceError::api(what(), error)),
    }
}

/// Its page of text.
pub fn text(explanation: &Value) -> &str {
    explanation["text"].as_str().unwrap_or_default()
}
