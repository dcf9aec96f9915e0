//! Pods of a user without privileges, in the pod network of the rootless level.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use berth_testing::{has_kubectl, skip};
use serde_json::json;

use crate::cluster::{Cluster, pause};

/// Prints the first line of the response to a request: `python3 -c ASK URL`. Any status will do.
const ASK: &str = "
import ssl, sys, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20, context=context).read(20).decode())
except urllib.error.HTTPError as error:
    print('status', error.code)
";

/// A pod that serves its name on port 8080 of all addresses, and a Service for it.
fn served(name: &str) -> serde_json::Value {
    let script = format!("cd $(mktemp -d) && echo {name} > name && exec python3 -m http.server 8080");
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": "python",
                "command": ["sh", "-c", script],
                "ports": [{"containerPort": 8080}],
                "readinessProbe": {"httpGet": {"port": 8080, "path": "/name"}, "periodSeconds": 1}
            }]
        }},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {
            "type": "NodePort", "selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]
        }}
    ]})
}

#[test]
fn pods_without_privileges_have_addresses_names_services_and_a_way_out() {
    if !has_kubectl() {
        return;
    }
    if !Path::new("/usr/bin/python3").exists() {
        return skip("python3 is not installed");
    }
    let data = tempfile::tempdir().expect("a temporary folder");
    let arguments = ["--runtime", "process", "--isolation", "rootless"];
    let Some(cluster) = Cluster::unprivileged(data.path(), &arguments) else { return };
    assert!(cluster.printed_network().starts_with("rootless "), "{}", cluster.printed_network());
    let manifest = data.path().join("pods.json");
    for name in ["one", "two"] {
        std::fs::write(&manifest, served(name).to_string()).expect("written");
        cluster.run(&["apply", "-f", &manifest.display().to_string()]);
    }
    // Both listen at the same port of all addresses. The probes reach them.
    cluster.run(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=120s"]);
    let two = cluster.get(&["pod", "two"]);
    let address = two["status"]["podIP"].as_str().expect("an address").to_owned();
    let ask = |cluster: &Cluster, url: &str| {
        let output = cluster.run(&["exec", "one", "--", "python3", "-c", ASK, url]);
        output.trim().to_owned()
    };
    assert_eq!(ask(&cluster, &format!("http://{address}:8080/name")), "two");
    assert_eq!(ask(&cluster, "http://two.default.svc.cluster.local/name"), "two");
    assert_eq!(ask(&cluster, "http://two/name"), "two");
    let api_server = ask(&cluster, "https://kubernetes.default.svc/api");
    assert!(api_server.starts_with("status 40"), "{api_server}");
    let variable = ["exec", "one", "--", "sh", "-c", "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"];
    assert_eq!(cluster.run(&variable).trim(), "10.96.0.1:443");
    reaches_the_machine(&cluster, &two, &ask);
    from_the_machine(&cluster);

    // The pods and their network survive the process.
    let started = &two["status"]["containerStatuses"][0]["state"]["running"]["startedAt"];
    cluster.kill();
    let with_end = [&arguments[..], &["--stop-pods"]].concat();
    let cluster = Cluster::unprivileged(data.path(), &with_end).expect("it started before");
    let again = cluster.get(&["pod", "two"]);
    assert_eq!(again["status"]["podIP"], address.as_str());
    assert_eq!(&again["status"]["containerStatuses"][0]["state"]["running"]["startedAt"], started);
    assert_eq!(ask(&cluster, &format!("http://{address}:8080/name")), "two");
    cluster.wait_until("the name", 20, |cluster| {
        let arguments = ["exec", "one", "--", "python3", "-c", ASK, "http://two/name"];
        cluster.kubectl(&arguments).stdout.starts_with(b"two")
    });
    cluster.interrupt();
    assert!(
        (0..240).any(|_| processes(data.path()).is_empty() || {
            pause(Duration::from_millis(250));
            false
        }),
        "left behind: {:?}",
        processes(data.path())
    );
}

/// A pod reaches a program of the machine at the node's address, but not at a loopback address.
fn reaches_the_machine(cluster: &Cluster, pod: &serde_json::Value, ask: &impl Fn(&Cluster, &str) -> String) {
    let node: IpAddr = pod["status"]["hostIP"].as_str().and_then(|it| it.parse().ok()).expect("the node's address");
    if node.is_loopback() {
        return skip("this machine has only loopback addresses");
    }
    let listener = TcpListener::bind(("0.0.0.0", 0)).expect("a listener");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // A connection that is closed with unread bytes is reset.
            let mut request = BufReader::new(&stream).lines().map_while(Result::ok);
            let _ = request.find(String::is_empty);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nthe machine");
        }
    });
    assert_eq!(ask(cluster, &format!("http://{node}:{port}/")), "the machine");
    let url = format!("http://127.0.0.1:{port}/");
    let refused = cluster.refused(&["exec", "one", "--", "python3", "-c", ASK, &url]);
    assert!(refused.contains("Connection refused"), "{refused}");
}

/// The machine reaches a pod by the proxies of the API server and at a node port.
fn from_the_machine(cluster: &Cluster) {
    for url in ["services/two/proxy/name", "pods/two:8080/proxy/name"] {
        let page = cluster.run(&["get", "--raw", &format!("/api/v1/namespaces/default/{url}")]);
        assert_eq!(page.trim(), "two", "{url}");
    }
    let service = cluster.get(&["service", "two"]);
    let port = service["spec"]["ports"][0]["nodePort"].as_u64().expect("a node port");
    let forwarded = cluster.forward("pod/two", 8080);
    for address in [format!("127.0.0.1:{port}"), forwarded.address.clone()] {
        let mut stream = TcpStream::connect(&address).expect("connected");
        stream.write_all(b"GET /name HTTP/1.0\r\n\r\n").expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("a response");
        assert!(page.ends_with("two\n"), "{address}: {page}");
    }
}

/// Command lines of the processes of a cluster, other than this test's.
fn processes(data: &Path) -> Vec<String> {
    let folder = data.display().to_string();
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&folder)).collect()
}
