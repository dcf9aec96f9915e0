//! Runs one walk against one server: replaces variables, sends the requests and compares the
//! responses.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures::StreamExt;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::walk::{Step, Stream, Walk};
use super::webhooks::{WalkWebhooks, Webhooks};
use super::{expect, http2, protobuf};

/// Time within which a step with `eventually` must agree.
const EVENTUALLY: Duration = Duration::from_secs(30);
/// Time within which the next event of a watch must arrive.
const EVENT: Duration = Duration::from_secs(15);
/// Time within which a response must arrive.
const RESPONSE_MAX: Duration = Duration::from_secs(60);

/// Reads the client configuration from a kubeconfig file.
pub async fn config_of(path: &Path) -> anyhow::Result<Config> {
    let file = Kubeconfig::read_from(path).with_context(|| path.display().to_string())?;
    Ok(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

/// Results of a walk.
#[derive(Debug, Default)]
pub struct Outcome {
    pub agree: usize,
    pub total: usize,
    /// Names of the steps that agree.
    pub steps: Vec<String>,
    /// Names of the steps that disagree, with the difference.
    pub failures: Vec<(String, String)>,
    /// Number of skipped steps.
    pub skipped: usize,
    /// Why steps were skipped.
    pub reason: Option<String>,
}

/// State of a running walk.
pub struct Session {
    config: Config,
    client: Client,
    /// Values of the variables `${name}`.
    variables: BTreeMap<String, String>,
    webhooks: WalkWebhooks,
}

/// A decoded response, or the reviews that a webhook received.
struct Received {
    status: u16,
    headers: HeaderMap,
    bytes: Vec<u8>,
    body: Value,
}

impl Session {
    /// Creates the walk's namespace.
    pub async fn start(config: &Config, webhooks: &Webhooks, walk: &str) -> anyhow::Result<Session> {
        let client = Client::try_from(config.clone())?;
        let request = http::Request::post("/api/v1/namespaces").header("content-type", "application/json");
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": format!("{walk}-")}});
        let got = read(client.send(request.body(Body::from(body.to_string().into_bytes()))?).await?).await?;
        let namespace = got.body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        anyhow::ensure!(got.status == 201, "creating a namespace: {} {}", got.status, got.body);
        let run = namespace.rsplit('-').next().unwrap_or_default().to_owned();
        let webhooks = webhooks.of_walk(&run);
        let variables = [
            ("ns", namespace),
            ("run", run),
            ("webhooks", webhooks.url.clone()),
            ("webhooksCA", webhooks.authority.clone()),
        ];
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Session { config: config.clone(), client, variables, webhooks })
    }

    /// Deletes the namespace. The walk itself deletes its objects outside the namespace.
    pub async fn end(self) {
        let path = format!("/api/v1/namespaces/{}", self.variables["ns"]);
        if let Ok(request) = http::Request::delete(path).body(Body::empty())
            && let Err(error) = self.client.send(request).await
        {
            eprintln!("namespace {} was not deleted: {error}", self.variables["ns"]);
        }
    }

    /// Runs all steps. A step that disagrees does not end the walk.
    pub async fn run(&mut self, walk: &Walk) -> Outcome {
        let mut outcome = Outcome::default();
        for step in &walk.steps {
            if outcome.reason.is_some() {
                outcome.skipped += 1;
                if step.tidy {
                    // Delete the objects that exist.
                    let _ = self.step(step).await;
                }
                continue;
            }
            let found = self.step(step).await;
            if let (Some(reason), Err(error)) = (&step.probe, &found) {
                outcome.reason =
                    Some(format!("{}: {error:#}", self.replaced(reason).unwrap_or_else(|_| reason.clone())));
                outcome.skipped += 1;
                continue;
            }
            outcome.total += 1;
            match found {
                Ok(()) => {
                    outcome.agree += 1;
                    outcome.steps.push(step.name.clone());
                }
                Err(error) => outcome.failures.push((step.name.clone(), format!("{error:#}"))),
            }
        }
        outcome
    }

    /// Runs one step. The error is the difference.
    async fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        for (path, hook) in &step.serve {
            self.webhooks.serve(path, hook.clone());
        }
        if let Some(stream) = &step.watch {
            return self.watch(step, stream).await;
        }
        let deadline = Instant::now() + EVENTUALLY;
        loop {
            match self.request_once(step).await {
                Err(_) if step.eventually && Instant::now() < deadline => sleep(Duration::from_millis(100)).await,
                other => return other,
            }
        }
    }

    /// Sends a step's request once, compares the response, and stores the values that later steps
    /// use.
    async fn request_once(&mut self, step: &Step) -> anyhow::Result<()> {
        let got = match step.request.strip_prefix("RECEIVED ") {
            Some(path) => Received {
                status: 200,
                headers: HeaderMap::new(),
                bytes: Vec::new(),
                body: self.webhooks.received(&self.replaced(path)?).into(),
            },
            None => {
                let response = self.send(step).await?;
                timeout(RESPONSE_MAX, read(response)).await.context("the response does not end")??
            }
        };
        self.compare(step, &got)?;
        for (name, field) in &step.keep {
            let value = field.split('.').try_fold(&got.body, |value, step| match step.parse::<usize>() {
                Ok(index) => value.get(index),
                Err(_) => value.get(step),
            });
            let text = match value.ok_or_else(|| anyhow!("{field}: not in the response"))? {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            self.variables.insert(name.clone(), text);
        }
        Ok(())
    }

    /// Compares the response with the expectations of a step.
    fn compare(&self, step: &Step, got: &Received) -> anyhow::Result<()> {
        if !step.status.has(got.status) {
            return Err(anyhow!("status: expected {:?}, got {}: {}", step.status, got.status, got.body));
        }
        if !step.response.is_null()
            && let Some(difference) = expect::difference(&self.filled(&step.response)?, &got.body)
        {
            return Err(anyhow!("{difference}"));
        }
        if !step.response_protobuf.is_null()
            && let Some(difference) = protobuf::difference(&self.filled(&step.response_protobuf)?, &got.bytes)?
        {
            return Err(anyhow!("{difference}"));
        }
        for (name, expected) in &step.response_headers {
            let values: Vec<&str> = got.headers.get_all(name).iter().filter_map(|it| it.to_str().ok()).collect();
            let got = json!(values.join(", "));
            let got = if values.is_empty() { Value::Null } else { got };
            if let Some(difference) = expect::difference(&self.filled(expected)?, &got) {
                return Err(anyhow!("header {name}: {difference}"));
            }
        }
        Ok(())
    }

    /// Runs a step whose response is a watch: runs its inner steps and compares the events.
    async fn watch(&mut self, step: &Step, stream: &Stream) -> anyhow::Result<()> {
        let response = self.send(step).await?;
        if !step.status.has(response.status().as_u16()) {
            let got = read(response).await?;
            return Err(anyhow!("status: expected {:?}, got {}: {}", step.status, got.status, got.body));
        }
        for step in &stream.during {
            Box::pin(self.step(step)).await.with_context(|| step.name.clone())?;
        }
        let content_type = response.headers().get("content-type").and_then(|value| value.to_str().ok());
        let framed = content_type.is_some_and(|value| value.starts_with("application/vnd.kubernetes.protobuf"));
        let mut events = Events { body: response.into_body().into_data_stream(), bytes: Vec::new(), framed };
        for expected in &stream.events {
            let expected = self.filled(expected)?;
            let event = timeout(EVENT, events.next()).await.map_err(|_| anyhow!("no event, expected {expected}"))??;
            let event = event.ok_or_else(|| anyhow!("the stream ended, expected {expected}"))?;
            let difference = match events.framed {
                true => protobuf::event_difference(&expected, &event)?,
                false => {
                    let event: Value = serde_json::from_slice(&event).context("an event is not JSON")?;
                    expect::difference(&expected, &event)
                        .map(|difference| format!("event {}: {difference}", event["type"]))
                }
            };
            if let Some(difference) = difference {
                return Err(anyhow!("{difference}"));
            }
        }
        if stream.ends {
            let event = timeout(EVENT, events.next()).await.map_err(|_| anyhow!("the stream does not end"))??;
            anyhow::ensure!(event.is_none(), "one more event: {}", String::from_utf8_lossy(&event.unwrap_or_default()));
        }
        Ok(())
    }

    /// Sends the request of a step.
    async fn send(&self, step: &Step) -> anyhow::Result<Response<Body>> {
        let line = self.replaced(&step.request)?;
        let (method, path) =
            line.split_once(' ').ok_or_else(|| anyhow!("request: expected METHOD PATH, got {line}"))?;
        let mut request = Request::builder().method(method).uri(path.trim());
        let mut content_type = match (&step.patch_type, method) {
            (Some(kind), _) if kind == "apply-patch" => Some("application/apply-patch+yaml".to_owned()),
            (Some(kind), _) => Some(format!("application/{kind}+json")),
            (None, _) if !step.protobuf.is_null() => Some("application/vnd.kubernetes.protobuf".to_owned()),
            (None, _) if !step.body.is_null() => Some("application/json".to_owned()),
            _ => None,
        };
        for (name, value) in &step.headers {
            if name.eq_ignore_ascii_case("content-type") {
                content_type = Some(self.replaced(value)?);
            } else {
                request = request.header(name, self.replaced(value)?);
            }
        }
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        if let Some(user) = &step.user {
            request = request.header("impersonate-user", self.replaced(user)?);
        }
        for group in &step.groups {
            request = request.header("impersonate-group", self.replaced(group)?);
        }
        let body = match &step.body {
            Value::Null if !step.protobuf.is_null() => protobuf::encode(&self.filled(&step.protobuf)?)?,
            Value::Null => Vec::new(),
            Value::String(text) => self.replaced(text)?.into_bytes(),
            body => serde_json::to_vec(&self.filled(body)?)?,
        };
        let request = request.body(Body::from(body))?;
        let mut config = self.config.clone();
        if let Some(token) = &step.token {
            config.auth_info = Default::default();
            let token = self.replaced(token)?;
            config.auth_info.token = (!token.is_empty()).then(|| token.into());
        }
        let (client, version) = match (step.http, &step.token) {
            (Some(2), _) => (http2::client(&config)?, Some(Version::HTTP_2)),
            (Some(other), _) => anyhow::bail!("http: expected 2, got {other}"),
            (None, Some(_)) => (Client::try_from(config)?, None),
            (None, None) => (self.client.clone(), None),
        };
        let response = timeout(RESPONSE_MAX, client.send(request)).await.context("no response")??;
        if version.is_some_and(|version| version != response.version()) {
            anyhow::bail!("version: the response is {:?}", response.version());
        }
        Ok(response)
    }

    /// Replaces the variables `${...}` of a string.
    fn replaced(&self, text: &str) -> anyhow::Result<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or_else(|| anyhow!("{text}: ${{ without }}"))?;
            out.push_str(before);
            match name.split_once('*') {
                Some((repeated, count)) => out.push_str(&repeated.repeat(count.parse().context("${x*N}")?)),
                None => out.push_str(self.variables.get(name).ok_or_else(|| anyhow!("unknown variable {name}"))?),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Replaces the variables in all strings of a value.
    fn filled(&self, value: &Value) -> anyhow::Result<Value> {
        Ok(match value {
            Value::String(text) => self.replaced(text)?.into(),
            Value::Array(items) => {
                items.iter().map(|item| self.filled(item)).collect::<anyhow::Result<Vec<_>>>()?.into()
            }
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| Ok((self.replaced(name)?, self.filled(value)?)));
                Value::Object(fields.collect::<anyhow::Result<_>>()?)
            }
            other => other.clone(),
        })
    }
}

