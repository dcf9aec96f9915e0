//! Kubernetes' protobuf encoding of built-in kinds, which its Go clients use. Request bodies are
//! decoded to JSON first; responses are encoded last.
//!
//! The encoding is a four-byte prefix and an envelope with apiVersion, kind and the object. One
//! table (`PROTOBUF_FIELDS` of berth-apimachinery) lists the number and type of each field, and
//! whether Go writes the field when it is zero. The table drives both directions: no kind has code
//! of its own.

mod decode;
mod encode;
mod table;

pub use decode::{DecodeError, to_json};
pub use encode::{EncodeError, from_json};
pub use encode::{LeftOut, ListEncoder, from_json_lossy, put_event};

/// Media type of protobuf bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// Prefix of every protobuf body.
pub const PREFIX: &[u8] = b"k8s\0";

#[cfg(test)]
mod tests {
    use berth_apimachinery::builtin;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use serde_json::{Map, Value, json};

    use super::decode::TRUNCATED;
    use super::table::{Field, Kind, Many, Message, table};
    use super::*;

    /// An encoded field with a length-delimited value.
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
    fn a_namespace_encoded_by_go_is_decoded_without_its_zero_values() {
        // The name, and zero values of fields that are not pointers: generateName, uid, generation
        // and an unset creation time.
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
    fn pointers_keep_zero_values_and_embedded_messages_are_flattened() {
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
    fn lists_in_maps_and_base64_data_are_decoded() {
        let extra = [bytes(1, b"scopes"), bytes(2, &[bytes(1, b"a"), bytes(1, b"b")].concat())].concat();
        let review = bytes(2, &[bytes(3, b"alice"), bytes(5, &extra)].concat());
        let review = to_json(&body("authorization.k8s.io/v1", "SubjectAccessReview", &review)).expect("decodes");
        assert_eq!(review["spec"], json!({"user": "alice", "extra": {"scopes": ["a", "b"]}}));
        let secret = bytes(2, &[bytes(1, b"k"), bytes(2, &[0, 1, 2])].concat());
        let secret = to_json(&body("v1", "Secret", &secret)).expect("decodes");
        assert_eq!(secret["data"], json!({"k": "AAEC"}));
    }

    #[test]
    fn malformed_bodies_and_unknown_kinds_are_rejected() {
        assert!(matches!(to_json(b"{}"), Err(DecodeError::Malformed(_))));
        let cut = &body("v1", "Namespace", &bytes(1, b"x"))[..20];
        assert_eq!(to_json(cut), Err(TRUNCATED));
        assert_eq!(to_json(&body("x/v1", "Y", b"")), Err(DecodeError::UnknownKind("Y in x/v1".to_owned())));
        let options = to_json(&body("policy/v1", "DeleteOptions", &number(1, 0))).expect("decodes");
        assert_eq!(options["gracePeriodSeconds"], 0);
    }

    #[test]
    fn the_table_has_every_published_field() {
        let short = |name: &str| {
            let steps: Vec<&str> = name.rsplit('.').take(3).collect();
            steps.into_iter().rev().collect::<Vec<_>>().join(".")
        };
        let fields = |message: &Message| {
            let mut names = Vec::new();
            let mut messages = vec![message];
            while let Some(message) = messages.pop() {
                for field in &message.fields {
                    match (field.name, field.kind) {
                        ("", Kind::Message(inner)) => messages.push(table().at(inner)),
                        (name, _) => names.push(name),
                    }
                }
            }
            names
        };
        let mut compared = 0;
        for name in builtin::document().names() {
            let Some(message) = table().named(&short(name)) else { continue };
            compared += 1;
            let published = builtin::definition(name).expect("published")["properties"].as_object();
            let mut published: Vec<&str> = published.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            published.retain(|name| !matches!(*name, "apiVersion" | "kind"));
            let mut known = fields(message);
            known.retain(|name| !matches!(*name, "apiVersion" | "kind"));
            known.sort_unstable();
            assert_eq!(known, published, "{name}");
        }
        assert!(compared > 500, "{compared}");
    }

    #[test]
    fn every_served_kind_has_a_message() {
        for row in crate::registry::Registry::builtin().rows() {
            for version in &row.versions {
                let api_version = row.api_version(&version.name);
                assert!(table().of_kind(&api_version, &row.kind).is_some(), "{api_version} {}", row.kind);
                if row.verbs.iter().any(|verb| verb == "list") {
                    assert!(table().of_kind(&api_version, &row.list_kind).is_some(), "{api_version} {}", row.list_kind);
                }
            }
        }
    }

    /// A random object of a message. Deeper levels have fewer fields.
    fn some_object(message: &Message, random: &mut SmallRng, depth: usize) -> Map<String, Value> {
        let mut object = Map::new();
        for field in &message.fields {
            if let ("", Kind::Message(inner)) = (field.name, field.kind) {
                object.extend(some_object(table().at(inner), random, depth + 1));
            } else if random.random_bool(if depth < 4 { 0.6 } else { 0.2 }) {
                object.insert(field.name.to_owned(), some_field(field, random, depth));
            }
        }
        object
    }

    fn some_field(field: &Field, random: &mut SmallRng, depth: usize) -> Value {
        let count = if depth > 8 { 0 } else { random.random_range(0..4) };
        match field.many {
            Many::List => (0..count).map(|_| some_value(field.kind, random, depth)).collect(),
            Many::Map => {
                let entry = |_| (some_text(random), some_value(field.kind, random, depth));
                Value::Object((0..count).map(entry).collect())
            }
            _ => some_value(field.kind, random, depth),
        }
    }

    fn some_text(random: &mut SmallRng) -> String {
        let texts = ["", "a", "b", "some/text", "ä\u{10ffff}\"", "z-0"];
        let text = texts[random.random_range(0..texts.len())];
        if random.random_bool(0.1) { text.repeat(200) } else { text.to_owned() }
    }

    fn some_value(kind: Kind, random: &mut SmallRng, depth: usize) -> Value {
        let schema = Kind::Message(table().place("apiextensions.v1.JSONSchemaProps").expect("in the table"));
        let one = |values: &[Value], random: &mut SmallRng| values[random.random_range(0..values.len())].clone();
        match kind {
            Kind::Text => some_text(random).into(),
            Kind::Flag => random.random_bool(0.5).into(),
            Kind::Integer => one(&[json!(0), json!(1), json!(-1), json!(127), json!(128), json!(i64::MIN)], random),
            Kind::Double => one(&[json!(0), json!(1.5), json!(-3), json!(1e300)], random),
            Kind::Bytes => one(&[json!(""), json!("AAEC"), json!("/w==")], random),
            Kind::Texts => (0..random.random_range(0..3)).map(|_| some_text(random)).collect(),
            Kind::Quantity => one(&[json!("0"), json!("500m"), json!("1Gi")], random),
            Kind::IntOrString => one(&[json!(0), json!(80), json!(""), json!("10%")], random),
            Kind::Time => one(&[json!("2026-11-22T20:00:00Z"), json!("1969-12-31T23:59:59Z")], random),
            Kind::MicroTime => {
                one(&[json!("2026-11-22T20:00:00.123456Z"), json!("1969-12-31T23:59:59.000001Z")], random)
            }
            Kind::Raw => one(&[json!({}), json!({"f:a": {"k:{\"b\":1}": {}}}), json!([1, "x"]), json!(false)], random),
            Kind::SchemaOrArray if random.random_bool(0.3) => {
                (1..3).map(|_| some_value(schema, random, depth + 3)).collect()
            }
            Kind::SchemaOrFlag if random.random_bool(0.5) => random.random_bool(0.5).into(),
            Kind::SchemaOrTexts if random.random_bool(0.5) => some_value(Kind::Texts, random, depth),
            Kind::SchemaOrArray | Kind::SchemaOrFlag | Kind::SchemaOrTexts => some_value(schema, random, depth + 3),
            Kind::Message(place) => Value::Object(some_object(table().at(place), random, depth + 1)),
        }
    }

    /// The object that decoding an encoded object returns. Zero values of plain fields are absent,
    /// unless Go's JSON contains them. Empty lists and maps are absent.
    fn kept(message: &Message, object: &Map<String, Value>) -> Map<String, Value> {
        let mut out = Map::new();
        for field in &message.fields {
            if let ("", Kind::Message(inner)) = (field.name, field.kind) {
                out.extend(kept(table().at(inner), object));
                continue;
            }
            let keep = |value: &Value| kept_value(field.kind, value);
            let value = match (field.many, object.get(field.name)) {
                (Many::List, Some(Value::Array(items))) if !items.is_empty() => items.iter().map(keep).collect(),
                (Many::Map, Some(Value::Object(map))) if !map.is_empty() => {
                    Value::Object(map.iter().map(|(key, value)| (key.clone(), keep(value))).collect())
                }
                (Many::Optional, Some(value)) => keep(value),
                (Many::Value, value) => {
                    let zero = match field.kind {
                        Kind::Text => json!(""),
                        Kind::Flag => json!(false),
                        Kind::Integer | Kind::Double | Kind::IntOrString => json!(0),
                        Kind::Quantity => json!("0"),
                        Kind::Message(_) => json!({}),
                        _ => Value::Null,
                    };
                    let value = keep(value.unwrap_or(&zero));
                    let is_zero = value == json!("") || value.as_f64() == Some(0.0) || value == false;
                    let is_text = value.is_string() && field.kind == Kind::IntOrString;
                    let is_empty = is_zero && field.kind != Kind::Raw && !is_text;
                    if is_empty && !field.shown { Value::Null } else { value }
                }
                _ => Value::Null,
            };
            if !value.is_null() {
                out.insert(field.name.to_owned(), value);
            }
        }
        out
    }

    fn kept_value(kind: Kind, value: &Value) -> Value {
        let schema = || table().named("apiextensions.v1.JSONSchemaProps").expect("in the table");
        match (kind, value) {
            (Kind::Message(place), Value::Object(object)) => Value::Object(kept(table().at(place), object)),
            (Kind::SchemaOrArray | Kind::SchemaOrFlag | Kind::SchemaOrTexts, Value::Object(object)) => {
                Value::Object(kept(schema(), object))
            }
            (Kind::SchemaOrArray, Value::Array(list)) => list.iter().map(|it| kept_value(kind, it)).collect(),
            _ => value.clone(),
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]

        #[test]
        fn encoded_objects_decode_to_themselves(seed: u64) {
            let mut random = SmallRng::seed_from_u64(seed);
            let kinds = table().kinds();
            for _ in 0..8 {
                let (api_version, kind) = kinds[random.random_range(0..kinds.len())];
                let message = table().of_kind(api_version, kind).expect("in the table");
                let mut object = some_object(message, &mut random, 0);
                let mut expected = kept(message, &object);
                for map in [&mut object, &mut expected] {
                    map.insert("apiVersion".to_owned(), api_version.into());
                    map.insert("kind".to_owned(), kind.into());
                }
                let body = from_json(&Value::Object(object)).expect("encodes");
                proptest::prop_assert_eq!(to_json(&body).expect("decodes"), Value::Object(expected.clone()));
                // The decoded object has the same encoding.
                proptest::prop_assert_eq!(from_json(&Value::Object(expected)).expect("encodes"), body);
            }
        }

        #[test]
        fn a_list_encoded_item_by_item_equals_the_encoded_list(seed: u64) {
            let mut random = SmallRng::seed_from_u64(seed);
            for (api_version, kind) in
                [("v1", "PodList"), ("meta.k8s.io/v1", "PartialObjectMetadataList"),
                 ("meta.k8s.io/v1beta1", "PartialObjectMetadataList")]
            {
                let message = table().of_kind(api_version, kind).expect("in the table");
                let mut list = Value::Object(some_object(message, &mut random, 0));
                list["apiVersion"] = api_version.into();
                list["kind"] = kind.into();
                let metadata = list.get("metadata").cloned().unwrap_or_default();
                let encoder = ListEncoder::new(api_version, kind, &metadata).expect("in the table");
                let mut items = Vec::new();
                for item in list["items"].as_array().into_iter().flatten() {
                    assert_eq!(encoder.put_item(&mut items, item), Ok(Vec::new()));
                }
                let whole = [encoder.before(items.len()), items, encoder.after()].concat();
                proptest::prop_assert_eq!(whole, from_json(&list).expect("encodes"));
            }
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected_without_a_panic(bytes: Vec<u8>, at: proptest::sample::Index, seed: u64) {
            let _ = to_json(&[PREFIX, &bytes].concat());
            let mut random = SmallRng::seed_from_u64(seed);
            let message = table().of_kind("apps/v1", "Deployment").expect("in the table");
            let mut object = Value::Object(some_object(message, &mut random, 0));
            object["apiVersion"] = "apps/v1".into();
            object["kind"] = "Deployment".into();
            let mut body = from_json(&object).expect("encodes");
            for (offset, byte) in bytes.iter().enumerate() {
                let place = (at.index(body.len()) + offset) % body.len();
                body[place] = *byte;
            }
            let _ = to_json(&body);
        }
    }

    #[test]
    fn objects_are_encoded_as_go_encodes_them() {
        // Zero values of plain fields, the zero time as an empty message, no absent pointers.
        let metadata = [
            bytes(1, b"n"),
            bytes(2, b""),
            bytes(3, b""),
            bytes(4, b""),
            bytes(5, b""),
            bytes(6, b"7"),
            number(7, 0),
            bytes(8, b""),
        ]
        .concat();
        let data = [bytes(1, b"a"), bytes(2, b"1")].concat();
        let more = [bytes(1, b"b"), bytes(2, b"2")].concat();
        let object = [bytes(1, &metadata), bytes(2, &data), bytes(2, &more)].concat();
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "resourceVersion": "7"},
            "data": {"b": "2", "a": "1"}});
        assert_eq!(from_json(&value).expect("encodes"), body("v1", "ConfigMap", &object));
    }

