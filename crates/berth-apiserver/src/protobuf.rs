//! Request bodies in Kubernetes' protobuf encoding, which Go clients (kubectl's `create` commands among them) use for
//! built-in kinds whatever the server says it likes. Decoding only: answers are JSON, which those clients accept.
//!
//! The encoding is a four-byte prefix and an envelope with apiVersion, kind and the object. Which number is which field
//! comes from a table (see `data/NOTICE`), what type it has from the published OpenAPI definitions. Go writes plain
//! fields even when they are zero and leaves out pointers that are nil; JSON leaves out both, so zeros are dropped
//! except where the field is required or one whose zero means something.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use base64::Engine;
use berth_apimachinery::builtin;
use berth_apimachinery::meta::GroupVersionKind;
use serde_json::{Map, Number, Value, json};

/// The media type of such bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// What every body begins with.
const PREFIX: &[u8] = b"k8s\0";
/// Messages within messages; no built-in kind goes half as deep.
const DEPTH_MAX: usize = 48;
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Optional scalar fields that Go has as pointers: absent and zero differ, so zero is kept.
const POINTERS: [&str; 62] = [
    "activeDeadlineSeconds",
    "allowPrivilegeEscalation",
    "allowVolumeExpansion",
    "attachRequired",
    "automountServiceAccountToken",
    "averageUtilization",
    "backoffLimit",
    "backoffLimitPerIndex",
    "blockOwnerDeletion",
    "borrowingLimitPercent",
    "completions",
    "controller",
    "currentCPUUtilizationPercentage",
    "defaultMode",
    "deletionGracePeriodSeconds",
    "enableServiceLinks",
    "expirationSeconds",
    "failedJobsHistoryLimit",
    "fsGroup",
    "gracePeriodSeconds",
    "holderIdentity",
    "hostUsers",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "immutable",
    "ingressClassName",
    "leaseDurationSeconds",
    "leaseTransitions",
    "lendablePercent",
    "manualSelector",
    "maxFailedIndexes",
    "minDomains",
    "minReplicas",
    "mode",
    "nominalConcurrencyShares",
    "optional",
    "orphanDependents",
    "parallelism",
    "podInfoOnMount",
    "priority",
    "privileged",
    "progressDeadlineSeconds",
    "readOnlyRootFilesystem",
    "replicas",
    "requiresRepublish",
    "revisionHistoryLimit",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "runtimeClassName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "stabilizationWindowSeconds",
    "startingDeadlineSeconds",
    "storageCapacity",
    "storageClassName",
    "successfulJobsHistoryLimit",
    "suspend",
    "targetCPUUtilizationPercentage",
    "terminationGracePeriodSeconds",
    "timeZone",
    "tolerationSeconds",
    "ttlSecondsAfterFinished",
];

/// Why a body could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It is not what it claims to be.
    #[error("the protobuf body is malformed: {0}")]
    Malformed(&'static str),
    /// The envelope names a kind whose encoding is not known here.
    #[error("no protobuf encoding is known for {0}")]
    UnknownKind(String),
}

const TRUNCATED: DecodeError = DecodeError::Malformed("it ends in the middle of a field");

/// Fields of a message by number.
type Fields = BTreeMap<u32, Field>;

#[derive(Debug)]
enum Field {
    /// A field of this name.
    Named(String),
    /// A message whose fields belong to the object around it.
    Embedded(Fields),
}

