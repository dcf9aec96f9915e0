//! Suites of small functions about workloads, queues and admission checks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::autoscaling::v1::ProvisioningRequest;
use berth_api::kueue::reasons::eviction;
use berth_api::kueue::v1beta2::{
    AdmissionCheck, AdmissionCheckState, ClusterQueue, Cohort, LocalQueue, PodSet, ProvisioningRequestConfig,
    ReclaimablePod, ResourceFlavor, Workload, WorkloadPriorityClass,
};
use berth_api::kueue::{conditions, constants, labels};
use berth_controllers::configuration::{Config, Resources};
use berth_controllers::devices::Charges;
use berth_controllers::provisioning::{check, requests};
use berth_controllers::topology::health::assigned_hosts;
use berth_controllers::translate::workload::topology_request;
use berth_controllers::translate::{self, workload_key};
use berth_controllers::workload::checks;
use berth_controllers::workload::status::{self, Stage};
use berth_controllers::{duration, queues, webhooks};
use berth_engine::lab::PodSetTotal;
use berth_engine::model::{AdmissionScope, Time};
use berth_engine::{AdmissionFairSharing, Engine, Event, RequeuingTimestamp};
use berth_runtime::{Cache, ObjectKey};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::compare::{differences, verdict};
use super::core::written;
use super::{gates, input, now, read};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "workload-from-quota-reserved-or-admitted-to-pending" => returned_to_pending,
        "workload-eviction-pending-latency" => eviction_latency,
        "workload-is-evicted-by-deactivation" => |case| evicted_by(case, "result", eviction::DEACTIVATED),
        "workload-is-evicted-by-pods-ready-timeout" => {
            |case| evicted_by(case, "evictedByTimeout", eviction::PODS_READY_TIMEOUT)
        }
        "workload-reclaimable-pods-are-equal" => |case| {
            let (a, b): (Vec<ReclaimablePod>, Vec<ReclaimablePod>) = (input(case, "a")?, input(case, "b")?);
            equal(&case.want["result"], json!(status::same_reclaimable_pods(&a, &b)))
        },
        "workload-limit-reclaimable-pods-to-pod-set-sizes" => |case| {
            // Every case of this suite uses this workload.
            let sets = json!([{"name": "ps1", "count": 3}, {"name": "ps2", "count": 5}]);
            let workload = with_pod_sets(sets)?;
            equal(&case.want["result"], json!(status::within_pod_sets(&workload, input(case, "reclaimablePods")?)))
        },
        "workload-update-reclaimable-pods" => update_reclaimable,
        "workload-set-condition-and-update" => set_condition,
        "workload-propagate-resource-requests" => propagate_requests,
        "workload-new-info" => new_info,
        "workload-update-with-rebuild" => rebuilt,
        "workload-with-preprocessed-dra-resources"
        | "workload-with-preprocessed-dra-resources-replaces-extended-resources" => with_devices,
        "workload-resource-usage" => resource_usage,
        "workload-workload-priority-class-changed" => priority_class_changed,
        "workload-scheduling-hash" => scheduling_hash,
        "workload-get-queue-order-timestamp" => order_timestamp,
        "workload-needs-second-pass" => second_pass,
        "workload-used-nodes" => |case| {
            let workload: Workload = object(case, "wl")?;
            equal(&case.want["result"], json!(assigned_hosts(&workload)))
        },
        "workload-assignment-cluster-queue-state" => |case| {
            let tried: Vec<BTreeMap<String, i32>> =
                optional::<Value>(case, "state")?.map_or(Ok(Vec::new()), |state| read(&state["lastTriedFlavorIdx"]))?;
            let tried: Vec<Vec<i32>> = tried.into_iter().map(|set| set.into_values().collect()).collect();
            equal(&case.want["pendingFlavors"], json!(berth_engine::lab::has_more_flavors(&tried)))
        },
        "workload-calc-local-queue-fs-usage" => local_queue_usage,
        "core-resource-flavor-predicates" => flavor_predicates,
        "core-workload-priority-class-predicates" => priority_class_predicates,
        "core-cohort-reconciler-filters" => |case| {
            let (old, new): (Cohort, Cohort) = (object(case, "old")?, object(case, "new")?);
            equal(&case.want["result"], json!(queues::cohort::concerns(Some(&old), &new)))
        },
        "core-notify-cluster-queue-update" => |case| {
            let (old, new) = (optional::<ClusterQueue>(case, "oldCQ")?, optional::<ClusterQueue>(case, "newCQ")?);
            equal(&case.want["expectEvent"], json!(queues::protect::changes_flavors(old.as_ref(), new.as_ref())))
        },
        "core-cluster-queue-reconcile" => cluster_queue,
        "core-update-settles-afs-entry-penalty" => settles_penalty,
        "core-update-drops-unsettleable-afs-entry-penalty" => drops_penalty,
        "core-update-afs-consumed-usage" => folds_penalty,
        "admissioncheck-config-helper" => check_config,
        "admissioncheck-filter-check-states" => filter_states,
        "provisioning-update-check-message" => check_message,
        "provisioning-is-missing-in-cache" => |case| {
            let cache = Cache::for_tests(input::<Vec<ProvisioningRequest>>(case, "requests")?);
            // Every case of this suite uses this workload, check and attempt.
            let name = requests::request_name("wl", "check1", 1);
            let is_missing = cache.get(&ObjectKey::namespaced("ns", &name)).is_none();
            equal(&case.want["result"], json!(is_missing))
        },
        "priority-default-workload-priority-class-exist" => default_class,
        "workload-is-explicitly-requesting-tas" => |case| {
            let sets: Vec<PodSet> = input(case, "podSets")?;
            let has_request = |set: &PodSet| {
                let request = set.topology_request.as_ref().map(topology_request);
                berth_engine::lab::requests_topology(request.as_ref())
            };
            equal(&case.want["result"], json!(sets.iter().any(has_request)))
        },
        "provisioning-index-workload"
        | "provisioning-index-provisioning-requests"
        | "provisioning-index-admission-checks" => provisioning_indexes,
        "admissioncheck-indexer-func" => |case| {
            let found = optional::<AdmissionCheck>(case, "admissioncheck")?;
            let name = found.as_ref().and_then(|it| check::config_name(it, "test-controller"));
            equal(&json!({"it": case.want["result"]}), json!({"it": name.into_iter().collect::<Vec<_>>()}))
        },
        _ => return None,
    })
}

