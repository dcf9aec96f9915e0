//! Users and privileges of a container. Fields of its own security context override those of the
//! pod's.

use berth_pod_runtime::{Capabilities, Security};
use k8s_openapi::api::core::v1::{Container, PodSecurityContext, PodSpec, SecurityContext};

/// The users and privileges of a container.
pub fn security(spec: &PodSpec, container: &Container) -> Result<Security, String> {
    let (no_pod, no_own) = (PodSecurityContext::default(), SecurityContext::default());
    let pod = spec.security_context.as_ref().unwrap_or(&no_pod);
    let own = container.security_context.as_ref().unwrap_or(&no_own);
    let id = |field: &str, value: Option<i64>| -> Result<Option<u32>, String> {
        value
            .map(|it| u32::try_from(it).map_err(|_| format!("securityContext.{field}: {it} is out of range")))
            .transpose()
    };
    let user = id("runAsUser", own.run_as_user.or(pod.run_as_user))?;
    let run_as_non_root = own.run_as_non_root.or(pod.run_as_non_root).unwrap_or(false);
    if run_as_non_root && user == Some(0) {
        return Err("container's runAsUser breaks non-root policy".to_owned());
    }
    let mut supplemental_groups = Vec::new();
    for group in pod.supplemental_groups.iter().flatten().copied().chain(pod.fs_group) {
        let group = id("supplementalGroups", Some(group))?.unwrap_or_default();
        if !supplemental_groups.contains(&group) {
            supplemental_groups.push(group);
        }
    }
    let privileged = own.privileged.unwrap_or(false);
    let profile = own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref());
    let names = |list: &Option<Vec<String>>| -> Vec<String> {
        let names = list.iter().flatten().map(|name| name.to_uppercase());
        names.map(|name| name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)).collect()
    };
    let capabilities = own.capabilities.as_ref();
    Ok(Security {
        user,
        group: id("runAsGroup", own.run_as_group.or(pod.run_as_group))?,
        supplemental_groups,
        run_as_non_root,
        privileged,
        read_only_root_filesystem: own.read_only_root_filesystem.unwrap_or(false),
        allow_privilege_escalation: own.allow_privilege_escalation.unwrap_or(true),
        capabilities: Capabilities {
            add: capabilities.map(|it| names(&it.add)).unwrap_or_default(),
            drop: capabilities.map(|it| names(&it.drop)).unwrap_or_default(),
        },
        // Without a profile the node's default applies, which is RuntimeDefault.
        seccomp_unconfined: privileged || profile.is_some_and(|profile| profile.type_ == "Unconfined"),
        unmasked_proc: privileged || own.proc_mount.as_deref() == Some("Unmasked"),
    })
}
