//! Versions of the reviews that are sent to webhooks.

/// A version of AdmissionReview or ConversionReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewVersion {
    /// v1
    V1,
    /// v1beta1
    V1beta1,
}

impl ReviewVersion {
    /// The first version in a webhook's list that the server supports.
    pub fn pick<'a>(versions: impl IntoIterator<Item = &'a str>) -> Option<ReviewVersion> {
        versions.into_iter().find_map(|version| match version {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1beta1),
            _ => None,
        })
    }

    /// `apiVersion` of a review of this version, whose kind is of `group`.
    pub fn api_version(self, group: &str) -> String {
        match self {
            ReviewVersion::V1 => format!("{group}/v1"),
            ReviewVersion::V1beta1 => format!("{group}/v1beta1"),
        }
    }
}
