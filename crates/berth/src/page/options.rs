//! Options of the web pages of `berth up` and `berth controller`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use berth_apiserver::auth::request_header::RequestHeaders;
use berth_dashboard::Hosts;
use berth_runtime::Clock;
use clap::Args;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Pages;
use super::readers::{Access, Clients, Readers};
use super::sessions::{Sessions, secret};
use crate::component::certificate::Certificate;
use crate::component::clients::{ClientAuthority, TrustedProxy};
use crate::component::listen::{self, BindAddress};
use crate::controller::AnyCertificate;

/// Usual port of the pages.
const PORT: u16 = 8080;
/// Interval at which the certificate authority of the cluster's users is read again.
const LOOK: Duration = Duration::from_secs(60);

/// Web pages of an embedded cluster.
#[derive(Args)]
#[command(next_help_heading = "Web pages")]
pub struct UpPages {
    /// Address of the web pages over HTTP: ADDRESS:PORT, :PORT for every address, 0 to disable.
    /// Default: 127.0.0.1:8080, or a free port if it is in use.
    #[arg(long, value_name = "ADDRESS")]
    dashboard_bind_address: Option<BindAddress>,
    /// Host name of requests that the web pages accept in addition to localhost and IP addresses.
    /// May be repeated.
    #[arg(long = "dashboard-host", value_name = "NAME")]
    dashboard_hosts: Vec<String>,
}

/// Pages that are bound but do not respond yet.
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    hosts: Hosts,
}

impl Bound {
    fn of(listener: TcpListener, names: &[String]) -> anyhow::Result<Self> {
        let address = listener.local_addr().context("--dashboard-bind-address")?;
        let hosts = Hosts { beyond_loopback: !address.ip().is_loopback(), names: names.to_vec() };
        Ok(Self { listener, address, hosts })
    }
}

impl UpPages {
    /// Binds the address; `None` if the pages are disabled.
    pub async fn bind(&self) -> anyhow::Result<Option<Bound>> {
        const OPTION: &str = "--dashboard-bind-address";
        let listener = match self.dashboard_bind_address {
            Some(address) => listen::bind(address, OPTION).await?,
            None => {
                let usual = BindAddress::At((Ipv4Addr::LOCALHOST, PORT).into());
                match listen::bind(usual, OPTION).await {
                    Ok(listener) => listener,
                    Err(_) => listen::bind(BindAddress::At((Ipv4Addr::LOCALHOST, 0).into()), OPTION).await?,
                }
            }
        };
        listener.map(|listener| Bound::of(listener, &self.dashboard_hosts)).transpose()
    }
}

impl Bound {
    /// Serves the pages of an embedded cluster, to its owner and to clients with a token of the
    /// cluster. Returns the address that opens a session of the owner.
    pub async fn serve_owner(
        self,
        owner: Client,
        kubeconfig: &Path,
        clock: Clock,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<String> {
        let file = Kubeconfig::read_from(kubeconfig)?;
        let mut cluster = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        cluster.auth_info = AuthInfo::default();
        let key = secret()?;
        let readers = Readers {
            cluster,
            owner: Some((owner, key.clone())),
            impersonator: None,
            users: RwLock::default(),
            proxy: None,
            sessions: Sessions::new(self.address.port(), false),
            clients: Clients::default(),
        };
        let pages = Pages { access: Access::Readers(Arc::new(readers)), hosts: self.hosts, clock };
        tasks.spawn(pages.serve(self.listener, None));
        Ok(format!("http://{}/?key={key}", self.address))
    }
}

/// Web pages of the controllers.
#[derive(Args)]
#[command(next_help_heading = "Web pages")]
pub struct ControllerPages {
    /// Address of the web pages over HTTPS: ADDRESS:PORT, :PORT for every address, 0 to disable.
    /// Every reader sees what its own rights in the cluster allow.
    #[arg(long, value_name = "ADDRESS", default_value = "0")]
    dashboard_bind_address: BindAddress,
    /// Folder with tls.crt and tls.key of the web pages, read again when they change. Default: the
    /// webhooks' certificate, else a self-signed one.
    #[arg(long, value_name = "DIR")]
    dashboard_cert_dir: Option<PathBuf>,
    /// Host name of requests that the web pages accept in addition to IP addresses, such as that of
    /// an ingress. May be repeated, or contain several names separated by commas.
    #[arg(long = "dashboard-host", value_name = "NAME", value_delimiter = ',')]
    dashboard_hosts: Vec<String>,
    /// PEM file with the certificate authorities of readers with a client certificate. Default:
    /// those that the cluster publishes for its users.
    #[arg(long, value_name = "FILE")]
    dashboard_client_ca_file: Option<PathBuf>,
    /// PEM file with the certificate authorities of a proxy that authenticates readers (such as by
    /// OIDC) and passes on their names in headers.
    #[arg(long, value_name = "FILE")]
    dashboard_proxy_ca_file: Option<PathBuf>,
    /// Common name of the proxy's certificate. May be repeated. Default: any name.
    #[arg(long = "dashboard-proxy-name", value_name = "NAME", requires = "dashboard_proxy_ca_file")]
    dashboard_proxy_names: Vec<String>,
    /// Header with the name of the reader.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-User")]
    dashboard_user_header: String,
    /// Header with a group of the reader; it may occur several times.
    #[arg(long, value_name = "HEADER", default_value = "X-Remote-Group")]
    dashboard_group_header: String,
}

impl ControllerPages {
    /// Binds the address; `None` if the pages are disabled.
    pub async fn bind(&self) -> anyhow::Result<Option<Bound>> {
        let listener = listen::bind(self.dashboard_bind_address, "--dashboard-bind-address").await?;
        listener.map(|listener| Bound::of(listener, &self.dashboard_hosts)).transpose()
    }

