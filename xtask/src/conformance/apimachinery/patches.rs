//! Suites of patches.

use std::sync::{Arc, OnceLock};

use berth_apimachinery::openapi::Document;
use berth_apimachinery::patch::{self, PatchError};
use berth_apimachinery::schema::Schema;
use serde_json::{Value, json};

use super::{equal, input, input_text, same, want};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "strategic-merge-create" => create,
        "strategic-merge-apply" => apply,
        "strategic-merge-sort" => sort,
        "strategic-merge-text" => text,
        "json-merge-three-way" => three_way,
        "json-merge-nulls" => nulls,
        "patch-has-conflicts" => conflicts,
        "json-patch" => json_patch,
        _ => return None,
    })
}

/// Schema of a recorded item type, from the OpenAPI documents in the folder `schemas`.
fn item(case: &Case, name: &str) -> Result<Arc<Schema>, String> {
    static DOCUMENTS: OnceLock<Vec<Document>> = OnceLock::new();
    let documents = DOCUMENTS.get_or_init(|| {
        let mut folder = case.file.parent();
        while let Some(at) = folder {
            if at.join("schemas").is_dir() {
                break;
            }
            folder = at.parent();
        }
        let files = ["swagger-merge-item.json", "swagger-precision-item.json"];
        let read = |file: &&str| {
            let text = std::fs::read_to_string(folder?.join("schemas").join(file)).ok()?;
            Document::new(&text).ok()
        };
        files.iter().filter_map(read).collect()
    });
    documents
        .iter()
        .find_map(|document| {
            let exact = document.definition(name);
            exact.or_else(|| {
                document
                    .kinds()
                    .find(|kind| kind.kind.eq_ignore_ascii_case(name))
                    .and_then(|kind| document.by_gvk(kind))
            })
        })
        .ok_or(format!("no schema for {name}"))
}

fn or_empty(value: &Value) -> Value {
    if value.is_null() { json!({}) } else { value.clone() }
}

fn create(case: &Case) -> Verdict {
    let schema = item(case, "mergeItem")?;
    let [original, modified, current] = ["original", "modified", "current"].map(|field| or_empty(input(case, field)));
    let fail = |error: PatchError| error.to_string();
    if !want(case, "twoWay").is_null() {
        let patch = patch::two_way_strategic(&original, &modified, &schema).map_err(fail)?;
        equal("twoWay", &patch, want(case, "twoWay"))?;
        let result = patch::apply_strategic(&original, &patch, &schema).map_err(fail)?;
        let wanted = match want(case, "twoWayResult") {
            Value::Null => &modified,
            wanted => wanted,
        };
        equal("twoWayResult", &result, wanted)?;
    }
    if !want(case, "threeWay").is_null() {
        let patch = patch::three_way_strategic(&original, &modified, &current, &schema, true).map_err(fail)?;
        equal("threeWay", &patch, want(case, "threeWay"))?;
        let result = patch::apply_strategic(&current, &patch, &schema).map_err(fail)?;
        equal("result", &result, want(case, "result"))?;
        let strict = patch::three_way_strategic(&original, &modified, &current, &schema, false);
        let conflict = case.name.contains("conflict");
        match (strict, conflict) {
            (Ok(_), true) => return Err("want a conflict without overwrite, got a patch".to_owned()),
            (Err(error), false) => return Err(format!("want no conflict, got {error}")),
            _ => {}
        }
    }
    Ok(())
}

fn apply(case: &Case) -> Verdict {
    if !input_text(case, "patchText").is_empty() || !input_text(case, "originalText").is_empty() {
        let parses = |field: &str| match input(case, field).as_str() {
            Some(text) => serde_json::from_str::<Value>(text).is_ok(),
            None => true,
        };
        let fails = !(parses("patchText") && parses("originalText"));
        return if fails { Ok(()) } else { Err("want a parse error, got JSON".to_owned()) };
    }
    let schema = item(case, "mergeItem")?;
    let result = patch::apply_strategic(&or_empty(input(case, "original")), &or_empty(input(case, "patch")), &schema);
    match (result, want(case, "expectedError").as_str().filter(|error| !error.is_empty())) {
        (Ok(result), None) => equal("result", &result, want(case, "result")),
        (Ok(result), Some(error)) => Err(format!("want error {error}, got {result}")),
        (Err(error), Some(part)) if error.to_string().contains(part) => Ok(()),
        (Err(error), wanted) => Err(format!("failed: {error}, want {wanted:?}")),
    }
}

