//! The table of checks: which check belongs to which level and version, and their evaluation.

use serde_json::Value;

use super::policy::{Level, Standard, Version};
use super::{baseline, restricted};

/// The pod that is checked.
#[derive(Clone, Copy)]
pub(super) struct Checked<'a> {
    /// Metadata of the pod or of its template.
    pub(super) metadata: &'a Value,
    /// Specification of the pod.
    pub(super) spec: &'a Value,
    /// Minor version of the checks.
    pub(super) minor: u32,
}

/// A violation of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// Short reason.
    pub(super) reason: String,
    /// The containers or fields, and the forbidden values.
    pub(super) detail: String,
}

impl Violation {
    pub(super) fn new(reason: impl Into<String>, detail: impl Into<String>) -> Option<Self> {
        Some(Self { reason: reason.into(), detail: detail.into() })
    }
}

type Check = fn(Checked<'_>) -> Option<Violation>;

/// A check of the level baseline: the first version with the check, and the version from which a
/// check of the level restricted includes it.
struct Baseline(u32, Option<u32>, Check);

/// The checks of the level baseline, in the order in which violations are listed.
const BASELINE: [Baseline; 12] = [
    Baseline(0, None, baseline::apparmor),
    Baseline(0, Some(22), baseline::capabilities),
    Baseline(0, None, baseline::host_namespaces),
    Baseline(0, Some(0), baseline::host_path_volumes),
    Baseline(0, None, baseline::host_ports),
    Baseline(34, None, baseline::probe_hosts),
    Baseline(0, None, baseline::privileged),
    Baseline(0, None, baseline::proc_mount),
    Baseline(0, None, baseline::selinux),
    Baseline(0, Some(19), baseline::seccomp),
    Baseline(0, None, baseline::sysctls),
    Baseline(0, None, baseline::windows_host_process),
];
/// Checks that only the level restricted has, with the first version of each.
const RESTRICTED: [(u32, Check); 6] = [
    (8, restricted::privilege_escalation),
    (22, restricted::capabilities),
    (0, restricted::volume_types),
    (0, restricted::run_as_non_root),
    (23, restricted::run_as_user),
    (19, restricted::seccomp),
];
/// The newest version in which a check has changed.
const NEWEST: u32 = 34;

/// The violations of a standard, in upstream's order.
pub(super) fn evaluate(standard: Standard, metadata: &Value, spec: &Value) -> Vec<Violation> {
    let minor = match standard.version {
        Version::Latest => NEWEST,
        Version::Minor(minor) => minor.min(NEWEST),
    };
    let is_restricted = match standard.level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => false,
        Level::Restricted => true,
    };
    let checked = Checked { metadata, spec, minor };
    let is_included = |included_from: Option<u32>| is_restricted && included_from.is_some_and(|from| minor >= from);
    let baseline =
        BASELINE.iter().filter(|Baseline(since, from, _)| minor >= *since && !is_included(*from)).map(|check| check.2);
    let restricted = RESTRICTED.iter().filter(|(since, _)| is_restricted && minor >= *since).map(|(_, check)| *check);
    baseline.chain(restricted).filter_map(|check| check(checked)).collect()
}

