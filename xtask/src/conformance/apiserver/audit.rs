//! Suites of the audit policy.

use berth_apiserver::UserInfo;
use berth_apiserver::audit::policy::{self, Policy, Stage};
use serde_json::{Value, json};

use super::access::attributes;
use super::{input, same, text, texts, want};
use crate::conformance::{Case, Runner, Verdict};

pub(super) fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "audit-policy" => decision,
        "audit-stages" => stages,
        _ => return None,
    })
}

fn decision(case: &Case) -> Verdict {
    let mut policy = input(case, "policy").clone();
    if let Some(fields) = policy.as_object_mut() {
        // The recorder wrote Go's inlined structs as fields.
        fields.retain(|name, _| name != "objectMeta" && name != "typeMeta");
    }
    let policy = Policy::from_value(&policy).map_err(|errors| format!("{errors:?}"))?;
    let request = input(case, "attributes");
    let user = UserInfo {
        name: text(&request["user"], "name").to_owned(),
        groups: texts(&request["user"]["groups"]),
        ..UserInfo::default()
    };
    let got = policy.decide(&attributes(request), &user);
    let wanted = want(case, "decision");
    same("level", got.level.name(), text(wanted, "level"))?;
    let omits = wanted["omitManagedFields"].as_bool().unwrap_or_default();
    same("omitManagedFields", got.omit_managed_fields, omits)?;
    same("omitStages", names(&got.omit_stages), sorted(&wanted["omitStages"]))
}

fn names(stages: &[Stage]) -> Value {
    let mut names: Vec<&str> = stages.iter().map(|stage| stage.name()).collect();
    names.sort_unstable();
    json!(names)
}

fn sorted(list: &Value) -> Value {
    let mut names = texts(list);
    names.sort_unstable();
    json!(names)
}

fn stages(case: &Case) -> Verdict {
    let list = |field: &str| -> Vec<Stage> {
        texts(input(case, field)).iter().filter_map(|name| Stage::parse(name)).collect()
    };
    match text(&case.data, "upstreamTest") {
        "TestUnionStages" => same("union", names(&policy::union(&list("s1"), &list("s2"))), sorted(want(case, "exp"))),
        _ => same("inverse", names(&policy::inverse(&list("stages"))), sorted(want(case, "expectedStages"))),
    }
}
