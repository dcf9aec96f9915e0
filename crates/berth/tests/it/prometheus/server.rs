//! A Prometheus server that scrapes a cluster.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use berth_apimachinery::percent::component;
use serde_json::Value;

use crate::cluster::{Cluster, file, pause};

/// A running server, killed when dropped.
pub struct Prometheus {
    process: Child,
    address: String,
    _home: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The configuration of `deploy/prometheus` for this cluster, in a folder.
fn configure(cluster: &Cluster, folder: &Path) {
    let write = |name: &str, text: &[u8]| std::fs::write(folder.join(name), text).expect("a file can be written");
    let kubeconfig = std::fs::read_to_string(&cluster.kubeconfig).expect("a kubeconfig");
    let field = |name: &str| {
        let line = kubeconfig.lines().find_map(|line| line.trim().trim_start_matches("- ").strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} in {kubeconfig}")).trim().trim_matches('"').to_owned()
    };
    let authority = base64::engine::general_purpose::STANDARD.decode(field("certificate-authority-data:"));
    write("ca.crt", &authority.expect("base64"));
    cluster.run(&["apply", "-f", &file("deploy/prometheus/rbac.yaml")]);
    // An hour of a fast clock is short.
    let token = cluster.run(&["create", "token", "prometheus", "-n", "monitoring", "--duration", "240h"]);
    write("token", token.trim().as_bytes());
    let read = |name: &str| std::fs::read_to_string(file(&format!("deploy/prometheus/{name}"))).expect("it is there");
    let address = field("server:").replace("https://", "");
    let text = read("prometheus.yaml").replace("127.0.0.1:6443", &address).replace("15s", "1s");
    write("prometheus.yaml", text.as_bytes());
    write("rules.yaml", read("rules.yaml").as_bytes());
}

impl Prometheus {
    /// Starts a server with the configuration of `deploy/prometheus`, which scrapes every second.
    pub fn start(cluster: &Cluster) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        configure(cluster, home.path());
        // Prometheus does not print the port that it chose itself.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let process = Command::new("prometheus")
            .arg(option("config.file", &home.path().join("prometheus.yaml").display().to_string()))
            .arg(option("storage.tsdb.path", &home.path().join("data").display().to_string()))
            .arg(option("web.listen-address", &free.to_string()))
            .arg("--enable-feature=exemplar-storage")
            .arg("--log.level=warn")
            .stdin(Stdio::null())
            .spawn()
            .expect("prometheus starts");
        let server = Self { process, address: free.to_string(), _home: home };
        for _ in 0..600 {
            if server.get("/-/ready").is_some() {
                return server;
            }
            pause(Duration::from_millis(50));
        }
        panic!("prometheus never was ready");
    }

    /// Body of a response with code 200.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.split(' ').nth(1).filter(|code| *code == "200").map(|_| body.to_owned())
    }

    /// The field `data` of an API response; `None` if the server refuses the request.
    pub fn api(&self, path: &str) -> Option<Value> {
        let answer: Value = serde_json::from_str(&self.get(&format!("/api/v1/{path}"))?).ok()?;
        Some(answer["data"].clone())
    }

    /// The samples of a query that are numbers; `None` if the query is not valid.
    pub fn query(&self, query: &str) -> Option<Vec<f64>> {
        let data = self.api(&format!("query?query={}", component(query)))?;
        let samples = data["result"].as_array()?.iter();
        let number = |sample: &Value| sample["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
        Some(samples.filter_map(number).filter(|value| !value.is_nan()).collect())
    }
}
