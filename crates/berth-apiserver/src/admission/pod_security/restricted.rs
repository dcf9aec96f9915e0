//! The checks that only the level restricted has.
//!
//! Source: Kubernetes documentation, "Pod Security Standards: Restricted".

use std::collections::BTreeSet;

use serde_json::Value;

use super::baseline::{bad_containers, forbidden_seccomp, is_profile_allowed, seccomp_violation};
use super::checks::{Checked, Violation, items, name_of, named_containers, plural, quoted, setters};

/// Volume types that are allowed.
const ALLOWED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// True if the checks of Linux features are skipped: since version 1.25, for pods that declare
/// Windows.
fn is_windows(checked: Checked<'_>) -> bool {
    checked.minor >= 25 && checked.spec["os"]["name"] == "windows"
}

pub(super) fn privilege_escalation(checked: Checked<'_>) -> Option<Violation> {
    if is_windows(checked) {
        return None;
    }
    let bad = bad_containers(checked, |it| it["securityContext"]["allowPrivilegeEscalation"] != false);
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named_containers(&bad));
    Violation::new("allowPrivilegeEscalation != false", detail)
}

pub(super) fn capabilities(checked: Checked<'_>) -> Option<Violation> {
    if is_windows(checked) {
        return None;
    }
    let of = |container: &Value, list: &str| {
        let names = items(&container["securityContext"]["capabilities"][list]).iter().filter_map(Value::as_str);
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let keeping = bad_containers(checked, |container| !of(container, "drop").iter().any(|name| name == "ALL"));
    let mut forbidden = BTreeSet::new();
    let adding = bad_containers(checked, |container| {
        let mut added = of(container, "add");
        added.retain(|name| name != "NET_BIND_SERVICE");
        let is_bad = !added.is_empty();
        forbidden.extend(added);
        is_bad
    });
    let mut details = Vec::new();
    if !keeping.is_empty() {
        let containers = named_containers(&keeping);
        details.push(format!("{containers} must set securityContext.capabilities.drop=[\"ALL\"]"));
    }
    if !adding.is_empty() {
        let (containers, names) = (named_containers(&adding), quoted(&forbidden));
        details.push(format!("{containers} must not include {names} in securityContext.capabilities.add"));
    }
    if details.is_empty() { None } else { Violation::new("unrestricted capabilities", details.join("; ")) }
}

pub(super) fn volume_types(checked: Checked<'_>) -> Option<Violation> {
    let mut types = BTreeSet::new();
    let mut bad = Vec::new();
    for volume in items(&checked.spec["volumes"]) {
        if ALLOWED_VOLUMES.iter().any(|kind| !volume[*kind].is_null()) {
            continue;
        }
        bad.push(name_of(volume));
        let fields = volume.as_object().into_iter().flatten();
        let source = fields.filter(|(field, value)| *field != "name" && !value.is_null()).map(|(field, _)| field);
        types.insert(source.min().map_or("unknown", String::as_str).to_owned());
    }
    if bad.is_empty() {
        return None;
    }
    let volumes = format!("{} {}", plural("volume", "volumes", bad.len()), quoted(&bad));
    let what = plural("restricted volume type", "restricted volume types", types.len());
    let uses = plural("uses", "use", bad.len());
    Violation::new("restricted volume types", format!("{volumes} {uses} {what} {}", quoted(&types)))
}

pub(super) fn run_as_non_root(checked: Checked<'_>) -> Option<Violation> {
    let setting = |holder: &Value| holder["securityContext"]["runAsNonRoot"].as_bool();
    let of_pod = setting(checked.spec);
    let bad = bad_containers(checked, |container| setting(container) == Some(false));
    let setters = setters(of_pod == Some(false), &bad);
    if !setters.is_empty() {
        let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
        return Violation::new("runAsNonRoot != true", detail);
    }
    if of_pod == Some(true) {
        return None;
    }
    let open = bad_containers(checked, |container| setting(container).is_none());
    if open.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", named_containers(&open));
    Violation::new("runAsNonRoot != true", detail)
}

pub(super) fn run_as_user(checked: Checked<'_>) -> Option<Violation> {
    let is_root = |holder: &Value| holder["securityContext"]["runAsUser"] == 0;
    let setters = setters(is_root(checked.spec), &bad_containers(checked, is_root));
    if setters.is_empty() { None } else { Violation::new("runAsUser=0", format!("{setters} must not set runAsUser=0")) }
}

pub(super) fn seccomp(checked: Checked<'_>) -> Option<Violation> {
    if is_windows(checked) {
        return None;
    }
    let (is_pod_bad, bad, kinds) = forbidden_seccomp(checked);
    if let Some(violation) = seccomp_violation(is_pod_bad, &bad, &kinds) {
        return Some(violation);
    }
    let profile = |holder: &Value| holder["securityContext"]["seccompProfile"]["type"].as_str().map(str::to_owned);
    if profile(checked.spec).is_some_and(|kind| is_profile_allowed(&kind)) {
        return None;
    }
    let open = bad_containers(checked, |container| container["securityContext"]["seccompProfile"].is_null());
    if open.is_empty() {
        return None;
    }
    let containers = named_containers(&open);
    let detail = format!(
        "pod or {containers} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
    );
    Violation::new("seccompProfile", detail)
}
