//! The GKE batch reference architecture with its own manifests and the real kubectl: one hour in
//! one minute.

use std::path::Path;

use berth_testing::{has_kubectl, shared};
use serde_json::Value;

use crate::cluster::{Cluster, file};

/// Does what the architecture's submit scripts do: substitutes two variables in the files and
/// applies them in order.
pub fn submit(cluster: &Cluster, root: &Path, folder: &str, infix: &str, work: &Path) {
    for index in 0..4 {
        for team in ["team-a", "team-b", "team-c", "team-d"] {
            let name = format!("{team}-{infix}-{index}.yaml");
            let text = std::fs::read_to_string(root.join(folder).join("workloads").join(team).join(&name))
                .expect("the recorded manifest can be read");
            let text = text.replace("$REGION", "us-central1").replace("$PROJECT_ID", "batch-dev");
            let path = work.join(&name);
            std::fs::write(&path, text).expect("the manifest can be written");
            cluster.run(&["apply", "-f", &path.display().to_string()]);
        }
    }
}

/// PENDING and ADMITTED of a ClusterQueue, as `kubectl get clusterqueues -o wide` prints them.
fn counts(cluster: &Cluster, queue: &str) -> Option<(u32, u32)> {
    let table = cluster.run(&["get", "clusterqueues", "-o", "wide"]);
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(queue))?.to_owned();
    let mut cells = line.split_whitespace().rev();
    let admitted = cells.next()?.parse().ok()?;
    Some((cells.next()?.parse().ok()?, admitted))
}

#[test]
fn the_reference_architecture_works_with_kubectl() {
    let Some(root) = shared("scenarios/gke-batch-refarch") else { return };
    if !has_kubectl() {
        return;
    }
    let work = tempfile::tempdir().expect("a temporary folder");
    // The jobs run longer than in the example, so that none ends while sixteen kubectl processes
    // submit the next ones.
    let configuration = std::fs::read_to_string(file("examples/gke-batch-refarch/cluster.yaml"))
        .expect("the example can be read")
        .replace("defaultDuration: 8m", "defaultDuration: 24m");
    let path = work.path().join("cluster.yaml");
    std::fs::write(&path, configuration).expect("the configuration can be written");
    let cluster = Cluster::ephemeral(&["--time-scale", "60", "--config", &path.display().to_string()]);
    for folder in ["platform/priorityclass", "platform/teams", "platform/kueue"] {
        cluster.run(&["apply", "-f", &root.join(folder).display().to_string()]);
    }
    cluster.run(&[
        "apply",
        "-f",
        &root.join("platform/monitoring/kueue-service-monitoring.yaml").display().to_string(),
    ]);
    assert_eq!(cluster.get(&["nodes"])["items"].as_array().map(Vec::len), Some(10));

    submit(&cluster, &root, "low_priority", "low-priority-job", work.path());
    for team in ["a", "b", "c", "d"] {
        let queue = format!("cq-team-{team}-lp");
        cluster.wait_until("four low-priority jobs of each team", 60, |c| counts(c, &queue) == Some((0, 4)));
    }
    submit(&cluster, &root, "high_priority", "high-priority-job", work.path());
    for team in ["a", "b", "c", "d"] {
        let queue = format!("cq-team-{team}-hp");
        cluster.wait_until("two high-priority jobs of each team", 60, |c| {
            counts(c, &queue).is_some_and(|(pending, admitted)| admitted == 2 && pending <= 2)
        });
    }
    let jobs = cluster.run(&["get", "jobs", "-A"]);
    assert_eq!(jobs.lines().count(), 33, "{jobs}");
    submit(&cluster, &root, "compact_placement", "compact-job", work.path());
    cluster.wait_until("the low- and high-priority jobs to complete", 600, |c| complete(c, "-priority-job-") == 32);

    submit(&cluster, &root, "jobset", "jobset", work.path());
    for team in ["a", "b", "c", "d"] {
        let queue = format!("cq-team-{team}-lp");
        cluster.wait_until("four JobSets of each team", 60, |c| counts(c, &queue) == Some((0, 4)));
    }
    for team in ["team-a", "team-b"] {
        cluster.run(&["create", "secret", "generic", "hf-secret", "--from-literal=hf_api_token=token", "-n", team]);
    }
    cluster.run(&["apply", "-f", &root.join("dws/kueue-dws-config.yaml").display().to_string()]);
    for team in ["team-a", "team-b"] {
        let path = root.join(format!("dws/workloads/{team}/{team}-dws-job-0.yaml"));
        cluster.run(&["apply", "-f", &path.display().to_string()]);
    }
    cluster.wait_until("both queued jobs to get their capacity", 60, |c| {
        c.run(&["get", "nodes", "-o", "name"]).lines().filter(|node| node.contains("-dws-")).count() == 2
    });
    cluster.wait_until("all 66 jobs to complete", 600, |c| complete(c, "") == 66);
    cluster.wait_until("thirteen empty queues", 30, |c| {
        let table = c.run(&["get", "clusterqueues", "-o", "wide"]);
        table.lines().skip(1).filter(|line| line.split_whitespace().rev().take(2).eq(["0", "0"])).count() == 13
    });
    cluster.wait_until("ten nodes again", 120, |cluster| {
        cluster.get(&["nodes"])["items"].as_array().map(Vec::len) == Some(10)
    });
}

/// Number of complete jobs whose name contains a string.
pub fn complete(cluster: &Cluster, text: &str) -> usize {
    let jobs = cluster.get(&["jobs", "-A"]);
    let items = jobs["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_complete = |job: &&Value| {
        let conditions = job["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        job["metadata"]["name"].as_str().is_some_and(|name| name.contains(text))
            && conditions.iter().any(|c| c["type"] == "Complete" && c["status"] == "True")
    };
    items.iter().filter(is_complete).count()
}
