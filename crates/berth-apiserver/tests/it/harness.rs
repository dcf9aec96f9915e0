//! An in-memory server whose clock follows tokio's (paused) time, and helpers to send requests.

use std::sync::Arc;

use berth_apiserver::{ApiServer, Body, Config, UserInfo};
use berth_store::{MemoryStore, Store};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::Value;

pub struct Server {
    pub api: ApiServer,
}

/// A completely read response.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{:#}", self.body);
        self.body
    }
}

pub fn config() -> Config {
    config_on(Arc::new(MemoryStore::new()))
}

pub fn config_on(store: Arc<dyn Store>) -> Config {
    let start = tokio::time::Instant::now();
    let epoch: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let clock = Arc::new(move || {
        let passed = jiff::SignedDuration::try_from(start.elapsed()).unwrap();
        epoch.checked_add(passed).unwrap()
    });
    Config::new(store, clock)
}

pub fn server() -> Server {
    Server { api: ApiServer::new(config()) }
}

impl Server {
    pub async fn raw(
        &self,
        method: Method,
        uri: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        self.api.handle(request, UserInfo::master("tester")).await
    }

    async fn ask(&self, method: Method, uri: &str, content_type: &str, body: &Value) -> Answer {
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        read(self.raw(method, uri, &[("content-type", content_type)], bytes).await).await
    }

    /// Sends a request as a user other than the administrator.
    pub async fn request_as(
        &self,
        user: &UserInfo,
        method: Method,
        uri: &str,
        content_type: &str,
        body: &Value,
    ) -> Answer {
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = Request::builder().method(method).uri(uri).header("content-type", content_type);
        read(self.api.handle(request.body(Full::new(bytes.into())).unwrap(), user.clone()).await).await
    }

    pub async fn get(&self, uri: &str) -> Answer {
        self.ask(Method::GET, uri, "", &Value::Null).await
    }

    pub async fn post(&self, uri: &str, body: Value) -> Answer {
        self.ask(Method::POST, uri, "application/json", &body).await
    }

    pub async fn put(&self, uri: &str, body: Value) -> Answer {
        self.ask(Method::PUT, uri, "application/json", &body).await
    }

    pub async fn delete(&self, uri: &str, body: Value) -> Answer {
        self.ask(Method::DELETE, uri, "application/json", &body).await
    }

    pub async fn patch(&self, uri: &str, kind: &str, body: Value) -> Answer {
        let media = match kind {
            "apply" => "application/apply-patch+yaml".to_owned(),
            kind => format!("application/{kind}+json"),
        };
        self.ask(Method::PATCH, uri, &media, &body).await
    }

    pub async fn table(&self, uri: &str) -> Answer {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        read(self.raw(Method::GET, uri, &[("accept", accept)], Bytes::new()).await).await
    }

    /// Starts a watch. Its events are read with [`Watch::next`].
    pub async fn watch(&self, uri: &str) -> Watch {
        let response = self.raw(Method::GET, uri, &[], Bytes::new()).await;
        assert_eq!(response.status(), StatusCode::OK);
        Watch { body: response.into_body(), lines: Default::default() }
    }
}

pub async fn read(response: Response<Body>) -> Answer {
    let code = response.status().as_u16();
    let warnings =
        response.headers().get_all("warning").iter().map(|value| value.to_str().unwrap().to_owned()).collect();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()))
    };
    Answer { code, body, warnings }
}

pub struct Watch {
    body: Body,
    lines: std::collections::VecDeque<Value>,
}

impl Watch {
    /// The next event; `None` when the watch has ended.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        while self.lines.is_empty() {
            let chunk = self.body.frame().await?.unwrap().into_data().unwrap();
            self.lines.extend(
                chunk
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty())
                    .map(|line| serde_json::from_slice(line).unwrap()),
            );
        }
        let mut event: Value = self.lines.pop_front().unwrap();
        Some((event["type"].as_str().unwrap().to_owned(), event["object"].take()))
    }

    /// The next event as `TYPE name`.
    pub async fn brief(&mut self) -> String {
        let (kind, object) = self.next().await.expect("the watch has ended");
        format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or("-"))
    }
}
