//! kubectl and the programs of a pod, without a terminal: copies, forwarded ports, logs and
//! proxies.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use berth_testing::{has_kubectl, skip};

use crate::cluster::{Cluster, file};

const SERVICE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
    "selector": {"app": "web"}, "ports": [{"name": "web", "port": 80, "targetPort": 8080}]}}"#;

const CRASHING: &str = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "crashing"}, "spec": {
    "containers": [{"name": "main", "image": "busybox",
     "command": ["sh", "-c", "echo ran; exit 4"]}]}}"#;

#[test]
fn kubectl_reaches_the_programs_of_a_pod() {
    if !rustix::process::geteuid().is_root() {
        return skip("full isolation needs root");
    }
    if !has_kubectl() {
        return;
    }
    if !Path::new("/usr/bin/python3").exists() {
        return skip("python3 is not installed");
    }
    let cluster = Cluster::ephemeral(&["--runtime", "process", "--isolation", "full"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (name, text) in [("service.json", SERVICE), ("crashing.json", CRASHING)] {
        std::fs::write(path(name), text).expect("written");
        cluster.run(&["apply", "-f", &path(name)]);
    }
    cluster.run(&["apply", "-f", &file("tests/clients/pods.json")]);
    cluster.run(&["label", "pod", "real", "app=web"]);
    cluster.run(&["wait", "--for=condition=Ready", "pod/real", "--timeout=60s"]);

    copies(&cluster, &path("copied"), &path("back"));
    for (target, port) in [("pod/real", 8080), ("svc/web", 80)] {
        forwards(&cluster, target, port);
    }
    logs(&cluster);
    for url in [
        "/api/v1/namespaces/default/services/web/proxy/",
        "/api/v1/namespaces/default/services/http:web:web/proxy/",
        "/api/v1/namespaces/default/pods/real:8080/proxy/",
    ] {
        let page = cluster.run(&["get", "--raw", url]);
        assert!(page.contains("Directory listing"), "{url}: {page}");
    }
    for command in [["exec", "simulated", "--", "true"].as_slice(), &["attach", "simulated"]] {
        let refused = cluster.refused(command);
        assert!(refused.contains("simulated"), "{refused}");
    }
    cluster.interrupt();
}

/// Copies a folder to a pod and back (`cp`), and runs a command that fails.
fn copies(cluster: &Cluster, from: &str, back: &str) {
    std::fs::create_dir_all(format!("{from}/sub")).expect("a folder");
    std::fs::write(format!("{from}/sub/file"), vec![7; 1 << 20]).expect("written");
    cluster.run(&["cp", "-c", "main", from, "real:/tmp/there"]);
    cluster.run(&["cp", "-c", "main", "real:/tmp/there", back]);
    assert_eq!(std::fs::read(format!("{back}/sub/file")).expect("copied"), vec![7; 1 << 20]);
    let missing = cluster.refused(&["exec", "real", "-c", "main", "--", "cat", "/tmp/missing"]);
    assert!(missing.contains("No such file") && missing.contains("exit code 1"), "{missing}");
}

/// `port-forward` to a pod or a service.
fn forwards(cluster: &Cluster, target: &str, port: u16) {
    let forwarded = cluster.forward(target, port);
    let mut connection = TcpStream::connect(&forwarded.address).expect("connected");
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
    let mut page = String::new();
    connection.read_to_string(&mut page).expect("a response");
    assert!(page.contains("Directory listing"), "{target}: {page}");
}

/// The options of `logs`.
fn logs(cluster: &Cluster) {
    // The lines are written to the standard output of the container's first process.
    let print = "for i in 1 2 3; do echo $i > /proc/1/fd/1; done";
    cluster.run(&["exec", "real", "-c", "main", "--", "sh", "-c", print]);
    let lines = |arguments: &[&str]| cluster.run(&[&["logs", "real", "-c", "main"], arguments].concat());
    cluster.wait_until("the printed lines", 30, |_| lines(&[]).ends_with("ready\n1\n2\n3\n"));
    assert_eq!(lines(&["--tail", "2"]), "2\n3\n");
    assert_eq!(lines(&["--since", "1h", "--limit-bytes", "6"]), "ready\n");
    assert_eq!(lines(&["--since-time", "2999-01-01T00:00:00Z"]), "");
    let stamped = lines(&["--timestamps", "--tail", "1"]);
    assert!(stamped.contains('T') && stamped.ends_with("Z 3\n"), "{stamped}");
    let labelled = cluster.run(&["logs", "-l", "app=web", "-c", "main", "--prefix", "--tail", "1"]);
    assert_eq!(labelled, "[pod/real/main] 3\n");
    // A run that has ended is shown while the next one waits.
    cluster.wait_until("a second run", 60, |cluster| {
        let status = &cluster.get(&["pod", "crashing"])["status"];
        status["containerStatuses"][0]["restartCount"].as_u64() >= Some(1)
    });
    assert!(cluster.run(&["logs", "--previous", "crashing"]).starts_with("ran\n"));
    let absent = cluster.refused(&["logs", "real", "-c", "absent"]);
    assert!(absent.contains("container absent is not valid for pod real"), "{absent}");
}
