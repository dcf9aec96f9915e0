use serde_json::json;

use super::*;

fn rows() -> BTreeMap<Arc<ObjectKey>, Row> {
    let names = Names::default();
    let mut rows = BTreeMap::new();
    for (number, (namespace, name, user, priority, is_running)) in [
        ("blue", "train", "Ann", 5, true),
        ("blue", "eval", "bob", 9, false),
        ("green", "train", "Ann", 1, false),
        ("red", "secret", "eve", 7, false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut workload = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": format!("job-{name}"), "namespace": namespace, "labels": {"project": name},
                "annotations": {"berth.dev/submitted-by": user},
                "creationTimestamp": format!("2026-01-01T00:00:0{number}Z"),
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "u", "controller": true}]},
            "spec": {"queueName": "main", "priority": priority, "podSets": [
                {"name": "main", "count": number, "template": {"spec": {"containers": []}}}]}});
        if is_running {
            let condition = |type_: &str| {
                json!({"type": type_, "status": "True", "reason": type_, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
            };
            workload["status"] = json!({"conditions": [condition("QuotaReserved"), condition("Admitted")],
                "admission": {"clusterQueue": "lent", "podSetAssignments": []}});
        }
        let workload: Workload = serde_json::from_value(workload).expect("a workload");
        rows.insert(Arc::new(ObjectKey::of(&workload)), Row::of(&workload, &names).expect("a row"));
    }
    rows
}

/// The names of the listed jobs.
fn listed(query: &str) -> Vec<String> {
    let (rows, question) = (rows(), Question::parse(query).expect("a question"));
    let queues = HashMap::from([(("green".to_owned(), "main".to_owned()), "pool".to_owned())]);
    let found = search(&rows, &question, "", &queues, &|namespace| namespace != "red");
    assert_eq!(found.withheld, 1, "jobs of red are counted only");
    part(found.rows, &question).iter().map(|key| key.to_string()).collect()
}

#[test]
fn jobs_are_filtered_by_words_state_queue_and_labels() {
    assert_eq!(listed(""), ["blue/job-train", "blue/job-eval", "green/job-train"]);
    assert_eq!(listed("q=train+ann"), ["blue/job-train", "green/job-train"]);
    assert_eq!(listed("q=secret"), [""; 0]);
    assert_eq!(listed("state=running"), ["blue/job-train"]);
    assert_eq!(listed("queue=pool"), ["green/job-train"]);
    assert_eq!(listed("queue=lent"), ["blue/job-train"]);
    assert_eq!(listed("user=bob"), ["blue/job-eval"]);
    assert_eq!(listed("labels=project%3Deval"), ["blue/job-eval"]);
}

#[test]
fn a_page_is_a_part_of_the_sorted_jobs() {
    assert_eq!(listed("sort=-priority"), ["blue/job-eval", "blue/job-train", "green/job-train"]);
    assert_eq!(listed("sort=-queued&limit=1"), ["green/job-train"]);
    assert_eq!(listed("sort=name&limit=1&offset=1"), ["blue/job-train"]);
    assert_eq!(listed("limit=5&offset=3"), [""; 0]);
}

#[test]
fn groups_are_counted_regardless_of_the_listed_one() {
    let (rows, question) = (rows(), Question::parse("group=user&value=bob").expect("a question"));
    let queues = HashMap::new();
    let found = search(&rows, &question, "", &queues, &|_| true);
    assert_eq!((found.rows.len(), found.groups["Ann"].jobs, found.groups["Ann"].running), (1, 2, 1));
    assert_eq!(found.states["Waiting"], 3);
}
