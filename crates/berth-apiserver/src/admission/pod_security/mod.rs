//! PodSecurity: pods must meet the Pod Security Standard of their namespace.
//!
//! The labels `pod-security.kubernetes.io/enforce`, `audit` and `warn` of a namespace choose one
//! level each. The labels with the suffix `-version` choose the version of the level's checks.
//! Without labels the cluster's defaults apply. Templates of workloads are not rejected; they cause
//! warnings and audit annotations. An update that makes a namespace enforce a stricter standard
//! returns warnings about the existing pods that violate it.
//!
//! - [`policy`]: levels, versions, labels.
//! - `checks`: the table of checks by level and version; `baseline` and `restricted` have the
//!   checks.
//!
//! Source: Kubernetes documentation, "Pod Security Admission" and "Pod Security Standards".

mod baseline;
mod checks;
pub mod policy;
mod restricted;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use berth_apimachinery::field::{self, Error};
use berth_apimachinery::meta::{self, GroupKind};
use berth_apimachinery::status::Status;
use parking_lot::RwLock;
use serde_json::Value;

use super::{AdmissionPlugin, AdmissionRequest, Operation, forbidden};
use checks::{details, evaluate, items, reasons};
use policy::{Level, PREFIX, Policy, Standard};

/// Configuration of the plugin, with the fields of `PodSecurityConfiguration`.
#[derive(Clone, Debug, Default)]
pub struct PodSecurity {
    /// Policy of namespaces without labels.
    pub defaults: Policy,
    /// Users whose pods are not checked.
    pub exempt_users: Vec<String>,
    /// Namespaces whose pods are not checked.
    pub exempt_namespaces: Vec<String>,
    /// RuntimeClasses whose pods are not checked.
    pub exempt_runtime_classes: Vec<String>,
}

/// Subresources of pods that do not change what a pod may do.
const IGNORED: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];
/// Maximum number of pods of a namespace that are checked for warnings.
const PODS_MAX: usize = 3000;
/// Maximum number of cached namespaces; a full cache is emptied.
const KNOWN_MAX: usize = 1024;

pub(crate) struct Plugin {
    config: PodSecurity,
    /// Policies of namespaces, by name, with the revision of the namespace.
    known: RwLock<HashMap<String, (u64, NamespacePolicy)>>,
}

/// The policy of a namespace.
#[derive(Clone, Default)]
struct NamespacePolicy {
    policy: Policy,
    /// The error in the labels.
    problem: Option<Arc<str>>,
}

impl Plugin {
    pub(crate) fn new(config: PodSecurity) -> Self {
        Self { config, known: RwLock::default() }
    }

    /// The policy of the request's namespace.
    fn policy(&self, request: &AdmissionRequest<'_>) -> NamespacePolicy {
        let defaults = NamespacePolicy { policy: self.config.defaults, problem: None };
        let Some(record) = request.objects.record("", "namespaces", "", request.namespace) else { return defaults };
        if let Some((revision, found)) = self.known.read().get(request.namespace)
            && *revision == record.revision
        {
            return found.clone();
        }
        let (policy, errors) = Policy::of(&record.value()["metadata"]["labels"], self.config.defaults);
        let problem = (!errors.is_empty()).then(|| Arc::from(field::aggregate(&errors)));
        let found = NamespacePolicy { policy, problem };
        let mut known = self.known.write();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(request.namespace.to_owned(), (record.revision, found.clone()));
        found
    }

    /// Why the request is not checked; `None` if it is checked.
    fn exemption(&self, request: &AdmissionRequest<'_>, spec: &Value) -> Option<&'static str> {
        let config = &self.config;
        let is_in = |list: &[String], name: &str| !name.is_empty() && list.iter().any(|known| known == name);
        if is_in(&config.exempt_namespaces, request.namespace) {
            Some("namespace")
        } else if is_in(&config.exempt_users, &request.user.name) {
            Some("user")
        } else if is_in(&config.exempt_runtime_classes, spec["runtimeClassName"].as_str().unwrap_or_default()) {
            Some("runtimeClass")
        } else {
            None
        }
    }

    /// The policy for the request, and its pod or template; `None` if nothing is checked.
    fn checked<'r>(&self, request: &'r AdmissionRequest<'_>) -> Option<(NamespacePolicy, Subject<'r>)> {
        let subject = Subject::of(request)?;
        let found = self.policy(request);
        let is_open = found.problem.is_none() && found.policy.is_open();
        (!is_open && self.exemption(request, subject.spec).is_none()).then_some((found, subject))
    }