fn equal(want: &Value, got: Value) -> Verdict {
    verdict(differences(&json!({"it": want}), &json!({"it": got}), &[]))
}

fn object<T: serde::de::DeserializeOwned>(case: &Case, field: &str) -> Result<T, String> {
    serde_json::from_value(case.input[field].clone()).map_err(|e| format!("input.{field}: {e}"))
}

fn optional<T: serde::de::DeserializeOwned>(case: &Case, field: &str) -> Result<Option<T>, String> {
    if case.input[field].is_null() { Ok(None) } else { object(case, field).map(Some) }
}

fn with_pod_sets(sets: Value) -> Result<Workload, String> {
    let mut sets = sets;
    for set in sets.as_array_mut().into_iter().flatten() {
        set["template"] = json!({"spec": {"containers": []}});
    }
    read(&json!({"metadata": {"name": "wl", "namespace": "ns"}, "spec": {"podSets": sets}}))
}

// -- stages and evictions -------------------------------------------------------------------------

fn returned_to_pending(case: &Case) -> Verdict {
    let stage = |field: &str| match case.input[field].as_str() {
        Some("admitted") => Stage::Admitted,
        Some("quotaReserved") => Stage::QuotaReserved,
        Some("finished") => Stage::Finished,
        _ => Stage::Pending,
    };
    equal(&case.want["result"], json!(stage("prev").fell_back_to(stage("new"))))
}

fn eviction_latency(case: &Case) -> Verdict {
    let new: Workload = input(case, "newWl")?;
    let old: Option<Workload> = optional(case, "oldWl")?;
    let at = case.input["now"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
    let got = status::eviction_completed(old.as_ref(), &new, at);
    let ok = got.is_some();
    let (queue, reason, took) = got.unwrap_or_default();
    equal(case.want.whole(), json!({"cQ": queue, "reason": reason, "latency": duration::format(took), "oK": ok}))
}

fn evicted_by(case: &Case, field: &str, reason: &str) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let evicted = status::is_evicted_by(&workload, reason);
    let mut lines = differences(&json!({"it": case.want[field]}), &json!({"it": evicted}), &[]);
    if let Some(wanted) = case.want.get("condition") {
        let found = status::conditions(&workload).iter().find(|it| evicted && it.type_ == conditions::EVICTED);
        lines.extend(differences(&json!({"it": wanted}), &json!({"it": found}), &[]));
    }
    verdict(lines)
}

