//! Suites of CustomResourceDefinitions: validation, defaults, names, conditions and warnings.

use berth_apimachinery::field::{Error, Path};
use berth_cel::Env;
use berth_cel::types::Type;
use berth_kinds::crd::conditions::{self, Condition};
use berth_kinds::crd::features::{self, Features};
use berth_kinds::crd::names::{self, Taken};
use berth_kinds::crd::validate::approval::{self, Approval};
use berth_kinds::crd::{definition, validate, warnings};
use berth_kinds::fields;
use serde_json::{Value, json};

use super::{input, same, text, texts, want};
use crate::conformance::{Case, Runner, Verdict};

pub(super) fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "cr-selectable-fields" => selectable_fields,
        "crd-api-approval" => api_approval,
        "crd-conditions" => conditions,
        "crd-create" | "crd-update" => check,
        "crd-deprecation-warning" => deprecation_warning,
        "crd-drop-disabled-fields" => drop_disabled_fields,
        "crd-names" => accepted_names,
        "crd-stored-versions" => stored_versions,
        "crd-update-new-functions" => new_functions,
        "crd-v1-defaults" => defaults,
        "crd-warnings" => format_warnings,
        _ => return None,
    })
}

/// Compares errors in any order, by type, field and detail. A detail that quotes a Go library's
/// error is not compared.
fn errors(wanted: &Value, got: &[Error]) -> Verdict {
    let mut left: Vec<&Error> = got.iter().collect();
    for wanted in wanted.as_array().into_iter().flatten() {
        let foreign =
            ["json: cannot unmarshal", "compilation failed"].iter().any(|it| text(wanted, "detail").contains(it));
        let found = left.iter().position(|error| {
            error.kind.reason() == text(wanted, "type")
                && error.field == text(wanted, "field")
                && (foreign || error.detail == text(wanted, "detail"))
        });
        let Some(at) = found else {
            let got: Vec<String> = got.iter().map(ToString::to_string).collect();
            return Err(format!("missing {}\ngot {got:#?}", wanted["error"]));
        };
        left.remove(at);
    }
    left.first().map_or(Ok(()), |error| Err(format!("unexpected error: {error}")))
}

fn check(case: &Case) -> Verdict {
    let crd = input(case, "crd");
    let got = match input(case, "oldCrd") {
        Value::Null => validate::validate(crd),
        old => validate::validate_update(crd, old),
    };
    let wanted = want(case, "errorsViaV1");
    errors(if wanted.is_null() { want(case, "errors") } else { wanted }, &got)
}

/// Compares updates with expressions that use a function of a newer server. Only stored expressions
/// may use it.
fn new_functions(case: &Case) -> Verdict {
    let stored = Env::new(berth_cel::NEWEST).constant_function("test", Vec::new(), Type::Bool);
    let got = validate::validate_update_with(input(case, "crd"), input(case, "oldCrd"), stored);
    errors(want(case, "errors"), &got)
}

fn selectable_fields(case: &Case) -> Verdict {
    let declared = input(case, "selectableFields").as_array().into_iter().flatten();
    let declared: Vec<String> = declared.map(|field| text(field, "jsonPath").to_owned()).collect();
    let got = fields::of_custom_resource(input(case, "obj"), &declared);
    same("fields", json!(got), want(case, "expectFields").clone())
}

/// A definition of a group with an approval annotation.
fn annotated(group: &Value, annotations: Value) -> Value {
    json!({"metadata": {"name": "foos", "annotations": annotations}, "spec": {"group": group}})
}

fn api_approval(case: &Case) -> Verdict {
    let number = |approval| match approval {
        Approval::Invalid => 0,
        Approval::Approved => 1,
        Approval::Bypassed => 2,
        Approval::Missing => 3,
    };
    let group = input(case, "group");
    let own = |field: &str| annotated(group, json!({"api-approved.kubernetes.io": input(case, field)}));
    let protected = approval::is_protected_group(group.as_str().unwrap_or_default());
    match text(&case.data, "upstreamTest") {
        "TestGetAPIApprovalState" => {
            let definition = annotated(&json!(""), input(case, "annotations").clone());
            same("state", number(approval::state(&definition).0), want(case, "expected").as_i64().unwrap_or_default())
        }
        "TestIsProtectedCommunityGroup" => {
            let got = approval::is_protected_group(text(&case.input, "group"));
            same("protected", got, want(case, "expected").as_bool().unwrap_or_default())
        }
        // Recorded without an expectation. The runner computes it from the annotation's
        // documentation.
        "TestCalculateCondition" => {
            let got = approval::condition(&own("annotationValue")).map(|(status, ..)| status);
            let wanted = match text(&case.input, "annotationValue") {
                _ if !protected => None,
                approved if approved.starts_with("https://") => Some("True"),
                _ => Some("False"),
            };
            same("condition", got, wanted)
        }
        "TestValidateAPIApproval" => {
            let old = input(case, "oldAnnotationValue").is_string().then(|| own("oldAnnotationValue"));
            let got = approval::validate(&own("annotationValue"), old.as_ref());
            let acceptable = |text: &str| text.starts_with("https://") || text.starts_with("unapproved");
            let (new, old) = (input(case, "annotationValue"), input(case, "oldAnnotationValue"));
            let kind = |value: &Value| value.as_str().map(|text| (text.is_empty(), acceptable(text)));
            let rejected = protected && !acceptable(new.as_str().unwrap_or_default()) && kind(new) != kind(old);
            same("rejected", !got.is_empty(), rejected)
        }
        other => Err(format!("unknown test {other}")),
    }
}

