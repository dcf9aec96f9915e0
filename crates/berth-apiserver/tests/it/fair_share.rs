//! Fair sharing among users over the listener. The order of writes is tested, not times.
//!
//! The tests need a port because only requests over the listener take turns.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::pki::Pki;
use berth_apiserver::{Answer, ApiServer, Asked, Config, Extension, UserInfo};
use berth_store::MemoryStore;
use http_body_util::BodyExt;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::harness::Server;

/// An HTTP/2 connection, which carries many requests at once.
async fn multiplexed(address: SocketAddr, pki: &Pki) -> SendRequest<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.authority_pem().as_bytes()).expect("PEM")).expect("an authority");
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols.push(b"h2".to_vec());
    let stream = TcpStream::connect(address).await.expect("a connection");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.expect("TLS");
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

/// Creates a ConfigMap as the user of a token. Returns its revision.
async fn create(mut connection: SendRequest<String>, token: &'static str, name: String) -> u64 {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string();
    let request = http::Request::post("https://localhost/api/v1/namespaces/default/configmaps")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {token}"))
        .body(body)
        .expect("a request");
    let response = connection.send_request(request).await.expect("a response");
    assert_eq!(response.status(), 201);
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    let object: Value = serde_json::from_slice(&body).expect("JSON");
    object["metadata"]["resourceVersion"].as_str().expect("a text").parse().expect("a number")
}

#[tokio::test]
async fn a_flood_of_one_user_does_not_delay_the_write_of_another_user() {
    const CONNECTIONS: usize = 5;
    const FLOOD: usize = 1000;
    let (listener, pki, now) = crate::wire::on_a_free_port().await;
    let address = listener.address();
    let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now)));
    server.ready().await.expect("stored");
    // These users are not in system:masters, whose members are exempt from fair sharing.
    let tokens = ["flood", "tenant"].map(|name| (name.to_owned(), UserInfo::new(name, &["tenants"])));
    let group = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tenants"});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
    let binding = json!({"metadata": {"name": "tenants"}, "roleRef": role, "subjects": [group]});
    let harness = Server { api: server.clone() };
    harness.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let authenticator = Arc::new(Authenticator::new(tokens.into(), None));
    let store = server.store_handle();
    let serve = tokio::spawn(listener.serve(server, authenticator, std::future::pending()));

    // The tenant sends one request after all requests of the flood were sent.
    let tenant = multiplexed(address, &pki).await;
    let (mut flood, sent) = (tokio::task::JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    for connection in 0..CONNECTIONS {
        let sender = multiplexed(address, &pki).await;
        for number in 0..FLOOD / CONNECTIONS {
            let (sender, sent) = (sender.clone(), sent.clone());
            flood.spawn(async move {
                sent.fetch_add(1, Ordering::Relaxed);
                create(sender, "flood", format!("flood-{connection}-{number}")).await
            });
        }
    }
    while sent.load(Ordering::Relaxed) < FLOOD {
        tokio::task::yield_now().await;
    }
    let sending = store.revision();
    let revision = create(tenant, "tenant", "own".to_owned()).await;
    let revisions = flood.join_all().await;
    let left = revisions.iter().filter(|flood| **flood > sending).count();
    let before = revisions.iter().filter(|flood| **flood > sending && **flood < revision).count();
    assert!(left > FLOOD / 2, "most of the flood was written before the tenant's request");
    assert!(before < left / 4, "{before} of {left} writes of the flood came before the tenant's");
    serve.abort();
}

/// An extension that sends an access review to the server itself and returns its status.
#[derive(Default)]
struct ReviewExtension(OnceLock<ApiServer>);

impl Extension for ReviewExtension {
    fn group(&self) -> &str {
        "asks.example.com"
    }

    fn versions(&self) -> &[&str] {
        &["v1"]
    }

    fn resources(&self) -> Vec<Value> {
        Vec::new()
    }

    fn get<'a>(&'a self, asked: Asked<'a>) -> Answer<'a> {
        Box::pin(async move {
            let server = Server { api: self.0.get().expect("set by the test").clone() };
            // Yields, like a client whose connection is driven by another task.
            tokio::task::yield_now().await;
            let attributes = json!({"verb": "list", "resource": "pods", "namespace": asked.info.namespace});
            let review = json!({"spec": {"user": asked.user.name, "groups": asked.user.groups, "resourceAttributes": attributes}});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            Ok(server.post(path, review).await.expect(201)["status"].clone())
        })
    }
}

#[tokio::test]
async fn an_extension_releases_its_lane_while_it_calls_the_server() {
    let (listener, pki, now) = crate::wire::on_a_free_port().await;
    let address = listener.address();
    let asks = Arc::new(ReviewExtension::default());
    let mut config = Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now));
    config.extensions = vec![asks.clone()];
    let server = ApiServer::new(config);
    server.ready().await.expect("stored");
    assert!(asks.0.set(server.clone()).is_ok());
    let tokens = [("flood".to_owned(), UserInfo::new("flood", &["tenants"]))];
    let group = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "tenants"});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    let binding = json!({"metadata": {"name": "tenants"}, "roleRef": role, "subjects": [group]});
    let harness = Server { api: server.clone() };
    harness.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let authenticator = Arc::new(Authenticator::new(tokens.into(), None));
    let serve = tokio::spawn(listener.serve(server, authenticator, std::future::pending()));
    // Far more requests than lanes: requests that kept their lanes would wait for each other.
    let connection = multiplexed(address, &pki).await;
    let mut answers = tokio::task::JoinSet::new();
    for number in 0..100 {
        let mut connection = connection.clone();
        answers.spawn(async move {
            let path = format!("https://localhost/apis/asks.example.com/v1/namespaces/n-{number}/things/it");
            let request = http::Request::get(path).header("authorization", "Bearer flood").body(String::new());
            let response = connection.send_request(request.expect("a request")).await.expect("a response");
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await.expect("a body").to_bytes();
            serde_json::from_slice::<Value>(&body).expect("JSON")["allowed"].clone()
        });
    }
    assert_eq!(answers.join_all().await, vec![json!(true); 100]);
    serve.abort();
}
