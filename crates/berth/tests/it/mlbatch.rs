//! MLBatch's tutorial with its own manifests and the real kubectl, as alice and bob. The scenario
//! `tests/scenarios/mlbatch.yaml` checks each outcome in virtual time; this test checks the path
//! of a user.

use std::path::{Path, PathBuf};

use berth_testing::{has_kubectl, shared};
use serde_json::Value;

use crate::cluster::{Cluster, file};

struct Tutorial {
    cluster: Cluster,
    root: PathBuf,
}

impl Tutorial {
    /// Sets the cluster up as the tutorial's administrator does.
    fn start(root: &Path) -> Self {
        let configuration = root.join("setup.k8s/kueue/controller_manager_config.yaml").display().to_string();
        let arguments = [
            "--time-scale",
            "5",
            "--config",
            &file("examples/mlbatch/cluster.yaml"),
            "--controller-config",
            &configuration,
        ];
        let tutorial = Self { cluster: Cluster::ephemeral(&arguments), root: root.to_owned() };
        for path in [
            "setup.k8s/mlbatch-priorities.yaml",
            "setup.k8s/default-flavor.yaml",
            "setup.k8s/mlbatch-edit-role.yaml",
            "tutorial/clusterqueue-slack-cluster-queue.yaml",
        ] {
            tutorial.cluster.run(&["apply", "-f", &tutorial.path(path)]);
        }
        for (team, user) in [("blue", "alice"), ("red", "bob")] {
            tutorial.cluster.run(&["create", "ns", team]);
            tutorial.cluster.run(&["label", "namespace", team, "mlbatch-team-namespace=true"]);
            for path in [
                format!("tutorial/clusterqueue-{team}-cluster-queue.yaml"),
                format!("tutorial/localqueue-{team}-default-queue.yaml"),
                format!("tutorial/rolebinding-{user}.yaml"),
            ] {
                tutorial.cluster.run(&["apply", "-n", team, "-f", &tutorial.path(&path)]);
            }
        }
        let class = r#"{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": "nfs-client-pokprod"}, "provisioner": "berth.dev/local"}"#;
        let path = tutorial.cluster.kubeconfig.with_file_name("class.json");
        std::fs::write(&path, class).expect("the class can be written");
        tutorial.cluster.run(&["apply", "-f", &path.display().to_string()]);
        tutorial
    }

    fn path(&self, path: &str) -> String {
        self.root.join(path).display().to_string()
    }

    /// Creates a sample job several times.
    fn submit(&self, user: &str, namespace: &str, sample: &str, times: usize) {
        let path = self.path(&format!("setup.KubeConEU25/sample-jobs/{sample}.yaml"));
        let mut arguments = vec!["create", "--as", user, "-n", namespace];
        for _ in 0..times {
            arguments.extend(["-f", path.as_str()]);
        }
        let out = self.cluster.run(&arguments);
        assert_eq!(out.matches(" created").count(), times, "{out}");
    }

    /// Waits for the numbers of pending and admitted workloads of a team's queue.
    fn expect(&self, what: &str, team: &str, pending: u64, admitted: u64) {
        let queue = format!("{team}-cluster-queue");
        self.cluster.wait_until(what, 120, |cluster| {
            let status = &cluster.get(&["clusterqueue", &queue])["status"];
            status["pendingWorkloads"] == pending && status["admittedWorkloads"] == admitted
        });
    }

    fn phase(&self, name: &str, phase: &str) {
        self.cluster.wait_until(&format!("AppWrapper {name} to be {phase}"), 180, |cluster| {
            cluster.get(&["appwrapper", name, "-n", "blue", "--as", "alice"])["status"]["phase"] == phase
        });
    }

    fn delete_all(&self) {
        for (team, user) in [("blue", "alice"), ("red", "bob")] {
            self.cluster.run(&["delete", "appwrappers", "--all", "-n", team, "--as", user]);
            self.expect("all workloads to end", team, 0, 0);
            // Terminating pods still hold GPUs.
            self.cluster.wait_until("all pods to be gone", 120, |cluster| {
                cluster.get(&["pods", "-n", team, "--as", user])["items"].as_array().is_some_and(Vec::is_empty)
            });
        }
    }

    /// The pods of namespace blue, with their nodes.
    fn pods(&self) -> Vec<(String, String)> {
        let pods = self.cluster.get(&["pods", "-n", "blue", "--as", "alice"]);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let running = pods["items"].as_array().into_iter().flatten().filter(|pod| pod["status"]["phase"] == "Running");
        running.map(|pod| (text(&pod["metadata"]["uid"]), text(&pod["spec"]["nodeName"]))).collect()
    }
}

