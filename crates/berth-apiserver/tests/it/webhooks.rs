//! Admission and conversion webhooks over real sockets: requests, responses and failures.
//!
//! The tests need a port because they test TLS and time limits.

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apiserver::auth::tokens::TokenKey;
use berth_apiserver::pki::Pki;
use berth_apiserver::{ApiServer, Config};
use berth_store::{MemoryStore, Write};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::harness::Server;

/// A webhook server that responds to reviews and records them.
struct WebhookServer {
    port: u16,
    ca_bundle: String,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
}

impl WebhookServer {
    async fn start(answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> WebhookServer {
        // Certificates are checked against the system's clock.
        #[allow(clippy::disallowed_methods, reason = "TLS libraries use the real clock")]
        let pki = Pki::ephemeral(jiff::Timestamp::now()).expect("keys");
        let identity = pki.serving(&["hook.team-a.svc".to_owned()]).expect("a certificate");
        let certificate = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a key");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, record) = (Arc::new(answer), seen.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let (acceptor, answer, record) = (acceptor.clone(), answer.clone(), record.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                        let (answer, record) = (answer.clone(), record.clone());
                        async move {
                            let path = request.uri().path().to_owned();
                            let body = request.into_body().collect().await.expect("a body").to_bytes();
                            let review: Value = serde_json::from_slice(&body).expect("JSON");
                            record.lock().unwrap().push((path.clone(), review.clone()));
                            let mut response = answer(&path, &review["request"]);
                            response["uid"] = review["request"]["uid"].clone();
                            let review = json!({
                                "apiVersion": review["apiVersion"], "kind": review["kind"], "response": response,
                            });
                            Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(review.to_string()))))
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        WebhookServer { port, ca_bundle: STANDARD.encode(pki.authority_pem()), seen }
    }

    fn url(&self, path: &str) -> Value {
        json!({"url": format!("https://127.0.0.1:{}{path}", self.port), "caBundle": self.ca_bundle})
    }

    fn seen(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

fn server() -> Server {
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    Server { api: ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now))) }
}

fn webhook(name: &str, client: Value, more: Value) -> Value {
    let mut webhook = json!({
        "name": format!("{name}.example.com"), "clientConfig": client, "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE", "DELETE"],
                   "resources": ["configmaps"]}],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        webhook[key] = value.clone();
    }
    webhook
}

async fn configure(server: &Server, kind: &str, name: &str, webhooks: Value) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let object = json!({"metadata": {"name": name}, "webhooks": webhooks});
    server.post(&format!("/apis/admissionregistration.k8s.io/v1/{plural}"), object).await.expect(201)
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "1"}})
}

fn patch(operations: Value) -> Value {
    json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(operations.to_string())})
}

#[tokio::test]
async fn webhooks_can_change_objects_warn_and_reject() {
    let hook_server = WebhookServer::start(|path, request| match path {
        "/label" => patch(json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}])),
        _ if request["object"]["data"]["a"] == "bad" => json!({"allowed": false, "warnings": ["mind the gap"],
            "status": {"code": 403, "reason": "Forbidden", "message": "a must not be bad"}}),
        _ => json!({"allowed": true, "warnings": ["mind the gap"]}),
    })
    .await;
    let server = server();
    let stored = configure(
        &server,
        "MutatingWebhookConfiguration",
        "m",
        json!([webhook("l", hook_server.url("/label"), json!({}))]),
    )
    .await;
    assert_eq!(stored["webhooks"][0]["timeoutSeconds"], 10);
    assert_eq!(stored["webhooks"][0]["rules"][0]["scope"], "*");
    let check = webhook("c", hook_server.url("/check"), json!({}));
    configure(&server, "ValidatingWebhookConfiguration", "v", json!([check])).await;

    let answer = server.post(MAPS, map("one")).await;
    assert_eq!(answer.warnings, ["299 - \"mind the gap\""]);
    assert_eq!(answer.expect(201)["metadata"]["labels"]["seen"], "yes");
    let seen = hook_server.seen();
    assert_eq!(seen.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["/label", "/check"]);
    let request = &seen[0].1["request"];
    assert_eq!(request["operation"], "CREATE");
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(request["userInfo"]["username"], "tester");
    assert_eq!(request["options"]["kind"], "CreateOptions");
    assert_eq!((&request["oldObject"], &request["dryRun"]), (&Value::Null, &json!(false)));

    let mut bad = map("two");
    bad["data"]["a"] = "bad".into();
    let rejected = server.post(MAPS, bad).await.expect(403);
    let message = "admission webhook \"c.example.com\" denied the request: a must not be bad";
    assert_eq!((&rejected["message"], &rejected["reason"]), (&json!(message), &json!("Forbidden")));
    server.get(&format!("{MAPS}/two")).await.expect(404);

    server.delete(&format!("{MAPS}/one"), Value::Null).await.expect(200);
    let (_, review) = hook_server.seen().pop().expect("called for the deletion");
    assert_eq!(review["request"]["operation"], "DELETE");
    assert_eq!(review["request"]["oldObject"]["metadata"]["name"], "one");
    assert_eq!(review["request"]["object"], Value::Null);

    // Without its configuration, the webhook is not called.
    server
        .delete("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/m", Value::Null)
        .await
        .expect(200);
    assert!(server.post(MAPS, map("three")).await.expect(201)["metadata"]["labels"].is_null());
}

