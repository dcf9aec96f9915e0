//! Jobs of MLBatch's tutorial with real programs, in pods that run as processes of this machine: a
//! PyTorchJob in an AppWrapper, and batch inference with a server and a load generator in one pod.
//! Alice submits them to her team's queue. The GPUs are declared, because this machine may have
//! none.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use berth_testing::{shared, skip};
use serde_json::{Value, json};

use crate::cluster::{Cluster, file};
use crate::programs::has_isolation;

/// Time limit of a program on a busy machine, in seconds.
const PATIENCE: u64 = 300;
const PYTORCH: &str = "setup.KubeConEU25/sample-jobs/pytorch-training.yaml";

/// A cluster with team blue and four GPUs. The folder must outlive it.
struct Team {
    cluster: Cluster,
    home: tempfile::TempDir,
}

impl Team {
    fn start() -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &Value| {
            let path = home.path().join(name);
            std::fs::write(&path, text.to_string()).expect("written");
            path.display().to_string()
        };
        // Plain files in place of device files.
        let device = |name: &str| {
            let path = home.path().join(name);
            std::fs::write(&path, "").expect("a file");
            json!({"resource": "nvidia.com/gpu", "id": format!("GPU-{name}"), "paths": [path]})
        };
        let devices = ["a", "b", "c", "d"].map(device);
        let devices = write("devices.json", &json!({ "devices": devices }));
        // The tutorial's images have the programs in their search path and working directory.
        let programs = std::fs::canonicalize(file("tests/programs/vllm")).expect("the folder exists");
        let mapping = json!({"image": "quay.io/tardieu/*", "files": "host", "workingDir": programs,
            "env": [format!("PATH={}:/usr/local/bin:/usr/bin:/bin", programs.display())]});
        let configuration = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "ClusterConfiguration",
            "metadata": {"name": "mlbatch"},
            "spec": {"images": {"mappings": [mapping]},
                "operators": {"appWrapperConfiguration":
                    {"defaultQueueName": "default-queue", "userRBACAdmissionCheck": false}}}});
        let configuration = write("cluster.json", &configuration);
        let queueing = file("examples/mlbatch/kueue.yaml");
        let options = ["--runtime", "process", "--isolation", "full", "--devices", &devices, "--config"];
        let cluster = Cluster::ephemeral(
            &[&options[..], &[configuration.as_str(), "--controller-config", queueing.as_str()]].concat(),
        );
        cluster.run(&["apply", "-f", &file("examples/mlbatch/platform.yaml")]);
        let team = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["team", "create", "blue", "--gpus", "4", "--user", "alice", "--kubeconfig"])
            .arg(&cluster.kubeconfig)
            .output()
            .expect("berth runs");
        assert!(team.status.success(), "{}", String::from_utf8_lossy(&team.stderr));
        Self { cluster, home }
    }

    /// Applies manifests as alice.
    fn apply(&self, manifests: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests});
        let path = self.home.path().join("manifests.json");
        std::fs::write(&path, list.to_string()).expect("written");
        self.cluster.run(&["apply", "--as", "alice", "-n", "blue", "-f", &path.display().to_string()]);
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        self.cluster.get(&[kind, name, "-n", "blue", "--as", "alice"])
    }

    fn logs(&self, arguments: &[&str]) -> String {
        self.cluster.run(&[&["logs", "-n", "blue", "--as", "alice"], arguments].concat())
    }

    /// Waits until an AppWrapper has succeeded. Panics with the logs of its pods if it does not.
    fn until_succeeded(&self, name: &str) {
        let phase = |team: &Self| team.get("appwrapper", name)["status"]["phase"].clone();
        self.cluster.wait_until(&format!("AppWrapper {name} to end"), PATIENCE, |_| {
            ["Succeeded", "Failed", "Resetting"].iter().any(|end| phase(self) == *end)
        });
        if phase(self) != "Succeeded" {
            let selector = format!("workload.codeflare.dev/appwrapper={name}");
            for arguments in [
                &["get", "pods,events", "-n", "blue", "-o", "wide"][..],
                &["logs", "-n", "blue", "-l", &selector, "--all-containers", "--prefix", "--tail", "-1"],
            ] {
                let output = self.cluster.kubectl(arguments);
                eprintln!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            }
            panic!("{:#}", self.get("appwrapper", name)["status"]);
        }
    }

    /// Starts `kubectl logs -f` for a container of the pods with a label.
    fn follow(&self, selector: &str, container: &str) -> Child {
        Command::new("kubectl")
            .args(self.cluster.kubectl_options())
            .args(["logs", "-f", "-n", "blue", "--as", "alice", "-l", selector, "-c", container, "--tail", "-1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl runs")
    }
}

/// The object of a YAML file.
fn manifest(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("the manifest can be read");
    serde_saphyr::from_str(&text).expect("the manifest is YAML")
}

