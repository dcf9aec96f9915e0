//! Durations as Kubernetes' Go programs write them: `300ms`, `1m30s`, `2h`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A non-negative span of time, written as a Go duration string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub std::time::Duration);

/// Why a text is not a duration.
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

    /// Parses what Go's `time.ParseDuration` accepts, except signs.
    fn from_str(text: &str) -> Result<Self, DurationError> {
        let error = || DurationError { text: text.to_owned() };
        if text == "0" {
            return Ok(Self::default());
        }
        let mut rest = text;
        let mut nanos: u128 = 0;
        if rest.is_empty() {
            return Err(error());
        }
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
            let (number, tail) = rest.split_at(end);
            let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(unit_end);
            let unit: u128 = match unit {
                "ns" => 1,
                "us" | "µs" | "μs" => 1_000,
                "ms" => 1_000_000,
                "s" => 1_000_000_000,
                "m" => 60_000_000_000,
                "h" => 3_600_000_000_000,
                _ => return Err(error()),
            };
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if (whole.is_empty() && fraction.is_empty()) || whole.len() > 15 || fraction.contains('.') {
                return Err(error());
            }
            let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| error())? };
            nanos += whole * unit;
            let mut digit_value = unit;
            for digit in fraction.bytes().take(12) {
                digit_value /= 10;
                nanos += u128::from(digit - b'0') * digit_value;
            }
            rest = tail;
        }
        let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| error())?;
        // A span no clock can be moved by helps nobody; about 10,000 years.
        if seconds > 315_360_000_000 {
            return Err(error());
        }
        Ok(Self(std::time::Duration::new(seconds, (nanos % 1_000_000_000) as u32)))
    }
}

impl fmt::Display for Duration {
    /// Writes it as Go does: `1h30m0s`, `1.5s`, `250ms`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if nanos < 1_000_000_000 {
            let (unit, name) = match nanos {
                0..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "µs"),
                _ => (1_000_000, "ms"),
            };
            return write!(f, "{}{name}", decimal(nanos, unit));
        }
        let total = self.0.as_secs();
        let (hours, minutes) = (total / 3600, total / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h{minutes}m")?;
        } else if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(nanos % 60_000_000_000, 1_000_000_000))
    }
}

fn decimal(value: u128, unit: u128) -> String {
    let fraction = value % unit;
    if fraction == 0 {
        return (value / unit).to_string();
    }
    let width = unit.ilog10() as usize;
    format!("{}.{}", value / unit, format!("{fraction:0width$}").trim_end_matches('0'))
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

impl schemars::JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
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
    fn what_is_not_a_duration_is_refused_with_an_example() {
        for text in ["", "5", "s", "-1s", "1 s", "1d", "1.2.3s", ".s"] {
            let error = text.parse::<Duration>().unwrap_err().to_string();
            assert!(error.contains("90s"), "{text}: {error}");
        }
    }
}
