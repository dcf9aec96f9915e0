//! The checks of the level baseline.
//!
//! Source: Kubernetes documentation, "Pod Security Standards: Baseline".

use std::collections::BTreeSet;

use berth_apimachinery::field::quote;
use serde_json::Value;

use super::checks::{Checked, Violation, containers, items, name_of, named_containers, plural, quoted, setters};

/// Capabilities that containers may add.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Sysctls that pods may set, and the first version that allows each.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD_ANNOTATION: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_ANNOTATION: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// Types of AppArmor and seccomp profiles that are allowed.
pub(super) fn is_profile_allowed(kind: &str) -> bool {
    matches!(kind, "RuntimeDefault" | "Localhost")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Names of the containers for which `is_bad` is true.
pub(super) fn bad_containers(checked: Checked<'_>, mut is_bad: impl FnMut(&Value) -> bool) -> Vec<String> {
    containers(checked).filter(|container| is_bad(container)).map(name_of).collect()
}

pub(super) fn apparmor(checked: Checked<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let mut is_bad = |holder: &Value| {
        let profile = &holder["securityContext"]["appArmorProfile"];
        let is_bad = !profile.is_null() && !is_profile_allowed(text(profile, "type"));
        if is_bad {
            values.insert(text(profile, "type").to_owned());
        }
        is_bad
    };
    let is_pod_bad = is_bad(checked.spec);
    let bad = bad_containers(checked, is_bad);
    let is_allowed = |value: &str| matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
    let annotations = checked.metadata["annotations"].as_object().into_iter().flatten();
    let mut annotations: Vec<String> = annotations
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(key, value)| key.starts_with(APPARMOR_ANNOTATION) && !is_allowed(value))
        .map(|(key, value)| format!("{key}={}", quote(value)))
        .collect();
    annotations.sort();
    let mut setters = setters(is_pod_bad, &bad);
    if !annotations.is_empty() {
        if !setters.is_empty() {
            setters.push_str(" and ");
        }
        setters.push_str(plural("annotation", "annotations", annotations.len()));
    }
    if setters.is_empty() {
        return None;
    }
    let values: Vec<String> = values.into_iter().chain(annotations).collect();
    Violation::new(
        plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len()),
        format!("{setters} must not set AppArmor profile type to {}", quoted(&values)),
    )
}

pub(super) fn capabilities(checked: Checked<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let bad = bad_containers(checked, |container| {
        let added = items(&container["securityContext"]["capabilities"]["add"]).iter().filter_map(Value::as_str);
        let forbidden: Vec<_> = added.filter(|name| !CAPABILITIES.contains(name)).map(str::to_owned).collect();
        let is_bad = !forbidden.is_empty();
        values.extend(forbidden);
        is_bad
    });
    if bad.is_empty() {
        return None;
    }
    let (containers, values) = (named_containers(&bad), quoted(&values));
    let detail = format!("{containers} must not include {values} in securityContext.capabilities.add");
    Violation::new("non-default capabilities", detail)
}

pub(super) fn host_namespaces(checked: Checked<'_>) -> Option<Violation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| checked.spec[*field] == true);
    let shared: Vec<String> = shared.map(|field| format!("{field}=true")).collect();
    if shared.is_empty() { None } else { Violation::new("host namespaces", shared.join(", ")) }
}

pub(super) fn host_path_volumes(checked: Checked<'_>) -> Option<Violation> {
    let volumes = items(&checked.spec["volumes"]).iter().filter(|volume| !volume["hostPath"].is_null());
    let volumes: Vec<String> = volumes.map(name_of).collect();
    if volumes.is_empty() {
        return None;
    }
    let detail = format!("{} {}", plural("volume", "volumes", volumes.len()), quoted(&volumes));
    Violation::new("hostPath volumes", detail)
}

pub(super) fn host_ports(checked: Checked<'_>) -> Option<Violation> {
    // Sorted as strings, as upstream.
    let mut ports = BTreeSet::new();
    let bad = bad_containers(checked, |container| {
        let taken = items(&container["ports"]).iter().filter_map(|port| port["hostPort"].as_i64());
        let taken: Vec<String> = taken.filter(|port| *port != 0).map(|port| port.to_string()).collect();
        let is_bad = !taken.is_empty();
        ports.extend(taken);
        is_bad
    });
    if bad.is_empty() {
        return None;
    }
    let (uses, what) = (plural("uses", "use", bad.len()), plural("hostPort", "hostPorts", ports.len()));
    let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
    Violation::new("hostPort", format!("{} {uses} {what} {ports}", named_containers(&bad)))
}

pub(super) fn probe_hosts(checked: Checked<'_>) -> Option<Violation> {
    let mut hosts = BTreeSet::new();
    let bad = bad_containers(checked, |container| {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
        let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
        let named = probes.into_iter().chain(hooks).flat_map(|handler| [&handler["httpGet"], &handler["tcpSocket"]]);
        let named: Vec<String> =
            named.map(|action| text(action, "host").to_owned()).filter(|host| !host.is_empty()).collect();
        let is_bad = !named.is_empty();
        hosts.extend(named);
        is_bad
    });
    if bad.is_empty() {
        return None;
    }
    let bad: Vec<String> = bad.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    let what = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
    let uses = plural("uses", "use", bad.len());
    Violation::new("probe or lifecycle host", format!("{} {uses} {what} {}", named_containers(&bad), quoted(&hosts)))
}

