//! The section `pods`: how simulated pods run.

use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::super::{Duration, DurationError};

/// How simulated pods run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedPods {
    /// Time from binding to running: image pull and container start.
    pub start_delay: Duration,
    /// Time that deleted pods take to stop, at most their grace period.
    pub stop_delay: Duration,
    /// Run time of pods that have no run-time annotation and match no rule (pods that always
    /// restart run until deleted).
    pub default_duration: RunDuration,
    /// Rules in order; the first that matches applies.
    pub rules: Vec<RunRule>,
    /// Images that cannot be pulled. `*` matches any characters: `registry.example.com/*`.
    pub unreachable_images: Vec<String>,
}

impl Default for SimulatedPods {
    fn default() -> Self {
        Self {
            start_delay: Duration::from_secs(2),
            stop_delay: Duration::from_secs(1),
            default_duration: RunDuration::Fixed(Duration::from_secs(60)),
            rules: Vec::new(),
            unreachable_images: Vec::new(),
        }
    }
}

/// Run time and exit code of matching pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunRule {
    /// Namespaces of matching pods; empty for all.
    pub namespaces: Vec<String>,
    /// Labels of matching pods; absent or empty for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Run time; default `defaultDuration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<RunDuration>,
    /// Exit code; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<ExitCode>,
}

/// A run time: `180s`, `{min: 1m, max: 5m}` for a random time that depends on the seed, or
/// `forever`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunDuration {
    /// Always this long.
    Fixed(Duration),
    /// Uniformly random, both ends included.
    Between {
        /// Minimum.
        min: Duration,
        /// Maximum.
        max: Duration,
    },
    /// Until deleted.
    Forever,
}

impl Serialize for RunDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(duration) => duration.serialize(serializer),
            Self::Between { min, max } => json!({ "min": min, "max": max }).serialize(serializer),
            Self::Forever => "forever".serialize(serializer),
        }
    }
}

impl FromStr for RunDuration {
    type Err = DurationError;

    /// Parses a duration, or `forever`.
    fn from_str(text: &str) -> Result<Self, DurationError> {
        if text == "forever" { Ok(Self::Forever) } else { text.parse().map(Self::Fixed) }
    }
}

impl<'de> Deserialize<'de> for RunDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map_err(D::Error::custom),
            Value::Object(map) => {
                if let Some(unknown) = map.keys().find(|key| !matches!(key.as_str(), "min" | "max")) {
                    return Err(D::Error::custom(format!("unknown field `{unknown}`, expected `min` and `max`")));
                }
                let part = |name: &str| {
                    let text = map.get(name).and_then(Value::as_str);
                    text.ok_or_else(|| D::Error::custom(format!("`{name}` is missing: expected a duration")))?
                        .parse::<Duration>()
                        .map_err(D::Error::custom)
                };
                let (min, max) = (part("min")?, part("max")?);
                if min > max {
                    return Err(D::Error::custom(format!("min {min} is more than max {max}")));
                }
                Ok(Self::Between { min, max })
            }
            _ => Err(D::Error::custom("expected a duration such as \"180s\", {min, max}, or \"forever\"")),
        }
    }
}

/// Exit code of containers, 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ExitCode(pub u8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_are_fixed_random_or_endless() {
        let read = |value: Value| serde_json::from_value::<RunDuration>(value).map_err(|e| e.to_string());
        assert_eq!(read(json!("3m")), Ok(RunDuration::Fixed(Duration::from_secs(180))));
        assert_eq!(read(json!("forever")), Ok(RunDuration::Forever));
        assert!(read(json!({ "min": "5s", "max": "1s" })).unwrap_err().contains("more than"));
        assert!(read(json!({ "min": "5s", "maximum": "1s" })).unwrap_err().contains("unknown field `maximum`"));
    }
}
