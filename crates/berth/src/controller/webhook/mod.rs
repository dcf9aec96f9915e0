//! The webhook server: the logic of Kueue's admission and conversion webhooks, for API servers
//! other than the embedded one. The API groups of the controllers ([`super::aggregated`]) are on
//! the same port, with the same certificate.
//!
//! Every replica serves, leader or not. Lookups read the controllers' caches, except for the
//! LeaderWorkerSet of a new pod: the name of the pod's group has the set's UID, and a late cache
//! would give two pods of one group different names.

pub mod app_wrappers;
mod issued;
mod trust;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use berth_controllers::aggregated::SERVICE;
use berth_controllers::configuration::Process;
use berth_controllers::configuration::process::{Tls, WEBHOOK_PORT};
use berth_controllers::webhooks::review::{self, Stage};
use berth_controllers::webhooks::{Lookup, Webhooks, set_of_new_pod};
use berth_controllers::{Config, duration, rights};
use berth_embedded::api::Controllers;
use berth_runtime::{Clock, ObjectKey, brief};
use clap::Args;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use kube::{Api, Client, Resource};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::aggregated::{Aggregated, AnyCertificate};
use crate::component::certificate::{self, Certificate};
use crate::component::listen::{self, BindAddress, Handler};
use app_wrappers::AppWrappers;
use berth_api::berth::NodeHealthConfiguration;
use berth_api::frameworks::LeaderWorkerSet;
use berth_operators::health::avoid_unhealthy_nodes;
use issued::{Certificates, Material};

/// Path of the webhook that sets defaults of AppWrappers.
pub const APP_WRAPPERS_MUTATE: &str = "/mutate-appwrapper";
/// Path of the webhook that validates AppWrappers.
pub const APP_WRAPPERS_VALIDATE: &str = "/validate-appwrapper";
/// Service of the metrics.
pub const METRICS_SERVICE: &str = "berth-metrics";
/// Service of the web pages.
pub const DASHBOARD_SERVICE: &str = "berth-dashboard";
/// Maximum size of a review: an object and its previous version, each limited to 3 MiB by the API
/// server.
const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// For `tls.minVersion: VersionTLS13`.
const ONLY_1_3: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
/// Interval of checks of the certificate and its certificate authorities.
const LOOK: Duration = Duration::from_secs(60);
/// Interval after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Interval after another replica wrote the certificate authorities at the same moment.
const RETRY_CONFLICT: Duration = Duration::from_secs(1);

/// Address and certificate of the webhook server.
#[derive(Args)]
#[command(next_help_heading = "Webhooks")]
pub struct WebhookOptions {
    /// Address of the admission and conversion webhooks over HTTPS: ADDRESS:PORT, :PORT for every
    /// address, 0 to disable. Default: webhook.host and webhook.port of the configuration, else
    /// :9443.
    #[arg(long, value_name = "ADDRESS")]
    webhook_bind_address: Option<BindAddress>,
    /// Folder with tls.crt and tls.key, read again when they change. The caBundle of webhook
    /// configurations is then left unchanged. Default: webhook.certDir of a configuration with
    /// internalCertManagement.enable: false, else a generated certificate in a Secret.
    #[arg(long, value_name = "DIR")]
    webhook_cert_dir: Option<PathBuf>,
    /// Service by which the API server reaches the webhooks. Default:
    /// internalCertManagement.webhookServiceName of the configuration, else berth-webhook.
    #[arg(long, value_name = "NAME")]
    webhook_service_name: Option<String>,
    /// Lifetime of a generated certificate. The certificate is renewed when a third of its lifetime
    /// is left.
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = lifetime)]
    webhook_certificate_lifetime: Duration,
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let parsed = Duration::try_from(duration::parse(text)?).map_err(|_| "must not be negative".to_owned())?;
    if parsed < Duration::from_secs(3) { Err("must be at least 3s".to_owned()) } else { Ok(parsed) }
}

/// A webhook server that is bound but does not respond yet.
pub struct Bound {
    listener: TcpListener,
    source: Source,
    tls: Tls,
}

