//! Validation of security contexts, and of the host namespaces and DNS configuration of pods.

use std::collections::HashSet;

use berth_apimachinery::field::{Error, Path};
use serde_json::{Value, json};

use super::rules::{id, items, local_path, named, number, supported, text};

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
/// Sysctls (exact, or with a prefix before the star) of the host namespace that a field of the pod
/// shares.
const SHARED_SYSCTLS: [(&str, &[&str]); 2] =
    [("hostNetwork", &["net.*"]), ("hostIPC", &["kernel.shm*", "kernel.msg*", "kernel.sem", "fs.mqueue.*"])];
/// Pattern of sysctl names, for error messages.
const NAME_PATTERN: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// Validates a pod's security context and its use of host namespaces.
pub(super) fn pod(spec: &Value, is_pod: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    let context = &spec["securityContext"];
    if spec["hostNetwork"] == true {
        let list = path.child("containers");
        for (index, container) in items(&spec["containers"]).iter().enumerate() {
            host_ports(container, is_pod, &list.index(index), errors);
        }
    }
    let path = path.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(&context[field], &path.child(field), errors);
    }
    let groups = path.child("supplementalGroups");
    for (index, group) in items(&context["supplementalGroups"]).iter().enumerate() {
        id(group, &groups.index(index), errors);
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(Error::invalid(&path.child("shareProcessNamespace"), true, detail));
    }
    sysctls(spec, &path.child("sysctls"), errors);
    supported(context, "fsGroupChangePolicy", &["Always", "OnRootMismatch"], &path, errors);
    seccomp(&context["seccompProfile"], &path.child("seccompProfile"), errors);
    apparmor(&context["appArmorProfile"], &path.child("appArmorProfile"), errors);
    supported(context, "supplementalGroupsPolicy", &["Merge", "Strict"], &path, errors);
}

/// Validates that host ports on the host network equal the container ports. Templates may omit
/// them.
fn host_ports(container: &Value, is_pod: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    let ports = path.child("ports");
    for (index, port) in items(&container["ports"]).iter().enumerate() {
        let given = number(port, "hostPort");
        if (is_pod || given != 0) && given != number(port, "containerPort") {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            errors.push(Error::invalid(&ports.index(index).child("hostPort"), given, detail));
        }
    }
}

fn sysctls(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, sysctl) in items(&spec["securityContext"]["sysctls"]).iter().enumerate() {
        let at = path.index(index);
        let at = at.child("name");
        let name = text(sysctl, "name");
        if name.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if !is_sysctl(name) {
            let detail = format!("must have at most 253 characters and match regex {NAME_PATTERN}");
            errors.push(Error::invalid(&at, name, detail));
        } else if seen.contains(name) {
            errors.push(Error::duplicate(&at, name));
        }
        seen.insert(name);
        let dotted = name.replace('/', ".");
        for (shared, patterns) in SHARED_SYSCTLS {
            let belongs = patterns.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => dotted.starts_with(start),
                None => dotted == *pattern,
            });
            if belongs && spec[shared] == true {
                errors.push(Error::invalid(&at, name, format!("may not be specified when '{shared}' is true")));
            }
        }
    }
}

/// True if a string is a sysctl name: its parts between dots or slashes start and end with a letter
/// or digit.
fn is_sysctl(name: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(|byte| alphanumeric(*byte))
                && bytes.last().is_some_and(|byte| alphanumeric(*byte))
                && bytes.iter().all(|byte| alphanumeric(*byte) || matches!(byte, b'-' | b'_'))
        })
}

fn seccomp(profile: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if profile.is_null() {
        return;
    }
    if text(profile, "type").is_empty() {
        errors.push(Error::required(&path.child("type"), "type is required when seccompProfile is set"));
    }
    supported_if_set(profile, path, errors);
    let file = &profile["localhostProfile"];
    let at = path.child("localhostProfile");
    match (text(profile, "type") == "Localhost", file.as_str()) {
        (true, None) => errors.push(Error::required(&at, "must be set when seccomp type is Localhost")),
        (true, Some(file)) => local_path(file, &at, errors),
        (false, Some(file)) => {
            let shown = json!({"Type": text(profile, "type"), "LocalhostProfile": file});
            errors.push(Error::invalid(&at, shown, "can only be set when seccomp type is Localhost"));
        }
        (false, None) => {}
    }
}