fn update_reclaimable(case: &Case) -> Verdict {
    let mut workload = with_pod_sets(json!([{"name": "ps1", "count": 5}]))?;
    workload.status = Some(read(&case.input["oldStatus"])?);
    let mut after = workload.clone();
    status::set_reclaimable_pods(&mut after, input(case, "reclaimablePods")?);
    let (after, error) = written(&workload, after, &case.input["err"]);
    equal(case.want.whole(), json!({"status": after.status, "err": error}))
}

fn set_condition(case: &Case) -> Verdict {
    let data = &case.input;
    let mut workload = with_pod_sets(json!([]))?;
    workload.metadata.generation = Some(1);
    workload.status = Some(read(&data["oldStatus"])?);
    let text = |field: &str| data[field].as_str().unwrap_or_default();
    let mut after = workload.clone();
    let is_true = text("condStatus") == "True";
    status::set(&mut after, text("condType"), is_true, text("reason"), text("message"), now(case));
    let (after, error) = written(&workload, after, &data["err"]);
    equal(case.want.whole(), json!({"status": after.status, "err": error}))
}

// -- requests -------------------------------------------------------------------------------------

fn config(case: &Case, options: &Value) -> Result<Config, String> {
    let mut resources = json!({});
    resources["excludeResourcePrefixes"] = match &options["excludedResourcePrefixes"] {
        Value::Null => json!([]),
        list => list.clone(),
    };
    let rules = options["resourceTransformations"].as_object().into_iter().flatten();
    resources["transformations"] = rules.map(|(_, rule)| rule.clone()).collect::<Vec<_>>().into();
    let mut config = Config { resources: read::<Resources>(&resources)?, ..Config::default() };
    config.feature_gates = gates(case);
    Ok(config)
}

/// An engine with these workloads.
fn engine(config: &Config, workloads: &[&Workload], at: Time) -> Engine {
    let mut engine = Engine::new(config.engine());
    let classes = BTreeMap::new();
    let context = translate::Context { resources: &config.resources, limit_ranges: &[], runtime_classes: &classes };
    for workload in workloads {
        engine.apply(Event::WorkloadUpserted(Box::new(translate::workload(workload, &context))), at);
    }
    engine
}

fn totals(case: &Case, config: &Config, workload: &Workload) -> Vec<Value> {
    let mut engine = engine(config, &[workload], translate::time(now(case)));
    let totals = engine.lab().totals(&workload_key(workload));
    let render = |total: &PodSetTotal| {
        let requests: BTreeMap<String, i64> = total.requests.iter().map(|(n, a)| (n.to_string(), *a)).collect();
        let flavors: BTreeMap<String, String> =
            total.flavors.iter().map(|(r, f)| (r.to_string(), f.to_string())).collect();
        json!({"name": total.name.to_string(), "count": total.count, "requests": requests, "flavors": flavors})
    };
    totals.iter().map(render).collect()
}

fn new_info(case: &Case) -> Verdict {
    let mut workload: Workload = input(case, "workload")?;
    let unnamed = "unnamed".to_owned();
    workload.metadata.name.get_or_insert(unnamed);
    let config = config(case, &case.input["infoOptions"])?;
    let got = totals(case, &config, &workload);
    let want = &case.want["info"];
    let queue = workload.status.as_ref().and_then(|s| s.admission.as_ref()).map(|a| a.cluster_queue.clone());
    let mut lines = Vec::new();
    // The topology placement is copied from the admission, so there is nothing to compare.
    lines.extend(differences(&want["totalRequests"], &json!(got), &["topologyRequest"]));
    lines.extend(differences(
        &json!({"clusterQueue": want["clusterQueue"]}),
        &json!({"clusterQueue": queue.unwrap_or_default()}),
        &[],
    ));
    verdict(lines)
}

/// The recorded changes of requests by devices, for a workload's pod sets.
fn charges(workload: &Workload, devices: &Value, replaced: &Value) -> Charges {
    let mut charges = Charges::default();
    for (index, set) in workload.spec.pod_sets.iter().enumerate() {
        for resource in replaced[&set.name].as_array().into_iter().flatten().filter_map(Value::as_str) {
            charges.replace(index, resource);
        }
        for (resource, amount) in devices[&set.name].as_object().into_iter().flatten() {
            charges.add(index, resource, amount.as_str().and_then(|text| text.parse().ok()).unwrap_or(0));
        }
    }
    charges
}

fn with_devices(case: &Case) -> Verdict {
    let data = &case.input;
    let workload: Workload = input(case, "workload")?;
    let config = config(case, &Value::Null)?;
    let (mut engine, at) = (Engine::new(config.engine()), Time::UNSET);
    let charges = charges(&workload, &data["draResources"], &data["replacedExtendedResources"]);
    engine.apply(charged(&config, &workload, &charges), at);
    let got = requests_of(&mut engine, &workload);
    equal(&case.want["info"]["totalRequests"], json!(got))
}

