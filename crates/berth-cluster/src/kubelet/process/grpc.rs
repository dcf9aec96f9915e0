//! gRPC health checks: one call of `grpc.health.v1.Health/Check` over HTTP/2.
//!
//! The request consists of one string and the response of one number, so both are encoded by hand.

use std::io;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::http::drive;

/// Maximum number of bytes to read of a response. A health response has at most a dozen.
const BODY_MAX: usize = 4 * 1024;
/// `ServingStatus.SERVING`.
const SERVING: u64 = 1;

/// Succeeds if the server reports the service as serving, over the connection that `dialed` opens
/// to the host.
pub async fn check(
    dialed: impl Future<Output = io::Result<TcpStream>>,
    host: &str,
    port: u16,
    service: &str,
) -> Result<(), String> {
    let stream = dialed.await;
    let stream = stream.map_err(|error| format!("failed to connect to {host}:{port}: {error}"))?;
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let request = Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .header(TE, HeaderValue::from_static("trailers"))
        .header(USER_AGENT, HeaderValue::from_static("kube-probe/berth"))
        .body(Full::new(request(service)))
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        // A call that fails at once has its gRPC status in the headers.
        let early = response.headers().get("grpc-status").cloned();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        let body = body.map_err(|error| error.to_string())?;
        let late = body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned());
        outcome(early.or(late).as_ref(), &body.to_bytes())
    };
    drive(connection, exchange).await
}

/// A `HealthCheckRequest { string service = 1; }` in a gRPC frame: one byte for the compression
/// flag and four for the length, then the message.
fn request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        varint(&mut message, service.len() as u64);
        message.extend(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    frame.into()
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number as u8 & 0x7f) | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn outcome(status: Option<&HeaderValue>, body: &[u8]) -> Result<(), String> {
    match status.and_then(|status| status.to_str().ok()) {
        Some("0") => {}
        Some("12") => return Err("the server has no grpc.health.v1.Health service".to_owned()),
        Some("5") => return Err("the server does not know the service".to_owned()),
        Some(code) => return Err(format!("the health check failed with gRPC status {code}")),
        None => return Err("the response has no gRPC status".to_owned()),
    }
    // Frame of 5 bytes, then `HealthCheckResponse { ServingStatus status = 1; }`.
    let message = body.get(5..).unwrap_or_default();
    let serving = match message {
        [0x08, rest @ ..] => rest.first().copied().map_or(0, u64::from),
        _ => 0,
    };
    if serving == SERVING {
        return Ok(());
    }
    let shown = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
    let shown = usize::try_from(serving).ok().and_then(|at| shown.get(at)).unwrap_or(&"an unknown status");
    Err(format!("service unhealthy (responded with {shown:?})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(host: &str, port: u16, service: &str) -> Result<(), String> {
        super::check(TcpStream::connect((host, port)), host, port, service).await
    }

    #[test]
    fn the_request_names_the_service() {
        assert_eq!(request("").as_ref(), [0, 0, 0, 0, 0]);
        assert_eq!(request("ab").as_ref(), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
    }

    #[test]
    fn only_a_serving_response_succeeds() {
        let ok = HeaderValue::from_static("0");
        assert_eq!(outcome(Some(&ok), &[0, 0, 0, 0, 2, 8, 1]), Ok(()));
        assert!(outcome(Some(&ok), &[0, 0, 0, 0, 2, 8, 2]).unwrap_err().contains("NOT_SERVING"));
        assert!(outcome(Some(&ok), &[0, 0, 0, 0, 0]).unwrap_err().contains("UNKNOWN"));
        assert!(outcome(Some(&HeaderValue::from_static("12")), &[]).is_err());
        assert!(outcome(None, &[0, 0, 0, 0, 2, 8, 1]).is_err());
    }

    /// A server that responds to each health check with this status.
    async fn serve(listener: tokio::net::TcpListener, status: u8) {
        let (stream, _) = listener.accept().await.expect("a connection");
        let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            let sent = request.into_body().collect().await.expect("a body").to_bytes();
            assert_eq!(sent, super::request("db"));
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let body = Full::new(Bytes::from(vec![0, 0, 0, 0, 2, 8, status]));
            let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        });
        // The client closes the connection after the response.
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    #[tokio::test]
    async fn a_server_reports_the_health_of_a_service() {
        for (status, is_healthy) in [(1, true), (2, false)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let server = tokio::spawn(serve(listener, status));
            assert_eq!(check("127.0.0.1", port, "db").await.is_ok(), is_healthy);
            server.abort();
        }
    }
}
