//! Many idle connections, and oversized headers. Ten thousand TLS handshakes keep two processors
//! busy for most of a minute.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cluster::Cluster;

/// Environment variable that replaces [`CONNECTIONS`] with another number.
const VARIABLE: &str = "BERTH_TEST_CONNECTIONS";
/// Number of connections to the API server of a large cluster: one watch per node, and several per
/// controller.
const CONNECTIONS: usize = 10_000;
/// Number of concurrent handshakes. Both ends of a handshake use CPU time.
const AT_ONCE: usize = 8;
/// The server waits 90 s for a connection's first request, so all connections must be open by then.
const OPENED_WITHIN: Duration = Duration::from_secs(80);
/// Maximum memory of an idle connection: buffers of TLS and HTTP, and a task.
const BYTES_EACH_MAX: u64 = 128 * 1024;

/// A TLS client for the API server. The address and the administrator's certificate come from the
/// cluster's kubeconfig.
struct ApiClient {
    address: String,
    connector: TlsConnector,
}

impl ApiClient {
    fn of(cluster: &Cluster) -> Self {
        let text = std::fs::read_to_string(&cluster.kubeconfig).expect("the kubeconfig can be read");
        let config: Value = serde_saphyr::from_str(&text).expect("YAML");
        let decoded = |value: &Value| {
            let text = value.as_str().expect("base64");
            base64::engine::general_purpose::STANDARD.decode(text).expect("base64")
        };
        let (server, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let mut roots = rustls::RootCertStore::empty();
        let authority = decoded(&server["certificate-authority-data"]);
        roots.add(CertificateDer::from_pem_slice(&authority).expect("PEM")).expect("an authority");
        let certificate = CertificateDer::from_pem_slice(&decoded(&user["client-certificate-data"])).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(&decoded(&user["client-key-data"])).expect("PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .expect("a client certificate");
        let address = server["server"].as_str().expect("a URL").trim_start_matches("https://").to_owned();
        ApiClient { address, connector: TlsConnector::from(Arc::new(tls)) }
    }

    async fn open(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(&self.address).await.expect("a connection");
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        self.connector.connect(name, stream).await.expect("TLS")
    }
}

/// Sends headers and returns the first line of the response.
async fn ask(stream: &mut TlsStream<TcpStream>, headers: &str) -> String {
    let request = format!("GET /version HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    // A server that rejects the headers may close the connection before it has read all of them.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = vec![0; 16 * 1024];
    let length = stream.read(&mut answer).await.unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).lines().next().unwrap_or_default().to_owned()
}

/// Resident memory of a process in bytes, from `/proc`.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("/proc");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a figure");
    line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse::<u64>().ok()).expect("a number") * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_connections_use_little_memory_and_new_clients_are_served() {
    let wanted = std::env::var(VARIABLE).ok().and_then(|count| count.parse().ok()).unwrap_or(CONNECTIONS);
    // The server inherits this process's limit and raises it. It needs some files for itself.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let count = wanted.min(usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(500));
    if count < wanted {
        println!("{count} connections instead of {wanted}: this machine allows {limit} open files");
    }
    let mut own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    own.current = Some(1024);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, own).expect("a lower limit");
    let cluster = Cluster::apiserver(&[]);
    own.current = own.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, own).expect("the highest limit");

    let client = Arc::new(ApiClient::of(&cluster));
    assert_eq!(ask(&mut client.open().await, "").await, "HTTP/1.1 200 OK");
    let before = resident(cluster.id());
    let began = Instant::now();
    let openers: Vec<_> = (0..AT_ONCE)
        .map(|part| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut open = Vec::with_capacity(count / AT_ONCE + 1);
                for _ in (part..count).step_by(AT_ONCE) {
                    if began.elapsed() > OPENED_WITHIN {
                        break;
                    }
                    open.push(client.open().await);
                }
                open
            })
        })
        .collect();
    let mut idle = Vec::with_capacity(count);
    for opener in openers {
        idle.extend(opener.await.expect("the task does not panic"));
    }
    if idle.len() < count {
        println!("{} connections instead of {count}: no more were opened in {OPENED_WITHIN:?}", idle.len());
    }
    assert!(idle.len() >= count.min(1_000), "only {} connections", idle.len());
    let count = idle.len();
    let seconds = began.elapsed().as_secs_f64();
    // The first connections are still open, and a new client is served.
    assert_eq!(ask(&mut client.open().await, "").await, "HTTP/1.1 200 OK");
    for stream in idle.iter_mut().step_by(count / 10) {
        assert_eq!(ask(stream, "").await, "HTTP/1.1 200 OK");
    }
    let each = resident(cluster.id()).saturating_sub(before) / count as u64;
    println!("{count} idle connections over TLS, opened in {seconds:.1} s, {:.1} KiB each", each as f64 / 1024.0);
    assert!(each < BYTES_EACH_MAX, "{each} bytes for an idle connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_have_limits() {
    let cluster = Cluster::apiserver(&[]);
    let client = ApiClient::of(&cluster);
    let many = |count: usize| (0..count).map(|number| format!("X-{number}: a\r\n")).collect::<String>();
    assert_eq!(ask(&mut client.open().await, &many(90)).await, "HTTP/1.1 200 OK");
    let refused = "HTTP/1.1 431 Request Header Fields Too Large";
    assert_eq!(ask(&mut client.open().await, &many(200)).await, refused);
    let long = format!("X-Long: {}\r\n", "a".repeat(2 * 1024 * 1024));
    assert_eq!(ask(&mut client.open().await, &long).await, refused);
}
