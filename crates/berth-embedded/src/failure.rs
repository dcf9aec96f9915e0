//! What a person reads of an answer of the API that is no success.

/// An answer of the API that is no success, shown as people need it: message and reason, no dump of the Status.
#[derive(Debug)]
pub struct ApiFailure(pub kube::Error);

impl std::fmt::Display for ApiFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            kube::Error::Api(status) => write!(f, "{} ({})", status.message, status.reason),
            other => other.fmt(f),
        }
    }
}

impl std::error::Error for ApiFailure {}
