//! Suites of small functions of the job integrations: names, priorities, pod set infos, topology
//! requests and owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{PodSet, PodSetAssignment, ResourceFlavor, Workload, WorkloadPriorityClass};
use berth_apimachinery::field::Path;
use berth_controllers::configuration::{Config, Integrations};
use berth_controllers::jobs::ancestors::{Lookup, is_managed_kind, managed_ancestor};
use berth_controllers::jobs::naming::{OwnerKind, variant_name, workload_name_with};
use berth_controllers::jobs::topology::{self, Ranks};
use berth_controllers::jobs::{is_elastic, sanitize};
use berth_controllers::podset::{self, PodSetInfo};
use berth_controllers::webhooks::{validate_slice_size, validate_topology_annotations};
use berth_controllers::{Gates, Stores, priority};
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{gates, input, read};
use crate::conformance::fields::Fields;
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "podset-merge-restore" => merge_restore,
        "podset-from-assignment" => from_assignment,
        "podset-add-or-update-label" => add_label,
        "jobframework-generate-workload-name-with-extra" => name_with_extra,
        "jobframework-generate-workload-name-with-generation" => name_with_generation,
        "jobframework-get-workload-name-for-variant" => variant,
        "jobframework-pod-set-topology-request-builder" => topology_request,
        "jobframework-sanitize-pod-sets" => sanitized,
        "jobframework-find-ancestor-job-managed-by-kueue" => ancestor,
        "jobframework-get-job-type-for-owner" => job_type,
        "priority-get-priority-from-priority-class" => pod_priority,
        "priority-get-priority-from-workload-priority-class" => workload_priority,
        "priority-priority" => |case| number(case, "result", |w, _| i64::from(priority::base(w))),
        "priority-effective-priority" => |case| number(case, "priority", priority::effective),
        "priority-priority-boost" => boost,
        "priority-parse-effective-priority" => parsed_priority,
        "workloadslicing-enabled" => |case| {
            let job: BatchJob = read(&case.input["args"]["object"])?;
            let got = is_elastic(&job, &gates(case));
            if got == (case.want["result"] == true) { Ok(()) } else { Err(format!("got {got}")) }
        },
        "jobframework-validate-slice-required-topology-constraints-annotation" => topology_annotations,
        "jobframework-validate-slice-size-annotation-upper-bound" => slice_size,
        _ => return None,
    })
}

fn merge_restore(case: &Case) -> Verdict {
    let gates = gates(case);
    let original: PodSet = input(case, "podSet")?;
    let info: PodSetInfo = input(case, "info")?;
    let want = &case.want;
    let mut set = original.clone();
    let result = podset::merge(&mut set.template, &info, &gates);
    if result.is_err() != want["error"].as_bool().unwrap_or(false) {
        return Err(format!("error: got {result:?}"));
    }
    let mut lines = Vec::new();
    if result.is_ok() {
        let got = serde_json::to_value(&set).map_err(|e| e.to_string())?;
        lines.extend(differences(&want["podSet"], &got, &[]));
    }
    let mut back = PodSetInfo::from_pod_set(&original);
    back.name = String::new();
    let changed = podset::restore(&mut set.template, &back);
    if changed != want["restoreChanges"].as_bool().unwrap_or(false) {
        lines.push(format!("restoreChanges: got {changed}"));
    }
    let (before, after) = (serde_json::to_value(&original), serde_json::to_value(&set));
    lines.extend(differences(&before.map_err(|e| e.to_string())?, &after.map_err(|e| e.to_string())?, &[]));
    verdict(lines)
}

fn from_assignment(case: &Case) -> Verdict {
    let assignment: PodSetAssignment = input(case, "assignment")?;
    let flavors: Vec<ResourceFlavor> = input(case, "flavors")?;
    let set = PodSet { count: input(case, "defaultCount")?, ..PodSet::default() };
    let find = |name: &str| flavors.iter().find(|flavor| flavor.name_any() == name).cloned().map(Arc::new);
    let want = &case.want;
    match PodSetInfo::from_assignment(&assignment, Some(&set), find, &gates(case)) {
        Ok(info) => {
            let got = serde_json::to_value(info).map_err(|e| e.to_string())?;
            verdict(differences(&want["info"], &got, &[]))
        }
        Err(error) if want["error"]["message"] == error.to_string() => want_zero(&want["info"]),
        Err(error) => Err(error.to_string()),
    }
}

fn add_label(case: &Case) -> Verdict {
    let mut info: PodSetInfo = input(case, "info")?;
    info.labels.insert(input(case, "k")?, input(case, "v")?);
    let got = serde_json::to_value(info).map_err(|e| e.to_string())?;
    verdict(differences(&case.want["info"], &got, &[]))
}

fn kind(value: &Value) -> OwnerKind {
    let text = |key: &str, default: &str| value[key].as_str().unwrap_or(default).to_owned();
    OwnerKind { group: text("group", "batch"), kind: text("kind", "Job") }
}

