//! The quickstart with the real kubectl: each command of the README and its output.

use berth_testing::has_kubectl;

use crate::cluster::{Cluster, file};

#[test]
fn a_newcomer_follows_the_quickstart() {
    if !has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&["--time-scale", "20"]);
    // The jobs of the README's first step are unchanged: they run for three real minutes here, so
    // that none ends while a busy machine still looks at the one that waits.
    let jobs = file("examples/quickstart/blue-jobs.yaml");
    // The job that preempts one of them takes a twelfth of the README's time.
    let folder = tempfile::tempdir().expect("a temporary folder");
    let urgent = std::fs::read_to_string(file("examples/quickstart/green-job.yaml")).expect("an example");
    let shorter = urgent.replace("\"600\"", "\"50\"");
    assert_ne!(shorter, urgent, "green-job.yaml does not contain 600 seconds");
    let green = folder.path().join("green-job.yaml");
    std::fs::write(&green, shorter).expect("a copy");
    let queues = file("examples/quickstart/queues.yaml");

    assert!(cluster.refused(&["get", "namespace", "team-blue"]).contains("NotFound"));
    cluster.run(&["apply", "-f", &queues]);
    cluster.run(&["apply", "--dry-run=server", "-f", &jobs]);
    assert!(cluster.run(&["get", "jobs", "-A", "-o", "name"]).trim().is_empty(), "a dry run created a job");
    cluster.run(&["apply", "-f", &jobs]);
    let two_admitted_one_waits = |cluster: &Cluster| {
        let table = cluster.run(&["get", "clusterqueues", "-o", "wide"]);
        table
            .lines()
            .any(|line| line.split_whitespace().collect::<Vec<_>>() == ["blue", "research", "BestEffortFIFO", "1", "2"])
    };
    cluster.wait_until("two jobs to be admitted and one to wait", 30, two_admitted_one_waits);
    let header = cluster.run(&["get", "clusterqueues", "-o", "wide"]);
    let columns: Vec<&str> =
        header.lines().next().unwrap_or_default().split("   ").map(str::trim).filter(|c| !c.is_empty()).collect();
    assert_eq!(columns, ["NAME", "COHORT", "STRATEGY", "PENDING WORKLOADS", "ADMITTED WORKLOADS"]);

    // The reason of the waiting workload. Which of the jobs waits depends on the order in which the
    // controllers create their workloads.
    let workloads = cluster.get(&["workloads", "-n", "team-blue"]);
    let waiting = workloads["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|workload| workload["status"]["admission"].is_null())
        .and_then(|workload| workload["metadata"]["name"].as_str())
        .expect("one workload has no quota")
        .to_owned();
    // The conditions of waiting workloads are written after the counts of the queue.
    cluster.wait_until("the reason of the waiting workload", 10, |cluster| {
        let described = cluster.run(&["describe", "workload", &waiting, "-n", "team-blue"]);
        described.contains("insufficient unused quota for cpu in flavor default, 4 more needed")
    });

    // The owner of the quota reclaims it.
    cluster.run(&["apply", "-f", &green.display().to_string()]);
    cluster.wait_until("the green job to evict a blue one", 30, |cluster| {
        cluster.run(&["get", "events", "-n", "team-blue"]).contains("Preempted")
    });
    cluster.run(&["wait", "--for=condition=Complete", "job/urgent", "-n", "team-green", "--timeout=120s"]);
    cluster.wait_until("the evicted job to be admitted again", 30, two_admitted_one_waits);

    // Other everyday commands.
    let pod = cluster.run(&["get", "pods", "-n", "team-green", "-o", "name"]);
    let pod = pod.lines().next().expect("the green job had pods");
    cluster.run(&["logs", pod, "-n", "team-green"]);
    let log = cluster.run(&["logs", pod, "-n", "team-green", "--timestamps", "--tail=1"]);
    assert!(log.split(' ').next().is_some_and(|word| word.ends_with('Z') && word.contains('T')), "{log}");
    assert_eq!(cluster.run(&["logs", pod, "-n", "team-green", "--since-time=2100-01-01T00:00:00Z"]), "");
    let refused = cluster.refused(&["logs", pod, "-n", "team-green", "--previous"]);
    assert!(refused.contains("previous terminated container"), "{refused}");
    // Kinds of an aggregated API server are found as in any cluster.
    assert!(cluster.run(&["api-versions"]).contains("visibility.kueue.x-k8s.io/v1beta2"));
    let waiting = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/blue/pendingworkloads";
    assert!(cluster.run(&["get", "--raw", waiting]).contains("PendingWorkloadsSummary"));
    assert!(cluster.run(&["get", "clusterqueues", "-o", "name"]).contains("clusterqueue.kueue.x-k8s.io/blue"));
    cluster.run(&["label", "namespace", "team-blue", "cost-center=42"]);
    assert!(cluster.run(&["get", "ns", "-l", "cost-center=42", "-o", "name"]).contains("namespace/team-blue"));
    cluster.run(&[
        "patch",
        "clusterqueue",
        "blue",
        "--type=merge",
        "-p",
        r#"{"spec":{"preemption":{"reclaimWithinCohort":"Never"}}}"#,
    ]);
    cluster.run(&["create", "configmap", "notes", "--from-literal=a=b"]);
    assert!(cluster.run(&["explain", "clusterqueue.spec.resourceGroups"]).contains("coveredResources"));
    assert!(cluster.run(&["api-resources"]).contains("clusterqueues"));
    assert!(cluster.run(&["get", "events", "-A"]).contains("QuotaReserved"));
    let diff = cluster.kubectl(&["diff", "-f", &queues]);
    assert_eq!(
        diff.status.code(),
        Some(1),
        "kubectl diff did not report the changed preemption policy: {}",
        String::from_utf8_lossy(&diff.stderr)
    );

    // Deletion of a job deletes its pods and its workload.
    cluster.run(&["delete", "-f", &jobs]);
    cluster.wait_until("pods and workloads to be collected", 30, |cluster| {
        cluster.run(&["get", "pods,workloads", "-n", "team-blue", "-o", "name"]).trim().is_empty()
    });
    cluster.interrupt();
}
