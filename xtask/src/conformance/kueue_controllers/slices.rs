//! Suites of elastic jobs: the slices of a job and their pod counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::kueue::v1beta2::{Admission, ClusterQueue, PodSet, Workload};
use berth_controllers::configuration::{Config, Resources};
use berth_controllers::jobs::slices::{self, SliceState};
use berth_controllers::translate;
use berth_controllers::workload::counts::PodSetCounts;
use berth_controllers::workload::status;
use berth_engine::{Engine, Event};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::{gates, input, now, read};
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
            let pod_sets: Vec<PodSet> = read(&case.input["args"]["podSets"])?;
            same(&case.want["result"], &json!(PodSetCounts::of(&pod_sets).0))
        },
        "workload-extract-pod-set-counts-from-workload" => |case| {
            let workload: Workload = read(&case.input["args"]["workload"])?;
            same(&case.want["result"], &json!(PodSetCounts::of(&workload.spec.pod_sets).0))
        },
        "workload-apply-pod-set-counts" => |case| {
            let mut workload: Workload = read(&case.input["args"]["wl"])?;
            counts(&case.input["args"]["counts"])?.apply_to(&mut workload);
            let got = serde_json::to_value(workload).map_err(|e| e.to_string())?;
            same(&case.want["result"], &got)
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

/// The workloads of the recorded API client that the job owns.
fn owned_by_job(case: &Case) -> Result<Vec<Arc<Workload>>, String> {
    let objects: Vec<Workload> = read(&case.input["args"]["clnt"]["objects"])?;
    let uid = case.input["args"]["jobObject"]["metadata"]["uid"].as_str().unwrap_or_default();
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
    let got: Vec<String> = slices::not_finished(&owned_by_job(case)?).iter().map(|w| w.name_any()).collect();
    let wanted = case.want["result"].as_array().into_iter().flatten();
    let wanted: Vec<&Value> = wanted.map(|workload| &workload["metadata"]["name"]).collect();
    // Berth reads the slices of a job from a watch's cache, which cannot fail.
    same(&json!({"names": wanted, "err": case.want["err"]}), &json!({"names": got, "err": false}))
}

fn latest_active(case: &Case) -> Verdict {
    same(&case.want["result"], &json!(name(slices::latest_active(&listed(case)?).as_ref())))
}

fn normalize(case: &Case) -> Verdict {
    let active = slices::normalize(&slices::not_finished(&listed(case)?));
    let got = json!({"survivor": name(active.survivor.as_ref()), "keptAdmitted": name(active.kept.as_ref())});
    let want = &case.want["result"];
    same(&json!({"survivor": want["survivor"], "keptAdmitted": want["keptAdmitted"]}), &got)
}

fn ensure(case: &Case) -> Verdict {
    let unfinished = slices::not_finished(&owned_by_job(case)?);
    let active = slices::normalize(&unfinished);
    let pod_sets: Vec<PodSet> = read(&case.input["args"]["jobPodSets"])?;
    let ensured = slices::ensure(&unfinished, &active, &pod_sets);
    let compatible = ensured != SliceState::Incompatible;
    let workload = match ensured {
        SliceState::Current(workload) => Some((*workload).clone()),
        SliceState::Resized(workload) => Some(*workload),
        SliceState::Missing | SliceState::Incompatible | SliceState::Replace(_) => None,
    };
    let want = &case.want["result"];
    same(
        &json!({"compatible": want["compatible"], "workload": want["workload"]}),
        &json!({"compatible": compatible, "workload": workload}),
    )
}

fn preemptible_key(case: &Case) -> Verdict {
    let workload: Workload = read(&case.input["args"]["wl"])?;
    same(&case.want["result"], &json!(slices::replaced_key(&workload)))
}

/// Compares the slice that a workload replaces, if the snapshot has it in the workload's queue.
fn replaced(case: &Case) -> Verdict {
    let args = &case.input["args"];
    let feature_gates = gates(case);
    let config = Config { feature_gates, ..Config::default() };
    let at = translate::time(now(case));
    let mut engine = Engine::new(config.engine());
    let (resources, classes) = (Resources::default(), BTreeMap::new());
    let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
    let mut upsert = |workload: &Workload| {
        engine.apply(Event::WorkloadUpserted(Box::new(translate::workload(workload, &context))), at);
    };
    for (queue, entry) in args["snap"]["clusterQueues"].as_object().into_iter().flatten() {
        for info in entry["workloads"].as_object().into_iter().flatten().map(|(_, info)| info) {
            let mut holder: Workload = read(&info["obj"])?;
            let admission = Admission { cluster_queue: queue.clone(), ..Admission::default() };
            status::set_quota_reservation(&mut holder, admission, now(case));
            upsert(&holder);
        }
    }
    let mut got = None;
    if !args["wl"]["obj"].is_null() {
        let workload: Workload = read(&args["wl"]["obj"])?;
        upsert(&workload);
        let queue = args["wl"]["clusterQueue"].as_str().unwrap_or_default();
        for queue in args["snap"]["clusterQueues"].as_object().into_iter().flatten().map(|(name, _)| name) {
            engine.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&ClusterQueue::named(queue))), at);
        }
        got = engine.lab().replaced_slice(&translate::workload_key(&workload), queue);
    }
    let want = &case.want["result"];
    if let Some((key, _)) =
        want.as_object().into_iter().flatten().find(|(key, _)| !["wl", "targets"].contains(&key.as_str()))
    {
        return Err(format!("result.{key}: the runner does not read this field"));
    }
    let name = |info: &Value| info["obj"]["metadata"]["name"].clone();
    let targets: Vec<Value> =
        want["targets"].as_array().into_iter().flatten().map(|it| name(&it["workloadInfo"])).collect();
    let got = got.map(|key| key.name.to_string());
    same(
        &json!({"replaced": name(&want["wl"]), "targets": targets}),
        &json!({"replaced": got, "targets": got.iter().collect::<Vec<_>>()}),
    )
}

fn scaled_down(case: &Case) -> Verdict {
    let args = &case.input["args"];
    let got = counts(&args["newCounts"])?.is_scaled_down_from(&counts(&args["oldCounts"])?);
    same(&case.want["result"], &json!(got))
}

fn fewer(case: &Case) -> Verdict {
    let data = &case.input;
    same(&case.want["result"], &json!(counts(&data["c"])?.has_fewer_than(&counts(&data["args"]["in"])?)))
}