/// Source of the certificate.
enum Source {
    Folder(PathBuf),
    Made { service: String, secret: String, lifetime: Duration },
}

impl WebhookOptions {
    /// Binds the address; `None` if webhooks are disabled. `file` has the values that no option
    /// sets.
    pub async fn bind(&self, file: &Process) -> anyhow::Result<Option<Bound>> {
        let port = file.webhook_port.unwrap_or(WEBHOOK_PORT);
        let of_file =
            file.webhook_host.map_or(BindAddress::Any(port), |host| BindAddress::At(SocketAddr::new(host, port)));
        let address = self.webhook_bind_address.unwrap_or(of_file);
        let Some(listener) = listen::bind(address, "--webhook-bind-address, or webhook.host and webhook.port").await?
        else {
            return Ok(None);
        };
        let source = match self.webhook_cert_dir.as_ref().or(file.certificate_folder.as_ref()) {
            Some(folder) => {
                // An unusable folder is reported at the start.
                let material = read(folder)?;
                certified(&material).with_context(|| folder.display().to_string())?;
                Source::Folder(folder.clone())
            }
            None => {
                let service = self.webhook_service_name.as_ref().or(file.webhook_service.as_ref());
                Source::Made {
                    service: service.map_or_else(|| rights::WEBHOOK_SERVICE.to_owned(), String::clone),
                    secret: file.webhook_secret.clone().unwrap_or_else(|| rights::WEBHOOK_SECRET.to_owned()),
                    lifetime: self.webhook_certificate_lifetime,
                }
            }
        };
        Ok(Some(Bound { listener, source, tls: file.tls.clone() }))
    }
}

/// Webhooks of options of `berth controller`.
pub struct Further {
    /// The webhooks of AppWrappers.
    pub app_wrappers: Option<AppWrappers>,
    /// The nodes that new pods of queued jobs avoid.
    pub node_health: Option<Arc<NodeHealthConfiguration>>,
}

impl Bound {
    /// The bound address.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// URL to print.
    pub fn describe(&self) -> Option<String> {
        Some(format!("https://{}/mutate", self.listener.local_addr().ok()?))
    }

    /// Responds to requests, and keeps the certificate and its certificate authorities up to date,
    /// until the tasks are dropped.
    pub fn serve(
        self,
        client: Client,
        namespace: String,
        config: Config,
        controllers: Controllers,
        aggregated: Aggregated,
        further: Further,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<Certificate> {
        let certificate = Certificate::default();
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider(&self.tls)))
            .with_protocol_versions(if self.tls.only_1_3 { ONLY_1_3 } else { rustls::ALL_VERSIONS })?
            .with_client_cert_verifier(Arc::new(AnyCertificate::default()))
            .with_cert_resolver(Arc::new(certificate.clone()));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tasks.spawn(listen::serve(
            self.listener,
            Some(Arc::new(tls)),
            handler(Webhooks::new(config), controllers, aggregated, further, client.clone()),
        ));
        tasks.spawn(keep(self.source, client, namespace, certificate.clone()));
        Ok(certificate)
    }
}

/// The accepted TLS versions and cipher suites. As in Go, `cipherSuites` selects among the suites
/// of TLS 1.2.
fn provider(tls: &Tls) -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    if !tls.cipher_suites.is_empty() {
        provider.cipher_suites.retain(|suite| {
            let name = format!("{:?}", suite.suite());
            suite.tls13().is_some() || tls.cipher_suites.contains(&name)
        });
    }
    if !tls.key_exchange_groups.is_empty() {
        provider.kx_groups.retain(|group| tls.key_exchange_groups.contains(&i32::from(u16::from(group.name()))));
    }
    provider
}