/// The event of a workload whose devices are counted.
fn charged(config: &Config, workload: &Workload, charges: &Charges) -> Event {
    let classes = BTreeMap::new();
    let context = translate::Context { resources: &config.resources, limit_ranges: &[], runtime_classes: &classes };
    let mut translated = translate::workload(workload, &context);
    charges.apply(&mut translated);
    Event::WorkloadUpserted(Box::new(translated))
}

/// Name, number of pods and requests of the pod sets.
fn requests_of(engine: &mut Engine, workload: &Workload) -> Vec<Value> {
    let totals = engine.lab().totals(&workload_key(workload));
    let render = |total: &PodSetTotal| {
        let requests: BTreeMap<String, i64> = total.requests.iter().map(|(n, a)| (n.to_string(), *a)).collect();
        json!({"name": total.name.to_string(), "count": total.count, "requests": requests})
    };
    totals.iter().map(render).collect()
}

fn rebuilt(case: &Case) -> Verdict {
    let data = &case.input;
    if data["updateOptions"]["preserveTotalRequests"] == true {
        return Err("the devices of a workload are counted with each change".to_owned());
    }
    let (initial, updated): (Workload, Workload) = (input(case, "initial")?, input(case, "updated")?);
    let config = config(case, &Value::Null)?;
    let at = translate::time(now(case));
    let devices = &data["initialOptions"]["dra"];
    let charges = charges(&initial, &devices["preprocessedDRAResources"], &devices["replacedExtendedResources"]);
    let mut engine = Engine::new(config.engine());
    engine.apply(charged(&config, &initial, &charges), at);
    engine.apply(charged(&config, &updated, &Charges::default()), at);
    let got = requests_of(&mut engine, &updated);
    equal(&case.want["requests"], json!(got))
}

