//! `exec`, `attach`, `portforward`, `log` and `proxy` over a real socket, because connections
//! change their protocol. The commands are programs of this machine.

mod kubectl;
mod programs;
mod proxies;
mod websockets;

use std::net::SocketAddr;
use std::sync::Arc;

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::pki::Pki;
use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_store::MemoryStore;
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::harness::Server;
use programs::Programs;

/// A server whose pods run programs of this machine.
struct Fixture {
    address: SocketAddr,
    pki: Pki,
    server: Server,
    /// Dropping it stops the listener.
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// A running pod with containers `main` and `side`.
fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [
            {"name": "main", "image": "i", "ports": [{"name": "web", "containerPort": 80}]},
            {"name": "side", "image": "i"},
        ]},
    })
}

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn add_pods(server: &Server) {
    server.post(PODS, pod("p")).await.expect(201);
    let running = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [
        {"type": "Ready", "status": "True"},
    ], "containerStatuses": [
        {"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}},
    ]}});
    server.patch(&format!("{PODS}/p/status"), "merge-patch", running).await.expect(200);
    let pending = json!({"metadata": {"name": "pending"}, "spec": {"containers": [{"name": "main", "image": "i"}]}});
    server.post(PODS, pending).await.expect(201);
}

impl Fixture {
    async fn start() -> Fixture {
        let (listener, pki, now) = crate::wire::on_a_free_port().await;
        let address = listener.address();
        let mut config = Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now));
        config.pod_streams = Some(Arc::new(Programs));
        let api = ApiServer::new(config);
        let tokens =
            [("secret".to_owned(), UserInfo::master("alice")), ("reader".to_owned(), UserInfo::new("reader", &[]))];
        let authenticator = Arc::new(Authenticator::new(tokens.into(), None));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(listener.serve(api.clone(), authenticator, async move {
            let _ = stopped.await;
        }));
        let server = Server { api };
        add_pods(&server).await;
        Fixture { address, pki, server, _stop: stop }
    }

    /// A TLS connection for HTTP/1.1.
    async fn connect(&self) -> TlsStream<TcpStream> {
        let socket = TcpSocket::new_v4().expect("a socket");
        crate::wire::connect(socket, self.address, &self.pki, "http/1.1").await.expect("connected")
    }
}
