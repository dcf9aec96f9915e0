//! HTTP GET requests of probes and hooks.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::Uri;
use http::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use kube::client::ConfigExt as _;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Maximum number of bytes to read of a response's body.
const BODY_MAX: usize = 10 * 1024;

/// An HTTP response.
pub struct Response {
    /// Status code.
    pub code: u16,
    /// The first bytes of the body.
    pub body: Vec<u8>,
}

/// Sends a GET request over the connection that `dialed` opens to the host. With TLS, the
/// certificate is not verified, as in Kubernetes: a probe only checks that the container responds.
pub async fn get(
    dialed: impl Future<Output = io::Result<TcpStream>>,
    host: &str,
    port: u16,
    path: &str,
    headers: &[(String, String)],
    is_tls: bool,
) -> Result<Response, String> {
    let scheme = if is_tls { "https" } else { "http" };
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let failed = |error: &dyn std::fmt::Display| format!("Get \"{scheme}://{authority}{path}\": {error}");
    let request = request(&authority, path, headers).map_err(|error| failed(&error))?;
    let stream = dialed.await.map_err(|error| failed(&format!("dial tcp: {error}")))?;
    if !is_tls {
        return send(stream, request).await.map_err(|error| failed(&error));
    }
    let config = tls().map_err(|error| failed(&error))?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| failed(&error))?;
    send(stream, request).await.map_err(|error| failed(&error))
}

fn request(authority: &str, path: &str, headers: &[(String, String)]) -> Result<Request<Empty<Bytes>>, String> {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mut request = Request::get(path).body(Empty::new()).map_err(|error| error.to_string())?;
    let known = request.headers_mut();
    known.insert(HOST, HeaderValue::from_str(authority).map_err(|error| error.to_string())?);
    known.insert(USER_AGENT, HeaderValue::from_static("kube-probe/berth"));
    known.insert(ACCEPT, HeaderValue::from_static("*/*"));
    known.insert(CONNECTION, HeaderValue::from_static("close"));
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| format!("header {name:?}: {error}"))?;
        let value = HeaderValue::from_str(value).map_err(|error| format!("header {name:?}: {error}"))?;
        known.insert(name, value);
    }
    Ok(request)
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Response, String> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let code = response.status().as_u16();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        Ok(Response { code, body: body.map(|it| it.to_bytes().to_vec()).unwrap_or_default() })
    };
    drive(connection, exchange).await
}

/// Drives a connection until the exchange over it has ended. Returns the result of the exchange.
pub async fn drive<T>(
    connection: impl Future<Output = hyper::Result<()>>,
    exchange: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let (mut connection, mut exchange) = (std::pin::pin!(connection), std::pin::pin!(exchange));
    tokio::select! {
        biased;
        result = &mut exchange => return result,
        _ = &mut connection => {}
    }
    // The connection has ended. The exchange has its response or reports an error.
    exchange.await
}

/// A TLS configuration that accepts every certificate.
fn tls() -> Result<ClientConfig, String> {
    let mut config = kube::Config::new(Uri::from_static("https://localhost"));
    config.accept_invalid_certs = true;
    // No certificate authority is needed: those of the system are not loaded.
    config.root_cert = Some(Vec::new());
    config.rustls_client_config().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::ServerConfig;
    use rustls::crypto::ring;
    use rustls::pki_types::PrivateKeyDer;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    async fn get(
        host: &str,
        port: u16,
        path: &str,
        headers: &[(String, String)],
        is_tls: bool,
    ) -> Result<Response, String> {
        super::get(TcpStream::connect((host, port)), host, port, path, headers, is_tls).await
    }

    /// Reads one request and responds with `response`. Returns the request.
    async fn respond(mut stream: impl AsyncRead + AsyncWrite + Unpin, response: &str) -> String {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.expect("a request"));
        }
        stream.write_all(response.as_bytes()).await.expect("an open connection");
        stream.shutdown().await.expect("an open connection");
        String::from_utf8(request).expect("text")
    }

    #[tokio::test]
    async fn a_request_has_the_probes_headers_and_path() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            respond(stream, "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy").await
        };
        let headers = [("X-Probe".to_owned(), "1".to_owned())];
        let (request, got) = tokio::join!(server, get("127.0.0.1", port, "/healthz?full=1", &headers, false));
        let got = got.expect("a response");
        assert_eq!((got.code, got.body.as_slice()), (503, b"busy".as_slice()));
        assert!(request.starts_with("GET /healthz?full=1 HTTP/1.1\r\n"), "{request}");
        assert!(
            request.contains("x-probe: 1\r\n") && request.contains(&format!("host: 127.0.0.1:{port}\r\n")),
            "{request}"
        );
    }

    #[tokio::test]
    async fn a_self_signed_certificate_is_accepted() {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["x".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("a certificate with its key");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = async {
            let (stream, _) = listener.accept().await.expect("a connection");
            let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await.expect("a handshake");
            respond(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await
        };
        let (_, got) = tokio::join!(server, get("127.0.0.1", port, "/", &[], true));
        assert_eq!(got.expect("a response").code, 200);
    }

    #[tokio::test]
    async fn a_closed_port_is_an_error_with_the_url() {
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            listener.local_addr().expect("an address").port()
        };
        let error = get("127.0.0.1", port, "/x", &[], false).await.err().expect("no server");
        assert!(error.starts_with(&format!("Get \"http://127.0.0.1:{port}/x\": dial tcp")), "{error}");
    }
}
