//! A real Prometheus scrapes `berth up` while it runs the GKE batch reference architecture: the
//! queries of our dashboards, of the scenario's, and of other projects' return data.

mod server;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use berth_testing::{has_kubectl, shared, skip};
use serde_json::Value;

use crate::cluster::{Cluster, file, pause};
use crate::refarch::submit;
use server::Prometheus;

/// Time until every query has returned data.
const LIMIT: Duration = Duration::from_secs(120);
/// Time between two rounds of queries.
const ROUND: Duration = Duration::from_millis(500);

/// True if Debian's package `prometheus` is installed. Skips the running test otherwise.
fn has_prometheus() -> bool {
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok_and(|it| it.status.success());
    let is_installed = runs("prometheus") && runs("promtool");
    if !is_installed {
        skip("prometheus and promtool are not installed");
    }
    is_installed
}

/// The queries of a dashboard's panels and variables, with values for its variables.
fn queries(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a dashboard can be read");
    let mut dashboard: Value = serde_json::from_str(&text).expect("a dashboard is JSON");
    if dashboard["dashboard"].is_object() {
        dashboard = dashboard["dashboard"].take();
    }
    let mut found = Vec::new();
    let variables: Vec<&Value> = dashboard["templating"]["list"].as_array().into_iter().flatten().collect();
    for variable in &variables {
        let definition = variable["definition"].as_str().unwrap_or_default();
        if let Some((metric, label)) = definition.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(',')) {
            found.push(format!("{metric}{{{}!=\"\"}}", label.trim().trim_end_matches(')')));
        }
    }
    collect(&dashboard["panels"], &mut found);
    let names = variables.iter().filter_map(|variable| variable["name"].as_str());
    for name in names {
        for query in &mut found {
            *query = query.replace(&format!("${name}"), ".*").replace(&format!("${{{name}}}"), ".*");
        }
    }
    let known = |query: String| query.replace("$__rate_interval", "30s").replace("$__range", "5m");
    found.into_iter().map(known).collect()
}

fn collect(panels: &Value, found: &mut Vec<String>) {
    for panel in panels.as_array().into_iter().flatten() {
        let targets = panel["targets"].as_array().into_iter().flatten();
        found.extend(targets.filter_map(|target| target["expr"].as_str().map(str::to_owned)));
        collect(&panel["panels"], found);
    }
}

/// Waits until every query has returned data once.
fn wait_for_data(prometheus: &Prometheus, mut missing: BTreeSet<String>) {
    for _ in 0..LIMIT.as_millis() / ROUND.as_millis() {
        missing.retain(|query| {
            let samples = prometheus.query(query);
            samples.unwrap_or_else(|| panic!("Prometheus refuses {query}")).is_empty()
        });
        if missing.is_empty() {
            return;
        }
        pause(ROUND);
    }
    panic!("no data: {missing:#?}");
}

/// A cluster with the scenario's platform, whose reserved nodes have health agents. The first of
/// them has faults.
fn cluster(root: &Path, work: &Path) -> Cluster {
    let configuration = std::fs::read_to_string(file("examples/gke-batch-refarch/cluster.yaml"))
        .expect("the example can be read")
        .replace("defaultDuration: 8m", "defaultDuration: 40m")
        + "  operators:\n    autopilot: {repeat: 10m}\n";
    let kueue = "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n\
                 metrics: {enableClusterQueueResources: true}\n";
    let paths = [("cluster.yaml", configuration.as_str()), ("kueue.yaml", kueue)].map(|(name, text)| {
        let path = work.join(name);
        std::fs::write(&path, text).expect("a configuration can be written");
        path.display().to_string()
    });
    let cluster = Cluster::ephemeral(&["--time-scale", "60", "--config", &paths[0], "--controller-config", &paths[1]]);
    for folder in ["platform/priorityclass", "platform/teams", "platform/kueue"] {
        cluster.run(&["apply", "-f", &root.join(folder).display().to_string()]);
    }
    let of_pool = |pool: &str| {
        let nodes =
            cluster.run(&["get", "nodes", "-o", "name", "-l", &format!("cloud.google.com/gke-nodepool={pool}")]);
        nodes.lines().next().expect("a node").to_owned()
    };
    let faults = r#"berth.dev/faults={"pciebw":{"0":2.1},"remapped":[1],"gpupower":[0]}"#;
    cluster.run(&["annotate", &of_pool("reserved-np"), faults]);
    // Agents run on nodes with this label; the first check finds the faults.
    let reserved = "cloud.google.com/gke-nodepool=reserved-np";
    cluster.run(&["label", "nodes", "-l", reserved, "nvidia.com/gpu.present=true"]);
    // This node has no agent, which would replace the label.
    cluster.run(&["label", &of_pool("default-pool"), "autopilot.ibm.com/gpuhealth=ERR"]);
    cluster
}

