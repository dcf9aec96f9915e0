//! Usage, stays and histories: the sums of a run are those of its Workloads' own times, and a
//! reader sees only the namespaces whose workloads it may list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::berth::usage::{StayState, Stays, UsageReport, WorkloadHistory};
use berth_api::kueue::v1beta2::Workload;
use berth_apiserver::UserInfo;
use berth_embedded::{Embedded, Options};
use berth_runtime::Clock;
use futures::StreamExt;
use http::Request;
use jiff::Timestamp;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::visibility::create;

const TEAMS: [&str; 2] = ["team-a", "team-b"];
const BASE: &str = "/apis/explain.berth.dev/v1alpha1";

/// CPU seconds of a team: all, lost by preemption, and lost by failure.
type Seconds = BTreeMap<String, [i64; 3]>;

/// Sums the times that the conditions of Workloads show, as a watch reports them.
#[derive(Default)]
struct Observed {
    /// Start of use, CPUs and namespace of workloads that use quota, by UID.
    open: BTreeMap<String, (Timestamp, i64, String)>,
    sums: Seconds,
    admissions: u64,
}

impl Observed {
    fn see(&mut self, workload: &Workload, deleted_at: Option<Timestamp>) {
        let uid = workload.metadata.uid.clone().unwrap_or_default();
        let conditions = workload.status.iter().flat_map(|status| &status.conditions);
        let is_true: BTreeMap<&str, (Timestamp, &str)> = conditions
            .filter(|it| it.status == "True")
            .map(|it| (it.type_.as_str(), (it.last_transition_time.0, it.reason.as_str())))
            .collect();
        let evicted = is_true.get("Evicted").copied();
        let ended = is_true.get("Finished").copied().or(evicted).or(deleted_at.map(|at| (at, "")));
        if let Some((ended, reason)) = ended {
            let Some((since, cpus, namespace)) = self.open.remove(&uid) else { return };
            let seconds = cpus * (ended.as_second() - since.as_second());
            let [all, preempted, failed] = self.sums.entry(namespace).or_default();
            *all += seconds;
            *preempted += if reason == "Preempted" { seconds } else { 0 };
            *failed += if reason == "Failed" { seconds } else { 0 };
        } else if let Some((since, _)) = is_true.get("Admitted")
            && !self.open.contains_key(&uid)
        {
            let container = &workload.spec.pod_sets[0].template.spec.as_ref().expect("a pod").containers[0];
            let requests = container.resources.as_ref().and_then(|it| it.requests.as_ref()).expect("requests");
            let cpus: i64 = requests["cpu"].0.parse().expect("whole CPUs");
            self.admissions += 1;
            self.open.insert(uid, (*since, cpus, workload.namespace().unwrap_or_default()));
        }
    }
}

/// Watches the Workloads of all namespaces.
fn observe(client: Client, clock: Clock) -> Arc<Mutex<Observed>> {
    let observed = Arc::<Mutex<Observed>>::default();
    let seen = observed.clone();
    tokio::spawn(async move {
        let api: Api<Workload> = Api::all(client);
        let mut version = "0".to_owned();
        loop {
            let stream = api.watch(&WatchParams::default(), &version).await.expect("a watch");
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                let (workload, deleted) = match event.expect("an event") {
                    WatchEvent::Added(workload) | WatchEvent::Modified(workload) => (workload, false),
                    WatchEvent::Deleted(workload) => (workload, true),
                    WatchEvent::Error(_) => {
                        // The version is too old: begin with the present state.
                        version = "0".to_owned();
                        continue;
                    }
                    WatchEvent::Bookmark(_) => continue,
                };
                version = workload.resource_version().unwrap_or_default();
                let at = workload.metadata.deletion_timestamp.as_ref().map_or_else(|| clock.now(), |at| at.0);
                seen.lock().expect("no panic").see(&workload, deleted.then_some(at));
            }
        }
    });
    observed
}

async fn ask(client: &Client, path: &str) -> Result<Value, kube::Error> {
    client.request(Request::get(format!("{BASE}{path}")).body(Vec::new()).expect("a request")).await
}

