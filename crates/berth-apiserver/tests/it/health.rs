//! `/healthz`, `/livez`, `/readyz` as probes and people ask for them.

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;

use crate::harness::{Server, server};

async fn ask(server: &Server, uri: &str) -> (u16, String) {
    let response = server.raw(Method::GET, uri, &[], Bytes::new()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(start_paused = true)]
async fn checks_are_told_one_by_one_when_asked_for() {
    let server = server();
    // Not ready while not everything is there; then every check is told. Alive all the same.
    let (code, text) = ask(&server, "/readyz").await;
    let told = "[+]ping ok\n[+]etcd ok\n[-]poststarthook/rbac/bootstrap-roles failed: not finished\n";
    assert_eq!((code, text), (500, format!("{told}readyz check failed\n")));
    assert_eq!(ask(&server, "/readyz/poststarthook/rbac/bootstrap-roles").await.0, 500);
    assert_eq!(ask(&server, "/livez").await.0, 200);
    server.api.ready().await.expect("stored");
    for probe in ["/healthz", "/livez", "/readyz", "/readyz/", "/livez/ping", "/healthz/etcd"] {
        assert_eq!(ask(&server, probe).await, (200, "ok".to_owned()), "{probe}");
    }
    let (code, text) = ask(&server, "/livez?verbose").await;
    assert_eq!((code, text.as_str()), (200, "[+]ping ok\n[+]etcd ok\nlivez check passed\n"));
    let (_, text) = ask(&server, "/livez?verbose=1&exclude=etcd&exclude=nothing").await;
    let warning = "warn: some health checks cannot be excluded: no matches for \"nothing\"\n";
    assert_eq!(text, format!("[+]ping ok\n[+]etcd excluded: ok\n{warning}livez check passed\n"));
    for missing in ["/healthz/nothing", "/livez/poststarthook/rbac/bootstrap-roles", "/livezz"] {
        assert_eq!(ask(&server, missing).await.0, 404, "{missing}");
    }
    let (_, text) = ask(&server, "/").await;
    assert!(text.contains("\"/readyz/poststarthook/rbac/bootstrap-roles\""), "{text}");
}
