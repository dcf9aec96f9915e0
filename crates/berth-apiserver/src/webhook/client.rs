//! The HTTP client for webhooks: one POST of JSON over TLS, and one response of JSON, within a time
//! limit.
//!
//! The address of a `service` comes from stored objects ([`super::service`]). Its certificate must
//! be for `<name>.<namespace>.svc`.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::Value;

use super::connection::{self, Trust};
use super::service;
use crate::{Objects, completion};
use berth_kinds::client_config::{Url, clean_path};

/// Maximum size of a response.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The server to call, from a `clientConfig`.
pub(crate) struct Endpoint {
    place: Place,
    trust: Trust,
}

enum Place {
    Url { host: String, port: u16, authority: String, path: String },
    Service { namespace: String, name: String, port: i64, path: String },
}

impl Endpoint {
    /// Parses a `clientConfig`; the error names the invalid field.
    pub(crate) fn new(config: &Value) -> Result<Endpoint, String> {
        Ok(Endpoint { place: Place::new(config)?, trust: Trust::new(config["caBundle"].as_str())? })
    }

    /// POSTs `body` and returns the response. `query` is added to the path. Fails after `timeout`;
    /// the error is the reason.
    pub(crate) async fn post(
        &self,
        objects: &Objects,
        query: &str,
        body: &Value,
        timeout: Duration,
    ) -> Result<Value, String> {
        completion::note_external_call();
        let call = self.exchange(objects, query, body);
        match tokio::time::timeout(timeout, call).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("Post {}: context deadline exceeded", self.place.shown(query))),
        }
    }

    async fn exchange(&self, objects: &Objects, query: &str, body: &Value) -> Result<Value, String> {
        let shown = self.place.shown(query);
        let failed = |what: &dyn std::fmt::Display| format!("Post {shown}: {what}");
        let (host, port) = self.place.address(objects).map_err(|why| failed(&why))?;
        let tls = self.trust.config().map_err(|why| failed(&why))?;
        let opened = connection::open(objects, &host, port, self.place.server_name(), tls).await;
        let stream = opened.map_err(|why| failed(&why))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|error| failed(&error))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{query}", self.place.path()))
            .header(header::HOST, self.place.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| failed(&error))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| failed(&error))?.to_bytes();
            if !status.is_success() {
                let text: String = String::from_utf8_lossy(&body).chars().take(1024).collect();
                return Err(failed(&format!("the server responded with {status}: {text}")));
            }
            serde_json::from_slice(&body).map_err(|error| failed(&format!("the response is not JSON: {error}")))
        };
        tokio::pin!(exchange);
        tokio::pin!(connection);
        // The connection drives the exchange, and ends with it.
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            ended = &mut connection => match ended {
                // Data that was read before the end may still complete the exchange.
                Ok(()) => exchange.await,
                Err(error) => Err(failed(&error)),
            },
        }
    }
}

impl Place {
    fn new(config: &Value) -> Result<Place, String> {
        if let Some(text) = config["url"].as_str() {
            let url = Url::parse(text)?;
            let (host, port) = url.host_and_port();
            if url.scheme != "https" || host.is_empty() {
                return Err(format!("{text} is not an https URL"));
            }
            return Ok(Place::Url {
                host: host.to_owned(),
                port: port.unwrap_or(443),
                authority: url.host.to_owned(),
                path: clean_path(url.path),
            });
        }
        let service = &config["service"];
        let text = |field: &str| service[field].as_str().unwrap_or_default().to_owned();
        if !service.is_object() || text("name").is_empty() || text("namespace").is_empty() {
            return Err("neither url nor service is given".to_owned());
        }
        Ok(Place::Service {
            namespace: text("namespace"),
            name: text("name"),
            port: service["port"].as_i64().unwrap_or(443),
            path: clean_path(&text("path")),
        })
    }

    fn path(&self) -> &str {
        match self {
            Place::Url { path, .. } | Place::Service { path, .. } => path,
        }
    }

    /// The host name that the server's certificate must have.
    fn server_name(&self) -> String {
        match self {
            Place::Url { host, .. } => host.clone(),
            Place::Service { namespace, name, .. } => service::server_name(namespace, name),
        }
    }

    fn authority(&self) -> String {
        match self {
            Place::Url { authority, .. } => authority.clone(),
            Place::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    fn shown(&self, query: &str) -> String {
        format!("\"https://{}{}{query}\"", self.authority(), self.path())
    }

    /// Address of the server.
    fn address(&self, objects: &Objects) -> Result<(String, u16), String> {
        match self {
            Place::Url { host, port, .. } => Ok((host.clone(), *port)),
            Place::Service { namespace, name, port, .. } => {
                service::address(objects, namespace, name, *port).map_err(|why| why.to_string())
            }
        }
    }
}