/// Compares the quota that a workload holds in its queue, and the requests without a flavor.
fn resource_usage(case: &Case) -> Verdict {
    let (mut pod_sets, mut assignments) = (Vec::new(), Vec::new());
    for (index, set) in case.input["info"]["totalRequests"].as_array().into_iter().flatten().enumerate() {
        let amounts: BTreeMap<String, i64> = read(&set["requests"])?;
        let quantities: BTreeMap<&String, Value> = amounts
            .iter()
            .map(|(name, amount)| (name, json!(translate::amounts::to_quantity(name, *amount))))
            .collect();
        let container = json!({"name": "c", "resources": {"requests": quantities}});
        let name = format!("set{index}");
        pod_sets.push(json!({"name": name, "count": 1, "template": {"spec": {"containers": [container]}}}));
        if !set["flavors"].is_null() {
            let flavors = &set["flavors"];
            assignments.push(json!({"name": name, "flavors": flavors, "resourceUsage": quantities, "count": 1}));
        }
    }
    let object = json!({"metadata": {"name": "wl", "namespace": "ns"}, "spec": {"podSets": pod_sets}});
    let mut workload: Workload = read(&object)?;
    if !assignments.is_empty() {
        let reserved = json!({"type": conditions::QUOTA_RESERVED, "status": "True", "reason": "QuotaReserved", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let admission = json!({"clusterQueue": "cq", "podSetAssignments": assignments});
        workload.status = Some(read(&json!({"conditions": [reserved], "admission": admission}))?);
    }
    let config = config(case, &Value::Null)?;
    let mut engine = engine(&config, &[&workload], translate::time(now(case)));
    let lab = engine.lab();
    let held = lab.queue_report("cq").map(|report| report.usage).unwrap_or_default();
    let held = held.into_iter().filter(|(_, amount)| !amount.is_zero());
    let assigned: BTreeMap<String, i64> =
        held.map(|((flavor, resource), amount)| (format!("{flavor}/{resource}"), amount.saturated())).collect();
    let mut unassigned: BTreeMap<String, i64> = BTreeMap::new();
    for total in lab.totals(&workload_key(&workload)) {
        for (resource, amount) in total.requests.iter().filter(|(resource, _)| !total.flavors.contains_key(*resource)) {
            *unassigned.entry(resource.to_string()).or_default() += amount;
        }
    }
    equal(&case.want["result"], json!({"assigned": assigned, "unassigned": unassigned}))
}

fn priority_class_changed(case: &Case) -> Verdict {
    let (old, new): (Workload, Workload) = (input(case, "oldWorkload")?, input(case, "newWorkload")?);
    equal(&case.want["changed"], json!(queues::priority_class::changed(&old, &new)))
}

fn propagate_requests(case: &Case) -> Verdict {
    let mut workload: Workload = input(case, "wl")?;
    let mut fresh = Vec::new();
    for set in case.input["info"]["totalRequests"].as_array().into_iter().flatten() {
        let amounts: BTreeMap<String, i64> = read(&set["requests"])?;
        let resources: BTreeMap<String, Value> = amounts
            .iter()
            .map(|(name, amount)| (name.clone(), json!(translate::amounts::to_quantity(name, *amount))))
            .collect();
        let set = json!({"name": set["name"], "resources": resources});
        fresh.push(serde_json::from_value(set).map_err(|e| e.to_string())?);
    }
    equal(&case.want["result"], json!(status::set_resource_requests(&mut workload, fresh)))
}

// -- order and equivalence ------------------------------------------------------------------------

fn scheduling_hash(case: &Case) -> Verdict {
    let (a, b): (Workload, Workload) = (input(case, "wl1")?, input(case, "wl2")?);
    let config = config(case, &Value::Null)?;
    let mut engine = engine(&config, &[&a, &b], translate::time(now(case)));
    equal(&case.want["same"], json!(engine.lab().same_class(&workload_key(&a), &workload_key(&b))))
}

fn order_timestamp(case: &Case) -> Verdict {
    let workload: Workload = input(case, "wl")?;
    let classes = BTreeMap::new();
    let resources = Resources::default();
    let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
    let mut lines = Vec::new();
    for (name, timestamp) in [("Creation", RequeuingTimestamp::Creation), ("Eviction", RequeuingTimestamp::Eviction)] {
        let mut settings = Config::default().engine();
        settings.requeuing_timestamp = timestamp;
        let mut engine = Engine::new(settings);
        let event = Event::WorkloadUpserted(Box::new(translate::workload(&workload, &context)));
        engine.apply(event, Time(0));
        let got = engine.lab().order_time(&workload_key(&workload));
        let wanted = case.want["result"][name].as_str().and_then(|text| text.parse().ok());
        if got != wanted.map(translate::time) {
            lines.push(format!("{name}: want {wanted:?}, got {got:?}"));
        }
    }
    verdict(lines)
}

fn second_pass(case: &Case) -> Verdict {
    let workload: Workload = input(case, "wl")?;
    let mut engine = engine(&Config::default(), &[&workload], translate::time(now(case)));
    equal(&case.want["result"], json!(engine.lab().needs_second_pass(&workload_key(&workload))))
}

// -- which changes controllers react to -----------------------------------------------------------

/// Compares which changes to a flavor are reconciled, and the objects that are passed on. A generic
/// event is no change.
fn flavor_predicates(case: &Case) -> Verdict {
    let (old, new) = (optional::<ResourceFlavor>(case, "oldRF")?, optional::<ResourceFlavor>(case, "newRF")?);
    let mut lines = Vec::new();
    let got = queues::protect::concerns(old.as_ref(), new.as_ref());
    lines.extend(differences(&json!({"bool": case.want["bool"]}), &json!({"bool": got}), &[]));
    // Watchers get the old and the new object, unless the object did not change.
    let changed = case.input["eventType"] != "generic";
    let passed_on = |object: Option<&ResourceFlavor>| json!({"it": object.filter(|_| changed)});
    for (field, object) in [("old", old.as_ref()), ("new", new.as_ref())] {
        // The recorded deletion timestamp is more precise than an API object's.
        lines.extend(differences(&json!({"it": case.want[field]}), &passed_on(object), &["deletionTimestamp"]));
    }
    verdict(lines)
}

fn priority_class_predicates(case: &Case) -> Verdict {
    let new = optional::<WorkloadPriorityClass>(case, "newWPC")?;
    let old = match case.input["eventType"].as_str() {
        // A generic event is no change.
        Some("generic") => new.clone(),
        _ => optional(case, "oldWPC")?,
    };
    let got = queues::priority_class::concerns(old.as_ref(), new.as_ref());
    equal(&case.want["result"], json!(got))
}

// -- queues ---------------------------------------------------------------------------------------

fn queue(name: &str) -> ClusterQueue {
    let mut queue = ClusterQueue::named(name);
    queue.metadata.finalizers = Some(vec![constants::RESOURCE_IN_USE_FINALIZER.to_owned()]);
    queue
}

/// Compares whether a queue that is being deleted can be removed while it has one workload.
fn cluster_queue(case: &Case) -> Verdict {
    let workload: Workload = input(case, "workload")?;
    let at = translate::time(now(case));
    let mut queue = queue("cq");
    queue.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now(case)));
    let mut engine = Engine::new(Config::default().engine());
    engine.apply(Event::ClusterQueueUpserted(translate::cluster_queue(&queue)), at);
    let (resources, classes) = (Resources::default(), BTreeMap::new());
    let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
    engine.apply(Event::WorkloadUpserted(Box::new(translate::workload(&workload, &context))), at);
    let counts = engine.cluster_queue_status("cq").unwrap_or_default();
    let want = &case.want;
    if queues::cluster_queue::can_be_deleted(&queue, &counts) {
        return equal(want.whole(), json!({"deleted": true, "reserving": 0}));
    }
    let after = queues::cluster_queue::refreshed(&queue, &counts, false, now(case));
    let status = after.status.unwrap_or_default();
    let active = status.conditions.iter().find(|condition| condition.type_ == conditions::ACTIVE);
    equal(
        want.whole(),
        json!({
            "deleted": false,
            "active": active.map(|condition| condition.status.clone()),
            "reason": active.map(|condition| condition.reason.clone()),
            "reserving": status.reserving_workloads,
        }),
    )
}