fn name_with_extra(case: &Case) -> Verdict {
    let data = &case.input;
    let gates: Gates = gates(case);
    let want = &case.want;
    let text = |key: &str, default: &str| data[key].as_str().unwrap_or(default).to_owned();
    let make = |extra: &str| {
        let extra = (!extra.is_empty()).then_some(extra);
        workload_name_with(&text("ownerName", "job"), &text("ownerUID", "uid"), &kind(&data["ownerGVK"]), extra, &gates)
    };
    if let Some(equal) = want["equal"].as_bool() {
        let same = make(&text("extra1", "")) == make(&text("extra2", ""));
        return if same == equal { Ok(()) } else { Err(format!("equal: got {same}")) };
    }
    let got = make(&text("extra", ""));
    let result = want["result"].as_str().unwrap_or_default();
    let prefix = want["prefix"].as_str().unwrap_or_default();
    if (result.is_empty() || result == got) && got.starts_with(prefix) { Ok(()) } else { Err(format!("got {got}")) }
}

fn name_with_generation(case: &Case) -> Verdict {
    let data = &case.input;
    let make = |n: u32| {
        let text = |key: &str| data[format!("{key}{n}").as_str()].as_str().unwrap_or_default().to_owned();
        let generation = data[format!("generation{n}").as_str()].to_string();
        workload_name_with(&text("ownerName"), &text("uid"), &kind(&Value::Null), Some(&generation), &gates(case))
    };
    let equal = make(1) == make(2);
    if Some(equal) == case.want["equal"].as_bool() { Ok(()) } else { Err(format!("equal: got {equal}")) }
}

fn variant(case: &Case) -> Verdict {
    let data = &case.input;
    let text = |key: &str, default: &str| data[key].as_str().unwrap_or(default).to_owned();
    let make = |flavor: &str| {
        variant_name(
            &text("parentName", "job-parent-12345"),
            &text("ownerUID", "uid"),
            &kind(&data["ownerGVK"]),
            flavor,
            &gates(case),
        )
    };
    let want = &case.want;
    if let Some(equal) = want["equal"].as_bool() {
        let same = make(&text("flavor1", "")) == make(&text("flavor2", ""));
        return if same == equal { Ok(()) } else { Err(format!("equal: got {same}")) };
    }
    let got = make(&text("flavor", ""));
    if want["result"] == got { Ok(()) } else { Err(format!("got {got}")) }
}

fn topology_request(case: &Case) -> Verdict {
    let data = &case.input;
    let meta: ObjectMeta = read(&data["meta"])?;
    let ranks = Ranks {
        pod_index_label: data["podIndexLabel"].as_str(),
        sub_group_index_label: data["subGroupIndexLabel"].as_str(),
        sub_group_count: data["subGroupCount"].as_i64().and_then(|n| i32::try_from(n).ok()),
    };
    let want = &case.want;
    match (topology::request(meta.annotations.as_ref(), ranks, &gates(case)), want["err"].as_str()) {
        (Err(got), Some(wanted)) if got.contains(wanted) => Ok(()),
        (Ok(got), None) => {
            let got = serde_json::to_value(got).map_err(|e| e.to_string())?;
            verdict(differences(&want["req"], &got, &[]))
        }
        (got, wanted) => Err(format!("want error {wanted:?}, got {got:?}")),
    }
}

fn sanitized(case: &Case) -> Verdict {
    let mut pod_sets: Vec<PodSet> = input(case, "podSets")?;
    sanitize(&mut pod_sets);
    let got = serde_json::to_value(pod_sets).map_err(|e| e.to_string())?;
    verdict(differences(&case.want["podSets"], &got, &[]))
}

fn ancestor(case: &Case) -> Verdict {
    let data = &case.input;
    let job: ObjectMeta = read(&data["job"]["metadata"])?;
    let mut ancestors: Vec<ObjectMeta> = Vec::new();
    for object in data["ancestors"].as_array().into_iter().flatten() {
        ancestors.push(read(&object["metadata"])?);
    }
    let config = Config {
        manage_jobs_without_queue_name: data["manageJobsWithoutQueueName"] == true,
        integrations: Integrations {
            external_frameworks: read(&data["externalFrameworks"])?,
            frameworks: read(&data["integrations"])?,
            ..Integrations::default()
        },
        ..Config::default()
    };
    let lookup = |reference: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| match ancestors
        .iter()
        .find(|meta| meta.name.as_deref() == Some(&reference.name))
    {
        None => Lookup::Missing,
        Some(meta) if meta.uid.as_deref().is_some_and(|uid| uid != reference.uid) => Lookup::Forged,
        Some(meta) => Lookup::Found(Box::new(meta.clone())),
    };
    let want = &case.want;
    match (managed_ancestor(("batch", "Job"), &job, &config, lookup), want["err"].as_str()) {
        (Err(error), Some(wanted)) if error.to_string() == wanted => Ok(()),
        (Ok(found), None) => {
            let found = found.and_then(|ancestor| ancestor.metadata.name);
            let wanted = want["managed"]["metadata"]["name"].as_str().map(str::to_owned);
            if found == wanted { Ok(()) } else { Err(format!("want {wanted:?}, got {found:?}")) }
        }
        (got, wanted) => Err(format!("want error {wanted:?}, got {got:?}")),
    }
}

