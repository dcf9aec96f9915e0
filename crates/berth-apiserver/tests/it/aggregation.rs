//! Groups of aggregated API servers, over real sockets: authentication, forwarded requests, and
//! discovery while a server is unavailable.
//!
//! The tests need a port because they test certificates.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apiserver::pki::Pki;
use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_store::MemoryStore;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, read};

#[allow(clippy::disallowed_methods, reason = "TLS libraries use the real clock")]
fn pki() -> Pki {
    Pki::ephemeral(jiff::Timestamp::now()).expect("keys")
}

/// An aggregated API server that accepts only the front proxy, and returns the request that it
/// received.
struct AggregatedServer {
    port: u16,
    ca_bundle: String,
}

impl AggregatedServer {
    async fn start(front_proxy_pem: &str) -> AggregatedServer {
        let own = pki();
        let identity = own.serving(&["echo.team-a.svc".to_owned()]).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(front_proxy_pem.as_bytes()).expect("PEM")).expect("an authority");
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM")],
                PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("PEM"),
            )
            .expect("a key");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = socket.local_addr().expect("bound").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = socket.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(echo);
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        AggregatedServer { port, ca_bundle: STANDARD.encode(own.authority_pem()) }
    }
}

async fn echo(request: Request<hyper::body::Incoming>) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let (parts, body) = request.into_parts();
    let answer = if parts.uri.path() == "/apis/echo.example.com/v1" {
        json!({"kind": "APIResourceList", "resources": [
            {"name": "shouts", "singularName": "shout", "namespaced": true, "kind": "Shout", "verbs": ["get", "list"]},
            {"name": "shouts/scale", "singularName": "", "namespaced": true, "kind": "Scale", "group": "autoscaling",
             "version": "v1", "verbs": ["get"]},
            {"name": "whispers", "singularName": null, "namespaced": true, "kind": 7, "verbs": ["get", 1],
             "shortNames": "w"},
        ]})
    } else {
        let values = |name: &str| -> Vec<String> {
            parts.headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
        };
        let body = body.collect().await.expect("a body").to_bytes();
        json!({
            "method": parts.method.as_str(), "uri": parts.uri.to_string(), "body": String::from_utf8_lossy(&body),
            "user": values("x-remote-user"), "groups": values("x-remote-group"), "accept": values("accept"),
            "authorization": values("authorization"), "content-type": values("content-type"),
        })
    };
    Ok(Response::new(Full::new(Bytes::from(answer.to_string()))))
}

fn api_service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": spec})
}

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const NAME: &str = "v1.echo.example.com";

impl Server {
    /// Waits until the condition Available has this reason, and returns the condition.
    async fn available(&self, reason: &str) -> Value {
        for _ in 0..400 {
            let object = self.get(&format!("{SERVICES}/{NAME}")).await.expect(200);
            if let Some(condition) = object["status"]["conditions"].get(0).filter(|it| it["reason"] == reason) {
                return condition.clone();
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("never {reason}: {:#}", self.get(&format!("{SERVICES}/{NAME}")).await.body);
    }

    async fn ask_as(&self, user: UserInfo, method: Method, uri: &str, body: &str) -> Answer {
        self.send_as(user, method, uri, "application/json", body).await
    }

    async fn send_as(&self, user: UserInfo, method: Method, uri: &str, media: &str, body: &str) -> Answer {
        let request = Request::builder().method(method).uri(uri).header("x-remote-user", "system:admin");
        let request = request.header("accept", "application/json").header("content-type", media);
        let request = request.body(Full::new(body.to_owned().into())).unwrap();
        read(self.api.handle(request, user).await).await
    }
}

#[tokio::test]
async fn requests_for_an_aggregated_group_are_forwarded_while_its_server_is_available() {
    let pki = pki();
    let proxy = pki.front_proxy().expect("a certificate");
    let aggregated = AggregatedServer::start(&proxy.authority_pem).await;
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut config = Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now));
    config.front_proxy = Some(proxy.clone());
    let server = Server { api: ApiServer::new(config) };
    let following = tokio::spawn(server.api.clone().follow_services());

    let published = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let published = server.get(published).await.expect(200);
    assert_eq!(published["data"]["requestheader-client-ca-file"], proxy.authority_pem);
    assert_eq!(published["data"]["requestheader-allowed-names"], "[\"front-proxy-client\"]");

    let spec = json!({"group": "echo.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
        "caBundle": aggregated.ca_bundle, "service": {"namespace": "team-a", "name": "echo"}});
    let made = server.post(SERVICES, api_service(NAME, spec)).await.expect(201);
    assert_eq!(made["spec"]["service"]["port"], 443);
    assert_eq!(server.available("ServiceNotFound").await["status"], "False");
    const SHOUT: &str = "/apis/echo.example.com/v1/namespaces/default/shouts/one";
    let rejected = server.get(SHOUT).await.expect(503);
    assert!(rejected["message"].as_str().unwrap().contains("service/echo in \"team-a\" is not present"), "{rejected}");

