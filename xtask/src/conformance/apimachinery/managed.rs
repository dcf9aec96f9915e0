//! Suites of `managedFields`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use berth_apimachinery::apply::managed::{Identity, Managed, ScaleFields, sort_entries};
use berth_apimachinery::apply::{
    ConversionError, FieldManager, TypeRef, Types, Typing, Versions, Write, extract_applied, manager_name,
};
use berth_apimachinery::{decode, meta};
use serde_json::{Map, Value, json};

use super::{equal, input, input_text, ownership, same, want};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "managed-fields-script" => script,
        "managed-fields-scale" => scale,
        "managed-fields-sort" => sort,
        "managed-fields-cap" => cap,
        "managed-fields-extract" => extract,
        "managed-fields-conflict" => conflict,
        "manager-name" => name,
        _ => return None,
    })
}

/// Compares two objects. The order of `managedFields` entries does not matter.
fn same_object(got: &Value, wanted: &Value) -> bool {
    let split = |value: &Value| {
        let mut value = value.clone();
        let entries = meta::take_managed_fields(&mut value).unwrap_or(Value::Null);
        if value.get("metadata") == Some(&json!({})) {
            value.as_object_mut().map(|map| map.remove("metadata"));
        }
        (value, entries)
    };
    let ((got, got_entries), (wanted, wanted_entries)) = (split(got), split(wanted));
    same(&got, &wanted) && same_entries(&got_entries, &wanted_entries)
}

fn same_entries(got: &Value, wanted: &Value) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (got, mut wanted) = (list(got), list(wanted));
    got.len() == wanted.len()
        && got.iter().all(|entry| match wanted.iter().position(|other| same(entry, other)) {
            Some(at) => {
                wanted.remove(at);
                true
            }
            None => false,
        })
}

/// Recorded types that apply to every version of an object.
struct Recorded(Typing);

impl Versions for Recorded {
    fn typing(&self, _: &str) -> Result<Typing, ConversionError> {
        Ok(self.0.clone())
    }

    fn convert(&self, object: &Value, _: &str, _: &str) -> Result<Value, ConversionError> {
        Ok(object.clone())
    }
}

fn kubernetes_types(case: &Case) -> Result<Arc<Types>, String> {
    static TYPES: OnceLock<Result<Arc<Types>, String>> = OnceLock::new();
    TYPES.get_or_init(|| ownership::schema(case, "kubernetes-types").map(Arc::new)).clone()
}