fn kueue(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Two teams with 4 CPUs each, which they lend to each other and reclaim.
async fn two_teams() -> (Embedded, Clock, Client) {
    let clock = Clock::scaled("2026-01-05T09:00:00Z".parse().expect("a timestamp"), 1.0);
    let pools = json!({"nodePools": [{"name": "cpu", "machineType": "n2-standard-16", "initialNodes": 1, "minNodes": 1, "maxNodes": 1}]});
    let embedded = Embedded::start(Options::in_memory(clock.clone(), 1, Some(pools), None)).await.expect("a cluster");
    let client = embedded.admin_client();
    create(&client, kueue("ResourceFlavor", "default", json!({}))).await;
    let quota = json!([{"coveredResources": ["cpu"], "flavors": [
        {"name": "default", "resources": [{"name": "cpu", "nominalQuota": 4}]}]}]);
    for team in TEAMS {
        create(&client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})).await;
        let spec = json!({"cohortName": "all", "namespaceSelector": {}, "resourceGroups": quota,
            "preemption": {"reclaimWithinCohort": "Any"}});
        create(&client, kueue("ClusterQueue", team, spec)).await;
        let mut queue = kueue("LocalQueue", "main", json!({"clusterQueue": team}));
        queue["metadata"]["namespace"] = json!(team);
        create(&client, queue).await;
    }
    (embedded, clock, client)
}

fn job(team: &str, name: &str, cpus: u64, seconds: u64, exit_code: u64) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": "main"}},
        "spec": {"backoffLimit": 0, "template": {
            "metadata": {"annotations": {"berth.dev/run-duration": format!("{seconds}s"),
                "berth.dev/exit-code": exit_code.to_string()}},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [
                {"name": "c", "image": "busybox", "resources": {"requests": {"cpu": cpus.to_string()}}}]}}}})
}

/// CPU seconds per team of a report.
fn seconds_of(report: &UsageReport) -> Seconds {
    let whole = |hours: f64| (hours * 3600.0).round() as i64;
    let of_group = |used: &berth_api::berth::usage::ResourceUse| {
        [used.hours, used.lost_by_preemption, used.lost_by_failure].map(whole)
    };
    report.groups.iter().map(|group| (group.name.clone(), of_group(&group.used[0]))).collect()
}