#[tokio::test]
async fn webhooks_decide_about_connections_to_pods() {
    let hook_server = WebhookServer::start(|_, request| {
        let command = request["object"]["command"].as_array().into_iter().flatten();
        let is_shell = command.into_iter().any(|word| word == "sh");
        let status = json!({"code": 403, "reason": "Forbidden", "message": "shells are not allowed"});
        if is_shell { json!({"allowed": false, "status": status}) } else { json!({"allowed": true}) }
    })
    .await;
    let server = server();
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"],
        "resources": ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy"]}]);
    let hook = webhook("shells", hook_server.url("/"), json!({"rules": rules}));
    configure(&server, "ValidatingWebhookConfiguration", "v", json!([hook])).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "i"}]}});
    server.post(pods, pod).await.expect(201);
    assert!(hook_server.seen().is_empty(), "the creation of a pod is not a connection");

    let denied =
        server.get(&format!("{pods}/p/exec?container=main&command=sh&command=-c&stdin=true")).await.expect(403);
    assert_eq!(
        denied["message"],
        "admission webhook \"shells.example.com\" denied the request: shells are not allowed"
    );
    let (_, review) = hook_server.seen().pop().expect("called");
    let request = &review["request"];
    assert_eq!((&request["operation"], &request["subResource"]), (&json!("CONNECT"), &json!("exec")));
    assert_eq!((&request["name"], &request["namespace"]), (&json!("p"), &json!("default")));
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "PodExecOptions"}));
    assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "pods"}));
    let options = json!({"apiVersion": "v1", "kind": "PodExecOptions", "container": "main", "stdin": true,
        "command": ["sh", "-c"]});
    assert_eq!(request["object"], options);
    assert_eq!((&request["oldObject"], &request["options"]), (&Value::Null, &Value::Null));

    // Allowed: the connection fails later, because no node runs the pod.
    server.get(&format!("{pods}/p/exec?command=true")).await.expect(400);
    for (path, kind) in [
        ("attach?stdout=true", "PodAttachOptions"),
        ("portforward?ports=80", "PodPortForwardOptions"),
        ("proxy/metrics", "PodProxyOptions"),
    ] {
        hook_server.seen();
        server.get(&format!("{pods}/p/{path}")).await;
        let (_, review) = hook_server.seen().pop().unwrap_or_else(|| panic!("not called for {path}"));
        let request = &review["request"];
        assert_eq!((&request["operation"], &request["object"]["kind"]), (&json!("CONNECT"), &json!(kind)));
    }
}

/// The test environment of controller-runtime joins host and path with two slashes.
#[tokio::test]
async fn the_path_of_a_webhook_is_normalized() {
    let hook_server = WebhookServer::start(|_, _| json!({"allowed": true})).await;
    let server = server();
    let hooks = json!([
        webhook("a", hook_server.url("//mutate--v1-configmap"), json!({})),
        webhook("b", hook_server.url("/a//./b/../c%20d/"), json!({})),
    ]);
    configure(&server, "ValidatingWebhookConfiguration", "v", hooks).await;
    server.post(MAPS, map("one")).await.expect(201);
    let mut paths: Vec<String> = hook_server.seen().into_iter().map(|(path, _)| path).collect();
    paths.sort();
    assert_eq!(paths, ["/a/c%20d", "/mutate--v1-configmap"]);
}

