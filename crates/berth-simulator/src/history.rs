//! Values that a field of an object has had during a step, in order. A phase that lasts less than
//! the interval between two checks would be missed by reading the object.

use berth_apimachinery::percent;
use futures::{AsyncBufReadExt, FutureExt};
use serde::Deserialize;
use serde_json::Value;

use crate::expectation::Differences;
use crate::followed::{Read, read_now};
use crate::path::{FieldPath, plain};
use crate::resource::{Reference, ResourceError, Resources};

/// Expected values of a field since the start of the step.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HistoryExpectation {
    /// The object, by its name.
    pub of: Reference,
    /// The field.
    pub path: FieldPath,
    /// The values that it has had since the start of the step, in order, the first one included. A
    /// value that did not change counts once.
    pub is: Vec<String>,
}

const VALID: &str = "a path of names and encoded selectors is a valid request";

/// An event of a watch.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl HistoryExpectation {
    /// Compares the values with the object's changes after a revision.
    pub(crate) async fn check(&self, resources: &Resources, since: Option<&str>) -> Result<Differences, ResourceError> {
        let found = resources.by_name(&self.of.kind).await?;
        let name = self.of.name.as_deref().ok_or_else(|| ResourceError::Unnamed(Box::new(self.of.clone())))?;
        let selector = percent::component(&format!("metadata.name={name}"));
        let namespace = self.of.namespace.as_deref().unwrap_or("default");
        let url = format!("{}?fieldSelector={selector}", found.url(Some(namespace)));
        let since = since.map(|revision| format!("&resourceVersion={revision}")).unwrap_or_default();
        let before = resources.read(&format!("{url}{since}&resourceVersionMatch=Exact")).await?;
        let events = resources.events(&format!("{url}{since}&watch=true")).await?;
        let values = self.values(&before["items"][0], &events);
        match values == self.is {
            true => Ok(Vec::new()),
            false => Ok(vec![format!(
                "{}: {}: expected {}, found {}",
                self.of,
                self.path,
                self.is.join(", "),
                if values.is_empty() { "none".to_owned() } else { values.join(", ") }
            )]),
        }
    }

    /// The values of the object before the step and after each event.
    fn values(&self, before: &Value, events: &[u8]) -> Vec<String> {
        let events = events.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Event>(line).ok());
        let changed = events.filter(|event| matches!(event.kind.as_str(), "ADDED" | "MODIFIED"));
        let states = std::iter::once(before.clone()).chain(changed.map(|event| event.object));
        let mut values: Vec<String> = Vec::new();
        for state in states {
            let value = self.path.find(&state).first().map(|value| plain(value));
            values.extend(value.filter(|value| !value.is_empty() && values.last() != Some(value)));
        }
        values
    }
}

impl Resources {
    async fn read(&self, path: &str) -> Result<Value, ResourceError> {
        let request = http::Request::get(path).body(Vec::new()).expect(VALID);
        self.client().request(request).await.map_err(|error| ResourceError::api(path, error))
    }

    /// The events of a watch that are available without waiting.
    async fn events(&self, path: &str) -> Result<Vec<u8>, ResourceError> {
        let request = http::Request::get(path).body(Vec::new()).expect(VALID);
        let stream = self.client().request_stream(request).await;
        let mut stream = Box::pin(stream.map_err(|error| ResourceError::api(path, error))?) as crate::followed::Lines;
        let mut events = Vec::new();
        while let Read::Bytes(length) = read_now(&mut stream) {
            let Some(Ok(bytes)) = stream.fill_buf().now_or_never() else { break };
            events.extend_from_slice(bytes);
            stream.consume_unpin(length);
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_change_counts_once() {
        let expectation: HistoryExpectation = serde_json::from_value(json!({
            "of": {"kind": "appwrappers", "namespace": "blue", "name": "w"}, "path": "status.phase", "is": []}))
        .expect("an expectation");
        let event =
            |kind: &str, phase: Value| format!("{}\n", json!({"type": kind, "object": {"status": {"phase": phase}}}));
        let events = [
            event("ADDED", json!("")),
            event("MODIFIED", json!("Running")),
            event("MODIFIED", json!("Running")),
            event("BOOKMARK", json!("Other")),
            event("MODIFIED", json!("Resetting")),
            event("MODIFIED", json!("Running")),
            "{\"type\": \"MODIF".to_owned(),
        ]
        .concat();
        let values = |before: Value| expectation.values(&before, events.as_bytes());
        assert_eq!(values(Value::Null), ["Running", "Resetting", "Running"]);
        let before = json!({"status": {"phase": "Suspended"}});
        assert_eq!(values(before), ["Suspended", "Running", "Resetting", "Running"]);
    }
}
