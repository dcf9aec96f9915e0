//! A `berth up` or `berth apiserver` process, and kubectl against it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use berth_api::berth::explanation::{GROUP, VERSION};
use serde_json::Value;

/// How many times the idle machine's time a wait may take: other tests run at once, on two CPUs in
/// CI.
const BUSY: u64 = 4;

/// Time that the cluster of a failed test has to stop its pods, in seconds.
const STOP_SECONDS: u32 = 60;

/// A running `berth up` or `berth apiserver`; killed when dropped.
pub struct Cluster {
    process: Child,
    pub kubeconfig: PathBuf,
    /// The options that give another process the same clock; `None` for the system's clock.
    pub time: Vec<String>,
    /// Keeps the cluster's folder while the process runs.
    /// The lines that the process printed until it was ready.
    printed: Vec<String>,
    /// A process that the cluster needs, which ends after it.
    behind: Option<Child>,
    _home: tempfile::TempDir,
}

/// A user without privileges.
const NOBODY: u32 = 65_534;

/// A program that runs without privileges, even if the tests run as root.
fn without_privileges(program: &str) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    let id = NOBODY.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]);
    command
}

/// A port that kubectl forwards until this is dropped.
pub struct Forward {
    kubectl: Child,
    /// The address on this machine.
    pub address: String,
    /// kubectl ends when it cannot print.
    _output: BufReader<ChildStdout>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

/// A file of this checkout.
pub fn file(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).display().to_string()
}

impl Cluster {
    /// Starts a cluster that keeps nothing on disk.
    pub fn ephemeral(arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        Self::start("up", home, &["--ephemeral"], arguments)
    }

