//! A `berth` process that joins a cluster: its log and its HTTP endpoints.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{Cluster, pause};

/// A running process, killed when dropped.
pub struct Process {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Process {
    /// `berth controller` with its kubeconfig from the API server, on separate ports.
    pub fn controller(cluster: &Cluster, arguments: &[&str]) -> Self {
        Self::controller_with(&cluster.kubeconfig.with_file_name("controller.kubeconfig"), arguments)
    }

    /// Like [`Process::controller`], with this kubeconfig.
    pub fn controller_with(kubeconfig: &Path, arguments: &[&str]) -> Self {
        let mut ports = vec![
            "--health-probe-bind-address=127.0.0.1:0",
            "--metrics-bind-address=127.0.0.1:0",
            "--webhook-bind-address=127.0.0.1:0",
        ];
        ports.retain(|port| {
            let option = port.split('=').next().unwrap_or_default();
            !arguments.iter().any(|argument| argument.starts_with(option))
        });
        Self::start(&["controller"], kubeconfig, &[&ports, arguments].concat())
    }

    /// `berth controller` with all permissions. Its addresses are only in this configuration file.
    pub fn controller_configured(cluster: &Cluster, configuration: &Path) -> Self {
        let file = format!("--config={}", configuration.display());
        Self::start(&["controller"], &cluster.kubeconfig, &[&file])
    }

    /// `berth cluster` with its kubeconfig from the API server.
    pub fn cluster(cluster: &Cluster, arguments: &[&str]) -> Self {
        Self::start(&["cluster"], &cluster.kubeconfig.with_file_name("cluster.kubeconfig"), arguments)
    }

    fn start(command: &[&str], kubeconfig: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(command)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("berth starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let (lines, stderr) = (log.clone(), child.stderr.take().expect("stderr is piped"));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("| {line}");
                lines.lock().expect("no thread panics while it holds the log").push(line);
            }
        });
        Self { child, log }
    }

    /// The rest of the first line of the log after this string, if there is one.
    pub fn logged(&self, text: &str) -> Option<String> {
        let log = self.log.lock().expect("no thread panics while it holds the log");
        log.iter().find_map(|line| line.split_once(text).map(|(_, rest)| rest.to_owned()))
    }

    /// The first whole line of the log that contains this string.
    pub fn line(&self, text: &str) -> Option<String> {
        let log = self.log.lock().expect("no thread panics while it holds the log");
        log.iter().find(|line| line.contains(text)).cloned()
    }

    /// Waits for a line of the log that contains this string. Returns the rest of the line.
    pub fn wait_logged(&self, text: &str) -> String {
        for _ in 0..600 {
            if let Some(rest) = self.logged(text) {
                return rest;
            }
            pause(Duration::from_millis(50));
        }
        panic!("nothing logged about {text:?}: {:?}", self.log.lock());
    }

    /// GET of a path at the address that the log shows for that path: status code and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path).expect("the port responds")
    }

    fn try_get(&self, path: &str) -> std::io::Result<(u16, String)> {
        let log = self.log.lock().expect("no thread panics while it holds the log").clone();
        let mut urls = log.iter().filter_map(|line| line.split_once("serving http://").map(|(_, rest)| rest));
        let address = urls.find_map(|url| url.strip_suffix(path)).unwrap_or_else(|| panic!("{path} is not served"));
        let mut stream = TcpStream::connect(address)?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let cut_short = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut_short)?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(cut_short)?;
        Ok((code, body.to_owned()))
    }

    /// True if this replica reports that it leads. False before it serves.
    pub fn leads(&self) -> bool {
        self.logged("/metrics").is_some()
            && self.try_get("/metrics").is_ok_and(|(_, metrics)| {
                metrics.contains("leader_election_master_status{name=\"berth-controller\"} 1")
            })
    }

    /// True if the process has ended by itself.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("the process can be polled").is_some()
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process can be waited for");
    }

    /// Sends SIGTERM. The process must end with success.
    pub fn terminate(mut self) {
        let sent = Command::new("kill").arg(self.child.id().to_string()).status().expect("kill runs");
        assert!(sent.success());
        let status = self.child.wait().expect("the process can be waited for");
        assert!(status.success(), "berth ended with {status} after SIGTERM");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process has ended already after `kill` and `terminate`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
