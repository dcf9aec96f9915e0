//! Senders of the writes of `berth bench api`. Each sender has its own connection and does only
//! what HTTP requires.
//!
//! The client of a controller (queues, retries, a connection pool, metrics) uses half as much CPU
//! time per request as the server. On one machine, CPU time of the senders is not available to the
//! server.

use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::ConfigExt;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

/// A request: method, path, content type and body.
pub type Call = (http::Method, String, &'static str, Vec<u8>);

/// Sends requests one by one, and waits for each response.
pub enum Sender {
    /// To the server in this process.
    Inside(Client),
    /// To a server over its own TLS connection.
    Wire { requests: Mutex<SendRequest<Full<Bytes>>>, authority: String },
}

impl Sender {
    /// Connects to the server of the configuration, with its client certificate.
    pub async fn connect(config: &kube::Config) -> anyhow::Result<Sender> {
        let host = config.cluster_url.host().context("the address of the API server has no host")?;
        let authority = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .with_context(|| format!("{host:?} is neither a DNS name nor an IP address"))?;
        let tcp = TcpStream::connect(&authority).await.with_context(|| authority.clone())?;
        tcp.set_nodelay(true)?;
        let tls = TlsConnector::from(Arc::new(config.rustls_client_config()?)).connect(name, tcp).await?;
        let (requests, connection) = handshake(TokioIo::new(tls)).await?;
        // The error that ends the connection is returned to the next request.
        tokio::spawn(connection);
        Ok(Sender::Wire { requests: Mutex::new(requests), authority })
    }

    /// Sends a request. A response other than success is an error.
    pub async fn send(&self, (method, path, kind, body): Call) -> anyhow::Result<()> {
        let request = http::Request::builder().method(method).uri(&path).header(CONTENT_TYPE, kind);
        match self {
            Sender::Inside(client) => {
                client.request_text(request.body(body)?).await.with_context(|| path)?;
            }
            Sender::Wire { requests, authority } => {
                let request = request.header(HOST, authority).body(Full::new(Bytes::from(body)))?;
                let mut requests = requests.lock().await;
                requests.ready().await.with_context(|| path.clone())?;
                let answer = requests.send_request(request).await.with_context(|| path.clone())?;
                let status = answer.status();
                let body = answer.into_body().collect().await.with_context(|| path.clone())?.to_bytes();
                if !status.is_success() {
                    bail!("{path}: {status}: {}", String::from_utf8_lossy(&body));
                }
            }
        }
        Ok(())
    }
}
