//! Counted events, and gauges read from an engine.

use berth_api::kueue::v1beta2::{Admission, ClusterQueue, LocalQueue};
use berth_engine::{CycleResult, EngineConfig, Event, QuotaHolder};
use berth_runtime::{Clock, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;
use crate::conditions;
use crate::configuration::{CustomLabel, LocalQueueMetrics};
use crate::gates::{Gate, Gates};
use crate::translate::{self, queues};
use crate::workload::status::Eviction;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).expect("a time")
}

fn counting() -> Metrics {
    Metrics::with(Settings { local_queues: LocalQueues::All, ..Settings::default() }, None)
}

impl Metrics {
    fn text(&self, role: Role) -> String {
        Exposition::text(|exposition| self.write(role, exposition))
    }
}

/// The samples of this name, without `replica_role`.
fn samples(text: &str, name: &str) -> Vec<String> {
    let of = |line: &&str| line.starts_with(&format!("{name}{{"));
    let cut = |line: &str| line[name.len()..].replace(",replica_role=\"standalone\"", "").replace('"', "");
    text.lines().filter(of).map(cut).collect()
}

#[test]
fn events_of_a_workload_are_counted_from_its_changes() {
    let metrics = counting();
    let gates = Gates::default();
    let mut first = Workload::named("w");
    first.metadata.namespace = Some("team".to_owned());
    first.spec.queue_name = "lq".to_owned();
    let mut states = vec![first];
    let mut go = |change: &dyn Fn(&mut Workload)| {
        let mut next = states.last().expect("one series").clone();
        change(&mut next);
        states.push(next);
    };
    go(&|it| it.metadata.creation_timestamp = Some(Time(at(0))));
    let admission = Admission { cluster_queue: "cq".to_owned(), ..Admission::default() };
    go(&|it| status::set_quota_reservation(it, admission.clone(), at(10)));
    go(&|it| {
        status::set(it, conditions::ADMITTED, true, "Admitted", "", at(40));
    });
    go(&|it| {
        status::set(it, conditions::PODS_READY, true, "Started", "", at(45));
    });
    go(&|it| {
        status::set(it, conditions::PODS_READY, false, "WaitForRecovery", "", at(60));
    });
    go(&|it| {
        status::set(it, conditions::PODS_READY, true, "Recovered", "", at(70));
    });
    let late = Eviction { reason: "PodsReadyTimeout", cause: "WaitForRecovery", message: "" };
    go(&|it| status::evict(it, &late, &gates, at(100)));
    go(&|it| {
        status::release_after_eviction(it, &gates, at(130));
    });
    let mut finished = states[3].clone();
    status::set(&mut finished, conditions::FINISHED, true, "WorkloadSliceReplaced", "", at(131));
    metrics.changed(Some(&states[3]), Some(&finished));
    for pair in states.windows(2) {
        metrics.changed(Some(&pair[0]), Some(&pair[1]));
    }
    // A workload that exists when the process starts was counted by an earlier process.
    metrics.changed(None, Some(&states[3]));
    let text = metrics.text(Role::Standalone);
    for line in [
        "kueue_quota_reserved_workloads_total{cluster_queue=\"cq\",priority_class=\"\",replica_role=\"standalone\"} 1",
        "kueue_admitted_workloads_total{cluster_queue=\"cq\",priority_class=\"\",replica_role=\"standalone\"} 1",
        "kueue_admission_wait_time_seconds_sum{cluster_queue=\"cq\",priority_class=\"\",replica_role=\"standalone\"} 40",
        "kueue_admission_checks_wait_time_seconds_sum{cluster_queue=\"cq\",priority_class=\"\",\
         replica_role=\"standalone\"} 30",
        "kueue_admitted_until_ready_wait_time_seconds_sum{cluster_queue=\"cq\",priority_class=\"\",\
         replica_role=\"standalone\"} 5",
        "kueue_evicted_workloads_once_total{cluster_queue=\"cq\",reason=\"PodsReadyTimeout\",\
         underlying_cause=\"WaitForRecovery\",priority_class=\"\",replica_role=\"standalone\"} 1",
        "kueue_workload_eviction_latency_seconds_sum{cluster_queue=\"cq\",reason=\"PodsReadyTimeout\",\
         replica_role=\"standalone\"} 30",
        "kueue_replaced_workload_slices_total{cluster_queue=\"cq\",replica_role=\"standalone\"} 1",
        "kueue_local_queue_admission_wait_time_seconds_bucket{name=\"lq\",namespace=\"team\",priority_class=\"\",\
         replica_role=\"standalone\",le=\"40\"} 1",
        "kueue_local_queue_evicted_workloads_total{name=\"lq\",namespace=\"team\",reason=\"PodsReadyTimeout\",\
         underlying_cause=\"WaitForRecovery\",priority_class=\"\",replica_role=\"standalone\"} 1",
        "kueue_local_queue_finished_workloads_total{name=\"lq\",namespace=\"team\",priority_class=\"\",\
         replica_role=\"standalone\"} 1",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    // Only the counts of a deleted queue are dropped.
    metrics.local_queue_deleted("team", "lq");
    metrics.cluster_queue_deleted("c");
    let text = metrics.text(Role::Leader);
    assert!(!text.contains("namespace=\"team\"") && text.contains("cluster_queue=\"cq\""), "{text}");
    metrics.cluster_queue_deleted("cq");
    assert!(!metrics.text(Role::Leader).contains("\"cq\""));
}

#[test]
fn cycles_are_counted_by_result_with_their_recomputations() {
    let metrics = counting();
    metrics.cycle(&CycleOutcome::default(), Duration::from_millis(3));
    assert_eq!(samples(&metrics.text(Role::Standalone), "kueue_admission_attempts_total"), [""; 0]);
    let mut outcome = CycleOutcome { result: Some(CycleResult::Success), ..CycleOutcome::default() };
    outcome.target_recomputations.entry("cq".into()).or_default().insert("deferred_fit", 2);
    metrics.cycle(&outcome, Duration::from_millis(3));
    // A cycle in two parts counts as one.
    metrics.cycle(&CycleOutcome { is_incomplete: true, ..CycleOutcome::default() }, Duration::from_millis(20));
    metrics.cycle(&outcome, Duration::from_millis(10));
    let text = metrics.text(Role::Standalone);
    assert_eq!(samples(&text, "kueue_admission_attempts_total"), ["{result=success} 2"]);
    let took = samples(&text, "kueue_admission_attempt_duration_seconds_bucket");
    assert_eq!(took[0], "{result=success,le=0.005} 1");
    assert_eq!((took[2].as_str(), took[3].as_str()), ("{result=success,le=0.025} 1", "{result=success,le=0.05} 2"));
    let recomputed = samples(&text, "kueue_preemption_target_recomputations_total");
    assert_eq!(recomputed, ["{cluster_queue=cq,result=deferred_fit} 4"]);
}

/// Caches and an engine with the same objects.
struct World {
    stores: Stores,
    scheduler: SchedulerState,
    metrics: Metrics,
}

impl World {
    fn new(config: &Config) -> World {
        let stores = Stores::by_hand();
        let scheduler = SchedulerState::new(EngineConfig::default(), Clock::scaled(at(0), 1.0));
        let metrics = Metrics::new(config, &stores, Cache::for_tests([]), &scheduler);
        let world = World { stores, scheduler, metrics };
        world.scheduler.apply(Event::NamespaceUpserted { name: "team".into(), labels: Default::default() });
        world.scheduler.apply(Event::FlavorUpserted(queues::flavor(&read(json!({"metadata": {"name": "default"}})))));
        world
    }

    fn cluster_queue(&self, name: &str, cohort: Option<&str>, cores: u32) {
        let quota = json!({"name": "cpu", "nominalQuota": cores.to_string()});
        let group = json!({"coveredResources": ["cpu"], "flavors": [{"name": "default", "resources": [quota]}]});
        let mut spec = json!({"namespaceSelector": {}, "resourceGroups": [group]});
        if let Some(cohort) = cohort {
            spec["cohortName"] = json!(cohort);
            spec["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = json!("500m");
        }
        let queue: ClusterQueue = read(json!({"metadata": {"name": name}, "spec": spec}));
        self.scheduler.apply(Event::ClusterQueueUpserted(queues::cluster_queue(&queue)));
        self.stores.cluster_queues.observe(queue);
    }

    fn local_queue(&self, name: &str, cluster_queue: &str, labels: Value) {
        let active = json!([{"type": "Active", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let queue: LocalQueue = read(json!({"metadata": {"name": name, "namespace": "team", "labels": labels},
            "spec": {"clusterQueue": cluster_queue}, "status": {"conditions": active}}));
        self.scheduler.apply(Event::LocalQueueUpserted(queues::local_queue(&queue)));
        self.stores.local_queues.observe(queue);
    }

    /// Adds or updates a workload of one pod.
    fn workload(&self, name: &str, queue: &str, cores: u32, change: impl Fn(&mut Workload)) {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": cores.to_string()}}});
        let mut workload: Workload = read(json!({"metadata": {"name": name, "namespace": "team", "uid": name},
            "spec": {"queueName": queue, "podSets": [
                {"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}]}}));
        change(&mut workload);
        let key = ObjectKey::of(&workload);
        let old = self.stores.workloads.get(&key);
        self.metrics.changed(old.as_deref(), Some(&workload));
        let config = crate::configuration::Resources::default();
        let context =
            translate::Context { resources: &config, limit_ranges: &[], runtime_classes: &Default::default() };
        self.scheduler.apply(Event::WorkloadUpserted(Box::new(translate::workload(&workload, &context))));
        self.stores.workloads.observe(workload);
    }

    fn cycle(&self) {
        while {
            let outcome = self.scheduler.engine().cycle(self.scheduler.now());
            self.metrics.cycle(&outcome, Duration::ZERO);
            outcome.more
        } {}
    }

    fn holders(&self, queue: &str) -> Vec<QuotaHolder> {
        self.scheduler.engine().holders_part(queue, 0..9).map(|(holders, _)| holders).unwrap_or_default()
    }

    fn samples(&self, name: &str) -> Vec<String> {
        samples(&self.metrics.text(Role::Standalone), name)
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object")
}

#[test]
fn histograms_have_the_bounds_of_kueue() {
    let mut series = Series::default();
    let bounds = |text: &str, name: &str| {
        let bounds: Vec<String> = samples(text, &format!("{name}_bucket"))
            .iter()
            .filter_map(|line| Some(line.split_once("le=")?.1.split_once('}')?.0.to_owned()))
            .collect();
        (bounds.first().cloned(), bounds.len(), bounds.iter().rev().nth(1).cloned())
    };
    let text = |series: &Series| {
        Exposition::text(|exposition| families::write(exposition, &Series::default(), series, |_: &_| Vec::new(), &[]))
    };
    for (name, first, count, last) in [
        ("kueue_workload_creation_latency_seconds", "0.01", 12, "10.24"),
        ("kueue_quota_reserved_wait_time_seconds", "1", 15, "10240"),
        ("kueue_admission_wait_time_seconds", "1", 17, "40960"),
        ("kueue_execution_time_seconds", "1", 17, "40960"),
        ("kueue_local_queue_admission_wait_time_seconds", "1", 15, "10240"),
    ] {
        series.observe(name, families::owned(&[("cluster_queue", "cq")]), 0.5, None);
        let expected = (Some(first.to_owned()), count, Some(last.to_owned()));
        assert_eq!(bounds(&text(&series), name), expected, "{name}");
    }
}

#[test]
fn the_series_of_a_deleted_cohort_start_anew_with_its_next_change() {
    let world = World::new(&Config::default());
    world.cluster_queue("a", Some("all"), 2);
    world.local_queue("lq", "a", json!({}));
    let quota = ["{cohort=all,flavor=default,resource=cpu} 2"];
    assert_eq!(world.samples("kueue_cohort_subtree_quota"), quota, "a cohort does not need an object");
    world.metrics.cohort_deleted("all");
    for _ in 0..2 {
        assert_eq!(world.samples("kueue_cohort_subtree_quota"), [""; 0]);
        assert_eq!(world.samples("kueue_cohort_info"), [""; 0]);
    }
    world.workload("runs", "lq", 1, |_| {});
    world.cycle();
    assert_eq!(world.samples("kueue_cohort_subtree_quota"), quota);
}

#[test]
fn gauges_show_only_existing_queues() {
    let world = World::new(&Config { resource_metrics: true, ..Config::default() });
    world.cluster_queue("a", Some("all"), 2);
    world.cluster_queue("alone", None, 1);
    world.local_queue("lq", "a", json!({}));
    for (name, cores) in [("runs", 1), ("waits", 2), ("waits-too", 2), ("huge", 9)] {
        world.workload(name, "lq", cores, |_| {});
    }
    world.cycle();
    assert_eq!(world.holders("a").len(), 1);
    let set = |status: &str| format!("{{cluster_queue=a,status={status}}}");
    assert_eq!(
        world.samples("kueue_pending_workloads")[..2],
        [format!("{} 0", set("active")), format!("{} 3", set("inadmissible"))]
    );
    assert_eq!(world.samples("kueue_pending_scheduling_hashes")[1], format!("{} 2", set("inadmissible")));
    assert_eq!(world.samples("kueue_cluster_queue_resource_pending"), ["{cluster_queue=a,resource=cpu} 13"]);
    let of = "{cohort=all,cluster_queue=a,flavor=default,resource=cpu}";
    assert_eq!(world.samples("kueue_cluster_queue_nominal_quota")[1], format!("{of} 2"));
    assert_eq!(world.samples("kueue_cluster_queue_borrowing_limit")[1], format!("{of} 0.5"));
    assert_eq!(world.samples("kueue_cluster_queue_lending_limit")[1], format!("{of} +Inf"));
    assert_eq!(world.samples("kueue_cluster_queue_resource_reservation")[1], format!("{of} 1"));
    assert_eq!(world.samples("kueue_cluster_queue_info")[0], "{cluster_queue=a,parent_cohort=all,root_cohort=all} 1");
    assert_eq!(world.samples("kueue_cohort_info"), ["{cohort=all,parent_cohort=,root_cohort=all} 1"]);
    assert_eq!(world.samples("kueue_cohort_subtree_quota"), ["{cohort=all,flavor=default,resource=cpu} 2"]);
    let reserved = world.samples("kueue_cohort_subtree_resource_reservations");
    assert_eq!(reserved, ["{cohort=all,flavor=default,resource=cpu} 1"]);
    assert_eq!(
        world.samples("kueue_local_queue_pending_workloads"),
        ["{name=lq,namespace=team,status=active} 0", "{name=lq,namespace=team,status=inadmissible} 3"]
    );
    assert_eq!(world.samples("kueue_local_queue_status")[1], "{name=lq,namespace=team,active=True} 1");
    assert_eq!(
        world.samples("kueue_local_queue_resource_reservation"),
        ["{name=lq,namespace=team,flavor=default,resource=cpu} 1"]
    );
    // Without fair sharing, no share is exported.
    assert_eq!(world.samples("kueue_cluster_queue_weighted_share"), [""; 0]);
    let queue = world.stores.cluster_queue("a").expect("it exists");
    world.stores.cluster_queues.observe_deleted(&queue);
    world.scheduler.apply(Event::ClusterQueueRemoved("a".into()));
    assert!(!world.metrics.text(Role::Standalone).contains("cluster_queue=\"a\",status"));
}

#[test]
fn workloads_are_counted_by_status_and_cause() {
    let world = World::new(&Config::default());
    world.cluster_queue("a", None, 2);
    world.local_queue("lq", "a", json!({}));
    let why = |name: &'static str, reason: &'static str| {
        world.workload(name, "lq", 1, |it| {
            status::set(it, conditions::QUOTA_RESERVED, false, reason, "", at(1));
        });
    };
    world.workload("new", "lq", 1, |_| {});
    why("waits", "WaitingForQuota");
    why("waits-too", "WaitingForQuota");
    world.workload("lost", "misspelt", 1, |it| {
        status::set(it, conditions::QUOTA_RESERVED, false, "Misconfigured", "", at(1));
    });
    let admission = Admission { cluster_queue: "a".to_owned(), ..Admission::default() };
    world.workload("checked", "lq", 1, |it| {
        status::set_quota_reservation(it, admission.clone(), at(1));
        status::set(it, conditions::ADMITTED, false, "UnsatisfiedAdmissionChecks", "", at(1));
    });
    world.workload("done", "lq", 1, |it| {
        status::set(it, conditions::FINISHED, true, "Succeeded", "", at(1));
    });
    assert_eq!(
        world.samples("kueue_unadmitted_workloads"),
        [
            "{cluster_queue=,reason=NoReservation,underlying_cause=Misconfigured} 1",
            "{cluster_queue=a,reason=NoReservation,underlying_cause=PendingEvaluation} 1",
            "{cluster_queue=a,reason=NoReservation,underlying_cause=WaitingForQuota} 2",
            "{cluster_queue=a,reason=UnsatisfiedAdmissionChecks,underlying_cause=ChecksNotReady} 1",
        ]
    );
    let local = world.samples("kueue_local_queue_unadmitted_workloads");
    assert!(
        local.contains(
            &"{name=misspelt,namespace=team,cluster_queue=,reason=NoReservation,underlying_cause=Misconfigured} 1"
                .to_owned()
        )
    );
    assert_eq!(world.samples("kueue_finished_workloads"), ["{cluster_queue=a} 1"]);
    why("new", "WaitingForQuota");
    world.workload("waits", "lq", 1, |it| {
        status::set_quota_reservation(it, admission.clone(), at(2));
        status::set(it, conditions::ADMITTED, true, "Admitted", "", at(2));
    });
    for name in ["checked", "lost", "done"] {
        let gone = world.stores.workloads.get(&ObjectKey::namespaced("team", name)).expect("it exists");
        world.metrics.changed(Some(&gone), None);
    }
    assert_eq!(
        world.samples("kueue_unadmitted_workloads"),
        ["{cluster_queue=a,reason=NoReservation,underlying_cause=WaitingForQuota} 2"]
    );
    assert_eq!(world.samples("kueue_finished_workloads"), [""; 0]);
}

#[test]
fn configuration_and_gates_select_the_series() {
    let local = |config: &Config| {
        let world = World::new(config);
        world.cluster_queue("a", Some("all"), 2);
        world.local_queue("one", "a", json!({"watched": "yes"}));
        world.local_queue("other", "a", json!({}));
        let text = world.metrics.text(Role::Standalone);
        let names = samples(&text, "kueue_local_queue_admitted_active_workloads");
        (names, text.contains("kueue_cohort_"), text.contains("kueue_cluster_queue_nominal_quota"))
    };
    let of = |name: &str| format!("{{name={name},namespace=team}} 0");
    assert_eq!(local(&Config::default()), (vec![of("one"), of("other")], true, false));
    let mut config = Config { resource_metrics: true, ..Config::default() };
    let selector = read(json!({"matchLabels": {"watched": "yes"}}));
    config.metrics.local_queues = Some(LocalQueueMetrics { enable: true, selector: Some(selector) });
    assert_eq!(local(&config), (vec![of("one")], true, true));
    config.metrics.local_queues = Some(LocalQueueMetrics::default());
    assert_eq!(local(&config).0, [""; 0]);
    for gate in [Gate::LocalQueueMetrics, Gate::MetricsForCohorts] {
        let mut config = Config::default();
        config.feature_gates.set(gate, false);
        let (names, cohorts, _) = local(&config);
        assert_eq!(
            (names.is_empty(), cohorts),
            (gate == Gate::LocalQueueMetrics, gate != Gate::MetricsForCohorts),
            "{gate}"
        );
    }
}

#[test]
fn series_have_the_custom_labels_of_their_objects() {
    let mut config = Config::default();
    let label = |name: &str, source| CustomLabel { name: name.to_owned(), source, ..CustomLabel::default() };
    config.metrics.custom_labels = vec![
        CustomLabel { tracked_values: vec!["ml".to_owned()], ..label("team", LabelSource::LocalQueue) },
        CustomLabel { key: Some("example.com/unit".to_owned()), ..label("unit", LabelSource::Workload) },
        label("cost", LabelSource::ClusterQueue),
    ];
    let text = |config: &Config, team: &str| {
        let world = World::new(config);
        world.cluster_queue("a", None, 2);
        world.local_queue("lq", "a", json!({"team": team}));
        world.workload("w", "lq", 1, |_| {});
        world.workload("w", "lq", 1, |it| {
            it.metadata.labels = Some([("example.com/unit".to_owned(), "blue".to_owned())].into());
            status::set(it, conditions::FINISHED, true, "Succeeded", "", at(1));
        });
        let found = |name| world.samples(name);
        (found("kueue_local_queue_reserving_active_workloads"), found("kueue_finished_workloads_total"))
    };
    let without = text(&config, "ml");
    assert_eq!(without.0, ["{name=lq,namespace=team} 0"]);
    config.feature_gates.set(Gate::CustomMetricLabels, true);
    let (local, finished) = text(&config, "ml");
    assert_eq!(local, ["{name=lq,namespace=team,custom_team=ml} 0"]);
    assert_eq!(finished, ["{cluster_queue=a,priority_class=,custom_unit=blue,custom_cost=} 1"]);
    let (local, _) = text(&config, "other");
    assert_eq!(local, ["{name=lq,namespace=team,custom_team=kueue.x-k8s.io/_UNTRACKED_VALUE_} 0"]);
}

#[test]
fn a_local_queue_without_its_cluster_queue_has_no_running_workloads() {
    let world = World::new(&Config::default());
    world.local_queue("lq", "a", json!({}));
    let families = ["kueue_local_queue_reserving_active_workloads", "kueue_local_queue_admitted_active_workloads"];
    let samples = || families.map(|family| world.samples(family));
    assert_eq!(samples(), [[""; 0], [""; 0]]);
    assert_eq!(world.samples("kueue_local_queue_pending_workloads").len(), 2);
    world.cluster_queue("a", None, 2);
    assert_eq!(samples(), [["{name=lq,namespace=team} 0"], ["{name=lq,namespace=team} 0"]]);
}

/// The configuration of custom labels `kind` of workloads, `team` of cluster queues and of cohorts.
fn labelled() -> Config {
    let mut config = Config::default();
    config.feature_gates.set(Gate::CustomMetricLabels, true);
    config.feature_gates.set(Gate::MetricsForCohorts, true);
    let label = |name: &str, source| CustomLabel { name: name.to_owned(), source, ..CustomLabel::default() };
    let kind = CustomLabel {
        tracked_values: vec!["batch".to_owned(), "serving".to_owned()],
        ..label("kind", LabelSource::Workload)
    };
    config.metrics.custom_labels =
        vec![kind, label("team", LabelSource::ClusterQueue), label("unit", LabelSource::Cohort)];
    config
}

#[test]
fn gauges_of_waiting_workloads_are_split_by_labels_of_the_workloads() {
    let world = World::new(&labelled());
    world.cluster_queue("a", None, 1);
    world.local_queue("lq", "a", json!({}));
    let kind = |kind: &'static str| {
        move |it: &mut Workload| it.metadata.labels = Some([("kind".to_owned(), kind.to_owned())].into())
    };
    let pending = || world.samples("kueue_pending_workloads");
    assert_eq!(pending(), [""; 0], "a series begins with its first workload");
    for (name, is) in [("one", "batch"), ("two", "batch"), ("three", "other")] {
        world.workload(name, "lq", 1, kind(is));
    }
    let untracked = "{cluster_queue=a,status=active,custom_kind=kueue.x-k8s.io/_UNTRACKED_VALUE_,custom_team=} 1";
    assert_eq!(pending(), ["{cluster_queue=a,status=active,custom_kind=batch,custom_team=} 2", untracked]);
    world.workload("two", "lq", 1, kind("serving"));
    let split =
        ["batch", "serving"].map(|kind| format!("{{cluster_queue=a,status=active,custom_kind={kind},custom_team=}} 1"));
    assert_eq!(pending(), [split[0].as_str(), untracked, split[1].as_str()]);
    // A workload that needs more than there is becomes inadmissible.
    world.workload("large", "lq", 2, kind("batch"));
    world.cycle();
    let large = "{cluster_queue=a,status=inadmissible,custom_kind=batch,custom_team=} 1";
    assert!(pending().iter().any(|it| it == large), "{:?}", pending());
}

#[test]
fn gauges_of_admitted_workloads_are_split_by_labels_of_the_workloads() {
    let world = World::new(&labelled());
    world.cluster_queue("a", None, 4);
    world.local_queue("lq", "a", json!({}));
    let admitted = |kind: &'static str, finished: bool| {
        move |it: &mut Workload| {
            it.metadata.labels = Some([("kind".to_owned(), kind.to_owned())].into());
            let admission = Admission { cluster_queue: "a".to_owned(), ..Admission::default() };
            status::set_quota_reservation(it, admission, at(1));
            status::set(it, conditions::ADMITTED, true, "Admitted", "", at(1));
            if finished {
                status::set(it, conditions::FINISHED, true, "Succeeded", "", at(2));
            }
        }
    };
    world.workload("one", "lq", 1, admitted("batch", false));
    world.workload("two", "lq", 1, admitted("batch", false));
    let of_queue = || world.samples("kueue_admitted_active_workloads");
    assert_eq!(of_queue(), ["{cluster_queue=a,custom_kind=batch,custom_team=} 2"]);
    let of_local = world.samples("kueue_local_queue_admitted_active_workloads");
    assert_eq!(of_local, ["{name=lq,namespace=team,custom_kind=batch} 2"]);
    world.workload("two", "lq", 1, admitted("serving", false));
    world.workload("one", "lq", 1, admitted("batch", true));
    assert_eq!(of_queue(), ["{cluster_queue=a,custom_kind=serving,custom_team=} 1"]);
    let two = world.stores.workloads.get(&ObjectKey::namespaced("team", "two")).expect("it exists");
    world.metrics.changed(Some(&two), None);
    assert_eq!(of_queue(), [""; 0]);
}

#[test]
fn counters_keep_the_custom_labels_of_the_time_of_the_event() {
    let world = World::new(&labelled());
    let team = |team: &str| {
        let queue = read(json!({"metadata": {"name": "a", "labels": {"team": team}}, "spec": {}}));
        world.stores.cluster_queues.observe(queue);
    };
    team("red");
    world.local_queue("lq", "a", json!({}));
    world.metrics.preempted("a", "InClusterQueue");
    team("blue");
    world.metrics.preempted("a", "InClusterQueue");
    let counted = world.samples("kueue_preempted_workloads_total");
    let of = |team: &str| format!("{{preempting_cluster_queue=a,reason=InClusterQueue,custom_team={team}}} 1");
    assert_eq!(counted, [of("blue"), of("red")]);
    let status = world.samples("kueue_cluster_queue_status");
    assert!(status.iter().all(|it| it.contains("custom_team=blue")), "gauges follow the object: {status:?}");
}
