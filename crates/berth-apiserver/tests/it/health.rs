//! `/healthz`, `/livez` and `/readyz`, for probes and for users.

use std::sync::Mutex;

use berth_apiserver::ApiServer;
use berth_store::{CommitFuture, MemoryStore, Store, Trouble, Write};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;

use crate::harness::{Server, config_on, server};
use crate::intercepted_store::{CommitInterceptor, InterceptedStore};

async fn ask(server: &Server, uri: &str) -> (u16, String) {
    let response = server.raw(Method::GET, uri, &[], Bytes::new()).await;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test(start_paused = true)]
async fn verbose_health_lists_every_check() {
    let server = server();
    // The server is not ready before bootstrap is complete, and lists every check. It is alive.
    let (code, text) = ask(&server, "/readyz").await;
    let expected = "[+]ping ok\n[+]etcd ok\n[-]poststarthook/rbac/bootstrap-roles failed: not finished\n";
    assert_eq!((code, text), (500, format!("{expected}readyz check failed\n")));
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

/// A store that reports that it cannot write.
#[derive(Default)]
struct FailingStore(Mutex<Option<Trouble>>);

impl CommitInterceptor for FailingStore {
    fn commit(&self, store: &MemoryStore, user: &str, write: Write) -> CommitFuture {
        store.commit_for(user, write)
    }

    fn trouble(&self) -> Option<Trouble> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_write_is_not_ready_but_alive_unless_a_restart_helps() {
    let store = InterceptedStore::new(FailingStore::default());
    let server = Server { api: ApiServer::new(config_on(store.clone())) };
    server.api.ready().await.expect("stored");
    let set = |restart_helps: Option<bool>| {
        let trouble = |restart_helps| Trouble { reason: "the disk has failed".to_owned(), restart_helps };
        *store.interceptor.0.lock().unwrap() = restart_helps.map(trouble);
    };
    for (restart_helps, alive, ready) in
        [(None, 200, 200), (Some(false), 200, 500), (Some(true), 500, 500), (None, 200, 200)]
    {
        set(restart_helps);
        assert_eq!(ask(&server, "/livez").await.0, alive, "{restart_helps:?}");
        for probe in ["/readyz", "/healthz", "/readyz/etcd"] {
            let (code, text) = ask(&server, probe).await;
            assert_eq!(code, ready, "{probe}, {restart_helps:?}");
            assert_eq!(text.contains("the store cannot write: the disk has failed"), ready == 500, "{text}");
        }
        let status = server.get("/api/v1/componentstatuses/etcd-0").await.expect(200);
        let message = status["conditions"][0]["message"].as_str().unwrap();
        assert_eq!(message.contains("the disk has failed"), ready == 500, "{message}");
    }
}
