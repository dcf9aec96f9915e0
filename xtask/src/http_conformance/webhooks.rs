//! The webhooks that walks register. This program serves them over HTTPS, with a certificate of its
//! own certificate authority.
//!
//! ```yaml
//! serve:
//!   # `allowed` defaults to true.
//!   label: {response: {patch: [{op: add, path: /metadata/labels, value: {hooked: "yes"}}]}}
//!   refuse: {response: {allowed: false, status: {code: 418, message: no}, warnings: [careful]}}
//!   slow: {delaySeconds: 3}
//!   broken: {status: 500}
//!   # Renamed fields of `spec`, per target version.
//!   convert: {convert: {v1: {rowers: oars}, v2: {oars: rowers}}}
//!   refuse-to: {response: {result: {status: Failure, message: no}}}
//! ```
//!
//! Walks do not share paths: the paths of a walk are served below its id.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apiserver::pki::Pki;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The response of one webhook.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// Seconds before the response is sent.
    #[serde(default)]
    delay_seconds: u64,
    /// Status code of an empty response, instead of a review.
    #[serde(default)]
    status: Option<u16>,
    /// The review's response. `uid` is added, `patch` is encoded, and `allowed` defaults to true.
    #[serde(default)]
    response: Map<String, Value>,
    /// For a conversion webhook: per target version, old and new names of fields of `spec`.
    #[serde(default)]
    convert: BTreeMap<String, BTreeMap<String, String>>,
}

/// The served webhooks and the reviews that they received, by path.
#[derive(Default)]
struct Served {
    hooks: BTreeMap<String, Hook>,
    received: BTreeMap<String, Vec<Value>>,
}

/// The server of all webhooks.
pub struct Webhooks {
    address: String,
    authority_pem: String,
    served: Arc<Mutex<Served>>,
    task: JoinHandle<()>,
}

impl Webhooks {
    /// Serves on a free port of loopback. If `announced` names the host under which the API server
    /// reaches this program, serves on all interfaces.
    pub async fn start(announced: Option<&str>) -> anyhow::Result<Webhooks> {
        // The API server checks the certificate against the real time.
        #[allow(clippy::disallowed_methods, reason = "the API server is another process, which uses the real time")]
        let pki = Pki::ephemeral(jiff::Timestamp::now())?;
        let host = announced.unwrap_or("127.0.0.1");
        let identity = pki.serving(&[host.to_owned()])?;
        let chain =
            CertificateDer::pem_slice_iter(identity.certificate_pem.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let interface = if announced.is_some() { [0, 0, 0, 0] } else { [127, 0, 0, 1] };
        let socket = TcpListener::bind(SocketAddr::from((interface, 0))).await.context("serving webhooks")?;
        let port = socket.local_addr()?.port();
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let served = Arc::new(Mutex::new(Served::default()));
        let task = tokio::spawn(accept(socket, TlsAcceptor::from(Arc::new(tls)), served.clone()));
        Ok(Webhooks { address, authority_pem: pki.authority_pem().to_owned(), served, task })
    }

    /// A handle to the webhooks of one walk.
    pub fn of_walk(&self, run: &str) -> WalkWebhooks {
        WalkWebhooks {
            url: format!("https://{}/{run}", self.address),
            authority: STANDARD.encode(&self.authority_pem),
            prefix: format!("/{run}/"),
            served: self.served.clone(),
        }
    }
}

impl Drop for Webhooks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The webhooks of one walk.
pub struct WalkWebhooks {
    /// Base URL of the walk's paths.
    pub url: String,
    /// The certificate authority, in the form of a webhook configuration's `caBundle`.
    pub authority: String,
    prefix: String,
    served: Arc<Mutex<Served>>,
}

impl WalkWebhooks {
    /// Serves a webhook at `path` from now on.
    pub fn serve(&self, path: &str, hook: Hook) {
        let mut served = self.served.lock();
        served.hooks.insert(format!("{}{path}", self.prefix), hook);
    }

    /// The reviews that `path` received since the last call.
    pub fn received(&self, path: &str) -> Vec<Value> {
        let mut served = self.served.lock();
        served.received.remove(&format!("{}{path}", self.prefix)).unwrap_or_default()
    }
}

async fn accept(socket: TcpListener, acceptor: TlsAcceptor, served: Arc<Mutex<Served>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = socket.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, acceptor.clone(), served.clone()));
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, served: Arc<Mutex<Served>>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(move |request| {
        let served = served.clone();
        async move { Ok::<_, Infallible>(respond(request, &served).await) }
    });
    // Ignore callers that disconnect: the API server does after its timeout.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

/// The response of the webhook that a request calls.
async fn respond(request: Request<Incoming>, served: &Mutex<Served>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(review) = serde_json::from_slice::<Value>(&body) else { return empty_response(StatusCode::BAD_REQUEST) };
    let hook = {
        let mut served = served.lock();
        let Some(hook) = served.hooks.get(&path).cloned() else { return empty_response(StatusCode::NOT_FOUND) };
        let mut received = review.clone();
        received["query"] = query.into();
        served.received.entry(path).or_default().push(received);
        hook
    };
    tokio::time::sleep(Duration::from_secs(hook.delay_seconds)).await;
    if let Some(status) = hook.status {
        return empty_response(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR));
    }
    let mut response = hook.response;
    response.insert("uid".to_owned(), review["request"]["uid"].clone());
    if review["kind"] == "ConversionReview" {
        response.entry("result").or_insert_with(|| json!({"status": "Success"}));
        response.insert("convertedObjects".to_owned(), converted(&review["request"], &hook.convert));
    } else {
        response.entry("allowed").or_insert(true.into());
        if let Some(patch) = response.get_mut("patch") {
            *patch = STANDARD.encode(patch.to_string()).into();
            response.insert("patchType".to_owned(), "JSONPatch".into());
        }
    }
    let review = json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
    let response = Response::builder().header("content-type", "application/json");
    response.body(Full::from(review.to_string())).unwrap_or_else(|_| empty_response(StatusCode::INTERNAL_SERVER_ERROR))
}

fn empty_response(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// The objects of a conversion request, converted to the desired version.
fn converted(request: &Value, renames: &BTreeMap<String, BTreeMap<String, String>>) -> Value {
    let desired = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let renames = desired.rsplit_once('/').and_then(|(_, version)| renames.get(version));
    let mut objects = request["objects"].clone();
    for object in objects.as_array_mut().into_iter().flatten() {
        object["apiVersion"] = desired.into();
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { continue };
        for (old, new) in renames.into_iter().flatten() {
            if let Some(value) = spec.remove(old) {
                spec.insert(new.clone(), value);
            }
        }
    }
    objects
}
