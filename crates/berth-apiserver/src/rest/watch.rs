//! Watches: a stream of every change after a revision, until `timeoutSeconds` have elapsed. Events
//! are JSON lines, or length-prefixed protobuf messages. A line mostly consists of the stored text.
//! A message is encoded for each watcher from the parsed tree, which concurrent watchers share.
//!
//! For a client that selects by labels or fields, an object appears (ADDED) when it begins to
//! match, and is removed (DELETED) when it no longer does. Bookmarks report the stream's progress
//! when no change matches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use berth_apimachinery::field::{self, Path};
use berth_apimachinery::meta::GroupKind;
use berth_apimachinery::status::Status;
use berth_store::{Change, Event, ReadError, Record, Store, Watcher};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::call::Call;
use super::encode::{partial_of_record, partial_packed, put_partial, text_of};
use super::list::{Selection, read, too_large_version};
use super::negotiate::{Encoding, Form};
use super::options::VersionMatch;
use super::response::{report_left_out, response, unwritten};
use super::view::View;
use crate::{Body, protobuf};

/// Time between bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Duration of a watch without `timeoutSeconds`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Duration of a long watch, regardless of `timeoutSeconds`. The only bookmark is the last one.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);
/// Time from the last bookmark to the end, so that the client resumes from a recent revision.
const LAST_BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Initial objects in one chunk.
const INITIAL_CHUNK: usize = 64;

