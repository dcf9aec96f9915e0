//! Snapshots: what they leave out, what they rename, and changes to them.

use berth_foresight::live::State;
use berth_foresight::memory::{Memory, Preemptor, Times};
use berth_foresight::snapshot::{Changes, Snapshot};
use jiff::Timestamp;
use serde_json::{Value, json};

fn objects() -> Vec<Value> {
    vec![
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "acme-pool"},
               "spec": {"machineType": "g2-standard-24", "provisioning": "spot",
                        "labels": {"acme.example/tier": "spot"}, "taints": [
                            {"key": "acme.example/tier", "value": "spot", "effect": "NoSchedule"}]}}),
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "acme-flavor"},
               "spec": {"nodeLabels": {"acme.example/tier": "spot", "cloud.google.com/gke-provisioning": "spot"}}}),
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "acme-queue"},
               "spec": {"cohortName": "acme", "queueingStrategy": "StrictFIFO", "resourceGroups": [
                   {"coveredResources": ["cpu"], "flavors": [
                       {"name": "acme-flavor", "resources": [{"name": "cpu", "nominalQuota": "4"}]}]}]}}),
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
               "metadata": {"name": "job-secret-1", "namespace": "acme-team", "managedFields": [],
                            "ownerReferences": [{"kind": "Job", "name": "secret-1", "controller": true}]},
               "spec": {"queueName": "acme-main", "podSets": [{"name": "main", "count": 1, "template": {
                   "metadata": {"labels": {"customer": "acme"}},
                   "spec": {"containers": [{"name": "c", "image": "acme/secret", "env": [{"name": "K", "value": "secret"}],
                                            "resources": {"requests": {"cpu": "1"}}}]}}}]},
               "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending",
                                          "message": "acme waits", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
    ]
}

fn snapshot() -> Snapshot {
    Snapshot::of(objects(), Timestamp::UNIX_EPOCH)
}

#[test]
fn a_snapshot_has_no_images_environment_and_messages() {
    let text = snapshot().text();
    for secret in ["acme/secret", "\"K\"", "customer", "acme waits"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert!(text.contains("\"requests\":{\"cpu\":\"1\"}"), "{text}");
    assert_eq!(Snapshot::parse(&text), Ok(snapshot()));
}

#[test]
fn an_anonymous_snapshot_keeps_the_order_of_names_and_what_selectors_match() {
    let anonymous = snapshot().anonymous();
    let text = anonymous.text();
    assert!(!text.contains("acme") && !text.contains("secret"), "{text}");
    let objects = anonymous.read();
    assert_eq!(objects.invalid, []);
    let (pool, flavor) = (objects.node_pools.values().next(), objects.flavors.values().next());
    let (pool, flavor) = (&pool.expect("a pool").object.spec, &flavor.expect("a flavor").object.spec);
    let (key, value) = pool.labels.iter().next().expect("the label");
    assert_eq!(flavor.node_labels.get(key), Some(value));
    assert_eq!((&pool.taints[0].key, &pool.taints[0].value), (key, value));
    assert_eq!(flavor.node_labels.get("cloud.google.com/gke-provisioning").map(String::as_str), Some("spot"));
    let queue = &objects.cluster_queues.values().next().expect("a queue").object.spec;
    assert_eq!(queue.resource_groups[0].flavors[0].name, *objects.flavors.keys().next().expect("a flavor"));
    assert!(text.contains("StrictFIFO") && text.contains("g2-standard-24"), "{text}");
    let names: Vec<&String> = objects.cluster_queues.keys().chain(objects.flavors.keys()).collect();
    assert!(names[0] > names[1], "acme-queue sorts after acme-flavor: {names:?}");
}

#[test]
fn changes_name_what_is_missing_and_add_to_quotas() {
    let apply = |quota: &str| Changes { quotas: vec![quota.to_owned()], ..Changes::default() }.apply(&snapshot());
    let nominal = |snapshot: &Snapshot| {
        let queue = snapshot.objects.iter().find(|it| it["kind"] == "ClusterQueue").expect("the queue");
        queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"].clone()
    };
    for (quota, wanted) in [("=+8", "12"), ("=-3", "1"), ("=500m", "500m")] {
        let changed = apply(&format!("acme-queue/acme-flavor/cpu{quota}")).expect("the quota exists");
        assert_eq!(nominal(&changed), wanted, "{quota}");
    }
    for (quota, problem) in [
        ("acme-queue/acme-flavor/cpu=-5", "the nominal quota would be negative"),
        ("other/acme-flavor/cpu=1", "there is no ClusterQueue other"),
        (
            "acme-queue/acme-flavor/nvidia.com/gpu=1",
            "ClusterQueue acme-queue has no quota of nvidia.com/gpu in flavor acme-flavor",
        ),
    ] {
        assert_eq!(apply(quota).map_err(|error| error.problem), Err(problem.to_owned()));
    }
    let priorities = vec!["acme-team/secret-1=7".to_owned()];
    let changed = Changes { priorities, ..Changes::default() }.apply(&snapshot()).expect("the job is there");
    assert_eq!(changed.objects.iter().find(|it| it["kind"] == "Workload").expect("it")["spec"]["priority"], 7);
    let without = vec!["ResourceFlavor/acme-flavor".to_owned()];
    let changed = Changes { without, ..Changes::default() }.apply(&snapshot()).expect("the flavor is there");
    assert_eq!(changed.objects.len(), snapshot().objects.len() - 1);
}

#[test]
fn the_nodes_of_a_rack_are_left_out_by_their_label() {
    let node = |name: &str, rack: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"example.com/rack": rack}}});
    let mut all = objects();
    all.extend([node("a", "r1"), node("b", "r2"), node("c", "r2")]);
    let snapshot = Snapshot::of(all, Timestamp::UNIX_EPOCH);
    let apply = |without: &str| Changes { without: vec![without.to_owned()], ..Changes::default() }.apply(&snapshot);
    let changed = apply("Node/example.com/rack=r2").expect("the rack is there");
    let nodes = changed.objects.iter().filter(|it| it["kind"] == "Node").map(|it| it["metadata"]["name"].clone());
    assert_eq!(nodes.collect::<Vec<_>>(), ["a"]);
    let error = apply("Node/example.com/rack=r3").expect_err("there is no such rack");
    assert_eq!(error.problem, "there is no Node with the label example.com/rack=r3");
}

