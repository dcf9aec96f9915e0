//! The listener over a real socket, with hand-written requests: TLS, authentication and shutdown.
//!
//! The tests need a port because they test certificates and connections.

use std::sync::Arc;

use berth_apiserver::auth::authn::Authenticator;
use berth_apiserver::pki::{Identity, Pki};
use berth_apiserver::tls::{Certificates, Listener, OWN_NAME};
use berth_apiserver::{ApiServer, Config, UserInfo};
use berth_store::MemoryStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Sends one HTTP/1.1 request and returns the whole response.
async fn ask(
    address: std::net::SocketAddr,
    pki: &Pki,
    identity: Option<&Identity>,
    request: &str,
) -> std::io::Result<String> {
    ask_as(address, "127.0.0.1", pki.authority_pem(), identity, request).await
}

/// As [`ask`], for the server name `name`. The server's certificate must be signed by this
/// authority.
async fn ask_as(
    address: std::net::SocketAddr,
    name: &str,
    authority_pem: &str,
    identity: Option<&Identity>,
    request: &str,
) -> std::io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let config = client(authority_pem, identity);
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A TLS connection over the given socket, with `protocol` chosen by ALPN.
pub async fn connect(
    socket: TcpSocket,
    address: std::net::SocketAddr,
    pki: &Pki,
    protocol: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = socket.connect(address).await?;
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let mut config = client(pki.authority_pem(), None);
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// A client that trusts a certificate authority and presents `identity`, if any.
fn client(authority_pem: &str, identity: Option<&Identity>) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority_pem.as_bytes()).expect("PEM")).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.certificate_pem.as_bytes());
            let chain = chain.collect::<Result<_, _>>().expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(chain, key).expect("a client certificate")
        }
    }
}

fn get(path: &str, header: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n")
}

/// A listener on a free port, the issuer of its certificate, and the current time. The time is
/// real, because certificates are checked against the system's clock.
pub(crate) async fn on_a_free_port() -> (Listener, Pki, jiff::Timestamp) {
    #[allow(clippy::disallowed_methods, reason = "TLS libraries use the real clock")]
    let now = jiff::Timestamp::now();
    let pki = Pki::ephemeral(now).expect("keys");
    let certificates = Certificates::of(&pki, pki.serving(&[]).expect("a certificate"));
    let any_port = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(any_port, &certificates, Arc::new(move || now)).await.expect("a free port");
    (listener, pki, now)
}

#[tokio::test]
async fn only_authenticated_clients_are_served_and_shutdown_ends_open_watches() {
    let (listener, pki, now) = on_a_free_port().await;
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
        let answer = ask(address, &pki, identity, &request).await.expect("a response");
        assert!(answer.contains(expected), "{request}\n{answer}");
    };
    check(None, get("/version", ""), "v1.36.0+berth").await;
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

    // A certificate of another certificate authority is rejected.
    let other = Pki::ephemeral(now).expect("keys");
    let forged = other.client("admin", Some("system:masters")).expect("a certificate");
    for path in ["/api/v1/namespaces", "/version"] {
        check(Some(&forged), get(path, ""), "401 Unauthorized").await;
    }
    check(Some(&forged), get("/api", token), "\"APIVersions\"").await;

    // An open watch does not prevent a shutdown.
    let watch = get("/api/v1/namespaces?watch=true", "").replace("Connection: close\r\n", "");
    let watching = ask(address, &pki, Some(&admin), &watch);
    tokio::pin!(watching);
    let early = tokio::time::timeout(std::time::Duration::from_millis(100), &mut watching).await;
    assert!(early.is_err(), "the watch ended: {early:?}");
    let _ = stop.send(());
    let (ended, _) = tokio::join!(serve, watching);
    ended.expect("the listener ends");
    assert!(ask(address, &pki, Some(&admin), &get("/version", "")).await.is_err(), "the listener still responds");
}