/// `reason (detail), reason (detail)`.
pub(super) fn details(violations: &[Violation]) -> String {
    let shown = violations.iter().map(|Violation { reason, detail }| match detail.as_str() {
        "" => reason.clone(),
        detail => format!("{reason} ({detail})"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// `reason, reason`.
pub(super) fn reasons(violations: &[Violation]) -> String {
    violations.iter().map(|violation| violation.reason.as_str()).collect::<Vec<_>>().join(", ")
}

/// All containers of a pod: init containers, containers, ephemeral containers.
pub(super) fn containers<'a>(checked: Checked<'a>) -> impl Iterator<Item = &'a Value> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    lists.into_iter().flat_map(move |list| items(&checked.spec[list]))
}

pub(super) fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Name of a container or volume.
pub(super) fn name_of(value: &Value) -> String {
    value["name"].as_str().unwrap_or_default().to_owned()
}

/// `"a", "b"`, without escapes, as upstream.
pub(super) fn quoted<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> String {
    let texts: Vec<String> = texts.into_iter().map(|text| format!("\"{}\"", text.as_ref())).collect();
    texts.join(", ")
}

pub(super) fn plural(one: &'static str, many: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { many }
}

/// `container "a"` or `containers "a", "b"`.
pub(super) fn named_containers(names: &[String]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// `pod and container "a"`: the pod, the containers, or both.
pub(super) fn setters(is_pod: bool, containers: &[String]) -> String {
    let pod = is_pod.then(|| "pod".to_owned());
    let containers = (!containers.is_empty()).then(|| named_containers(containers));
    pod.into_iter().chain(containers).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(level: Level, version: Version, metadata: &Value, spec: &Value) -> Vec<String> {
        let violations = evaluate(Standard { level, version }, metadata, spec);
        violations.into_iter().map(|Violation { reason, detail }| format!("{reason}: {detail}")).collect()
    }

    fn baseline(spec: Value) -> Vec<String> {
        found(Level::Baseline, Version::Latest, &json!({}), &spec)
    }

    #[test]
    fn baseline_forbids_each_way_to_the_host() {
        let container = |context: Value| json!({"containers": [{"name": "c", "securityContext": context}]});
        for (spec, violation) in [
            (
                container(json!({"appArmorProfile": {"type": "Unconfined"}})),
                "forbidden AppArmor profile: container \"c\" must not set AppArmor profile type to \"Unconfined\"",
            ),
            (
                container(json!({"capabilities": {"add": ["CHOWN", "SYS_ADMIN", "NET_RAW"]}})),
                "non-default capabilities: container \"c\" must not include \"NET_RAW\", \"SYS_ADMIN\" in \
                 securityContext.capabilities.add",
            ),
            (json!({"hostIPC": true}), "host namespaces: hostIPC=true"),
            (
                json!({"volumes": [{"name": "a", "hostPath": {}}, {"name": "b", "hostPath": {}}]}),
                "hostPath volumes: volumes \"a\", \"b\"",
            ),
            (
                json!({"containers": [{"name": "c", "ports": [{"hostPort": 80}, {"hostPort": 443}, {"hostPort": 0}]}]}),
                "hostPort: container \"c\" uses hostPorts 443, 80",
            ),
            (
                json!({"containers": [{"name": "c", "livenessProbe": {"httpGet": {"host": "10.0.0.1"}}}]}),
                "probe or lifecycle host: container \"c\" uses probe or lifecycle host \"10.0.0.1\"",
            ),
            (
                json!({"initContainers": [{"name": "i", "securityContext": {"privileged": true}}],
                    "ephemeralContainers": [{"name": "e", "securityContext": {"privileged": true}}]}),
                "privileged: containers \"i\", \"e\" must not set securityContext.privileged=true",
            ),
            (
                container(json!({"procMount": "Unmasked"})),
                "procMount: container \"c\" must not set securityContext.procMount to \"Unmasked\"",
            ),
            (
                json!({"securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}}}),
                "seLinuxOptions: pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set",
            ),
            (
                json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}},
                    "containers": [{"name": "c", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}]}),
                "seccompProfile: pod and container \"c\" must not set securityContext.seccompProfile.type to \
                 \"Unconfined\"",
            ),
            (
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]}}),
                "forbidden sysctls: kernel.msgmax",
            ),
            (
                container(json!({"windowsOptions": {"hostProcess": true}})),
                "hostProcess: container \"c\" must not set securityContext.windowsOptions.hostProcess=true",
            ),
        ] {
            assert_eq!(baseline(spec), [violation]);
        }
        assert!(baseline(json!({"containers": [{"name": "c"}]})).is_empty());
    }

    #[test]
    fn restricted_forbids_pods_that_are_not_hardened() {
        let context = json!({"allowPrivilegeEscalation": false, "runAsNonRoot": true,
            "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}});
        let check = |field: &str, value: Value, volumes: Value| {
            let mut context = context.clone();
            context[field] = value;
            let spec = json!({"containers": [{"name": "c", "securityContext": context}], "volumes": volumes});
            found(Level::Restricted, Version::Latest, &json!({}), &spec).join("; ")
        };
        assert_eq!(check("runAsUser", json!(1000), json!([{"name": "v", "persistentVolumeClaim": {}}])), "");
        for (field, value, violation) in [
            (
                "allowPrivilegeEscalation",
                json!(true),
                "allowPrivilegeEscalation != false: container \"c\" must set \
                 securityContext.allowPrivilegeEscalation=false",
            ),
            (
                "capabilities",
                json!({"drop": ["ALL"], "add": ["CHOWN", "NET_BIND_SERVICE"]}),
                "unrestricted capabilities: container \"c\" must not include \"CHOWN\" in \
                 securityContext.capabilities.add",
            ),
            (
                "runAsNonRoot",
                json!(false),
                "runAsNonRoot != true: container \"c\" must not set securityContext.runAsNonRoot=false",
            ),
            ("runAsUser", json!(0), "runAsUser=0: container \"c\" must not set runAsUser=0"),
        ] {
            assert_eq!(check(field, value, json!([])), violation);
        }
        assert_eq!(
            check("runAsUser", json!(1), json!([{"name": "v", "nfs": {}}, {"name": "w", "hostPath": {}}])),
            "restricted volume types: volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\"",
            "it includes the check of hostPath volumes"
        );
    }

    #[test]
    fn older_versions_have_fewer_and_other_checks() {
        let annotated = json!({"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}});
        let spec = json!({"containers": [{"name": "c"}], "os": {"name": "windows"}});
        let at = |minor| found(Level::Restricted, Version::Minor(minor), &annotated, &spec);
        assert_eq!(
            at(7),
            [
                "seccompProfile: forbidden annotation seccomp.security.alpha.kubernetes.io/pod=\"unconfined\"",
                "runAsNonRoot != true: pod or container \"c\" must set securityContext.runAsNonRoot=true",
            ]
        );
        assert_eq!((at(24).len(), at(25).len()), (4, 1), "pods for Windows need no Linux features since 1.25");
        assert_eq!(at(99), found(Level::Restricted, Version::Latest, &annotated, &spec));
    }
}
