//! `berth up` is killed (kill -9) and started again and again, while pods run as processes of this
//! machine.
//!
//! Each program writes a line at its start and one at its end to a file that has the pod's UID, so
//! that a container that ran twice is detected. A seed determines the times of the kills.

mod leftovers;
mod load;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use leftovers::Scan;
use load::{Load, next};

/// Environment variable: number of kills, instead of [`KILLS`].
const VARIABLE: &str = "BERTH_TEST_KILLS";
/// Environment variable: seed of the times of the kills. Each run prints its seed.
const SEED: &str = "BERTH_TEST_SEED";
/// Number of kills if the variable is not set.
const KILLS: u64 = 5;
/// Maximum milliseconds between the start and every fourth kill, which may come while pods are
/// being adopted.
const EARLY: u64 = 1_500;
/// Maximum milliseconds between the API's first response and each of the other kills.
const LATE: u64 = 2_500;
/// Time for all pods to end after the last kill, and for all traces of them to disappear.
const SETTLED: Duration = Duration::from_secs(240);

/// A `berth up` process; killed when dropped.
pub(crate) struct Up {
    process: Child,
    kubeconfig: PathBuf,
    ready: Option<oneshot::Receiver<()>>,
}

impl Up {
    fn spawn(home: &Path) -> Self {
        let kubeconfig = home.join("kubeconfig");
        let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["up", "--listen", "127.0.0.1:0", "--runtime", "process", "--stop-pods"])
            // The pods write to a folder of the host.
            .args(["--isolation", "full", "--pod-security", "privileged"])
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--data-dir")
            .arg(home.join("data"))
            .arg("--devices")
            .arg(home.join("devices.yaml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("berth starts");
        let stdout = process.stdout.take().expect("stdout is piped");
        let (sender, ready) = oneshot::channel();
        // The thread ends with the process.
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The last line that `berth up` prints starts with `Next`. At that time, the API
            // responds.
            if lines.any(|line| line.starts_with("Next")) {
                let _ = sender.send(());
            }
        });
        Self { process, kubeconfig, ready: Some(ready) }
    }

    /// A client, once the API responds.
    async fn client(&mut self) -> Client {
        let ready = self.ready.take().expect("`client` is called once");
        timeout(Duration::from_secs(60), ready).await.expect("berth is ready in time").expect("berth is running");
        let file = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration");
        Client::try_from(config).expect("a client")
    }

    fn id(&self) -> u32 {
        self.process.id()
    }

    fn kill(mut self) {
        self.process.kill().expect("the process can be killed");
        self.process.wait().expect("the process can be waited for");
    }

    /// Sends SIGINT. The process must end by itself with success.
    fn interrupt(mut self) {
        let sent = Command::new("kill").args(["-INT", &self.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        let status = self.process.wait().expect("the process can be waited for");
        assert!(status.success(), "berth ended with {status} after Ctrl-C");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // The process has ended already after `kill` and `interrupt`.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Folder of the cluster. If the test fails, the cluster is started and interrupted once more,
/// which stops its pods.
struct Home(tempfile::TempDir);

impl Drop for Home {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let mut up = Up::spawn(self.0.path());
        let ready = up.ready.take().expect("a new process has the receiver");
        let _ = std::thread::spawn(move || ready.blocking_recv()).join();
        let _ = Command::new("kill").args(["-INT", &up.id().to_string()]).status();
        let _ = up.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_clusters_run_no_pod_twice_lose_none_and_leave_nothing_behind() {
    if !rustix::process::geteuid().is_root() {
        return berth_testing::skip("full isolation needs root");
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let kills = number(VARIABLE).unwrap_or(KILLS);
    let mut random = number(SEED).unwrap_or_else(|| u64::from(std::process::id()) | 1);
    eprintln!("{SEED}={random} {VARIABLE}={kills}");
    let home = Home(tempfile::tempdir().expect("a temporary folder"));
    let path = home.0.path();
    let mut load = Load::new(path);
    let started = Instant::now();
    let mut early = 0;
    for kill in 0..kills {
        let mut up = Up::spawn(path);
        if kill % 4 == 3 {
            early += 1;
            sleep(Duration::from_millis(next(&mut random) % EARLY)).await;
        } else {
            let client = up.client().await;
            let moment = Duration::from_millis(next(&mut random) % LATE);
            // The future may be dropped during a request, whose effect is then unknown.
            let _ = timeout(moment, load.run(&client)).await;
        }
        up.kill();
    }
    let mut up = Up::spawn(path);
    let client = up.client().await;
    load.settle(&client, SETTLED).await;
    let counts = load.verify(&client).await;
    eprintln!("{kills} kills ({early} during the start) in {:?}: {counts}", started.elapsed());
    load.run_one(&client, SETTLED).await;
    let scan = Scan::new(path, load.uids(&client).await, up.id(), &load.mark);
    scan.expect_a_running_pod();
    load.delete(&client, SETTLED).await;
    scan.expect_nothing(SETTLED).await;
    up.interrupt();
    assert!(!scan.has_bridge(), "--stop-pods did not remove the pod network");
}
