//! The HTTP client webhooks are called with: one POST of JSON over TLS, one answer of JSON, within a time.
//!
//! A `service` is found by what is stored about it: an ExternalName, the addresses of its EndpointSlices or Endpoints, or
//! its cluster IP. Its certificate must be for `<name>.<namespace>.svc`.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::client_config::{Url, certificates};
use super::verifier::Verifier;
use crate::Objects;

/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Who to call, from a `clientConfig`.
pub(crate) struct Endpoint {
    place: Place,
    trust: Trust,
}

/// Whose certificates count.
enum Trust {
    /// Those of a `caBundle`.
    Bundle(Arc<rustls::ClientConfig>),
    /// The system's.
    System,
}

impl Trust {
    fn new(config: &Value) -> Result<Trust, String> {
        let Some(bundle) = config["caBundle"].as_str().filter(|bundle| !bundle.is_empty()) else {
            return Ok(Trust::System);
        };
        let mut roots = RootCertStore::empty();
        let bundle = certificates(bundle)?;
        for certificate in &bundle {
            roots.add(certificate.clone()).map_err(|error| format!("caBundle: {error}"))?;
        }
        tls(roots, bundle).map(Trust::Bundle)
    }

    /// The system's authorities are read at the first call that needs them: most definitions name a webhook that a server
    /// of one stored version never calls.
    fn config(&self) -> Result<Arc<rustls::ClientConfig>, String> {
        static SYSTEM: OnceLock<Result<Arc<rustls::ClientConfig>, String>> = OnceLock::new();
        match self {
            Trust::Bundle(config) => Ok(config.clone()),
            Trust::System => SYSTEM
                .get_or_init(|| {
                    let mut roots = RootCertStore::empty();
                    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                    tls(roots, Vec::new())
                })
                .clone(),
        }
    }
}

fn tls(roots: RootCertStore, bundle: Vec<CertificateDer<'static>>) -> Result<Arc<rustls::ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(roots, bundle, provider.clone())?;
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

enum Place {
    Url { host: String, port: u16, authority: String, path: String },
    Service { namespace: String, name: String, port: i64, path: String },
}

impl Endpoint {
    /// Reads a `clientConfig`; the error says what cannot be used of it.
    pub(crate) fn new(config: &Value) -> Result<Endpoint, String> {
        Ok(Endpoint { place: Place::new(config)?, trust: Trust::new(config)? })
    }

    /// POSTs `body` and returns the answer. `query` is added to the path. Fails after `timeout`; the error says why.
    pub(crate) async fn post(
        &self,
        objects: &Objects,
        query: &str,
        body: &Value,
        timeout: Duration,
    ) -> Result<Value, String> {
        let call = self.exchange(objects, query, body);
        match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("Post {}: context deadline exceeded", self.place.shown(query))),
        }
    }

    async fn exchange(&self, objects: &Objects, query: &str, body: &Value) -> Result<Value, String> {
        let shown = self.place.shown(query);
        let failed = |what: &dyn std::fmt::Display| format!("Post {shown}: {what}");
        let (host, port) = self.place.address(objects).map_err(|why| failed(&why))?;
        let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|error| failed(&error))?;
        let _ = stream.set_nodelay(true);
        let name = ServerName::try_from(self.place.server_name()).map_err(|error| failed(&error))?;
        let tls = self.trust.config().map_err(|why| failed(&why))?;
        let stream = TlsConnector::from(tls).connect(name, stream).await;
        let stream = TokioIo::new(stream.map_err(|error| failed(&error))?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|error| failed(&error))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{query}", self.place.path()))
            .header(header::HOST, self.place.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| failed(&error))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| failed(&error))?.to_bytes();
            if !status.is_success() {
                let text: String = String::from_utf8_lossy(&body).chars().take(1024).collect();
                return Err(failed(&format!("the server answered {status}: {text}")));
            }
            serde_json::from_slice(&body).map_err(|error| failed(&format!("the answer is no JSON: {error}")))
        };
        tokio::pin!(exchange);
        tokio::pin!(connection);
        // The connection does the work; it ends with the exchange.
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            ended = &mut connection => match ended {
                // What was read before the end may still complete the exchange.
                Ok(()) => exchange.await,
                Err(error) => Err(failed(&error)),
            },
        }
    }
}