fn conditions(case: &Case) -> Verdict {
    let definition = json!({"metadata": {}, "status": {"conditions": input(case, "crdCondition")}});
    let kind = text(&case.input, "conditionType");
    match text(&case.data, "upstreamTest") {
        "TestCRDHasFinalizer" => {
            let crd = input(case, "crd");
            let finalizer = text(&case.input, "finalizerToCheck");
            let all = berth_apimachinery::meta::finalizers(crd).len();
            let has = conditions::finalizers_without(crd, finalizer).len() < all;
            same("has", has, want(case, "expected").as_bool().unwrap_or_default())
        }
        "TestCRDRemoveFinalizer" => {
            let got = conditions::finalizers_without(input(case, "crd"), text(&case.input, "finalizerToCheck"));
            same("finalizers", json!(got), json!(texts(want(case, "expected"))))
        }
        "TestIsCRDConditionPresentAndEqual" => {
            let got = conditions::has_status(&definition, kind, text(&case.input, "status"));
            same("equal", got, want(case, "expectresult").as_bool().unwrap_or_default())
        }
        "TestIsCRDConditionTrue" => same(
            "true",
            conditions::is_true(&definition, kind),
            want(case, "expectresult").as_bool().unwrap_or_default(),
        ),
        "TestIsCRDConditionFalse" => {
            let got = conditions::has_status(&definition, kind, "False");
            same("false", got, want(case, "expectresult").as_bool().unwrap_or_default())
        }
        "TestFindCRDCondition" => {
            let got = conditions::find(&definition, kind).cloned().unwrap_or_default();
            same("condition", &got, want(case, "expectedcrdCondition"))
        }
        "TestRemoveCRDCondition" => {
            let mut got = definition;
            conditions::remove(&mut got, kind);
            same("conditions", &got["status"]["conditions"], want(case, "expectedcrdCondition"))
        }
        "TestSetCRDCondition" => {
            let (mut got, new) = (definition, input(case, "newCondition"));
            let condition = Condition {
                kind: text(new, "type"),
                status: text(new, "status"),
                reason: text(new, "reason"),
                message: text(new, "message"),
            };
            // If the case has no time, take the time of the recording from the expectation.
            let wanted = want(case, "expectedcrdCondition");
            let recorded = wanted.as_array().into_iter().flatten().find(|it| it["type"] == new["type"]);
            let recorded = recorded.map(|it| text(it, "lastTransitionTime")).unwrap_or_default();
            let now = new["lastTransitionTime"].as_str().unwrap_or(recorded);
            conditions::set(&mut got, &condition, now);
            same("conditions", &got["status"]["conditions"], wanted)
        }
        other => Err(format!("unknown test {other}")),
    }
}

fn deprecation_warning(case: &Case) -> Verdict {
    let deprecated = input(case, "deprecated").as_bool().unwrap_or_default();
    let got = validate::deprecation_warning(deprecated, input(case, "deprecationWarning").as_str());
    same("errors", got, texts(want(case, "errors")))
}

fn drop_disabled_fields(case: &Case) -> Verdict {
    let enabled = |field: &str| input(case, field).as_bool().unwrap_or_default();
    let features = Features {
        selectable_fields: enabled("enableSelectableFields"),
        ratcheting: enabled("enableRatcheting"),
        observed_generation: enabled("enableObservedGeneration"),
    };
    let old = Some(input(case, "oldCRD")).filter(|old| old.is_object());
    let mut got = input(case, "crd").clone();
    features::drop_disabled(&mut got, old, features);
    same("definition", &got, want(case, "expectedCRD"))
}

fn accepted_names(case: &Case) -> Verdict {
    let mut got = input(case, "in").clone();
    let existing = input(case, "existing").as_array().cloned().unwrap_or_default();
    let taken = Taken::by(&got, &existing);
    names::accept(&mut got, &taken, "2026-01-01T00:00:00Z");
    same("names", &got["status"]["acceptedNames"], want(case, "expectedNames"))?;
    for (kind, field) in
        [("NamesAccepted", "expectedNameConflictCondition"), ("Established", "expectedEstablishedCondition")]
    {
        let condition = conditions::find(&got, kind).cloned().unwrap_or_default();
        for part in ["status", "reason", "message"] {
            same(&format!("{kind} {part}"), text(&condition, part), text(want(case, field), part))?;
        }
    }
    Ok(())
}

fn stored_versions(case: &Case) -> Verdict {
    let stored = input(case, "storedVersions").as_array().cloned().unwrap_or_default();
    let path = Path::new(text(&case.input, "path"));
    errors(want(case, "errors"), &validate::check_stored_versions(&stored, input(case, "versions"), &path))
}

fn defaults(case: &Case) -> Verdict {
    let mut got = input(case, "original").clone();
    definition::default(&mut got);
    same("definition", &got, want(case, "expected"))
}

fn format_warnings(case: &Case) -> Verdict {
    let new = if input(case, "crd").is_object() { input(case, "crd") } else { input(case, "newCRD") };
    let old = Some(input(case, "oldCRD")).filter(|old| old.is_object());
    same("warnings", warnings::unknown_formats(new, old), texts(want(case, "wantWarningMessages")))
}