// -- usage of admission fair sharing --------------------------------------------------------------

/// An engine with LocalQueues `ns/lq` and `ns/lq2` of `cq`, which orders them by usage.
fn usage_based(at: Time) -> Result<Engine, String> {
    let mut settings = Config::default().engine();
    settings.admission_fair_sharing = Some(AdmissionFairSharing {
        usage_half_life: Duration::from_secs(300),
        usage_sampling_interval: Duration::from_secs(300),
        resource_weights_milli: BTreeMap::new(),
    });
    let mut engine = Engine::new(settings);
    let mut cluster = translate::cluster_queue(&queue("cq"));
    cluster.admission_scope = Some(AdmissionScope::UsageBased);
    engine.apply(Event::ClusterQueueUpserted(cluster), at);
    for name in ["lq", "lq2"] {
        let mut local = LocalQueue::named(name);
        local.metadata.namespace = Some("ns".to_owned());
        local.spec.cluster_queue = "cq".into();
        engine.apply(Event::LocalQueueUpserted(translate::local_queue(&local)), at);
    }
    Ok(engine)
}

fn upsert(engine: &mut Engine, workload: &Workload, at: Time) {
    let (resources, classes) = (Resources::default(), BTreeMap::new());
    let context = translate::Context { resources: &resources, limit_ranges: &[], runtime_classes: &classes };
    engine.apply(Event::WorkloadUpserted(Box::new(translate::workload(workload, &context))), at);
}

/// Adds a workload with an entry penalty on its LocalQueue. The workload holds quota, as it does
/// when its admission was decided.
fn add_with_penalty(engine: &mut Engine, old: &Workload, new: &Workload, at: Time) {
    let mut admitting = old.clone();
    let reserved = [new, old].into_iter().find(|workload| status::has_quota_reservation(workload));
    if let Some(reserved) = reserved {
        admitting.status = reserved.status.clone();
    }
    if let Some(status) = &mut admitting.status {
        status.conditions.retain(|condition| condition.type_ == conditions::QUOTA_RESERVED);
    }
    upsert(engine, &admitting, at);
    engine.lab().charge(&workload_key(old));
}

/// Compares whether an update moves the entry penalty into the consumed usage.
fn settles_penalty(case: &Case) -> Verdict {
    let (old, new): (Workload, Workload) = (input(case, "oldWl")?, input(case, "newWl")?);
    let at = translate::time(now(case));
    let mut engine = usage_based(at)?;
    if status::is_admitted(&old) {
        // The case has a penalty after the admission. Berth adds it before; imitate the case.
        upsert(&mut engine, &old, at);
        engine.lab().charge(&workload_key(&old));
    } else {
        add_with_penalty(&mut engine, &old, &new, at);
    }
    upsert(&mut engine, &new, at);
    let consumed = engine.local_queue_status("ns", "lq").and_then(|counts| counts.consumed);
    let folded = consumed.is_some_and(|(consumed, _)| consumed.values().any(|amount| *amount > 0.0));
    equal(case.want.whole(), json!({"pending": engine.lab().has_penalty(&workload_key(&new)), "folded": folded}))
}

