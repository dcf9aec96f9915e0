//! An installation on Kubernetes' own API server, with the programs that envtest uses: the folder
//! that `KUBEBUILDER_ASSETS` names has `kube-apiserver` and `etcd`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use base64::Engine;
use berth_testing::{has_kubectl, skip};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::cluster::{Cluster, pause};
use crate::install::decoded;
use crate::outage::{Installed, job};

const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// Token of the administrator.
const TOKEN: &str = "administrator";
/// Seconds that the API server may take to start on a busy machine.
const START_SECONDS: u32 = 240;
/// The first version of Kubernetes, after 1., that serves MutatingAdmissionPolicy in v1.
const POLICIES_V1: u32 = 36;
/// The first one that can serve it in v1beta1.
const POLICIES_V1BETA1: u32 = 34;

/// The folder of the programs. Skips the running test if it is missing.
fn assets() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os(ASSETS).map(PathBuf::from) else {
        skip(&format!("{ASSETS} is not set: it names a folder with kube-apiserver and etcd"));
        return None;
    };
    let missing = ["kube-apiserver", "etcd"].into_iter().find(|program| !folder.join(program).is_file());
    if let Some(program) = missing {
        skip(&format!("{ASSETS} is {}, which has no {program}", folder.display()));
        return None;
    }
    Some(folder)
}

/// An address of this machine that is not a loopback address, which endpoints may not have. Skips
/// the running test if there is none. Sends nothing.
fn address() -> Option<String> {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    match found {
        Ok(address) if !address.ip().is_loopback() => Some(address.ip().to_string()),
        _ => {
            skip("the machine has no address for endpoints of a Service but loopback addresses");
            None
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port()
}

/// Kubernetes' API server, with etcd.
struct Kubernetes {
    cluster: Cluster,
    etcd: u16,
    /// The version of `berth install --hold-policy`.
    policies: &'static str,
}

/// The minor version of `kube-apiserver --version`.
fn minor_version(programs: &Path) -> u32 {
    let output = Command::new(programs.join("kube-apiserver")).arg("--version").output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let minor = text.split('.').nth(1).and_then(|minor| minor.parse().ok());
    minor.unwrap_or_else(|| panic!("expected a version such as `Kubernetes v1.36.1`: {text}"))
}

impl Kubernetes {
    fn start(programs: &Path) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| home.path().join(name).display().to_string();
        let (etcd, peers, port) = (free_port(), free_port(), free_port());
        let start = |program: &str, arguments: &[String]| {
            let log = File::create(home.path().join(format!("{program}.log"))).expect("a log");
            let mut command = Command::new(programs.join(program));
            command.args(arguments).stdout(Stdio::null()).stderr(log).spawn().expect("the program starts")
        };
        let behind = start(
            "etcd",
            &[
                format!("--data-dir={}", path("etcd")),
                "--unsafe-no-fsync".to_owned(),
                format!("--listen-client-urls=http://127.0.0.1:{etcd}"),
                format!("--advertise-client-urls=http://127.0.0.1:{etcd}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
            ],
        );
        let key = KeyPair::generate().expect("a key");
        std::fs::write(home.path().join("accounts.key"), key.serialize_pem()).expect("written");
        std::fs::write(home.path().join("accounts.pub"), key.public_key_pem()).expect("written");
        std::fs::write(home.path().join("tokens.csv"), format!("{TOKEN},admin,admin,system:masters\n"))
            .expect("written");
        let mut arguments = vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            format!("--cert-dir={}", path("certificates")),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", path("accounts.key")),
            format!("--service-account-key-file={}", path("accounts.pub")),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            // Without nodes, no program routes the addresses of Services.
            "--enable-aggregator-routing=true".to_owned(),
        ];
        let policies = match minor_version(programs) {
            POLICIES_V1.. => "v1",
            POLICIES_V1BETA1.. => {
                arguments.push("--runtime-config=admissionregistration.k8s.io/v1beta1=true".to_owned());
                arguments.push("--feature-gates=MutatingAdmissionPolicy=true".to_owned());
                "v1beta1"
            }
            _ => "none",
        };
        let mut process = start("kube-apiserver", &arguments);
        let log = home.path().join("kube-apiserver.log");
        std::fs::write(home.path().join("kubeconfig"), kubeconfig(&path("certificates/apiserver.crt"), port, TOKEN))
            .expect("written");
        // The API server logs why it ends.
        let failed = || panic!("kube-apiserver: {}", std::fs::read_to_string(&log).unwrap_or_default());
        let options = ["--kubeconfig", &path("kubeconfig"), "get", "--raw", "/readyz"].map(str::to_owned);
        for attempt in 0.. {
            if Command::new("kubectl").args(&options).output().is_ok_and(|output| output.status.success()) {
                break;
            }
            let ended = process.try_wait().expect("the process can be polled").is_some();
            if ended || attempt == START_SECONDS {
                let _ = process.kill();
                failed();
            }
            pause(Duration::from_secs(1));
        }
        Self { cluster: Cluster::of(process, behind, home), etcd, policies }
    }
}

/// A kubeconfig of a user with this token.
fn kubeconfig(authority: &str, port: u16, token: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": authority}}],
        "users": [{"name": "a", "user": {"token": token}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]})
    .to_string()
}

