//! Generator of values from bytes. It uses few names and shapes, so that generated objects, patches
//! and schemas often refer to the same fields.

use serde_json::{Map, Number, Value, json};

/// Maximum nesting of generated values.
const DEPTH_MAX: usize = 6;

/// The bytes that remain. Each choice of the generator takes one byte.
pub(crate) struct Source<'a>(&'a [u8]);

/// Names of fields.
const NAMES: [&str; 24] = [
    "metadata",
    "name",
    "labels",
    "spec",
    "template",
    "containers",
    "env",
    "ports",
    "image",
    "value",
    "status",
    "a",
    "b",
    "$patch",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "$retainKeys",
    "finalizers",
    "ownerReferences",
    "uid",
    "op",
    "path",
    "matchLabels",
    "matchExpressions",
];
/// Values of text fields.
const TEXTS: [&str; 16] = [
    "",
    "a",
    "b",
    "delete",
    "replace",
    "merge",
    "add",
    "remove",
    "test",
    "/metadata/name",
    "/a/0",
    "/a/-",
    "1Gi",
    "2026-01-01T00:00:00Z",
    "a/b",
    "\u{0}\u{10ffff}",
];

impl<'a> Source<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Source(data)
    }

    /// Takes a byte. Zero if none is left.
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// Chooses a text.
    fn choice<'b>(&mut self, texts: &[&'b str]) -> &'b str {
        texts[usize::from(self.byte()) % texts.len()]
    }

    pub(crate) fn value(&mut self) -> Value {
        self.value_at(0)
    }

    pub(crate) fn object(&mut self) -> Value {
        self.map(0)
    }

    fn map(&mut self, depth: usize) -> Value {
        let count = self.byte() % 5;
        let fields = (0..count).map(|_| (self.choice(&NAMES).to_owned(), self.value_at(depth + 1)));
        Value::Object(fields.collect())
    }

    fn value_at(&mut self, depth: usize) -> Value {
        match self.byte() % 10 {
            0..=2 if depth < DEPTH_MAX => self.map(depth),
            3..=4 if depth < DEPTH_MAX => (0..self.byte() % 4).map(|_| self.value_at(depth + 1)).collect(),
            5 => Value::Null,
            6 => Value::Bool(self.byte().is_multiple_of(2)),
            7 => json!(i64::from(self.byte()) - 100),
            8 => Number::from_f64(f64::from(self.byte()) * 1e300).map_or(Value::Null, Value::Number),
            _ => self.choice(&TEXTS).into(),
        }
    }

    pub(crate) fn schema(&mut self) -> Value {
        self.schema_at(0)
    }

    fn schema_at(&mut self, depth: usize) -> Value {
        const KEYWORDS: [&str; 24] = [
            "properties",
            "items",
            "additionalProperties",
            "required",
            "default",
            "enum",
            "nullable",
            "minimum",
            "maximum",
            "pattern",
            "format",
            "minLength",
            "maxItems",
            "multipleOf",
            "allOf",
            "anyOf",
            "not",
            "x-kubernetes-preserve-unknown-fields",
            "x-kubernetes-int-or-string",
            "x-kubernetes-list-type",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-embedded-resource",
            "x-kubernetes-validations",
            "$ref",
        ];
        let mut schema = Map::new();
        let types = ["object", "object", "array", "string", "integer", "number", "boolean", ""];
        schema.insert("type".to_owned(), self.choice(&types).into());
        for _ in 0..self.byte() % 5 {
            let keyword = self.choice(&KEYWORDS);
            let value = match keyword {
                _ if depth >= DEPTH_MAX => continue,
                "properties" => {
                    let count = self.byte() % 4;
                    let fields = (0..count).map(|_| (self.choice(&NAMES).to_owned(), self.schema_at(depth + 1)));
                    Value::Object(fields.collect())
                }
                "items" | "additionalProperties" | "not" => self.schema_at(depth + 1),
                "allOf" | "anyOf" => (0..self.byte() % 3).map(|_| self.schema_at(depth + 1)).collect(),
                "required" | "x-kubernetes-list-map-keys" => {
                    (0..self.byte() % 3).map(|_| Value::from(self.choice(&NAMES))).collect()
                }
                "pattern" => self.choice(&["^a+$", "(", "[a-z]{1,1000}", "(a*)*b", ""]).into(),
                "format" => self.choice(&["date-time", "int32", "byte", "ipv4", "nothing"]).into(),
                "x-kubernetes-list-type" => self.choice(&["atomic", "set", "map", "heap"]).into(),
                "x-kubernetes-validations" => {
                    let rules = ["self == oldSelf", "has(self.a)", "self.all(x, x != '')", "size(self) < 5", "self."];
                    json!([{"rule": self.choice(&rules), "message": self.choice(&TEXTS)}])
                }
                keyword if keyword.starts_with("x-") || keyword == "nullable" => {
                    Value::Bool(!self.byte().is_multiple_of(4))
                }
                _ => self.value_at(depth + 1),
            };
            schema.insert(keyword.to_owned(), value);
        }
        Value::Object(schema)
    }

    /// Generates a request with valid and invalid methods, paths, queries, headers and bodies.
    /// `None` if HTTP does not allow the request.
    pub(crate) fn request(&mut self) -> Option<http::Request<Vec<u8>>> {
        const PATHS: [&str; 20] = [
            "/api",
            "/apis",
            "/version",
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/api/v1",
            "/api/v1",
            "/api/v1/namespaces",
            "/api/v1/namespaces/default",
            "/api/v1/namespaces/default/configmaps",
            "/api/v1/namespaces/default/configmaps/a",
            "/api/v1/namespaces/default/pods",
            "/api/v1/namespaces/default/pods/a/status",
            "/api/v1/namespaces/default/pods/a/eviction",
            "/apis/batch/v1/namespaces/default/jobs/a",
            "/apis/apps/v1/namespaces/default/deployments/a/scale",
            "/api/v1/nodes/a",
            "/healthz",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        ];
        const QUERIES: [&str; 14] = [
            "",
            "watch=true&timeoutSeconds=1",
            "limit=1",
            "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ",
            "resourceVersion=5",
            "resourceVersion=99999999999999999999",
            "labelSelector=a%3Db",
            "fieldSelector=metadata.name%3Da",
            "dryRun=All",
            "fieldManager=f&force=true",
            "fieldValidation=Strict",
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            "propagationPolicy=Foreground&gracePeriodSeconds=-1",
            "pretty=true&%ff=%00",
        ];
        const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"];
        const TYPES: [&str; 9] = [
            "application/json",
            "application/yaml",
            "application/merge-patch+json",
            "application/json-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
            "application/vnd.kubernetes.protobuf",
            "application/cbor",
            "text/\u{7f}",
        ];
        const ACCEPTS: [&str; 5] = [
            "*/*",
            "application/json;as=Table;v=v1;g=meta.k8s.io",
            "application/yaml",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            ";;;",
        ];
        let (method, path, query) = (self.choice(&METHODS), self.choice(&PATHS), self.choice(&QUERIES));
        let separator = if query.is_empty() { "" } else { "?" };
        let mut request = http::Request::builder().method(method).uri(format!("{path}{separator}{query}"));
        request = request.header("content-type", self.choice(&TYPES)).header("accept", self.choice(&ACCEPTS));
        if self.byte().is_multiple_of(8) {
            request = request.header("impersonate-user", self.choice(&TEXTS));
        }
        let body = match self.byte() % 4 {
            // The remaining bytes, unchanged.
            0 => self.0.to_vec(),
            1 => self.value().to_string().into_bytes(),
            2 => {
                let mut object = self.object();
                object["metadata"] = json!({"name": "a"});
                object.to_string().into_bytes()
            }
            _ => {
                let schema = self.schema();
                json!({"metadata": {"name": "boats.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
                    "names": {"plural": "boats", "kind": "Boat"}, "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}}]}})
                .to_string()
                .into_bytes()
            }
        };
        request.body(body).ok()
    }
}