fn compare_priority(want: &Fields, got: Result<priority::Priority, priority::PriorityError>) -> Verdict {
    match got {
        // Both errors of Berth mean that a class does not exist.
        Err(_)
            if want["err"]["reason"] == "NotFound" && matches!(want["priorityClassValue"].as_i64(), None | Some(0)) =>
        {
            want_zero(&want["priorityClassRef"])
        }
        Err(error) => Err(error.to_string()),
        Ok(_) if !want["err"].is_null() => Err(format!("want error {}", want["err"])),
        Ok(priority) => {
            let got = json!({"priorityClassRef": priority.class, "priorityClassValue": priority.value});
            let mut want = want.whole().clone();
            if want["priorityClassValue"].is_null() {
                want["priorityClassValue"] = json!(0);
            }
            verdict(differences(&want, &got, &[]))
        }
    }
}

/// Compares whether an integration manages an owner's kind. Every case of this suite has
/// integrations for `K1`, `K2` and `K3`.
fn job_type(case: &Case) -> Verdict {
    let owner: OwnerReference = read(&case.input["owner"])?;
    let kinds = ["K1", "K2", "K3"].map(|kind| format!("{kind}.v1.test-group"));
    let integrations = Integrations { external_frameworks: kinds.to_vec(), ..Integrations::default() };
    let config = Config { integrations, ..Config::default() };
    let managed = is_managed_kind(&config, &owner);
    let got = managed.then(|| json!({"apiVersion": owner.api_version, "kind": owner.kind}));
    verdict(differences(&json!({"it": case.want["jobType"]}), &json!({"it": got}), &[]))
}

/// Agrees if the expected value is absent or consists of zero values.
fn want_zero(want: &Value) -> Verdict {
    let zeros = [json!(null), json!(0), json!("")];
    if want.as_object().is_none_or(|fields| fields.values().all(|value| zeros.contains(value))) {
        Ok(())
    } else {
        Err(format!("want {want}, got nothing"))
    }
}

fn pod_priority(case: &Case) -> Verdict {
    let stores = Stores::by_hand();
    let classes = &case.input["priorityClassList"];
    for class in classes["items"].as_array().or(classes.as_array()).into_iter().flatten() {
        stores.priority_classes.observe(serde_json::from_value(class.clone()).map_err(|e| e.to_string())?);
    }
    let name: String = input(case, "priorityClassName")?;
    compare_priority(&case.want, priority::of_pod_class(&stores, &name))
}

fn workload_priority(case: &Case) -> Verdict {
    let stores = Stores::by_hand();
    let classes = &case.input["workloadPriorityClassList"];
    for class in classes["items"].as_array().or(classes.as_array()).into_iter().flatten() {
        stores.workload_priority_classes.observe(read::<WorkloadPriorityClass>(class)?);
    }
    let name: String = input(case, "workloadPriorityClassName")?;
    compare_priority(&case.want, priority::of_workload_class(&stores, &name))
}

fn number(case: &Case, field: &str, of: fn(&Workload, &Gates) -> i64) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let got = of(&workload, &gates(case));
    let want = case.want[field].as_i64().unwrap_or(0);
    if got == want { Ok(()) } else { Err(format!("want {want}, got {got}")) }
}

fn boost(case: &Case) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let want = &case.want;
    match priority::boost(&workload, &gates(case)) {
        Err(_) if want["err"] == true && want["boost"].as_i64().unwrap_or(0) == 0 => Ok(()),
        Ok(boost) if want["err"] != true && i64::from(boost) == want["boost"].as_i64().unwrap_or(0) => Ok(()),
        got => Err(format!("want {want}, got {got:?}")),
    }
}

fn parsed_priority(case: &Case) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let gates = gates(case);
    let want = &case.want;
    // An invalid boost counts as none.
    let effective = json!(priority::effective(&workload, &gates));
    match priority::boost(&workload, &gates) {
        got if got.is_err() == (want["err"] == true) && effective == want["priority"] => Ok(()),
        got => Err(format!("want {want}, got {got:?} and {effective}")),
    }
}

fn topology_annotations(case: &Case) -> Verdict {
    let annotations: BTreeMap<String, String> = input(case, "annotations")?;
    let errors = validate_topology_annotations(Some(&annotations), &Path::new("annotations"), &gates(case));
    let want = case.want["errNum"].as_u64().unwrap_or(0);
    if errors.len() as u64 == want { Ok(()) } else { Err(format!("want {want}, got {errors:?}")) }
}

fn slice_size(case: &Case) -> Verdict {
    let mut set = PodSet { count: input(case, "podSetCount")?, ..PodSet::default() };
    set.template.metadata.get_or_insert_default().annotations = Some(input(case, "annotations")?);
    let errors = validate_slice_size(&set, &Path::new("annotations"));
    let want = case.want["errNum"].as_u64().unwrap_or(0);
    if errors.iter().count() as u64 == want { Ok(()) } else { Err(format!("want {want}, got {errors:?}")) }
}
