//! Suites of the ProvisioningRequest admission check.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::kueue::v1beta2::{AdmissionCheck, ProvisioningRequestConfig, ResourceFlavor, Workload};
use berth_controllers::provisioning::decide::{Step, View, decide};
use berth_controllers::provisioning::{CONTROLLER_NAME, check, controller, requests};
use k8s_openapi::api::core::v1::PodTemplate;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{gates, input, now};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "provisioning-reconcile" => reconcile,
        "provisioning-reconcile-admission-check" => admission_check,
        "provisioning-req-is-needed" => is_needed,
        "provisioning-merge-pod-sets-skips-zero-counts" => merge,
        "provisioning-active-or-last-pr-for-checks" => latest,
        _ => return None,
    })
}

fn reconcile(case: &Case) -> Verdict {
    // Objects before the reconcile.
    let gates = gates(case);
    let workload: Workload = input(case, "workload")?;
    let configs: Vec<ProvisioningRequestConfig> = input(case, "configs")?;
    let flavors: Vec<ResourceFlavor> = input(case, "flavors")?;
    let find = |name: &str| configs.iter().find(|c| c.name_any() == name).cloned().map(Arc::new);
    let mut checks = BTreeMap::new();
    for object in input::<Vec<AdmissionCheck>>(case, "checks")? {
        if object.spec.controller_name == CONTROLLER_NAME {
            checks.insert(object.name_any(), check::config(&object, find).ok());
        }
    }
    let mut existing: Vec<Arc<ProvisioningRequest>> =
        input::<Vec<ProvisioningRequest>>(case, "requests")?.into_iter().map(Arc::new).collect();
    let mut templates: BTreeMap<String, PodTemplate> =
        input::<Vec<PodTemplate>>(case, "templates")?.into_iter().map(|t| (t.name_any(), t)).collect();
    let flavor = |name: &str| flavors.iter().find(|f| f.name_any() == name).cloned().map(Arc::new);
    let view = View {
        checks,
        requests: existing.clone(),
        flavor: &flavor,
        cool_down: false,
        has_alternative: &|_| false,
        gates: &gates,
        now: now(case),
    };
    let want = &case.want;
    // Reconcile, and apply the steps to the objects.
    let result = decide(&workload, &view);
    let mut after = workload.clone();
    let mut events = Vec::new();
    let mut record_event = |reason: &str, message: String| {
        events.push(json!({
            "key": {"namespace": workload.namespace().unwrap_or_default(), "name": workload.name_any()},
            "eventType": "Normal", "reason": reason, "message": message,
        }));
    };
    let mut lines = Vec::new();
    let mut failure = None;
    match result {
        Err(error) => {
            failure = Some(error.to_string());
        }
        Ok(steps) => {
            for step in steps {
                match step {
                    Step::Delete(request) => existing.retain(|other| other.name_any() != request.name_any()),
                    Step::Create { templates: new, request, .. } => {
                        for mut template in new {
                            template.metadata.owner_references = Some(vec![berth_runtime::owned_by(&*request)]);
                            let stored = templates.entry(template.name_any()).or_insert_with(|| template.clone());
                            stored.metadata.owner_references = template.metadata.owner_references;
                        }
                        record_event(
                            "ProvisioningRequestCreated",
                            format!("Created ProvisioningRequest: {:?}", request.name_any()),
                        );
                        existing.push(Arc::new(*request));
                    }
                    // Only with cool-down, which Kueue does not have.
                    Step::Failed(_) | Step::Succeeded(_) => {}
                    Step::Status { workload, events } => {
                        after = *workload;
                        for event in events {
                            record_event(&event.reason, event.message);
                        }
                    }
                }
            }
        }
    }
    // Compare the error, the workload, the requests, the templates and the events.
    match (want["reconcileError"].as_str(), failure) {
        (None, None) => {}
        (Some(wanted), Some(got)) if wanted == "any error" || got.contains(wanted) => {}
        (wanted, got) => lines.push(format!("error: want {wanted:?}, got {got:?}")),
    }
    let named = want["workloads"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
    lines.extend(named.filter(|name| *name != workload.name_any()).map(|name| format!("workload {name} is missing")));
    if let Some(wanted) = want["workloads"].get(workload.name_any()) {
        let got = serde_json::to_value(&after).map_err(|e| e.to_string())?;
        for part in ["spec", "status"] {
            lines.extend(differences(&wanted[part], &got[part], &["requeueAt"]));
        }
    }
    for (name, wanted) in want["requests"].as_object().into_iter().flatten() {
        let Some(got) = existing.iter().find(|request| request.name_any() == *name) else {
            lines.push(format!("request {name} is missing"));
            continue;
        };
        let got = serde_json::to_value(&**got).map_err(|e| e.to_string())?;
        lines.extend(differences(&wanted["spec"], &got["spec"], &[]));
        lines.extend(differences(&wanted["metadata"]["labels"], &got["metadata"]["labels"], &[]));
    }
    for name in want["requestsNotFound"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if existing.iter().any(|request| request.name_any() == name) {
            lines.push(format!("request {name}: want it deleted"));
        }
    }
    for (name, wanted) in want["templates"].as_object().into_iter().flatten() {
        let Some(got) = templates.get(name) else {
            lines.push(format!("template {name} is missing"));
            continue;
        };
        let got = serde_json::to_value(got).map_err(|e| e.to_string())?;
        lines.extend(differences(wanted, &got, &["restartPolicy", "creationTimestamp"]));
    }
    let wanted = if want["events"].is_null() { json!([]) } else { want["events"].clone() };
    lines.extend(differences(&wanted, &Value::from(events), &[]));
    verdict(lines)
}

fn admission_check(case: &Case) -> Verdict {
    let object: AdmissionCheck = input(case, "check")?;
    let configs: Vec<ProvisioningRequestConfig> = input(case, "configs")?;
    let find = |name: &str| configs.iter().find(|c| c.name_any() == name).cloned().map(Arc::new);
    let conditions = controller::refreshed(&object, find, true, now(case))
        .and_then(|check| check.status)
        .map(|status| status.conditions)
        .unwrap_or_default();
    let got = serde_json::to_value(conditions.first()).map_err(|e| e.to_string())?;
    verdict(differences(&case.want["condition"], &got, &[]))
}

fn is_needed(case: &Case) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let want = &case.want;
    match (requests::is_needed(&workload, &ProvisioningRequestConfig::default()), want["err"].as_str()) {
        (Err(error), Some(wanted)) if error.to_string().contains(wanted) && want["result"] != true => Ok(()),
        (Ok(needed), None) if needed == want["result"].as_bool().unwrap_or(false) => Ok(()),
        (got, wanted) => Err(format!("want {wanted:?} {}, got {got:?}", want["result"])),
    }
}

fn merge(case: &Case) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let mut config = ProvisioningRequestConfig::default();
    let policy = &case.input["mergePolicy"];
    if !policy.is_null() {
        config.spec.pod_set_merge_policy = serde_json::from_value(policy.clone()).map_err(|e| e.to_string())?;
    }
    let needed = requests::needed(&workload, &config).map_err(|e| e.to_string())?;
    let got = json!({
        "counts": needed.iter().map(|n| n.count).collect::<Vec<_>>(),
        "names": needed.iter().map(|n| n.pod_sets[0].clone()).collect::<Vec<_>>(),
    });
    verdict(differences(case.want.whole(), &got, &[]))
}

fn latest(case: &Case) -> Verdict {
    let all: Vec<Arc<ProvisioningRequest>> =
        input::<Vec<ProvisioningRequest>>(case, "requests")?.into_iter().map(Arc::new).collect();
    let got = requests::latest(&all, "wl", "check").map(|(_, request)| serde_json::to_value(&**request));
    let got = got.transpose().map_err(|e| e.to_string())?;
    verdict(differences(&json!({"it": case.want["result"]["check"]}), &json!({"it": got}), &[]))
}
