//! The API groups of the controllers as an aggregated API server. Only the API server may call it:
//! it has authorized the request already, and authenticates itself by the front proxy's
//! certificate.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use berth_apimachinery::status::Status;
use berth_apiserver::auth::request_header::RequestHeaders;
use berth_apiserver::{Asked, Body, Extension, RequestInfo, UserInfo, extension};
use berth_controllers::{aggregated, rights};
use berth_runtime::Clock;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use parking_lot::RwLock;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use tokio::sync::Notify;

use crate::component::Leading;
use crate::component::clients::{ClientAuthority, TrustedProxy};
use crate::component::listen::{self, PeerCertificates};

/// ConfigMap in which every cluster publishes the certificate authority of its front proxy.
const NAMESPACE: &str = "kube-system";
const CONFIG_MAP: &str = "extension-apiserver-authentication";
/// Interval at which the ConfigMap is read.
const LOOK: Duration = Duration::from_secs(60);
/// Interval after a failure; also the minimum time between two reads that unknown clients cause.
const RETRY: Duration = Duration::from_secs(2);

/// Maximum size of a request's body: that of the API server.
const BODY_BYTES_MAX: usize = 3 << 20;

/// Serves the groups. Clones share their state.
#[derive(Clone)]
pub struct Aggregated {
    groups: Arc<[Arc<dyn Extension>]>,
    leading: Leading,
    trust: Arc<RwLock<Option<TrustedProxy>>>,
    /// Notified when a client presented a certificate of an unknown authority: the API server may
    /// have a new one.
    unknown_authority: Arc<Notify>,
}

impl Aggregated {
    /// Serves these groups once the front proxy's certificate authority is known.
    pub fn new(groups: Vec<Arc<dyn Extension>>, leading: Leading) -> Self {
        Self { groups: groups.into(), leading, trust: Arc::default(), unknown_authority: Arc::default() }
    }

    /// Responds to a request below `/apis/`.
    pub async fn answer(&self, request: Request<Incoming>) -> Response<listen::Body> {
        let (parts, body) = request.into_parts();
        let body = match body_of(&parts.method, body).await {
            Ok(body) => body,
            Err(status) => return refusal(&status),
        };
        match self.find(&Request::from_parts(parts, ()), &body).await {
            Ok(response) => {
                let (parts, body) = response.into_parts();
                Response::from_parts(parts, Full::new(body.bytes().cloned().unwrap_or_default()).boxed_unsync())
            }
            Err(status) => refusal(&status),
        }
    }

    async fn find(&self, request: &Request<()>, body: &[u8]) -> Result<Response<Body>, Status> {
        let user = self.user(request)?;
        let query = request.uri().query().unwrap_or_default();
        let info = RequestInfo::parse(request.method(), request.uri().path(), query);
        tracing::debug!(user = %user.name, path = %info.path, "requests come from the API server");
        if info.is_resource_request && !self.leading.is() {
            return Err(Status::service_unavailable("this replica of the controllers is not the leader"));
        }
        let group = extension::find(&self.groups, &info).ok_or_else(Status::no_such_path)?;
        let asked = Asked { info: &info, query, user: &user };
        extension::answer(group, asked, request.headers(), body).await
    }

    /// The user of the request that the front proxy forwards. Requests of all other clients are
    /// rejected.
    fn user(&self, request: &Request<()>) -> Result<UserInfo, Status> {
        let refused = || Status::unauthorized("only requests that the API server forwards are accepted here");
        let shown = request.extensions().get::<PeerCertificates>().ok_or_else(refused)?;
        let trust = self.trust.read();
        let Some(trust) = trust.as_ref().filter(|trust| trust.is_it(shown)) else {
            self.unknown_authority.notify_one();
            return Err(refused());
        };
        trust.user(request.headers()).ok_or_else(refused)
    }

    /// Keeps the front proxy's certificate authority up to date, until dropped.
    pub async fn follow_front_proxy(self, client: Client) {
        let clock = Clock::system();
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let mut said = String::new();
        loop {
            let read = api.get(CONFIG_MAP).await.map_err(anyhow::Error::from).and_then(|found| front_proxy(&found));
            let wait = match read {
                Ok(trust) => {
                    *self.trust.write() = Some(trust);
                    said.clear();
                    LOOK
                }
                Err(error) => {
                    let problem = format!("{error:#}");
                    if problem != said {
                        tracing::warn!(
                            "configmap {NAMESPACE}/{CONFIG_MAP}: {problem}; pending workloads are not served"
                        );
                        said = problem;
                    }
                    RETRY
                }
            };
            clock.sleep(RETRY).await;
            tokio::select! {
                () = self.unknown_authority.notified() => {}
                () = clock.sleep(wait.saturating_sub(RETRY)) => {}
            }
        }
    }
}