#[tokio::test]
async fn an_unreachable_webhook_is_handled_by_its_failure_policy() {
    let server = server();
    let unreachable = json!({"url": "https://127.0.0.1:1/"});
    let lax = webhook("lax", unreachable.clone(), json!({"failurePolicy": "Ignore", "timeoutSeconds": 1}));
    configure(&server, "ValidatingWebhookConfiguration", "lax", json!([lax])).await;
    server.post(MAPS, map("one")).await.expect(201);
    let strict = webhook("strict", unreachable, json!({"objectSelector": {"matchLabels": {"guarded": "yes"}}}));
    configure(&server, "ValidatingWebhookConfiguration", "strict", json!([strict])).await;
    server.post(MAPS, map("two")).await.expect(201);
    let mut guarded = map("three");
    guarded["metadata"]["labels"] = json!({"guarded": "yes"});
    let rejected = server.post(MAPS, guarded).await.expect(500);
    let message = rejected["message"].as_str().expect("a message");
    assert!(
        message.contains("failed calling webhook \"strict.example.com\": Post \"https://127.0.0.1:1/?timeout=10s\""),
        "{message}"
    );
    // Webhooks are not called for webhook configurations. Otherwise a webhook that rejects every
    // request could not be deleted.
    server
        .delete("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/strict", Value::Null)
        .await
        .expect(200);
}

#[tokio::test]
async fn webhooks_are_called_again_after_a_later_webhook_changed_the_object() {
    let hook_server = WebhookServer::start(|path, request| match path {
        "/count" => {
            let before = request["object"]["metadata"]["annotations"]["count"].as_str().unwrap_or("0");
            let count = before.parse::<u32>().expect("a number") + 1;
            patch(json!([{"op": "add", "path": "/metadata/annotations", "value": {"count": count.to_string()}}]))
        }
        _ => patch(json!([{"op": "add", "path": "/data/b", "value": "2"}])),
    })
    .await;
    let server = server();
    let again = webhook("a", hook_server.url("/count"), json!({"reinvocationPolicy": "IfNeeded"}));
    let change = webhook("b", hook_server.url("/change"), json!({}));
    configure(&server, "MutatingWebhookConfiguration", "m", json!([again, change])).await;
    let stored = server.post(MAPS, map("one")).await.expect(201);
    assert_eq!((&stored["metadata"]["annotations"]["count"], &stored["data"]["b"]), (&json!("2"), &json!("2")));
    assert_eq!(hook_server.seen().len(), 3);
}

#[tokio::test]
async fn an_object_changed_by_a_webhook_must_match_the_type_of_its_kind() {
    let hook_server = WebhookServer::start(|_, request| {
        let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
        match request["object"]["metadata"]["name"].as_str().expect("a name") {
            "number" => patch(add("/data/x", json!(1))),
            "field" => patch(add("/colour", json!("red"))),
            "kind" => patch(add("/apiVersion", json!("v2"))),
            _ => patch(add("", json!("nothing"))),
        }
    })
    .await;
    let server = server();
    let all = json!([webhook("all", hook_server.url("/"), json!({}))]);
    configure(&server, "MutatingWebhookConfiguration", "m", all).await;
    let rejected = server.post(MAPS, map("number")).await.expect(500);
    let message = "Internal error occurred: ConfigMap \"number\", as changed by admission webhook \"all.example.com\", \
                   cannot be decoded: json: cannot unmarshal number into Go struct field ConfigMap.data of type string";
    assert_eq!(rejected["message"], message);
    server.get(&format!("{MAPS}/number")).await.expect(404);
    let stored = server.post(MAPS, map("field")).await.expect(201);
    assert_eq!((&stored["colour"], &stored["data"]), (&Value::Null, &json!({"a": "1"})));
    for (name, why) in [
        ("kind", "apiVersion must stay \"v1\", but was changed to \"v2\""),
        ("text", "apiVersion must stay \"v1\", but was changed to null"),
    ] {
        let rejected = server.post(MAPS, map(name)).await.expect(500);
        assert!(rejected["message"].as_str().unwrap().ends_with(why), "{rejected}");
    }
}