fn apparmor(profile: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if profile.is_null() {
        return;
    }
    if text(profile, "type").is_empty() {
        errors.push(Error::required(&path.child("type"), "type is required when appArmorProfile is set"));
        return;
    }
    supported_if_set(profile, path, errors);
    let at = path.child("localhostProfile");
    match (text(profile, "type") == "Localhost", profile["localhostProfile"].as_str()) {
        (true, None) => errors.push(Error::required(&at, "must be set when AppArmor type is Localhost")),
        (true, Some(name)) if name.trim().is_empty() => {
            errors.push(Error::required(&at, "must be set when AppArmor type is Localhost"));
        }
        (true, Some(name)) if name.trim() != name => {
            errors.push(Error::invalid(&at, name, "must not be padded with whitespace"));
        }
        (false, Some(name)) => {
            errors.push(Error::invalid(&at, name, "can only be set when AppArmor type is Localhost"));
        }
        _ => {}
    }
}

fn supported_if_set(profile: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    if !text(profile, "type").is_empty() {
        supported(profile, "type", &PROFILES, path, errors);
    }
}

/// Validates a container's security context.
pub(super) fn container(context: &Value, host_users: bool, path: &Path<'_>, errors: &mut Vec<Error>) {
    for field in ["runAsUser", "runAsGroup"] {
        id(&context[field], &path.child(field), errors);
    }
    supported(context, "procMount", &["Default", "Unmasked"], path, errors);
    if host_users && context["procMount"] == "Unmasked" {
        let detail = "`hostUsers` must be false to use `Unmasked`";
        errors.push(Error::invalid(&path.child("procMount"), "Unmasked", detail));
    }
    seccomp(&context["seccompProfile"], &path.child("seccompProfile"), errors);
    if context["allowPrivilegeEscalation"] == false {
        let conflict = |what: &str| {
            let detail = format!("cannot set `allowPrivilegeEscalation` to false and {what}");
            Error::invalid(path, context.clone(), detail)
        };
        if context["privileged"] == true {
            errors.push(conflict("`privileged` to true"));
        }
        if items(&context["capabilities"]["add"]).iter().any(|name| name == "CAP_SYS_ADMIN") {
            errors.push(conflict("`capabilities.Add` CAP_SYS_ADMIN"));
        }
    }
    apparmor(&context["appArmorProfile"], &path.child("appArmorProfile"), errors);
}

/// Validates the DNS policy and DNS configuration of a pod.
pub(super) fn dns(spec: &Value, path: &Path<'_>, errors: &mut Vec<Error>) {
    let (at, config) = (path.child("dnsConfig"), &spec["dnsConfig"]);
    let servers = items(&config["nameservers"]);
    let servers_at = at.child("nameservers");
    if spec["dnsPolicy"] == "None" {
        if config.is_null() {
            errors.push(Error::required(&at, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            errors.push(Error::required(&servers_at, detail));
            return;
        }
    }
    if servers.len() > 3 {
        errors.push(Error::invalid(&servers_at, servers.to_vec(), "must not have more than 3 nameservers"));
    }
    for (index, server) in servers.iter().enumerate() {
        let messages = berth_apimachinery::names::is_ip(server.as_str().unwrap_or_default());
        // Addresses in a non-canonical form are valid, as upstream.
        for message in messages.into_iter().filter(|message| message.starts_with("must be a valid")) {
            errors.push(Error::invalid(&servers_at.index(index), server.as_str().unwrap_or_default(), message));
        }
    }
    let searches = items(&config["searches"]);
    let searches_at = at.child("searches");
    if searches.len() > 32 {
        errors.push(Error::invalid(&searches_at, searches.to_vec(), "must not have more than 32 search paths"));
    }
    let length: usize = searches.iter().filter_map(Value::as_str).map(|name| name.len() + 1).sum();
    if length > 2049 {
        let detail = "must not have more than 2048 characters (including spaces) in the search list";
        errors.push(Error::invalid(&searches_at, searches.to_vec(), detail));
    }
    for (index, search) in searches.iter().enumerate() {
        let name = search.as_str().unwrap_or_default();
        // The root domain, and names with a trailing dot, are valid.
        let name = if name == "." { continue } else { name.strip_suffix('.').unwrap_or(name) };
        let check = berth_apimachinery::names::is_dns1123_subdomain_with_underscore;
        named(name, check, &searches_at.index(index), errors);
    }
    let options_at = at.child("options");
    for (index, option) in items(&config["options"]).iter().enumerate() {
        if text(option, "name").is_empty() {
            errors.push(Error::required(&options_at.index(index), "must not be empty"));
        }
    }
}