/// Compares whether an update drops an entry penalty that cannot be moved into the consumed usage.
fn drops_penalty(case: &Case) -> Verdict {
    let (old, new): (Workload, Workload) = (input(case, "oldWl")?, input(case, "newWl")?);
    let at = translate::time(now(case));
    let mut engine = usage_based(at)?;
    let holding = json!({"conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
        "lastTransitionTime": now(case).to_string()}], "admission": {"clusterQueue": "cq", "podSetAssignments": [
        {"name": "main", "count": 1, "flavors": {"cpu": "rf"}, "resourceUsage": {"cpu": "4"}}]}});
    let mut admitting = old.clone();
    if !status::has_quota_reservation(&old) {
        admitting.status = Some(read(&holding)?);
    }
    add_with_penalty(&mut engine, &admitting, &admitting, at);
    if !status::has_quota_reservation(&old) {
        upsert(&mut engine, &old, at);
    }
    upsert(&mut engine, &new, at);
    let pending = engine.lab().has_penalty(&workload_key(&new));
    let mut got = json!({});
    for key in case.want["pendingOn"].as_object().into_iter().flatten().map(|(key, _)| key) {
        // A penalty belongs to the LocalQueue that its workload names.
        got[key] = json!(pending && *key == format!("ns/{}", new.spec.queue_name));
    }
    equal(&case.want["pendingOn"], got)
}

/// Compares the usage of a LocalQueue that consumed 50 GPUs and was deleted. Its weight is then 1.
fn local_queue_usage(case: &Case) -> Verdict {
    if case.input["err"]["reason"] != "NotFound" {
        return Err("the weight of a LocalQueue comes from a watch, not from a request that can fail".to_owned());
    }
    let at = translate::time(now(case));
    let mut engine = usage_based(at)?;
    let consumed = BTreeMap::from([("example.com/gpu".into(), 50)]);
    engine.apply(Event::LocalQueueUsageRestored { namespace: "ns".into(), name: "gone".into(), consumed, at }, at);
    let usage = engine.lab().local_usage("ns", "gone").map(|usage| usage as i64);
    equal(case.want.whole(), json!({"usage": usage}))
}

/// Compares the consumed usage after an entry penalty of two cores was added to it.
fn folds_penalty(case: &Case) -> Verdict {
    let at = translate::time(now(case));
    let mut engine = usage_based(at)?;
    let entry = &case.input["initialEntry"];
    if !entry.is_null() {
        let consumed: BTreeMap<String, _> = read(&entry["resources"])?;
        let stamp = entry["lastUpdate"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
        let consumed = translate::amounts::from_resource_list(&consumed);
        let at_entry = translate::time(stamp);
        engine.apply(
            Event::LocalQueueUsageRestored { namespace: "ns".into(), name: "lq".into(), consumed, at: at_entry },
            at,
        );
    }
    // The penalty is half of the request, as the sampling interval equals the half-life time.
    let workload = json!({"metadata": {"name": "wl", "namespace": "ns"}, "spec": {"queueName": "lq", "podSets": [
        {"name": "main", "count": 1, "template": {"spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": "4"}}}]}}}]},
        "status": {"admission": {"clusterQueue": "cq", "podSetAssignments": [
            {"name": "main", "count": 1, "flavors": {"cpu": "rf"}, "resourceUsage": {"cpu": "4"}}]},
        "conditions": [{"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "",
            "lastTransitionTime": now(case).to_string()}]}});
    let mut workload: Workload = read(&workload)?;
    upsert(&mut engine, &workload, at);
    engine.lab().charge(&workload_key(&workload));
    status::set(&mut workload, conditions::ADMITTED, true, "Admitted", "", now(case));
    upsert(&mut engine, &workload, at);
    // Compare the consumed usage.
    let (consumed, stamp) =
        engine.local_queue_status("ns", "lq").and_then(|it| it.consumed).ok_or("no consumed usage")?;
    let want = &case.want;
    let mut lines = Vec::new();
    let cpu = consumed.get("cpu").copied().unwrap_or(0.0);
    if (cpu - want["cPUMilli"].as_f64().unwrap_or(0.0)).abs() > 1e-6 {
        lines.push(format!("cPUMilli: want {}, got {cpu}", want["cPUMilli"]));
    }
    if let Some(wanted) = want["lastUpdate"].as_str() {
        let wanted = translate::time(wanted.parse().map_err(|error| format!("lastUpdate: {error}"))?);
        if wanted != stamp {
            lines.push(format!("lastUpdate: want {wanted:?}, got {stamp:?}"));
        }
    }
    let accounted = engine.lab().is_record_accounted("ns", "lq");
    if want["statusAccounted"] != accounted {
        lines.push(format!("statusAccounted: want {}, got {accounted}", want["statusAccounted"]));
    }
    verdict(lines)
}

