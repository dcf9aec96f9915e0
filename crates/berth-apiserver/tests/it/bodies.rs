//! Invalid request bodies: nested too deeply, or never received.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use berth_apiserver::UserInfo;
use bytes::Bytes;
use http::{Method, Request};
use http_body::Frame;

use crate::harness::{read, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(start_paused = true)]
async fn a_body_that_is_nested_too_deeply_is_rejected() {
    let server = server();
    server.post(MAPS, serde_json::json!({"metadata": {"name": "a"}})).await.expect(201);
    for depth in [200, 10_000, 400_000] {
        let lists = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let maps = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        let blocks: String = (0..depth.min(2000)).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
        for deep in [lists, maps] {
            for (method, uri, media) in [
                (Method::POST, MAPS.to_owned(), "application/json"),
                (Method::POST, MAPS.to_owned(), "application/yaml"),
                (Method::PATCH, format!("{MAPS}/a"), "application/merge-patch+json"),
                (Method::PATCH, format!("{MAPS}/a?fieldManager=m"), "application/apply-patch+yaml"),
                (Method::DELETE, format!("{MAPS}/a"), "application/json"),
            ] {
                let body = format!("{{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"data\": {deep}}}");
                let answer = read(server.raw(method, &uri, &[("content-type", media)], body).await).await;
                let rejected = answer.expect(400);
                assert_eq!(rejected["reason"], "BadRequest");
            }
        }
        let answer = read(server.raw(Method::POST, MAPS, &[("content-type", "application/yaml")], blocks).await).await;
        answer.expect(400);
    }
    server.get(MAPS).await.expect(200);
}

/// A body that never yields data.
struct Silent;

impl http_body::Body for Silent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_arrives_times_out() {
    let server = server();
    let start = tokio::time::Instant::now();
    let request = Request::builder().method(Method::POST).uri(MAPS).body(Silent).unwrap();
    let answer = read(server.api.handle(request, UserInfo::master("tester")).await).await;
    assert_eq!((answer.code, start.elapsed().as_secs()), (504, 60), "{}", answer.body);
}
