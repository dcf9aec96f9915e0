//! The listener over a real socket, spoken to by hand: TLS, who is let in, and the end.
//!
//! A port is needed because certificates and connections are what is tested.

use std::sync::Arc;

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::pki::{Identity, Pki};
use berth_apiserver::tls::Listener;
use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_store::MemoryStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends one HTTP/1.1 request and returns everything that comes back.
async fn ask(
    address: std::net::SocketAddr,
    pki: &Pki,
    identity: Option<&Identity>,
    request: &str,
) -> std::io::Result<String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.authority_pem().as_bytes()).expect("PEM")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let certificate = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(vec![certificate], key).expect("a client certificate")
        }
    };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn get(path: &str, header: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n")
}

#[tokio::test]
async fn only_the_known_are_let_in_and_the_end_comes_when_it_is_asked_for() {
    // Certificates are checked against the system's clock.
    #[allow(clippy::disallowed_methods, reason = "TLS libraries use the real clock")]
    let now = jiff::Timestamp::now();
    let pki = Pki::ephemeral(now).expect("keys");
    let serving = pki.serving(&[]).expect("a certificate");
    let any_port = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(any_port, &pki, &serving).await.expect("a free port");
    let address = listener.address();
    let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now)));
    server.ready().await.expect("stored");
    let tokens = [("secret".to_owned(), UserInfo { name: "alice".to_owned(), ..UserInfo::default() })];
    let authenticator = Arc::new(Authenticator::new(tokens.into(), None));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serve = tokio::spawn(listener.serve(server, authenticator, async move {
        let _ = stopped.await;
    }));

    let check = async |identity: Option<&Identity>, request: String, expected: &str| {
        let answer = ask(address, &pki, identity, &request).await.expect("an answer");
        assert!(answer.contains(expected), "{request}\n{answer}");
    };
    check(None, get("/version", ""), "v1.35.0+berth").await;
    check(None, get("/readyz", ""), "200 OK").await;
    for path in
        ["/", "/api", "/apis", "/api/v1/namespaces", "/openapi/v2", "/metrics", "/api/v1/namespaces/default/secrets"]
    {
        check(None, get(path, ""), "401 Unauthorized").await;
    }
    check(None, get("/version", "Authorization: Bearer wrong\r\n"), "401 Unauthorized").await;
    let token = "Authorization: Bearer secret\r\n";
    check(None, get("/api", token), "\"APIVersions\"").await;
    check(None, get("/api/v1/nodes", token), "User \\\"alice\\\" cannot list resource \\\"nodes\\\"").await;
    let admin = pki.client("admin", Some("system:masters")).expect("a certificate");
    check(Some(&admin), get("/api/v1/namespaces", ""), "kube-system").await;
    check(Some(&admin), get("/api/v1/nodes", "Impersonate-User: bob\r\n"), "User \\\"bob\\\" cannot list").await;
    let plain = pki.client("carol", None).expect("a certificate");
    check(Some(&plain), get("/api/v1/namespaces", ""), "User \\\"carol\\\" cannot list").await;

    // Somebody else's authority signs nothing for us.
    let other = Pki::ephemeral(now).expect("keys");
    let forged = other.client("admin", Some("system:masters")).expect("a certificate");
    let answer = ask(address, &pki, Some(&forged), &get("/api/v1/namespaces", "")).await;
    assert!(answer.is_err(), "{answer:?}");

    // A watch that is open does not keep the server from ending.
    let watch = get("/api/v1/namespaces?watch=true", "").replace("Connection: close\r\n", "");
    let watching = ask(address, &pki, Some(&admin), &watch);
    tokio::pin!(watching);
    let early = tokio::time::timeout(std::time::Duration::from_millis(100), &mut watching).await;
    assert!(early.is_err(), "the watch ended: {early:?}");
    let _ = stop.send(());
    let (ended, _) = tokio::join!(serve, watching);
    ended.expect("the listener ends");
    assert!(ask(address, &pki, Some(&admin), &get("/version", "")).await.is_err(), "nobody answers any more");
}
