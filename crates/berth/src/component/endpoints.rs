//! The HTTP endpoints of a component: `/healthz`, `/readyz`, `/metrics`, and `/explain` of the
//! controllers.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use berth_apimachinery::exposition::{Exposition, Format};
use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use clap::Args;
use http::{Method, Response, StatusCode, header};
use kube::Client;
use serde_json::Value;
use tokio::task::JoinSet;

use berth_controllers::configuration::process::{LIVENESS_PATH, READINESS_PATH};

use super::certificate::Certificate;
use super::guard::Guard;
use super::listen::{self, BindAddress, Handler, Peer};

/// Addresses of health checks and metrics.
#[derive(Args)]
#[command(next_help_heading = "Health and metrics")]
pub struct EndpointOptions {
    /// Address of /healthz and /readyz over HTTP: ADDRESS:PORT, :PORT for every address, 0 to
    /// disable.
    #[arg(long, value_name = "ADDRESS")]
    health_probe_bind_address: Option<BindAddress>,
    /// Address of /metrics: ADDRESS:PORT, :PORT for every address, 0 to disable.
    #[arg(long, value_name = "ADDRESS")]
    metrics_bind_address: Option<BindAddress>,
    /// Serve the metrics over HTTPS, to clients with a bearer token that the API server
    /// authenticates (TokenReview) and whose user may get the path /metrics (SubjectAccessReview).
    #[arg(long)]
    metrics_secure: bool,
    /// Folder with tls.crt and tls.key for --metrics-secure, read again when they change. Default:
    /// the webhooks' certificate, else a self-signed one.
    #[arg(long, value_name = "DIR", requires = "metrics_secure")]
    metrics_cert_dir: Option<PathBuf>,
}

/// Content of the endpoints. Every function is called for each request.
#[derive(Clone)]
pub struct Endpoints {
    /// The parts that are not ready yet; empty when the component is ready.
    pub pending: Arc<dyn Fn() -> Vec<String> + Send + Sync>,
    /// Writes all metrics.
    pub metrics: Arc<dyn Fn(&mut Exposition) + Send + Sync>,
    /// Serves `/explain/NAMESPACE/NAME` on the metrics port, for programs on the same machine.
    /// `None` for components other than the controllers.
    pub explain: Option<Explain>,
}

/// Explains a job of a namespace.
pub type Explain = Arc<dyn Fn(&str, &str) -> Result<Value, Status> + Send + Sync>;

/// Addresses and paths that apply without an option.
#[derive(Clone, Debug)]
pub struct Places {
    /// Address of the probes.
    pub health: BindAddress,
    /// Address of the metrics.
    pub metrics: BindAddress,
    /// Path of the readiness probe.
    pub readiness: String,
    /// Path of the liveness probe.
    pub liveness: String,
}

impl Places {
    /// These addresses, with Kubernetes' usual paths.
    pub fn at(health: BindAddress, metrics: BindAddress) -> Self {
        Self { health, metrics, readiness: READINESS_PATH.to_owned(), liveness: LIVENESS_PATH.to_owned() }
    }
}

/// Endpoints that are bound but do not respond yet.
pub struct Bound {
    health: Option<tokio::net::TcpListener>,
    metrics: Option<tokio::net::TcpListener>,
    places: Places,
    security: Option<Security>,
}

/// How metrics are served over HTTPS.
struct Security {
    /// The folder with the certificate, and the certificate that it had at the start.
    folder: Option<(PathBuf, Certificate)>,
}

impl EndpointOptions {
    /// Binds the addresses of the options, or the defaults.
    pub async fn bind(&self, places: Places) -> anyhow::Result<Bound> {
        let health = self.health_probe_bind_address.unwrap_or(places.health);
        let metrics = self.metrics_bind_address.unwrap_or(places.metrics);
        let shared = health.port().filter(|port| *port != 0 && Some(*port) == metrics.port());
        if let Some(port) = shared {
            bail!(
                "health and metrics cannot both be served on port {port}: change --health-probe-bind-address \
                 (health.healthProbeBindAddress) or --metrics-bind-address (metrics.bindAddress)"
            );
        }
        let health = listen::bind(health, "--health-probe-bind-address, or health.healthProbeBindAddress").await?;
        let metrics = listen::bind(metrics, "--metrics-bind-address, or metrics.bindAddress").await?;
        let folder = self.metrics_cert_dir.as_ref();
        let folder = folder.map(|it| Ok::<_, anyhow::Error>((it.clone(), Certificate::in_folder(it)?))).transpose()?;
        let security = self.metrics_secure.then_some(Security { folder });
        Ok(Bound { health, metrics, places, security })
    }
}

impl Bound {
    /// The bound addresses as URLs to print.
    pub fn describe(&self) -> Vec<String> {
        let url = |listener: &Option<tokio::net::TcpListener>, scheme: &str, path: &str| {
            let address = listener.as_ref()?.local_addr().ok()?;
            Some(format!("{scheme}://{address}{path}"))
        };
        let of_metrics = if self.security.is_some() { "https" } else { "http" };
        let all = [
            url(&self.health, "http", &self.places.liveness),
            url(&self.health, "http", &self.places.readiness),
            url(&self.metrics, of_metrics, "/metrics"),
        ];
        all.into_iter().flatten().collect()
    }

