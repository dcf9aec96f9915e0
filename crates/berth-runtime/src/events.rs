//! Kubernetes Events: what a person sees under "Events:" in `kubectl describe`.
//!
//! Recording never waits and never fails a reconcile: events go through a bounded channel to one task that writes
//! them in order. The same event about the same object is counted up in one Event object, as client-go does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;

use crate::{Clock, write};

/// Events waiting to be written, at most; beyond it new ones are dropped, because a flood of events must never slow
/// the work they describe.
const PENDING_MAX: usize = 65_536;
/// Series remembered for counting repeats; beyond it the oldest keys are dropped and start a new Event.
const SERIES_MAX: usize = 4096;
/// Longest event message Kubernetes accepts, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Event types Kubernetes knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Something expected happened.
    Normal,
    /// Something a person may want to look at happened.
    Warning,
}

/// Writes events in the name of one component; cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    component: String,
    clock: Clock,
    sender: mpsc::Sender<Entry>,
    /// Events dropped so far.
    dropped: Arc<AtomicU64>,
}

struct Entry {
    component: String,
    regarding: ObjectReference,
    event_type: EventType,
    reason: String,
    message: String,
    at: Timestamp,
}

impl Recorder {
    /// The recorder and the task that writes what it records; the task ends when all recorders are gone.
    pub(crate) fn new(client: Client, clock: Clock) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, receiver) = mpsc::channel(PENDING_MAX);
        (Self { component: "berth".into(), clock, sender, dropped: Arc::default() }, post(client, receiver))
    }

    /// The same recorder speaking for another component (`source.component`, shown by `kubectl get events -o wide`).
    pub fn for_component(&self, component: impl Into<String>) -> Self {
        Self { component: component.into(), ..self.clone() }
    }

    /// Records an event about an object. Messages are cut to 1,024 bytes, ending in ` ...`.
    pub fn event<K>(&self, object: &K, event_type: EventType, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.event_about(object.object_ref(&()), event_type, reason, message);
    }

    /// Records an event about an object known by reference.
    pub fn event_about(&self, regarding: ObjectReference, event_type: EventType, reason: &str, message: &str) {
        let entry = Entry {
            component: self.component.clone(),
            regarding,
            event_type,
            reason: reason.to_owned(),
            message: truncate(message),
            at: self.clock.now(),
        };
        if self.sender.try_send(entry).is_err() {
            // A flood would otherwise be one of warnings.
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!(reason, dropped, "events dropped: {PENDING_MAX} are waiting to be written");
            }
        }
    }
}

fn truncate(message: &str) -> String {
    const TAIL: &str = " ...";
    if message.len() <= MESSAGE_BYTES_MAX {
        return message.to_owned();
    }
    let mut end = MESSAGE_BYTES_MAX - TAIL.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{TAIL}", &message[..end])
}

/// What makes two events the same one happening again.
type Series = (String, String, String, String, String);

async fn post(client: Client, mut receiver: mpsc::Receiver<Entry>) {
    let mut series: BTreeMap<Series, (String, i32)> = BTreeMap::new();
    let mut sequence: u64 = 0;
    while let Some(entry) = receiver.recv().await {
        // Events about cluster-scoped objects live in `default`.
        let namespace = entry.regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let key = (
            entry.component.clone(),
            entry.regarding.uid.clone().unwrap_or_default(),
            entry.regarding.name.clone().unwrap_or_default(),
            entry.reason.clone(),
            entry.message.clone(),
        );
        if let Some((name, count)) = series.get_mut(&key) {
            *count = count.saturating_add(1);
            let patch = json!({"count": count, "lastTimestamp": Time(entry.at)});
            match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => continue,
                // The Event expired or was deleted: start a new one below.
                Err(error) if crate::is_not_found(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, reason = entry.reason, "event not counted");
                    continue;
                }
            }
        }
        sequence += 1;
        let object_name = entry.regarding.name.clone().unwrap_or_default();
        let name = format!("{object_name}.{:x}{sequence:06x}", entry.at.as_microsecond());
        let event = Event {
            metadata: kube::api::ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace),
                ..Default::default()
            },
            involved_object: entry.regarding,
            type_: Some(match entry.event_type {
                EventType::Normal => "Normal".into(),
                EventType::Warning => "Warning".into(),
            }),
            reason: Some(entry.reason),
            message: Some(entry.message),
            source: Some(EventSource { component: Some(entry.component.clone()), host: None }),
            reporting_component: Some(entry.component),
            first_timestamp: Some(Time(entry.at)),
            last_timestamp: Some(Time(entry.at)),
            count: Some(1),
            ..Default::default()
        };
        match write::create_unread(&api, &PostParams::default(), &event).await {
            Ok(()) => {
                series.insert(key, (name, 1));
                if series.len() > SERIES_MAX {
                    series.pop_first();
                }
            }
            // The namespace is going away, or the API is: an event is not worth a retry.
            Err(error) => tracing::debug!(%error, "event not written"),
        }
    }
}
