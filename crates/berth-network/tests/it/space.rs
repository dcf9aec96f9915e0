//! Network namespaces for tests: one that replaces the machine's own network for the test, and one
//! per pod.
//!
//! A test runs a second time as a child process in new user, network and mount namespaces, so that
//! it needs no privileges and does not change the machine.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};

use berth_pod_runtime::SandboxNetwork;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const INSIDE: &str = "BERTH_TEST_NETWORK_NAMESPACE";

/// Runs a test in namespaces of its own. Skips it with a notice if they cannot be created. `name`
/// is the test's path in this binary.
pub(crate) fn isolated(name: &str, test: impl Future<Output = ()>) {
    if std::env::var_os(INSIDE).is_some() {
        ip("link set lo up");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(test);
        return;
    }
    let unshare = ["--user", "--map-root-user", "--net", "--mount"];
    let works =
        Command::new("unshare").args(unshare).args(["ip", "link", "add", "name", "probe0", "type", "bridge"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        berth_testing::skip("unshare and ip are not installed, or user namespaces with bridges are not allowed");
        return;
    }
    let program = std::env::current_exe().expect("the test's program");
    let output = Command::new("unshare")
        .args(unshare)
        .arg(program)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare runs");
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{errors}");
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split_whitespace()).output().expect("ip runs");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A process in a network namespace of its own, like the first process of a pod.
pub(crate) struct Space(Child);

impl Space {
    pub(crate) fn new() -> Self {
        let mut command = Command::new("unshare");
        command.arg("--net");
        Self::start(command)
    }

    /// A process as a network's pod: in a user namespace below that of the network, if it has one.
    pub(crate) fn of(network: &impl SandboxNetwork) -> Self {
        let Some(user) = network.user_namespace().expect("the user namespace") else { return Self::new() };
        let path = format!("/proc/{}/fd/{}", std::process::id(), user.as_raw_fd());
        let mut command = Command::new("nsenter");
        command.arg(format!("--user={path}")).args(["--preserve-credentials", "unshare", "--user", "--map-root-user"]);
        command.arg("--net");
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        command.args(["sh", "-c", "echo ready; exec sleep 600"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare runs");
        let mut line = String::new();
        let mut reader = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut reader, &mut line).expect("a line");
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Runs a function in the namespace on a separate thread.
    pub(crate) async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let file = File::open(format!("/proc/{}/ns/net", self.pid())).expect("the namespace");
        let (send, receive) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("the namespace");
            let _ = send.send(job());
        });
        receive.await.expect("the job does not panic")
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
