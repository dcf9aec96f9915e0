//! Admission of AppWrappers as functions on JSON: defaults, and rules for creation and updates. The
//! caller (the embedded API server, or a webhook server) passes the request.
//!
//! Source: `internal/webhook` of project-codeflare/appwrapper 1.2.1.

use berth_api::appwrapper::pod_sets::{self, PodSet};
use berth_api::kueue::labels::QUEUE_NAME;
use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::{self, GroupVersionKind};
use serde_json::{Value, json};

use super::config::AppWrapperConfiguration;
use super::types::{USER_ID_LABEL, USER_LABEL};

/// Maximum number of pod sets of an AppWrapper, which is that of a Workload.
const POD_SETS_MAX: usize = 8;
/// Maximum length of a label value.
const LABEL_LENGTH_MAX: usize = 63;
const IMMUTABLE: &str = "attempt to change immutable field";

/// The user that creates an AppWrapper.
#[derive(Clone, Copy, Debug)]
pub struct Creator<'a> {
    /// User name.
    pub name: &'a str,
    /// Identifier; empty if the user has none.
    pub uid: &'a str,
}

/// Whether the creator of an AppWrapper may create one of its components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Plural name of the component's resource; `*` if it is unknown.
    pub resource: String,
    /// The answer, or the reason why there is none.
    pub is_allowed: Result<bool, String>,
}

/// Sets the defaults of a new AppWrapper: the configured queue, and labels with its creator.
pub fn default_on_create(object: &mut Value, creator: Creator<'_>, configuration: &AppWrapperConfiguration) {
    let queue = &configuration.default_queue_name;
    if !queue.is_empty() && meta::label(object, QUEUE_NAME).is_none() {
        meta::set_label(object, QUEUE_NAME, queue);
    }
    meta::set_label(object, USER_LABEL, &label_value(creator.name));
    meta::set_label(object, USER_ID_LABEL, &label_value(creator.uid));
}