/// The object in a body, as JSON has it.
pub fn to_json(body: &[u8]) -> Result<Value, DecodeError> {
    let envelope = body.strip_prefix(PREFIX).ok_or(DecodeError::Malformed("the prefix is missing"))?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for part in parts(envelope) {
        match part? {
            (1, Wire::Bytes(type_meta)) => {
                for part in parts(type_meta) {
                    match part? {
                        (1, Wire::Bytes(bytes)) => api_version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, Wire::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(DecodeError::Malformed("its content is encoded once more"));
            }
            _ => {}
        }
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let unknown = || DecodeError::UnknownKind(format!("{kind} in {api_version}"));
    let options = format!("{META}.{kind}");
    let name = match builtin::document().definition_name(&GroupVersionKind::new(group, version, &kind)) {
        Some(name) => name,
        // Options are sent under the group of what they are for.
        None if kind.ends_with("Options") => options.as_str(),
        None => return Err(unknown()),
    };
    let fields = table().get(name).ok_or_else(unknown)?;
    let schema = builtin::definition(name).ok_or_else(unknown)?;
    let mut object = Map::new();
    message(raw, fields, schema, &mut object, 0)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

fn table() -> &'static BTreeMap<String, Fields> {
    static TABLE: OnceLock<BTreeMap<String, Fields>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let lines = include_str!("../data/protobuf-fields.txt").lines();
        lines
            .filter_map(|line| line.split_once(' '))
            .map(|(name, rest)| (name.to_owned(), read_fields(&mut &*rest)))
            .collect()
    })
}

/// Reads `1=name,2=(1=a,2=b)` up to the end or a closing parenthesis. The table is ours and a test reads all of it.
fn read_fields(rest: &mut &str) -> Fields {
    let mut fields = Fields::new();
    while let Some((number, after)) = rest.split_once('=') {
        let Ok(number) = number.parse() else { break };
        *rest = after;
        let field = match after.strip_prefix('(') {
            Some(inner) => {
                *rest = inner;
                let embedded = read_fields(rest);
                *rest = rest.strip_prefix(')').unwrap_or(rest);
                Field::Embedded(embedded)
            }
            None => {
                let end = after.find([',', ')']).unwrap_or(after.len());
                *rest = &after[end..];
                Field::Named(after[..end].to_owned())
            }
        };
        fields.insert(number, field);
        match rest.strip_prefix(',') {
            Some(next) => *rest = next,
            None => break,
        }
    }
    fields
}

/// One field on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Double(u64),
    Float(u32),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
fn parts(mut rest: &[u8]) -> impl Iterator<Item = Result<(u32, Wire<'_>), DecodeError>> {
    let mut failed = false;
    std::iter::from_fn(move || {
        if rest.is_empty() || failed {
            return None;
        }
        let part = next_part(&mut rest);
        failed = part.is_err();
        Some(part)
    })
}

fn next_part<'a>(rest: &mut &'a [u8]) -> Result<(u32, Wire<'a>), DecodeError> {
    let key = varint(rest)?;
    let number = u32::try_from(key >> 3).map_err(|_| DecodeError::Malformed("a field number is out of range"))?;
    let mut take = |length: usize| -> Result<&'a [u8], DecodeError> {
        let (taken, after) = rest.split_at_checked(length).ok_or(TRUNCATED)?;
        *rest = after;
        Ok(taken)
    };
    let wire = match key & 7 {
        0 => Wire::Number(varint(rest)?),
        1 => Wire::Double(u64::from_le_bytes(take(8)?.try_into().map_err(|_| TRUNCATED)?)),
        2 => {
            let length = usize::try_from(varint(rest)?).map_err(|_| TRUNCATED)?;
            let (taken, after) = rest.split_at_checked(length).ok_or(TRUNCATED)?;
            *rest = after;
            Wire::Bytes(taken)
        }
        5 => Wire::Float(u32::from_le_bytes(take(4)?.try_into().map_err(|_| TRUNCATED)?)),
        _ => return Err(DecodeError::Malformed("a field has an unknown wire type")),
    };
    Ok((number, wire))
}

fn varint(rest: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first().ok_or(TRUNCATED)?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(DecodeError::Malformed("a number is too long"))
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Malformed("a text is not UTF-8"))
}

/// Reads a message's fields into `object`; `schema` has their types.
fn message(
    bytes: &[u8],
    fields: &Fields,
    schema: &Value,
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    if depth > DEPTH_MAX {
        return Err(DecodeError::Malformed("messages are nested too deep"));
    }
    for part in parts(bytes) {
        let (number, wire) = part?;
        match fields.get(&number) {
            // A field newer than the table: as unknown as an unknown JSON field, but without a name to complain of.
            None => {}
            Some(Field::Embedded(embedded)) => {
                if let Wire::Bytes(inner) = wire {
                    message(inner, embedded, schema, object, depth + 1)?;
                }
            }
            Some(Field::Named(name)) => {
                let Some(field) = schema.pointer("/properties").and_then(|it| it.get(name)) else { continue };
                read_field(name, wire, field, schema, object, depth)?;
            }
        }
    }
    Ok(())
}