fn script(case: &Case) -> Verdict {
    let (api_version, kind) = (input_text(case, "apiVersion"), input_text(case, "kind"));
    let gvk = meta::GroupVersion::parse(api_version)?.with_kind(kind);
    let definition = match gvk.group.as_str() {
        "" => format!("io.k8s.api.core.{}.{kind}", gvk.version),
        group => format!("io.k8s.api.{group}.{}.{kind}", gvk.version),
    };
    let typing = Typing { types: kubernetes_types(case)?, root: TypeRef::Named(definition, None) };
    let mut manager = FieldManager::new(Arc::new(Recorded(typing)));
    let chain = input_text(case, "chain");
    if chain == "cap-managers-3" {
        manager = manager.with_updates_max(3);
    }
    let untracked_creation = chain == "skip-non-applied";
    let steps = input(case, "steps").as_array().map_or(0, Vec::len);
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut live: Option<Value> = None;
    for (number, step) in input(case, "steps").as_array().into_iter().flatten().enumerate() {
        let field = |key: &str| step.get(key).and_then(Value::as_str).unwrap_or_default();
        let wanted = case.want["afterStep"].pointer(&format!("/{number}")).unwrap_or(&Value::Null);
        // The recorded cases have labels such as `t1` instead of times. The label that a step adds
        // is the step's time. If the last step adds no label, it gets a later time than all others,
        // so that a wrongly changed time is noticed.
        let labels: BTreeSet<String> = labels(wanted);
        let fresh = labels.difference(&seen).next().cloned();
        let now = match fresh {
            Some(label) => label,
            None if number + 1 == steps => "t9".to_owned(),
            None => seen.last().cloned().unwrap_or_default(),
        };
        let timed = !labels.is_empty();
        seen.extend(labels);
        let write = Write {
            manager: field("manager"),
            subresource: input_text(case, "subresource"),
            now: if timed { &now } else { "" },
        };
        let object = step.get("object").unwrap_or(&Value::Null);
        let result = match field("op") {
            "Update" => {
                let mut new = object.clone();
                let base = live
                    .clone()
                    .or_else(|| untracked_creation.then(|| json!({"apiVersion": api_version, "kind": kind})));
                manager.update(base.as_ref(), &mut new, write);
                Ok(new)
            }
            op => manager.apply(live.as_ref(), object, &gvk, write, op == "ForceApply"),
        };
        let wanted_error = wanted.get("error").and_then(Value::as_str).unwrap_or_default();
        match result {
            Ok(object) => {
                if !wanted_error.is_empty() {
                    return Err(format!("step {number}: want error {wanted_error}, got {object}"));
                }
                live = Some(object);
            }
            Err(status) => {
                if wanted_error.is_empty() {
                    return Err(format!("step {number}: want no error, got {status}"));
                }
                let code = wanted.pointer("/status/code").and_then(Value::as_f64).unwrap_or(f64::from(status.code));
                if code != f64::from(status.code) || status.message != wanted_error {
                    return Err(format!(
                        "step {number}: got {} {}, want {code} {wanted_error}",
                        status.code, status.message
                    ));
                }
            }
        }
        if let Some(wanted) = wanted.get("live") {
            let got = live.clone().unwrap_or_else(|| json!({"apiVersion": api_version, "kind": kind}));
            if !same_object(&got, wanted) {
                return Err(format!("step {number}:\n got {got}\nwant {wanted}"));
            }
        }
    }
    Ok(())
}

/// The time labels in the `managedFields` of a step's live object.
fn labels(step: &Value) -> BTreeSet<String> {
    let entries = step.pointer("/live/metadata/managedFields").and_then(Value::as_array);
    let times = entries.into_iter().flatten().filter_map(|entry| entry.get("time")?.as_str());
    times.filter(|time| time.starts_with('t')).map(str::to_owned).collect()
}

fn decode_list(value: &Value) -> Result<Managed, String> {
    Managed::decode(value).map_err(|e| e.to_string())
}

fn scale(case: &Case) -> Verdict {
    let mut paths = BTreeMap::new();
    for version in ["apps/v1", "apps/v1beta1", "apps/v1beta2", "extensions/v1beta1"] {
        paths.insert(version.to_owned(), vec!["spec".to_owned(), "replicas".to_owned()]);
    }
    for (version, mapping) in input(case, "mappings").as_object().into_iter().flatten() {
        let elements = mapping["elements"].as_array().into_iter().flatten().filter_map(Value::as_str);
        paths.insert(version.clone(), elements.map(|element| element.trim_start_matches("f:").to_owned()).collect());
    }
    let group_version = input(case, "groupVersion");
    let part = |name: &str| group_version.get(name).and_then(Value::as_str).unwrap_or_default();
    let parent_version = match part("Version") {
        "" => "apps/v1".to_owned(),
        version => meta::GroupVersion::new(part("Group"), version).to_string(),
    };
    // The scale version is recorded for conversions to a scale only.
    let scale_version = input(case, "gvk").get("apiVersion").and_then(Value::as_str).unwrap_or("autoscaling/v1");
    let fields = ScaleFields { paths, parent_version, scale_version: scale_version.to_owned() };
    let got = match input_text(case, "op") {
        "toSubresource" => fields.to_scale(&decode_list(input(case, "managedFields"))?),
        _ => fields.to_parent(&decode_list(input(case, "parent"))?, &decode_list(input(case, "subresource"))?),
    };
    let got = got.encode();
    let wanted = want(case, "managedFields");
    if same_entries(&got, wanted) { Ok(()) } else { Err(format!("got {got}\nwant {wanted}")) }
}

