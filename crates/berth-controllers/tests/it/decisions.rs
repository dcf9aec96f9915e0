//! Records of decisions: the explanation of a preemption after it happened.

use berth_api::berth::decision::{DecisionOutcome, DecisionRecord};
use berth_controllers::Config;
use berth_controllers::explain::Reader;
use serde_json::{Value, json};

use crate::cluster::Cluster;

const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

fn queues(name: &str, nominal: &str, preemption: Value) -> [Value; 2] {
    let groups = json!([{"coveredResources": ["cpu"],
        "flavors": [{"name": "spot", "resources": [{"name": "cpu", "nominalQuota": nominal}]}]}]);
    [
        json!({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": {
            "cohortName": "all", "namespaceSelector": {}, "resourceGroups": groups, "preemption": preemption}}),
        json!({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "lq", "namespace": name},
            "spec": {"clusterQueue": name}}),
    ]
}

fn job(namespace: &str, name: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": "lq"}},
        "spec": {"suspend": true, "parallelism": 1, "completions": 1, "template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}],
        }}},
    })
}

/// Two teams of one cohort; `blue` reclaims its quota from the job `guest` of `green`, which ran
/// for a minute.
async fn reclaimed() -> Cluster {
    let cluster = Cluster::start(Config::default()).await;
    for name in ["blue", "green"] {
        cluster.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
    }
    cluster
        .create(json!({"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "spot"}, "spec": {}}))
        .await;
    for object in queues("blue", "4", json!({"reclaimWithinCohort": "Any"})) {
        cluster.create(object).await;
    }
    for object in queues("green", "2", json!({})) {
        cluster.create(object).await;
    }
    cluster.create(job("green", "small", "1")).await;
    cluster.create(job("green", "guest", "4")).await;
    cluster.pass(60).await;
    cluster.create(job("blue", "owner", "3")).await;
    cluster.pass(2).await;
    cluster
}

fn decisions(explanation: &Value) -> Vec<DecisionRecord> {
    serde_json::from_value(explanation["decisions"].clone()).expect("records of decisions")
}

#[tokio::test(start_paused = true)]
async fn the_explanation_of_a_preempted_workload_shows_that_decision() {
    let cluster = reclaimed().await;
    let explained = cluster.explain.whole("green", "guest").expect("it is known");
    let text = explained["text"].as_str().unwrap_or_default();
    let preempted = decisions(&explained)
        .into_iter()
        .find(|it| it.outcome == DecisionOutcome::Preempted)
        .unwrap_or_else(|| panic!("no preemption in {explained:#}"));

    assert_eq!((&*preempted.reason, &*preempted.cluster_queue), ("InCohortReclamation", "green"));
    let preemption = preempted.preemption.expect("the preemption");
    let preemptor = preemption.preemptor.expect("its name");
    assert_eq!(preemptor.namespace, "blue");
    assert!(preemptor.name.starts_with("job-owner-"), "{preemptor:?}");
    assert_eq!(preemption.rule, "reclaimWithinCohort of ClusterQueue blue is Any");
    let change = |name: &str| {
        let balance = preemption.balances.iter().find(|it| it.name == name).expect("a balance");
        let quota = &balance.quotas[0];
        format!("{} {}: {} -> {} of {}", balance.kind, quota.resource, quota.before, quota.after, quota.quota)
    };
    assert_eq!(change("blue"), "ClusterQueue cpu: 0 -> 3 of 4");
    assert_eq!(change("green"), "ClusterQueue cpu: 5 -> 1 of 2");
    let search = preemption.search.expect("the search");
    let fates: Vec<(String, &str)> =
        search.candidates.iter().map(|it| (it.workload.name[..8].to_owned(), &*it.fate)).collect();
    assert!(fates.contains(&("job-gues".to_owned(), "Victim")), "{fates:?}");
    let lost = preempted.lost.expect("what was lost");
    assert_eq!((&*lost.holds[0].resource, &*lost.holds[0].amount.0), ("cpu", "4"));
    assert!((59..=61).contains(&lost.seconds.unwrap_or_default()), "{lost:?}");

    for part in ["Preempted at 2026-01-01T", "By Workload blue/job-owner-", "Rule: reclaimWithinCohort", "Lost: 4 cpu"]
    {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(text.contains("admitted by ClusterQueue green"), "the admission before it is listed:\n{text}");
    // The preemptor has a record of its own.
    let of_owner = decisions(&cluster.explain.whole("blue", "owner").expect("it is known"));
    assert!(of_owner.iter().any(|it| it.outcome == DecisionOutcome::Preempting), "{of_owner:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_reader_without_access_to_the_other_team_sees_no_names() {
    let cluster = reclaimed().await;
    // The server of these tests authorizes only its administrator.
    let reader = Reader { name: "green-user".to_owned(), ..Reader::default() };
    let explained = cluster.explain.of(&reader, "green", "guest").await.expect("it is known");
    assert!(!explained.to_string().contains("job-owner-"), "{explained:#}");
    let records = decisions(&explained);
    let preempted = records.iter().find(|it| it.outcome == DecisionOutcome::Preempted).expect("the preemption");
    let preemption = preempted.preemption.as_ref().expect("the preemption");
    assert_eq!((&preemption.preemptor, preemption.preemptor_priority), (&None, None));
    assert_eq!(preemption.preemptor_cluster_queue, "blue");
    let text = explained["text"].as_str().unwrap_or_default();
    assert!(text.contains("By a workload not named here (UID: "), "{text}");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_another_client_wrote_is_recorded_too() {
    let cluster = reclaimed().await;
    let workload = cluster.workload_of("green", "small").await;
    let name = workload["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    cluster.patch(&workload, json!({"spec": {"active": false}})).await;
    cluster.pass(2).await;
    let records = decisions(&cluster.explain.whole("green", &name).expect("it is known"));
    let evicted = records.iter().find(|it| it.outcome == DecisionOutcome::Evicted).expect("the eviction");
    assert_eq!(evicted.reason, "Deactivated");
    assert_eq!(records.iter().filter(|it| it.outcome == DecisionOutcome::Evicted).count(), 1, "{records:#?}");
    cluster.delete(&cluster.get("batch/v1", "Job", Some("green"), "small").await).await;
}
