//! Nobody may give away what they do not have: whoever writes a role must hold all its rules, whoever writes a binding
//! must hold the rules of the role it refers to, unless allowed to `escalate` or `bind`.
//!
//! An admission plugin of the server itself, after Kubernetes' "privilege escalation prevention and bootstrapping".

use berth_apimachinery::meta::GroupResource;
use berth_apimachinery::status::Status;
use serde_json::Value;

use super::rbac::{Rule, rules_for, rules_of, uncovered};
use super::{Attributes, MASTERS, RBAC_GROUP, StoredPolicies, decide};
use crate::admission::{AdmissionPlugin, AdmissionRequest, Operation};

/// Refuses roles and bindings that would give more than their writer has.
pub struct EscalationCheck;

impl AdmissionPlugin for EscalationCheck {
    fn name(&self) -> &str {
        "RBACEscalation"
    }

    fn validate(&self, request: &AdmissionRequest<'_>) -> Result<(), Status> {
        let writes = matches!(request.operation, Operation::Create | Operation::Update);
        if request.group != RBAC_GROUP || !writes || request.user.in_group(MASTERS) {
            return Ok(());
        }
        let Some(object) = &request.object else { return Ok(()) };
        match request.resource {
            "roles" | "clusterroles" => check_role(request, object),
            "rolebindings" | "clusterrolebindings" => check_binding(request, object),
            _ => Ok(()),
        }
    }
}

fn allowed(request: &AdmissionRequest<'_>, verb: &str, resource: &str, name: &str) -> bool {
    let attributes = Attributes {
        verb,
        group: RBAC_GROUP,
        resource,
        name,
        namespace: request.namespace,
        is_resource_request: true,
        ..Attributes::default()
    };
    decide(request.objects, &attributes, request.user).allowed
}

fn check_role(request: &AdmissionRequest<'_>, role: &Value) -> Result<(), Status> {
    let field = |object: &Value, name: &str| object.get(name).cloned().unwrap_or_default();
    if let Some(old) = &request.old_object
        && field(old, "rules") == field(role, "rules")
        && field(old, "aggregationRule") == field(role, "aggregationRule")
    {
        return Ok(());
    }
    if allowed(request, "escalate", request.resource, request.name) {
        return Ok(());
    }
    // Who may decide what is selected may decide everything.
    if !field(role, "aggregationRule").is_null() {
        let everything = Rule {
            verbs: vec!["*".to_owned()],
            api_groups: vec!["*".to_owned()],
            resources: vec!["*".to_owned()],
            ..Rule::default()
        };
        return refuse_uncovered(request, &[everything]);
    }
    let rules: Vec<Rule> = field(role, "rules").as_array().into_iter().flatten().map(Rule::from_value).collect();
    refuse_uncovered(request, &rules)
}

fn check_binding(request: &AdmissionRequest<'_>, binding: &Value) -> Result<(), Status> {
    let field = |object: &Value, name: &str| object.get(name).cloned().unwrap_or_default();
    if let Some(old) = &request.old_object
        && field(old, "roleRef") == field(binding, "roleRef")
        && field(old, "subjects") == field(binding, "subjects")
    {
        return Ok(());
    }
    let reference =
        |name: &str| binding.pointer(&format!("/roleRef/{name}")).and_then(Value::as_str).unwrap_or_default();
    let resource = if reference("kind") == "Role" { "roles" } else { "clusterroles" };
    if allowed(request, "bind", resource, reference("name")) {
        return Ok(());
    }
    let policies = StoredPolicies(request.objects);
    match rules_of(&policies, reference("kind"), reference("name"), request.namespace) {
        Ok(rules) => refuse_uncovered(request, &rules),
        // A role that may be created later with any rules.
        Err(_) => Err(Status::not_found(&GroupResource::new(RBAC_GROUP, resource), reference("name"))),
    }
}

fn refuse_uncovered(request: &AdmissionRequest<'_>, wanted: &[Rule]) -> Result<(), Status> {
    let (owned, _) = rules_for(&StoredPolicies(request.objects), request.user, request.namespace);
    let missing = uncovered(&owned, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    let shown: Vec<String> = missing.iter().map(show).collect();
    let why = format!(
        "user \"{}\" (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
        request.user.name,
        request.user.groups,
        shown.join("\n")
    );
    Err(Status::forbidden(&GroupResource::new(RBAC_GROUP, request.resource), request.name, &why))
}

fn show(rule: &Rule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("ResourceNames", &rule.resource_names),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("Verbs", &rule.verbs),
    ];
    let parts = parts.iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| format!("{name}:{list:?}"));
    format!("{{{}}}", parts.collect::<Vec<_>>().join(", "))
}
