//! The file format of a walk.
//!
//! ```yaml
//! - name: a configmap is created              # the behaviour that the step tests
//!   request: POST /api/v1/namespaces/${ns}/configmaps    # method and path
//!   http: 2                 # use a separate connection that only speaks HTTP/2
//!   headers: {accept: application/yaml}
//!   as: alice               # impersonate this user, with the groups in `groups:`
//!   token: ${token}         # or: bearer token instead of the kubeconfig's identity; "" for none
//!   body: {...}             # sent as JSON; a string is sent unchanged; ${x*1000} is a thousand x
//!   protobuf: {...}         # or: a message by field numbers, see `protobuf`
//!   type: merge-patch       # or json-patch, strategic-merge-patch, apply-patch
//!   status: 201             # or [400, 500]: one of these
//!   response: {...}         # the response contains this, see `expect`
//!   responseProtobuf: {...} # the protobuf response (with `watch`, the events) contains this
//!   responseHeaders: {content-type: application/json}
//!   keep: {rv: metadata.resourceVersion}   # stores a field of the response as ${rv}
//!   eventually: true        # repeat for 30 seconds until the response agrees
//!   watch:                  # the response is a stream
//!     during: [...]         # steps that run once the stream is open
//!     events: [{type: ADDED, object: {...}}]    # the events that then arrive
//!   serve: {path: {...}}    # serve webhooks from this step on, see `webhooks`
//!   probe: why              # if this step disagrees, skip the rest and print this reason
//!   tidy: true              # run the step even if the rest is skipped
//! ```
//!
//! Strings may contain variables: `${ns}` is the walk's namespace, `${run}` its id, `${webhooks}`
//! the URL of its webhooks and `${webhooksCA}` the certificate authority of that URL.
//!
//! The response of `request: RECEIVED path` is the list of reviews that the webhook received since
//! the last such request.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::webhooks::Hook;

/// The contents of one file.
#[derive(Debug)]
pub struct Walk {
    /// The file's name without extension.
    pub name: String,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One request with the expected response.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// The behaviour that the step tests.
    pub name: String,
    /// Method and path.
    pub request: String,
    /// HTTP version, if the step needs a certain one.
    #[serde(default)]
    pub http: Option<u8>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// User to impersonate.
    #[serde(default, rename = "as")]
    pub user: Option<String>,
    /// Groups to impersonate.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Bearer token that replaces the kubeconfig's credentials. Empty for no credentials.
    #[serde(default)]
    pub token: Option<String>,
    #[serde(default)]
    pub body: Value,
    /// Body in protobuf, by field numbers.
    #[serde(default)]
    pub protobuf: Value,
    /// Type of a patch.
    #[serde(default, rename = "type")]
    pub patch_type: Option<String>,
    /// Expected status code.
    pub status: Statuses,
    /// Expected contents of the body.
    #[serde(default)]
    pub response: Value,
    /// Expected contents of a body in protobuf.
    #[serde(default)]
    pub response_protobuf: Value,
    /// Expected response headers.
    #[serde(default)]
    pub response_headers: BTreeMap<String, Value>,
    /// Variables to set: name and path of the field in the response.
    #[serde(default)]
    pub keep: BTreeMap<String, String>,
    /// True if the step is repeated until the response agrees.
    #[serde(default)]
    pub eventually: bool,
    /// Expectations of a response that is a stream of events.
    #[serde(default)]
    pub watch: Option<Stream>,
    /// Webhooks to serve from this step on, by path.
    #[serde(default)]
    pub serve: BTreeMap<String, Hook>,
    /// Reason to skip the rest of the walk if this step disagrees.
    #[serde(default)]
    pub probe: Option<String>,
    /// True if the step runs even if the rest is skipped: it deletes the walk's objects.
    #[serde(default)]
    pub tidy: bool,
}

/// Allowed status codes. There are several if clients should not rely on Kubernetes' choice.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Statuses {
    One(u16),
    Any(Vec<u16>),
}

impl Statuses {
    /// True if the status code is allowed.
    pub fn has(&self, status: u16) -> bool {
        match self {
            Statuses::One(one) => *one == status,
            Statuses::Any(any) => any.contains(&status),
        }
    }
}

/// Expectations of a stream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Steps that run while the stream is open.
    #[serde(default)]
    pub during: Vec<Step>,
    /// The first events.
    pub events: Vec<Value>,
    /// True if the server must end the stream after these events.
    #[serde(default)]
    pub ends: bool,
}

impl Walk {
    /// Parses a file.
    pub fn parse(name: &str, text: &str) -> anyhow::Result<Walk> {
        // Convert to JSON first, so that values have the types that the API server gets.
        let value: Value = serde_saphyr::from_str(text)?;
        Ok(Walk { name: name.to_owned(), steps: serde_json::from_value(value)? })
    }
}
