//! Streams of pods with client programs from the registries (`tests/clients`) and with kube-rs:
//! commands with input and exit codes, terminals, attached clients, forwarded ports, logs, and
//! rejected requests for simulated pods. Each uses the pods of `tests/clients/pods.json`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, DeleteParams, LogParams, PostParams, TerminalSize};
use kube::{Api, ResourceExt};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::clients::{client, installed, succeeds};
use crate::cluster::{Cluster, file};

const PODS: &str = "tests/clients/pods.json";

/// A cluster with pods that run as processes and simulated pods. Skips the running test if python3
/// is not installed, which serves the forwarded port in the pod.
fn with_processes() -> Option<Cluster> {
    if !Path::new("/usr/bin/python3").exists() {
        berth_testing::skip("python3 is not installed");
        return None;
    }
    Some(Cluster::ephemeral(&["--runtime", "process"]))
}

#[test]
fn the_python_client_streams() {
    let Some(python) = installed("python/bin/python") else { return };
    let Some(cluster) = with_processes() else { return };
    let program = [file("tests/clients/python/streams.py"), cluster.kubeconfig.display().to_string()];
    succeeds(Command::new(python).args(program).arg(file(PODS)));
    cluster.interrupt();
}

#[test]
fn the_javascript_client_streams() {
    let Some(modules) = installed("javascript/node_modules") else { return };
    let Some(cluster) = with_processes() else { return };
    // Node resolves modules from the program's folder.
    let program = modules.with_file_name("streams.mjs");
    std::fs::copy(file("tests/clients/javascript/streams.mjs"), &program).expect("the program can be copied");
    succeeds(Command::new("node").arg(program).arg(&cluster.kubeconfig).arg(file(PODS)));
    cluster.interrupt();
}

#[test]
fn the_go_client_streams() {
    let Some(program) = installed("go") else { return };
    let Some(cluster) = with_processes() else { return };
    succeeds(Command::new(program).arg(&cluster.kubeconfig).arg("streams").arg(file(PODS)));
    cluster.interrupt();
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_streams() {
    let Some(cluster) = with_processes() else { return };
    let pods: Api<Pod> = Api::default_namespaced(client(&cluster).await);
    let manifests = std::fs::read_to_string(file(PODS)).expect("the pods");
    let manifests: serde_json::Value = serde_json::from_str(&manifests).expect("JSON");
    let manifests: Vec<Pod> = serde_json::from_value(manifests["items"].clone()).expect("pods");
    for pod in &manifests {
        pods.create(&PostParams::default(), pod).await.expect("created");
    }
    for pod in &manifests {
        ready(&pods, &pod.name_any()).await;
    }
    let patience = Duration::from_secs(120);
    let checks = async {
        commands(&pods).await;
        terminals(&pods).await;
        attaches(&pods).await;
        forwards(&pods).await;
        let refused = pods.exec("simulated", ["true"], &AttachParams::default()).await;
        assert!(refused.is_err(), "a program ran in a simulated pod");
        follows(&pods).await;
    };
    tokio::time::timeout(patience, checks).await.expect("the streams end");
    cluster.interrupt();
}

/// Waits until a pod is ready.
async fn ready(pods: &Api<Pod>, name: &str) {
    for _ in 0..600 {
        let pod = pods.get(name).await.expect("a response");
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        if conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("pod {name} is not ready");
}

fn in_main() -> AttachParams {
    AttachParams::default().container("main")
}

/// A command gets its input, and its outputs and its exit code are returned separately.
async fn commands(pods: &Api<Pod>) {
    let script = "read line; echo got $line; echo done >&2; exit 3";
    let mut shell = pods.exec("real", ["sh", "-c", script], &in_main().stdin(true)).await.expect("started");
    let mut stdin = shell.stdin().expect("an input");
    stdin.write_all(b"hello\n").await.expect("sent");
    let (mut out, mut err) = (String::new(), String::new());
    let (mut stdout, mut stderr) = (shell.stdout().expect("an output"), shell.stderr().expect("errors"));
    let status = shell.take_status().expect("a status");
    let (out_read, err_read) = tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
    out_read.and(err_read).expect("read");
    assert_eq!((out.as_str(), err.as_str()), ("got hello\n", "done\n"));
    let causes = status.await.expect("a status").details.and_then(|details| details.causes).unwrap_or_default();
    assert_eq!(causes.iter().map(|cause| cause.message.as_deref()).collect::<Vec<_>>(), [Some("3")]);
}

/// A command sees the size of its terminal.
async fn terminals(pods: &Api<Pod>) {
    let script = "until test \"$(stty size)\" = '40 120'; do sleep 0.1; done; echo resized";
    let parameters = AttachParams::interactive_tty().container("main");
    let mut shell = pods.exec("real", ["sh", "-c", script], &parameters).await.expect("started");
    let mut size = shell.terminal_size().expect("a terminal");
    futures::SinkExt::send(&mut size, TerminalSize { width: 120, height: 40 }).await.expect("sent");
    let mut out = String::new();
    shell.stdout().expect("an output").read_to_string(&mut out).await.expect("read");
    assert_eq!(out, "resized\r\n");
}

/// The main program reads the client's input.
async fn attaches(pods: &Api<Pod>) {
    let mut session = pods.attach("real", &in_main().stdin(true)).await.expect("attached");
    session.stdin().expect("an input").write_all(b"hello\n").await.expect("sent");
    let mut lines = BufReader::new(session.stdout().expect("an output")).lines();
    assert_eq!(lines.next_line().await.expect("read").as_deref(), Some("main: hello"));
    session.abort();
}

/// A connection ends when the server closes it; a port without a listener is an error.
async fn forwards(pods: &Api<Pod>) {
    let mut forwarded = pods.portforward("real", &[8080, 9]).await.expect("forwarded");
    let mut server = forwarded.take_stream(8080).expect("a stream");
    server.write_all(b"GET / HTTP/1.0\r\n\r\n").await.expect("sent");
    let mut page = String::new();
    server.read_to_string(&mut page).await.expect("read");
    assert!(page.contains("Directory listing"), "{page}");
    let error = forwarded.take_error(9).expect("an error stream").await;
    assert!(error.as_ref().is_some_and(|error| error.contains("refused")), "{error:?}");
}

/// A log that is followed ends with its pod.
async fn follows(pods: &Api<Pod>) {
    let parameters = LogParams { container: Some("main".to_owned()), follow: true, ..LogParams::default() };
    let mut lines = pods.log_stream("real", &parameters).await.expect("a log").lines();
    assert_eq!(lines.try_next().await.expect("read").as_deref(), Some("ready"));
    pods.delete("real", &DeleteParams::default()).await.expect("deleted");
    while lines.try_next().await.expect("read").is_some() {}
}