/// The body of a question. Other requests have none: it is dropped before the response is computed.
async fn body_of(method: &Method, body: Incoming) -> Result<Bytes, Status> {
    if *method != Method::POST {
        return Ok(Bytes::new());
    }
    let read = Limited::new(body, BODY_BYTES_MAX).collect().await;
    read.map(http_body_util::Collected::to_bytes).map_err(|error| match error.is::<LengthLimitError>() {
        true => Status::request_entity_too_large(format!("limit is {BODY_BYTES_MAX}")),
        false => Status::bad_request(format!("the request's body ended early: {error}")),
    })
}

fn refusal(status: &Status) -> Response<listen::Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    listen::answer(code, "application/json", status.to_value().to_string())
}

/// The front proxy in the ConfigMap.
fn front_proxy(found: &ConfigMap) -> anyhow::Result<TrustedProxy> {
    let text = |key: &str| found.data.as_ref().and_then(|data| data.get(key)).map(String::as_str);
    let list = |key: &str| -> anyhow::Result<Vec<String>> {
        match text(key) {
            Some(json) => serde_json::from_str(json).with_context(|| format!("data.{key}")),
            None => Ok(Vec::new()),
        }
    };
    const AUTHORITY: &str = "requestheader-client-ca-file";
    let pem =
        text(AUTHORITY).ok_or_else(|| anyhow!("no {AUTHORITY}: the API server does not support aggregated APIs"))?;
    Ok(TrustedProxy {
        clients: ClientAuthority::of(pem).with_context(|| format!("data.{AUTHORITY}"))?,
        names: list("requestheader-allowed-names")?,
        headers: RequestHeaders {
            names: list("requestheader-username-headers")?,
            uids: list("requestheader-uid-headers")?,
            groups: list("requestheader-group-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?,
        },
    })
}

/// Accepts any certificate whose key the client has, or none. API servers call webhooks with any
/// certificate; [`Aggregated`] verifies the issuer itself.
#[derive(Debug)]
pub struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl Default for AnyCertificate {
    fn default() -> Self {
        Self(Arc::new(rustls::crypto::ring::default_provider()))
    }
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The address for the API server: the address of the option, or the bound address, or the address
/// from which this machine connects to the API server.
pub async fn advertised(given: Option<IpAddr>, bound: SocketAddr, api_server: &http::Uri) -> Option<SocketAddr> {
    if let Some(address) = given {
        return Some(SocketAddr::new(address, bound.port()));
    }
    if !bound.ip().is_unspecified() {
        return Some(bound);
    }
    // Connecting a UDP socket sends nothing. It makes the system choose the source address.
    let towards = async {
        let host = api_server.host()?.trim_matches(['[', ']']);
        let server = tokio::net::lookup_host((host, api_server.port_u16().unwrap_or(443))).await.ok()?.next()?;
        let any: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = tokio::net::UdpSocket::bind((any, 0)).await.ok()?;
        socket.connect(server).await.ok()?;
        Some(SocketAddr::new(socket.local_addr().ok()?.ip(), bound.port()))
    };
    towards.await
}

/// Publishes this replica's address each time it begins to act.
pub async fn advertise(client: Client, namespace: String, address: Option<SocketAddr>, leading: Leading) {
    leading.begun().await;
    let Some(address) = address else {
        return tracing::warn!(
            "no address for the API server is known, so pending workloads are not served; set --advertise-address"
        );
    };
    loop {
        leading.begun().await;
        tokio::select! {
            () = leading.ended() => {}
            () = write_address(&client, &namespace, address) => leading.ended().await,
        }
    }
}

/// Writes the address of this replica. Retries until it is written.
async fn write_address(client: &Client, namespace: &str, address: SocketAddr) {
    let clock = Clock::system();
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let slice = aggregated::endpoint(namespace, address);
    let params = PatchParams::apply(rights::NAME).force();
    let mut wait = RETRY;
    loop {
        match api.patch(aggregated::SERVICE, &params, &Patch::Apply(&slice)).await {
            Ok(_) => return tracing::info!("serving pending workloads to the API server at {address}"),
            Err(error) => {
                tracing::warn!(
                    error = berth_runtime::brief(&error),
                    "cannot publish the address at which pending workloads are served"
                );
                clock.sleep(wait).await;
                wait = (wait * 2).min(LOOK);
            }
        }
    }
}
