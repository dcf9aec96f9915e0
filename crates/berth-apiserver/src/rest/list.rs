//! Reads one object, or many at one revision, in pages or as a stream.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use berth_apimachinery::field::{self, Path};
use berth_apimachinery::meta;
use berth_apimachinery::meta::GroupKind;
use berth_apimachinery::selector::{FieldSelector, LabelSelector};
use berth_apimachinery::status::{Cause, Status};
use berth_apimachinery::{packed, validation};
use berth_store::{ListQuery, Listing, ReadError, Record};
use bytes::{BufMut, Bytes, BytesMut};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::call::Call;
use super::continue_token::Continue;
use super::encode::{bytes_of, partial, partial_of_record, partial_packed, put_partial, text_of};
use super::negotiate::{Encoding, Form};
use super::options::VersionMatch;
use super::response::{json_response, report_left_out, response, to_bytes, unwritten};
use super::view::View;
use crate::protobuf::{EncodeError, LeftOut, ListEncoder};
use crate::{Body, fields, printers};

/// Lists longer than this are streamed, so that no whole response is held in memory.
const STREAM_FROM: usize = 500;
/// Number of objects that a selector evaluates together; a conversion webhook is called once for
/// them.
const SHOWN_AT_ONCE: usize = 100;
/// Error for a continue token whose revision is compacted.
const INCONSISTENT: &str = "The provided continue parameter is too old to display a consistent list result. You can start \
    a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
    results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
    deleted between the time the first chunk was returned and now may show up in the list.";
/// Size of the chunks of a streamed list.
const CHUNK_BYTES: usize = 64 * 1024;
/// Number of bytes of a protobuf list that are held in memory.
const KEPT_BYTES: usize = 2 * 1024 * 1024;

/// GET of one object.
pub(crate) fn get(call: &Call) -> Result<Response<Body>, Status> {
    let record = call.stored()?;
    if let Some(version) = call.options.resource_version.filter(|version| *version > call.server.store().revision()) {
        return Err(too_large_version(version, call.server.store().revision()));
    }
    let view = call.view();
    let plain = call.negotiated.form == Form::Object && call.negotiated.encoding == Encoding::Json;
    if plain && call.options.pretty != Some(true) && view.is_stored_form(&record) {
        return Ok(json_response(StatusCode::OK, bytes_of(&record, call.negotiated.lean)));
    }
    call.object_response(StatusCode::OK, view.show(&record)?.as_ref())
}

/// Options of a list that depend on each other.
pub(crate) fn check_options(call: &Call) -> Result<(), Status> {
    let options = &call.options;
    let version_match = match options.resource_version_match {
        None => "",
        Some(VersionMatch::Exact) => "Exact",
        Some(VersionMatch::NotOlderThan) => "NotOlderThan",
    };
    let errors = validation::validate_list_options(
        &validation::ListOptions {
            watch: false,
            resource_version: options.resource_version.map(|version| version.to_string()).unwrap_or_default(),
            resource_version_match: version_match.to_owned(),
            continue_token: options.continue_token.clone(),
            send_initial_events: options.send_initial_events,
        },
        true,
    );
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind::new("meta.k8s.io", "ListOptions"), "", &errors))
}

/// GET of a collection.
pub(crate) fn list(call: &Call) -> Result<Response<Body>, Status> {
    let prefix = call.prefix();
    let selection = Selection::new(call)?;
    let page = read(call, &prefix, &selection)?;
    let metadata = page.metadata(&prefix, &selection);
    respond(call, page.records, metadata)
}

/// Stored objects as a list in the negotiated form; a long list is encoded while it is sent.
pub(super) fn respond(call: &Call, records: Vec<Arc<Record>>, metadata: Value) -> Result<Response<Body>, Status> {
    let view = call.view();
    // Lists that a webhook converts are converted as a whole, before the response begins.
    let whole = view.calls_webhook();
    let plain = call.negotiated.encoding == Encoding::Json && call.options.pretty != Some(true);
    let protobuf = call.negotiated.encoding == Encoding::Protobuf;
    match &call.negotiated.form {
        Form::Object | Form::Metadata(_) if plain && !whole => Ok(stream(call, &view, records, &metadata)),
        Form::Object | Form::Metadata(_) if protobuf && !whole => stream_protobuf(call, view, records, &metadata),
        _ => encode_whole(call, view.show_all(&records)?, metadata),
    }
}

