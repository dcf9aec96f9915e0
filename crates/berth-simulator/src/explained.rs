//! Fetches explanations of workloads, as `berth explain` does.

use berth_controllers::explain::ask;
use kube::Client;
use serde_json::Value;

use crate::resource::ResourceError;

/// The explanation of the Workload with this name, or of the Workload of the job with this name.
/// `None` if neither exists.
pub async fn fetch(client: &Client, namespace: Option<&str>, name: &str) -> Result<Option<Value>, ResourceError> {
    let namespace = namespace.unwrap_or("default");
    match ask::api_server(client, namespace, name).await {
        Ok(explanation) => Ok(Some(explanation)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(ResourceError::api(format!("explanation of {name} in {namespace}"), error)),
    }
}

/// The explanation as text, as `berth explain` prints it.
pub fn text(explanation: &Value) -> &str {
    explanation["text"].as_str().unwrap_or_default()
}