    /// Warnings about the labels of a namespace.
    fn namespace_warnings(&self, request: &AdmissionRequest<'_>) -> Vec<String> {
        let Some(object) = request.object.as_ref() else { return Vec::new() };
        let labels = &object["metadata"]["labels"];
        let (policy, _) = Policy::of(labels, self.config.defaults);
        let name = meta::name(object);
        if request.operation == Operation::Update {
            let old = request.old_object.as_deref().unwrap_or(&Value::Null);
            let (old, _) = Policy::of(&old["metadata"]["labels"], self.config.defaults);
            let (new, old) = (policy.enforce, old.enforce);
            let is_relaxed = new.version == old.version && new.level <= old.level;
            if new.level == Level::Privileged || is_relaxed {
                return Vec::new();
            }
        }
        if self.config.exempt_namespaces.iter().any(|exempt| exempt == name) {
            if policy.is_open() || policy == self.config.defaults {
                return Vec::new();
            }
            let shown = policy.shown(labels);
            return vec![format!(
                "namespace {} is exempt from Pod Security, and the policy ({shown}) will be ignored",
                field::quote(name)
            )];
        }
        match request.operation {
            Operation::Update => {
                let pods = request.objects.list("", "pods", Some(name));
                violations_in(name, policy.enforce, self.pods_to_check(&pods))
            }
            _ => Vec::new(),
        }
    }

    /// Pods in the order of checking: one of each controller before the others.
    fn pods_to_check<'p>(&self, pods: &'p [Arc<Value>]) -> Vec<&'p Value> {
        let mut seen = HashSet::new();
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for pod in pods {
            let class = pod["spec"]["runtimeClassName"].as_str().unwrap_or_default();
            if self.config.exempt_runtime_classes.iter().any(|exempt| exempt == class) {
                continue;
            }
            let owners = items(&pod["metadata"]["ownerReferences"]).iter();
            let controller = owners.filter(|owner| owner["controller"] == true).find_map(|owner| owner["uid"].as_str());
            match controller {
                Some(uid) if !seen.insert(uid.to_owned()) => others.push(pod.as_ref()),
                _ => first.push(pod.as_ref()),
            }
        }
        first.extend(others);
        first
    }
}

/// Warnings about the pods of a namespace that violate a standard: one for each kind of violation.
fn violations_in(namespace: &str, standard: Standard, pods: Vec<&Value>) -> Vec<String> {
    let mut by_reason: BTreeMap<String, (&str, usize)> = BTreeMap::new();
    for pod in pods.iter().take(PODS_MAX) {
        let violations = evaluate(standard, &pod["metadata"], &pod["spec"]);
        if violations.is_empty() {
            continue;
        }
        let name = meta::name(pod);
        let (first, count) = by_reason.entry(reasons(&violations)).or_insert((name, 0));
        *first = (*first).min(name);
        *count += 1;
    }
    let mut warnings = Vec::new();
    if pods.len() > PODS_MAX {
        let total = pods.len();
        warnings.push(format!(
            "new PodSecurity enforce level only checked against the first {PODS_MAX} of {total} existing pods"
        ));
    }
    if !by_reason.is_empty() {
        let namespace = field::quote(namespace);
        warnings.push(format!(
            "existing pods in namespace {namespace} violate the new PodSecurity enforce level \"{standard}\""
        ));
    }
    let mut of_pods: Vec<String> = by_reason
        .into_iter()
        .map(|(reason, (pod, count))| match count {
            1 => format!("{pod}: {reason}"),
            2 => format!("{pod} (and 1 other pod): {reason}"),
            _ => format!("{pod} (and {} other pods): {reason}", count - 1),
        })
        .collect();
    of_pods.sort();
    warnings.extend(of_pods);
    warnings
}

/// A pod, or the template of a workload's pods.
struct Subject<'r> {
    metadata: &'r Value,
    spec: &'r Value,
    /// True for a pod. A template is not rejected.
    is_pod: bool,
}