#[test]
fn the_tutorial_of_mlbatch_works_with_kubectl() {
    let Some(root) = shared("scenarios/mlbatch") else { return };
    if !has_kubectl() {
        return;
    }
    let tutorial = Tutorial::start(&root);
    tutorial.submit("alice", "blue", "short", 7);
    tutorial.expect("three admitted and four pending jobs", "blue", 4, 3);
    tutorial.expect("the queue to drain", "blue", 0, 0);

    tutorial.submit("alice", "blue", "normal", 4);
    tutorial.expect("the fourth job to wait", "blue", 1, 3);
    tutorial.submit("alice", "blue", "important", 1);
    tutorial.expect("a normal job to be put back", "blue", 2, 3);
    tutorial.submit("bob", "red", "normal", 2);
    tutorial.expect("red to get its own GPUs", "red", 1, 1);
    tutorial.expect("blue to return GPUs", "blue", 3, 2);
    tutorial.delete_all();

    faults(&tutorial);
    tutorial.delete_all();
    frameworks(&tutorial);
    tutorial.cluster.interrupt();
}

/// A job survives an unhealthy node.
fn faults(tutorial: &Tutorial) {
    tutorial.submit("alice", "blue", "large", 1);
    tutorial.cluster.wait_until("four pods", 60, |_| tutorial.pods().len() == 4);
    let before = tutorial.pods();
    // That the pods are packed on two nodes is tested in virtual time: here, the scheduler may not
    // have seen yet that the previous job's pods are gone.
    let node = before[0].1.clone();
    tutorial.cluster.run(&["label", "node", &node, "autopilot.ibm.com/gpuhealth=EVICT"]);
    tutorial.cluster.wait_until("four fresh pods on healthy nodes", 120, |_| {
        let pods = tutorial.pods();
        pods.len() == 4 && pods.iter().all(|(uid, on)| *on != node && before.iter().all(|(old, _)| old != uid))
    });
    tutorial.expect("the job to keep its quota", "blue", 0, 1);
    let limit = |cluster: &Cluster| {
        let queue = cluster.get(&["clusterqueue", "slack-cluster-queue"]);
        let resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"].clone();
        let gpus = resources.as_array().into_iter().flatten().find(|resource| resource["name"] == "nvidia.com/gpu");
        gpus.map(|gpus| gpus["lendingLimit"].clone()).unwrap_or_default()
    };
    tutorial.cluster.wait_until("no GPU of the slack queue to be lent", 30, |cluster| limit(cluster) == "0");
    tutorial.cluster.run(&["label", "node", &node, "autopilot.ibm.com/gpuhealth-"]);
    tutorial.cluster.wait_until("all GPUs of the slack queue to be lent", 30, |cluster| limit(cluster).is_null());
}

/// Batch inference, PyTorch and Ray.
fn frameworks(tutorial: &Tutorial) {
    let apply =
        |path: &str| tutorial.cluster.run(&["apply", "--as", "alice", "-n", "blue", "-f", &tutorial.path(path)]);
    apply("tutorial/persistentvolumeclaim-granite-3.2-8b-instruct.yaml");
    apply("tutorial/appwrapper-batch-inference.yaml");
    tutorial.expect("batch inference to be admitted", "blue", 0, 1);
    let wrapper = tutorial.cluster.get(&["appwrapper", "batch-inference", "-n", "blue", "--as", "alice"]);
    assert_eq!(wrapper["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "default-queue");
    assert_eq!(wrapper["metadata"]["labels"]["workload.codeflare.dev/user"], "alice");
    tutorial.phase("batch-inference", "Succeeded");

    apply("setup.KubeConEU25/sample-jobs/pytorch-training.yaml");
    tutorial.expect("the training to be admitted", "blue", 0, 1);
    tutorial.phase("pytorch-mnist-training", "Succeeded");

    apply("tutorial/persistentvolumeclaim-finetuning-pvc.yaml");
    apply("tutorial/appwrapper-ray.yaml");
    tutorial.expect("Ray to be admitted", "blue", 0, 1);
    tutorial.phase("ray-appwrapper", "Running");
    tutorial.cluster.wait_until("eight pods of Ray", 60, |_| tutorial.pods().len() == 8);
    tutorial.cluster.run(&["get", "service", "ray-head-svc", "-n", "blue", "--as", "alice"]);
    tutorial.delete_all();
}
