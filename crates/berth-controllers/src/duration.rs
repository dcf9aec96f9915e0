//! Durations as Kubernetes writes them in configuration: Go's `1h30m0s`.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// What people are told to write.
const EXPECTED: &str = "a duration such as 90s, 5m or 1h30m";

/// Units and their nanoseconds.
const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a Go duration such as `90s`, `1h30m` or `-1.5h`; `0` needs no unit. Go counts nanoseconds in 64 bits: 292 years at most.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    nanoseconds(text)
        .map(SignedDuration::from_nanos)
        .ok_or_else(|| format!("time: invalid duration {text:?}, expected {EXPECTED}"))
}

fn nanoseconds(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    match rest {
        "0" => return Some(0),
        "" => return None,
        _ => {}
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let whole = digits(&mut rest);
        let fraction = match rest.strip_prefix('.') {
            Some(after) => {
                rest = after;
                digits(&mut rest)
            }
            None => "",
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let (name, after) = rest.split_at(unit);
        let unit = UNITS.iter().find(|(known, _)| *known == name)?.1;
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        // Further digits are below a nanosecond of any unit.
        let fraction = fraction.get(..18).unwrap_or(fraction);
        let part: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        total += u128::from(whole) * unit + u128::from(part) * unit / 10u128.pow(fraction.len() as u32);
        if total > i64::MAX as u128 {
            return None;
        }
        rest = after;
    }
    let total = i64::try_from(total).ok()?;
    Some(if negative { -total } else { total })
}

/// Takes the digits in front.
fn digits<'a>(rest: &mut &'a str) -> &'a str {
    let (digits, after) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
    *rest = after;
    digits
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

/// A duration as text, or nothing.
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

    /// Reads a duration or nothing.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        let Some(parsed) = deserializer.deserialize_option(Written)? else { return Ok(None) };
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
        deserializer.deserialize_option(Written)
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
