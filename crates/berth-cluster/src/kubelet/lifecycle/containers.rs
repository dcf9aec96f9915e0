//! The containers of a pod in the order of their starts, and their restart policies.

use std::borrow::Cow;

use berth_pod_runtime::ContainerKind;
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec};

/// A container of a pod.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// Its spec. For an ephemeral container, the fields that it shares with other containers.
    pub spec: Cow<'a, Container>,
    /// Its kind.
    pub kind: ContainerKind,
    /// Container whose processes an ephemeral container can see.
    pub target: Option<String>,
}

impl Member<'_> {
    /// The container with a spec of its own.
    pub fn into_owned(self) -> Member<'static> {
        Member { spec: Cow::Owned(self.spec.into_owned()), kind: self.kind, target: self.target }
    }

    /// True if the container restarts after a run with this exit code.
    ///
    /// Source: Kubernetes' restart policies; KEP-5307 for the restart rules of a single container.
    pub fn restarts(&self, pod: &PodSpec, exit_code: i32) -> bool {
        match self.kind {
            ContainerKind::Sidecar => return true,
            ContainerKind::Ephemeral => return false,
            ContainerKind::Init | ContainerKind::Main => {}
        }
        for rule in self.spec.restart_policy_rules.iter().flatten() {
            let Some(codes) = &rule.exit_codes else { continue };
            let is_listed = codes.values.as_ref().is_some_and(|values| values.contains(&exit_code));
            if rule.action == "Restart" && is_listed == (codes.operator == "In") {
                return true;
            }
        }
        let policy = self.spec.restart_policy.as_deref().or(pod.restart_policy.as_deref()).unwrap_or("Always");
        match self.kind {
            // A successful init container does not run again, regardless of the policy.
            ContainerKind::Init => exit_code != 0 && policy != "Never",
            _ => policy == "Always" || policy == "OnFailure" && exit_code != 0,
        }
    }
}

/// The containers of a pod: init containers and sidecars in order, main containers, ephemeral
/// containers.
pub fn members(spec: &PodSpec) -> Vec<Member<'_>> {
    let init = spec.init_containers.iter().flatten().map(|container| {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let kind = if is_sidecar { ContainerKind::Sidecar } else { ContainerKind::Init };
        Member { spec: Cow::Borrowed(container), kind, target: None }
    });
    let main = spec.containers.iter();
    let main = main.map(|container| Member { spec: Cow::Borrowed(container), kind: ContainerKind::Main, target: None });
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|debug| Member {
        spec: Cow::Owned(as_container(debug)),
        kind: ContainerKind::Ephemeral,
        target: debug.target_container_name.clone().filter(|name| !name.is_empty()),
    });
    init.chain(main).chain(ephemeral).collect()
}

/// An ephemeral container has no ports, probes, hooks and resources.
fn as_container(debug: &EphemeralContainer) -> Container {
    Container {
        name: debug.name.clone(),
        image: debug.image.clone(),
        image_pull_policy: debug.image_pull_policy.clone(),
        command: debug.command.clone(),
        args: debug.args.clone(),
        env: debug.env.clone(),
        env_from: debug.env_from.clone(),
        working_dir: debug.working_dir.clone(),
        volume_mounts: debug.volume_mounts.clone(),
        security_context: debug.security_context.clone(),
        stdin: debug.stdin,
        stdin_once: debug.stdin_once,
        tty: debug.tty,
        termination_message_path: debug.termination_message_path.clone(),
        termination_message_policy: debug.termination_message_policy.clone(),
        ..Container::default()
    }
}