/// Keeps the certificate valid and its certificate authority published.
async fn keep(source: Source, client: Client, namespace: String, certificate: Certificate) {
    let clock = Clock::system();
    let certificates = match &source {
        Source::Folder(_) => None,
        Source::Made { service, secret, lifetime } => {
            let mut names =
                vec![format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")];
            names.push(format!("{SERVICE}.{namespace}.svc"));
            // The metrics and the web pages have the same certificate.
            names.extend([METRICS_SERVICE, DASHBOARD_SERVICE].map(|other| format!("{other}.{namespace}.svc")));
            names.extend([service.clone(), format!("{service}.{namespace}"), "localhost".into(), "127.0.0.1".into()]);
            Some((Certificates::new(client.clone(), &namespace, secret, names, *lifetime), *lifetime, service))
        }
    };
    let mut served: Option<Material> = None;
    loop {
        let mut all = true;
        let look = async {
            let material = match (&source, &certificates) {
                (Source::Folder(folder), _) => read(folder)?,
                (_, Some((certificates, ..))) => certificates.current().await?,
                (_, None) => unreachable!("a generated certificate has a generator"),
            };
            if let Some((.., service)) = &certificates {
                // The certificate authority is published before the certificate is served, so that
                // the API server never receives a certificate of an unknown authority.
                let trusted = trust::publish(&client, &material.authorities_pem, &namespace, service).await;
                all = trusted.context("writing the caBundle")?;
            }
            if served.as_ref() != Some(&material) {
                certificate.set(certified(&material)?);
                served = Some(material);
            }
            anyhow::Ok(())
        };
        let wait = match look.await {
            // The kinds may name this webhook for conversion only after the controllers have
            // started.
            Ok(()) if !all => LOOK / 4,
            // A certificate with a short lifetime is checked often enough for its renewal.
            Ok(()) => certificates.as_ref().map_or(LOOK, |(_, lifetime, _)| LOOK.min(*lifetime / 6)),
            Err(error) if error.chain().any(is_conflict) => RETRY_CONFLICT,
            Err(error) => {
                tracing::warn!("webhook certificate: {}", berth_runtime::brief(error.as_ref()));
                RETRY
            }
        };
        clock.sleep(wait).await;
    }
}

/// True if another replica wrote at the same moment, most likely the same content.
fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<kube::Error>().is_some_and(berth_runtime::is_conflict)
}

fn read(folder: &Path) -> anyhow::Result<Material> {
    let [certificate_pem, key_pem] = certificate::read(folder)?;
    Ok(Material { certificate_pem, key_pem, authorities_pem: String::new() })
}

fn certified(material: &Material) -> anyhow::Result<CertifiedKey> {
    certificate::certified(&material.certificate_pem, &material.key_pem)
}

fn handler(
    webhooks: Webhooks,
    controllers: Controllers,
    aggregated: Aggregated,
    further: Further,
    client: Client,
) -> Handler {
    let shared = Arc::new((webhooks, controllers, aggregated, further, client));
    Arc::new(move |request| {
        let shared = shared.clone();
        Box::pin(async move {
            if request.uri().path().starts_with("/apis/") {
                return shared.2.answer(request).await;
            }
            answer(request, &shared.0, &shared.1, &shared.3, &shared.4).await
        })
    })
}