/// A label value for any text.
fn label_value(text: &str) -> String {
    let mut end = text.len().min(LABEL_LENGTH_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let is_valid = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let replaced: String = text[..end].chars().map(|it| if is_valid(it) { it } else { '_' }).collect();
    replaced.trim_matches(['-', '_', '.']).to_owned()
}

/// The kinds of the components in their order; `None` for components that have none.
pub fn kinds(object: &Value) -> Vec<Option<GroupVersionKind>> {
    let kind = |component: &Value| {
        let template = &component["template"];
        let has_kind = template["kind"].as_str().is_some_and(|kind| !kind.is_empty());
        if has_kind { GroupVersionKind::of(template).ok() } else { None }
    };
    components(object).iter().map(kind).collect()
}

fn components(object: &Value) -> &[Value] {
    object["spec"]["components"].as_array().map_or(&[], Vec::as_slice)
}

/// The errors of a new AppWrapper. `verdicts` has the creator's rights for each component; `None`
/// if they are not checked.
pub fn validate_create(
    object: &Value,
    namespace: &str,
    creator: Creator<'_>,
    verdicts: Option<&[Verdict]>,
) -> Vec<Error> {
    let mut errors = Vec::new();
    let spec = Path::new("spec");
    let path = spec.child("components");
    let mut count = 0;
    for (index, (component, kind)) in components(object).iter().zip(kinds(object)).enumerate() {
        let path = path.index(index);
        let Some(kind) = kind else {
            errors.push(Error::invalid_without_value(
                &path.child("template"),
                "failed to decode as JSON: a component needs apiVersion and kind",
            ));
            continue;
        };
        errors.extend(validate_template(&component["template"], &kind, namespace, &path));
        if let Some(verdict) = verdicts.and_then(|verdicts| verdicts.get(index)) {
            errors.extend(refused(verdict, namespace, creator, &path));
        }
        count += validate_pod_sets(component, &path, &mut errors);
    }
    if count == 0 {
        errors.push(Error::invalid_without_value(&path, "components contains no podspecs"));
    }
    if count > POD_SETS_MAX {
        let why = format!("components contains {count} podspecs; at most {POD_SETS_MAX} are allowed");
        errors.push(Error::invalid_without_value(&path, why));
    }
    errors
}

fn validate_template(template: &Value, kind: &GroupVersionKind, namespace: &str, path: &Path<'_>) -> Vec<Error> {
    let mut errors = Vec::new();
    let path = path.child("template");
    if kind.group == "workload.codeflare.dev" && kind.kind == "AppWrapper" {
        errors.push(Error::forbidden(&path, "Nested AppWrappers are forbidden"));
    }
    let own = meta::namespace(template);
    if !own.is_empty() && own != namespace {
        let metadata = path.child("metadata");
        errors.push(Error::forbidden(
            &metadata.child("namespace"),
            "AppWrappers cannot create objects in other namespaces",
        ));
    }
    errors
}

fn refused(verdict: &Verdict, namespace: &str, creator: Creator<'_>, path: &Path<'_>) -> Option<Error> {
    let path = path.child("template");
    match &verdict.is_allowed {
        Ok(true) => None,
        Ok(false) => {
            let (user, resource) = (creator.name, &verdict.resource);
            Some(Error::forbidden(&path, format!("User {user} is not authorized to create {resource} in {namespace}")))
        }
        Err(why) => Some(Error::internal(&path, why.clone())),
    }
}

/// Checks the pod sets of a component. Returns their number.
fn validate_pod_sets(component: &Value, path: &Path<'_>, errors: &mut Vec<Error>) -> usize {
    let template = &component["template"];
    let sets_path = path.child("podSets");
    let declared = pod_sets::declared(component).unwrap_or_else(|why| {
        errors.push(Error::invalid_without_value(&sets_path, why));
        Vec::new()
    });
    for (index, set) in declared.iter().enumerate() {
        let set_path = sets_path.index(index);
        let set_path = set_path.child("path");
        if set.path.is_empty() {
            errors.push(Error::required(&set_path, "podspec must specify path"));
        }
        if let Err(why) = pod_sets::check_template(template, &set.path) {
            let why = format!("path does not refer to a v1.PodSpecTemplate: {why}");
            errors.push(Error::invalid(&set_path, set.path.as_str(), why));
        }
        if set.count() < 0 {
            let set_path = sets_path.index(index);
            let why = "must be greater than or equal to 0";
            errors.push(Error::invalid(&set_path.child("replicas"), set.count(), why));
        }
    }
    match pod_sets::infer(template) {
        Ok(inferred) => {
            if let Err(why) = pod_sets::compare(&declared, &inferred) {
                errors.push(Error::invalid(&sets_path, json!(declared), why));
            }
            declared.len().max(inferred.len())
        }
        Err(why) => {
            let why = format!("error inferring PodSets: {why}");
            errors.push(Error::invalid_without_value(&path.child("template"), why));
            declared.len()
        }
    }
}

/// The errors of an update: most of an AppWrapper is immutable.
pub fn validate_update(object: &Value, old: &Value) -> Vec<Error> {
    let spec = Path::new("spec");
    let path = spec.child("components");
    let (new_components, old_components) = (components(object), components(old));
    if new_components.len() != old_components.len() {
        return vec![Error::forbidden(&path, IMMUTABLE)];
    }
    let mut errors = Vec::new();
    for (index, (new, old)) in new_components.iter().zip(old_components).enumerate() {
        let path = path.index(index);
        if new["template"] != old["template"] {
            errors.push(Error::forbidden(&path.child("template"), IMMUTABLE));
        }
        errors.extend(changed_pod_sets(new, old, &path));
    }
    let metadata = Path::new("metadata");
    let labels = metadata.child("labels");
    for label in [USER_LABEL, USER_ID_LABEL] {
        if meta::label(object, label) != meta::label(old, label) {
            errors.push(Error::forbidden(&labels.key(label), IMMUTABLE));
        }
    }
    if object["spec"]["managedBy"] != old["spec"]["managedBy"] {
        errors.push(Error::forbidden(&spec.child("managedBy"), IMMUTABLE));
    }
    errors
}

fn changed_pod_sets(new: &Value, old: &Value, path: &Path<'_>) -> Vec<Error> {
    let path = path.child("podSets");
    let sets = |component: &Value| -> Vec<PodSet> { pod_sets::declared(component).unwrap_or_default() };
    let (new, old) = (sets(new), sets(old));
    if new.len() != old.len() {
        return vec![Error::forbidden(&path, IMMUTABLE)];
    }
    let mut errors = Vec::new();
    for (index, (new, old)) in new.iter().zip(&old).enumerate() {
        let path = path.index(index);
        if new.count() != old.count() {
            errors.push(Error::forbidden(&path.child("replicas"), IMMUTABLE));
        }
        if new.path != old.path {
            errors.push(Error::forbidden(&path.child("path"), IMMUTABLE));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Creator<'static> = Creator { name: "alice", uid: "17" };

    fn pod() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}})
    }

    fn wrapper(components: Value) -> Value {
        json!({"metadata": {"name": "aw", "labels": {}}, "spec": {"components": components}})
    }

    #[track_caller]
    fn check(components: Value, expected: &[&str]) {
        let errors = validate_create(&wrapper(components), "blue", ALICE, None);
        let errors: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.detail)).collect();
        assert_eq!(errors, expected);
    }

    #[test]
    fn a_new_appwrapper_gets_the_default_queue_and_its_creator() {
        let configuration = AppWrapperConfiguration { default_queue_name: "main".into(), ..Default::default() };
        let mut object = json!({"metadata": {"labels": {USER_LABEL: "mallory"}}});
        let creator = Creator { name: "system:serviceaccount:a:b", uid: "" };
        default_on_create(&mut object, creator, &configuration);
        let expected = json!({QUEUE_NAME: "main", USER_LABEL: "system_serviceaccount_a_b", USER_ID_LABEL: ""});
        assert_eq!(object["metadata"]["labels"], expected);
        let mut object = json!({"metadata": {"labels": {QUEUE_NAME: "own"}}});
        default_on_create(&mut object, ALICE, &configuration);
        assert_eq!(object["metadata"]["labels"], json!({QUEUE_NAME: "own", USER_LABEL: "alice", USER_ID_LABEL: "17"}));
    }

    #[test]
    fn any_user_name_becomes_a_label_value() {
        assert_eq!(label_value("_a@b.c-"), "a_b.c");
        assert_eq!(label_value(&"x".repeat(70)).len(), 63);
        assert_eq!(label_value(&format!("{}é", "x".repeat(62))), "x".repeat(62));
        assert_eq!(label_value("größe"), "gr__e");
    }

    #[test]
    fn components_are_objects_of_the_same_namespace_and_no_appwrappers() {
        check(json!([{"template": pod()}]), &[]);
        let mut elsewhere = pod();
        elsewhere["metadata"]["namespace"] = json!("red");
        check(
            json!([{"template": elsewhere}]),
            &["spec.components[0].template.metadata.namespace: AppWrappers cannot create objects in other namespaces"],
        );
        let nested = json!({"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper"});
        check(
            json!([{"template": pod()}, {"template": nested}, {"template": {}}]),
            &[
                "spec.components[1].template: Nested AppWrappers are forbidden",
                "spec.components[2].template: failed to decode as JSON: a component needs apiVersion and kind",
            ],
        );
    }

    #[test]
    fn one_to_eight_pod_sets_are_allowed() {
        check(json!([]), &["spec.components: components contains no podspecs"]);
        let service = json!({"template": {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}});
        check(json!([service]), &["spec.components: components contains no podspecs"]);
        check(json!(vec![json!({"template": pod()}); 8]), &[]);
        check(
            json!(vec![json!({"template": pod()}); 9]),
            &["spec.components: components contains 9 podspecs; at most 8 are allowed"],
        );
    }

    #[test]
    fn declared_pod_sets_are_checked() {
        check(json!([{"template": pod(), "podSets": [{"path": "template", "replicas": 1}]}]), &[]);
        check(
            json!([{"template": pod(), "podSets": [{"path": "template", "replicas": 2}]}]),
            &["spec.components[0].podSets: replica count 2 differs from inferred count 1 for PodSet at path position \
               'template'"],
        );
        let set = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
            "spec": {"template": {"spec": {"containers": []}}}});
        check(json!([{"template": set, "podSets": [{"path": "template.spec.template", "replicas": 3}]}]), &[]);
        check(
            json!([{"template": set, "podSets": [{"replicas": -1}]}]),
            &[
                "spec.components[0].podSets[0].path: podspec must specify path",
                "spec.components[0].podSets[0].path: path does not refer to a v1.PodSpecTemplate: first element of the \
                 path must be 'template'",
                "spec.components[0].podSets[0].replicas: must be greater than or equal to 0",
            ],
        );
    }

    #[test]
    fn a_creator_without_the_right_for_a_component_is_refused() {
        let verdict = |resource: &str, is_allowed| Verdict { resource: resource.into(), is_allowed };
        let object = wrapper(json!([{"template": pod()}, {"template": pod()}, {"template": pod()}]));
        let verdicts =
            [verdict("pods", Ok(true)), verdict("pods", Ok(false)), verdict("*", Err("no answer".to_owned()))];
        let errors = validate_create(&object, "blue", ALICE, Some(&verdicts));
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "spec.components[1].template: Forbidden: User alice is not authorized to create pods in blue",
                "spec.components[2].template: Internal error: no answer",
            ]
        );
    }

    #[test]
    fn only_suspension_labels_and_additions_of_admission_change_later() {
        let old = wrapper(json!([{"template": pod(), "podSets": [{"path": "template"}]}]));
        let errors = |change: fn(&mut Value)| -> Vec<String> {
            let mut new = old.clone();
            change(&mut new);
            validate_update(&new, &old).iter().map(|error| error.field.clone()).collect()
        };
        let free = errors(|new| {
            new["spec"]["suspend"] = json!(true);
            new["metadata"]["labels"]["a"] = json!("b");
            new["spec"]["components"][0]["podSetInfos"] = json!([{"labels": {"a": "b"}}]);
            new["spec"]["components"][0]["podSets"][0]["replicas"] = json!(1);
        });
        assert!(free.is_empty(), "{free:?}");
        let changed = errors(|new| {
            new["spec"]["managedBy"] = json!("other");
            new["metadata"]["labels"][USER_LABEL] = json!("bob");
            new["spec"]["components"][0]["template"]["metadata"]["name"] = json!("q");
            new["spec"]["components"][0]["podSets"][0] = json!({"path": "template.x", "replicas": 2});
        });
        let expected = [
            "spec.components[0].template",
            "spec.components[0].podSets[0].replicas",
            "spec.components[0].podSets[0].path",
            "metadata.labels[workload.codeflare.dev/user]",
            "spec.managedBy",
        ];
        assert_eq!(changed, expected);
        assert_eq!(errors(|new| new["spec"]["components"] = json!([])), ["spec.components"]);
    }
}
