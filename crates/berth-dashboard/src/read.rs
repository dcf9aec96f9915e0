//! Reads of the API with the user's permissions, limited in time and size.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use http::StatusCode;
use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;

/// Time limit of the reads of one page.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit of the parts of a page that may be left out.
const MOMENT: Duration = Duration::from_millis(500);
/// Maximum number of objects in one part of a list.
const PART: u32 = 500;

/// A failed read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The API rejected the read with this status.
    Refused {
        /// The status code.
        code: u16,
        /// Its message.
        message: String,
    },
    /// There was no response, or it cannot be parsed. The string describes the failure.
    Failed(String),
}

impl Unread {
    /// The HTTP status of a page that shows only this failure.
    pub fn code(&self) -> StatusCode {
        match self {
            Unread::Refused { code: 401, .. } => StatusCode::UNAUTHORIZED,
            Unread::Refused { code: 403, .. } => StatusCode::FORBIDDEN,
            Unread::Refused { code: 404, .. } => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_GATEWAY,
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Refused { code: 401, message } => {
                write!(f, "The API server does not accept your credentials: {message}")
            }
            Unread::Refused { code: 403, message } => write!(f, "You may not read this: {message}"),
            Unread::Refused { message, .. } => f.write_str(message),
            Unread::Failed(message) => write!(f, "The API server sent no valid response: {message}"),
        }
    }
}

impl From<kube::Error> for Unread {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Unread::Refused { code: status.code, message: status.message.clone() },
            error => {
                // The message of the innermost cause is the most specific: "connection refused".
                let mut message = error.to_string();
                let mut source = std::error::Error::source(&error);
                while let Some(cause) = source {
                    let more = cause.to_string();
                    if !message.contains(&more) {
                        message = format!("{message}: {more}");
                    }
                    source = cause.source();
                }
                Unread::Failed(message)
            }
        }
    }
}

/// Waits for a response, for a limited time.
pub async fn within<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, Unread> {
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Unread::Failed(format!("no response within {} seconds", PATIENCE.as_secs()))),
    }
}

/// Waits for a part of a page without which the page is of use, for a moment only.
pub async fn promptly<T>(answer: impl Future<Output = Result<T, Unread>>) -> Result<T, Unread> {
    let failed = || Unread::Failed(format!("no response within {} ms; it may be there later", MOMENT.as_millis()));
    tokio::time::timeout(MOMENT, answer).await.unwrap_or_else(|_| Err(failed()))
}

/// A list, or a limited part of it.
#[derive(Debug)]
pub struct Listed<K> {
    /// Objects in the API's order.
    pub items: Vec<K>,
    /// True if the list has more objects.
    pub has_more: bool,
}

/// Reads a list from its beginning until it has `enough` objects.
pub async fn list<K>(api: &Api<K>, enough: usize) -> Result<Listed<K>, Unread>
where
    K: Clone + DeserializeOwned + fmt::Debug,
{
    let reading = async {
        let mut listed = Listed { items: Vec::new(), has_more: false };
        let mut parameters = ListParams::default().limit(PART);
        loop {
            let part = api.list(&parameters).await?;
            listed.items.extend(part.items);
            parameters.continue_token = part.metadata.continue_.filter(|token| !token.is_empty());
            listed.has_more = parameters.continue_token.is_some();
            if !listed.has_more || listed.items.len() >= enough {
                return Ok(listed);
            }
        }
    };
    within(reading).await
}
