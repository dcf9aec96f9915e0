//! The form of a walk.
//!
//! ```yaml
//! - name: what the step shows
//!   request: POST /api/v1/namespaces/${ns}/configmaps    # method and path; ${...} is replaced
//!   http: 2                 # over a connection of its own that speaks HTTP/2 alone
//!   headers: {accept: application/yaml}
//!   as: somebody            # impersonate; `groups:` with it
//!   token: ${token}         # or: this bearer token instead of the kubeconfig's credentials; "" for none
//!   body: {...}             # YAML, sent as JSON; a text is sent as it stands; ${x*1000} is a thousand x
//!   protobuf: {...}         # or: a message by field numbers, see `protobuf`
//!   type: merge-patch       # of a PATCH: json-patch, merge-patch, strategic-merge-patch, apply-patch
//!   status: 201             # or [400, 500]: any of these
//!   answer: {...}           # must be contained in the answer, see `expect`
//!   answerProtobuf: {...}   # must be contained in an answer in protobuf; with `watch`, its events are such
//!   answerHeaders: {content-type: application/json}
//!   keep: {rv: metadata.resourceVersion}   # for later ${rv}
//!   eventually: true        # asked again for half a minute until it agrees: what happens behind the answer
//!   watch:                  # the request is a stream: these steps run once it is open, then these events come
//!     meanwhile: [...]
//!     events: [{type: ADDED, object: {...}}]
//!   serve: {path: {...}}    # what this program answers from now on when it is called as a webhook, see `webhooks`
//!   probe: why              # when this step's answer is another, the rest is skipped, and this is said
//!   tidy: true              # runs even then
//! ```
//!
//! `${ns}` is the walk's namespace, `${run}` its id, `${webhooks}` where webhooks are served, `${webhooksCA}` the authority
//! behind their certificate. `request: RECEIVED path` answers with the reviews that a webhook has been sent, and forgets them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::webhooks::Hook;

/// One file.
#[derive(Debug)]
pub struct Walk {
    /// The file's name.
    pub name: String,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

/// One request and what its answer must say.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// What the step shows.
    pub name: String,
    /// Method and path.
    pub request: String,
    /// Version of HTTP, when it matters.
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
    /// Bearer token instead of the kubeconfig's credentials; empty for no credentials.
    #[serde(default)]
    pub token: Option<String>,
    #[serde(default)]
    pub body: Value,
    /// A body in protobuf, by field numbers.
    #[serde(default)]
    pub protobuf: Value,
    /// Kind of a patch.
    #[serde(default, rename = "type")]
    pub patch_type: Option<String>,
    /// The status code.
    pub status: Statuses,
    /// What the body must contain.
    #[serde(default)]
    pub answer: Value,
    /// What a body in protobuf must contain.
    #[serde(default)]
    pub answer_protobuf: Value,
    /// What headers of the answer must say.
    #[serde(default)]
    pub answer_headers: BTreeMap<String, Value>,
    /// Fields of the answer to remember, by name.
    #[serde(default)]
    pub keep: BTreeMap<String, String>,
    /// Whether the answer may take a while to be so.
    #[serde(default)]
    pub eventually: bool,
    /// The answer is a stream of events.
    #[serde(default)]
    pub watch: Option<Stream>,
    /// What webhooks answer from this step on, by path.
    #[serde(default)]
    pub serve: BTreeMap<String, Hook>,
    /// Why the rest of the walk cannot be walked when this step fails.
    #[serde(default)]
    pub probe: Option<String>,
    /// Whether the step runs even when the rest is skipped: it removes what the walk made.
    #[serde(default)]
    pub tidy: bool,
}

/// Status codes an answer may have. More than one where Kubernetes answers in a way nobody should rely on.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Statuses {
    One(u16),
    Any(Vec<u16>),
}

impl Statuses {
    /// Whether this is one of them.
    pub fn has(&self, status: u16) -> bool {
        match self {
            Statuses::One(one) => *one == status,
            Statuses::Any(any) => any.contains(&status),
        }
    }
}

/// What a stream must bring.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Steps that run while it is open.
    #[serde(default)]
    pub meanwhile: Vec<Step>,
    /// Its first events.
    pub events: Vec<Value>,
    /// Whether the server must end it after them.
    #[serde(default)]
    pub ends: bool,
}

impl Walk {
    /// Reads a file.
    pub fn parse(name: &str, text: &str) -> anyhow::Result<Walk> {
        // By way of JSON, so that numbers and texts are what the API would see.
        let value: Value = serde_saphyr::from_str(text)?;
        Ok(Walk { name: name.to_owned(), steps: serde_json::from_value(value)? })
    }
}