fn read_field(
    name: &str,
    wire: Wire<'_>,
    field: &Value,
    schema: &Value,
    object: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    match (field.get("type").and_then(Value::as_str), field.get("additionalProperties")) {
        (Some("array"), _) => {
            let list = object.entry(name).or_insert_with(|| json!([]));
            let items = field.get("items").unwrap_or(&Value::Null);
            if let Value::Array(list) = list {
                push_items(list, wire, items, depth)?;
            }
        }
        (_, Some(values)) => {
            let Wire::Bytes(entry) = wire else { return Err(DecodeError::Malformed("a map entry is no message")) };
            let (key, value) = map_entry(entry, values, depth)?;
            if let Value::Object(map) = object.entry(name).or_insert_with(|| json!({})) {
                map.insert(key, value);
            }
        }
        _ => {
            let value = scalar_or_message(wire, field, depth)?;
            let required = schema.get("required").and_then(Value::as_array);
            let required = required.is_some_and(|list| list.iter().any(|it| it == name));
            let zero = match &value {
                Value::Null => true,
                Value::Bool(flag) => !flag,
                Value::Number(number) => number.as_i64() == Some(0),
                Value::String(text) => text.is_empty(),
                _ => false,
            };
            if !zero || !value.is_null() && (required || POINTERS.contains(&name)) {
                object.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn push_items(list: &mut Vec<Value>, wire: Wire<'_>, items: &Value, depth: usize) -> Result<(), DecodeError> {
    let is_number = items.get("type").is_some_and(|it| it == "integer");
    match wire {
        // Numbers may be packed.
        Wire::Bytes(mut packed) if is_number => {
            while !packed.is_empty() {
                list.push(Value::from(varint(&mut packed)? as i64));
            }
        }
        wire => list.push(scalar_or_message(wire, items, depth)?),
    }
    Ok(())
}

fn map_entry(entry: &[u8], values: &Value, depth: usize) -> Result<(String, Value), DecodeError> {
    let (mut key, mut value) = (String::new(), None);
    for part in parts(entry) {
        match part? {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            // Lists as values are wrapped into a message of their own.
            (2, Wire::Bytes(bytes)) if values.get("type").is_some_and(|it| it == "array") => {
                let mut list = Vec::new();
                for item in parts(bytes) {
                    if let (1, wire) = item? {
                        push_items(&mut list, wire, values.get("items").unwrap_or(&Value::Null), depth + 1)?;
                    }
                }
                value = Some(Value::Array(list));
            }
            (2, wire) => value = Some(scalar_or_message(wire, values, depth + 1)?),
            _ => {}
        }
    }
    let empty = || match values.get("type").and_then(Value::as_str) {
        Some("array") => json!([]),
        Some("string") => json!(""),
        _ => json!({}),
    };
    Ok((key, value.unwrap_or_else(empty)))
}

fn scalar_or_message(wire: Wire<'_>, schema: &Value, depth: usize) -> Result<Value, DecodeError> {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let name = reference.rsplit('/').next().unwrap_or_default();
        let Wire::Bytes(bytes) = wire else { return Err(DecodeError::Malformed("a message is no message")) };
        return reference_value(name, bytes, depth + 1);
    }
    let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
    let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
    Ok(match (wire, kind) {
        (Wire::Bytes(bytes), "string") if format == "byte" => base64(bytes),
        (Wire::Bytes(bytes), _) => text(bytes)?.into(),
        (Wire::Number(number), "boolean") => (number != 0).into(),
        // Negative numbers are sign-extended to 64 bits, whatever their width.
        (Wire::Number(number), _) => (number as i64).into(),
        (Wire::Double(bits), _) => Number::from_f64(f64::from_bits(bits)).map_or(Value::Null, Value::Number),
        (Wire::Float(bits), _) => Number::from_f64(f32::from_bits(bits).into()).map_or(Value::Null, Value::Number),
    })
}

fn base64(bytes: &[u8]) -> Value {
    base64::engine::general_purpose::STANDARD.encode(bytes).into()
}

/// A message of a type with a name; several are not objects in JSON.
fn reference_value(name: &str, bytes: &[u8], depth: usize) -> Result<Value, DecodeError> {
    let find = |wanted: u32| parts(bytes).filter_map(Result::ok).find(|(number, _)| *number == wanted);
    let number = |wanted: u32| match find(wanted) {
        Some((_, Wire::Number(number))) => number as i64,
        _ => 0,
    };
    let content = |wanted: u32| match find(wanted) {
        Some((_, Wire::Bytes(bytes))) => bytes,
        _ => &[],
    };
    match name.rsplit('.').next().unwrap_or_default() {
        "Quantity" => Ok(text(content(1))?.into()),
        "IntOrString" => Ok(if number(1) == 1 { text(content(3))?.into() } else { number(2).into() }),
        // An empty message is Go's zero time: no time at all.
        "Time" | "MicroTime" if bytes.is_empty() => Ok(Value::Null),
        "Time" => time(number(1), 0, "%Y-%m-%dT%H:%M:%SZ"),
        "MicroTime" => time(number(1), number(2), "%Y-%m-%dT%H:%M:%S.%6fZ"),
        "FieldsV1" | "RawExtension" | "JSON" => match content(1) {
            [] => Ok(Value::Null),
            raw => serde_json::from_slice(raw).map_err(|_| DecodeError::Malformed("embedded JSON is not JSON")),
        },
        _ => {
            let (Some(fields), Some(schema)) = (table().get(name), builtin::definition(name)) else {
                return Err(DecodeError::UnknownKind(name.to_owned()));
            };
            let mut object = Map::new();
            message(bytes, fields, schema, &mut object, depth)?;
            Ok(Value::Object(object))
        }
    }
}

fn time(seconds: i64, nanos: i64, format: &str) -> Result<Value, DecodeError> {
    let nanos = i32::try_from(nanos).unwrap_or_default();
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| DecodeError::Malformed("a time is out of range"))?;
    Ok(time.strftime(format).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with bytes.
    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        let mut length = content.len();
        while length >= 0x80 {
            out.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend_from_slice(content);
        out
    }

    fn number(number: u8, value: u8) -> Vec<u8> {
        vec![number << 3, value]
    }

    fn body(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let type_meta = [bytes(1, api_version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [PREFIX.to_vec(), bytes(1, &type_meta), bytes(2, object), bytes(3, b""), bytes(4, b"")].concat()
    }

    #[test]
    fn a_namespace_as_go_writes_it_is_a_namespace_as_people_write_it() {
        // Name, then everything that is not a pointer as zero: generateName, uid, generation, an unset creation time.
        let label = [bytes(1, b"team"), bytes(2, b"a")].concat();
        let metadata =
            [bytes(1, b"team-a"), bytes(2, b""), bytes(5, b""), number(7, 0), bytes(8, b""), bytes(11, &label)]
                .concat();
        let object = [bytes(1, &metadata), bytes(2, b""), bytes(3, &bytes(1, b""))].concat();
        assert_eq!(
            to_json(&body("v1", "Namespace", &object)).expect("decodes"),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a", "labels": {"team": "a"}},
                "spec": {}, "status": {}})
        );
    }

    #[test]
    fn pointers_keep_their_zeros_and_embedded_messages_have_no_level() {
        let quantity = bytes(1, b"500m");
        let requests = bytes(2, &[bytes(1, b"cpu"), bytes(2, &quantity)].concat());
        let probe =
            [bytes(1, &bytes(2, &[bytes(2, &[number(1, 0), number(2, 80)].concat())].concat())), number(2, 0)].concat();
        let container = [bytes(1, b"c"), bytes(8, &requests), bytes(10, &probe)].concat();
        let volume = [bytes(1, b"v"), bytes(2, &bytes(2, b""))].concat();
        let pod = [bytes(1, &volume), bytes(2, &container), number(4, 0), number(11, 0)].concat();
        let template = bytes(2, &pod);
        let spec = [number(1, 0), bytes(6, &template), number(10, 0)].concat();
        let job = to_json(&body("batch/v1", "Job", &bytes(2, &spec))).expect("decodes");
        assert_eq!(
            job["spec"],
            json!({"parallelism": 0, "suspend": false, "template": {"spec": {
                "terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}},
                    "livenessProbe": {"httpGet": {"port": 80}}}]}}})
        );
    }

    #[test]
    fn a_review_has_lists_in_a_map_and_a_secret_is_base64() {
        let extra = [bytes(1, b"scopes"), bytes(2, &[bytes(1, b"a"), bytes(1, b"b")].concat())].concat();
        let review = bytes(2, &[bytes(3, b"alice"), bytes(5, &extra)].concat());
        let review = to_json(&body("authorization.k8s.io/v1", "SubjectAccessReview", &review)).expect("decodes");
        assert_eq!(review["spec"], json!({"user": "alice", "extra": {"scopes": ["a", "b"]}}));
        let secret = bytes(2, &[bytes(1, b"k"), bytes(2, &[0, 1, 2])].concat());
        let secret = to_json(&body("v1", "Secret", &secret)).expect("decodes");
        assert_eq!(secret["data"], json!({"k": "AAEC"}));
    }

    #[test]
    fn bad_bodies_are_refused() {
        assert!(matches!(to_json(b"{}"), Err(DecodeError::Malformed(_))));
        let cut = &body("v1", "Namespace", &bytes(1, b"x"))[..20];
        assert_eq!(to_json(cut), Err(TRUNCATED));
        assert_eq!(to_json(&body("x/v1", "Y", b"")), Err(DecodeError::UnknownKind("Y in x/v1".to_owned())));
        let options = to_json(&body("policy/v1", "DeleteOptions", &number(1, 0))).expect("decodes");
        assert_eq!(options["gracePeriodSeconds"], 0);
    }

    #[test]
    fn every_field_in_the_table_is_a_field_of_its_definition() {
        fn names(fields: &Fields, out: &mut Vec<String>) {
            for field in fields.values() {
                match field {
                    Field::Named(name) => out.push(name.clone()),
                    Field::Embedded(inner) => names(inner, out),
                }
            }
        }
        assert!(table().len() > 400);
        for (name, fields) in table() {
            let schema = builtin::definition(name).expect("published");
            let mut all = Vec::new();
            names(fields, &mut all);
            for field in all {
                assert!(schema["properties"].get(&field).is_some(), "{name}: {field}");
            }
        }
    }
}