/// The versions in which etcd has the objects of one of Kueue's kinds, without repetition.
fn stored(etcd: u16, plural: &str) -> Vec<String> {
    let base64 = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
    let prefix = format!("/registry/kueue.x-k8s.io/{plural}");
    // All keys that start with the prefix and a slash; 0 is the character after it.
    let range = json!({"key": base64(format!("{prefix}/")), "range_end": base64(format!("{prefix}0"))}).to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", etcd)).expect("etcd listens");
    write!(
        stream,
        "POST /v3/kv/range HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{range}",
        range.len()
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("a response");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let body: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let objects = body["kvs"].as_array().into_iter().flatten().map(|pair| decoded(&pair["value"]));
    let versions = objects.map(|object| {
        let object: Value = serde_json::from_str(&object).expect("custom resources are stored as JSON");
        object["apiVersion"].as_str().unwrap_or_default().trim_start_matches("kueue.x-k8s.io/").to_owned()
    });
    let mut versions: Vec<String> = versions.collect();
    versions.sort();
    versions.dedup();
    versions
}

fn migrate(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(["migrate", "--storage"]).args(arguments).arg("--kubeconfig").arg(&cluster.kubeconfig);
    command.output().expect("berth runs")
}

fn stored_versions(cluster: &Cluster, plural: &str) -> Value {
    cluster.get(&["customresourcedefinition", &format!("{plural}.kueue.x-k8s.io")])["status"]["storedVersions"].clone()
}

#[test]
fn an_installation_admits_jobs_and_moves_objects_between_versions_on_kubernetes_own_api_server() {
    if !has_kubectl() {
        return;
    }
    let (Some(programs), Some(address)) = (assets(), address()) else { return };
    let Kubernetes { cluster, etcd, policies } = Kubernetes::start(&programs);
    let here = Installed::on(cluster, &address, None, &["--hold-policy", policies]);
    let cluster = &here.cluster;
    // The controllers have the rights of their account, and no others.
    let admin: Value = serde_json::from_slice(&std::fs::read(&cluster.kubeconfig).expect("read")).expect("JSON");
    let server = &admin["clusters"][0]["cluster"];
    let port = server["server"].as_str().and_then(|url| url.rsplit(':').next()?.parse().ok()).expect("a port");
    let token = cluster.run(&["create", "token", "berth-controller", "-n", "berth-system"]);
    let authority = server["certificate-authority"].as_str().expect("a file");
    let own = kubeconfig(authority, port, token.trim());
    std::fs::write(cluster.kubeconfig.with_file_name("controller.kubeconfig"), own).expect("written");

    // Without controllers, the API server holds jobs by itself, unless it has no policies.
    cluster.run(&["create", "namespace", "team"]);
    if policies != "none" {
        cluster.wait_until("the policies to hold jobs", 30, |_| {
            here.create(&job("early", "team", Some("main"), "1"));
            let held = here.get("job", "early", "team")["spec"]["suspend"] == true;
            if !held {
                cluster.run(&["delete", "job", "early", "-n", "team"]);
            }
            held
        });
    }

    let controller = here.controller(&[]);
    here.queue("team", "main", "2");
    for name in ["early", "second", "third"] {
        here.create(&job(name, "team", Some("main"), "1"));
    }
    // The Job controller does this. The API server then lets a job start with node selectors and
    // labels.
    let suspended = r#"{"status": {"conditions": [{"type": "Suspended", "status": "True"}]}}"#;
    for name in ["early", "second", "third"] {
        cluster.run(&["patch", "job", name, "-n", "team", "--subresource=status", "--type=merge", "-p", suspended]);
    }
    let admitted = |cluster: &Cluster| {
        let workloads = cluster.get(&["workloads.v1beta2.kueue.x-k8s.io", "-n", "team"]);
        let workloads = workloads["items"].as_array().cloned().unwrap_or_default();
        workloads.iter().filter(|it| it["status"]["admission"].is_object()).count()
    };
    let started = |cluster: &Cluster| {
        let jobs = cluster.get(&["jobs", "-n", "team"]);
        jobs["items"].as_array().into_iter().flatten().filter(|job| job["spec"]["suspend"] == false).count()
    };
    cluster
        .wait_until("two of three jobs to be admitted", 60, |cluster| (admitted(cluster), started(cluster)) == (2, 2));

    // Each version shows what was written in the other one.
    let queue = cluster.get(&["clusterqueues.v1beta1.kueue.x-k8s.io", "team"]);
    assert_eq!(queue["apiVersion"], "kueue.x-k8s.io/v1beta1");
    here.create(&json!({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": "old"},
        "spec": {"cohort": "all", "namespaceSelector": {}}}));
    assert_eq!(cluster.get(&["clusterqueues.v1beta2.kueue.x-k8s.io", "old"])["spec"]["cohortName"], "all");
    assert_eq!(stored(etcd, "clusterqueues"), ["v1beta2"], "v1beta1 was converted before it was stored");

    // To the old version and back.
    let ok = |output: Output| assert!(output.status.success(), "{output:?}");
    ok(migrate(cluster, &["--storage-version", "v1beta1"]));
    for plural in ["workloads", "clusterqueues", "localqueues"] {
        assert_eq!(stored(etcd, plural), ["v1beta1"], "{plural}");
        assert_eq!(stored_versions(cluster, plural), json!(["v1beta1"]), "{plural}");
    }
    assert_eq!((admitted(cluster), started(cluster)), (2, 2));
    crate::install::install(&[
        "--apply",
        "--hold-policy",
        policies,
        "--kubeconfig",
        &cluster.kubeconfig.display().to_string(),
    ]);
    assert_eq!(stored_versions(cluster, "workloads"), json!(["v1beta1", "v1beta2"]));
    assert_eq!(stored(etcd, "localqueues"), ["v1beta1"], "an installation rewrites nothing");
    ok(migrate(cluster, &[]));
    for plural in ["workloads", "clusterqueues", "localqueues"] {
        assert_eq!(
            (stored(etcd, plural), stored_versions(cluster, plural)),
            (vec!["v1beta2".to_owned()], json!(["v1beta2"]))
        );
    }

    // The quota of a deleted job goes to the one that waits.
    let jobs = cluster.get(&["jobs", "-n", "team"]);
    let running = jobs["items"].as_array().into_iter().flatten().find(|job| job["spec"]["suspend"] == false);
    let name = running.and_then(|job| job["metadata"]["name"].as_str()).expect("a job runs");
    cluster.run(&["delete", "job", name, "-n", "team", "--cascade=background"]);
    cluster.wait_until("the job that waited to start", 60, |cluster| started(cluster) == 2);
    controller.terminate();
}
