//! Kubernetes Events, as `kubectl describe` shows them under "Events:".
//!
//! Recording an event never waits and never fails a reconcile. Events go through bounded queues to
//! one task that writes them. Events about one object are written in order, those about several
//! objects concurrently, and namespaces take turns. A repeated event about an object increases the
//! count of one Event object, as in client-go, and repeats within a second are one write. Events
//! have lower priority than other requests: after each write the writer pauses for as long as the
//! write took, so a busy API gets fewer events. Events that cannot be written in time are dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::turns::Turns;
use crate::{Clock, write};

/// Number of events that are written concurrently, each about a different object. All lanes are in
/// one task, which uses at most one processor.
const LANES: usize = 8;
/// Maximum number of waiting events per lane. Beyond it, the newest event of the namespace with the
/// most events is dropped, because a flood of events must neither slow the work that it describes
/// nor displace the events of other tenants.
const PENDING_MAX: usize = 4096;
/// Maximum number of series per lane that are remembered for counting repeats. Beyond it, the
/// lowest keys are dropped, and a repeat then creates a new Event.
const SERIES_MAX: usize = 1024;
/// Delay between a repeat and the write of its count, which includes all repeats until then.
const REPEATS_DELAY: Duration = Duration::from_secs(1);
/// Events with different messages are one series if they are no further apart from the first.
const SERIES_PERIOD: Duration = Duration::from_secs(10);
/// Maximum length of an event message in Kubernetes, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

/// The event types of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventType {
    /// An expected event.
    Normal,
    /// An event that may need attention.
    Warning,
}

/// An event that a plan asks its controller to record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedEvent {
    /// Normal or Warning.
    pub event_type: EventType,
    /// Reason, in CamelCase.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl PlannedEvent {
    /// An event of type Normal.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::with_warning(false, reason, message)
    }

    /// An event of type Warning.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::with_warning(true, reason, message)
    }

    /// An event of type Warning if `is_warning`, else of type Normal.
    pub fn with_warning(is_warning: bool, reason: impl Into<String>, message: impl Into<String>) -> Self {
        let event_type = if is_warning { EventType::Warning } else { EventType::Normal };
        Self { event_type, reason: reason.into(), message: message.into() }
    }

    /// True for type Warning.
    pub fn is_warning(&self) -> bool {
        self.event_type == EventType::Warning
    }

    /// Records the event about an object.
    pub fn record<K: Resource<DynamicType = ()>>(&self, recorder: &Recorder, object: &K) {
        recorder.event(object, self.event_type, &self.reason, &self.message);
    }
}

/// Records events for one component; cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    component: String,
    clock: Clock,
    /// Empty in a recorder that drops every event.
    lanes: Arc<[Sender]>,
    /// Number of recorded events.
    recorded: Arc<AtomicU64>,
    /// Number of dropped events.
    dropped: Arc<AtomicU64>,
}

/// The sending side of a lane: the waiting entries, and a channel with one token per entry.
struct Sender {
    waiting: Waiting,
    tokens: mpsc::Sender<()>,
}

type Waiting = Arc<Mutex<Turns<Entry>>>;

impl Sender {
    /// Adds an entry. Returns true if an entry was dropped because the lane is full.
    fn send(&self, entry: Entry) -> bool {
        let namespace = entry.regarding.namespace.clone().unwrap_or_default();
        let mut waiting = self.waiting.lock();
        if waiting.len() < PENDING_MAX {
            waiting.push(&namespace, entry);
            // A closed channel means that the process stops. The channel has capacity for one token
            // per entry.
            let _ = self.tokens.try_send(());
            return false;
        }
        // The new entry uses the token of the dropped one.
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
    /// See [`Recorder::event_in_series`].
    in_series: bool,
    at: Timestamp,
    /// Distinguishes events of the same instant in their names.
    number: u64,
}

impl Recorder {
    /// Returns a recorder, and the task that writes its events. The task ends when all recorders
    /// are dropped.
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

