use berth_api::berth::current_jobs::JobGroup;
use berth_apimachinery::selector::LabelSelector;
use berth_runtime::Rows;
use serde_json::json;

use super::*;

fn index() -> Index {
    let names = Names::default();
    let mut index = Index::default();
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
        index.put(&Arc::new(ObjectKey::of(&workload)), Row::of(&workload, &names).expect("a row"));
    }
    index
}

fn answer(query: &str, may_read: &dyn Fn(&str) -> bool) -> Answer {
    let mut queues = Queues::default();
    queues.put(&Arc::new(ObjectKey::namespaced("green", "main")), "pool".to_owned());
    find(&index(), &Question::parse(query).expect("a question"), "", &queues, may_read)
}

/// The names of the listed jobs.
fn listed(query: &str) -> Vec<String> {
    let answer = answer(query, &|namespace| namespace != "red");
    assert_eq!(answer.withheld, 1, "jobs of red are counted only");
    answer.page.iter().map(|key| key.to_string()).collect()
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
    assert_eq!(listed("labels=project%20in%20%28eval%2Ctrain%29%2Cproject%21%3Dtrain"), ["blue/job-eval"]);
    assert_eq!(listed("labels=%21project"), [""; 0]);
}

#[test]
fn a_page_is_a_part_of_the_sorted_jobs() {
    assert_eq!(listed("sort=-priority"), ["blue/job-eval", "blue/job-train", "green/job-train"]);
    assert_eq!(listed("sort=-queued&limit=1"), ["green/job-train"]);
    assert_eq!(listed("sort=name&limit=1&offset=1"), ["blue/job-train"]);
    assert_eq!(listed("sort=state&limit=2"), ["blue/job-eval", "green/job-train"]);
    assert_eq!(listed("sort=-user&limit=2&offset=1"), ["green/job-train", "blue/job-train"]);
    assert_eq!(listed("limit=5&offset=3"), [""; 0]);
}

#[test]
fn the_newest_jobs_of_a_queue_user_or_label_are_chosen() {
    let (index, mut queues) = (index(), Queues::default());
    queues.put(&Arc::new(ObjectKey::namespaced("green", "main")), "pool".to_owned());
    let chosen = |query: &str, limit: usize| {
        let chosen = Chosen::parse(query).expect("a choice");
        let is_wanted = |shape: &Shape| chosen.has_shape(shape, &queues);
        let keys =
            index.newest("", &is_wanted, &chosen.labels, limit).iter().map(ToString::to_string).collect::<Vec<_>>();
        (keys, index.count_of("", &is_wanted, &chosen.labels, i64::MAX).values().sum::<u64>())
    };
    assert_eq!(chosen("queue=pool", 9), (vec!["green/job-train".to_owned()], 1));
    assert_eq!(chosen("queue=lent&user=Ann&state=running", 9), (vec!["blue/job-train".to_owned()], 1));
    assert_eq!(chosen("user=eve&state=running", 9), (Vec::new(), 0));
    assert_eq!(chosen("labels=project%3Deval", 9), (vec!["blue/job-eval".to_owned()], 1));
    assert_eq!(chosen("labels=project%3Dtrain&state=waiting", 9), (vec!["green/job-train".to_owned()], 1));
    let (keys, total) = chosen("queue=main", 1);
    assert_eq!((keys, total), (["blue/job-eval", "green/job-train", "red/job-secret"].map(str::to_owned).to_vec(), 4));
}

#[test]
fn groups_are_counted_regardless_of_the_listed_one() {
    let group = |answer: &Answer, value: &str| -> JobGroup {
        answer.groups.iter().find(|group| group.value == value).cloned().expect("a group")
    };
    let by_user = answer("group=user&value=bob", &|_| true);
    let ann = group(&by_user, "Ann");
    assert_eq!((by_user.total, ann.jobs, ann.running, ann.waiting, ann.pods), (1, 2, 1, 1, 2));
    assert_eq!(by_user.states["Waiting"], 3);
    let by_label = answer("group=label%3Aproject&value=train", &|_| true);
    assert_eq!((by_label.total, group(&by_label, "train").jobs, group(&by_label, "eval").pods), (2, 2, 1));
}

#[test]
fn the_index_follows_changes() {
    let mut index = index();
    let before = index.version();
    let key = |namespace: &str, name: &str| Arc::new(ObjectKey::namespaced(namespace, name));
    index.take(&key("red", "job-secret"));
    index.take(&key("red", "job-secret"));
    assert_eq!((index.len(), index.namespaces("")), (3, vec!["blue".to_owned(), "green".to_owned()]));
    assert!(index.version() > before);
    // A row that changes its shape is at one place only.
    let names = Names::default();
    let row = |user: &str| {
        let workload = json!({"metadata": {"name": "job-eval", "namespace": "blue",
            "annotations": {"berth.dev/submitted-by": user}}, "spec": {"queueName": "main", "podSets": []}});
        Row::of(&serde_json::from_value(workload).expect("a workload"), &names).expect("a row")
    };
    index.put(&key("blue", "job-eval"), row("cat"));
    let queues = Queues::default();
    let count = |index: &Index, query: &str| {
        find(index, &Question::parse(query).expect("a question"), "", &queues, &|_| true).total
    };
    assert_eq!((index.len(), count(&index, "user=bob"), count(&index, "user=cat"), count(&index, "")), (3, 0, 1, 3));
    assert_eq!(index.running("").map(|stay| stay.workload.name.as_str()).collect::<Vec<_>>(), ["job-train"]);
    let states = [StayState::Waiting];
    assert_eq!(index.count("", &states, i64::MAX).values().sum::<u64>(), 2);
    let waits = |shape: &Shape| states.contains(&shape.state);
    assert_eq!(index.newest("green", &waits, &LabelSelector::default(), 1), [key("green", "job-train")]);
}

#[test]
fn an_answer_is_shared_with_readers_of_the_same_rights_until_something_changes() {
    let shared = Shared::default();
    let asked = |version: u64, readable: Option<&[&str]>| Asked {
        versions: (version, 1),
        question: Question::parse("q=train").expect("a question"),
        only: String::new(),
        readable: readable.map(|it| it.iter().map(|name| (*name).to_owned()).collect()),
    };
    let answer = Arc::new(Answer { total: 7, ..Answer::default() });
    shared.keep(asked(1, Some(&["blue"])), answer);
    assert_eq!(shared.get(&asked(1, Some(&["blue"]))).map(|it| it.total), Some(7));
    assert_eq!(shared.get(&asked(1, Some(&["blue", "green"]))), None, "other rights");
    assert_eq!(shared.get(&asked(1, None)), None, "other rights");
    assert_eq!(shared.get(&asked(2, Some(&["blue"]))), None, "a job changed");
}
