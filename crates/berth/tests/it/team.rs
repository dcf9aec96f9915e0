//! `berth team` against a cluster, and what the users of a team may do.

use std::path::Path;
use std::process::{Command, Output};

use berth_testing::{has_kubectl, shared};
use serde_json::{Value, json};

use crate::cluster::{Cluster, file};

/// Runs `berth team`.
fn team(cluster: &Cluster, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth"))
        .arg("team")
        .args(arguments)
        .env("KUBECONFIG", &cluster.kubeconfig)
        .output()
        .expect("berth runs")
}

fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = team(cluster, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "berth team {arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn failed(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = team(cluster, arguments);
    assert!(!output.status.success(), "berth team {arguments:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The quota of a team of the tutorial.
const QUOTA: [&str; 8] = ["--gpus", "8", "--cpus", "224", "--memory", "2000G", "--pods", "100"];

fn create(name: &str, more: &[&str]) -> Vec<String> {
    [&["create", name], QUOTA.as_slice(), more].concat().into_iter().map(str::to_owned).collect()
}

fn created(cluster: &Cluster, name: &str, more: &[&str]) -> String {
    let arguments = create(name, more);
    done(cluster, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A cell of a table, by the row's first cell and the column.
fn cell(table: &str, row: &str, column: &str) -> String {
    let split = |line: &str| -> Vec<String> {
        line.split("   ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let mut lines = table.lines().map(split);
    let header = lines.next().expect("a header");
    let position = header.iter().position(|it| it == column).unwrap_or_else(|| panic!("no column {column}: {table}"));
    let found = lines.find(|cells| cells[0] == row).unwrap_or_else(|| panic!("no row {row}: {table}"));
    found[position].clone()
}

/// A Job of 8 GPUs in a queue of the team.
const JOB: &str = r#"{"apiVersion": "batch/v1", "kind": "Job",
    "metadata": {"generateName": "train-", "labels": {"kueue.x-k8s.io/queue-name": "default-queue"}},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "train",
        "resources": {"limits": {"nvidia.com/gpu": 8}}}]}}}}"#;

#[test]
fn a_team_is_created_listed_and_deleted() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&["--config", &file("examples/mlbatch/cluster.yaml")]);
    let out = created(&cluster, "blue", &["--user", "alice"]);
    let expected = [
        "clusterrole.rbac.authorization.k8s.io/mlbatch-edit created",
        "resourceflavor.kueue.x-k8s.io/default-flavor created",
        "namespace/blue created",
        "clusterqueue.kueue.x-k8s.io/blue-cluster-queue created",
        "localqueue.kueue.x-k8s.io/default-queue created",
        "rolebinding.rbac.authorization.k8s.io/alice created",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);

    // The same command changes nothing, and another user or quota is added.
    let again = created(&cluster, "blue", &["--user", "alice"]);
    assert!(again.lines().all(|line| line.ends_with("unchanged")), "{again}");
    let more = done(&cluster, &["create", "blue", "--user", "carol"]);
    assert!(more.contains("rolebinding.rbac.authorization.k8s.io/carol created"), "{more}");
    assert!(!more.contains("clusterqueue"), "{more}");
    let shares = done(&cluster, &["create", "red", "--gpus", "8", "--group", "reds"]);
    assert!(shares.contains("group:reds created"), "{shares}");
    let red = cluster.get(&["clusterqueue", "red-cluster-queue"]);
    let resources = &red["spec"]["resourceGroups"][0]["flavors"][0]["resources"];
    assert_eq!(resources[0]["name"], "cpu", "{resources}");
    assert_eq!(resources[0]["nominalQuota"], "224", "the quota of 8 of 24 GPUs is a third of the CPUs: {resources}");

    let job = cluster.kubeconfig.with_file_name("job.json");
    std::fs::write(&job, JOB).expect("the Job can be written");
    for _ in 0..4 {
        cluster.run(&["create", "-n", "blue", "-f", &job.display().to_string()]);
    }
    cluster.wait_until("blue to use its quota and that of red", 60, |cluster| {
        let table = done(cluster, &["list"]);
        (cell(&table, "blue", "NVIDIA.COM/GPU"), cell(&table, "blue", "PENDING")) == ("16/8".into(), "2".into())
    });
    let wide = done(&cluster, &["list", "blue", "-o", "wide"]);
    assert!(
        wide.lines().any(|line| line.contains("nvidia.com/gpu") && line.split_whitespace().nth(7) == Some("8")),
        "{wide}"
    );
    let listed: Value = serde_json::from_str(&done(&cluster, &["list", "red", "-o", "json"])).expect("JSON");
    assert_eq!(listed[0]["cohort"], "default-cohort");
    assert!(failed(&cluster, &["list", "green"]).contains("no team green: no namespace of this name has the label"));

    let refused = failed(&cluster, &["delete", "blue"]);
    assert!(refused.contains("namespace blue has 4 unfinished workloads (job-train-"), "{refused}");
    assert!(refused.contains("use --force to delete them with it"), "{refused}");
    assert!(done(&cluster, &["delete", "blue", "--force", "--dry-run"]).contains("namespace/blue deleted (dry run)"));
    let deleted = done(&cluster, &["delete", "blue", "--force"]);
    let lines: Vec<&str> = deleted.lines().collect();
    assert_eq!(
        lines[lines.len() - 2..],
        ["namespace/blue deleted", "clusterqueue.kueue.x-k8s.io/blue-cluster-queue deleted"]
    );
    assert!(cluster.refused(&["get", "namespace", "blue"]).contains("NotFound"));
    assert!(cluster.refused(&["get", "clusterqueue", "blue-cluster-queue"]).contains("NotFound"));
    assert!(failed(&cluster, &["delete", "blue"]).contains("there is no namespace and no ClusterQueue of this team"));
    done(&cluster, &["delete", "blue", "--ignore-not-found"]);
    cluster.interrupt();
}

