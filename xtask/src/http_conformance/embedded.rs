//! The API server that walks use without `--kubeconfig`: Berth's, in memory, over TLS on loopback.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::pki::{Identity, Pki};
use berth_apiserver::tls::{Certificates, Listener};
use berth_apiserver::{ApiServer, Config};
use berth_store::MemoryStore;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::task::JoinHandle;

/// A running API server. It stops when it is dropped.
pub struct Embedded {
    address: SocketAddr,
    authority_pem: String,
    identity: Identity,
    task: JoinHandle<()>,
}

/// Starts an API server.
pub async fn start() -> anyhow::Result<Embedded> {
    // Clients check certificates against the real time.
    #[allow(clippy::disallowed_methods, reason = "the server stands in for another process, which uses the real time")]
    let now = jiff::Timestamp::now;
    let pki = Pki::ephemeral(now())?;
    let certificates = Certificates::of(&pki, pki.serving(&[])?);
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), &certificates, Arc::new(now)).await?;
    let address = listener.address();
    let mut config = Config::new(Arc::new(MemoryStore::new()), Arc::new(now));
    config.token_key = Some(pki.token_key().clone());
    let server = ApiServer::new(config);
    server.ready().await.context("the embedded server does not start")?;
    let authenticator = Arc::new(Authenticator::new(Default::default(), server.tokens()));
    let identity = pki.client("admin", Some("system:masters"))?;
    // Compact the store, as a server that has run for a while does: walks read a revision that is
    // too old.
    let store = server.store_handle();
    store.compact(store.revision());
    let task = tokio::spawn(listener.serve(server, authenticator, std::future::pending()));
    Ok(Embedded { address, authority_pem: pki.authority_pem().to_owned(), identity, task })
}

impl Embedded {
    /// Client configuration of an administrator.
    pub async fn config(&self) -> anyhow::Result<kube::Config> {
        let server = format!("https://{}", self.address);
        let file = berth_apiserver::kubeconfig::Kubeconfig {
            name: "embedded",
            server: &server,
            authority_pem: &self.authority_pem,
            server_name: None,
            identity: &self.identity,
        };
        let file = Kubeconfig::from_yaml(&file.to_yaml())?;
        Ok(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.task.abort();
    }
}
