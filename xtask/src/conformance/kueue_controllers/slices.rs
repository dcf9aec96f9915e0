//! Elastic jobs: which slices stand for a job, and the counts they differ by.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{PodSet, Workload};
use berth_controllers::config::Resources;
use berth_controllers::jobs::slices::{self, Ensured};
use berth_controllers::translate;
use berth_controllers::workload::counts::PodSetCounts;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{input, read};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "workloadslicing-find-not-finished-workloads" => not_finished,
        "workloadslicing-find-latest-active-workload" => latest_active,
        "workloadslicing-normalize-active-slices" => normalize,
        "workloadslicing-ensure-workload-slices" => ensure,
        "workloadslicing-preemptible-slice-key" => preemptible_key,
        "workloadslicing-replaced-workload-slice" => replaced,
        "workloadslicing-scaled-down" => scaled_down,
        "workload-pod-sets-counts-has-fewer-replicas-than" => fewer,
        "workload-extract-pod-set-counts" => |case| {
            let pod_sets: Vec<PodSet> = read(&case.data["input"]["args"]["podSets"])?;
            same(&case.data["want"]["result"], &json!(PodSetCounts::of(&pod_sets).0))
        },
        "workload-extract-pod-set-counts-from-workload" => |case| {
            let workload: Workload = read(&case.data["input"]["args"]["workload"])?;
            same(&case.data["want"]["result"], &json!(PodSetCounts::of(&workload.spec.pod_sets).0))
        },
        "workload-apply-pod-set-counts" => |case| {
            let mut workload: Workload = read(&case.data["input"]["args"]["wl"])?;
            counts(&case.data["input"]["args"]["counts"])?.apply_to(&mut workload);
            let got = serde_json::to_value(workload.spec).map_err(|e| e.to_string())?;
            same(&case.data["want"]["result"]["spec"], &got)
        },
        _ => return None,
    })
}

fn same(want: &Value, got: &Value) -> Verdict {
    verdict(differences(&json!({"it": want}), &json!({"it": got}), &["creationTimestamp"]))
}

fn counts(value: &Value) -> Result<PodSetCounts, String> {
    read::<BTreeMap<String, i32>>(value).map(PodSetCounts)
}

fn in_api(case: &Case) -> Result<Vec<Arc<Workload>>, String> {
    let objects: Vec<Workload> = read(&case.data["input"]["args"]["clnt"]["objects"])?;
    let uid = case.data["input"]["args"]["jobObject"]["metadata"]["uid"].as_str().unwrap_or_default();
    let owned = objects.into_iter().filter(|w| w.owner_references().iter().any(|owner| owner.uid == uid));
    Ok(owned.map(Arc::new).collect())
}

fn listed(case: &Case) -> Result<Vec<Arc<Workload>>, String> {
    Ok(input::<Vec<Workload>>(case, "workloads")?.into_iter().map(Arc::new).collect())
}

fn name(workload: Option<&Arc<Workload>>) -> String {
    workload.map(|workload| workload.name_any()).unwrap_or_default()
}

fn not_finished(case: &Case) -> Verdict {
    let got: Vec<String> = slices::not_finished(&in_api(case)?).iter().map(|w| w.name_any()).collect();
    let wanted = case.data["want"]["result"].as_array().into_iter().flatten();
    let wanted: Vec<&Value> = wanted.map(|workload| &workload["metadata"]["name"]).collect();
    same(&json!(wanted), &json!(got))
}

fn latest_active(case: &Case) -> Verdict {
    same(&case.data["want"]["result"], &json!(name(slices::latest_active(&listed(case)?).as_ref())))
}

fn normalize(case: &Case) -> Verdict {
    let active = slices::normalize(&slices::not_finished(&listed(case)?));
    let got = json!({"survivor": name(active.survivor.as_ref()), "keptAdmitted": name(active.kept.as_ref())});
    let want = &case.data["want"]["result"];
    same(&json!({"survivor": want["survivor"], "keptAdmitted": want["keptAdmitted"]}), &got)
}

fn ensure(case: &Case) -> Verdict {
    let open = slices::not_finished(&in_api(case)?);
    let active = slices::normalize(&open);
    let pod_sets: Vec<PodSet> = read(&case.data["input"]["args"]["jobPodSets"])?;
    let ensured = slices::ensure(&open, &active, &pod_sets);
    let compatible = ensured != Ensured::Incompatible;
    let workload = match ensured {
        Ensured::Current(workload) => Some((*workload).clone()),
        Ensured::Resized(workload) => Some(*workload),
        Ensured::Missing | Ensured::Incompatible | Ensured::Replace(_) => None,
    };
    let want = &case.data["want"]["result"];
    same(
        &json!({"compatible": want["compatible"], "workload": want["workload"]}),
        &json!({"compatible": compatible, "workload": workload}),
    )
}

fn preemptible_key(case: &Case) -> Verdict {
    let workload: Workload = read(&case.data["input"]["args"]["wl"])?;
    same(&case.data["want"]["result"], &json!(slices::replaced_key(&workload)))
}

/// The slice a workload replaces, if the snapshot has it in the workload's queue.
fn replaced(case: &Case) -> Verdict {
    let args = &case.data["input"]["args"];
    let object = &args["wl"]["obj"];
    let mut got = Value::Null;
    if !object.is_null() {
        let workload: Workload = read(object)?;
        let (resources, classes) = (Resources::default(), BTreeMap::new());
        let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
        let queue = args["wl"]["clusterQueue"].as_str().unwrap_or_default();
        let known = args["snap"]["clusterQueues"][queue]["workloads"].as_object();
        if let Some(key) = translate::workload(&workload, &context).replaces {
            let found = known.into_iter().flatten().map(|(_, info)| &info["obj"]["metadata"]);
            let is = |metadata: &&Value| metadata["name"] == *key.name && metadata["namespace"] == *key.namespace;
            got = found.filter(is).map(|metadata| metadata["name"].clone()).next().unwrap_or_default();
        }
    }
    same(&case.data["want"]["result"]["wl"]["obj"]["metadata"]["name"], &got)
}

fn scaled_down(case: &Case) -> Verdict {
    let args = &case.data["input"]["args"];
    let got = counts(&args["newCounts"])?.is_scaled_down_from(&counts(&args["oldCounts"])?);
    same(&case.data["want"]["result"], &json!(got))
}

fn fewer(case: &Case) -> Verdict {
    let data = &case.data["input"];
    same(&case.data["want"]["result"], &json!(counts(&data["c"])?.has_fewer_than(&counts(&data["args"]["in"])?)))
}