impl<'r> Subject<'r> {
    /// The pod or template that a request creates or changes; `None` if the request has none, or
    /// changes no part of it that is checked.
    fn of(request: &'r AdmissionRequest<'_>) -> Option<Self> {
        if !matches!(request.operation, Operation::Create | Operation::Update) {
            return None;
        }
        let object = request.object.as_ref()?;
        if (request.group, request.resource) == ("", "pods") {
            let is_ignored = IGNORED.contains(&request.subresource);
            let old = request.old_object.as_deref().filter(|_| request.operation == Operation::Update);
            let is_same = old.is_some_and(|old| !adds_containers(&object["spec"], &old["spec"]));
            return (!is_ignored && !is_same).then_some(Self {
                metadata: &object["metadata"],
                spec: &object["spec"],
                is_pod: true,
            });
        }
        if !request.subresource.is_empty() {
            return None;
        }
        let template = match (request.group, request.resource) {
            ("", "podtemplates") => &object["template"],
            ("", "replicationcontrollers")
            | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets")
            | ("batch", "jobs") => &object["spec"]["template"],
            ("batch", "cronjobs") => &object["spec"]["jobTemplate"]["spec"]["template"],
            _ => return None,
        };
        (!template.is_null()).then_some(Self {
            metadata: &template["metadata"],
            spec: &template["spec"],
            is_pod: false,
        })
    }
}

/// True if an update of a pod adds containers or changes images. The other checked fields are
/// immutable.
fn adds_containers(new: &Value, old: &Value) -> bool {
    let has_changed = |list: &str| {
        let (new, old) = (items(&new[list]), items(&old[list]));
        new.len() != old.len() || new.iter().zip(old).any(|(new, old)| new["image"] != old["image"])
    };
    let is_known = |container: &Value| {
        let mut known = items(&old["ephemeralContainers"]).iter().filter(|old| old["name"] == container["name"]);
        known.next().is_some_and(|old| old["image"] == container["image"])
    };
    has_changed("containers")
        || has_changed("initContainers")
        || !items(&new["ephemeralContainers"]).iter().all(is_known)
}

fn is_namespace(request: &AdmissionRequest<'_>) -> bool {
    (request.group, request.resource, request.subresource) == ("", "namespaces", "")
        && matches!(request.operation, Operation::Create | Operation::Update)
}

/// Rejects invalid labels of a namespace, unless the stored namespace has them already.
fn check_labels(request: &AdmissionRequest<'_>, defaults: Policy) -> Result<(), Status> {
    let errors_in = |object: Option<&Value>| -> Vec<Error> {
        object.map(|object| Policy::of(&object["metadata"]["labels"], defaults).1).unwrap_or_default()
    };
    let errors = errors_in(request.object.as_ref());
    if errors.is_empty() || errors == errors_in(request.old_object.as_deref()) {
        return Ok(());
    }
    let name = request.object.as_ref().map(meta::name).unwrap_or_default();
    Err(Status::invalid(&GroupKind::new("", "Namespace"), name, &errors))
}

impl AdmissionPlugin for Plugin {
    fn name(&self) -> &str {
        "PodSecurity"
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        if is_namespace(request) {
            return check_labels(request, self.config.defaults);
        }
        let annotate = |key: &str, value: String| request.annotate(format!("{PREFIX}{key}"), value);
        let Some((found, subject)) = self.checked(request) else {
            if let Some(why) = Subject::of(request).and_then(|subject| self.exemption(request, subject.spec)) {
                annotate("exempt", why.to_owned());
            }
            return Ok(());
        };
        if let Some(problem) = &found.problem {
            annotate("error", format!("Failed to parse policy: {problem}"));
        }
        let audited = evaluate(found.policy.audit, subject.metadata, subject.spec);
        if !audited.is_empty() {
            let text = format!("would violate PodSecurity \"{}\": {}", found.policy.audit, details(&audited));
            annotate("audit-violations", text);
        }
        if !subject.is_pod {
            return Ok(());
        }
        annotate("enforce-policy", found.policy.enforce.to_string());
        let violations = evaluate(found.policy.enforce, subject.metadata, subject.spec);
        if violations.is_empty() {
            return Ok(());
        }
        let why = format!("violates PodSecurity \"{}\": {}", found.policy.enforce, details(&violations));
        Err(forbidden(request, &why))
    }

    fn warn(&self, request: &AdmissionRequest<'_>) -> Vec<String> {
        if is_namespace(request) {
            return self.namespace_warnings(request);
        }
        let Some((found, subject)) = self.checked(request) else { return Vec::new() };
        let violations = evaluate(found.policy.warn, subject.metadata, subject.spec);
        if violations.is_empty() {
            return Vec::new();
        }
        vec![format!("would violate PodSecurity \"{}\": {}", found.policy.warn, details(&violations))]
    }
}
