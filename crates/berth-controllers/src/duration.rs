//! Durations in configuration files, in Go's format: `1h30m0s`.

use std::fmt;
use std::time::Duration;

use berth_apimachinery::times;
use jiff::SignedDuration;
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// The format that error messages ask for.
const EXPECTED: &str = "a duration such as 90s, 5m or 1h30m";

/// Parses a Go duration such as `90s`, `1h30m` or `-1.5h`; `0` needs no unit. Go counts nanoseconds
/// in 64 bits, so the maximum is 292 years.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    times::parse_duration(text).map_err(|_| format!("time: invalid duration {text:?}, expected {EXPECTED}"))
}

/// Formats a duration as Go does: `1h0m0s`, `2m30s`, `1.5s`, `0s`.
pub fn format(duration: Duration) -> String {
    times::duration(SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

/// Visitor for an optional duration in text form.
struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = Option<SignedDuration>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        parse(text).map(Some).map_err(E::custom)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

/// Serde adapter for an optional, non-negative duration.
pub mod option {
    use super::*;

    /// Reads an optional duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let Some(parsed) = deserializer.deserialize_option(Written)? else { return Ok(None) };
        // Validation rejects negative durations in the raw text; here they count as zero.
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

/// Serde adapter for an optional duration that may be negative, for text that is validated
/// afterwards.
pub mod signed {
    use super::*;

    /// Reads an optional duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SignedDuration>, D::Error> {
        deserializer.deserialize_option(Written)
    }

    /// Writes a duration or null.
    pub fn serialize<S: Serializer>(value: &Option<SignedDuration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => serializer.serialize_some(&times::duration(*duration)),
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
        for (text, nanos) in [
            ("+0", 0),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1us2\u{b5}s3\u{3bc}s", 6_000),
            ("1h0.5m", 3_630_000_000_000),
            ("0.0000000011s", 1),
            ("9223372036854775807ns", i64::MAX),
        ] {
            assert_eq!(parse(text).map(|it| it.as_nanos()), Ok(i128::from(nanos)), "{text}");
        }
        for text in [
            "5",
            "",
            "-",
            ".s",
            "5 minutes",
            "1h 30m",
            "1h30",
            "1h0",
            "PT1H",
            "1d",
            "1e3s",
            "s",
            " 5s",
            "--5s",
            "9223372036854775808ns",
            "99999999999999999999h",
            "3000000h",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(format(Duration::from_secs(3600)), "1h0m0s");
        assert_eq!(format(Duration::from_secs(90)), "1m30s");
        assert_eq!(format(Duration::from_millis(1500)), "1.5s");
        assert_eq!(format(Duration::from_millis(20)), "20ms");
        assert_eq!(format(Duration::ZERO), "0s");
    }
}
