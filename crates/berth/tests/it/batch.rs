//! The commands of docs/commands.md against a cluster: a job is submitted, listed, held, released,
//! requeued and cancelled. Once as a plugin of kubectl.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, file, pause};

fn berth(cluster: &Cluster, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.env("KUBECONFIG", &cluster.kubeconfig).args(line.split_whitespace());
    command.output().expect("berth runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn done(cluster: &Cluster, line: &str) -> String {
    let output = berth(cluster, line);
    assert!(output.status.success(), "berth {line}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn failed(cluster: &Cluster, line: &str) -> String {
    let output = berth(cluster, line);
    assert!(!output.status.success(), "berth {line}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// State of a job in the queue; empty if it is not listed.
fn state(cluster: &Cluster, job: &str) -> String {
    let listed: Value = serde_json::from_str(&done(cluster, "queue -n team-blue -o json")).expect("JSON");
    let items = listed["items"].as_array().expect("items");
    let found = items.iter().find(|item| item["job"]["name"] == job);
    found.and_then(|item| item["state"].as_str()).unwrap_or_default().to_owned()
}

/// A command that prints rows until it is stopped.
struct Watched {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Watched {
    /// Waits for a row with a text.
    fn until(&self, text: &str) {
        let mut printed = Vec::new();
        loop {
            let Ok(line) = self.lines.recv_timeout(Duration::from_secs(120)) else {
                panic!("no row with {text:?} after {printed:#?}");
            };
            if line.contains(text) {
                return;
            }
            printed.push(line);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command that has printed a row with a text.
fn watched(cluster: &Cluster, line: &str, first: &str) -> Watched {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.env("KUBECONFIG", &cluster.kubeconfig).args(line.split_whitespace()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("berth runs");
    let output = BufReader::new(process.stdout.take().expect("its output"));
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    let watched = Watched { process, lines };
    watched.until(first);
    watched
}

#[test]
fn a_job_is_submitted_held_released_requeued_and_cancelled() {
    if !berth_testing::has_kubectl() {
        return;
    }
    let cluster = Cluster::ephemeral(&[]);
    cluster.run(&["apply", "-f", &file("examples/quickstart/queues.yaml")]);
    let line = "submit -n team-blue --name train -c 2 -t 2h --dry-run client -o yaml -- sleep 3600";
    let printed = done(&cluster, line);
    assert!(printed.contains("kind: Job") && printed.contains("kueue.x-k8s.io/queue-name: main"), "{printed}");
    assert_eq!(state(&cluster, "train"), "", "a dry run creates nothing");

    let is = |job: &str, wanted: &str| {
        let (job, wanted) = (job.to_owned(), wanted.to_owned());
        cluster.wait_until(&format!("{job} to be {wanted:?}"), 60, move |cluster| state(cluster, &job) == wanted);
    };
    assert_eq!(done(&cluster, &line.replace("--dry-run client -o yaml ", "")), "job.batch/train created\n");
    is("train", "Running");
    assert_eq!(done(&cluster, "submit -n team-blue --name large -c 8 -- sleep 3600"), "job.batch/large created\n");
    is("large", "Waiting");
    let queue = || done(&cluster, "queue -n team-blue --state waiting --start");
    // The reason is written after the decision.
    cluster.wait_until("the waiting job's row to be complete", 60, |_| {
        let queue = queue();
        let row = queue.lines().nth(1).unwrap_or_default();
        ["team-blue", "large", "main", "berth-admin", "Waiting", "WaitingForQuota"]
            .iter()
            .all(|cell| row.contains(cell))
    });
    let queue = queue();
    assert!(queue.lines().next().unwrap_or_default().ends_with("STARTS"), "{queue}");

    assert_eq!(done(&cluster, "hold -n team-blue train"), "team-blue/train held\n");
    is("train", "Held");
    is("large", "Running");
    assert_eq!(done(&cluster, "hold team-blue/train"), "team-blue/train is held already\n");
    assert!(failed(&cluster, "requeue team-blue/train").contains("use berth release"));
    assert_eq!(done(&cluster, "release team-blue/train"), "team-blue/train released\n");
    is("train", "Waiting");
    assert_eq!(done(&cluster, "cancel team-blue/large"), "team-blue/large cancelled: Job deleted\n");
    is("large", "");
    is("train", "Running");
    // Of two evictions within the same second, usage has one: API objects have times in whole
    // seconds.
    pause(Duration::from_millis(1_100));
    assert_eq!(done(&cluster, "requeue team-blue/train"), "team-blue/train requeued\n");
    is("train", "Running");

    let states = |jobs: &str, job: &str| {
        let rows = jobs.lines().map(|line| line.split(',').collect::<Vec<_>>());
        rows.filter(|cells| cells[1] == job).map(|cells| cells[4].to_owned()).collect::<Vec<_>>()
    };
    // What a job used is recorded after its end.
    cluster.wait_until("one end of the large job, and two of the other", 60, |cluster| {
        let jobs = done(cluster, "jobs -n team-blue -o csv");
        states(&jobs, "large") == ["Deleted"] && states(&jobs, "train") == ["Evicted", "Evicted", "Running"]
    });
    let nodes = done(&cluster, "nodes");
    assert!(nodes.starts_with("NODE ") && nodes.contains("default-pool"), "{nodes}");

    let missing = failed(&cluster, "cancel -n team-blue none");
    assert!(missing.contains("no job or Workload team-blue/none is queued; `berth queue -n team-blue`"), "{missing}");
    let missing = failed(&cluster, "explain team-blue/none");
    assert!(missing.contains("no Workload, and no queued job, is named team-blue/none; `berth queue"), "{missing}");
    let empty = berth(&cluster, "queue -n team-green");
    assert_eq!(text(&empty.stderr), "No job waits or runs in namespace team-green; -A lists all namespaces.\n");
    let unknown = failed(&cluster, "queue --state gone");
    assert!(unknown.contains("[possible values: Waiting, Held, Reserved, Running,"), "{unknown}");
    let unknown = failed(&cluster, "submit -n team-blue -q other -- true");
    assert!(unknown.contains("namespace team-blue has no LocalQueue other; it has main"), "{unknown}");

    let listed = |line: &str| done(&cluster, line).lines().count();
    let label = "kueue.x-k8s.io/job-uid";
    assert_eq!(listed(&format!("queue -n team-blue -o name -l {label}")), 1);
    assert_eq!(listed(&format!("queue -n team-blue -o name -l !{label}")), 0);
    assert_eq!(listed("queue -A -o name -q blue -u berth-admin -s running"), 1);
    assert_eq!(listed("queue -A -o name -q green"), 0);
    assert_eq!(listed("jobs -A -o name -q blue -s evicted"), 2);
    assert_eq!(listed("jobs -A -o name -u mallory"), 0);
    // The labels of deleted jobs are known.
    let all: Value = serde_json::from_str(&done(&cluster, "jobs -A -o json")).expect("JSON");
    let large = all["items"].as_array().into_iter().flatten().find(|item| item["job"]["name"] == "large");
    let uid = large.and_then(|item| item["labels"][label].as_str()).expect("the label of the deleted job");
    assert_eq!(listed(&format!("jobs -A -o name -l {label}={uid}")), 1);
    assert_eq!(listed(&format!("jobs -A -o name -l {label}")), 4);
    assert_eq!(listed(&format!("jobs -A -o name -l {label}!={uid} -s evicted")), 2);
    assert_eq!(listed(&format!("jobs -A -o name -l !{label}")), 0);
    let refused = failed(&cluster, "jobs --watch --until 1h");
    assert!(refused.contains("cannot be used with --until"), "{refused}");
    let unknown = failed(&cluster, "queue -l a=b=c");
    assert!(unknown.contains("invalid value 'a=b=c' for '--selector <SELECTOR>'"), "{unknown}");
    let [queue, jobs] = ["queue", "jobs -s running,evicted,held"]
        .map(|list| watched(&cluster, &format!("{list} -n team-blue --watch"), "Running"));
    done(&cluster, "hold team-blue/train");
    queue.until("Held");
    // The stay that ended, the one that goes on, and that one's end, which is no state of the list.
    jobs.until("Evicted");
    jobs.until("Held");
    done(&cluster, "cancel team-blue/train");
    queue.until("Deleted");
    jobs.until("Deleted");

    // kubectl finds plugins by their names.
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_berth"), folder.path().join("kubectl-berth")).expect("a link");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut kubectl = Command::new("kubectl");
    done(&cluster, "submit -n team-blue --name train -- sleep 3600");
    is("train", "Running");
    kubectl.args(["berth", "queue", "-A", "-o", "name"]).env("KUBECONFIG", &cluster.kubeconfig).env("PATH", path);
    let output = kubectl.output().expect("kubectl runs");
    assert!(text(&output.stdout).starts_with("workload.kueue.x-k8s.io/job-train-"), "{output:?}");
}