async fn answer(
    request: Request<Incoming>,
    webhooks: &Webhooks,
    controllers: &Controllers,
    further: &Further,
    client: &Client,
) -> Response<listen::Body> {
    let path = request.uri().path().to_owned();
    let app_wrappers = further.app_wrappers.as_ref();
    let of_app_wrappers = match path.as_str() {
        APP_WRAPPERS_MUTATE => app_wrappers.map(|webhooks| (webhooks, Stage::Mutate)),
        APP_WRAPPERS_VALIDATE => app_wrappers.map(|webhooks| (webhooks, Stage::Validate)),
        _ => None,
    };
    if of_app_wrappers.is_none() && !matches!(path.as_str(), "/mutate" | "/validate" | "/convert") {
        return listen::text(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    if request.method() != Method::POST {
        return listen::text(StatusCode::METHOD_NOT_ALLOWED, "reviews must be sent by POST\n");
    }
    let body = match Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return listen::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    let review = review::read(&body);
    if let Some((webhooks, stage)) = of_app_wrappers {
        return reviewed(match review {
            Ok(review) => webhooks.answer(stage, &review).await,
            Err(message) => Err(message),
        });
    }
    let needed = review.as_ref().ok().filter(|_| path == "/mutate").and_then(set_of_new_pod);
    let read = match needed {
        Some(key) => read_set(client, key).await.map(Some),
        None => Ok(None),
    };
    reviewed(review.and_then(|review| {
        let installed = controllers.installed();
        let stores = installed.as_ref().map(|installed| &installed.stores);
        let read = read?;
        let lookup: Lookup<'_> = &|group, resource, namespace, name| match &read {
            Some((key, set)) if is_of(key, group, resource, namespace, name) => set.clone(),
            _ => stores?.find(group, resource, namespace, name),
        };
        match path.as_str() {
            "/mutate" => review::admission_also(webhooks, Stage::Mutate, &review, lookup, &|request, object| {
                let is_new_pod = (request.group, request.resource) == ("", "pods") && request.old_object.is_none();
                if let Some(configuration) = further.node_health.as_deref().filter(|_| is_new_pod) {
                    avoid_unhealthy_nodes(object, configuration);
                }
            }),
            "/validate" => review::admission(webhooks, Stage::Validate, &review, lookup),
            _ => review::conversion(&review),
        }
    }))
}

/// A LeaderWorkerSet as the API server has it now; `None` if it does not exist.
async fn read_set(client: &Client, key: ObjectKey) -> Result<(ObjectKey, Option<Arc<Value>>), String> {
    let api: Api<LeaderWorkerSet> = Api::namespaced(client.clone(), &key.namespace);
    let failed = |error: &dyn std::fmt::Display| format!("LeaderWorkerSet {key} of the pod cannot be read: {error}");
    let set = berth_runtime::write::get_opt(&api, &key.name).await.map_err(|error| failed(&brief(&error)))?;
    let set = set.map(|set| berth_api::json::to_value(&set)).transpose().map_err(|error| failed(&error))?;
    Ok((key, set.map(Arc::new)))
}

/// True if a lookup is for the LeaderWorkerSet with this key.
fn is_of(key: &ObjectKey, group: &str, resource: &str, namespace: &str, name: &str) -> bool {
    let is_kind = group == LeaderWorkerSet::group(&()) && resource == LeaderWorkerSet::plural(&());
    is_kind && (key.namespace.as_str(), key.name.as_str()) == (namespace, name)
}

/// The response with a review, or the reason why a body is not a review.
fn reviewed(answered: Result<Value, String>) -> Response<listen::Body> {
    match answered {
        Ok(review) => listen::answer(StatusCode::OK, "application/json", review.to_string()),
        Err(message) => listen::text(StatusCode::BAD_REQUEST, format!("{message}\n")),
    }
}

#[cfg(test)]
mod tests {
    use berth_controllers::configuration::process::{CIPHER_SUITES, KEY_EXCHANGE_GROUPS};

    use super::*;

    #[test]
    fn every_cipher_suite_of_the_configuration_is_supported() {
        let all = provider(&Tls::default());
        let chosen = |tls: Tls| {
            let provider = provider(&tls);
            (provider.cipher_suites.len(), provider.kx_groups.len())
        };
        let of_1_3 = all.cipher_suites.iter().filter(|suite| suite.tls13().is_some()).count();
        assert_eq!(all.cipher_suites.len(), of_1_3 + CIPHER_SUITES.len());
        assert_eq!(all.kx_groups.len(), KEY_EXCHANGE_GROUPS.len());
        for suite in CIPHER_SUITES {
            let tls = Tls { cipher_suites: vec![(*suite).to_owned()], ..Tls::default() };
            assert_eq!(chosen(tls), (of_1_3 + 1, KEY_EXCHANGE_GROUPS.len()), "{suite}");
        }
        for group in KEY_EXCHANGE_GROUPS {
            let tls = Tls { key_exchange_groups: vec![*group], ..Tls::default() };
            assert_eq!(chosen(tls), (all.cipher_suites.len(), 1), "{group}");
        }
    }
}
