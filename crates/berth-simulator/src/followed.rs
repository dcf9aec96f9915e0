//! Objects of a collection, listed once and kept up to date by their watch: the same question is asked again and again
//! while something is waited for, and most objects have not changed.
//!
//! What an in-process server has committed is in its watches before the write is answered. So a look first reads whatever
//! is there, without waiting, and then sees everything that was written before it.

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

/// A watch's body.
pub(crate) type Lines = Pin<Box<dyn AsyncBufRead + Send>>;

/// What can be read at once of a watch.
pub(crate) enum Read {
    /// Bytes, to be consumed.
    Bytes(usize),
    /// Nothing has happened.
    Nothing,
    /// The server has ended the watch.
    Ended,
}

/// Looks at what is there, without waiting. The bytes are in the stream's buffer.
pub(crate) fn read_now(lines: &mut Lines) -> Read {
    // Whether something is there must not depend on how much this task has done in its turn already.
    match tokio::task::unconstrained(lines.fill_buf()).now_or_never() {
        None => Read::Nothing,
        Some(Ok(bytes)) if !bytes.is_empty() => Read::Bytes(bytes.len()),
        Some(_) => Read::Ended,
    }
}

/// Collections that were asked for, by their path (with the label selector as its query, if there is one).
#[derive(Default)]
pub(crate) struct Collections(BTreeMap<String, Followed>);

impl Collections {
    /// The objects at `path` as they are now, without `managedFields`.
    pub(crate) async fn now(&mut self, client: &Client, path: &str) -> Result<Vec<Arc<Value>>, kube::Error> {
        // What nobody has asked for in a while is not kept up to date: the server would keep history for it.
        self.0.retain(|known, followed| {
            followed.unasked = if known == path { 0 } else { followed.unasked + 1 };
            followed.unasked < UNASKED_MAX
        });
        self.0.entry(path.to_owned()).or_default().now(client, path).await
    }
}

/// Questions about other collections after which one is let go.
const UNASKED_MAX: usize = 32;

/// One collection.
#[derive(Default)]
struct Followed {
    /// Questions about others since the last one about this.
    unasked: usize,
    /// In the API's order: by namespace and name.
    objects: BTreeMap<String, Kept>,
    watch: Option<Lines>,
    /// The beginning of a line whose end is yet to come.
    line: Vec<u8>,
}

/// An object, decoded when somebody looks at it.
enum Kept {
    Text(Box<str>),
    Decoded(Arc<Value>),
}

impl Kept {
    fn value(&mut self) -> Result<Arc<Value>, kube::Error> {
        let value: Arc<Value> = match self {
            Kept::Decoded(value) => return Ok(value.clone()),
            Kept::Text(text) => Arc::new(berth_runtime::decode(text).map_err(kube::Error::SerdeError)?),
        };
        *self = Kept::Decoded(value.clone());
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
        self.objects.values_mut().map(Kept::value).collect()
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

    /// Takes in what has happened; `false` if the watch has ended and all has to be read again.
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
        self.objects.insert(key(text)?, Kept::Text(text.into()));
        Ok(())
    }
}

#[derive(Deserialize)]
struct Identity {
    name: String,
    namespace: Option<String>,
}

/// Where the API orders an object.
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