#[test]
fn a_dry_run_prints_manifests_that_kubectl_applies() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&[]);
    let printed = created(&cluster, "blue", &["--user", "alice", "--dry-run"]);
    assert!(cluster.refused(&["get", "namespace", "blue"]).contains("NotFound"), "a dry run created the namespace");
    let manifests = cluster.kubeconfig.with_file_name("team.yaml");
    std::fs::write(&manifests, &printed).expect("the manifests can be written");
    cluster.run(&["apply", "--server-side", "-f", &manifests.display().to_string()]);
    let queue = cluster.get(&["localqueue", "default-queue", "-n", "blue"]);
    assert_eq!(queue["spec"]["clusterQueue"], "blue-cluster-queue");

    // Another manager's fields are not overwritten silently.
    let conflict = failed(&cluster, &["create", "blue", "--gpus", "16", "--cpus", "1", "--memory", "1Gi"]);
    assert!(conflict.contains("use --force-conflicts") && conflict.contains(".spec.resourceGroups"), "{conflict}");
    done(&cluster, &["create", "blue", "--gpus", "16", "--cpus", "1", "--memory", "1Gi", "--force-conflicts"]);

    // The server validates, and stores nothing.
    let invalid = failed(&cluster, &["create", "green", "--cpus", "1", "--cohort", "A", "--dry-run=server"]);
    assert!(invalid.contains("spec.cohortName"), "{invalid}");
    let valid = done(&cluster, &["create", "green", "--cpus", "1", "--dry-run=server", "-o", "name"]);
    assert!(valid.contains("clusterqueue.kueue.x-k8s.io/green-cluster-queue"), "{valid}");
    assert!(cluster.refused(&["get", "namespace", "green"]).contains("NotFound"));

    let missing = failed(&cluster, &["create", "green", "--quota", "a100:nvidia.com/gpu=8"]);
    assert!(missing.contains("ResourceFlavor a100: it does not exist (there are default-flavor)"), "{missing}");
    let unknown = failed(&cluster, &["create", "green", "--gpus", "8"]);
    assert!(unknown.contains("add --cpus QUANTITY"), "{unknown}");
    assert!(failed(&cluster, &["create", "kube-system", "--cpus", "1"]).contains("belong to the cluster"));
    assert!(failed(&cluster, &["delete", "default"]).contains("belong to the cluster"));
    cluster.run(&["create", "namespace", "plain"]);
    assert!(failed(&cluster, &["delete", "plain"]).contains("metadata.labels has no mlbatch-team-namespace=true"));
    cluster.interrupt();
}

