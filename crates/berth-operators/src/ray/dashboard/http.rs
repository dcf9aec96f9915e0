//! The dashboard of a head that runs Ray, reached through the API server's proxy for Services and
//! pods.
//!
//! Source: Ray's documentation of its job REST API and of the REST API of Ray Serve.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::client::Body;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;

use super::{Answer, Application, JobInfo, Jobs, POLL, Serve, Submission};
use crate::ray::constants::DASHBOARD_PORT_NAME;
use crate::ray::job::types::program;

/// Time that the dashboard gets to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of characters of a dashboard's response that an error message quotes.
const QUOTED_MAX: usize = 300;

/// The dashboard of a cluster.
#[derive(Clone)]
pub struct Http {
    /// Client of the API server.
    pub client: Client,
    /// Namespace of the cluster.
    pub namespace: String,
    /// Head Service of the cluster.
    pub service: String,
    /// Token that the dashboard expects.
    pub token: Option<String>,
    /// Name of the head pod, and its port for requests to applications.
    pub head: Option<(String, i32)>,
}

/// The token in a Secret.
///
/// # Errors
/// The Secret cannot be read or has no token.
pub async fn token(client: &Client, namespace: &str, secret: &str) -> Result<String, String> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let of = |problem: String| format!("the dashboard's token, in Secret {namespace}/{secret}: {problem}");
    let found = berth_runtime::write::get(&api, secret).await.map_err(|error| of(berth_runtime::message(&error)))?;
    let token = found.data.as_ref().and_then(|data| data.get("auth_token"));
    let token = token.ok_or_else(|| of("key auth_token is missing".to_owned()))?;
    String::from_utf8(token.0.clone()).map_err(|_| of("key auth_token is not text".to_owned()))
}

/// A response: its status code and text.
struct Response {
    status: StatusCode,
    text: String,
}

impl Response {
    /// The text of a successful response.
    fn success(self, what: &str) -> Result<String, String> {
        if self.status.is_success() {
            return Ok(self.text);
        }
        let quoted: String = self.text.chars().take(QUOTED_MAX).collect();
        Err(format!("{what}: the dashboard answered {}: {quoted}", self.status))
    }

    /// The error message of the API server, if the response comes from the API server and not from
    /// the dashboard.
    fn api_error(&self) -> Option<String> {
        let status: Value = serde_json::from_str(&self.text).ok()?;
        (status["kind"] == "Status").then(|| status["message"].as_str().unwrap_or_default().to_owned())
    }
}

impl Http {
    /// Sends a request to the dashboard; `path` starts after the host.
    async fn dashboard(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response, String> {
        let target = format!("services/{}:{DASHBOARD_PORT_NAME}", self.service);
        self.send(method, &target, path, body).await
    }

    async fn send(&self, method: Method, target: &str, path: &str, body: Option<&Value>) -> Result<Response, String> {
        let url = format!("/api/v1/namespaces/{}/{target}/proxy/{path}", self.namespace);
        let mut request = Request::builder().method(method).uri(url);
        if let Some(token) = &self.token {
            request = request.header("x-ray-authorization", format!("Bearer {token}"));
        }
        let body = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Body::from(body.to_string().into_bytes())
            }
            None => Body::empty(),
        };
        let request = request.body(body).map_err(|error| error.to_string())?;
        let answer = async {
            let response = self.client.send(request).await.map_err(|error| berth_runtime::message(&error))?;
            let status = response.status();
            let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
            Ok(Response { status, text: String::from_utf8_lossy(&bytes).into_owned() })
        };
        let in_time = tokio::time::timeout(TIMEOUT, answer).await;
        in_time.unwrap_or_else(|_| Err(format!("{target} has not answered for {} s", TIMEOUT.as_secs())))
    }

    async fn ask(&self, id: &str) -> Answer {
        let response = match self.dashboard(Method::GET, &format!("api/jobs/{id}"), None).await {
            Ok(response) => response,
            Err(problem) => return Answer::Unreachable(problem),
        };
        if let Some(problem) = response.api_error() {
            return Answer::Unreachable(problem);
        }
        if response.status == StatusCode::NOT_FOUND {
            return Answer::Unknown;
        }
        let read = response.success("status of the Ray job").and_then(|text| Details::read(&text));
        read.map_or_else(Answer::Unreachable, Answer::Known)
    }
}

/// A program as the job API describes it. Times are in milliseconds since 1970.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    status: String,
    message: Option<String>,
    start_time: Option<i64>,
    end_time: Option<i64>,
}

impl Details {
    fn read(text: &str) -> Result<JobInfo, String> {
        let details: Self = serde_json::from_str(text).map_err(|error| {
            let quoted: String = text.chars().take(QUOTED_MAX).collect();
            format!("status of the Ray job: {error}: {quoted}")
        })?;
        let time = |millis: Option<i64>| Timestamp::from_millisecond(millis.filter(|millis| *millis != 0)?).ok();
        Ok(JobInfo {
            status: details.status,
            message: details.message.unwrap_or_default(),
            start: time(details.start_time),
            end: time(details.end_time),
        })
    }
}

impl Jobs for Http {
    fn job<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer> {
        self.ask(id).boxed()
    }

    fn submit<'a>(&'a self, submission: &'a Submission) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let response = self.dashboard(Method::POST, "api/jobs/", Some(&submission.body())).await?;
            response.success("submission of the Ray job").map(drop)
        }
        .boxed()
    }

    fn stop<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let response = self.dashboard(Method::POST, &format!("api/jobs/{id}/stop"), None).await?;
            let answer: Value = serde_json::from_str(&response.success("stop of the Ray job")?).unwrap_or_default();
            if answer["stopped"] == true {
                return Ok(());
            }
            match self.ask(id).await {
                Answer::Known(info) if !program::has_ended(&info.status) => {
                    Err(format!("Ray job {id} was not stopped and is {}", info.status))
                }
                Answer::Unreachable(problem) => Err(problem),
                _ => Ok(()),
            }
        }
        .boxed()
    }

    fn again(&self) -> Option<Duration> {
        Some(POLL)
    }
}

/// The applications as the API of Ray Serve describes them.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ServeDetails {
    applications: BTreeMap<String, Application>,
}

impl Serve for Http {
    fn applications(&self) -> BoxFuture<'_, Result<BTreeMap<String, Application>, String>> {
        async move {
            let path = "api/serve/applications/?api_type=declarative";
            let text = self.dashboard(Method::GET, path, None).await?.success("applications of Ray Serve")?;
            let read: ServeDetails =
                serde_json::from_str(&text).map_err(|error| format!("applications of Ray Serve: {error}"))?;
            Ok(read.applications)
        }
        .boxed()
    }

    fn deploy<'a>(&'a self, configuration: &'a Value) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let response = self.dashboard(Method::PUT, "api/serve/applications/", Some(configuration)).await?;
            response.success("deployment of the applications").map(drop)
        }
        .boxed()
    }

    fn is_head_serving(&self) -> BoxFuture<'_, bool> {
        async move {
            let Some((pod, port)) = &self.head else { return false };
            let response = self.send(Method::GET, &format!("pods/{pod}:{port}"), "-/healthz", None).await;
            response.is_ok_and(|response| response.status.is_success() && response.text.contains("success"))
        }
        .boxed()
    }
}