    /// Responds to requests until the tasks are dropped. Secure metrics are served with this
    /// certificate, unless an option names another, to clients that this client's API server
    /// allows.
    ///
    /// # Errors
    /// A certificate cannot be made.
    pub fn serve(
        self,
        endpoints: &Endpoints,
        client: Client,
        certificate: Option<Certificate>,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<()> {
        if let Some(listener) = self.health {
            tasks.spawn(listen::serve(listener, None, health(endpoints.clone(), self.places)));
        }
        let Some(listener) = self.metrics else { return Ok(()) };
        let handler = metrics(endpoints.clone());
        let Some(Security { folder }) = self.security else {
            tasks.spawn(listen::serve(listener, None, handler));
            return Ok(());
        };
        let certificate = match (folder, certificate) {
            (Some((folder, own)), _) => {
                let followed = own.clone();
                tasks.spawn(async move { followed.follow(&folder).await });
                own
            }
            (None, Some(of_webhooks)) => of_webhooks,
            (None, None) => Certificate::self_signed()?,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificate));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tasks.spawn(listen::serve(listener, Some(Arc::new(tls)), Guard::new(client).protect(handler)));
        Ok(())
    }
}

fn health(endpoints: Endpoints, places: Places) -> Handler {
    Arc::new(move |request| {
        let answer = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, path) if path == places.liveness || path == "/livez" => {
                listen::text(StatusCode::OK, "ok")
            }
            (&Method::GET | &Method::HEAD, path) if path == places.readiness => match (endpoints.pending)() {
                pending if pending.is_empty() => listen::text(StatusCode::OK, "ok"),
                pending => {
                    let lines: String = pending.iter().map(|what| format!("[-]{what}\n")).collect();
                    listen::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}readyz check failed\n"))
                }
            },
            _ => listen::text(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
        Box::pin(std::future::ready(answer))
    })
}

fn metrics(endpoints: Endpoints) -> Handler {
    Arc::new(move |request| {
        let answer = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => {
                let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
                let mut exposition = Exposition::new(Format::accepted(accept.unwrap_or_default()));
                (endpoints.metrics)(&mut exposition);
                listen::answer(StatusCode::OK, exposition.format().media(), exposition.finish())
            }
            (&Method::GET, path) => match explained(path) {
                Some(workload) => {
                    let is_here = request.extensions().get::<Peer>().is_some_and(|peer| peer.is_here());
                    explanation(&endpoints, workload, is_here)
                }
                None => listen::text(StatusCode::NOT_FOUND, "404 page not found\n"),
            },
            _ => listen::text(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
        Box::pin(std::future::ready(answer))
    })
}

/// Responds with the explanation of a workload, to clients on this machine only.
fn explanation(endpoints: &Endpoints, (namespace, name): (&str, &str), is_here: bool) -> Response<listen::Body> {
    let answer = match &endpoints.explain {
        None => Err(Status::no_such_path()),
        // An explanation covers all namespaces, and this port authenticates no client.
        Some(_) if !is_here => Err(Status::forbidden(&GroupResource::default(), "", FROM_ELSEWHERE)),
        Some(explain) => explain(namespace, name),
    };
    match answer {
        Ok(explanation) => listen::answer(StatusCode::OK, JSON, explanation.to_string()),
        Err(status) => {
            let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            listen::answer(code, JSON, status.to_value().to_string())
        }
    }
}

const JSON: &str = "application/json";
const FROM_ELSEWHERE: &str = "this port serves explanations to clients on this machine only; request them from the API server \
                              (explain.berth.dev), which checks the client's rights";

/// Namespace and name of `/explain/NAMESPACE/NAME`.
fn explained(path: &str) -> Option<(&str, &str)> {
    let (namespace, name) = path.strip_prefix("/explain/")?.split_once('/')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains('/')).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use berth_apimachinery::exposition::Family;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// Status code and body.
    async fn get(path: &str, from: Ipv4Addr, to: SocketAddr) -> (u16, String) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("an address of this machine");
        let mut stream = socket.connect(to).await.expect("connected");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("a response");
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (code, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
    }

    #[tokio::test]
    async fn explanations_are_limited_to_this_machine_and_metrics_are_not() {
        let endpoints = Endpoints {
            pending: Arc::new(Vec::new),
            metrics: Arc::new(|exposition| exposition.add(&Family::gauge("figures", ""), &[], 1.0)),
            explain: Some(Arc::new(|namespace: &str, name: &str| Ok(json!([namespace, name])))),
        };
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
        let address = (Ipv4Addr::LOCALHOST, listener.local_addr().expect("an address").port()).into();
        let serving = tokio::spawn(listen::serve(listener, None, metrics(endpoints)));
        let elsewhere = Ipv4Addr::new(127, 0, 0, 2);
        assert_eq!(get("/explain/a/b", Ipv4Addr::LOCALHOST, address).await, (200, r#"["a","b"]"#.to_owned()));
        let (code, text) = get("/explain/a/b", elsewhere, address).await;
        assert!(code == 403 && text.contains("explain.berth.dev"), "{code} {text}");
        for from in [Ipv4Addr::LOCALHOST, elsewhere] {
            assert_eq!(
                get("/metrics", from, address).await,
                (200, "# HELP figures \n# TYPE figures gauge\nfigures 1\n".to_owned())
            );
        }
        serving.abort();
    }

    #[tokio::test]
    async fn health_and_metrics_have_separate_ports() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let options = EndpointOptions {
            health_probe_bind_address: None,
            metrics_bind_address: None,
            metrics_secure: false,
            metrics_cert_dir: None,
        };
        let same = Places::at(BindAddress::At(free), BindAddress::Any(free.port()));
        let error = options.bind(same).await.err().expect("refused").to_string();
        assert!(
            error.starts_with(&format!("health and metrics cannot both be served on port {}", free.port())),
            "{error}"
        );
        let any = Places::at(BindAddress::Any(0), BindAddress::Any(0));
        assert!(options.bind(any).await.is_ok(), "port 0 selects a different port each time");
    }
}