    server.post("/api/v1/namespaces", json!({"metadata": {"name": "team-a"}})).await.expect(201);
    let service = json!({"metadata": {"name": "echo"}, "spec": {"ports": [{"port": 443}]}});
    server.post("/api/v1/namespaces/team-a/services", service).await.expect(201);
    server.available("MissingEndpoints").await;
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/team-a/endpointslices";
    let slice = json!({"metadata": {"name": "echo-1", "labels": {"kubernetes.io/service-name": "echo"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [{"port": aggregated.port}]});
    server.post(SLICES, slice).await.expect(201);
    assert_eq!(server.available("Passed").await["status"], "True");

    // The user is authorized here, and forwarded in headers that the client cannot set.
    let ann = UserInfo::new("ann", &["team-a"]);
    assert_eq!(server.ask_as(ann.clone(), Method::GET, SHOUT, "").await.code, 403);
    let role = json!({"metadata": {"name": "shouter"},
        "rules": [{"apiGroups": ["echo.example.com"], "resources": ["*"], "verbs": ["get", "create"]}]});
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await.expect(201);
    let binding = json!({"metadata": {"name": "ann"}, "subjects": [{"kind": "User", "name": "ann"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "shouter"}});
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let seen = server.ask_as(ann.clone(), Method::GET, &format!("{SHOUT}?limit=3"), "").await.expect(200);
    assert_eq!(seen["uri"], format!("{SHOUT}?limit=3"));
    assert_eq!((&seen["user"], &seen["groups"][0]), (&json!(["ann"]), &json!("team-a")));
    assert_eq!(seen["accept"], json!(["application/json"]));
    let collection = SHOUT.trim_end_matches("/one");
    let seen = server.ask_as(ann.clone(), Method::POST, collection, "{\"loud\":true}").await.expect(200);
    assert_eq!((&seen["method"], &seen["body"]), (&json!("POST"), &json!("{\"loud\":true}")));
    // Protobuf bodies of aggregated kinds are forwarded undecoded. Authorization comes before the
    // check of the media type.
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let shout = "k8s\0\n\u{1c}\n\u{13}echo.example.com/v1\u{12}\u{5}Shout";
    let seen = server.send_as(ann.clone(), Method::POST, collection, PROTOBUF, shout).await.expect(200);
    assert_eq!((&seen["body"], &seen["content-type"]), (&json!(shout), &json!([PROTOBUF])));
    server.send_as(ann, Method::PUT, SHOUT, PROTOBUF, shout).await.expect(403);

    // Every form of discovery lists the group.
    let groups = server.get("/apis").await.expect(200);
    let group = groups["groups"].as_array().unwrap().iter().find(|it| it["name"] == "echo.example.com").cloned();
    assert_eq!(group.expect("listed")["preferredVersion"]["version"], "v1");
    assert_eq!(server.get("/apis/echo.example.com").await.expect(200)["kind"], "APIGroup");
    let list = server.get("/apis/echo.example.com/v1").await.expect(200);
    assert_eq!(list["resources"][0]["name"], "shouts");
    let discovered = async || {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let all = read(server.raw(Method::GET, "/apis", &[("accept", accept)], Bytes::new()).await).await.expect(200);
        let items = all["items"].as_array().unwrap().clone();
        let found = items.into_iter().find(|item| item["metadata"]["name"] == "echo.example.com");
        found.expect("listed")["versions"][0].clone()
    };
    let version = discovered().await;
    assert_eq!((&version["freshness"], &version["resources"][0]["resource"]), (&json!("Current"), &json!("shouts")));
    assert_eq!(version["resources"][0]["subresources"][0]["responseKind"]["group"], "autoscaling");
    // Fields of the wrong type are dropped: with them, clients could not decode the document.
    let kind = json!({"group": "echo.example.com", "version": "v1", "kind": ""});
    let whispers = json!({"resource": "whispers", "responseKind": kind, "scope": "Namespaced", "singularResource": "",
        "verbs": ["get"], "subresources": []});
    assert_eq!(version["resources"][1], whispers);

    // Without endpoints, the server is reported as unavailable at once.
    server.delete(&format!("{SLICES}/echo-1"), Value::Null).await.expect(200);
    server.available("MissingEndpoints").await;
    server.get(SHOUT).await.expect(503);
    assert_eq!(discovered().await["freshness"], "Stale");
    server.delete(&format!("{SERVICES}/{NAME}"), Value::Null).await.expect(200);
    server.get(SHOUT).await.expect(404);
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn api_services_need_a_valid_group_service_and_ca_bundle() {
    let server = crate::harness::server();
    let spec = |more: Value| {
        let mut spec =
            json!({"group": "a.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        spec
    };
    let local = server.post(SERVICES, api_service("v1.a.example.com", spec(json!({})))).await.expect(201);
    assert_eq!(local["status"]["conditions"][0]["reason"], "Local");
    server.delete(&format!("{SERVICES}/v1.a.example.com"), Value::Null).await.expect(200);
    let service = json!({"namespace": "n", "name": "s"});
    let cases = [
        ("v2.a.example.com", json!({}), "metadata.name"),
        ("v1.a.example.com", json!({"groupPriorityMinimum": 20_001}), "spec.groupPriorityMinimum"),
        ("v1.a.example.com", json!({"versionPriority": 0}), "spec.versionPriority"),
        ("v1.a.example.com", json!({"insecureSkipTLSVerify": true}), "spec.insecureSkipTLSVerify"),
        ("v1.a.example.com", json!({"caBundle": "aGVsbG8="}), "spec.caBundle"),
        ("v1.a.example.com", json!({"service": {"name": "s"}}), "spec.service.namespace"),
        ("v1.a.example.com", json!({"service": service, "caBundle": "aGVsbG8="}), "spec.caBundle"),
        ("v.", json!({"group": "", "version": "v"}), "spec.group"),
    ];
    for (name, more, field) in cases {
        let rejected = server.post(SERVICES, api_service(name, spec(more.clone()))).await;
        assert_eq!(rejected.code, 422, "{more}: {:#}", rejected.body);
        let rejected = rejected.body;
        let causes = rejected["details"]["causes"].as_array().unwrap().clone();
        assert!(causes.iter().any(|cause| cause["field"] == field), "{more}: {rejected:#}");
    }
}
