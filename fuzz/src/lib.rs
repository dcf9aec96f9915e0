//! Fuzz targets: functions over arbitrary bytes that must not panic, one per surface that takes
//! untrusted input.
//!
//! `cargo fuzz` runs a target until it is stopped. The test `short` runs every target on each
//! change: with `seeds`, with random mutations of the seeds, and with `findings`.

mod source;

use std::cell::RefCell;
use std::sync::Arc;

use berth_apimachinery::builtin;
use berth_apimachinery::field::Path;
use berth_apimachinery::patch;
use berth_apimachinery::quantity::Quantity;
use berth_apimachinery::schema::{Root, Schema};
use berth_apimachinery::selector::{FieldSelector, LabelSelector};
use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_cel::Env;
use berth_cel::admission::policy::Expression;
use berth_cel::admission::{Declared, Inputs, environment};
use berth_cel::rules::{Request, Rules};
use berth_store::MemoryStore;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use source::Source;

/// The targets by name.
pub const TARGETS: [(&str, fn(&[u8])); 6] = [
    ("patches", patches),
    ("selectors", selectors),
    ("quantities", quantities),
    ("expressions", expressions),
    ("schemas", schemas),
    ("http", http),
];

/// An object and a patch: two JSON texts that a line feed separates. Other bytes are the input of a
/// generator.
fn pair(data: &[u8]) -> (Value, Value) {
    let texts = data.iter().position(|byte| *byte == b'\n').map(|at| (&data[..at], &data[at + 1..]));
    let parsed = texts.and_then(|(a, b)| Some((serde_json::from_slice(a).ok()?, serde_json::from_slice(b).ok()?)));
    parsed.unwrap_or_else(|| {
        let mut source = Source::new(data);
        (source.object(), source.value())
    })
}

/// Patches of all types. A merge patch must be idempotent.
pub fn patches(data: &[u8]) {
    let (object, patch) = pair(data);
    let _ = patch::apply_json(&object, &patch);
    let mut once = object.clone();
    patch::apply_merge(&mut once, &patch);
    let mut twice = once.clone();
    patch::apply_merge(&mut twice, &patch);
    assert_eq!(once, twice, "{object} {patch}");
    let difference = patch::merge_diff(&object, &once);
    let mut again = object.clone();
    patch::apply_merge(&mut again, &difference);
    // A merge patch cannot set nulls.
    if !object.to_string().contains("null") && !once.to_string().contains("null") {
        assert_eq!(again, once, "{object} {difference}");
    }
    let schema = builtin::document().definition("io.k8s.api.core.v1.PodTemplate").expect("built-in definition");
    let _ = patch::apply_strategic(&object, &patch, &schema);
    let _ = patch::two_way_strategic(&object, &patch, &schema);
    let _ = patch::three_way_strategic(&object, &patch, &once, &schema, true);
}

/// Label and field selectors. A label selector that is printed must parse to an equal one.
pub fn selectors(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(selector) = LabelSelector::parse(&text) {
        let again = LabelSelector::parse(&selector.to_string());
        assert_eq!(again.as_ref().ok().map(ToString::to_string), Some(selector.to_string()), "{text}");
    }
    let _ = FieldSelector::parse(&text);
    let (object, _) = pair(data);
    let _ = LabelSelector::from_object(&object);
    let _ = berth_apimachinery::selector::validate_object(&object, &Path::new("selector"));
}

/// Quantities. The canonical form must parse to an equal quantity.
pub fn quantities(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(quantity) = Quantity::parse(&text) else { return };
    let printed = quantity.to_string();
    let again = Quantity::parse(&printed).unwrap_or_else(|error| panic!("{text} prints as {printed}: {error}"));
    assert_eq!(again.to_string(), printed, "{text}");
    let (_, _, _) = (quantity.value(), quantity.milli_value(), quantity.as_f64());
    let mut sum = quantity;
    sum.add(again);
    sum.mul(3);
    sum.neg();
    let _ = sum.to_string();
}

/// CEL expressions, compiled and evaluated with cost limits.
pub fn expressions(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let declared = Declared { params: true, authorizer: true, ..Declared::default() };
    let expression = Expression::compile(&environment(Env::default(), &declared), &text, &[]);
    let object = json!({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"replicas": 3, "list": [1, 2.5, "x", null]},
        "time": "2026-01-01T00:00:00Z", "quantity": "1Gi"});
    let none = Value::Null;
    let request = json!({"operation": "CREATE", "userInfo": {"username": "u", "groups": ["g"]}});
    let inputs = Inputs {
        object: &object,
        old_object: &none,
        request: &request,
        params: &object,
        namespace: &none,
        authorizer: None,
    };
    let mut budget = 1_000_000;
    let _ = expression.evaluate_on(&inputs, Some(100_000), &mut budget);
}

/// Schemas of CustomResourceDefinitions, and objects that are validated with them.
pub fn schemas(data: &[u8]) {
    let mut source = Source::new(data);
    let schema = match serde_json::from_slice(data) {
        Ok(schema) => schema,
        Err(_) => source.schema(),
    };
    let mut object = source.object();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "boats.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "boats", "kind": "Boat"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    });
    let errors = berth_kinds::crd::validate::validate(&definition);
    let Ok(parsed) = Schema::parse_crd(&schema) else {
        assert!(!errors.is_empty(), "validation accepts a schema that does not parse: {schema}");
        return;
    };
    parsed.prune(&mut object, Root::Resource);
    parsed.drop_nulls(&mut object);
    parsed.apply_defaults(&mut object);
    let _ = parsed.unknown_fields(&object, Root::Resource);
    let _ = parsed.validate(&object, &Path::root());
    if let Some(rules) = Rules::of_schema(&parsed, true, Env::default()) {
        let request = Request { budget: Some(1_000_000), call_limit: Some(100_000), ..Request::default() };
        let _ = rules.validate(&object, &Path::root(), request);
    }
}

/// HTTP requests. Every request gets a response, and none has status 500.
pub fn http(data: &[u8]) {
    thread_local! {
        static SERVER: RefCell<(ApiServer, usize)> = RefCell::new((new_server(), 0));
    }
    let Some(request) = Source::new(data).request() else { return };
    let request_line = format!("{} {}", request.method(), request.uri());
    let server = SERVER.with_borrow_mut(|(server, requests)| {
        // Start again from time to time, because earlier requests stored objects.
        *requests += 1;
        if *requests % 1000 == 0 {
            *server = new_server();
        }
        server.clone()
    });
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let (parts, body) = request.into_parts();
            let request = http::Request::from_parts(parts, Full::new(Bytes::from(body)));
            let response = server.handle(request, UserInfo::master("fuzzer")).await;
            let code = response.status().as_u16();
            assert!(code != 500, "{request_line}: {code}");
            // A watch ends at its timeout. Time is paused, so this does not wait.
            let mut body = response.into_body();
            for _ in 0..4 {
                let frame = tokio::time::timeout(std::time::Duration::from_secs(3600), body.frame()).await;
                if !matches!(frame, Ok(Some(Ok(_)))) {
                    break;
                }
            }
        });
    });
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime without I/O");
}

/// A server that is ready. Requests to a server that is not ready would fail.
fn new_server() -> ApiServer {
    let now: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().expect("valid timestamp");
    let server = ApiServer::new(Config::new(Arc::new(MemoryStore::with_limits(1_000, None)), Arc::new(move || now)));
    RUNTIME.with(|runtime| runtime.block_on(server.ready())).expect("writes to a store in memory succeed");
    server
}
