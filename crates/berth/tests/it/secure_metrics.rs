//! Metrics over HTTPS, for clients that the API server authenticates and authorizes.

use std::process::Command;
use std::time::Duration;

use berth_testing::{has_kubectl, skip};

use crate::cluster::{Cluster, pause};
use crate::process::Process;

/// Status code and body of a GET with this token, by curl. The code is 0 if the handshake fails.
fn get(url: &str, token: Option<&str>) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--insecure", "--max-time", "20", "--write-out", "\n%{http_code}", url]);
    if let Some(token) = token {
        curl.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    let output = curl.output().expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').expect("a code");
    (code.parse().expect("a number"), body.to_owned())
}

#[test]
fn secure_metrics_are_for_clients_that_the_api_server_allows() {
    if !has_kubectl() {
        return;
    }
    if Command::new("curl").arg("--version").output().is_err() {
        skip("curl is not installed");
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    for name in ["reader", "other"] {
        cluster.run(&["create", "serviceaccount", name]);
    }
    let binding = ["create", "clusterrolebinding", "reader", "--clusterrole", "berth-metrics-reader"];
    cluster.run(&[&binding[..], &["--serviceaccount", "default:reader"]].concat());
    let token = |name: &str| cluster.run(&["create", "token", name]).trim().to_owned();
    let controller = Process::controller(&cluster, &["--metrics-secure"]);
    controller.wait_logged("/metrics");
    let line = controller.line("/metrics").expect("it was logged");
    let url = line.split_whitespace().find(|word| word.starts_with("https://")).expect("an address").to_owned();
    // The certificate is that of the webhooks, which is made after the start.
    for _ in 0..600 {
        if get(&url, None).0 != 0 {
            break;
        }
        pause(Duration::from_millis(50));
    }
    let (code, text) = get(&url, None);
    assert_eq!((code, text.as_str()), (401, "a bearer token is required\n"));
    assert_eq!(get(&url, Some("none")).0, 401);
    let (code, text) = get(&url, Some(&token("other")));
    assert!(code == 403 && text.contains("system:serviceaccount:default:other"), "{code} {text}");
    let reader = token("reader");
    let (code, text) = get(&url, Some(&reader));
    assert!(code == 200 && text.contains("kueue_build_info{"), "{code} {text}");
    assert!(text.contains("rest_client_requests_total{code=\"201\""), "{text}");
    assert_eq!(get(&url.replace("/metrics", "/explain/a/b"), Some(&reader)).0, 403);
}