/// Reads and decompresses a response. The body is JSON, YAML if its content type says so, or a
/// string.
async fn read(response: Response<Body>) -> anyhow::Result<Received> {
    let (parts, body) = response.into_parts();
    let mut bytes = body.collect().await?.to_bytes().to_vec();
    if parts.headers.get("content-encoding").is_some_and(|value| value == "gzip") {
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut unpacked).context("the body is not gzip")?;
        bytes = unpacked;
    }
    let is_yaml = parts.headers.get("content-type").is_some_and(|value| value == "application/yaml");
    let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
    let body = match serde_json::from_slice(&bytes) {
        Ok(value) => value,
        Err(_) if is_yaml => serde_saphyr::from_slice(&bytes).unwrap_or_else(|_| text()),
        Err(_) if bytes.is_empty() => Value::Null,
        Err(_) => text(),
    };
    Ok(Received { status: parts.status.as_u16(), headers: parts.headers, bytes, body })
}

/// The events of a watch: lines, or (protobuf) frames that start with their length.
struct Events<S> {
    body: S,
    bytes: Vec<u8>,
    framed: bool,
}

impl<S, B, E> Events<S>
where
    S: futures::Stream<Item = Result<B, E>> + Unpin,
    B: AsRef<[u8]>,
    E: std::error::Error + Send + Sync + 'static,
{
    /// The next event. `None` at the end of the stream.
    async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            if let Some((start, end)) = self.complete() {
                let event = self.bytes[start..end].to_vec();
                self.bytes.drain(..end);
                return Ok(Some(event));
            }
            match self.body.next().await {
                Some(chunk) => self.bytes.extend_from_slice(chunk?.as_ref()),
                None => return Ok(None),
            }
        }
    }

    /// Start and end of the next event in `bytes`, if it has arrived completely.
    fn complete(&self) -> Option<(usize, usize)> {
        if self.framed {
            let length = u32::from_be_bytes(*self.bytes.first_chunk()?);
            let end = 4 + usize::try_from(length).ok()?;
            return (self.bytes.len() >= end).then_some((4, end));
        }
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        Some((0, end + 1))
    }
}
