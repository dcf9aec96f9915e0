//! Conversion by the webhook of a definition (`spec.conversion.strategy: Webhook`).
//!
//! Reads are synchronous in this server, because all other data is in memory; only a conversion
//! webhook is remote. So a call runs on a separate thread while its caller waits, and tokio moves
//! other tasks to another thread. Results are cached, so that lists and watches of the same objects
//! call the webhook once. A list converts up to a hundred objects in one call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_apimachinery::meta;
use berth_apimachinery::packed;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::{Builder, Handle, RuntimeFlavor};

use super::Converter;
use crate::Objects;
use crate::webhook::client::Endpoint;
use berth_kinds::ReviewVersion;
use berth_kinds::crd::conversion;

/// Maximum duration of a call, as upstream.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of objects in one review: a review of large objects stays below the size that
/// webhooks accept.
const ASKED_AT_ONCE: usize = 100;
/// Maximum number of cached objects.
const REMEMBERED_MAX: usize = 4096;

/// Converts objects by calling a webhook.
pub(crate) struct WebhookConverter {
    endpoint: Result<Endpoint, String>,
    version: Option<ReviewVersion>,
    objects: Objects,
    asked: AtomicU64,
    remembered: Mutex<Remembered>,
}

/// Cached results by uid, resourceVersion and requested version; the oldest first.
#[derive(Default)]
struct Remembered {
    objects: BTreeMap<Key, (Value, Value)>,
    order: VecDeque<Key>,
}

type Key = (String, String, String);

impl Remembered {
    /// The result for exactly this object: an object that is being written may have the same key as
    /// the stored one.
    fn get(&self, key: &Key, object: &Value) -> Option<Value> {
        self.objects.get(key).filter(|(from, _)| from == object).map(|(_, to)| to.clone())
    }

    fn put(&mut self, key: Key, object: Value, converted: Value) {
        if self.objects.insert(key.clone(), (object, converted)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.objects.remove(&oldest);
        }
    }
}

impl WebhookConverter {
    /// The converter for a definition's `spec.conversion`. Each call reports an invalid
    /// configuration.
    pub(crate) fn new(conversion: &Value, objects: Objects) -> WebhookConverter {
        let webhook = &conversion["webhook"];
        let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        WebhookConverter {
            endpoint: Endpoint::new(&webhook["clientConfig"]),
            version: ReviewVersion::pick(versions.filter_map(Value::as_str)),
            objects,
            asked: AtomicU64::new(0),
            remembered: Mutex::default(),
        }
    }

    /// Converts objects in one call of the webhook.
    fn ask(&self, objects: &[&Value], to_api_version: &str) -> Result<Vec<Value>, String> {
        let endpoint = self.endpoint.as_ref().map_err(Clone::clone)?;
        let version = self.version.ok_or("it accepts no version of ConversionReview that this server supports")?;
        let uid = format!("conversion-{}", self.asked.fetch_add(1, Ordering::Relaxed));
        let review = conversion::review(version, &uid, to_api_version, objects);
        let answer = wait(endpoint.post(&self.objects, "?timeout=30s", &review, TIMEOUT))??;
        let converted = conversion::converted_objects(version, &uid, &answer)?;
        if converted.len() != objects.len() {
            return Err(format!("webhook returned {} objects, expected {}", converted.len(), objects.len()));
        }
        let same = |what: &str, got: &str, wanted: &str| {
            if got == wanted {
                return Ok(());
            }
            Err(format!("webhook returned invalid converted object: {what} is \"{got}\", expected \"{wanted}\""))
        };
        for (converted, object) in converted.iter().zip(objects) {
            same("apiVersion", meta::api_version(converted), to_api_version)?;
            same("kind", meta::kind(converted), meta::kind(object))?;
            same("metadata.name", meta::name(converted), meta::name(object))?;
            same("metadata.namespace", meta::namespace(converted), meta::namespace(object))?;
            same("metadata.uid", meta::uid(converted), meta::uid(object))?;
        }
        Ok(converted)
    }
}

impl Converter for WebhookConverter {
    fn convert(&self, object: Value, to_api_version: &str) -> Result<Value, String> {
        let mut converted = self.convert_all(vec![object], to_api_version)?;
        converted.pop().ok_or_else(|| "webhook returned 0 objects, expected 1".to_owned())
    }

    fn convert_all(&self, mut objects: Vec<Value>, to_api_version: &str) -> Result<Vec<Value>, String> {
        objects.iter_mut().for_each(packed::expand);
        let text = str::to_owned;
        let key =
            |object: &Value| (text(meta::uid(object)), text(meta::resource_version(object)), text(to_api_version));
        let remembered = || self.remembered.lock();
        let mut converted: Vec<Option<Value>> = {
            let known = remembered();
            objects.iter().map(|object| known.get(&key(object), object)).collect()
        };
        let unknown: Vec<usize> = (0..objects.len()).filter(|index| converted[*index].is_none()).collect();
        for batch in unknown.chunks(ASKED_AT_ONCE) {
            let asked: Vec<&Value> = batch.iter().map(|index| &objects[*index]).collect();
            let answers = self.ask(&asked, to_api_version)?;
            let mut known = remembered();
            for (index, answer) in batch.iter().zip(answers) {
                let object = std::mem::take(&mut objects[*index]);
                known.put(key(&object), object, answer.clone());
                converted[*index] = Some(answer);
            }
        }
        Ok(converted.into_iter().flatten().collect())
    }

    fn calls_webhook(&self) -> bool {
        true
    }
}

/// Runs a future to completion on a separate thread while this one waits.
fn wait<T: Send>(future: impl Future<Output = T> + Send) -> Result<T, String> {
    let run = || {
        let work = move || {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
            Ok(runtime.block_on(future))
        };
        std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err("the call panicked".to_owned()))
    };
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(run),
        _ => run(),
    }
}
