//! A test of SkyPilot's unchanged client: a task from `sky launch` to `sky down`, in a queue whose
//! machines are provisioned on request. `tests/programs/install skypilot` installs the client.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::cluster::{Cluster, file};
use crate::programs::{has_isolation, installed};

/// How long one command of the client may take on a busy machine, in seconds. A launch copies
/// packages of half a gigabyte into the pod and starts Ray.
const PATIENCE: u64 = 900;

/// The client with a home folder of its own, and the API server that it starts.
struct Sky {
    environment: PathBuf,
    home: tempfile::TempDir,
    kubeconfig: PathBuf,
    port: u16,
}

impl Sky {
    /// Prepares the home folder of a client of this cluster.
    fn new(environment: PathBuf, cluster: &Cluster) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let settings = home.path().join(".sky");
        std::fs::create_dir_all(settings.join("catalogs")).expect("a folder");
        // The version of the catalogs' format in SkyPilot 0.14.
        std::os::unix::fs::symlink(environment.join("catalogs"), settings.join("catalogs/v8")).expect("a link");
        std::fs::copy(environment.join("config.yaml"), settings.join("config.yaml")).expect("the configuration");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port").port();
        Self { environment, home, kubeconfig: cluster.kubeconfig.clone(), port }
    }

    fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("timeout");
        command
            .args([&PATIENCE.to_string(), program])
            .current_dir(file("."))
            .stdin(Stdio::null())
            .env("HOME", self.home.path())
            .env("PATH", format!("{}:{path}", self.environment.join("venv/bin").display()))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("SKYPILOT_API_SERVER_LOCAL_PORT", self.port.to_string())
            .env("SKYPILOT_DISABLE_USAGE_COLLECTION", "1");
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command("sky").args(arguments).output().expect("sky runs")
    }

    /// Runs a command of the client, which must succeed. Returns its output.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let text = text(&output);
        assert!(output.status.success(), "sky {arguments:?}: {}\n{text}", output.status);
        text
    }

    /// Runs a command in the pod of a SkyPilot cluster by ssh, with the ssh configuration that the
    /// client has written.
    fn ssh(&self, name: &str, command: &str) -> String {
        let path = self.home.path().join(".sky/generated/ssh").join(name);
        let config = std::fs::read_to_string(&path).expect("the configuration of ssh");
        // ssh reads the user's home folder from the user database, and ignores `HOME`.
        let config = config.replace("~/", &format!("{}/", self.home.path().display()));
        let own = self.home.path().join("ssh_config");
        std::fs::write(&own, config).expect("written");
        let output = self.command("ssh").arg("-F").arg(&own).args([name, command]).output().expect("ssh runs");
        assert!(output.status.success(), "ssh {name}: {}\n{}", output.status, text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Sky {
    fn drop(&mut self) {
        // A failed test must not leave the client's server running either.
        let _ = self.output(&["api", "stop"]);
    }
}

fn text(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// True if the programs that SkyPilot's client and its pods use are installed. Skips the running
/// test otherwise.
fn has_helpers() -> bool {
    let is_missing = |name: &&&str| !["/usr/bin", "/usr/sbin"].iter().any(|it| PathBuf::from(it).join(name).exists());
    match ["rsync", "sshd", "nc", "socat", "curl"].iter().find(is_missing) {
        Some(name) => {
            berth_testing::skip(&format!(
                "{name} is missing (Debian: apt-get install rsync openssh-server netcat-openbsd socat curl)"
            ));
            false
        }
        None => true,
    }
}

fn conditions(object: &Value) -> Vec<String> {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().filter(|it| it["status"] == "True").map(|it| it["type"].to_string()).collect()
}

/// The only object of this kind; null if there is none.
fn only(cluster: &Cluster, kind: &str) -> Value {
    cluster.get(&[kind])["items"][0].clone()
}

#[test]
fn skypilot_launches_a_task_on_provisioned_machines_and_takes_it_down() {
    if !has_isolation() {
        return;
    }
    let Some(environment) = installed("skypilot", "complete") else { return };
    if !has_helpers() {
        return;
    }
    let configuration = environment.join("cluster.yaml").display().to_string();
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full", "--config", &configuration]);
    cluster.run(&["apply", "-f", &file("examples/skypilot/queues.yaml")]);
    let sky = Sky::new(environment, &cluster);
    assert!(sky.run(&["check", "kubernetes"]).contains("Enabled infra"));

    let launch = ["launch", "-y", "-c", "train", "examples/skypilot/train.yaml"];
    let launch = sky.command("sky").args(launch).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let launch = launch.expect("sky runs");
    cluster.wait_until("the request for machines", PATIENCE, |cluster| !only(cluster, "provreq").is_null());
    let request = only(&cluster, "provreq");
    assert_eq!(request["spec"]["parameters"]["maxRunDurationSeconds"], "3600");
    let pod = only(&cluster, "pods");
    let annotations = &pod["metadata"]["annotations"];
    let consumed = "autoscaling.x-k8s.io/consume-provisioning-request";
    assert!(!pod["spec"]["schedulingGates"].is_null() || !annotations[consumed].is_null(), "{pod:#}");

    let launched = launch.wait_with_output().expect("sky ends");
    let launched_text = text(&launched);
    let pods = || cluster.run(&["logs", "-l", "parent=skypilot", "--tail", "60"]);
    assert!(launched.status.success(), "{launched_text}\n{}\n{}", cluster.run(&["get", "events"]), pods());
    for expected in ["0 of 1: 1 GPU, slope 3.00", "converged", "Job finished (status: SUCCEEDED)"] {
        assert!(launched_text.contains(expected), "{expected}: {launched_text}");
    }
    let pod = only(&cluster, "pods");
    assert!(!pod["metadata"]["annotations"][consumed].is_null(), "{pod:#}");
    assert!(pod["spec"]["nodeName"].as_str().is_some_and(|node| node.contains("gpu-pool")), "{pod:#}");
    assert!(conditions(&only(&cluster, "workloads")).contains(&"\"Admitted\"".to_owned()));

    assert!(sky.run(&["queue", "train"]).contains("SUCCEEDED"));
    assert!(sky.run(&["logs", "train", "1"]).contains("converged"));
    let failed = sky.output(&["exec", "train", "--", "echo second task; exit 3"]);
    assert!(!failed.status.success() && text(&failed).contains("second task"), "{}", text(&failed));
    assert_eq!(sky.ssh("train", "hostname"), pod["metadata"]["name"].as_str().expect("a name").to_owned() + "\n");

    sky.run(&["down", "-y", "train"]);
    for kind in ["pods", "workloads", "provreq"] {
        cluster.wait_until(kind, 60, |cluster| only(cluster, kind).is_null());
    }
    drop(sky);
    cluster.interrupt();
}
