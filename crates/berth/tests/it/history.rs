//! The history of all objects of a kind, recorded by a watch of kubectl.

use std::io::BufReader;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, pause};

/// A running watch, ended when dropped.
pub struct History {
    watch: Child,
    events: Arc<Mutex<Vec<Value>>>,
}

impl History {
    /// Follows a resource in all namespaces.
    pub fn of(cluster: &Cluster, resource: &str) -> Self {
        let mut watch = Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&cluster.kubeconfig)
            .args(["get", resource, "-A", "--watch", "--output-watch-events", "-o", "json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let stdout = BufReader::new(watch.stdout.take().expect("stdout is piped"));
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        std::thread::spawn(move || {
            for event in serde_json::Deserializer::from_reader(stdout).into_iter::<Value>().map_while(Result::ok) {
                seen.lock().expect("no thread panics while it holds the events").push(event);
            }
        });
        Self { watch, events }
    }

    /// True if the current objects have been received.
    pub fn begun(&self) -> bool {
        !self.events.lock().expect("no thread panics while it holds the events").is_empty()
    }

    /// The states of all objects so far, in the order of their commits. The flag is true if the
    /// object was deleted.
    pub fn states(&mut self) -> Vec<(Value, bool)> {
        assert!(self.watch.try_wait().expect("kubectl can be polled").is_none(), "the watch has ended");
        // Events of earlier commits may still be on their way.
        pause(Duration::from_secs(2));
        let events = self.events.lock().expect("no thread panics while it holds the events");
        events.iter().map(|event| (event["object"].clone(), event["type"] == "DELETED")).collect()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}

/// True if a condition of an object is true.
pub fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == condition && c["status"] == "True")
}

/// `NAMESPACE/NAME` of an object.
pub fn key(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}
