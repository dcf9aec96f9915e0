//! Time limits for idle and stalled clients, over a real socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::pki::Pki;
use berth_apiserver::tls::TimeLimits;
use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_store::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::harness::Server;
use crate::wire::connect;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);
/// The limit under test.
const SHORT: Duration = Duration::from_millis(200);
const TOKEN: &str = "Authorization: Bearer secret\r\n";

/// A listener whose time limits are [`LONG`], except those that `change` sets.
async fn listen(change: impl FnOnce(&mut TimeLimits)) -> (SocketAddr, Pki, Server) {
    let (listener, pki, now) = crate::wire::on_a_free_port().await;
    let mut limits = TimeLimits { handshake: LONG, headers: LONG, body: LONG, unread: LONG };
    change(&mut limits);
    let listener = listener.with_time_limits(limits);
    let address = listener.address();
    let api = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now)));
    let tokens = [("secret".to_owned(), UserInfo::master("alice"))];
    let authenticator = Arc::new(Authenticator::new(tokens.into(), None));
    tokio::spawn(listener.serve(api.clone(), authenticator, std::future::pending()));
    (address, pki, Server { api })
}

fn socket() -> TcpSocket {
    TcpSocket::new_v4().expect("a socket")
}

#[tokio::test]
async fn a_client_without_a_tls_handshake_is_disconnected() {
    let (address, _pki, _server) = listen(|limits| limits.handshake = SHORT).await;
    let mut stream = socket().connect(address).await.expect("connected");
    let mut answer = Vec::new();
    let end = tokio::time::timeout(LONG / 10, stream.read_to_end(&mut answer)).await.expect("the connection ends");
    assert!(end.is_err() || answer.is_empty(), "{answer:?}");
}

#[tokio::test]
async fn a_client_with_incomplete_headers_is_disconnected() {
    let (address, pki, _server) = listen(|limits| limits.headers = SHORT).await;
    let beginnings = [
        ("http/1.1", ""),
        ("http/1.1", "GET /api/v1/namespaces HTTP/1.1\r\nHost: local"),
        ("h2", ""),
        ("h2", "PRI * HTT"),
    ];
    for (protocol, beginning) in beginnings {
        let mut stream = connect(socket(), address, &pki, protocol).await.expect("connected");
        stream.write_all(beginning.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        let end = tokio::time::timeout(LONG / 10, stream.read_to_end(&mut answer)).await.expect("the connection ends");
        assert!(end.is_err() || !String::from_utf8_lossy(&answer).contains("200 OK"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_client_that_stalls_in_its_body_gets_a_504() {
    let (address, pki, _server) = listen(|limits| limits.body = SHORT).await;
    let mut stream = connect(socket(), address, &pki, "http/1.1").await.expect("connected");
    let request =
        format!("POST /api/v1/namespaces HTTP/1.1\r\nHost: localhost\r\n{TOKEN}Content-Length: 100\r\n\r\n{{");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = [0; 64];
    let read =
        tokio::time::timeout(LONG / 10, stream.read(&mut answer)).await.expect("a response").expect("a response");
    let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_read_its_response_is_disconnected() {
    const LINE: &str = "a line of many";
    let (address, pki, server) = listen(|limits| limits.unread = SHORT).await;
    // More data than the socket buffers of both ends hold.
    let text = LINE.repeat(1024 * 1024 / LINE.len() - 100);
    for index in 0..24 {
        let map = serde_json::json!({"metadata": {"name": format!("m{index}")}, "data": {"a": text}});
        server.post("/api/v1/namespaces/default/configmaps", map).await.expect(201);
    }
    let small = socket();
    small.set_recv_buffer_size(4096).expect("a small buffer");
    let mut stream = connect(small, address, &pki, "http/1.1").await.expect("connected");
    let request = format!(
        "GET /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: localhost\r\n{TOKEN}Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    tokio::time::sleep(SHORT * 10).await;
    let mut answer = Vec::new();
    let end = tokio::time::timeout(LONG / 10, stream.read_to_end(&mut answer)).await.expect("the connection ends");
    let whole = end.is_ok() && answer.ends_with(b"]}\n");
    assert!(!whole && answer.starts_with(b"HTTP/1.1 200"), "{} bytes", answer.len());
}