fn sort(case: &Case) -> Verdict {
    let schema = item(case, "mergeItem")?;
    let object = case.input.get("original").or(case.input.get("object")).unwrap_or(&Value::Null);
    let sorted = patch::sort_merge_lists(object, &schema).map_err(|e| e.to_string())?;
    let wanted = case.want.get("sorted").or(case.want.get("result")).unwrap_or(&Value::Null);
    equal("sorted", &sorted, wanted)
}

fn text(case: &Case) -> Verdict {
    let schema = item(case, input_text(case, "item"))?;
    let parse = |field: &str| -> Result<Value, String> {
        match input(case, field).as_str() {
            Some(text) => serde_json::from_str(text).map_err(|e| e.to_string()),
            None => Ok(json!({})),
        }
    };
    let (original, modified, current) = (parse("original")?, parse("modified")?, parse("current")?);
    let check = |name: &str, got: Result<Value, PatchError>| -> Result<Value, String> {
        let error = want(case, &format!("{name}Error")).as_str().unwrap_or_default();
        match got {
            // Some results depend on the source of the schema: either the result or the error
            // counts.
            Err(got) if !error.is_empty() && got.to_string().contains(error) => Ok(Value::Null),
            Err(got) => Err(format!("{name}: {got}")),
            Ok(got) => {
                let got_text = got.to_string();
                let wanted = want(case, name).as_str().unwrap_or_default();
                if wanted.is_empty() && want(case, name).is_null() || got_text == wanted {
                    Ok(got)
                } else {
                    Err(format!("{name}: got {got_text}, want {wanted}"))
                }
            }
        }
    };
    let two_way = check("twoWay", patch::two_way_strategic(&original, &modified, &schema))?;
    if !two_way.is_null() && !want(case, "twoWayResult").is_null() {
        check("twoWayResult", patch::apply_strategic(&original, &two_way, &schema))?;
    }
    if !want(case, "threeWay").is_null() {
        let three_way = check("threeWay", patch::three_way_strategic(&original, &modified, &current, &schema, true))?;
        if !three_way.is_null() {
            check("threeWayResult", patch::apply_strategic(&current, &three_way, &schema))?;
        }
    }
    Ok(())
}

fn three_way(case: &Case) -> Verdict {
    let current = or_empty(input(case, "current"));
    let patch = patch::three_way_merge(input(case, "original"), input(case, "modified"), &current);
    equal("patch", &patch, want(case, "patch"))?;
    let mut result = current;
    patch::apply_merge(&mut result, &patch);
    equal("result", &result, want(case, "result"))
}

fn nulls(case: &Case) -> Verdict {
    let (nulls, others) = patch::split_nulls(input(case, "object"));
    equal("onlyNulls", &nulls, want(case, "onlyNulls"))?;
    equal("withoutNulls", &others, want(case, "withoutNulls"))
}

fn conflicts(case: &Case) -> Verdict {
    match patch::has_conflicts(input(case, "a"), input(case, "b")) {
        Ok(conflict) => equal("conflict", &Value::from(conflict), want(case, "conflict")),
        Err(_) if super::wants_error(case) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn json_patch(case: &Case) -> Verdict {
    let parsed = serde_json::from_str::<Value>(input_text(case, "patch"));
    let result = parsed
        .map_err(|error| PatchError::Malformed(error.to_string()))
        .and_then(|patch| patch::apply_json(input(case, "object"), &patch));
    match result {
        Ok(result) => match want(case, "object") {
            _ if super::wants_error(case) => Err("want an error, got a patched object".to_owned()),
            Value::Null => Ok(()),
            wanted if same(&result, wanted) => Ok(()),
            wanted => Err(format!("got {result}, want {wanted}")),
        },
        Err(error) => {
            let status = berth_apimachinery::status::Status::from(error);
            equal("reason", &Value::from(&*status.reason), want(case, "reason"))
        }
    }
}