    #[test]
    fn packed_managed_fields_keep_the_order_of_their_keys() {
        let list = r#"[{"manager":"m","operation":"Update","apiVersion":"v1","time":"2026-11-22T20:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:b":{},"f:a":{}}}]"#;
        let text = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"managedFields":{list}}}}}"#);
        let packed = berth_apimachinery::packed::parse(text.as_bytes()).expect("JSON");
        let written = from_json(&packed).expect("encodes");
        let raw = br#"{"f:b":{},"f:a":{}}"#;
        assert!(written.windows(raw.len()).any(|window| window == raw));
        let unpacked: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(to_json(&written), to_json(&from_json(&unpacked).expect("encodes")));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_reported_with_its_path() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a"}, {"name": 1}]}});
        let error = from_json(&pod).expect_err("a name is a string");
        assert_eq!(error.to_string(), "spec.containers[1].name cannot be encoded in protobuf: a string is expected");
        let unknown = from_json(&json!({"apiVersion": "example.com/v1", "kind": "Pod"}));
        assert!(matches!(unknown, Err(EncodeError::UnknownKind { .. })));
    }

    #[test]
    fn values_of_the_wrong_type_are_encoded_as_absent() {
        let check = |invalid: Value, valid: Value, paths: &[&str]| {
            let (body, left_out) = from_json_lossy(&invalid).expect("the kind is known");
            assert_eq!(body, from_json(&valid).expect("encodes"), "{invalid}");
            let expected: Vec<String> =
                paths.iter().map(|path| format!("{path} cannot be encoded in protobuf")).collect();
            let left_out: Vec<String> = left_out.iter().map(|error| error.to_string()).collect();
            assert_eq!(left_out.len(), expected.len(), "{left_out:?}");
            for (error, start) in left_out.iter().zip(expected) {
                assert!(error.starts_with(&start), "{error}");
            }
        };
        let pod = |containers: Value, labels: Value| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels},
                "spec": {"containers": containers, "nodeName": "n"}})
        };
        check(
            pod(
                json!([{"name": "a"}, {"name": 1, "image": "i", "ports": [{"containerPort": "x", "name": "p"}]}]),
                json!({"a": 1, "b": "x"}),
            ),
            pod(json!([{"name": "a"}, {"image": "i", "ports": [{"name": "p"}]}]), json!({"b": "x"})),
            &["metadata.labels.a", "spec.containers[1].name", "spec.containers[1].ports[0].containerPort"],
        );
        check(pod(json!("x"), json!({})), pod(json!([]), json!({})), &["spec.containers"]);
        let definition = |items: Value, subresources: Value| {
            let schema = json!({"properties": {"a": {"items": items, "type": "array"}}});
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "d"},
                "spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}, "subresources": subresources}]}})
        };
        let at = "spec.versions[0].schema.openAPIV3Schema.properties.a.items";
        check(
            definition(json!("x"), json!({"status": true})),
            definition(Value::Null, json!({})),
            &[at, "spec.versions[0].subresources.status"],
        );
        check(
            definition(json!([{"type": "string"}, {"type": 1, "title": "t"}]), json!({"status": {}})),
            definition(json!([{"type": "string"}, {"title": "t"}]), json!({"status": {}})),
            &[&format!("{at}[1].type")],
        );
        // The number of reported fields is limited.
        let many = (0..1000).map(|_| json!({"name": 1})).collect::<Value>();
        let (_, left_out) = from_json_lossy(&pod(many, json!({}))).expect("the kind is known");
        assert_eq!(left_out.len(), 16);
    }

    #[test]
    fn a_watch_event_begins_with_its_length() {
        let status = json!({"apiVersion": "v1", "kind": "Status", "code": 410});
        let mut frame = b"before".to_vec();
        put_event(&mut frame, "ERROR", &status).expect("encodes");
        let frame = &frame[6..];
        let (length, event) = frame.split_at(4);
        assert_eq!(u32::from_be_bytes(length.try_into().expect("four bytes")) as usize, event.len());
        let object = bytes(1, &from_json(&status).expect("encodes"));
        assert_eq!(event, [bytes(1, b"ERROR"), bytes(2, &object)].concat());
    }
}
