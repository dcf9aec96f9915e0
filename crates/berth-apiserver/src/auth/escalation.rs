//! Prevents privilege escalation. A user that writes a role must hold all its rules, and a user
//! that writes a binding must hold the rules of its role, unless allowed to `escalate` or `bind`.
//!
//! A built-in admission plugin, after Kubernetes' "privilege escalation prevention and
//! bootstrapping".

use berth_apimachinery::meta::{self, GroupResource};
use berth_apimachinery::packed;
use berth_apimachinery::status::Status;
use serde_json::Value;

use super::rbac::{Rule, rules_for, rules_of, uncovered};
use super::{Attributes, MASTERS, RBAC_GROUP, StoredPolicies, decide};
use crate::admission::{AdmissionPlugin, AdmissionRequest, Operation};
use crate::strategy::same;

/// Rejects roles and bindings that would grant permissions that their writer does not have.
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
    if is_left_to_the_collector(request, role) || allowed(request, "escalate", request.resource, request.name) {
        return Ok(());
    }
    let rules: Vec<Rule> = role["rules"].as_array().into_iter().flatten().map(Rule::from_value).collect();
    reject_uncovered(request, &rules)?;
    // A user that chooses the selectors of an aggregation rule can obtain every rule. Removing the
    // aggregation rule makes the rules of the object writable.
    let aggregates = |role: &Value| role.get("aggregationRule").is_some_and(|rule| !rule.is_null());
    if aggregates(role) || request.old_object.as_deref().is_some_and(aggregates) {
        let all = || vec!["*".to_owned()];
        let everything = [
            Rule { verbs: all(), api_groups: all(), resources: all(), ..Rule::default() },
            Rule { verbs: all(), non_resource_urls: all(), ..Rule::default() },
        ];
        if !uncovered(&owned(request), &everything).is_empty() {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(Status::forbidden(&GroupResource::new(RBAC_GROUP, request.resource), request.name, why));
        }
    }
    Ok(())
}

/// True if an update changes only fields that the garbage collector must change to delete an
/// object. Every other change is a grant: a label can aggregate unchanged rules into a role that
/// other users have.
fn is_left_to_the_collector(request: &AdmissionRequest<'_>, object: &Value) -> bool {
    let Some(old) = &request.old_object else { return false };
    let rest = |object: &Value| {
        let mut object = object.clone();
        packed::take(&mut object);
        let metadata = meta::metadata_mut(&mut object);
        for field in ["ownerReferences", "finalizers", "managedFields", "selfLink", "resourceVersion"] {
            metadata.remove(field);
        }
        object
    };
    same(&rest(object), &rest(old))
}

fn check_binding(request: &AdmissionRequest<'_>, binding: &Value) -> Result<(), Status> {
    if is_left_to_the_collector(request, binding) {
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
        Ok(rules) => reject_uncovered(request, &rules),
        // The missing role might be created later with any rules.
        Err(_) => Err(Status::not_found(&GroupResource::new(RBAC_GROUP, resource), reference("name"))),
    }
}

/// All rules that the writer holds in the object's namespace.
fn owned(request: &AdmissionRequest<'_>) -> Vec<Rule> {
    rules_for(&StoredPolicies(request.objects), request.user, request.namespace).0
}

fn reject_uncovered(request: &AdmissionRequest<'_>, wanted: &[Rule]) -> Result<(), Status> {
    let missing = uncovered(&owned(request), wanted);
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