// -- admission checks -----------------------------------------------------------------------------

fn check_config(case: &Case) -> Verdict {
    let want = &case.want;
    let found = optional::<AdmissionCheck>(case, "admissioncheck")?;
    let config = optional::<ProvisioningRequestConfig>(case, "config")?;
    let target = case.input["targetAdmissionCheck"].as_str().unwrap_or_default();
    let Some(found) = found.filter(|found| found.name_any() == target) else {
        // Berth's callers look up the check first, so they report a missing check themselves.
        return if want["error"] == "any error" { Ok(()) } else { Err("the check does not exist".to_owned()) };
    };
    let find = |name: &str| config.clone().filter(|config| config.name_any() == name).map(Arc::new);
    match (check::config(&found, find), want["error"].as_str()) {
        (Err(_), Some("any error")) => Ok(()),
        (Err(error), Some(wanted)) if error.contains(wanted) && want["config"].is_null() => Ok(()),
        (Ok(got), None) => equal(&want["config"], json!(*got)),
        (got, wanted) => Err(format!("want {wanted:?}, got {got:?}")),
    }
}

fn filter_states(case: &Case) -> Verdict {
    let states: Vec<AdmissionCheckState> = input(case, "states")?;
    let all: Vec<AdmissionCheck> = input(case, "admissionchecks")?;
    let find = |name: &str| all.iter().find(|check| check.name_any() == name).cloned().map(Arc::new);
    let got: Vec<String> = check::served_by(&states, "test-controller", find).iter().map(|it| it.name_any()).collect();
    equal(&case.want["result"], json!(got))
}

fn check_message(case: &Case) -> Verdict {
    let data = &case.input;
    let state = |message: &Value| AdmissionCheckState {
        name: "check".to_owned(),
        message: message.as_str().unwrap_or_default().to_owned(),
        ..AdmissionCheckState::default()
    };
    let mut states = vec![state(&data["message"])];
    let before = states[0].message.clone();
    checks::set_state(&mut states, state(&data["newMessage"]), now(case));
    let got = json!({"changed": states[0].message != before, "message": states[0].message});
    equal(case.want.whole(), got)
}

/// Compares whether a job without a priority class gets the default class.
fn default_class(case: &Case) -> Verdict {
    let classes = case.input["workloadPriorityClassList"]["items"].as_array().cloned().unwrap_or_default();
    let lookup = |_: &str, resource: &str, _: &str, name: &str| {
        let class = classes.iter().find(|class| class["metadata"]["name"] == name);
        class.filter(|_| resource == "workloadpriorityclasses").cloned().map(Arc::new)
    };
    let mut job = json!({"metadata": {"name": "job", "namespace": "ns", "labels": {labels::QUEUE_NAME: "queue"}},
        "spec": {"template": {"spec": {"containers": []}}}});
    let config = Config::default();
    webhooks::default_job::<Job>(&mut job, "ns", &config, &config.gates(), &lookup).map_err(|e| format!("{e:?}"))?;
    equal(&case.want["exist"], json!(job["metadata"]["labels"][labels::PRIORITY_CLASS].is_string()))
}

fn provisioning_indexes(case: &Case) -> Verdict {
    let filter = case.input["filter"].as_object().into_iter().flatten().next();
    let wanted = filter.and_then(|(_, value)| value.as_str()).unwrap_or_default().to_owned();
    let got: Vec<String> = match case.suite.as_str() {
        "provisioning-index-workload" => {
            let workloads: Vec<Workload> = input(case, "workloads")?;
            let with = workloads.iter().filter(|w| requests::checks_of(w).contains(&wanted));
            with.map(|w| w.name_any()).collect()
        }
        "provisioning-index-provisioning-requests" => {
            let all: Vec<ProvisioningRequest> = input(case, "requests")?;
            let owned = all.iter().filter(|request| requests::owner_names(request).contains(&wanted));
            owned.map(|request| request.name_any()).collect()
        }
        _ => {
            let checks: Vec<AdmissionCheck> = input(case, "checks")?;
            let name =
                |found: &AdmissionCheck| check::config_name(found, berth_controllers::provisioning::CONTROLLER_NAME);
            checks.iter().filter(|it| name(it).as_deref() == Some(&wanted)).map(|it| it.name_any()).collect()
        }
    };
    equal(&case.want["list"], json!(got))
}