#[test]
fn the_memory_of_the_controllers_is_part_of_a_snapshot_under_the_new_names() {
    let preemptor = |name: &str| Preemptor {
        cluster_queue: "acme-queue".to_owned(),
        namespace: "acme-team".to_owned(),
        name: name.to_owned(),
        generation: 3,
    };
    let created: Timestamp = "1970-01-01T00:00:00.25Z".parse().expect("a time");
    let (namespace, name) = ("acme-team".to_owned(), "job-secret-1".to_owned());
    let times = Times { namespace, name, created: Some(created), ..Times::default() };
    let memory = Memory {
        preemptors: vec![preemptor("job-secret-1"), preemptor("secret-2")],
        times: vec![times],
        ..Memory::default()
    };
    let mut all = objects();
    all[3]["metadata"]["creationTimestamp"] = json!("1970-01-01T00:00:00Z");
    let snapshot = Snapshot::of(all, Timestamp::UNIX_EPOCH).with_memory(Some(memory));
    assert_eq!(Snapshot::parse(&snapshot.text()), Ok(snapshot.clone()));
    let parsed = Snapshot::parse(&snapshot.clone().anonymous().text()).expect("a snapshot");
    let text = parsed.text();
    assert!(!text.contains("acme") && !text.contains("secret"), "{text}");
    let known = parsed.memory.clone().expect("a memory");
    assert_eq!(known.preemptors.len(), 1, "no object has the other name");
    let state = State::of(&parsed.read(), parsed.at);
    let job = &state.jobs[0];
    assert_eq!((&*job.key.namespace, &*job.key.name), (&*known.preemptors[0].namespace, &*known.preemptors[0].name));
    assert_eq!(job.workload.created.0, 250_000_000, "with its part of a second");
    let invalid = "{\"apiVersion\":\"berth.dev/v1alpha1\",\"kind\":\"Snapshot\",\"at\":\"2026-01-01T00:00:00Z\",\"memory\":3,\"objects\":[]}";
    assert_eq!(Snapshot::parse(invalid).expect_err("no memory").field, "memory");
}