    /// Returns a recorder that drops every event: for a cluster whose events no client reads.
    pub(crate) fn silent(clock: Clock) -> Self {
        let (recorded, dropped) = Default::default();
        Self { component: "berth".into(), clock, lanes: Arc::default(), recorded, dropped }
    }

    /// Returns a recorder for another component (`source.component`, shown by `kubectl get events
    /// -o wide`).
    pub fn for_component(&self, component: impl Into<String>) -> Self {
        Self { component: component.into(), ..self.clone() }
    }

    /// Records an event about an object. Messages are truncated to 1,024 bytes, and then end in `
    /// ...`.
    pub fn event<K>(&self, object: &K, event_type: EventType, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.event_about(object.object_ref(&()), event_type, reason, message);
    }

    /// Records an event about a referenced object.
    pub fn event_about(&self, regarding: ObjectReference, event_type: EventType, reason: &str, message: &str) {
        self.enqueue(regarding, event_type, reason, message, false);
    }

    /// Records an event that counts as a repeat of the last one of its reason about the object if
    /// that was just recorded, regardless of its message. A decision that has many events about one
    /// object is then one Event, with the message of the first.
    pub fn event_in_series<K>(&self, object: &K, event_type: EventType, reason: &str, message: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.enqueue(object.object_ref(&()), event_type, reason, message, true);
    }