#[test]
fn every_panel_of_the_dashboards_has_data_in_a_real_prometheus() {
    let Some(root) = shared("scenarios/gke-batch-refarch") else { return };
    if !has_kubectl() || !has_prometheus() {
        return;
    }
    let work = tempfile::tempdir().expect("a temporary folder");
    let cluster = cluster(&root, work.path());
    let prometheus = Prometheus::start(&cluster);
    let mut all = BTreeSet::from(["up == 1".to_owned()]);
    let ours = std::fs::read_dir(file("deploy/grafana")).expect("our dashboards");
    let mut paths: Vec<_> = ours.map(|entry| entry.expect("a file").path()).collect();
    assert!(paths.len() >= 4, "{paths:?}");
    paths.push(root.join("platform/monitoring/kueue-dashboard.json"));
    for path in &paths {
        let queries = queries(path);
        assert!(queries.len() >= 8, "{}: {queries:?}", path.display());
        all.extend(queries);
    }
    let mut valid = Vec::new();
    for line in include_str!("queries.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(' ').expect("a kind and a query") {
            ("data", query) => {
                all.insert(query.to_owned());
            }
            ("valid", query) => valid.push(query),
            (kind, _) => panic!("{kind}: expected data or valid"),
        }
    }
    // Some panels are about GPUs that no pod holds: all, before the jobs.
    wait_for_data(&prometheus, BTreeSet::from(["DCGM_FI_DEV_GPU_UTIL".to_owned()]));
    all.retain(|query| prometheus.query(query).unwrap_or_else(|| panic!("Prometheus refuses {query}")).is_empty());
    submit(&cluster, &root, "low_priority", "low-priority-job", work.path());
    submit(&cluster, &root, "high_priority", "high-priority-job", work.path());
    pending_workloads_have_a_table(&cluster);
    wait_for_data(&prometheus, all);
    for query in valid {
        assert!(prometheus.query(query).is_some(), "{query}");
    }
    rules_are_evaluated(&prometheus);
    exemplars_name_workloads(&prometheus);
}

fn rules_are_evaluated(prometheus: &Prometheus) {
    let data = prometheus.api("rules").expect("rules");
    let groups = data["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
    let firing = prometheus.query(r#"ALERTS{alertname="BerthGPUMemoryError",alertstate="firing"}"#);
    assert_eq!(firing, Some(vec![1.0]), "one GPU cannot replace a row");
}

fn exemplars_name_workloads(prometheus: &Prometheus) {
    let path = "query_exemplars?query=kueue_admission_wait_time_seconds_bucket&start=0&end=4000000000";
    let data = prometheus.api(path).expect("exemplars");
    let all: Vec<&Value> =
        data.as_array().into_iter().flatten().flat_map(|it| it["exemplars"].as_array()).flatten().collect();
    let names = |it: &&&Value| it["labels"]["workload"].as_str().is_some_and(|name| name.starts_with("job-team-"));
    assert!(all.iter().any(|it| names(&it)), "{data}");
}

/// Kueue's own dashboards read pending workloads from the API.
fn pending_workloads_have_a_table(cluster: &Cluster) {
    let Some(folder) = shared("scenarios/upstream-samples/kueue/site/static/examples/visibility") else { return };
    cluster.wait_until("a high-priority job to wait", 30, |cluster| {
        cluster.get(&["clusterqueue", "cq-team-a-hp"])["status"]["pendingWorkloads"] == 2
    });
    let values = [("${namespace}", "team-a"), ("${local_queue}", "lq-team-a-hp"), ("$cluster_queue", "cq-team-a-hp")];
    for of in ["cluster", "local"] {
        let path = folder.join(format!("pending-workloads-for-{of}-queue-visibility-dashboard.json"));
        let text = std::fs::read_to_string(path).expect("Kueue's dashboard");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        let target = &dashboard["panels"][0]["targets"][0];
        let mut url = target["url"].as_str().expect("a URL").replace("https://kubernetes.default.svc", "");
        for (variable, value) in values {
            url = url.replace(variable, value);
        }
        let answer: Value = serde_json::from_str(&cluster.run(&["get", "--raw", &url])).expect("JSON");
        let rows = answer[target["root_selector"].as_str().expect("a selector")].as_array().expect("rows");
        assert!(!rows.is_empty(), "{url}: {answer}");
        for column in target["columns"].as_array().into_iter().flatten() {
            let selector = column["selector"].as_str().expect("a selector");
            let pointer = format!("/{}", selector.replace('.', "/"));
            assert!(rows[0].pointer(&pointer).is_some(), "{selector}: {}", rows[0]);
        }
    }
}

#[test]
fn alerts_fire_for_the_series_they_are_about() {
    if !has_prometheus() {
        return;
    }
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "rules-test.yaml"]] {
        let mut command = Command::new("promtool");
        let output = command.args(arguments).current_dir(file("deploy/prometheus")).output().expect("promtool runs");
        let text = [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).concat();
        assert!(output.status.success(), "promtool {arguments:?}: {text}");
    }
}
