//! The web pages of `berth up` and of `berth controller` over HTTP: how readers are recognized.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use berth_apiserver::pki::Pki;
use berth_testing::{has_kubectl, skip};

use crate::cluster::{Cluster, pause};
use crate::process::Process;

/// Status code and response with headers, by curl. The code is 0 if the connection fails.
fn curl(url: &str, arguments: &[&str]) -> (u16, String) {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--insecure", "--include", "--max-time", "20", "--write-out", "\n%{http_code}", url]);
    let output = curl.args(arguments).output().expect("curl runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').expect("a code");
    (code.parse().expect("a number"), body.to_owned())
}

fn has_programs() -> bool {
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if !has_curl {
        skip("curl is not installed");
    }
    has_curl && has_kubectl()
}

/// The cookie that a response sets.
fn cookie(response: &str) -> String {
    let line = response.lines().find(|line| line.to_ascii_lowercase().starts_with("set-cookie:"));
    let value = line.and_then(|line| line.split_once(": ")).map(|(_, value)| value).expect("a cookie");
    value.split(';').next().expect("a pair").to_owned()
}

/// Files with a client certificate.
fn certificate(folder: &Path, pki: &Pki, user: &str, group: Option<&str>) -> [PathBuf; 2] {
    let identity = pki.client(user, group).expect("a certificate");
    let files = [folder.join(format!("{user}.crt")), folder.join(format!("{user}.key"))];
    std::fs::write(&files[0], identity.certificate_pem).expect("written");
    std::fs::write(&files[1], identity.key_pem).expect("written");
    files
}

#[test]
fn readers_of_the_controllers_pages_are_recognized_by_token_certificate_and_proxy() {
    if !has_programs() {
        return;
    }
    let cluster = Cluster::apiserver(&[]);
    cluster.run(&["create", "namespace", "team"]);
    for name in ["ann", "bob"] {
        cluster.run(&["create", "serviceaccount", name]);
    }
    let role = "--clusterrole=berth-explanation-viewer-role";
    let subjects = ["--serviceaccount=default:ann", "--user=carol", "--group=readers"];
    cluster.run(&[&["create", "rolebinding", "ann", "-n", "team", role], &subjects[..]].concat());
    // Users by certificate and proxy are impersonated: docs/dashboard.md.
    cluster.run(&["create", "clusterrole", "impersonator", "--verb=impersonate", "--resource=users,groups"]);
    let controllers = format!("--user={}", berth_controllers::rights::USER);
    cluster.run(&["create", "clusterrolebinding", "impersonator", "--clusterrole=impersonator", &controllers]);
    let token = |name: &str| cluster.run(&["create", "token", name]).trim().to_owned();
    let folder = tempfile::tempdir().expect("a folder");
    let [users, proxies] = [(); 2].map(|()| Pki::ephemeral(berth_runtime::Clock::system().now()).expect("authorities"));
    let [users_ca, proxies_ca] = ["users.pem", "proxies.pem"].map(|name| folder.path().join(name));
    std::fs::write(&users_ca, users.authority_pem()).expect("written");
    std::fs::write(&proxies_ca, proxies.authority_pem()).expect("written");
    let [users_ca, proxies_ca] = [users_ca, proxies_ca].map(|path| path.display().to_string());
    let options = ["--dashboard-bind-address=127.0.0.1:0", "--dashboard-client-ca-file", &users_ca];
    let of_proxy = ["--dashboard-proxy-ca-file", &proxies_ca, "--dashboard-proxy-name=gate"];
    let controller = Process::controller(&cluster, &[&options[..], &of_proxy[..]].concat());
    let line = controller.wait_logged("serving web pages at");
    let base = line.split_whitespace().find(|word| word.starts_with("https://")).expect("an address").to_owned();
    let jobs = format!("{base}/jobs?ns=team");
    for _ in 0..600 {
        if curl(&jobs, &["--header", &format!("Authorization: Bearer {}", token("ann"))]).0 == 200 {
            break;
        }
        pause(Duration::from_millis(100));
    }

    // Without credentials, and with invalid ones.
    let (code, page) = curl(&jobs, &[]);
    assert!(code == 401 && page.contains("Log in"), "{code} {page}");
    assert_eq!(curl(&jobs, &["--header", "Authorization: Bearer none"]).0, 401);
    assert_eq!(curl(&format!("{base}/live?page=/jobs"), &[]).0, 401);
    // By token, as a header and as a session.
    let with = |name: &str| curl(&jobs, &["--header", &format!("Authorization: Bearer {}", token(name))]);
    let (code, page) = with("ann");
    assert_eq!(code, 200, "{page}");
    let (code, page) = with("bob");
    assert!(code == 403 && page.contains("system:serviceaccount:default:bob"), "{code} {page}");
    let login = |token: &str, origin: &str| {
        let (form, origin) = (format!("token={token}"), format!("Origin: {origin}"));
        curl(&format!("{base}/login"), &["--data", &form, "--header", &origin])
    };
    assert_eq!(login("none", &base).0, 403);
    assert_eq!(login(&token("ann"), "https://evil.example").0, 403);
    let (code, page) = login(&token("ann"), &base);
    assert_eq!(code, 303, "{page}");
    let session = cookie(&page);
    assert!(page.contains("HttpOnly; SameSite=Strict") && page.contains("; Secure"), "{page}");
    let (code, page) = curl(&jobs, &["--cookie", &session]);
    assert!(code == 200 && page.contains("system:serviceaccount:default:ann"), "{code} {page}");
    let logout = ["--cookie", &session, "--request", "POST", "--header", &format!("Origin: {base}")];
    assert_eq!(curl(&format!("{base}/logout"), &logout).0, 303);
    assert_eq!(curl(&jobs, &["--cookie", &session]).0, 401);
    // By certificate. One of another authority is none.
    let by = |[certificate, key]: &[PathBuf; 2], headers: &[&str]| {
        let files = [certificate, key].map(|path| path.display().to_string());
        let headers = headers.iter().flat_map(|header| ["--header", header]);
        curl(&jobs, &["--cert", &files[0], "--key", &files[1]].into_iter().chain(headers).collect::<Vec<_>>())
    };
    let carol = certificate(folder.path(), &users, "carol", None);
    let (code, page) = by(&carol, &[]);
    assert!(code == 200 && page.contains("carol"), "{code} {page}");
    assert_eq!(by(&certificate(folder.path(), &users, "dave", None), &[]).0, 403);
    assert_eq!(by(&certificate(folder.path(), &proxies, "carol2", None), &[]).0, 401);
    // By the headers of the proxy, and of no other client.
    let gate = certificate(folder.path(), &proxies, "gate", None);
    let asserted = ["X-Remote-User: erin", "X-Remote-Group: readers"];
    let (code, page) = by(&gate, &asserted);
    assert!(code == 200 && page.contains("erin"), "{code} {page}");
    assert_eq!(by(&gate, &asserted[..1]).0, 403);
    assert_eq!(by(&gate, &[]).0, 401);
    assert_eq!(curl(&jobs, &["--header", asserted[0], "--header", asserted[1]]).0, 401);
    let (code, page) = by(&certificate(folder.path(), &users, "frank", None), &asserted);
    assert!(code == 403 && page.contains("frank"), "headers of users are not trusted: {code} {page}");
    assert_eq!(curl(&jobs, &["--header", "Host: evil.example"]).0, 421);
}

#[test]
fn the_printed_address_opens_the_pages_of_an_embedded_cluster() {
    if !has_programs() {
        return;
    }
    let cluster = Cluster::ephemeral(&["--dashboard-bind-address=127.0.0.1:0"]);
    let address = cluster.printed("Web pages").expect("an address");
    let (base, _) = address.split_once("/?key=").expect("a key");
    assert_eq!(curl(&format!("{base}/"), &[]).0, 401);
    assert_eq!(curl(&format!("{base}/?key=guess"), &[]).0, 403);
    let (code, page) = curl(&address, &[]);
    assert!(code == 303 && !page.contains("Secure"), "{code} {page}");
    let session = cookie(&page);
    for path in ["/", "/jobs", "/nodes", "/provisioning", "/preemptions", "/usage", "/what-if"] {
        let (code, page) = curl(&format!("{base}{path}"), &["--cookie", &session]);
        assert!(code == 200 && page.contains("Log out"), "{path}: {code} {page}");
    }
    // Without a session, no page and no stream is served, except what the log-in page needs.
    for form in berth_dashboard::routes() {
        let path = form.replace(['{', '}'], "");
        let expected = if path.contains('.') { 200 } else { 401 };
        assert_eq!(curl(&format!("{base}{path}"), &[]).0, expected, "{path}");
        assert_eq!(curl(&format!("{base}/live?page={path}"), &[]).0, 401, "{path}");
    }
    // A token of the cluster has its own rights.
    cluster.run(&["create", "serviceaccount", "bob"]);
    let token = cluster.run(&["create", "token", "bob"]);
    let bob = format!("Authorization: Bearer {}", token.trim());
    assert_eq!(curl(&format!("{base}/nodes"), &["--header", &bob]).0, 403);
    let live = curl(&format!("{base}/live?page=/nodes"), &["--header", &bob, "--max-time", "5"]);
    assert!(live.1.contains("event: end"), "{live:?}");
}