#[tokio::test]
async fn a_webhook_with_side_effects_is_not_called_for_dry_runs() {
    let hook_server = WebhookServer::start(|_, _| json!({"allowed": true})).await;
    let server = server();
    let plain = json!([webhook("plain", hook_server.url("/"), json!({}))]);
    configure(&server, "ValidatingWebhookConfiguration", "plain", plain).await;
    server.post(&format!("{MAPS}?dryRun=All"), map("one")).await.expect(201);
    assert_eq!(hook_server.seen()[0].1["request"]["dryRun"], true);
    server.post(MAPS, map("one")).await.expect(201);
    server.delete(&format!("{MAPS}/one?dryRun=All"), Value::Null).await.expect(200);
    let asked = hook_server.seen()[1].1["request"].take();
    assert_eq!((&asked["operation"], &asked["dryRun"]), (&json!("DELETE"), &json!(true)));
    // The webhook is now as if it had been stored before this validation existed.
    let name = "validatingwebhookconfigurations";
    let key = format!("/admissionregistration.k8s.io/{name}/plain");
    let store = server.api.store_handle();
    let record = store.get(&key).expect("stored");
    let mut older = record.value().as_ref().clone();
    older["webhooks"][0]["sideEffects"] = "Unknown".into();
    let write = Write::Update { key, expected: record.revision, value: older };
    store.commit(write).await.expect("stored");
    configure(&server, "ValidatingWebhookConfiguration", "other", json!([])).await;
    let rejected = server.delete(&format!("{MAPS}/one?dryRun=All"), Value::Null).await.expect(400);
    assert_eq!(rejected["message"], "admission webhook \"plain.example.com\" does not support dry run");
    assert!(hook_server.seen().is_empty(), "the webhook was called");
    server.get(&format!("{MAPS}/one")).await.expect(200);
    let some = webhook("some", hook_server.url("/"), json!({"sideEffects": "Some"}));
    let object = json!({"metadata": {"name": "some"}, "webhooks": [some]});
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let rejected = server.post(path, object).await.expect(422);
    let message = rejected["message"].as_str().expect("a message");
    assert!(message.contains("webhooks[0].sideEffects: Unsupported value: \"Some\""), "{message}");
}

#[tokio::test]
async fn a_webhook_service_is_resolved_by_its_endpoints() {
    let hook_server = WebhookServer::start(|_, _| json!({"allowed": false})).await;
    let server = server();
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "team-a"}})).await.expect(201);
    let service =
        json!({"service": {"name": "hook", "namespace": "team-a", "path": "/v"}, "caBundle": hook_server.ca_bundle});
    let exempt = json!({"namespaceSelector": {"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]}});
    let check = json!([webhook("svc", service, exempt)]);
    configure(&server, "ValidatingWebhookConfiguration", "svc", check).await;
    let missing = server.post(MAPS, map("one")).await.expect(500);
    assert!(missing["message"].as_str().unwrap().contains("service \"hook\" not found"), "{missing}");
    server.post("/api/v1/namespaces/kube-system/configmaps", map("one")).await.expect(201);
    let ports = json!([{"name": "https", "port": 443, "targetPort": 9443}]);
    let object = json!({"metadata": {"name": "hook"}, "spec": {"ports": ports, "selector": {"app": "hook"}}});
    server.post("/api/v1/namespaces/team-a/services", object).await.expect(201);
    let slice = json!({
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"name": "https", "port": hook_server.port}],
    });
    server.post("/apis/discovery.k8s.io/v1/namespaces/team-a/endpointslices", slice).await.expect(201);
    let rejected = server.post(MAPS, map("one")).await.expect(400);
    let message = "admission webhook \"svc.example.com\" denied the request without explanation";
    assert_eq!(rejected["message"], message);
    assert_eq!(hook_server.seen()[0].0, "/v");
}