/// Requests of alice, who has a RoleBinding in namespace blue only: verb, group, resource with its
/// subresource, name, namespace, and whether the request is allowed.
const ACCESS: &[(&str, &str, &str, &str, &str, bool)] = &[
    ("create", "workload.codeflare.dev", "appwrappers", "", "blue", true),
    ("create", "workload.codeflare.dev", "appwrappers", "", "red", false),
    ("create", "", "pods", "", "blue", false),
    ("create", "batch", "jobs", "", "blue", false),
    ("create", "apps", "deployments", "", "blue", false),
    ("create", "apps", "statefulsets", "", "blue", false),
    ("create", "jobset.x-k8s.io", "jobsets", "", "blue", false),
    ("delete", "", "pods", "", "blue", true),
    ("get", "", "pods", "", "blue", true),
    ("list", "", "pods", "", "blue", true),
    ("watch", "", "pods", "", "blue", true),
    ("get", "", "pods/log", "", "blue", true),
    ("create", "", "pods/exec", "", "blue", true),
    ("create", "", "pods/portforward", "", "blue", true),
    ("patch", "", "pods", "", "blue", false),
    ("create", "", "configmaps", "", "blue", true),
    ("create", "", "secrets", "", "blue", true),
    ("create", "", "services", "", "blue", true),
    ("create", "", "persistentvolumeclaims", "", "blue", true),
    ("create", "scheduling.x-k8s.io", "podgroups", "", "blue", true),
    ("get", "kueue.x-k8s.io", "localqueues", "", "blue", true),
    ("get", "kueue.x-k8s.io", "workloads", "", "blue", true),
    ("patch", "kueue.x-k8s.io", "workloads", "", "blue", false),
    ("get", "kueue.x-k8s.io", "clusterqueues", "", "", false),
    ("get", "kueue.x-k8s.io", "resourceflavors", "", "", false),
    ("get", "kueue.x-k8s.io", "cohorts", "", "", false),
    // A namespace is an object of itself: the RoleBinding in blue covers it.
    ("get", "", "namespaces", "blue", "blue", true),
    ("list", "", "namespaces", "", "", false),
    ("get", "", "nodes", "", "", false),
    ("patch", "workload.codeflare.dev", "appwrappers/status", "", "blue", false),
    ("update", "kueue.x-k8s.io", "clusterqueues", "red-cluster-queue", "", false),
];

/// Checks each row for alice, through the API server's own review.
fn check_access(cluster: &Cluster) {
    let reviews: Vec<Value> = ACCESS
        .iter()
        .map(|(verb, group, resource, name, namespace, _)| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {
                    "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
                    "namespace": namespace}},
            })
        })
        .collect();
    let path = cluster.kubeconfig.with_file_name("reviews.json");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": reviews});
    std::fs::write(&path, list.to_string()).expect("the reviews can be written");
    let path = path.display().to_string();
    let answers = cluster.run(&["create", "-f", &path, "--as", "alice", "-o", "jsonpath={.status.allowed} "]);
    let allowed: Vec<bool> = answers.split_whitespace().map(|answer| answer == "true").collect();
    assert_eq!(allowed.len(), ACCESS.len(), "{answers}");
    let wrong: Vec<_> = ACCESS.iter().zip(allowed).filter(|(row, allowed)| row.5 != *allowed).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The requests themselves, with the words of Kubernetes' rejections.
fn check_refusals(cluster: &Cluster) {
    let as_alice = |arguments: &[&str]| cluster.refused(&[arguments, &["--as", "alice"]].concat());
    let folder = cluster.kubeconfig.with_file_name("manifests");
    std::fs::create_dir_all(&folder).expect("a folder");
    let manifest = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("a manifest");
        path.display().to_string()
    };
    let job = manifest("job.json", JOB);
    let pod = manifest(
        "pod.json",
        r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "train"}]}}"#,
    );
    let wrapper = manifest(
        "wrapper.json",
        r#"{"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper",
        "metadata": {"name": "w"}, "spec": {"components": []}}"#,
    );
    for (arguments, expected) in [
        (
            ["create", "-f", job.as_str(), "-n", "blue"],
            r#"jobs.batch is forbidden: User "alice" cannot create resource "jobs" in API group "batch" in the namespace "blue""#,
        ),
        (
            ["create", "-f", pod.as_str(), "-n", "blue"],
            r#"pods is forbidden: User "alice" cannot create resource "pods" in API group "" in the namespace "blue""#,
        ),
        (
            ["create", "-f", wrapper.as_str(), "-n", "red"],
            r#"appwrappers.workload.codeflare.dev is forbidden: User "alice" cannot create resource "appwrappers" in API group "workload.codeflare.dev" in the namespace "red""#,
        ),
        (
            ["get", "clusterqueues", "blue-cluster-queue", "-n", "blue"],
            r#"clusterqueues.kueue.x-k8s.io "blue-cluster-queue" is forbidden: User "alice" cannot get resource "clusterqueues" in API group "kueue.x-k8s.io" at the cluster scope"#,
        ),
        (
            ["get", "nodes", "-o", "name", "--no-headers"],
            r#"nodes is forbidden: User "alice" cannot list resource "nodes" in API group "" at the cluster scope"#,
        ),
    ] {
        let refused = as_alice(&arguments);
        assert!(refused.contains("(Forbidden)") && refused.contains(expected), "kubectl {arguments:?}: {refused}");
    }
    cluster.run(&["create", "configmap", "notes", "-n", "blue", "--as", "alice"]);
    cluster.run(&["get", "localqueues,workloads,pods,events", "-n", "blue", "--as", "alice"]);
}

