//! Objects of a collection, listed once and kept up to date by their watch: the same question is asked again and again
//! while something is waited for, and most objects have not changed.
//!
//! What an in-process server has committed is in its watches before the write is answered. So a look first reads whatever
//! is there, without waiting, and then sees everything that was written before it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

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

/// One collection.
#[derive(Default)]
pub(crate) struct Followed {
    /// In the API's order: by namespace and name.
    objects: BTreeMap<String, Arc<Value>>,
    watch: Option<Lines>,
    /// The beginning of a line whose end is yet to come.
    line: Vec<u8>,
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
    /// The objects at `path` (with its label selector as a query, if there is one) as they are now, without
    /// `managedFields`.
    pub(crate) async fn now(&mut self, client: &Client, path: &str) -> Result<Vec<Arc<Value>>, kube::Error> {
        while !self.catch_up()? {
            self.start(client, path).await?;
        }
        Ok(self.objects.values().cloned().collect())
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
        for line in lines[..complete].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Line<'_> = serde_json::from_slice(line).map_err(kube::Error::SerdeError)?;
            match line.kind {
                "ADDED" | "MODIFIED" => self.put(line.object.get())?,
                "DELETED" => {
                    let object: Value = serde_json::from_str(line.object.get()).map_err(kube::Error::SerdeError)?;
                    self.objects.remove(&key(&object));
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
        let object: Value = berth_runtime::decode(text).map_err(kube::Error::SerdeError)?;
        self.objects.insert(key(&object), Arc::new(object));
        Ok(())
    }
}

/// Where the API orders an object.
fn key(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

fn get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path)
        .header(ACCEPT, "application/json")
        .body(Vec::new())
        .expect("a path of names, an encoded selector and a number is a valid request")
}
