//! Kubernetes Events: what a person sees under "Events:" in `kubectl describe`.
//!
//! Recording never waits and never fails a reconcile: events go through bounded rows to one task that writes them, in
//! order for each object, a few objects at once, and of each namespace in turn. The same event about the same object is counted up in one Event object, as
//! client-go does. Telling comes after doing: the writer rests as long as each write took, so that the busier the API is
//! the less of it events take, and what cannot be written in time is dropped.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::turns::Turns;
use crate::{Clock, write};

/// Events being written at once, each about another object. All of them are one task's, which no more than one processor
/// works on.
const LANES: usize = 8;
/// Events of a lane waiting to be written, at most; beyond it the newest of the namespace with the most are dropped, because a
/// flood of events must never slow the work they describe, nor hide what is said to other tenants.
const PENDING_MAX: usize = 4096;
/// Series of a lane remembered for counting repeats; beyond it the oldest keys are dropped and start a new Event.
const SERIES_MAX: usize = 1024;
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
    lanes: Arc<[Sender]>,
    /// Events recorded so far.
    recorded: Arc<AtomicU64>,
    /// Events dropped so far.
    dropped: Arc<AtomicU64>,
}

/// A lane as recorders see it: what waits, and a token for each entry that does.
struct Sender {
    waiting: Waiting,
    tokens: mpsc::Sender<()>,
}

type Waiting = Arc<Mutex<Turns<Entry>>>;

impl Sender {
    /// Adds an entry. Returns whether one had to be dropped for want of room.
    fn send(&self, entry: Entry) -> bool {
        let namespace = entry.regarding.namespace.clone().unwrap_or_default();
        let mut waiting = self.waiting.lock();
        if waiting.len() < PENDING_MAX {
            waiting.push(&namespace, entry);
            // A closed lane means that the process stops; there is a token for each entry, and room for as many.
            let _ = self.tokens.try_send(());
            return false;
        }
        // The token of the one that is dropped stands for the new one.
        if waiting.take_from_longest(&namespace).is_some() {
            waiting.push(&namespace, entry);
        }
        true
    }
}

struct Entry {
    component: String,
    regarding: ObjectReference,
    event_type: EventType,
    reason: String,
    message: String,
    at: Timestamp,
    /// Tells events of one instant apart.
    number: u64,
}