#[test]
fn users_of_a_team_may_what_the_role_allows() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&[]);
    created(&cluster, "blue", &["--user", "alice"]);
    created(&cluster, "red", &["--user", "bob"]);
    check_access(&cluster);
    check_refusals(&cluster);
    cluster.interrupt();
}

#[test]
fn the_manifests_of_the_tutorial_allow_the_same() {
    let Some(root) = shared("scenarios/mlbatch") else { return };
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&[]);
    let apply = |path: &str, more: &[&str]| {
        let path = root.join(path).display().to_string();
        cluster.run(&[&["apply", "-f", &path], more].concat());
    };
    for path in ["setup.k8s/default-flavor.yaml", "setup.k8s/mlbatch-edit-role.yaml", "tutorial/namespaces.yaml"] {
        apply(path, &[]);
    }
    for (team, user) in [("blue", "alice"), ("red", "bob")] {
        apply(&format!("tutorial/clusterqueue-{team}-cluster-queue.yaml"), &[]);
        apply(&format!("tutorial/localqueue-{team}-default-queue.yaml"), &["-n", team]);
        apply(&format!("tutorial/rolebinding-{user}.yaml"), &["-n", team]);
    }
    check_access(&cluster);
    check_refusals(&cluster);
    check_policy(&cluster, &root.join("history/setup.k8s-v1.30/admission-policy.yaml"));
    cluster.interrupt();
}

/// The policy of the tutorial's set-up for Kubernetes 1.30 rejects jobs without a queue.
fn check_policy(cluster: &Cluster, policy: &Path) {
    let job = |name: &str, metadata: &str| {
        let path = cluster.kubeconfig.with_file_name(format!("{name}.json"));
        let text = format!(
            r#"{{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {{"name": "{name}" {metadata}}},
            "spec": {{"pytorchReplicaSpecs": {{"Master": {{"replicas": 1, "template": {{"spec": {{"containers": [
                {{"name": "pytorch", "image": "train"}}]}}}}}}}}}}}}"#
        );
        std::fs::write(&path, text).expect("the job can be written");
        path.display().to_string()
    };
    cluster.run(&["apply", "-f", &policy.display().to_string()]);
    let without = job("without", "");
    let refused = cluster.refused(&["create", "-f", &without, "-n", "blue", "--as", "alice"]);
    let expected = "ValidatingAdmissionPolicy 'mlbatch-require-queue-name' with binding 'mlbatch-require-queue-name' \
                    denied request: All non-AppWrapper workloads must have a 'kueue.x-k8s.io/queue-name' label with \
                    non-empty value.";
    assert!(refused.contains(expected), "{refused}");
    cluster.run(&["create", "-f", &without, "-n", "default"]);
    let named = job("named", r#", "labels": {"kueue.x-k8s.io/queue-name": "default-queue"}"#);
    cluster.run(&["create", "-f", &named, "-n", "blue", "--as", "alice"]);
    let owner = r#""apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": "w", "uid": "1""#;
    let owned = job("owned", &format!(r#", "ownerReferences": [{{{owner}, "controller": true}}]"#));
    cluster.run(&["create", "--dry-run=server", "-f", &owned, "-n", "blue", "--as", "alice"]);
}