/// Objects as a list in the negotiated form, encoded as a whole.
fn encode_whole(call: &Call, mut objects: Vec<Arc<Value>>, metadata: Value) -> Result<Response<Body>, Status> {
    let list = match &call.negotiated.form {
        Form::Object => {
            let items: Vec<Value> = objects.iter().map(|item| packed::expanded(item).into_owned()).collect();
            json!({"kind": call.row.list_kind, "apiVersion": call.api_version(), "metadata": metadata, "items": items})
        }
        Form::Metadata(version) => {
            let items: Vec<Value> = objects.iter().map(|item| partial(item, version)).collect();
            json!({
                "kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{version}"),
                "metadata": metadata, "items": items,
            })
        }
        Form::Table(version) => {
            printers::sort(&call.row, &mut objects);
            let mut table = call.table(&objects, version, true);
            table["metadata"] = metadata;
            table
        }
    };
    call.value_response(StatusCode::OK, &list)
}

/// The result of a list.
pub(crate) struct Page {
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) revision: u64,
    /// The last key read, if more follow.
    next_after: Option<String>,
    remaining: usize,
    /// Number of compactions of the history when the list began.
    forgotten: u64,
}

impl Page {
    /// The metadata of the list.
    pub(crate) fn metadata(&self, prefix: &str, selection: &Selection) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(last) = &self.next_after {
            metadata["continue"] = Continue::encode(last, prefix, self.revision, self.forgotten).into();
            // With selectors the remaining count is not known.
            if selection.is_everything() {
                metadata["remainingItemCount"] = self.remaining.into();
            }
        }
        metadata
    }
}