#[test]
fn a_pytorch_job_in_an_appwrapper_trains_with_torchrun() {
    if !has_isolation() {
        return;
    }
    if !["/usr/bin/torchrun", "/usr/local/bin/torchrun"].iter().any(|path| Path::new(path).exists()) {
        return skip("torchrun is not installed (Debian: python3-torch)");
    }
    let team = Team::start();
    team.apply(&[manifest(Path::new(&file("examples/mlbatch/pytorch.yaml")))]);
    team.until_succeeded("pytorch-mnist-training");
    let mut gpus = Vec::new();
    for (node, pod) in ["mnist-training-master-0", "mnist-training-worker-0"].into_iter().enumerate() {
        let log = team.logs(&[pod, "-c", "pytorch"]);
        for rank in [2 * node, 2 * node + 1] {
            let start = format!("rank {rank} of 4 on {pod} with ");
            let (_, rest) = log.split_once(&start).unwrap_or_else(|| panic!("{log}"));
            let (seen, rest) = rest.split_once(": accuracy ").expect("the rest of the line");
            let accuracy: f64 = rest.lines().next().unwrap_or_default().parse().expect("a number");
            assert!(accuracy >= 0.9, "{log}");
            gpus.extend(seen.split(',').map(str::to_owned));
        }
    }
    gpus.sort();
    gpus.dedup();
    assert_eq!(gpus, ["GPU-a", "GPU-b", "GPU-c", "GPU-d"], "each pod has two GPUs of its own");
    let job = team.get("pytorchjob", "mnist-training");
    let conditions = job["status"]["conditions"].as_array().expect("conditions");
    assert!(conditions.iter().any(|it| it["type"] == "Succeeded" && it["status"] == "True"), "{conditions:?}");
    team.cluster.interrupt();
}

#[test]
fn the_example_of_pytorch_differs_from_the_tutorial_in_its_program_only() {
    let Some(tutorial) = shared(&format!("scenarios/mlbatch/{PYTORCH}")) else { return };
    let without_program = |path: &Path| {
        let mut wrapper = manifest(path);
        for replica in ["Master", "Worker"] {
            let job = &mut wrapper["spec"]["components"][0]["template"]["spec"]["pytorchReplicaSpecs"];
            job[replica]["template"]["spec"]["containers"][0]["args"] = Value::Null;
        }
        wrapper
    };
    assert_eq!(without_program(Path::new(&file("examples/mlbatch/pytorch.yaml"))), without_program(&tutorial));
}

#[test]
fn batch_inference_sends_its_prompts_to_the_server_in_its_pod() {
    let Some(tutorial) = shared("scenarios/mlbatch/tutorial") else { return };
    if !has_isolation() {
        return;
    }
    let runs = |program: &str| Command::new(program).arg("-h").output().is_ok();
    if !runs("python3") || !runs("nc") {
        return skip("python3 or nc is not installed (Debian: python3, netcat-openbsd)");
    }
    let team = Team::start();
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "nfs-client-pokprod"}, "provisioner": "berth.dev/local"});
    let path = team.home.path().join("class.json");
    std::fs::write(&path, class.to_string()).expect("written");
    team.cluster.run(&["apply", "-f", &path.display().to_string()]);
    team.apply(&[manifest(&tutorial.join("persistentvolumeclaim-granite-3.2-8b-instruct.yaml"))]);
    let mut wrapper = manifest(&tutorial.join("appwrapper-batch-inference.yaml"));
    // This machine may be smaller than the tutorial's.
    let containers = &mut wrapper["spec"]["components"][0]["template"]["spec"]["template"]["spec"]["containers"];
    for list in ["requests", "limits"] {
        let amounts = &mut containers[0]["resources"][list];
        (amounts["cpu"], amounts["memory"]) = (json!("100m"), json!("512Mi"));
    }
    team.apply(&[wrapper]);
    team.cluster.wait_until("the pod to run", PATIENCE, |cluster| {
        let pods = cluster.get(&["pods", "-n", "blue", "-l", "app=batch-inference", "--as", "alice"]);
        pods["items"][0]["status"]["phase"] == "Running"
    });
    let followers = ["vllm", "load-generator"].map(|container| team.follow("app=batch-inference", container));
    team.until_succeeded("batch-inference");
    // Following ends with the containers.
    let [server, load] = followers.map(|follower| {
        let output = follower.wait_with_output().expect("kubectl ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    assert!(server.contains("serving ibm-granite/granite-3.2-8b-instruct on port 8000"), "{server}");
    assert_eq!(server.matches("\"POST /v1/completions HTTP/1.1\" 200").count(), 512, "{server}");
    assert!(load.contains("Successful requests: 512"), "{load}");
    assert!(load.contains(&format!("Total generated tokens: {}", 512 * 128)), "{load}");
    assert_eq!(team.logs(&["-l", "app=batch-inference", "-c", "load-generator", "--tail", "-1"]), load);
    let wrapper = team.get("appwrapper", "batch-inference");
    assert_eq!(wrapper["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "default-queue");
    team.cluster.interrupt();
}