    fn enqueue(&self, regarding: ObjectReference, event_type: EventType, reason: &str, message: &str, in_series: bool) {
        if self.lanes.is_empty() {
            return;
        }
        let entry = Entry {
            component: self.component.clone(),
            regarding,
            event_type,
            reason: reason.to_owned(),
            message: truncate(message),
            in_series,
            at: self.clock.now(),
            number: self.recorded.fetch_add(1, Ordering::Relaxed) + 1,
        };
        // Events about one object use one lane, so they stay in order.
        let mut hasher = DefaultHasher::new();
        (&entry.regarding.uid, &entry.regarding.namespace, &entry.regarding.name).hash(&mut hasher);
        let lane = (hasher.finish() % LANES as u64) as usize;
        if self.lanes[lane].send(entry) {
            // Log only powers of two: a flood of events must not become a flood of warnings.
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

/// The key of a series of events: component, UID, name, reason and message. The message is empty
/// if the series has events with different messages.
type Key = (String, String, String, String, String);

/// Writes the events of one lane; ends when all recorders are dropped.
async fn post(client: Client, (waiting, mut tokens): (Waiting, mpsc::Receiver<()>)) {
    let mut lane = Lane { client, series: BTreeMap::new(), due: BTreeSet::new() };
    loop {
        let due = lane.due.first().map(|(at, _)| *at);
        let entry = tokio::select! {
            biased;
            token = tokens.recv() => match token {
                Some(()) => waiting.lock().next(),
                None => return lane.write_repeats(None).await,
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => None,
        };
        let started = Instant::now();
        if let Some(entry) = entry {
            lane.write(entry).await;
        }
        lane.write_repeats(Some(started)).await;
        // In virtual time a write takes no time, so this does not wait.
        tokio::time::sleep(started.elapsed()).await;
    }
}

struct Lane {
    client: Client,
    series: BTreeMap<Key, Series>,
    /// Series with repeats that are not written, and when to write them.
    due: BTreeSet<(Instant, Key)>,
}

/// A series of events.
struct Series {
    /// Its Event object, as last written.
    event: Event,
    /// Number of events, including those that are not written yet.
    count: i32,
    first: Timestamp,
    last: Timestamp,
    is_due: bool,
}

impl Lane {
    async fn write(&mut self, entry: Entry) {
        let key = (
            entry.component.clone(),
            entry.regarding.uid.clone().unwrap_or_default(),
            entry.regarding.name.clone().unwrap_or_default(),
            entry.reason.clone(),
            if entry.in_series { String::new() } else { entry.message.clone() },
        );
        if let Some(series) = self.series.get_mut(&key) {
            let apart = Duration::try_from(entry.at.duration_since(series.first)).unwrap_or_default();
            if !entry.in_series || apart <= SERIES_PERIOD {
                series.count = series.count.saturating_add(1);
                series.last = entry.at;
                if !std::mem::replace(&mut series.is_due, true) {
                    self.due.insert((Instant::now() + REPEATS_DELAY, key));
                }
                return;
            }
            self.write_repeats_of(&key).await;
        }
        self.create(key, new_event(entry)).await;
    }

    /// Writes the repeats that are due at this instant, or all of them.
    async fn write_repeats(&mut self, due_at: Option<Instant>) {
        while self.due.first().is_some_and(|(at, _)| due_at.is_none_or(|now| *at <= now)) {
            if let Some((_, key)) = self.due.pop_first() {
                self.write_repeats_of(&key).await;
            }
        }
    }

    /// Writes the count of a series, if it has repeats that are not written.
    async fn write_repeats_of(&mut self, key: &Key) {
        let Some(series) = self.series.get_mut(key).filter(|series| series.is_due) else { return };
        series.is_due = false;
        let (count, last) = (series.count, series.last);
        let patch = json!({
            "count": count,
            "lastTimestamp": Time(last),
            "series": {"count": count, "lastObservedTime": MicroTime(last)},
        });
        let metadata = &series.event.metadata;
        let api: Api<Event> = Api::namespaced(self.client.clone(), metadata.namespace.as_deref().unwrap_or_default());
        let name = metadata.name.clone().unwrap_or_default();
        match api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => series.event.count = Some(count),
            // The Event has expired or was deleted: create a new one.
            Err(error) if crate::is_not_found(&error) => {
                let mut event = series.event.clone();
                event.count = Some(count.saturating_sub(event.count.unwrap_or_default()).max(1));
                let object = event.involved_object.name.as_deref().unwrap_or_default();
                event.metadata.name = Some(format!("{object}.{:x}r{count:x}", last.as_microsecond()));
                (event.first_timestamp, event.last_timestamp) = (Some(Time(last)), Some(Time(last)));
                self.create(key.clone(), event).await;
            }
            Err(error) => tracing::debug!(error = crate::brief(&error), name, "cannot update the count of an event"),
        }
    }

    async fn create(&mut self, key: Key, event: Event) {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        match write::create_unread(&api, &PostParams::default(), &event).await {
            Ok(()) => {
                let at = event.first_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0);
                let count = event.count.unwrap_or(1);
                self.series.insert(key, Series { event, count, first: at, last: at, is_due: false });
                if self.series.len() > SERIES_MAX {
                    self.series.pop_first();
                }
            }
            // The namespace is being deleted, or the API is not available. Events are not retried.
            Err(error) => tracing::debug!(error = crate::brief(&error), "cannot write an event"),
        }
    }
}

/// The first Event of a series.
fn new_event(entry: Entry) -> Event {
    let object_name = entry.regarding.name.clone().unwrap_or_default();
    let event_type = match entry.event_type {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    Event {
        metadata: kube::api::ObjectMeta {
            name: Some(format!("{object_name}.{:x}{:06x}", entry.at.as_microsecond(), entry.number)),
            // Events about cluster-scoped objects are in namespace `default`.
            namespace: Some(entry.regarding.namespace.clone().unwrap_or_else(|| "default".into())),
            ..Default::default()
        },
        involved_object: entry.regarding,
        type_: Some(event_type.into()),
        reason: Some(entry.reason),
        message: Some(entry.message),
        source: Some(EventSource { component: Some(entry.component.clone()), host: None }),
        reporting_component: Some(entry.component),
        first_timestamp: Some(Time(entry.at)),
        last_timestamp: Some(Time(entry.at)),
        count: Some(1),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// Returns a client whose requests take a second each, and the messages of these requests with
    /// their response times.
    fn slow_client() -> (Client, Arc<Mutex<Vec<(String, Duration)>>>) {
        let responses: Arc<Mutex<Vec<(String, Duration)>>> = Arc::default();
        let (recorded, start) = (responses.clone(), Instant::now());
        let service = tower::service_fn(move |request: Request<Body>| {
            let recorded = recorded.clone();
            async move {
                let body = request.into_body().collect_bytes().await.unwrap_or_default();
                tokio::time::sleep(Duration::from_secs(1)).await;
                let event: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                let message =
                    event["message"].as_str().map_or_else(|| format!("counted {}", event["count"]), str::to_owned);
                recorded.lock().push((message, start.elapsed()));
                Ok::<_, std::convert::Infallible>(Response::new(Body::from(b"{\"metadata\":{}}".to_vec())))
            }
        });
        (Client::new(service, "default"), responses)
    }

    fn about(uid: &str) -> ObjectReference {
        ObjectReference { uid: Some(uid.into()), name: Some(uid.into()), ..Default::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn events_about_one_object_stay_in_order_and_objects_do_not_wait_for_each_other() {
        let (client, responses) = slow_client();
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let (recorder, post) = Recorder::new(client, clock);
        for message in ["a1", "a2", "a1"] {
            recorder.event_about(about("a"), EventType::Normal, "Tested", message);
        }
        for number in 0..100 {
            recorder.event_about(about(&format!("b{number}")), EventType::Normal, "Tested", "b");
        }
        drop(recorder);
        post.await;
        let responses = responses.lock();
        let of_a: Vec<&str> = responses.iter().map(|it| it.0.as_str()).filter(|message| *message != "b").collect();
        assert_eq!(of_a, ["a1", "a2", "counted 2"]);
        let last = responses.iter().map(|it| it.1).max().unwrap_or_default();
        assert!(last < Duration::from_secs(100), "{last:?}, but one lane needs 205 s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_events_of_a_decision_about_one_object_are_one_series() {
        let (client, responses) = slow_client();
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let (recorder, post) = Recorder::new(client, clock);
        let mut preemptor = k8s_openapi::api::core::v1::Pod::default();
        preemptor.metadata.uid = Some("preemptor".into());
        let post = tokio::spawn(post);
        let preempted = |name: &str| recorder.event_in_series(&preemptor, EventType::Normal, "Preempted", name);
        for name in ["a", "b", "c"] {
            preempted(name);
        }
        tokio::time::sleep(SERIES_PERIOD * 2).await;
        // Another decision, much later.
        preempted("d");
        drop(recorder);
        post.await.unwrap();
        let messages: Vec<String> = responses.lock().iter().map(|it| it.0.clone()).collect();
        assert_eq!(messages, ["a", "counted 3", "d"]);
    }

    #[test]
    fn a_silent_recorder_records_nothing() {
        let silent = Recorder::silent(Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0));
        silent.for_component("kubelet").event_about(about("a"), EventType::Warning, "Tested", "a");
        assert_eq!(silent.recorded.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn events_beyond_the_limit_are_dropped_without_waiting() {
        let (client, responses) = slow_client();
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let (recorder, post) = Recorder::new(client, clock);
        for number in 0..PENDING_MAX + 10 {
            recorder.event_about(about("a"), EventType::Normal, "Tested", &number.to_string());
        }
        assert_eq!(recorder.dropped.load(Ordering::Relaxed), 10);
        drop(recorder);
        post.await;
        assert_eq!(responses.lock().len(), PENDING_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_in_one_namespace_drops_no_event_of_another() {
        let (client, responses) = slow_client();
        let clock = Clock::scaled("2026-01-01T00:00:00Z".parse().unwrap(), 1.0);
        let (recorder, post) = Recorder::new(client, clock);
        // More events than all lanes can hold.
        for number in 0..PENDING_MAX * LANES * 2 {
            let flood = ObjectReference { namespace: Some("blue".into()), ..about(&number.to_string()) };
            recorder.event_about(flood, EventType::Normal, "Tested", "flood");
        }
        let green = ObjectReference { namespace: Some("green".into()), ..about("train") };
        recorder.event_about(green, EventType::Normal, "Tested", "green");
        tokio::select! { () = post => {}, () = tokio::time::sleep(Duration::from_secs(10)) => {} }
        assert!(
            responses.lock().iter().any(|(message, _)| message == "green"),
            "the event of namespace green was not written in time"
        );
    }
}