/// Starts a watch.
pub(crate) fn watch(call: &Call) -> Result<Response<Body>, Status> {
    let options = &call.options;
    let prefix = call.prefix();
    let selection = Selection::new(call)?;
    check(call)?;
    let store = call.server.store().clone();
    let version = options.resource_version.unwrap_or(0);
    let send_initial = options.send_initial_events.unwrap_or(version == 0 && options.resource_version_match.is_none());
    let (initial, after) = if send_initial {
        let page = read(call, &prefix, &selection)?;
        (page.records, page.revision)
    } else if version == 0 {
        (Vec::new(), store.revision())
    } else {
        (Vec::new(), version)
    };
    let watcher = match store.watch(&prefix, after) {
        Ok(watcher) => Ok(watcher),
        Err(ReadError::Compacted { requested, oldest }) => {
            Err(Status::expired(format!("too old resource version: {requested} ({oldest})")))
        }
        Err(ReadError::Future { requested, current }) => return Err(too_large_version(requested, current)),
    };
    let requested = options.timeout_seconds.filter(|seconds| *seconds > 0).map_or(TIMEOUT_DEFAULT, Duration::from_secs);
    let (timeout, bookmark_every) = if call.long_watches { (LONG, LONG) } else { (requested, BOOKMARK_EVERY) };
    let now = tokio::time::Instant::now();
    let stream = Stream {
        shaper: Shaper::new(call),
        selection,
        store,
        initial: initial.into(),
        // The end of the initial objects is a bookmark: only for clients that allow bookmarks.
        initial_end: options.send_initial_events == Some(true) && options.allow_watch_bookmarks,
        bookmarks: options.allow_watch_bookmarks,
        revision: after,
        bookmark_every,
        next_bookmark: now + bookmark_every,
        last_bookmark: timeout.checked_sub(LAST_BOOKMARK_BEFORE_END).map(|before| now + before),
        deadline: now + timeout,
        state: match watcher {
            Ok(watcher) => State::Following(watcher),
            Err(status) => State::Failed(status),
        },
    };
    let chunks = futures::stream::unfold(stream, |mut stream| async move {
        let chunk = stream.next().await?;
        Some((chunk, stream))
    });
    let mut response = response(StatusCode::OK, call.negotiated.encoding, Body::stream(chunks));
    if call.negotiated.encoding == Encoding::Protobuf {
        let media = HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch");
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
    Ok(response)
}

fn check(call: &Call) -> Result<(), Status> {
    let options = &call.options;
    let mut errors = Vec::new();
    if options.send_initial_events.is_some() {
        if options.resource_version_match != Some(VersionMatch::NotOlderThan) {
            errors.push(field::Error::forbidden(
                &Path::new("resourceVersionMatch"),
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
    } else if options.resource_version_match.is_some() {
        errors.push(field::Error::forbidden(
            &Path::new("resourceVersionMatch"),
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    if let Some(given) = options.resource_version_match {
        let path = Path::new("resourceVersionMatch");
        if given == VersionMatch::Exact {
            errors.push(field::Error::not_supported(&path, "Exact", &["NotOlderThan"]));
        }
        if !options.continue_token.is_empty() {
            let detail = "resourceVersionMatch is forbidden when continue is provided";
            errors.push(field::Error::forbidden(&path, detail));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(&GroupKind::new("meta.k8s.io", "ListOptions"), "", &errors))
    }
}

enum State {
    Following(Watcher),
    /// The requested history is compacted: send the error and end.
    Failed(Status),
    Ended,
}

struct Stream {
    shaper: Shaper,
    selection: Selection,
    store: Arc<dyn Store>,
    initial: VecDeque<Arc<Record>>,
    /// True if a bookmark still has to mark the end of the initial objects.
    initial_end: bool,
    bookmarks: bool,
    /// Revision up to which all events were sent or did not match.
    revision: u64,
    bookmark_every: Duration,
    next_bookmark: tokio::time::Instant,
    last_bookmark: Option<tokio::time::Instant>,
    deadline: tokio::time::Instant,
    state: State,
}

impl Stream {
    /// The next chunk: one or more events.
    async fn next(&mut self) -> Option<Bytes> {
        if !self.initial.is_empty() {
            let mut out = BytesMut::new();
            let some: Vec<Arc<Record>> = self.initial.drain(..self.initial.len().min(INITIAL_CHUNK)).collect();
            self.shaper.foresee(&some);
            for record in some {
                self.shaper.record(&mut out, "ADDED", &record);
            }
            return Some(out.freeze());
        }
        if std::mem::take(&mut self.initial_end) {
            return Some(self.shaper.bookmark(self.revision, true));
        }
        loop {
            let watcher = match &mut self.state {
                State::Following(watcher) => watcher,
                State::Failed(status) => {
                    let mut out = BytesMut::new();
                    self.shaper.error(&mut out, status);
                    self.state = State::Ended;
                    return Some(out.freeze());
                }
                State::Ended => return None,
            };
            let wake = [Some(self.deadline), self.bookmarks.then_some(self.next_bookmark), self.last_bookmark]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(self.deadline);
            tokio::select! {
                biased;
                event = watcher.next() => match event {
                    Ok(event) => {
                        let mut out = BytesMut::new();
                        self.event(&mut out, &event);
                        // Send all events that are already available in one chunk.
                        while let State::Following(watcher) = &mut self.state
                            && let Ok(Some(event)) = watcher.try_next()
                        {
                            self.event(&mut out, &event);
                        }
                        if !out.is_empty() {
                            return Some(out.freeze());
                        }
                    }
                    // The client is too slow. Ending the stream makes it start a new watch.
                    Err(_) => self.state = State::Ended,
                },
                () = tokio::time::sleep_until(wake) => {
                    if wake >= self.deadline {
                        self.state = State::Ended;
                        return None;
                    }
                    if self.last_bookmark == Some(wake) {
                        self.last_bookmark = None;
                    } else {
                        self.next_bookmark = wake + self.bookmark_every;
                    }
                    if self.bookmarks {
                        return Some(self.progress());
                    }
                }
            }
        }
    }

    /// A bookmark at the newest revision, after all changes up to it.
    fn progress(&mut self) -> Bytes {
        // Changes are in the buffer before their revision is visible. So after the buffer is
        // drained, no change up to this revision is missing.
        let revision = self.store.revision();
        let mut out = BytesMut::new();
        while let State::Following(watcher) = &mut self.state
            && let Ok(Some(event)) = watcher.try_next()
        {
            self.event(&mut out, &event);
        }
        self.revision = self.revision.max(revision);
        out.extend_from_slice(&self.shaper.bookmark(self.revision, false));
        out.freeze()
    }

    fn event(&mut self, out: &mut BytesMut, event: &Event) {
        self.revision = event.revision();
        if self.selection.is_everything() {
            let kind = match event.change {
                Change::Created => "ADDED",
                Change::Updated(_) => "MODIFIED",
                Change::Deleted(_) => "DELETED",
            };
            self.shaper.event(out, kind, event);
            return;
        }
        if !self.selection.may_match_key(&event.record.key) {
            return;
        }
        let is = !matches!(event.change, Change::Deleted(_)) && self.matches(&event.value());
        let was = event.previous().is_some_and(|previous| self.matches(&previous));
        match (was, is) {
            (false, false) => {}
            (false, true) => self.shaper.event(out, "ADDED", event),
            (true, true) => self.shaper.event(out, "MODIFIED", event),
            (true, false) => self.shaper.event(out, "DELETED", event),
        }
    }

    fn matches(&self, stored: &Value) -> bool {
        match self.shaper.view.convert_if_needed(stored) {
            Some(converted) => self.selection.matches(&converted),
            None => self.selection.matches(stored),
        }
    }
}

/// Writes events in the negotiated form.
struct Shaper {
    view: View,
    /// The request, without its body.
    call: Box<Call>,
    columns_sent: bool,
}

impl Shaper {
    fn new(call: &Call) -> Shaper {
        Shaper { view: call.view(), call: Box::new(call.for_stream()), columns_sent: false }
    }

    /// Converts objects in one call of the conversion webhook before they are sent one by one; the
    /// results are cached. Errors surface when each object is sent.
    fn foresee(&self, records: &[Arc<Record>]) {
        if self.view.calls_webhook() {
            let _ = self.view.show_all(records);
        }
    }

    fn event(&mut self, out: &mut BytesMut, kind: &str, event: &Event) {
        if !self.put_stored(out, kind, &event.record) {
            let stored = event.value();
            let object = self.view.convert_if_needed(&stored).map_or(stored, Arc::new);
            self.object(out, kind, &object);
        }
    }

    fn record(&mut self, out: &mut BytesMut, kind: &str, record: &Record) {
        if !self.put_stored(out, kind, record) {
            let object = self.view.show(record).unwrap_or_else(|_| record.value());
            self.object(out, kind, &object);
        }
    }

    /// Writes an object from its stored JSON text, if the client gets that text or a part of it.
    fn put_stored(&self, out: &mut BytesMut, kind: &str, record: &Record) -> bool {
        let negotiated = &self.call.negotiated;
        if !self.view.is_stored_form(record) {
            return false;
        }
        match &negotiated.form {
            Form::Metadata(version) if self.is_protobuf() => {
                self.put(out, kind, &partial_of_record(record, version));
            }
            Form::Object if self.is_protobuf() => return false,
            Form::Object => plain_line(out, kind, &text_of(record, negotiated.lean)),
            Form::Metadata(version) => {
                begin_line(out, kind);
                put_partial(out, record, version, negotiated.lean);
                out.put_slice(END_OF_LINE);
            }
            Form::Table(_) => return false,
        }
        true
    }

    fn is_protobuf(&self) -> bool {
        self.call.negotiated.encoding == Encoding::Protobuf
    }

    fn object(&mut self, out: &mut BytesMut, kind: &str, object: &Value) {
        match &self.call.negotiated.form {
            Form::Object if self.is_protobuf() => self.put(out, kind, object),
            Form::Metadata(version) if self.is_protobuf() => self.put(out, kind, &partial_packed(object, version)),
            _ => {
                let shaped = self.call.shape_one(object, !std::mem::replace(&mut self.columns_sent, true));
                self.put(out, kind, &shaped);
            }
        }
    }

    /// Writes an event about an object that is already in the negotiated form.
    fn put(&self, out: &mut BytesMut, kind: &str, shaped: &Value) {
        if !self.is_protobuf() {
            line(out, kind, shaped);
            return;
        }
        let mut frame = Vec::new();
        match protobuf::put_event(&mut frame, kind, shaped) {
            Ok(left_out) => {
                report_left_out(shaped, &left_out);
                out.put_slice(&frame);
            }
            // The error makes the client list again, and the error of that list names the invalid
            // object.
            Err(error) if kind != "ERROR" => self.error(out, &unwritten(error)),
            Err(_) => {}
        }
    }

    /// Writes an ERROR event with `status`.
    fn error(&self, out: &mut BytesMut, status: &Status) {
        self.put(out, "ERROR", &status.to_value());
    }

    fn bookmark(&mut self, revision: u64, initial_end: bool) -> Bytes {
        let call = &self.call;
        let plain = match &call.negotiated.form {
            _ if initial_end || self.is_protobuf() => None,
            Form::Object => Some((call.row.kind.as_str(), call.api_version())),
            Form::Metadata(version) => Some(("PartialObjectMetadata", format!("meta.k8s.io/{version}"))),
            Form::Table(_) => None,
        };
        if let Some((kind, api_version)) = plain {
            // Every watch gets one bookmark per minute, so the common forms are written as text,
            // without a JSON tree.
            let (kind, api_version) = (Value::from(kind), Value::from(api_version));
            let object = format!(
                "{{\"kind\":{kind},\"apiVersion\":{api_version},\
                 \"metadata\":{{\"resourceVersion\":\"{revision}\",\"creationTimestamp\":null}}}}"
            );
            let mut out = BytesMut::new();
            plain_line(&mut out, "BOOKMARK", &[Bytes::from(object), Bytes::new()]);
            return out.freeze();
        }
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"kind": call.row.kind, "apiVersion": call.api_version(), "metadata": metadata});
        let shaped = match &call.negotiated.form {
            Form::Object => object,
            Form::Metadata(_) => call.shape_one(&object, false),
            Form::Table(version) => json!({
                "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": {"resourceVersion": revision.to_string()},
                "columnDefinitions": null,
                "rows": if initial_end { json!([{"cells": [], "object": super::encode::partial(&object, version)}]) } else { json!([]) },
            }),
        };
        let mut out = BytesMut::new();
        self.put(&mut out, "BOOKMARK", &shaped);
        out.freeze()
    }
}

fn line(out: &mut BytesMut, kind: &str, object: &Value) {
    let bytes = serde_json::to_vec(object).expect("a JSON value always serializes");
    plain_line(out, kind, &[Bytes::from(bytes), Bytes::new()]);
}

fn plain_line(out: &mut BytesMut, kind: &str, object: &[Bytes; 2]) {
    out.reserve(object[0].len() + object[1].len() + 40);
    begin_line(out, kind);
    out.put_slice(&object[0]);
    out.put_slice(&object[1]);
    out.put_slice(END_OF_LINE);
}

fn begin_line(out: &mut BytesMut, kind: &str) {
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
}

const END_OF_LINE: &[u8] = b"}\n";
