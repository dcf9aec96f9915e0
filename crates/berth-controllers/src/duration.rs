//! Durations as Kubernetes writes them in configuration: Go's `1h30m0s`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, Serializer};

/// Reads a Go duration such as `90s`, `1h30m` or `1.5h`; `0` needs no unit.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    if text == "0" {
        return Ok(SignedDuration::ZERO);
    }
    text.parse::<SignedDuration>()
        .map_err(|_| format!("time: invalid duration {text:?}, expected a number with a unit such as 90s, 5m or 1h30m"))
}

/// Writes a duration the way Go does: `1h0m0s`, `2m30s`, `1.5s`, `0s`.
pub fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    if seconds == 0 && nanos != 0 {
        return match nanos {
            n if n % 1_000_000 == 0 => format!("{}ms", n / 1_000_000),
            n if n % 1_000 == 0 => format!("{}µs", n / 1_000),
            n => format!("{n}ns"),
        };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut text = String::new();
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if hours > 0 || minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    text.push_str(&(seconds % 60).to_string());
    if nanos != 0 {
        let fraction = format!("{nanos:09}");
        text.push('.');
        text.push_str(fraction.trim_end_matches('0'));
    }
    text.push('s');
    text
}

/// Serde adapter for an optional, non-negative duration.
pub mod option {
    use super::*;

    /// Reads a duration or nothing.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let parsed = parse(&text).map_err(serde::de::Error::custom)?;
        // A negative duration is caught by validation, which sees the raw text; here it means "at once".
        Ok(Some(Duration::try_from(parsed).unwrap_or_default()))
    }

    /// Writes a duration or null.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => serializer.serialize_some(&format(*duration)),
            None => serializer.serialize_none(),
        }
    }
}

/// Serde adapter for an optional duration that may be negative, for text that is validated afterwards.
pub mod signed {
    use super::*;

    /// Reads a duration or nothing.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SignedDuration>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        parse(&text).map(Some).map_err(serde::de::Error::custom)
    }

    /// Writes a duration or null.
    pub fn serialize<S: Serializer>(value: &Option<SignedDuration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) if duration.is_negative() => {
                serializer.serialize_some(&format!("-{}", format(duration.unsigned_abs())))
            }
            Some(duration) => serializer.serialize_some(&format(duration.unsigned_abs())),
            None => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, seconds) in [("5m0s", 300.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("0", 0.0), ("-1s", -1.0)] {
            assert_eq!(parse(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        assert!(parse("5").is_err());
        assert_eq!(format(Duration::from_secs(3600)), "1h0m0s");
        assert_eq!(format(Duration::from_secs(90)), "1m30s");
        assert_eq!(format(Duration::from_millis(1500)), "1.5s");
        assert_eq!(format(Duration::from_millis(20)), "20ms");
        assert_eq!(format(Duration::ZERO), "0s");
    }
}
