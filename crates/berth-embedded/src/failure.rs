//! Errors of the API, formatted for users.

/// An error of the API. It is displayed as the message and the reason, not as the whole Status.
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
