//! The resolved configuration of one run of a container.

use berth_pod_runtime::{
    ContainerConfig, ContainerId, ContainerKind, Device, Image, Mount, PodUid, Propagation, TerminationMessagePolicy,
};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube::ResourceExt;

use super::expand::{expand, expand_all};
use super::{Context, container_limits, env, security};
use crate::kubelet::lifecycle::Member;

/// Path of the termination message if the container does not set one.
const MESSAGE_PATH_DEFAULT: &str = "/dev/termination-log";

/// The configuration of one run of a container.
pub fn config(
    context: &Context<'_>,
    member: &Member<'_>,
    attempt: i32,
    image: Image,
    devices: Vec<Device>,
) -> Result<ContainerConfig, String> {
    let empty = PodSpec::default();
    let spec = context.pod.spec.as_ref().unwrap_or(&empty);
    let container = member.spec.as_ref();
    let env = env::environment(context, container)?;
    let value = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
        words.iter().flatten().map(|word| expand(word, value)).collect()
    };
    let id = ContainerId {
        pod: PodUid(context.pod.uid().unwrap_or_default()),
        name: container.name.clone(),
        attempt: u32::try_from(attempt).unwrap_or_default(),
    };
    let path = container.termination_message_path.clone().filter(|path| !path.is_empty());
    Ok(ContainerConfig {
        id,
        kind: member.kind,
        image,
        command: expanded(&container.command),
        args: expanded(&container.args),
        mounts: mounts(spec, container, value)?,
        devices,
        security: security::security(spec, container)?,
        limits: if member.kind == ContainerKind::Ephemeral { Default::default() } else { container_limits(container) },
        working_dir: container.working_dir.clone().unwrap_or_default(),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        termination_message_path: path.unwrap_or_else(|| MESSAGE_PATH_DEFAULT.to_owned()),
        termination_message_policy: match container.termination_message_policy.as_deref() {
            Some("FallbackToLogsOnError") => TerminationMessagePolicy::FallbackToLogsOnError,
            _ => TerminationMessagePolicy::File,
        },
        target: member.target.clone(),
        env,
    })
}

fn mounts(spec: &PodSpec, container: &Container, value: impl Fn(&str) -> Option<String>) -> Result<Vec<Mount>, String> {
    if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
        return Err(format!("container {}: volumeDevices are not supported on this node", container.name));
    }
    let mut list = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
        let Some(volume) = volume else {
            return Err(format!("cannot find volume {:?} to mount into container {:?}", mount.name, container.name));
        };
        let claim_is_read_only = volume.persistent_volume_claim.as_ref().and_then(|it| it.read_only).unwrap_or(false);
        let sub_path = match mount.sub_path_expr.as_deref().filter(|text| !text.is_empty()) {
            Some(text) => expand_all(text, |name| {
                value(name).ok_or_else(|| format!("missing value for {name:?} in subPathExpr {text:?}"))
            })?,
            None => mount.sub_path.clone().unwrap_or_default(),
        };
        let is_inside = !sub_path.starts_with('/') && sub_path.split('/').all(|part| part != "..");
        if !is_inside {
            return Err(format!("subPath {sub_path:?} must be a relative path without \"..\""));
        }
        list.push(Mount {
            volume: mount.name.clone(),
            path: mount.mount_path.clone(),
            sub_path,
            read_only: mount.read_only.unwrap_or(false) || claim_is_read_only,
            propagation: match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => Propagation::HostToContainer,
                Some("Bidirectional") => Propagation::Bidirectional,
                _ => Propagation::Private,
            },
        });
    }
    Ok(list)
}
