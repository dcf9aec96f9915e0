//! Collections of objects that are listed once and kept up to date by a watch. While a scenario
//! waits, it reads the same collection again and again, and most objects have not changed.
//!
//! An in-process API server puts a commit into its watches before it responds to the write. A read
//! first consumes the events that are available, without waiting. It therefore includes every write
//! that returned before.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use berth_apimachinery::managed_text;
use futures::{AsyncBufRead, AsyncBufReadExt, FutureExt};
use http::header::ACCEPT;
use kube::Client;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The body of a watch's response.
pub(crate) type Lines = Pin<Box<dyn AsyncBufRead + Send>>;

/// Result of reading a watch without waiting.
pub(crate) enum Read {
    /// Number of bytes that are available. The caller consumes them.
    Bytes(usize),
    /// No event.
    Nothing,
    /// The server has ended the watch.
    Ended,
}

/// Checks a watch without waiting. Available bytes stay in the stream's buffer.
pub(crate) fn read_now(lines: &mut Lines) -> Read {
    // Without `unconstrained`, tokio's cooperative budget could make available bytes look absent.
    match tokio::task::unconstrained(lines.fill_buf()).now_or_never() {
        None => Read::Nothing,
        Some(Ok(bytes)) if !bytes.is_empty() => Read::Bytes(bytes.len()),
        Some(_) => Read::Ended,
    }
}

/// Followed collections, by path. A label selector is part of the path, as its query.
#[derive(Default)]
pub(crate) struct Collections(BTreeMap<String, Followed>);

impl Collections {
    /// The current objects at `path`, without `managedFields`.
    pub(crate) async fn now(&mut self, client: &Client, path: &str) -> Result<Vec<Arc<Value>>, kube::Error> {
        // A watch that is not read makes the server retain history, so unused collections are
        // dropped.
        self.0.retain(|known, followed| {
            followed.other_reads = if known == path { 0 } else { followed.other_reads + 1 };
            followed.other_reads < UNREAD_MAX
        });
        self.0.entry(path.to_owned()).or_default().now(client, path).await
    }
}

/// Number of reads of other collections after which a collection is dropped.
const UNREAD_MAX: usize = 32;

/// One collection.
#[derive(Default)]
struct Followed {
    /// Number of reads of other collections since the last read of this collection.
    other_reads: usize,
    /// Objects in the API's order: by namespace and name.
    objects: BTreeMap<String, Cached>,
    watch: Option<Lines>,
    /// An incomplete line whose end has not arrived yet.
    line: Vec<u8>,
}

/// A cached object, decoded on first use.
enum Cached {
    Text(Box<str>),
    Decoded(Arc<Value>),
}

impl Cached {
    fn value(&mut self) -> Result<Arc<Value>, kube::Error> {
        let value: Arc<Value> = match self {
            Cached::Decoded(value) => return Ok(value.clone()),
            Cached::Text(text) => Arc::new(berth_runtime::decode(text).map_err(kube::Error::SerdeError)?),
        };
        *self = Cached::Decoded(value.clone());
        Ok(value)
    }
}

#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
    items: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Followed {
    async fn now(&mut self, client: &Client, path: &str) -> Result<Vec<Arc<Value>>, kube::Error> {
        while !self.catch_up()? {
            self.start(client, path).await?;
        }
        self.objects.values_mut().map(Cached::value).collect()
    }

    async fn start(&mut self, client: &Client, path: &str) -> Result<(), kube::Error> {
        let list: List = client.request(get(path)).await?;
        *self = Self::default();
        for item in list.items {
            self.put(item.get())?;
        }
        let query = if path.contains('?') { '&' } else { '?' };
        let watch = format!("{path}{query}watch=true&resourceVersion={}", list.metadata.resource_version);
        self.watch = Some(Box::pin(client.request_stream(get(&watch)).await?));
        Ok(())
    }

    /// Applies the events that are available. `false` if the watch has ended and the collection
    /// must be listed again.
    fn catch_up(&mut self) -> Result<bool, kube::Error> {
        let Some(mut watch) = self.watch.take() else { return Ok(false) };
        loop {
            match read_now(&mut watch) {
                Read::Nothing => break,
                Read::Ended => return Ok(false),
                Read::Bytes(length) => {
                    let Some(Ok(bytes)) = watch.fill_buf().now_or_never() else { return Ok(false) };
                    self.line.extend_from_slice(bytes);
                    watch.consume_unpin(length);
                }
            }
        }
        let lines = std::mem::take(&mut self.line);
        let complete = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = std::str::from_utf8(&lines[..complete])
            .map_err(|error| kube::Error::ReadEvents(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))?;
        for line in text.split('\n').filter(|line| !line.is_empty()) {
            let line: Line<'_> = serde_json::from_str(line).map_err(kube::Error::SerdeError)?;
            match line.kind {
                "ADDED" | "MODIFIED" => self.put(line.object.get())?,
                "DELETED" => {
                    self.objects.remove(&key(line.object.get())?);
                }
                "BOOKMARK" => {}
                _ => return Ok(false),
            }
        }
        self.line.extend_from_slice(&lines[complete..]);
        self.watch = Some(watch);
        Ok(true)
    }

    fn put(&mut self, text: &str) -> Result<(), kube::Error> {
        self.objects.insert(key(text)?, Cached::Text(text.into()));
        Ok(())
    }
}

#[derive(Deserialize)]
struct Identity {
    name: String,
    namespace: Option<String>,
}

/// Sort key of an object: the API lists objects by namespace and name.
fn key(text: &str) -> Result<String, kube::Error> {
    let metadata = managed_text::metadata(text.as_bytes()).map_or("", |(range, _)| &text[range]);
    let Identity { name, namespace } = serde_json::from_str(metadata).map_err(kube::Error::SerdeError)?;
    Ok(match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name,
    })
}

fn get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path)
        .header(ACCEPT, "application/json")
        .body(Vec::new())
        .expect("a path of names, an encoded selector and a number is a valid request")
}
