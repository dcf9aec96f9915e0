//! Durations as Kubernetes' Go programs write them: `300ms`, `1m30s`, `2h`.

use std::fmt;
use std::str::FromStr;

use berth_apimachinery::times;
use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Pattern of duration strings in the schemas of custom resources.
#[cfg(feature = "schema")]
const PATTERN: &str = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|ns))+)$";

/// A non-negative span of time, written as a Go duration string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub std::time::Duration);

/// The error for a string that is not a valid duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: expected numbers with units h, m, s, ms, us or ns, such as \"90s\" or \"1h30m\"")]
pub struct DurationError {
    text: String,
}

impl Duration {
    /// A duration of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    /// Parses the syntax of Go's `time.ParseDuration`, without signs.
    fn from_str(text: &str) -> Result<Self, DurationError> {
        let error = || DurationError { text: text.to_owned() };
        if text.starts_with(['-', '+']) {
            return Err(error());
        }
        let parsed = times::parse_duration(text).map_err(|_| error())?;
        std::time::Duration::try_from(parsed).map(Self).map_err(|_| error())
    }
}

impl fmt::Display for Duration {
    /// Formats the duration as Go does: `1h30m0s`, `1.5s`, `250ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&times::duration(SignedDuration::try_from(self.0).unwrap_or(SignedDuration::MAX)))
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": PATTERN })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_as_go_does() {
        for (text, printed) in [
            ("90s", "1m30s"),
            ("1h30m", "1h30m0s"),
            ("1.5s", "1.5s"),
            ("250ms", "250ms"),
            ("0", "0s"),
            ("2m0.05s", "2m0.05s"),
            ("168h", "168h0m0s"),
        ] {
            assert_eq!(text.parse::<Duration>().unwrap().to_string(), printed, "{text}");
        }
    }

    #[test]
    fn an_invalid_duration_is_rejected_with_an_example() {
        for text in ["", "5", "s", "-1s", "1 s", "1d", "1.2.3s", ".s"] {
            let error = text.parse::<Duration>().unwrap_err().to_string();
            assert!(error.contains("90s"), "{text}: {error}");
        }
    }
}