#[tokio::test]
async fn a_webhook_in_a_pod_network_is_reached_by_the_given_connections() {
    const POD: &str = "10.255.0.7";
    let hook_server = WebhookServer::start(|_, _| json!({"allowed": false})).await;
    let mut config = Config::new(Arc::new(MemoryStore::new()), Arc::new(|| "2026-01-01T00:00:00Z".parse().unwrap()));
    config.dial = Some(Arc::new(|address| {
        assert_eq!(address.ip().to_string(), POD);
        Box::pin(TcpStream::connect(("127.0.0.1", address.port())))
    }));
    let server = Server { api: ApiServer::new(config) };
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "team-a"}})).await.expect(201);
    let ports = json!([{"name": "https", "port": 443}]);
    let object = json!({"metadata": {"name": "hook"}, "spec": {"ports": ports}});
    server.post("/api/v1/namespaces/team-a/services", object).await.expect(201);
    let slice = json!({
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": [POD]}], "ports": [{"name": "https", "port": hook_server.port}],
    });
    server.post("/apis/discovery.k8s.io/v1/namespaces/team-a/endpointslices", slice).await.expect(201);
    let service = json!({"service": {"name": "hook", "namespace": "team-a"}, "caBundle": hook_server.ca_bundle});
    let check = json!([webhook("svc", service, json!({}))]);
    configure(&server, "ValidatingWebhookConfiguration", "svc", check).await;
    let rejected = server.post(MAPS, map("one")).await.expect(400);
    assert_eq!(rejected["message"], "admission webhook \"svc.example.com\" denied the request without explanation");
    assert_eq!(hook_server.seen().len(), 1);
}

/// Operation, resource, subresource, kind and name in a review.
fn asked(review: &Value) -> [String; 5] {
    let request = &review["request"];
    let paths = ["/operation", "/resource/resource", "/subResource", "/kind/kind", "/name"];
    paths.map(|path| request.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned())
}

#[tokio::test]
async fn webhooks_see_evictions_bindings_and_token_requests() {
    let hook_server = WebhookServer::start(|_, request| {
        let name = request["name"].as_str().unwrap_or_default();
        match request["kind"]["kind"].as_str() {
            Some("Eviction") => {
                patch(json!([{"op": "add", "path": "/deleteOptions", "value": {"gracePeriodSeconds": 7}}]))
            }
            Some("Binding") if request["object"]["target"]["name"] == "there" => {
                patch(json!([{"op": "replace", "path": "/target/name", "value": "here"}]))
            }
            _ => json!({"allowed": name != "kept", "status": {"message": "the pod is kept"}}),
        }
    })
    .await;
    let mut config = Config::new(Arc::new(MemoryStore::new()), Arc::new(|| "2026-01-01T00:00:00Z".parse().unwrap()));
    config.token_key = Some(TokenKey::generate().expect("a key"));
    let server = Server { api: ApiServer::new(config) };
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["one", "kept"] {
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        server.post(pods, json!({"metadata": {"name": name}, "spec": spec})).await.expect(201);
    }
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    server.post(accounts, json!({"metadata": {"name": "robot"}})).await.expect(201);
    let rules = json!({"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"],
        "resources": ["pods/*", "serviceaccounts/token", "bindings", "pods"]}]});
    let change = json!([webhook("m", hook_server.url("/change"), rules.clone())]);
    configure(&server, "MutatingWebhookConfiguration", "m", change).await;

    let binding =
        |name: &str, node: &str| json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
    server.post(&format!("{pods}/one/binding"), binding("one", "there")).await.expect(201);
    assert_eq!(server.get(&format!("{pods}/one")).await.expect(200)["spec"]["nodeName"], "here");
    let seen = hook_server.seen();
    assert_eq!(
        seen.iter().map(|(_, review)| asked(review)).collect::<Vec<_>>(),
        [["CREATE", "pods", "binding", "Binding", "one"]]
    );
    assert_eq!(seen[0].1["request"]["object"]["target"]["name"], "there");
    let rejected = server.post("/api/v1/namespaces/default/bindings", binding("kept", "n")).await.expect(400);
    assert!(rejected["message"].as_str().unwrap().contains("the pod is kept"), "{rejected}");
    assert_eq!(asked(&hook_server.seen()[0].1), ["CREATE", "bindings", "", "Binding", "kept"]);
    server.post(&format!("{pods}/kept/binding"), binding("other", "n")).await.expect(400);
    let mut elsewhere = binding("kept", "n");
    elsewhere["metadata"]["namespace"] = "team-a".into();
    server.post(&format!("{pods}/kept/binding"), elsewhere).await.expect(400);
    assert!(server.get(&format!("{pods}/kept")).await.expect(200)["spec"]["nodeName"].is_null());
    hook_server.seen();

    let token = json!({"spec": {"audiences": []}});
    server.post(&format!("{accounts}/robot/token"), token).await.expect(201);
    let seen = hook_server.seen();
    assert_eq!(asked(&seen[0].1), ["CREATE", "serviceaccounts", "token", "TokenRequest", "robot"]);
    assert_eq!(seen[0].1["request"]["kind"]["group"], "authentication.k8s.io");
    let other = json!({"metadata": {"name": "other"}, "spec": {"audiences": []}});
    let rejected = server.post(&format!("{accounts}/robot/token"), other).await.expect(422);
    assert!(rejected["message"].as_str().unwrap().contains("must match the service account name"), "{rejected}");
    hook_server.seen();

    // The eviction has the grace period that the webhook set.
    let eviction = json!({"metadata": {"name": "one"}});
    server.post(&format!("{pods}/one/eviction"), eviction.clone()).await.expect(201);
    let pod = server.get(&format!("{pods}/one")).await.expect(200);
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 7);
    let seen: Vec<_> = hook_server.seen().iter().map(|(_, review)| asked(review)).collect();
    assert_eq!(seen, [["CREATE", "pods", "eviction", "Eviction", "one"]], "not called for the pod's deletion");
    let check = json!([webhook("v", json!({"url": "https://127.0.0.1:1/"}), rules)]);
    configure(&server, "ValidatingWebhookConfiguration", "v", check).await;
    let eviction = json!({"metadata": {"name": "kept"}});
    server.post(&format!("{pods}/kept/eviction"), eviction).await.expect(500);
    assert!(server.get(&format!("{pods}/kept")).await.expect(200)["metadata"]["deletionTimestamp"].is_null());
}

