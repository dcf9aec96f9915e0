//! Runs lifecycle hooks.

use std::time::Duration;

use berth_pod_runtime::ContainerId;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, PodStatus};

use super::handlers::{self, Target};
use super::node::Node;

/// Time limit of one hook command. Grace periods and restarts end hooks earlier.
const HOOK_MAX: Duration = Duration::from_secs(24 * 3600);

/// Runs a hook. Returns the reason if it failed.
pub async fn run_hook(
    node: &Node,
    status: &PodStatus,
    container: &Container,
    id: &ContainerId,
    hook: &LifecycleHandler,
) -> Result<(), String> {
    let target = Target { runtime: node.runtime.as_ref(), status, container, id, timeout: HOOK_MAX };
    if let Some(exec) = &hook.exec {
        return target.exec(exec).await.map(drop);
    }
    if let Some(get) = &hook.http_get {
        return target.http_get(get).await.map(drop);
    }
    if let Some(sleep) = &hook.sleep {
        node.clock.sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or(0))).await;
        return Ok(());
    }
    match &hook.tcp_socket {
        Some(_) => Err("tcpSocket is not supported as a lifecycle hook; use exec, httpGet or sleep".to_owned()),
        None => Ok(()),
    }
}

/// Runs a probe. Returns its output if it succeeded, or why it failed.
pub async fn run_probe(target: &Target<'_>, probe: &k8s_openapi::api::core::v1::Probe) -> Result<String, String> {
    if let Some(exec) = &probe.exec {
        return target.exec(exec).await;
    }
    if let Some(get) = &probe.http_get {
        return target.http_get(get).await;
    }
    if let Some(socket) = &probe.tcp_socket {
        return target.tcp(socket.host.as_deref(), &socket.port).await;
    }
    if let Some(grpc) = &probe.grpc {
        return handlers::grpc(target, grpc).await;
    }
    Ok(String::new())
}