/// Reads the objects of a list, or the initial objects of a watch.
pub(crate) fn read(call: &Call, prefix: &str, selection: &Selection) -> Result<Page, Status> {
    let options = &call.options;
    let store = call.server.store();
    let current = store.revision();
    if let Some(version) = options.resource_version.filter(|version| *version > current) {
        return Err(too_large_version(version, current));
    }
    let now = call.server.inner.forgotten.load(Ordering::Relaxed);
    let mut forgotten = now;
    let (after, at_revision) = if options.continue_token.is_empty() {
        if options.resource_version_match == Some(VersionMatch::Exact) && options.resource_version.unwrap_or(0) == 0 {
            let path = Path::new("resourceVersionMatch");
            let error =
                field::Error::forbidden(&path, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            return Err(Status::invalid(&GroupKind::new("meta.k8s.io", "ListOptions"), "", &[error]));
        }
        let exact = match options.resource_version_match {
            Some(VersionMatch::Exact) => true,
            Some(VersionMatch::NotOlderThan) => false,
            // Without `resourceVersionMatch`, a page at a revision is at exactly that revision.
            None => options.limit > 0,
        };
        (None, options.resource_version.filter(|version| exact && *version > 0))
    } else {
        if options.resource_version.is_some_and(|version| version != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        let place = Continue::decode(&options.continue_token, prefix)?;
        if let Some(requested) = place.revision {
            // Rejected after two compactions, even if nothing was written since: a continue token
            // is valid for one to two intervals, even in an idle cluster.
            if now.saturating_sub(place.forgotten) >= 2 {
                let error = ReadError::Compacted { requested, oldest: current };
                return Err(read_status(error, Some(&place.after), prefix));
            }
            forgotten = place.forgotten;
        }
        (Some(place.after), place.revision)
    };
    // With selectors, the limit applies to matching objects. It is applied later.
    let limit = if selection.is_everything() { options.limit } else { 0 };
    let query = ListQuery { prefix, start_after: after.as_deref(), limit, at_revision };
    let listing = store.list(&query).map_err(|error| read_status(error, after.as_deref(), prefix))?;
    select(call, selection, listing, forgotten)
}

fn select(call: &Call, selection: &Selection, listing: Listing, forgotten: u64) -> Result<Page, Status> {
    let Listing { records, revision, remaining } = listing;
    if selection.is_everything() {
        let next_after = (remaining > 0).then(|| records.last().map(|record| record.key.to_string())).flatten();
        return Ok(Page { records, revision, next_after, remaining, forgotten });
    }
    let view = call.view();
    let mut page = Page { records: Vec::new(), revision, next_after: None, remaining: 0, forgotten };
    let mut may_match = records.into_iter().filter(|record| selection.may_match_key(&record.key));
    loop {
        let some: Vec<Arc<Record>> = may_match.by_ref().take(SHOWN_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(page);
        }
        let shown = view.show_all(&some)?;
        for (record, _) in some.into_iter().zip(shown).filter(|(_, shown)| selection.matches(shown)) {
            if call.options.limit > 0 && page.records.len() == call.options.limit {
                page.next_after = page.records.last().map(|record| record.key.to_string());
                return Ok(page);
            }
            page.records.push(record);
        }
    }
}

/// The error of a read. `after` is the key at which the list was to continue.
fn read_status(error: ReadError, after: Option<&str>, prefix: &str) -> Status {
    match (error, after) {
        (ReadError::Compacted { .. }, None) => Status::expired("The resourceVersion for the provided list is too old."),
        // The token lets a client that accepts an inconsistent list continue at the same key.
        (ReadError::Compacted { .. }, Some(after)) => {
            Status::expired(INCONSISTENT).with_continue(Continue::encode_at_latest(after, prefix))
        }
        (ReadError::Future { requested, current }, _) => too_large_version(requested, current),
    }
}

/// 504 with the cause that reflectors expect.
pub(crate) fn too_large_version(requested: u64, current: u64) -> Status {
    Status::timeout(format!("Too large resource version: {requested}, current: {current}"), 1).with_causes([Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    }])
}

/// Kind and apiVersion of a list in the negotiated form, and, for lists of metadata, the version of
/// the items.
fn list_type(call: &Call) -> (&str, String, Option<String>) {
    match &call.negotiated.form {
        Form::Metadata(version) => {
            ("PartialObjectMetadataList", format!("meta.k8s.io/{version}"), Some(version.clone()))
        }
        _ => (call.row.list_kind.as_str(), call.api_version(), None),
    }
}

/// A JSON list of objects, or of their metadata, encoded record by record. Long lists are sent in
/// chunks.
fn stream(call: &Call, view: &View, records: Vec<Arc<Record>>, metadata: &Value) -> Response<Body> {
    let (kind, api_version, partial) = list_type(call);
    let (kind, api_version) = (Value::from(kind), Value::from(api_version));
    let head = format!("{{\"kind\":{kind},\"apiVersion\":{api_version},\"metadata\":{metadata},\"items\":[");
    let long = records.len() > STREAM_FROM;
    let mut writer = ListWriter {
        view: view.clone(),
        lean: call.negotiated.lean,
        partial,
        records: records.into_iter(),
        head: Some(head),
        first: true,
        done: false,
    };
    if long {
        return json_response(StatusCode::OK, Body::stream(futures::stream::iter(writer)));
    }
    let mut whole = BytesMut::new();
    for chunk in &mut writer {
        whole.extend_from_slice(&chunk);
    }
    json_response(StatusCode::OK, whole.freeze())
}

struct ListWriter {
    view: View,
    lean: bool,
    /// If set, only the metadata of each object is written, in this version of
    /// PartialObjectMetadata.
    partial: Option<String>,
    records: std::vec::IntoIter<Arc<Record>>,
    head: Option<String>,
    first: bool,
    done: bool,
}

impl Iterator for ListWriter {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        if let Some(head) = self.head.take() {
            chunk.put_slice(head.as_bytes());
        }
        for record in self.records.by_ref() {
            if !std::mem::take(&mut self.first) {
                chunk.put_u8(b',');
            }
            // An object that cannot be converted is returned as stored, so that it does not fail
            // the whole list.
            let converted = || self.view.show(&record).unwrap_or_else(|_| record.value());
            match (&self.partial, self.view.is_stored_form(&record)) {
                (None, true) => {
                    for part in text_of(&record, self.lean) {
                        chunk.put_slice(&part);
                    }
                }
                (None, false) => chunk.put_slice(&to_bytes(&converted())),
                (Some(version), true) => put_partial(&mut chunk, &record, version, self.lean),
                (Some(version), false) => chunk.put_slice(&to_bytes(&partial(&converted(), version))),
            }
            if chunk.len() >= CHUNK_BYTES {
                return Some(chunk.freeze());
            }
        }
        chunk.put_slice(b"]}\n");
        self.done = true;
        Some(chunk.freeze())
    }
}

/// A list in protobuf. Its length precedes its first item, so all items are encoded before the
/// response begins. Items after the first [`KEPT_BYTES`] are only measured, and encoded again when
/// they are sent, which saves memory.
fn stream_protobuf(
    call: &Call,
    view: View,
    records: Vec<Arc<Record>>,
    metadata: &Value,
) -> Result<Response<Body>, Status> {
    let (kind, api_version, partial) = list_type(call);
    let encoder = ListEncoder::new(&api_version, kind, metadata).map_err(unwritten)?;
    let items = ProtobufItems { view, partial, encoder };
    let (mut kept, mut kept_items) = (Vec::new(), 0);
    let (mut measured, mut length) = (Vec::new(), 0);
    for record in &records {
        let out = if kept.len() < KEPT_BYTES { &mut kept } else { &mut measured };
        let before = out.len();
        let put = items.put(out, record).map_err(|error| Status::internal(format!("{}: {error}", record.key)))?;
        if !put.is_empty() {
            report_left_out(&record.value(), &put);
        }
        length += out.len() - before;
        kept_items += usize::from(measured.is_empty());
        measured.clear();
    }
    let mut head = items.encoder.before(length);
    head.append(&mut kept);
    if kept_items == records.len() {
        head.extend_from_slice(&items.encoder.after());
        return Ok(response(StatusCode::OK, Encoding::Protobuf, head));
    }
    let mut rest = records.into_iter().skip(kept_items);
    let mut ended = false;
    let rest = std::iter::from_fn(move || {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        while chunk.len() < CHUNK_BYTES && !ended {
            match rest.next() {
                // This item was encoded before without an error.
                Some(record) => drop(items.put(&mut chunk, &record)),
                None => {
                    chunk.extend_from_slice(&items.encoder.after());
                    ended = true;
                }
            }
        }
        (!chunk.is_empty()).then(|| Bytes::from(chunk))
    });
    let chunks = std::iter::once(Bytes::from(head)).chain(rest);
    Ok(response(StatusCode::OK, Encoding::Protobuf, Body::stream(futures::stream::iter(chunks))))
}