impl Place {
    fn new(config: &Value) -> Result<Place, String> {
        if let Some(text) = config["url"].as_str() {
            let url = Url::parse(text)?;
            let (host, port) = url.host_and_port();
            if url.scheme != "https" || host.is_empty() {
                return Err(format!("{text} is no https URL"));
            }
            return Ok(Place::Url {
                host: host.to_owned(),
                port: port.unwrap_or(443),
                authority: url.host.to_owned(),
                path: if url.path.is_empty() { "/".to_owned() } else { url.path.to_owned() },
            });
        }
        let service = &config["service"];
        let text = |field: &str| service[field].as_str().unwrap_or_default().to_owned();
        if !service.is_object() || text("name").is_empty() || text("namespace").is_empty() {
            return Err("neither url nor service is given".to_owned());
        }
        let path = text("path");
        Ok(Place::Service {
            namespace: text("namespace"),
            name: text("name"),
            port: service["port"].as_i64().unwrap_or(443),
            path: if path.starts_with('/') { path } else { format!("/{path}") },
        })
    }

    fn path(&self) -> &str {
        match self {
            Place::Url { path, .. } | Place::Service { path, .. } => path,
        }
    }

    /// The name its certificate must have.
    fn server_name(&self) -> String {
        match self {
            Place::Url { host, .. } => host.clone(),
            Place::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    fn authority(&self) -> String {
        match self {
            Place::Url { authority, .. } => authority.clone(),
            Place::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    fn shown(&self, query: &str) -> String {
        format!("\"https://{}{}{query}\"", self.authority(), self.path())
    }

    /// Where to connect.
    fn address(&self, objects: &Objects) -> Result<(String, u16), String> {
        match self {
            Place::Url { host, port, .. } => Ok((host.clone(), *port)),
            Place::Service { namespace, name, port, .. } => service_address(objects, namespace, name, *port),
        }
    }
}

fn service_address(objects: &Objects, namespace: &str, name: &str, port: i64) -> Result<(String, u16), String> {
    let service = objects.get("", "services", namespace, name);
    let service = service.ok_or_else(|| format!("service \"{name}\" not found"))?;
    let number = |port: i64| u16::try_from(port).map_err(|_| format!("{port} is no port"));
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        let host = spec["externalName"].as_str().unwrap_or_default();
        return Ok((host.to_owned(), number(port)?));
    }
    let ports = spec["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let served = ports.iter().find(|served| served["port"].as_i64() == Some(port));
    let served = served.ok_or_else(|| format!("no service port {port} found for service \"{name}\""))?;
    let port_name = served["name"].as_str().unwrap_or_default();
    if let Some(found) = slice_address(objects, namespace, name, port_name) {
        return found;
    }
    let endpoints = objects.get("", "endpoints", namespace, name);
    let subsets = endpoints.as_ref().and_then(|it| it["subsets"].as_array()).into_iter().flatten();
    for subset in subsets {
        let address = subset["addresses"][0]["ip"].as_str();
        let target = subset["ports"].as_array().into_iter().flatten();
        let target = target.into_iter().find(|it| it["name"].as_str().unwrap_or_default() == port_name);
        if let (Some(address), Some(target)) = (address, target.and_then(|it| it["port"].as_i64())) {
            return Ok((address.to_owned(), number(target)?));
        }
    }
    match spec["clusterIP"].as_str().filter(|address| !matches!(*address, "" | "None")) {
        Some(address) => Ok((address.to_owned(), number(port)?)),
        None => Err(format!("no endpoints available for service \"{name}\"")),
    }
}

fn slice_address(objects: &Objects, namespace: &str, name: &str, port: &str) -> Option<Result<(String, u16), String>> {
    let label = "kubernetes.io/service-name";
    for slice in objects.list("discovery.k8s.io", "endpointslices", Some(namespace)) {
        if berth_apimachinery::meta::label(&slice, label) != Some(name) {
            continue;
        }
        let ports = slice["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(target) = ports.iter().find(|it| it["name"].as_str().unwrap_or_default() == port) else { continue };
        let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
        let endpoint = slice["endpoints"].as_array().into_iter().flatten().find(ready);
        if let (Some(address), Some(port)) =
            (endpoint.and_then(|it| it["addresses"][0].as_str()), target["port"].as_i64())
        {
            let port = u16::try_from(port).map_err(|_| format!("{port} is no port"));
            return Some(port.map(|port| (address.to_owned(), port)));
        }
    }
    None
}