/// A certificate authority or a certificate that it signed, with its key.
struct Signed {
    pem: String,
    key: rcgen::KeyPair,
    params: rcgen::CertificateParams,
}

fn signed(name: &str, by: Option<&Signed>, until_year: i32) -> Signed {
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
    if name.contains("authority") {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = match by {
        None => params.self_signed(&key),
        Some(by) => params.signed_by(&key, &rcgen::Issuer::from_params(&by.params, &by.key)),
    };
    Signed { pem: certificate.expect("signed").pem(), key, params }
}

impl Signed {
    /// The certificate with its key, followed by these intermediates.
    fn identity(&self, intermediates: &[&Signed]) -> Identity {
        let mut certificate_pem = self.pem.clone();
        intermediates.iter().for_each(|one| certificate_pem.push_str(&one.pem));
        Identity { certificate_pem, key_pem: self.key.serialize_pem() }
    }
}

#[tokio::test]
async fn external_authorities_with_intermediates_are_trusted_and_can_be_replaced() {
    // Clients check the server's certificate against the system's clock.
    #[allow(clippy::disallowed_methods, reason = "TLS libraries use the real clock")]
    let now = jiff::Timestamp::now();
    let pki = Pki::ephemeral(now).expect("keys");
    let (root, other) = (signed("authority", None, 2040), signed("other authority", None, 2040));
    let between = signed("authority between", Some(&root), 2040);
    let server_certificate = signed("api.example.com", Some(&between), 2040);
    let mut certificates = Certificates {
        client_authorities_pem: format!("{}{}", pki.authority_pem(), root.pem),
        serving: server_certificate.identity(&[&between]),
        own: Some(pki.serving(&[OWN_NAME.to_owned()]).expect("a certificate")),
    };
    let any_port = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(any_port, &certificates, Arc::new(move || now)).await.expect("a free port");
    let (address, handle) = (listener.address(), listener.certificates());
    let server = ApiServer::new(Config::new(Arc::new(MemoryStore::new()), Arc::new(move || now)));
    server.ready().await.expect("stored");
    let authenticator = Arc::new(Authenticator::new(Default::default(), None));
    let serve = tokio::spawn(listener.serve(server, authenticator, std::future::pending()));

    let check = async |identity: &Identity, expected: &str| {
        let request = get("/api/v1/nodes", "");
        let answer = ask_as(address, "api.example.com", &root.pem, Some(identity), &request).await;
        let answer = answer.expect("a response");
        assert!(answer.contains(expected), "expected {expected}:\n{answer}");
    };
    let ann = signed("ann", Some(&between), 2040);
    check(&ann.identity(&[&between]), "User \\\"ann\\\" cannot list").await;
    // Without the intermediate certificate, the chain cannot be verified.
    check(&ann.identity(&[]), "401 Unauthorized").await;
    check(&signed("ann", Some(&between), 2021).identity(&[&between]), "401 Unauthorized").await;
    check(&signed("ann", Some(&other), 2040).identity(&[]), "401 Unauthorized").await;
    check(&pki.client("bob", None).expect("signed"), "User \\\"bob\\\" cannot list").await;

    // For the server's own name, it presents a certificate of its own authority.
    let own = ask_as(address, OWN_NAME, pki.authority_pem(), None, &get("/version", "")).await.expect("a response");
    assert!(own.contains("200 OK"), "{own}");

    certificates.client_authorities_pem = other.pem.clone();
    handle.replace(&certificates).expect("usable");
    check(&ann.identity(&[&between]), "401 Unauthorized").await;
    check(&signed("ann", Some(&other), 2040).identity(&[]), "User \\\"ann\\\" cannot list").await;
    certificates.serving.key_pem = other.key.serialize_pem();
    let rejected = handle.replace(&certificates).expect_err("the key does not match").to_string();
    assert!(rejected.contains("serving certificate and its key"), "{rejected}");
    check(&signed("ann", Some(&other), 2040).identity(&[]), "User \\\"ann\\\" cannot list").await;
    serve.abort();
}