    /// Starts a cluster on a data folder, by a user without privileges. `None` if this machine does
    /// not allow namespaces to such a user, which is reported.
    pub fn unprivileged(data: &Path, arguments: &[&str]) -> Option<Self> {
        if !without_privileges("unshare")
            .args([
                "--user",
                "--map-root-user",
                "--net",
                "--mount",
                "ip",
                "link",
                "add",
                "name",
                "b0",
                "type",
                "bridge",
            ])
            .output()
            .is_ok_and(|output| output.status.success())
        {
            berth_testing::skip("setpriv, unshare or ip is not installed, or user namespaces are not allowed");
            return None;
        }
        let home = tempfile::tempdir().expect("a temporary folder");
        for folder in [data, home.path()] {
            let is_root = rustix::process::geteuid().is_root();
            let own = |folder| std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY));
            if is_root {
                own(folder).expect("root may give folders away");
            }
        }
        let mut program = without_privileges(env!("CARGO_BIN_EXE_berth"));
        program.env("HOME", home.path());
        Some(Self::start_by(program, "up", home, &["--data-dir", &data.display().to_string()], arguments))
    }

    /// Starts a cluster that keeps nothing on disk, in a control group.
    pub fn in_group(group: &Path, arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(group).arg(env!("CARGO_BIN_EXE_berth"));
        Self::start_by(shell, "up", home, &["--ephemeral"], arguments)
    }

    /// Starts the API server alone, with nothing on disk. Kubeconfigs of the other processes are in
    /// the folder of the administrator's.
    pub fn apiserver(arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        Self::start("apiserver", home, &["--ephemeral"], arguments)
    }

    /// Starts a cluster on a data folder.
    pub fn durable(data: &Path, arguments: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        Self::start("up", home, &["--data-dir", &data.display().to_string()], arguments)
    }

    /// Starts the API server alone on a data folder.
    pub fn durable_apiserver(data: &Path) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        Self::start("apiserver", home, &["--data-dir", &data.display().to_string()], &[])
    }

    fn start(command: &str, home: tempfile::TempDir, storage: &[&str], arguments: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_berth")), command, home, storage, arguments)
    }

    /// Starts `berth` by a program to whose arguments those of `berth` are added.
    fn start_by(
        mut program: Command,
        command: &str,
        home: tempfile::TempDir,
        storage: &[&str],
        arguments: &[&str],
    ) -> Self {
        let kubeconfig = home.path().join("kubeconfig");
        let mut process = program
            .args([command, "--listen", "127.0.0.1:0", "--kubeconfig"])
            .arg(&kubeconfig)
            .args(storage)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("berth starts");
        let stdout = process.stdout.take().expect("stdout is piped");
        // The last printed line means that the API responds.
        let mut printed = Vec::new();
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let is_last = line.starts_with("Next");
            printed.push(line);
            if is_last {
                break;
            }
        }
        let next = printed.last().filter(|line| line.starts_with("Next"));
        let next = next.unwrap_or_else(|| panic!("berth {command} ended before it was ready"));
        let time = next.split_whitespace().skip_while(|word| *word != "--time-scale").map(str::to_owned).collect();
        Self { process, kubeconfig, time, printed, behind: None, _home: home }
    }

    /// A cluster whose API server is another program, which needs the process `behind`. `home`
    /// contains the kubeconfig.
    pub fn of(process: Child, behind: Child, home: tempfile::TempDir) -> Self {
        let kubeconfig = home.path().join("kubeconfig");
        Self { process, kubeconfig, time: Vec::new(), printed: Vec::new(), behind: Some(behind), _home: home }
    }

    /// What the process printed at its start after this label.
    pub fn printed(&self, label: &str) -> Option<String> {
        let line = self.printed.iter().find(|line| line.starts_with(label))?;
        Some(line[label.len()..].trim().to_owned())
    }

    /// Level and limits of the pod network, as the process printed them.
    pub fn printed_network(&self) -> &str {
        self.printed.iter().find_map(|line| line.split_once("pod network: ")).map_or("", |(_, network)| network)
    }

    /// Runs kubectl.
    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        Command::new("kubectl").args(self.kubectl_options()).args(arguments).output().expect("kubectl runs")
    }

    /// Options of kubectl that select this cluster.
    pub fn kubectl_options(&self) -> Vec<OsString> {
        // Each cluster has its own discovery cache, which is removed with it.
        let cache = self.kubeconfig.with_file_name("cache");
        vec!["--kubeconfig".into(), self.kubeconfig.clone().into(), "--cache-dir".into(), cache.into()]
    }

    /// Runs kubectl, which must succeed. Returns its output.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}\n{out}\n{err}");
        out.into_owned()
    }

    /// Runs kubectl, which must fail. Returns its error output.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments);
        assert!(
            !output.status.success(),
            "kubectl {arguments:?} succeeded: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Creates the blue jobs of the quickstart one after the other, so that the last one waits:
    /// jobs of one second may be queued in another order.
    pub fn run_blue_jobs(&self) {
        let jobs = std::fs::read_to_string(file("examples/quickstart/blue-jobs.yaml")).expect("an example");
        let one = self.kubeconfig.with_file_name("blue-job.yaml");
        for (before, job) in jobs.split("\n---\n").enumerate() {
            std::fs::write(&one, job).expect("written");
            self.run(&["apply", "-f", &one.display().to_string()]);
            self.wait_until("the Workload of the job", 60, |cluster| {
                let workloads = cluster.get(&["workloads", "-n", "team-blue"]);
                workloads["items"].as_array().is_some_and(|all| all.len() > before)
            });
        }
    }

    /// Objects as JSON.
    pub fn get(&self, arguments: &[&str]) -> Value {
        let text = self.run(&[&["get", "-o", "json"], arguments].concat());
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    /// Waits until `condition` holds. `seconds` of real time suffice on an idle machine; a busy one
    /// gets a multiple.
    pub fn wait_until(&self, what: &str, seconds: u64, mut condition: impl FnMut(&Self) -> bool) {
        for _ in 0..seconds * BUSY * 4 {
            if condition(self) {
                return;
            }
            pause(Duration::from_millis(250));
        }
        panic!(
            "waited {} s for {what}\n{}\n{}",
            seconds * BUSY,
            self.run(&["get", "clusterqueues,workloads,jobs,pods", "-A"]),
            self.unfinished_workloads()
        );
    }

    /// The status, the events and the explanation of each workload that has not finished.
    fn unfinished_workloads(&self) -> String {
        let workloads = self.get(&["workloads", "-A"]);
        let unfinished = workloads["items"].as_array().into_iter().flatten().filter(|workload| {
            let conditions = workload["status"]["conditions"].as_array();
            !conditions.into_iter().flatten().any(|c| c["type"] == "Finished" && c["status"] == "True")
        });
        let mut report = String::new();
        for workload in unfinished {
            let meta = &workload["metadata"];
            let (namespace, name) = (meta["namespace"].as_str().unwrap_or(""), meta["name"].as_str().unwrap_or(""));
            let explanation = format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/workloads/{name}/explanation");
            let selector = format!("involvedObject.name={name}");
            for arguments in [
                ["get", "workload", name, "-n", namespace, "-o", "yaml"].as_slice(),
                &["get", "events", "-n", namespace, "--field-selector", &selector],
                &["get", "--raw", &explanation],
            ] {
                report.push_str(&self.run(arguments));
            }
        }
        report
    }

    /// Forwards a port of this machine to a port of a pod or Service (`kubectl port-forward`).
    pub fn forward(&self, target: &str, port: u16) -> Forward {
        let mut command = Command::new("kubectl");
        command.args(self.kubectl_options()).args(["port-forward", target, &format!(":{port}")]);
        let mut kubectl = command.stdout(Stdio::piped()).spawn().expect("kubectl runs");
        let mut output = BufReader::new(kubectl.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let address = line.split_whitespace().nth(2).expect("Forwarding from ADDRESS -> PORT").to_owned();
        Forward { kubectl, address, _output: output }
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.process.kill().expect("the process can be killed");
        self.process.wait().expect("the process can be waited for");
    }

    /// Sends SIGINT. The process must end with success.
    pub fn interrupt(mut self) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
        assert!(sent.success());
        let status = self.process.wait().expect("the process can be waited for");
        assert!(status.success(), "berth ended with {status} after Ctrl-C");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The process pods of a failed test would survive a kill.
        if std::thread::panicking() && matches!(self.process.try_wait(), Ok(None)) {
            let _ = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
            for _ in 0..STOP_SECONDS * 4 {
                match self.process.try_wait() {
                    Ok(None) => pause(Duration::from_millis(250)),
                    _ => break,
                }
            }
        }
        // The process has ended already after `kill` and `interrupt`.
        for process in std::iter::once(&mut self.process).chain(&mut self.behind) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Lets real time pass: the tested process uses real time.
#[expect(clippy::disallowed_methods, reason = "another process is waited for")]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