    /// Serves the pages of a cluster; `own` has the credentials of the controllers.
    pub fn serve(
        &self,
        bound: Bound,
        own: &Config,
        client: Client,
        certificate: Option<Certificate>,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<()> {
        let mut cluster = own.clone();
        cluster.auth_info = AuthInfo::default();
        let read = |option: &str, path: &Path| -> anyhow::Result<ClientAuthority> {
            let pem = std::fs::read_to_string(path).with_context(|| format!("{option} {}", path.display()))?;
            ClientAuthority::of(&pem).with_context(|| format!("{option} {}", path.display()))
        };
        let users = self.dashboard_client_ca_file.as_deref();
        let users = users.map(|path| read("--dashboard-client-ca-file", path)).transpose()?;
        let proxy = match &self.dashboard_proxy_ca_file {
            None => None,
            Some(path) => Some(TrustedProxy {
                clients: read("--dashboard-proxy-ca-file", path)?,
                names: self.dashboard_proxy_names.clone(),
                headers: RequestHeaders {
                    names: vec![self.dashboard_user_header.clone()],
                    groups: vec![self.dashboard_group_header.clone()],
                    ..RequestHeaders::default()
                },
            }),
        };
        let are_given = users.is_some();
        let readers = Arc::new(Readers {
            cluster,
            owner: None,
            impersonator: Some(own.clone()),
            users: RwLock::new(users),
            proxy,
            sessions: Sessions::new(bound.address.port(), true),
            clients: Clients::default(),
        });
        if !are_given {
            tasks.spawn(follow_users(client, readers.clone()));
        }
        let certificate = self.certificate(certificate, tasks)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(AnyCertificate::default()))
            .with_cert_resolver(Arc::new(certificate));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tracing::info!("serving web pages at https://{}", bound.address);
        let pages = Pages { access: Access::Readers(readers), hosts: bound.hosts, clock: Clock::system() };
        tasks.spawn(pages.serve(bound.listener, Some(Arc::new(tls))));
        Ok(())
    }

    fn certificate(&self, of_webhooks: Option<Certificate>, tasks: &mut JoinSet<()>) -> anyhow::Result<Certificate> {
        let Some(folder) = self.dashboard_cert_dir.clone() else {
            return of_webhooks.map_or_else(Certificate::self_signed, Ok);
        };
        let own = Certificate::in_folder(&folder)?;
        let followed = own.clone();
        tasks.spawn(async move { followed.follow(&folder).await });
        Ok(own)
    }
}

/// Keeps the certificate authority of the cluster's users up to date, until dropped.
async fn follow_users(client: Client, readers: Arc<Readers>) {
    let api: Api<ConfigMap> = Api::namespaced(client, "kube-system");
    loop {
        let read = api.get("extension-apiserver-authentication").await;
        let pem = read.ok().and_then(|found| found.data?.get("client-ca-file").cloned());
        match pem.map(|pem| ClientAuthority::of(&pem)) {
            Some(Ok(users)) => *readers.users.write() = Some(users),
            Some(Err(error)) => tracing::warn!("client-ca-file of the cluster: {error:#}"),
            None => tracing::debug!("the cluster publishes no certificate authority of its users"),
        }
        tokio::time::sleep(LOOK).await;
    }
}
