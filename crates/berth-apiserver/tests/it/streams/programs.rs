//! Pods whose containers are programs of this machine.

use std::process::Stdio;
use std::sync::Arc;

use berth_apimachinery::meta;
use berth_apimachinery::status::Status;
use berth_apiserver::{Command, Container, Forward, PodStreams};
use berth_pod_runtime::{Duplex, ExitStatus, Input, LogQuery, LogStream, Output, RuntimeError, StreamIo};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Runs every command on this machine. `attach` and port 7 return all data, port 80 is a web
/// server, and no other port has a program.
pub struct Programs;

/// Copies until either side ends.
async fn copy(from: Option<impl AsyncRead + Unpin>, to: Option<Output>) {
    if let (Some(mut from), Some(mut to)) = (from, to) {
        let _ = tokio::io::copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    }
}

async fn run(words: Vec<String>, mut io: StreamIo) -> Result<ExitStatus, RuntimeError> {
    if words[0] == "print-size" {
        let size = io.resize.as_mut().expect("a terminal").recv().await.expect("a size");
        let text = format!("{}x{}\n", size.width, size.height);
        let _ = io.stdout.expect("an output").write_all(text.as_bytes()).await;
        return Ok(ExitStatus { code: 0 });
    }
    let mut command = tokio::process::Command::new(&words[0]);
    command.args(&words[1..]).kill_on_drop(true);
    command.stdin(if io.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(if io.stdout.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stderr(if io.stderr.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().map_err(|error| RuntimeError::Internal(error.to_string()))?;
    let (mut child_stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // Ends with the program, which may not read all of its input.
    let feeding = tokio::spawn(async move {
        if let (Some(mut from), Some(to)) = (io.stdin, &mut child_stdin) {
            let _ = tokio::io::copy(&mut from, to).await;
        }
    });
    tokio::join!(copy(stdout, io.stdout), copy(stderr, io.stderr));
    let status = child.wait().await.map_err(|error| RuntimeError::Internal(error.to_string()))?;
    feeding.abort();
    Ok(ExitStatus { code: status.code().unwrap_or(137) })
}

async fn echo(stdin: Option<Input>, stdout: Option<Output>) -> Result<ExitStatus, RuntimeError> {
    copy(stdin, stdout).await;
    Ok(ExitStatus { code: 0 })
}

/// Responds with the request itself; the paths `/redirect`, `/slow` and `/upgrade` are special.
async fn web(mut request: Request<hyper::body::Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().to_string();
    if path == "/redirect" {
        let redirect = Response::builder().status(302).header("location", "/elsewhere").body(Full::default());
        return Ok(redirect.expect("a response"));
    }
    if path == "/upgrade" {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgrade.await.expect("upgraded"));
            let mut text = [0; 4];
            io.read_exact(&mut text).await.expect("data");
            io.write_all(&text.map(|byte| byte.to_ascii_uppercase())).await.expect("sent");
        });
        let response = Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "shout");
        return Ok(response.body(Full::default()).expect("a response"));
    }
    let method = request.method().to_string();
    let headers: Vec<String> =
        request.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?"))).collect();
    let body = request.into_body().collect().await?.to_bytes();
    let sum: u64 = body.iter().map(|byte| u64::from(*byte)).sum();
    let seen = json!({"method": method, "path": path, "headers": headers, "length": body.len(), "sum": sum});
    Ok(Response::builder().header("content-type", "application/json").body(Full::from(seen.to_string())).expect("ok"))
}

fn serve_web(io: impl Duplex + 'static) -> impl Future<Output = ()> {
    let service = hyper::service::service_fn(web);
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service);
    connection.with_upgrades().map(drop)
}

fn kubelet_error(message: &str) -> Status {
    Status { message: message.to_owned(), ..Status::internal("") }
}

impl PodStreams for Programs {
    fn exec(&self, container: &Container, command: Vec<String>) -> Result<Command, Status> {
        if container.name != "main" {
            return Err(kubelet_error(&format!("container not found ({:?})", container.name)));
        }
        Ok(Box::new(move |io| run(command, io).boxed()))
    }

    fn attach(&self, _container: &Container) -> Result<Command, Status> {
        Ok(Box::new(|io| echo(io.stdin, io.stdout).boxed()))
    }

    fn port_forward(&self, _pod: &Arc<Value>) -> Result<Forward, Status> {
        Ok(Arc::new(|port, mut stream| {
            async move {
                match port {
                    7 => {
                        let mut text = vec![0; 4096];
                        while let Ok(count @ 1..) = stream.read(&mut text).await {
                            let _ = stream.write_all(&text[..count]).await;
                        }
                        Ok(())
                    }
                    80 => {
                        serve_web(stream).await;
                        Ok(())
                    }
                    _ => Err(RuntimeError::Internal("connection refused".to_owned())),
                }
            }
            .boxed()
        }))
    }

    fn logs(
        &self,
        container: &Container,
        previous: bool,
        query: LogQuery,
    ) -> Option<BoxFuture<'static, Result<LogStream, Status>>> {
        let name = container.name.clone();
        let reply = async move {
            if previous {
                let text = format!("previous terminated container {name:?} in pod \"p\" not found");
                return Err(Status::bad_request(text));
            }
            let lines = (0..query.tail_lines.unwrap_or(3)).map(|line| Ok(Bytes::from(format!("{name} {line}\n"))));
            let lines = futures::stream::iter(lines.collect::<Vec<_>>());
            let asked = futures::stream::iter([Ok(Bytes::from(format!("{query:?}\n")))]);
            Ok(Box::pin(futures::StreamExt::chain(lines, asked)) as LogStream)
        };
        Some(reply.boxed())
    }

    fn connect(&self, _pod: &Arc<Value>, port: u16) -> BoxFuture<'static, Result<Box<dyn Duplex>, Status>> {
        async move {
            if port != 80 {
                return Err(Status::service_unavailable("error trying to reach service: connection refused"));
            }
            let (near, far) = tokio::io::duplex(64 * 1024);
            tokio::spawn(serve_web(far));
            Ok(Box::new(near) as Box<dyn Duplex>)
        }
        .boxed()
    }

    fn node_summary(&self, node: &Arc<Value>) -> BoxFuture<'static, Option<Value>> {
        let summary = json!({"node": {"nodeName": meta::name(node)}, "pods": []});
        async move { Some(summary) }.boxed()
    }
}
