//! The v2 document in protobuf: gnostic's `openapi.v2` messages, with their published field
//! numbers. Go clients request v2 only in this encoding. They need it for kinds whose v3 paths
//! lack the information, such as reviews.
//!
//! The message is encoded directly from the JSON document. Fields that Berth's documents never have
//! are not encoded.

use serde_json::{Map, Value};

/// Content type of responses.
pub(super) const CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// Media types in requests. The older name, with `@`, is not used in responses: clients cannot
/// parse it there.
pub(super) const MEDIA_TYPES: [&str; 2] = ["application/com.github.proto-openapi.spec.v2@v1.0+protobuf", CONTENT_TYPE];

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.varint(u64::from(number << 3 | 2));
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, number: u32, message: Message) {
        self.bytes(number, &message.0);
    }

    /// Writes a string field, unless it is absent or empty.
    fn text(&mut self, number: u32, object: &Map<String, Value>, key: &str) {
        if let Some(text) = object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn texts(&mut self, number: u32, object: &Map<String, Value>, key: &str) {
        for text in object.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn flag(&mut self, number: u32, object: &Map<String, Value>, key: &str) {
        if object.get(key).and_then(Value::as_bool) == Some(true) {
            self.varint(u64::from(number << 3));
            self.varint(1);
        }
    }

    fn integer(&mut self, number: u32, object: &Map<String, Value>, key: &str) {
        if let Some(value) = object.get(key).and_then(Value::as_i64) {
            self.varint(u64::from(number << 3));
            self.varint(value as u64);
        }
    }

    fn double(&mut self, number: u32, object: &Map<String, Value>, key: &str) {
        if let Some(value) = object.get(key).and_then(Value::as_f64) {
            self.varint(u64::from(number << 3 | 1));
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Writes the entries of a map as messages of name and value.
    fn entries<'a>(
        &mut self,
        number: u32,
        map: impl IntoIterator<Item = (&'a String, &'a Value)>,
        write: impl Fn(&Value) -> Message,
    ) {
        for (name, value) in map {
            let mut entry = Message::default();
            entry.bytes(1, name.as_bytes());
            entry.message(2, write(value));
            self.message(number, entry);
        }
    }

    fn extensions(&mut self, number: u32, object: &Map<String, Value>) {
        self.entries(number, object.iter().filter(|(key, _)| key.starts_with("x-")), any);
    }
}

/// An `Any` message. Its content is YAML, which JSON is too.
fn any(value: &Value) -> Message {
    let mut message = Message::default();
    message.bytes(2, value.to_string().as_bytes());
    message
}

fn object(value: &Value) -> &Map<String, Value> {
    static EMPTY: std::sync::OnceLock<Map<String, Value>> = std::sync::OnceLock::new();
    value.as_object().unwrap_or_else(|| EMPTY.get_or_init(Map::new))
}

/// Encodes a v2 document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let document = object(document);
    let mut out = Message::default();
    out.text(1, document, "swagger");
    let mut info = Message::default();
    let about = document.get("info").map(object);
    if let Some(about) = about {
        info.text(1, about, "title");
        info.text(2, about, "version");
    }
    out.message(2, info);
    let mut paths = Message::default();
    paths.entries(2, document.get("paths").map(object).into_iter().flatten(), path);
    out.message(8, paths);
    let mut definitions = Message::default();
    definitions.entries(1, document.get("definitions").map(object).into_iter().flatten(), schema);
    out.message(9, definitions);
    out.0
}

fn path(value: &Value) -> Message {
    let path = object(value);
    let mut out = Message::default();
    for (number, method) in
        [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")]
    {
        if let Some(value) = path.get(method) {
            out.message(number, operation(value));
        }
    }
    parameters(&mut out, 9, path);
    out
}

fn operation(value: &Value) -> Message {
    let operation = object(value);
    let mut out = Message::default();
    out.texts(1, operation, "tags");
    out.text(5, operation, "operationId");
    out.texts(6, operation, "produces");
    out.texts(7, operation, "consumes");
    parameters(&mut out, 8, operation);
    let mut responses = Message::default();
    responses.entries(1, operation.get("responses").map(object).into_iter().flatten(), |value| {
        let mut response = Message::default();
        response.text(1, object(value), "description");
        if let Some(value) = value.get("schema") {
            let mut item = Message::default();
            item.message(1, schema(value));
            response.message(2, item);
        }
        let mut either = Message::default();
        either.message(1, response);
        either
    });
    out.message(9, responses);
    out.extensions(13, operation);
    out
}

fn parameters(out: &mut Message, number: u32, owner: &Map<String, Value>) {
    for value in owner.get("parameters").and_then(Value::as_array).into_iter().flatten() {
        let parameter = object(value);
        let mut either = Message::default();
        if value["in"] == "body" {
            let mut body = Message::default();
            body.text(2, parameter, "name");
            body.text(3, parameter, "in");
            body.flag(4, parameter, "required");
            if let Some(value) = parameter.get("schema") {
                body.message(5, schema(value));
            }
            either.message(1, body);
        } else {
            let is_query = value["in"] == "query";
            let mut other = Message::default();
            other.flag(1, parameter, "required");
            other.text(2, parameter, "in");
            other.text(3, parameter, "description");
            other.text(4, parameter, "name");
            // Messages of query parameters have one more field, which shifts the numbers.
            let shift = u32::from(is_query);
            other.text(5 + shift, parameter, "type");
            other.flag(19 + shift, parameter, "uniqueItems");
            let mut kind = Message::default();
            kind.message(if is_query { 3 } else { 4 }, other);
            either.message(2, kind);
        }
        let mut item = Message::default();
        item.message(1, either);
        out.message(number, item);
    }
}

fn schema(value: &Value) -> Message {
    let schema_object = object(value);
    let mut out = Message::default();
    out.text(1, schema_object, "$ref");
    out.text(2, schema_object, "format");
    out.text(3, schema_object, "title");
    out.text(4, schema_object, "description");
    if let Some(value) = schema_object.get("default") {
        out.message(5, any(value));
    }
    out.double(6, schema_object, "multipleOf");
    out.double(7, schema_object, "maximum");
    out.flag(8, schema_object, "exclusiveMaximum");
    out.double(9, schema_object, "minimum");
    out.flag(10, schema_object, "exclusiveMinimum");
    out.integer(11, schema_object, "maxLength");
    out.integer(12, schema_object, "minLength");
    out.text(13, schema_object, "pattern");
    out.integer(14, schema_object, "maxItems");
    out.integer(15, schema_object, "minItems");
    out.flag(16, schema_object, "uniqueItems");
    out.integer(17, schema_object, "maxProperties");
    out.integer(18, schema_object, "minProperties");
    out.texts(19, schema_object, "required");
    for value in schema_object.get("enum").and_then(Value::as_array).into_iter().flatten() {
        out.message(20, any(value));
    }
    match schema_object.get("additionalProperties") {
        Some(Value::Bool(allowed)) => {
            let mut item = Message::default();
            item.varint(2 << 3);
            item.varint(u64::from(*allowed));
            out.message(21, item);
        }
        Some(value) => {
            let mut item = Message::default();
            item.message(1, schema(value));
            out.message(21, item);
        }
        None => {}
    }
    if schema_object.get("type").is_some_and(Value::is_string) {
        let mut types = Message::default();
        types.text(1, schema_object, "type");
        out.message(22, types);
    }
    if let Some(value) = schema_object.get("items") {
        let mut items = Message::default();
        items.message(1, schema(value));
        out.message(23, items);
    }
    if let Some(properties) = schema_object.get("properties").and_then(Value::as_object) {
        let mut list = Message::default();
        list.entries(1, properties, schema);
        out.message(25, list);
    }
    out.extensions(31, schema_object);
    out
}