#[tokio::test]
async fn a_webhook_can_rename_an_object_but_not_move_it_to_another_namespace() {
    let hook_server = WebhookServer::start(|_, request| {
        let wanted = request["object"]["metadata"]["annotations"].as_object();
        let replaced = wanted.into_iter().flatten().filter_map(|(at, value)| {
            Some(json!({"op": "add", "path": format!("/{}", at.strip_prefix("set.")?.replace('.', "/")), "value": value}))
        });
        patch(replaced.collect())
    })
    .await;
    let server = server();
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "team-a"}})).await.expect(201);
    let crd = json!({"metadata": {"name": "things.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await.expect(201);
    let rules = json!({"rules": [{"apiGroups": ["", "example.com"], "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"], "resources": ["configmaps", "things"]}]});
    configure(&server, "MutatingWebhookConfiguration", "m", json!([webhook("m", hook_server.url("/"), rules)])).await;
    let things = "/apis/example.com/v1/namespaces/default/things";
    let object = |api_version: &str, kind: &str, name: &str, set: &str, value: &str| {
        let annotations = json!({format!("set.{set}"): value});
        json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "annotations": annotations}})
    };
    for (path, api_version, kind) in [(MAPS, "v1", "ConfigMap"), (things, "example.com/v1", "Thing")] {
        let new = |name: &str, set: &str, value: &str| object(api_version, kind, name, set, value);
        let rejected = server.post(path, new("a", "metadata.namespace", "team-a")).await.expect(400);
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        assert_eq!(rejected["message"], message);
        // The object is stored under the name that the webhook set.
        let stored = server.post(path, new("a", "metadata.name", "b")).await.expect(201);
        assert_eq!(stored["metadata"]["name"], "b");
        server.get(&format!("{path}/a")).await.expect(404);
        assert_eq!(server.get(&format!("{path}/b")).await.expect(200)["metadata"]["name"], "b");
        server.post(path, new("c", "metadata.name", "b")).await.expect(409);
        server.post(path, new("c", "metadata.name", "no name")).await.expect(422);
    }
}

/// Converts between minutes (v1) and seconds (v2). It also changes the generation, which the server
/// must ignore.
async fn converter() -> WebhookServer {
    WebhookServer::start(|_, request| {
        let wanted = request["desiredAPIVersion"].as_str().expect("a version");
        let convert = |object: &Value| {
            let mut object = object.clone();
            object["apiVersion"] = wanted.into();
            object["spec"] = match object["spec"]["minutes"].as_i64() {
                Some(minutes) if wanted.ends_with("v2") => json!({"seconds": minutes * 60}),
                _ => json!({"minutes": object["spec"]["seconds"].as_i64().expect("seconds") / 60}),
            };
            object["metadata"]["generation"] = 77.into();
            object
        };
        let objects = request["objects"].as_array().expect("objects");
        if objects.iter().any(|object| object["metadata"]["name"] == "cursed") {
            return json!({"result": {"status": "Failure", "message": "the object is cursed"}});
        }
        let objects: Vec<Value> = objects.iter().map(convert).collect();
        json!({"result": {"status": "Success"}, "convertedObjects": objects})
    })
    .await
}

