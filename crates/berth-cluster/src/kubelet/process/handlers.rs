//! Actions of probes and hooks: commands, HTTP requests, TCP connections, gRPC health checks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use berth_pod_runtime::{ContainerId, PodRuntime, RuntimeError};
use k8s_openapi::api::core::v1::{Container, ExecAction, GRPCAction, HTTPGetAction, PodStatus};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::{grpc, http};

/// Maximum length of a probe's output in an event, in bytes.
const OUTPUT_MAX: usize = 1024;

/// The container that a probe or hook is about.
pub struct Target<'a> {
    /// The runtime.
    pub runtime: &'a dyn PodRuntime,
    /// The pod's status, with its address.
    pub status: &'a PodStatus,
    /// The container.
    pub container: &'a Container,
    /// Its run.
    pub id: &'a ContainerId,
    /// Time limit.
    pub timeout: Duration,
}

impl Target<'_> {
    /// Runs a command in the container. Returns its output, or why it failed.
    pub async fn exec(&self, action: &ExecAction) -> Result<String, String> {
        let command = action.command.clone().unwrap_or_default();
        match self.runtime.exec_sync(self.id, &command, self.timeout).await {
            Ok(done) => {
                let output = shown(&done.output);
                match done.exit_code {
                    0 => Ok(output),
                    // Without output the exit code is the only hint.
                    code if output.is_empty() => Err(format!("command {command:?} exited with {code}")),
                    _ => Err(output),
                }
            }
            Err(RuntimeError::TimedOut(_)) => {
                Err(format!("command timed out: {command:?} timed out after {}s", self.timeout.as_secs()))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends an HTTP GET request. Status codes from 200 to 399 succeed.
    pub async fn http_get(&self, action: &HTTPGetAction) -> Result<String, String> {
        let host = self.host(action.host.as_deref())?;
        let port = self.port(&action.port)?;
        let is_tls = action.scheme.as_deref() == Some("HTTPS");
        let headers: Vec<(String, String)> =
            action.http_headers.iter().flatten().map(|it| (it.name.clone(), it.value.clone())).collect();
        let path = action.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
        let stream = self.dial(&host, port);
        let response = self.limited(http::get(stream, &host, port, path, &headers, is_tls)).await?;
        match response.code {
            200..400 => Ok(shown(&response.body)),
            code => Err(format!("HTTP probe failed with statuscode: {code}")),
        }
    }

    /// Opens a TCP connection.
    pub async fn tcp(&self, host: Option<&str>, port: &IntOrString) -> Result<String, String> {
        let (host, port) = (self.host(host)?, self.port(port)?);
        let connect =
            async { self.dial(&host, port).await.map_err(|error| format!("dial tcp {host}:{port}: {error}")) };
        self.limited(connect).await.map(|_| String::new())
    }

    /// Opens a TCP connection. The pod network may be separate from this machine's.
    async fn dial(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        match host.parse::<IpAddr>() {
            Ok(address) => self.runtime.dial(SocketAddr::new(address, port)).await,
            Err(_) => TcpStream::connect((host, port)).await,
        }
    }

    /// The result of a future within the time limit.
    async fn limited<T>(&self, future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let limit = self.timeout;
        tokio::time::timeout(limit, future)
            .await
            .unwrap_or_else(|_| Err(format!("timed out after {}s", limit.as_secs())))
    }

    /// The host that the action names, or else the pod's address.
    fn host(&self, host: Option<&str>) -> Result<String, String> {
        match host.filter(|host| !host.is_empty()) {
            Some(host) => Ok(host.to_owned()),
            None => self.status.pod_ip.clone().ok_or_else(|| "the pod has no address".to_owned()),
        }
    }

    /// The number of a port that is given by number or name.
    fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let number = match port {
            IntOrString::Int(number) => *number,
            IntOrString::String(name) => {
                let named = self.container.ports.iter().flatten().find(|it| it.name.as_deref() == Some(name));
                match (named, name.parse()) {
                    (Some(port), _) => port.container_port,
                    (None, Ok(number)) => number,
                    (None, Err(_)) => return Err(format!("container {} has no port {name:?}", self.container.name)),
                }
            }
        };
        u16::try_from(number).ok().filter(|port| *port > 0).ok_or_else(|| format!("port {number} is out of range"))
    }
}

/// Sends a gRPC health check.
pub async fn grpc(target: &Target<'_>, action: &GRPCAction) -> Result<String, String> {
    let host = target.host(None)?;
    let port = target.port(&IntOrString::Int(action.port))?;
    let service = action.service.as_deref().unwrap_or_default();
    target.limited(grpc::check(target.dial(&host, port), &host, port, service)).await.map(|()| String::new())
}

fn shown(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let mut end = text.len().min(OUTPUT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