fn sort(case: &Case) -> Verdict {
    let mut list = input(case, "managedFields").clone();
    if let Value::Array(entries) = &mut list {
        sort_entries(entries);
    }
    equal("managedFields", &list, want(case, "managedFields"))
}

fn cap(case: &Case) -> Verdict {
    let mut managed = decode_list(input(case, "input"))?;
    managed.cap_updates(3);
    equal("managedFields", &managed.encode(), want(case, "managedFields"))
}

fn extract(case: &Case) -> Verdict {
    let types = ownership::schema(case, input_text(case, "schema"))?;
    let root = TypeRef::Named(input_text(case, "type").to_owned(), None);
    let mut object = input(case, "object").clone();
    meta::metadata_mut(&mut object).insert("managedFields".to_owned(), input(case, "managedFields").clone());
    let manager = input_text(case, "fieldManager");
    let got =
        extract_applied(&types, &root, &object, manager, input_text(case, "subresource")).map_err(|e| e.to_string())?;
    let got = got.filter(|got| !got.is_null()).unwrap_or_else(|| Value::Object(Map::new()));
    equal("object", &got, want(case, "object"))
}

fn conflict(case: &Case) -> Verdict {
    if let Some(yaml) = input(case, "managedFieldsEntryYAML").as_str() {
        let entry = decode::yaml(yaml).map_err(|e| e.to_string())?;
        let managed = decode_list(&json!([entry]))?;
        let key = managed.managers.keys().next().ok_or("no entry")?;
        let identity = Identity::from_key(key).ok_or("no identity")?;
        let mut got = identity.to_value();
        // The recorded identifier of an update includes the time. Berth stores times separately.
        if let Some(time) = managed.times.get(key).filter(|_| !identity.applied) {
            got["time"] = json!(time);
        }
        let wanted: Value =
            serde_json::from_str(want(case, "identifier").as_str().unwrap_or_default()).map_err(|e| e.to_string())?;
        return equal("identifier", &got, &wanted);
    }
    if let Some(yaml) = input(case, "managedFieldsYAML").as_str() {
        let list = decode::yaml(yaml).map_err(|e| e.to_string())?;
        let managed = decode_list(&list)?;
        let got = if list.is_null() { Value::Null } else { managed.encode() };
        return if same_entries(&got, &list) { Ok(()) } else { Err(format!("got {got}\nwant {list}")) };
    }
    let mut conflicts = Vec::new();
    for text in input(case, "conflicts").as_array().into_iter().flatten().filter_map(Value::as_str) {
        let rest = text.strip_prefix("conflict with ").ok_or("unexpected text")?;
        let (key, path) = rest.rsplit_once("\": ").ok_or("unexpected text")?;
        let key: String = serde_json::from_str(&format!("{key}\"")).map_err(|e| e.to_string())?;
        let time =
            serde_json::from_str::<Value>(&key).ok().and_then(|value| value.get("time")?.as_str().map(str::to_owned));
        let value: Value = serde_json::from_str(&key).map_err(|e| e.to_string())?;
        let identity = Identity::from_value(&value);
        conflicts.push((identity, time, path.to_owned()));
    }
    let mut managed = Managed::default();
    for (identity, time, _) in &conflicts {
        if let Some(time) = time {
            managed.times.insert(identity.key(), time.clone());
        }
    }
    let conflicts: Vec<berth_apimachinery::apply::Conflict> = conflicts
        .into_iter()
        .map(|(identity, _, path)| berth_apimachinery::apply::Conflict {
            manager: identity.key(),
            // A single field element prints as its name after a dot.
            path: vec![berth_apimachinery::apply::PathElement::field(path.trim_start_matches('.'))],
        })
        .collect();
    let status = managed.conflict_status(&conflicts);
    equal("message", &json!(status.message), want(case, "message"))?;
    equal("reason", &json!(status.reason), want(case, "reason"))?;
    equal("code", &json!(status.code), want(case, "code"))
}

fn name(case: &Case) -> Verdict {
    let got = manager_name(input_text(case, "fieldManager"), input_text(case, "userAgent"));
    equal("manager", &json!(got), want(case, "manager"))
}