/// URL path of the timers in a version.
fn timers(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/timers")
}

/// A server with the kind Timer, which `hook_server` converts.
async fn server_with_timers(hook_server: &WebhookServer) -> Server {
    let server = server();
    let version = |name: &str, field: &str| {
        json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": {field: {"type": "integer"}}}}}}})
    };
    let conversion = json!({"strategy": "Webhook",
        "webhook": {"clientConfig": hook_server.url("/convert"), "conversionReviewVersions": ["v1"]}});
    let crd = json!({"metadata": {"name": "timers.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "conversion": conversion,
        "names": {"plural": "timers", "kind": "Timer"}, "versions": [version("v1", "minutes"), version("v2", "seconds")],
    }});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd).await.expect(201);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversion_webhook_converts_objects_between_versions() {
    let hook_server = converter().await;
    let server = server_with_timers(&hook_server).await;
    let new = json!({"metadata": {"name": "t"}, "spec": {"seconds": 120}});
    let made = server.post(&timers("v2"), new).await.expect(201);
    assert_eq!((&made["spec"], &made["metadata"]["generation"]), (&json!({"seconds": 120}), &json!(1)));
    let stored = server.get(&format!("{}/t", timers("v1"))).await.expect(200);
    assert_eq!(stored["spec"], json!({"minutes": 2}));
    hook_server.seen();
    let listed = server.get(&timers("v2")).await.expect(200);
    assert_eq!(listed["items"][0]["spec"], json!({"seconds": 120}));
    server.get(&timers("v2")).await.expect(200);
    assert!(hook_server.seen().len() <= 1, "conversions are cached");
    let patch = json!({"spec": {"seconds": 180}});
    server.patch(&format!("{}/t", timers("v2")), "merge-patch", patch).await.expect(200);
    assert_eq!(server.get(&format!("{}/t", timers("v1"))).await.expect(200)["spec"]["minutes"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_of_a_list_are_converted_in_batches_and_cached() {
    let hook_server = converter().await;
    let server = server_with_timers(&hook_server).await;
    let create = async |index: usize| {
        let labels = json!({"even": index.is_multiple_of(2).to_string()});
        let timer = json!({"metadata": {"name": format!("t{index:03}"), "labels": labels}, "spec": {"minutes": index}});
        server.post(&timers("v1"), timer).await.expect(201);
    };
    let asked = |hook_server: &WebhookServer| {
        let reviews = hook_server.seen().into_iter();
        reviews.map(|(_, review)| review["request"]["objects"].as_array().unwrap().len()).collect::<Vec<_>>()
    };
    for index in 0..120 {
        create(index).await;
    }
    assert_eq!(asked(&hook_server), [0usize; 0]);
    let listed = server.get(&timers("v2")).await.expect(200);
    let items = listed["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[7]["spec"]), (120, &json!({"seconds": 420})));
    assert_eq!(asked(&hook_server), [100, 20]);
    // Lists with selectors and watches convert only objects that are not cached.
    create(120).await;
    let selected = server.get(&format!("{}?labelSelector=even%3Dtrue&limit=61", timers("v2"))).await.expect(200);
    assert_eq!(selected["items"][60]["spec"]["seconds"], 7200);
    assert_eq!(asked(&hook_server), [1]);
    create(121).await;
    create(122).await;
    let mut watch = server.watch(&format!("{}?watch=true", timers("v2"))).await;
    for index in 0..123 {
        assert_eq!(watch.next().await.unwrap().1["spec"]["seconds"], index * 60);
    }
    assert_eq!(asked(&hook_server), [2]);
    // A list with an object that cannot be converted fails.
    server.post(&timers("v1"), json!({"metadata": {"name": "cursed"}, "spec": {"minutes": 1}})).await.expect(201);
    let rejected = server.get(&timers("v2")).await.expect(500);
    let message = rejected["message"].as_str().unwrap();
    assert!(
        message.contains("conversion webhook for example.com/v1, Kind=Timer failed: the object is cursed"),
        "{message}"
    );
    assert_eq!(server.get(&timers("v1")).await.expect(200)["items"].as_array().unwrap().len(), 124);
}
