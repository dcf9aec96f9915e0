//! Two tenants of one cohort: what each may see of the other's workloads.
//!
//! All objects of the other tenant are marked by a name or a priority. Every response that a tenant
//! can get is searched for the marks in all fields, so fields added later are searched too. The
//! administrator's responses contain the marks, which shows that the search finds them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_apiserver::{InProcess, UserInfo};
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::visibility::create;

/// A string in every name of the other tenant's objects, and in no other name.
const NAME: &str = "green";
/// The priorities of the other tenant's workloads.
const PRIORITIES: [&str; 2] = ["47110", "99999"];

/// A cluster with the two tenants, and a switch that makes access reviews fail.
struct World {
    embedded: Embedded,
    admin: Client,
    clock: Clock,
    reviews_fail: Arc<AtomicBool>,
}

fn kueue(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    let mut object =
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

fn quota(flavors: &[(&str, u32)]) -> Value {
    let flavor = |(name, cpu): &(&str, u32)| json!({"name": name, "resources": [{"name": "cpu", "nominalQuota": cpu}]});
    json!([{"coveredResources": ["cpu"], "flavors": flavors.iter().map(flavor).collect::<Vec<_>>()}])
}

impl World {
    async fn new(configuration: Value) -> World {
        let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
        let mut file = json!({"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"});
        file.as_object_mut().expect("an object").extend(configuration.as_object().expect("an object").clone());
        let mut options = Options::in_memory(clock.clone(), 1, Some(json!({"nodePools": []})), Some(file));
        // The controllers have only the permissions of an installation, like a separate process.
        options.apart = true;
        let reviews_fail = Arc::new(AtomicBool::new(false));
        let fails = reviews_fail.clone();
        let connect = move |connection: InProcess| {
            let fails = fails.clone();
            let broken = move |mut request: Request<Body>| {
                if request.uri().path().ends_with("/subjectaccessreviews") && fails.load(Ordering::SeqCst) {
                    *request.uri_mut() = "/api/v1/namespaces/none".parse().expect("a path");
                }
                request
            };
            Client::new(connection.map_request(broken), "default")
        };
        let embedded = Embedded::start_through(options, connect).await.expect("the cluster starts");
        let world = World { admin: embedded.admin_client(), embedded, clock, reviews_fail };
        for name in ["team-blue", "team-green"] {
            world.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        }
        world.create(kueue("ResourceFlavor", "", "default", json!({}))).await;
        for (name, value) in [("middle", 47_110), ("over", 99_999), ("top", 90_000)] {
            let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
                "value": value});
            world.create(class).await;
        }
        // The roles that `docs/install.md` gives to teams, each in its own namespace.
        for (user, namespace) in [("blue", "team-blue"), ("hal", "team-green")] {
            for role in ["edit", "kueue-batch-user-role"] {
                world.bind(user, namespace, role).await;
            }
        }
        world
    }

    async fn create(&self, object: Value) {
        create(&self.admin, object).await;
    }

    async fn bind(&self, user: &str, namespace: &str, role: &str) {
        let rbac = "rbac.authorization.k8s.io";
        let name = format!("{user}-{role}");
        self.create(json!({"apiVersion": format!("{rbac}/v1"), "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}]}))
            .await;
    }

    async fn queue(&self, name: &str, spec: Value) {
        let mut queue = json!({"cohortName": "all", "namespaceSelector": {}});
        queue.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
        self.create(kueue("ClusterQueue", "", name, queue)).await;
    }

    async fn local_queue(&self, namespace: &str, name: &str, cluster_queue: &str) {
        self.create(kueue("LocalQueue", namespace, name, json!({"clusterQueue": cluster_queue}))).await;
    }

    /// Creates a job and waits until the scheduler has considered it.
    async fn job(&self, namespace: &str, name: &str, queue: &str, class: &str, cpu: u32) {
        self.create(json!({"apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "namespace": namespace, "labels": {"kueue.x-k8s.io/queue-name": queue}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "priorityClassName": class, "containers": [
                {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}]}}}}))
            .await;
        self.clock.sleep(Duration::from_secs(3)).await;
    }

    fn user(&self, name: &str) -> Client {
        Client::new(self.embedded.server().in_process(UserInfo::new(name, &[])), "default")
    }

    /// The explanation of a workload of team-blue as a user gets it, with its text.
    async fn explained(&self, client: &Client, job: &str) -> Value {
        let path = format!("/apis/explain.berth.dev/v1alpha1/namespaces/team-blue/workloads/{job}/explanation");
        ask(client, &path).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

async fn ask(client: &Client, path: &str) -> Result<Value, kube::Error> {
    client.request(Request::get(path).body(Vec::new()).expect("a request")).await
}

/// The fields that contain a mark of the other tenant; `[]` represents each item of a list.
fn marks(value: &Value) -> BTreeSet<String> {
    fn is_marked(text: &str) -> bool {
        // A priority is searched as a whole number, because a UID may contain the same digits.
        let is_priority = |part: &str| PRIORITIES.contains(&part);
        text.contains(NAME) || text.split(|it: char| !it.is_ascii_alphanumeric()).any(is_priority)
    }
    fn walk(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
                    if is_marked(field) {
                        found.insert(path.clone());
                    }
                    walk(value, &path, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, &format!("{path}[]"), found)),
            Value::String(text) if is_marked(text) => drop(found.insert(path.to_owned())),
            Value::Number(number) if is_marked(&number.to_string()) => drop(found.insert(path.to_owned())),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    walk(value, "", &mut found);
    found
}

/// Fields that report withheld information.
fn withheld(value: &Value) -> BTreeSet<String> {
    fn walk(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (field, value) in fields {
                    if field.to_lowercase().ends_with("withheld") {
                        found.insert(field.clone());
                    }
                    walk(value, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    walk(value, &mut found);
    found
}

fn set(fields: &[&str]) -> BTreeSet<String> {
    fields.iter().map(|field| (*field).to_owned()).collect()
}

/// Preemption by priority and by reclamation: blue waits behind green in one queue, and could
/// preempt green in both.
async fn preempting() -> World {
    let world = World::new(json!({})).await;
    let policy = json!({"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"});
    let spec =
        json!({"queueingStrategy": "StrictFIFO", "preemption": policy, "resourceGroups": quota(&[("default", 4)])});
    world.queue("shared", spec).await;
    world.queue("lender", json!({"resourceGroups": quota(&[("default", 2)])})).await;
    world.local_queue("team-blue", "main", "shared").await;
    world.local_queue("team-green", "green-main", "shared").await;
    world.local_queue("team-green", "green-lent", "lender").await;
    world.job("team-green", "green-one", "green-main", "middle", 1).await;
    world.job("team-green", "green-two", "green-lent", "middle", 4).await;
    world.job("team-blue", "own", "main", "", 1).await;
    // A StrictFIFO head that does not fit: workloads behind it are not considered.
    world.job("team-green", "green-first", "green-main", "over", 100).await;
    world.job("team-blue", "wants", "main", "top", 4).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_tenant_sees_counts_and_amounts_of_another_tenant_but_no_names() {
    let world = preempting().await;
    let whole = world.explained(&world.admin, "wants").await;
    let expected = set(&[
        "outlook.shortages[].holders[].priority",
        "outlook.shortages[].holders[].workload.name",
        "outlook.shortages[].holders[].workload.namespace",
        "outlook.victimSearches[].candidates[].priority",
        "outlook.victimSearches[].candidates[].workload.name",
        "outlook.victimSearches[].candidates[].workload.namespace",
        "outlook.victims[].workload.name",
        "outlook.victims[].workload.namespace",
        "standing.ahead[].name",
        "standing.ahead[].namespace",
        "text",
    ]);
    assert_eq!(marks(&whole), expected, "{whole:#}");
    assert_eq!(withheld(&whole), set(&[]), "{whole:#}");

    let seen = world.explained(&world.user("blue"), "wants").await;
    assert_eq!(marks(&seen), set(&[]), "{seen:#}");
    let fields = ["aheadWithheld", "candidatesWithheld", "holdersWithheld", "victimsWithheld", "withheld"];
    assert_eq!(withheld(&seen), set(&fields), "{seen:#}");
    assert_eq!(seen["withheld"]["reason"], "NotAllowed");
    // Only names of the other tenant are withheld; names of the reader's own workloads are present.
    let length = |list: &Value| list.as_array().map_or(0, Vec::len) as u64;
    let sum =
        |groups: &Value| groups.as_array().into_iter().flatten().filter_map(|it| it["workloads"].as_u64()).sum::<u64>();
    let [of_whole, of_blue] = [&whole, &seen].map(|it| &it["outlook"]["shortages"][0]);
    assert_eq!(length(&of_whole["holders"]), 3);
    assert_eq!(of_blue["holders"].as_array().map(Vec::len), Some(1), "{of_blue:#}");
    assert_eq!(of_blue["holders"][0]["workload"]["namespace"], "team-blue");
    let expected = json!([
        {"clusterQueue": "lender", "workloads": 1, "amount": "4", "preemptible": "Yes", "why": "may be preempted"},
        {"clusterQueue": "shared", "workloads": 1, "amount": "1", "preemptible": "Yes", "why": "may be preempted"}]);
    assert_eq!(of_blue["holdersWithheld"], expected);
    assert_eq!(of_blue["levels"], of_whole["levels"], "quotas are no secret");
    let victims = |it: &Value| length(&it["outlook"]["victims"]) + sum(&it["outlook"]["victimsWithheld"]);
    assert!(victims(&whole) > 0 && victims(&whole) == victims(&seen), "{seen:#}");
    let candidates = |it: &Value| {
        let search = &it["outlook"]["victimSearches"][0];
        length(&search["candidates"]) + sum(&search["candidatesWithheld"])
    };
    assert!(candidates(&whole) > 0 && candidates(&whole) == candidates(&seen), "{seen:#}");
    assert_eq!((length(&whole["standing"]["ahead"]), &seen["standing"]["aheadWithheld"]), (1, &json!(1)));
    let page = seen["text"].as_str().expect("a page");
    for line in [
        "  Ahead of it: 1 workload.\n",
        "    1 workload not named here: 4 in ClusterQueue lender; may be preempted\n",
        "\nSome workloads are only counted, because you may not list workloads in their namespaces.\n",
    ] {
        assert!(page.contains(line), "{line} {page}");
    }
    // A user that may get explanations but may not list workloads sees no other workload's name,
    // not even in its own namespace.
    let rules = json!([{"apiGroups": ["explain.berth.dev"], "resources": ["workloads/explanation"], "verbs": ["get"]}]);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "explainer"}, "rules": rules});
    world.create(role).await;
    world.bind("eve", "team-blue", "explainer").await;
    let seen = world.explained(&world.user("eve"), "wants").await;
    assert_eq!(marks(&seen), set(&[]), "{seen:#}");
    assert!(!seen.to_string().contains("job-own"), "{seen:#}");
    world.embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn granted_and_revoked_rights_take_effect_within_seconds() {
    let world = preempting().await;
    let blue = world.user("blue");
    assert_eq!(marks(&world.explained(&blue, "wants").await), set(&[]));
    world.bind("blue", "team-green", "kueue-workload-viewer-role").await;
    world.clock.sleep(Duration::from_secs(10)).await;
    let [seen, whole] = [world.explained(&blue, "wants").await, world.explained(&world.admin, "wants").await];
    assert_eq!(seen, whole, "it may read them all");
    let path = "/apis/rbac.authorization.k8s.io/v1/namespaces/team-green/rolebindings/blue-kueue-workload-viewer-role";
    let _: Value = world.admin.request(Request::delete(path).body(Vec::new()).expect("a request")).await.expect("gone");
    world.clock.sleep(Duration::from_secs(10)).await;
    assert_eq!(marks(&world.explained(&blue, "wants").await), set(&[]));
    world.embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn names_are_withheld_with_the_reason_when_access_reviews_fail() {
    let world = preempting().await;
    world.reviews_fail.store(true, Ordering::SeqCst);
    for client in [&world.user("blue"), &world.admin] {
        let seen = world.explained(client, "wants").await;
        assert_eq!((marks(&seen), &seen["withheld"]["reason"]), (set(&[]), &json!("ReviewFailed")), "{seen:#}");
        let why = seen["withheld"]["message"].as_str().expect("a sentence");
        assert!(why.contains("403 Forbidden") && seen["text"].as_str().expect("a page").contains(why), "{seen:#}");
    }
    // A failed access review is not cached.
    world.reviews_fail.store(false, Ordering::SeqCst);
    assert_eq!(withheld(&world.explained(&world.admin, "wants").await), set(&[]));
    world.embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn shares_of_queues_are_shown_without_names_of_their_workloads() {
    let world = World::new(json!({"fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare"]}})).await;
    let policy = json!({"reclaimWithinCohort": "Any"});
    for (queue, namespace, local) in [("mine", "team-blue", "main"), ("theirs", "team-green", "green-main")] {
        world.queue(queue, json!({"preemption": policy, "resourceGroups": quota(&[("default", 1)])})).await;
        world.local_queue(namespace, local, queue).await;
    }
    world.queue("pool", json!({"resourceGroups": quota(&[("default", 6)])})).await;
    for at in 0..4 {
        world.job("team-green", &format!("green-{at}"), "green-main", "middle", 1).await;
        world.job("team-blue", &format!("own-{at}"), "main", "top", 1).await;
    }
    world.job("team-blue", "wants", "main", "top", 1).await;
    let whole = world.explained(&world.admin, "wants").await;
    let seen = world.explained(&world.user("blue"), "wants").await;
    assert!(whole["outlook"]["shares"].as_array().is_some_and(|shares| !shares.is_empty()), "{whole:#}");
    assert_eq!(seen["outlook"]["shares"], whole["outlook"]["shares"]);
    assert!(marks(&whole).contains("outlook.shortages[].holders[].workload.name"), "{whole:#}");
    assert_eq!(marks(&seen), set(&[]), "{seen:#}");
    let groups = seen["outlook"]["shortages"][0]["holdersWithheld"].clone();
    assert_eq!((&groups[0]["workloads"], &groups[0]["amount"]), (&json!(4), &json!("4")), "{groups}");
    world.embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn workloads_whose_pods_are_not_ready_are_counted() {
    let ready = json!({"waitForPodsReady": {"blockAdmission": true, "timeout": "1h"}});
    let world = World::new(ready).await;
    world.queue("shared", json!({"resourceGroups": quota(&[("default", 8)])})).await;
    world.local_queue("team-blue", "main", "shared").await;
    world.local_queue("team-green", "green-main", "shared").await;
    world.job("team-green", "green-one", "green-main", "middle", 1).await;
    world.job("team-blue", "wants", "main", "", 1).await;
    let whole = world.explained(&world.admin, "wants").await;
    let seen = world.explained(&world.user("blue"), "wants").await;
    let expected = set(&["outlook.unready[].name", "outlook.unready[].namespace", "text"]);
    assert_eq!(marks(&whole), expected, "{whole:#}");
    assert_eq!((marks(&seen), &seen["outlook"]["unreadyWithheld"]), (set(&[]), &json!(1)), "{seen:#}");
    let page = seen["text"].as_str().expect("a page");
    assert!(
        page.contains("Admission waits until the pods of these workloads are ready:\n  1 workload not named here\n"),
        "{page}"
    );
    world.embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn explanations_of_variants_withhold_the_same_names() {
    let world = World::new(json!({"featureGates": {"ConcurrentAdmission": true}})).await;
    world.create(kueue("ResourceFlavor", "", "spot", json!({}))).await;
    let spec = json!({"concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors"}},
        "resourceGroups": quota(&[("default", 1), ("spot", 1)])});
    world.queue("shared", spec).await;
    world.local_queue("team-blue", "main", "shared").await;
    world.local_queue("team-green", "green-main", "shared").await;
    for name in ["green-one", "green-two"] {
        world.job("team-green", name, "green-main", "middle", 1).await;
    }
    world.job("team-blue", "wants", "main", "", 1).await;
    let whole = world.explained(&world.admin, "wants").await;
    let seen = world.explained(&world.user("blue"), "wants").await;
    assert!(marks(&whole).contains("variants[].outlook.shortages[].holders[].workload.name"), "{whole:#}");
    assert_eq!(marks(&seen), set(&[]), "{seen:#}");
    assert!(withheld(&seen).contains("holdersWithheld"), "{seen:#}");
    world.embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_readable_resource_contains_names_of_another_tenants_workloads() {
    let world = preempting().await;
    // Green is preempted and blue runs, which writes events and conditions in both namespaces.
    let path = "/apis/batch/v1/namespaces/team-green/jobs/green-first?propagationPolicy=Background";
    let _: Value = world.admin.request(Request::delete(path).body(Vec::new()).expect("a request")).await.expect("gone");
    world.clock.sleep(Duration::from_secs(60)).await;
    let blue = world.user("blue");
    let mut read = Vec::new();
    for path in [
        "/api/v1/namespaces/team-blue/events",
        "/api/v1/namespaces/team-blue/pods",
        "/apis/batch/v1/namespaces/team-blue/jobs",
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-blue/workloads",
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/team-blue/localqueues",
        "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/team-blue/localqueues/main/pendingworkloads",
    ] {
        let answer = ask(&blue, path).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        read.extend(answer["items"].as_array().cloned().unwrap_or_default());
    }
    let preempted: Vec<&str> = read
        .iter()
        .filter(|it| it["reason"] == "PreemptedWorkload")
        .filter_map(|it| it["message"].as_str()?.split(" (UID: ").next())
        .collect();
    let (unnamed, named): (Vec<_>, Vec<_>) =
        preempted.into_iter().partition(|it| *it == "Preempted workload of another namespace");
    assert!(!unnamed.is_empty(), "{read:#?}");
    assert!(named.iter().all(|it| it.starts_with("Preempted workload team-blue/job-own-")), "{named:?}");
    for object in &read {
        assert_eq!(marks(object), set(&[]), "{object:#}");
    }
    // The other tenant's events contain UIDs of blue's objects, but no names.
    let hal = world.user("hal");
    let events = ask(&hal, "/api/v1/namespaces/team-green/events").await.expect("its own");
    assert!(events.to_string().contains("Preempted to accommodate a workload (UID: "), "{events:#}");
    assert!(!events.to_string().contains("team-blue") && !events.to_string().contains("job-wants"), "{events:#}");
    for path in [
        "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/shared/pendingworkloads",
        "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/team-green/localqueues/green-main/pendingworkloads",
        "/apis/explain.berth.dev/v1alpha1/clusterqueues/shared/holders",
        "/apis/explain.berth.dev/v1alpha1/namespaces/team-green/workloads/green-two/explanation",
        "/metrics",
    ] {
        let Err(kube::Error::Api(refused)) = ask(&blue, path).await else { panic!("{path} is answered") };
        assert_eq!(refused.code, 403, "{path}");
        assert!(!refused.message.contains("job-"), "{path}: {}", refused.message);
    }
    world.embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn holders_of_a_queue_are_named_for_users_that_may_list_them() {
    let world = preempting().await;
    let rbac = "rbac.authorization.k8s.io";
    let subjects = json!([{"apiGroup": rbac, "kind": "User", "name": "blue"}]);
    world.create(json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "blue"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "berth-holders-viewer-role"}, "subjects": subjects}))
        .await;
    let path = "/apis/explain.berth.dev/v1alpha1/clusterqueues/shared/holders";
    let whole = ask(&world.admin, path).await.expect("a response");
    assert_eq!((whole["items"].as_array().map(Vec::len), withheld(&whole)), (Some(2), set(&[])), "{whole:#}");
    assert!(marks(&whole).contains("items[].metadata.ownerReferences[].name"), "{whole:#}");
    let seen = ask(&world.user("blue"), path).await.expect("a response");
    assert_eq!((marks(&seen), &seen["total"]), (set(&[]), &json!(2)), "{seen:#}");
    assert_eq!(seen["items"].as_array().map(Vec::len), Some(1), "its own: {seen:#}");
    let expected = json!({"reason": "NotAllowed", "message": seen["withheld"]["message"], "workloads": 1,
        "holds": [{"flavor": "default", "resource": "cpu", "amount": "1"}]});
    assert_eq!(seen["withheld"], expected);
    world.embedded.stop().await;
}

/// Every request to the groups that the controllers serve, by their own lists of resources: method,
/// path, and namespace if it is about one.
async fn requests(admin: &Client) -> Vec<(Method, String, Option<&'static str>)> {
    let mut requests = Vec::new();
    for group in
        ["explain.berth.dev/v1alpha1", "visibility.kueue.x-k8s.io/v1beta1", "visibility.kueue.x-k8s.io/v1beta2"]
    {
        let served = ask(admin, &format!("/apis/{group}")).await.expect("a list of resources");
        for resource in served["resources"].as_array().expect("resources") {
            let name = resource["name"].as_str().expect("a name");
            let of = |namespace: &str| match name.split_once('/') {
                None => name.to_owned(),
                Some(("workloads", part)) if namespace == "team-blue" => format!("workloads/wants/{part}"),
                Some(("workloads", part)) => format!("workloads/green-two/{part}"),
                Some(("localqueues", part)) if namespace == "team-blue" => format!("localqueues/main/{part}"),
                Some(("localqueues", part)) => format!("localqueues/green-main/{part}"),
                Some(("clusterqueues", part)) => format!("clusterqueues/shared/{part}"),
                Some(_) => panic!("{name} is not known to this test"),
            };
            for verb in resource["verbs"].as_array().expect("verbs") {
                let method = if verb == "create" { Method::POST } else { Method::GET };
                if resource["namespaced"] == true {
                    for namespace in ["team-blue", "team-green"] {
                        let path = format!("/apis/{group}/namespaces/{namespace}/{}", of(namespace));
                        requests.push((method.clone(), path, Some(namespace)));
                    }
                }
                if !name.contains('/') || resource["namespaced"] == false {
                    requests.push((method, format!("/apis/{group}/{}", of("")), None));
                }
            }
        }
    }
    requests
}

#[tokio::test(start_paused = true)]
async fn no_resource_of_the_controllers_shows_a_tenant_anothers_workloads() {
    let world = preempting().await;
    let (blue, eve) = (world.user("blue"), world.user("eve"));
    let requests = requests(&world.admin).await;
    let paths: Vec<&str> = requests.iter().map(|(_, path, _)| path.as_str()).collect();
    for served in ["currentjobs", "forecasts", "gpus", "history", "holders", "stays", "usage", "whatifs"] {
        assert!(paths.iter().any(|path| path.ends_with(served)), "{served}: {paths:?}");
    }
    for (method, path, namespace) in &requests {
        let body = if method == Method::POST { b"{}".to_vec() } else { Vec::new() };
        let request = || Request::builder().method(method).uri(path).body(body.clone()).expect("a request");
        let refused = eve.request::<Value>(request()).await.err();
        assert!(matches!(&refused, Some(kube::Error::Api(status)) if status.code == 403), "{path} of eve: {refused:?}");
        match (blue.request::<Value>(request()).await, namespace) {
            (Ok(answer), Some("team-blue")) => assert_eq!(marks(&answer), set(&[]), "{path}: {answer:#}"),
            (Err(kube::Error::Api(status)), Some("team-blue")) => {
                assert!(status.code != 403 && !status.message.contains(NAME), "{path}: {status:?}");
            }
            (Err(kube::Error::Api(status)), _) => {
                assert_eq!(status.code, 403, "{path}: {status:?}");
                assert!(!status.message.contains("job-"), "{path}: {status:?}");
            }
            (answer, _) => panic!("{path}: {answer:?}"),
        }
    }
    world.embedded.stop().await;
}