pub(super) fn privileged(checked: Checked<'_>) -> Option<Violation> {
    let bad = bad_containers(checked, |container| container["securityContext"]["privileged"] == true);
    if bad.is_empty() {
        return None;
    }
    Violation::new("privileged", format!("{} must not set securityContext.privileged=true", named_containers(&bad)))
}

pub(super) fn proc_mount(checked: Checked<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let bad = bad_containers(checked, |container| {
        let kind = container["securityContext"]["procMount"].as_str().filter(|kind| *kind != "Default");
        kinds.extend(kind.map(str::to_owned));
        kind.is_some()
    });
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must not set securityContext.procMount to {}", named_containers(&bad), quoted(&kinds));
    Violation::new("procMount", detail)
}

pub(super) fn selinux(checked: Checked<'_>) -> Option<Violation> {
    let (mut types, mut sets_user, mut sets_role) = (BTreeSet::new(), false, false);
    let mut is_bad = |holder: &Value| {
        let options = &holder["securityContext"]["seLinuxOptions"];
        let kind = text(options, "type");
        let is_type_allowed = matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || checked.minor >= 31 && kind == "container_engine_t";
        if !is_type_allowed {
            types.insert(kind.to_owned());
        }
        let (has_user, has_role) = (!text(options, "user").is_empty(), !text(options, "role").is_empty());
        sets_user |= has_user;
        sets_role |= has_role;
        !is_type_allowed || has_user || has_role
    };
    let is_pod_bad = is_bad(checked.spec);
    let bad = bad_containers(checked, is_bad);
    if !is_pod_bad && bad.is_empty() {
        return None;
    }
    let types = (!types.is_empty()).then(|| format!("{} {}", plural("type", "types", types.len()), quoted(&types)));
    let user = sets_user.then(|| "user may not be set".to_owned());
    let role = sets_role.then(|| "role may not be set".to_owned());
    let problems = [types, user, role].into_iter().flatten().collect::<Vec<_>>().join("; ");
    let setters = setters(is_pod_bad, &bad);
    Violation::new("seLinuxOptions", format!("{setters} set forbidden securityContext.seLinuxOptions: {problems}"))
}

pub(super) fn seccomp(checked: Checked<'_>) -> Option<Violation> {
    if checked.minor < 19 {
        return seccomp_annotations(checked);
    }
    let (is_pod_bad, bad, kinds) = forbidden_seccomp(checked);
    seccomp_violation(is_pod_bad, &bad, &kinds)
}

/// Whether the pod sets a forbidden seccomp profile, which containers do, and the forbidden
/// profiles.
pub(super) fn forbidden_seccomp(checked: Checked<'_>) -> (bool, Vec<String>, BTreeSet<String>) {
    let mut kinds = BTreeSet::new();
    let mut is_bad = |holder: &Value| {
        let profile = &holder["securityContext"]["seccompProfile"];
        let is_bad = !profile.is_null() && !is_profile_allowed(text(profile, "type"));
        if is_bad {
            kinds.insert(text(profile, "type").to_owned());
        }
        is_bad
    };
    let is_pod_bad = is_bad(checked.spec);
    let bad = bad_containers(checked, is_bad);
    (is_pod_bad, bad, kinds)
}

pub(super) fn seccomp_violation(is_pod_bad: bool, bad: &[String], kinds: &BTreeSet<String>) -> Option<Violation> {
    if !is_pod_bad && bad.is_empty() {
        return None;
    }
    let setters = setters(is_pod_bad, bad);
    let detail = format!("{setters} must not set securityContext.seccompProfile.type to {}", quoted(kinds));
    Violation::new("seccompProfile", detail)
}

/// Checks the annotations that named the seccomp profiles before version 1.19.
fn seccomp_annotations(checked: Checked<'_>) -> Option<Violation> {
    let is_allowed =
        |value: &str| matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
    let of_containers = containers(checked).map(|it| format!("{SECCOMP_CONTAINER_ANNOTATION}{}", name_of(it)));
    let keys: BTreeSet<String> = of_containers.chain([SECCOMP_POD_ANNOTATION.to_owned()]).collect();
    let forbidden: BTreeSet<String> = keys
        .iter()
        .filter_map(|key| Some((key, checked.metadata["annotations"][key.as_str()].as_str()?)))
        .filter(|(_, value)| !is_allowed(value))
        .map(|(key, value)| format!("{key}={}", quote(value)))
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let what = plural("annotation", "annotations", forbidden.len());
    let shown = forbidden.into_iter().collect::<Vec<_>>().join(", ");
    Violation::new("seccompProfile", format!("forbidden {what} {shown}"))
}

pub(super) fn sysctls(checked: Checked<'_>) -> Option<Violation> {
    let is_allowed = |name: &str| SYSCTLS.iter().any(|(known, since)| *known == name && checked.minor >= *since);
    let set = items(&checked.spec["securityContext"]["sysctls"]).iter().map(name_of);
    let forbidden: Vec<String> = set.filter(|name| !is_allowed(name)).collect();
    if forbidden.is_empty() { None } else { Violation::new("forbidden sysctls", forbidden.join(", ")) }
}

pub(super) fn windows_host_process(checked: Checked<'_>) -> Option<Violation> {
    let is_bad = |holder: &Value| holder["securityContext"]["windowsOptions"]["hostProcess"] == true;
    let (is_pod_bad, bad) = (is_bad(checked.spec), bad_containers(checked, is_bad));
    if !is_pod_bad && bad.is_empty() {
        return None;
    }
    let setters = setters(is_pod_bad, &bad);
    Violation::new("hostProcess", format!("{setters} must not set securityContext.windowsOptions.hostProcess=true"))
}