impl Recorder {
    /// The recorder and the task that writes what it records; the task ends when all recorders are gone.
    pub(crate) fn new(client: Client, clock: Clock) -> (Self, impl Future<Output = ()> + Send) {
        let lane = |_| {
            let (tokens, received) = mpsc::channel(PENDING_MAX);
            let waiting = Waiting::default();
            (Sender { waiting: waiting.clone(), tokens }, (waiting, received))
        };
        let (lanes, receivers): (Vec<_>, Vec<_>) = (0..LANES).map(lane).unzip();
        let (recorded, dropped) = Default::default();
        let recorder = Self { component: "berth".into(), clock, lanes: lanes.into(), recorded, dropped };
        let posts = receivers.into_iter().map(move |receiver| post(client.clone(), receiver));
        (recorder, async {
            join_all(posts).await;
        })
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
            number: self.recorded.fetch_add(1, Ordering::Relaxed) + 1,
        };
        // Events about one object stay in order.
        let mut hasher = DefaultHasher::new();
        (&entry.regarding.uid, &entry.regarding.namespace, &entry.regarding.name).hash(&mut hasher);
        let lane = (hasher.finish() % LANES as u64) as usize;
        if self.lanes[lane].send(entry) {
            // A flood would otherwise be one of warnings.
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!(reason, dropped, "events dropped: too many are waiting to be written");
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

/// Writes the events of one lane; ends when all recorders are gone.
async fn post(client: Client, (waiting, mut tokens): (Waiting, mpsc::Receiver<()>)) {
    let mut lane = Lane { client, series: BTreeMap::new() };
    while tokens.recv().await.is_some() {
        let Some(entry) = waiting.lock().next() else { continue };
        let started = Instant::now();
        lane.write(entry).await;
        // In virtual time writes take none.
        tokio::time::sleep(started.elapsed()).await;
    }
}

struct Lane {
    client: Client,
    /// Name and count of the Event that a series is counted in.
    series: BTreeMap<Series, (String, i32)>,
}

impl Lane {
    async fn write(&mut self, entry: Entry) {
        // Events about cluster-scoped objects live in `default`.
        let namespace = entry.regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let key = (
            entry.component.clone(),
            entry.regarding.uid.clone().unwrap_or_default(),
            entry.regarding.name.clone().unwrap_or_default(),
            entry.reason.clone(),
            entry.message.clone(),
        );
        if let Some((name, count)) = self.series.get_mut(&key) {
            *count = count.saturating_add(1);
            let patch = json!({"count": count, "lastTimestamp": Time(entry.at)});
            match api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => return,
                // The Event expired or was deleted: start a new one below.
                Err(error) if crate::is_not_found(&error) => {}
                Err(error) => {
                    tracing::debug!(error = crate::brief(&error), reason = entry.reason, "event not counted");
                    return;
                }
            }
        }
        let object_name = entry.regarding.name.clone().unwrap_or_default();
        let name = format!("{object_name}.{:x}{:06x}", entry.at.as_microsecond(), entry.number);
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
                self.series.insert(key, (name, 1));
                if self.series.len() > SERIES_MAX {
                    self.series.pop_first();
                }
            }
            // The namespace is going away, or the API is: an event is not worth a retry.
            Err(error) => tracing::debug!(error = crate::brief(&error), "event not written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// A client whose requests take a second each; what they said, when they were answered.
    fn slow() -> (Client, Arc<Mutex<Vec<(String, Duration)>>>) {
        let answered: Arc<Mutex<Vec<(String, Duration)>>> = Arc::default();
        let (heard, start) = (answered.clone(), Instant::now());
        let service = tower::service_fn(move |request: Request<Body>| {
            let heard = heard.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap_or_default();
                tokio::time::sleep(Duration::from_secs(1)).await;
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                let said = event["message"].as_str().unwrap_or("counted").to_owned();
                heard.lock().push((said, start.elapsed()));
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(b"{\"metadata\":{}}".to_vec())))
            }
        });
        (Client::new(service, "default"), answered)
    }

    fn about(uid: &str) -> ObjectReference {
        ObjectReference { uid: Some(uid.into()), name: Some(uid.into()), ..Default::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn events_about_one_object_stay_in_order_and_objects_do_not_wait_for_each_other() {
        let (client, answered) = slow();
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let (recorder, post) = Recorder::new(client, clock);
        for message in ["a1", "a2", "a1"] {
            recorder.event_about(about("a"), EventType::Normal, "Said", message);
        }
        for number in 0..100 {
            recorder.event_about(about(&format!("b{number}")), EventType::Normal, "Said", "b");
        }
        drop(recorder);
        post.await;
        let answered = answered.lock();
        let of_a: Vec<&str> = answered.iter().map(|it| it.0.as_str()).filter(|said| *said != "b").collect();
        assert_eq!(of_a, ["a1", "a2", "counted"]);
        let last = answered.iter().map(|it| it.1).max().unwrap_or_default();
        assert!(last < Duration::from_secs(100), "{last:?} for what one lane needs 205 s for");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_much_is_dropped_and_nobody_waits() {
        let (client, answered) = slow();
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let (recorder, post) = Recorder::new(client, clock);
        for number in 0..PENDING_MAX + 10 {
            recorder.event_about(about("a"), EventType::Normal, "Said", &number.to_string());
        }
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 10);
        drop(recorder);
        post.await;
        assert_eq!(answered.lock().len(), PENDING_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_one_namespace_hides_no_event_of_another() {
        let (client, answered) = slow();
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let (recorder, post) = Recorder::new(client, clock);
        // More than all lanes hold.
        for number in 0..PENDING_MAX * LANES * 2 {
            let flood = ObjectReference { namespace: Some("blue".into()), ..about(&number.to_string()) };
            recorder.event_about(flood, EventType::Normal, "Said", "flood");
        }
        let green = ObjectReference { namespace: Some("green".into()), ..about("train") };
        recorder.event_about(green, EventType::Normal, "Said", "green");
        tokio::select! { () = post => {}, () = tokio::time::sleep(Duration::from_secs(10)) => {} }
        assert!(answered.lock().iter().any(|(said, _)| said == "green"), "it waits for one turn");
    }
}