#[tokio::test(start_paused = true)]
async fn the_sums_of_a_run_are_those_of_the_conditions_of_its_workloads() {
    let (embedded, clock, client) = two_teams().await;
    let observed = observe(client.clone(), clock.clone());
    let mut random = 7_u64;
    let mut below = move |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % bound
    };
    const JOBS: u64 = 40;
    for number in 0..JOBS {
        let team = TEAMS[below(2) as usize];
        let exit_code = u64::from(below(6) == 0);
        create(&client, job(team, &format!("job-{number}"), 1 + below(4), 30 + below(600), exit_code)).await;
        clock.sleep(Duration::from_secs(below(120))).await;
    }
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(client.clone(), TEAMS[1]);
    create(&client, job(TEAMS[1], "deleted", 1, 100_000, 0)).await;
    clock.sleep(Duration::from_secs(3 * 3600)).await;
    // A stay that goes on counts up to now.
    let until = clock.now();
    let running: UsageReport = serde_json::from_value(ask(&client, "/usage?by=team").await.expect("a report")).unwrap();
    let open = observed.lock().expect("no panic").open.clone();
    assert_eq!(open.len(), 1, "all other jobs have ended: {open:?}");
    let mut expected = observed.lock().expect("no panic").sums.clone();
    for (since, cpus, namespace) in open.values() {
        expected.entry(namespace.clone()).or_default()[0] += cpus * (until.as_second() - since.as_second());
    }
    assert_eq!(seconds_of(&running), expected);

    jobs.delete("deleted", &kube::api::DeleteParams::background()).await.expect("deleted");
    clock.sleep(Duration::from_secs(60)).await;
    let report = ask(&client, "/usage?by=team").await.expect("a report");
    let report: UsageReport = serde_json::from_value(report).expect("a report");
    {
        let observed = observed.lock().expect("no panic");
        assert!(observed.open.is_empty(), "{:?}", observed.open);
        assert_eq!(seconds_of(&report), observed.sums);
        let [_, preempted, failed] =
            observed.sums.values().fold([0; 3], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]]);
        assert!(preempted > 0 && failed > 0, "the run has no preemption or no failure: {:?}", observed.sums);
        assert_eq!(report.total.wait.admissions, observed.admissions);
    }
    assert_eq!((report.total.jobs, &report.withheld), (JOBS + 1, &None));
    let quota: Vec<_> = report.groups.iter().map(|group| group.used[0].quota_hours.expect("a quota")).collect();
    let length = (clock.now().as_second() - "2026-01-05T09:00:00Z".parse::<Timestamp>().unwrap().as_second()) as f64;
    assert!(quota.iter().all(|hours| (hours * 3600.0 - 4.0 * length).abs() < 60.0), "{quota:?} of {length} s");

    // Parts of the period add up, and groupings agree.
    let middle = "2026-01-05T09:33:20Z";
    let mut parts = Seconds::new();
    for part in [format!("since=2026-01-05T00:00:00Z&until={middle}"), format!("since={middle}")] {
        let part = ask(&client, &format!("/usage?{part}")).await.expect("a part");
        for (team, more) in seconds_of(&serde_json::from_value(part).expect("a report")) {
            let sums = parts.entry(team).or_default();
            *sums = [sums[0] + more[0], sums[1] + more[1], sums[2] + more[2]];
        }
    }
    assert_eq!(parts, seconds_of(&report));
    let by_queue = ask(&client, "/usage?by=queue").await.expect("a report");
    assert_eq!(seconds_of(&serde_json::from_value(by_queue).expect("a report")), seconds_of(&report));

    // Each stay that succeeded lasted as long as its pod ran, and a little longer.
    let stays: Stays = serde_json::from_value(ask(&client, "/stays").await.expect("stays")).expect("stays");
    let succeeded = stays.items.iter().filter(|stay| stay.state == StayState::Succeeded);
    for stay in succeeded {
        let name = &stay.job.as_ref().expect("a job").name;
        let api: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(client.clone(), &stay.workload.namespace);
        let ran = api.get(name).await.expect("the job").spec.expect("a spec").template.metadata.expect("metadata");
        let ran = ran.annotations.expect("annotations")["berth.dev/run-duration"].trim_end_matches('s').to_owned();
        let ran: i64 = ran.parse().expect("seconds");
        let used = stay.ended.as_ref().unwrap().0.as_second() - stay.admitted.as_ref().unwrap().0.as_second();
        assert!((ran..ran + 60).contains(&used), "{name} ran {ran} s and used its quota for {used} s");
    }
    let count = |state: StayState| stays.items.iter().filter(|stay| stay.state == state).count() as u64;
    assert_eq!((count(StayState::Preempted), count(StayState::Deleted)), (report.total.preemptions, 1));
    embedded.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_sees_the_stays_of_namespaces_whose_workloads_it_may_list() {
    let (embedded, clock, client) = two_teams().await;
    create(&client, job("team-a", "borrows", 8, 3600, 0)).await;
    clock.sleep(Duration::from_secs(120)).await;
    create(&client, job("team-b", "reclaims", 4, 3600, 0)).await;
    clock.sleep(Duration::from_secs(120)).await;

    let rbac = "rbac.authorization.k8s.io";
    let role = |name: &str, rules: Value| json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let explain = json!([
        {"apiGroups": ["explain.berth.dev"], "resources": ["workloads/history"], "verbs": ["get"]},
        {"apiGroups": ["explain.berth.dev"], "resources": ["stays", "usage"], "verbs": ["list"]}]);
    create(&client, role("uses", explain)).await;
    let list = json!([{"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads"], "verbs": ["list"]}]);
    create(&client, role("lists", list)).await;
    let bind = |kind: &str, namespace: &str, role: &str, user: &str| {
        let mut binding = json!({"apiVersion": format!("{rbac}/v1"), "kind": kind,
            "metadata": {"name": format!("{user}-{role}")},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": user}]});
        if !namespace.is_empty() {
            binding["metadata"]["namespace"] = json!(namespace);
        }
        binding
    };
    create(&client, bind("ClusterRoleBinding", "", "uses", "wide")).await;
    create(&client, bind("RoleBinding", "team-a", "lists", "wide")).await;
    create(&client, bind("RoleBinding", "team-a", "uses", "narrow")).await;
    create(&client, bind("RoleBinding", "team-a", "lists", "narrow")).await;
    let user = |name: &str| Client::new(embedded.server().in_process(UserInfo::new(name, &[])), "default");
    let code = |answer: Result<Value, kube::Error>| match answer {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    };

    let whole = ask(&client, "/usage").await.expect("a report");
    assert_eq!(whole["groups"].as_array().map(Vec::len), Some(2), "{whole:#}");
    let wide = ask(&user("wide"), "/usage").await.expect("a report");
    assert_eq!(wide["groups"], json!([whole["groups"][0]]), "{wide:#}");
    assert_eq!((&wide["withheld"]["stays"], &wide["withheld"]["reason"]), (&json!(1), &json!("NotAllowed")));
    assert_eq!(wide["total"]["used"][0]["hours"], wide["groups"][0]["used"][0]["hours"]);
    let stays = ask(&user("wide"), "/stays").await.expect("stays");
    assert!(!stays.to_string().contains("team-b") && stays["withheld"]["stays"] == 1, "{stays:#}");

    let narrow = user("narrow");
    assert_eq!(code(ask(&narrow, "/usage").await), 403);
    assert_eq!(code(ask(&narrow, "/namespaces/team-b/stays").await), 403);
    let own = ask(&narrow, "/namespaces/team-a/usage?by=user").await.expect("a report");
    assert_eq!(own["groups"][0]["name"], "berth:admin", "{own:#}");
    assert_eq!((&own["total"]["jobs"], &own["withheld"]), (&json!(1), &Value::Null), "{own:#}");
    for (query, wanted) in [
        ("by=gpu", "by: "),
        ("since=x", "since: "),
        ("until=2020-01-01T00:00:00Z&since=2021-01-01T00:00:00Z", "since: "),
    ] {
        let error = ask(&client, &format!("/usage?{query}")).await.expect_err("a bad request").to_string();
        assert!(error.contains(wanted), "{query}: {error}");
    }
    assert_eq!(code(ask(&client, "/stays?limit=x").await), 400);

    // The preemption as the tenant may see it, and as the administrator sees it.
    let path = "/namespaces/team-a/workloads/borrows/history";
    let read = |value: Value| serde_json::from_value::<WorkloadHistory>(value).expect("a history");
    let seen = read(ask(&narrow, path).await.expect("a history"));
    assert!(!format!("{seen:?}").contains("reclaims") && seen.withheld.is_some(), "{seen:#?}");
    let history = read(ask(&client, path).await.expect("a history"));
    let states: Vec<StayState> = history.stays.iter().map(|stay| stay.state).collect();
    assert_eq!(states, [StayState::Preempted, StayState::Waiting]);
    assert!(history.text.contains("Preempted") && history.text.contains("reclaims"), "{}", history.text);
    let why = berth_controllers::usage::history::why_preempted(&history).expect("a preemption");
    assert!(why.contains("Rule: ") && why.contains("Candidates: "), "{why}");
    assert_eq!(code(ask(&client, "/namespaces/team-a/workloads/none/history").await), 404);

    // A deleted workload keeps its history.
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(client.clone(), "team-a");
    jobs.delete("borrows", &kube::api::DeleteParams::background()).await.expect("deleted");
    clock.sleep(Duration::from_secs(30)).await;
    let history = read(ask(&client, path).await.expect("a history"));
    assert_eq!(history.stays.last().map(|stay| stay.state), Some(StayState::Deleted), "{history:#?}");
    embedded.stop().await;
}