/// Writes the items of a list in protobuf.
struct ProtobufItems {
    view: View,
    /// If set, only the metadata of each object is written, in this version of
    /// PartialObjectMetadata.
    partial: Option<String>,
    encoder: ListEncoder,
}

impl ProtobufItems {
    fn put(&self, out: &mut Vec<u8>, record: &Record) -> Result<LeftOut, EncodeError> {
        // As in JSON: an object that cannot be converted is returned as stored.
        let converted = || self.view.show(record).unwrap_or_else(|_| record.value());
        match &self.partial {
            None => self.encoder.put_item(out, &converted()),
            Some(version) if self.view.is_stored_form(record) => {
                self.encoder.put_item(out, &partial_of_record(record, version))
            }
            Some(version) => self.encoder.put_item(out, &partial_packed(&converted(), version)),
        }
    }
}

/// The label and field selector of a request, checked against the kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    labels: Option<LabelSelector>,
    fields: Option<FieldSelector>,
    /// Fields other than name and namespace, with their paths in the object.
    paths: Vec<(String, Vec<String>)>,
    name: Option<String>,
}

/// The error for an unknown field. For a built-in kind without selectable fields of its own, it
/// lists the fields that every kind has.
fn unknown_field(call: &Call, field: &str) -> String {
    if call.custom.is_none() && call.version().selectable_fields.is_empty() {
        let known = r#"only "metadata.name", "metadata.namespace""#;
        return format!("{field:?} is not a known field selector: {known}");
    }
    format!("field label not supported: {field}")
}

impl Selection {
    pub(crate) fn new(call: &Call) -> Result<Selection, Status> {
        let mut selection = Selection {
            labels: call.options.label_selector.clone(),
            fields: call.options.field_selector.clone(),
            ..Selection::default()
        };
        // `/watch/…/name` and a path with the name of an object select that object.
        if call.info.parts.len() > 1 {
            selection.name = Some(call.info.name.clone());
        }
        for requirement in selection.fields.iter().flat_map(FieldSelector::requirements) {
            match requirement.field.as_str() {
                "metadata.name" if !requirement.negated => selection.name = Some(requirement.value.clone()),
                "metadata.name" | "metadata.namespace" => {}
                field => {
                    let path = fields::place(&call.version().selectable_fields, field)
                        .ok_or_else(|| Status::bad_request(unknown_field(call, field)))?;
                    selection.paths.push((field.to_owned(), path));
                }
            }
        }
        Ok(selection)
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_none() && self.fields.is_none() && self.name.is_none()
    }

    /// Checks the name in the key before anything is parsed.
    pub(crate) fn may_match_key(&self, key: &str) -> bool {
        self.name.as_ref().is_none_or(|name| key.rsplit('/').next() == Some(name))
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        if self.name.as_ref().is_some_and(|name| name != meta::name(object)) {
            return false;
        }
        if !self.labels.as_ref().is_none_or(|selector| matches_labels(selector, object)) {
            return false;
        }
        self.fields.as_ref().is_none_or(|selector| {
            selector.matches(|field| match field {
                "metadata.name" => Some(meta::name(object).to_owned()),
                "metadata.namespace" => Some(meta::namespace(object).to_owned()),
                field => {
                    let (_, path) = self.paths.iter().find(|(name, _)| name == field)?;
                    fields::value(object, field, path)
                }
            })
        })
    }
}

fn matches_labels(selector: &LabelSelector, object: &Value) -> bool {
    static NONE: std::sync::LazyLock<serde_json::Map<String, Value>> = std::sync::LazyLock::new(Default::default);
    selector.matches(meta::labels(object).unwrap_or(&NONE))
}
