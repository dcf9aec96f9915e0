//! Timestamps and durations.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use berth_apimachinery::times;
use jiff::civil::DateTime;
use jiff::tz::Offset;

use crate::error::EvalError;

const NANOS: i128 = 1_000_000_000;

/// Years after which Gregorian dates and weekdays repeat.
pub(crate) const CYCLE_YEARS: i16 = 400;
const CYCLE_SECONDS: i64 = 146_097 * 86_400;

/// A timestamp.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// Seconds since 1970 in UTC.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
    /// Offset of the original zone from UTC in seconds, positive to the east. Only the text form
    /// shows it.
    pub offset: i32,
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

impl Timestamp {
    /// True for years 1 to 9999.
    pub(crate) fn is_in_range(seconds: i64) -> bool {
        (-62_135_596_800..=253_402_300_799).contains(&seconds)
    }

    pub(crate) fn checked(seconds: i64, nanos: u32, offset: i32) -> Result<Timestamp, EvalError> {
        if Timestamp::is_in_range(seconds) {
            Ok(Timestamp { seconds, nanos, offset })
        } else {
            Err(EvalError::message("timestamp out of range"))
        }
    }

    /// Nanoseconds since 1970.
    pub(crate) fn total_nanos(self) -> i128 {
        i128::from(self.seconds) * NANOS + i128::from(self.nanos)
    }

    /// The timestamp that is `nanos` nanoseconds later.
    pub(crate) fn plus(self, nanos: i128) -> Result<Timestamp, EvalError> {
        let total = self.total_nanos() + nanos;
        let seconds = i64::try_from(total.div_euclid(NANOS)).ok();
        seconds
            .and_then(|seconds| Timestamp::checked(seconds, total.rem_euclid(NANOS) as u32, self.offset).ok())
            .ok_or_else(|| EvalError::message("timestamp overflow"))
    }

    /// The date and time of day in a zone that is `offset` seconds ahead of UTC, one
    /// [cycle](CYCLE_YEARS) earlier: jiff's range ends before the last day of the year 9999.
    pub(crate) fn civil(self, offset: i64) -> DateTime {
        let earlier = jiff::Timestamp::new(self.seconds + offset - CYCLE_SECONDS, self.nanos as i32);
        Offset::UTC.to_datetime(earlier.expect("years before 9600 are in range"))
    }

    /// Parses RFC 3339.
    pub(crate) fn parse(text: &str) -> Option<Timestamp> {
        let bytes = text.as_bytes();
        if bytes.len() < 20 || !text.is_ascii() {
            return None;
        }
        let separators = [bytes[4], bytes[7], bytes[13], bytes[16]] == *b"--::" && matches!(bytes[10], b'T' | b't');
        let year = number::<i16>(&text[..4])? - CYCLE_YEARS;
        let (month, day) = (number(&text[5..7])?, number(&text[8..10])?);
        let (hour, minute, second) = (number(&text[11..13])?, number(&text[14..16])?, number(&text[17..19])?);
        let civil = DateTime::new(year, month, day, hour, minute, second, 0).ok().filter(|_| separators)?;
        let mut rest = &text[19..];
        let mut nanos = 0;
        if let Some(fraction) = rest.strip_prefix('.') {
            let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let kept = &fraction[..digits.min(9)];
            nanos = number::<u32>(kept)? * 10u32.pow(9 - kept.len() as u32);
            rest = &fraction[digits..];
        }
        let offset = match rest {
            "Z" | "z" => 0,
            zone if zone.len() == 6 && (zone.starts_with('+') || zone.starts_with('-')) => offset_of(zone)?,
            _ => return None,
        };
        let seconds = Offset::UTC.to_timestamp(civil).ok()?.as_second() + CYCLE_SECONDS - offset;
        Timestamp::checked(seconds, nanos, offset as i32).ok()
    }

    /// Parses a date as its first second in UTC.
    pub(crate) fn parse_date(text: &str) -> Option<Timestamp> {
        Timestamp::parse(&format!("{text}T00:00:00Z"))
    }
}

/// RFC 3339 in the original zone, with as many decimals as needed.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let civil = self.civil(self.offset.into());
        write!(f, "{:04}{}", civil.year() + CYCLE_YEARS, civil.strftime("-%m-%dT%H:%M:%S"))?;
        f.write_str(&fraction(self.nanos))?;
        let minutes = self.offset.unsigned_abs() / 60;
        match self.offset {
            0 => f.write_str("Z"),
            offset => write!(f, "{}{:02}:{:02}", if offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60),
        }
    }
}

/// Parses a number that consists of digits only, without a sign.
fn number<T: FromStr>(digits: &str) -> Option<T> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Parses `[+-]HH:MM` to seconds.
pub(crate) fn offset_of(zone: &str) -> Option<i64> {
    let (sign, rest) = match zone.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, zone.strip_prefix('+').unwrap_or(zone)),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes) = (number::<i64>(hours)?, number::<i64>(minutes)?);
    (hours < 24 && minutes < 60).then(|| sign * (hours * 3600 + minutes * 60))
}

fn fraction(nanos: u32) -> String {
    if nanos == 0 {
        return String::new();
    }
    let digits = format!("{nanos:09}");
    format!(".{}", digits.trim_end_matches('0'))
}

/// Parses `1h2m3.5s` and the like to nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    i64::try_from(times::parse_duration(text).ok()?.as_nanos()).ok()
}

/// Seconds with as many decimals as needed: `3661.5s`.
pub(crate) fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let magnitude = nanos.unsigned_abs();
    let fraction = fraction((magnitude % 1_000_000_000) as u32);
    format!("{sign}{}{fraction}s", magnitude / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_survive_a_round_trip() {
        for text in ["1970-01-01T00:00:00Z", "2000-02-29T23:59:59.25Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
        {
            assert_eq!(Timestamp::parse(text).map(|at| at.to_string()).as_deref(), Some(text));
        }
        for invalid in ["2001-02-29T00:00:00Z", "2011-08-18T19:03:37++1:00"] {
            assert_eq!(Timestamp::parse(invalid), None, "{invalid}");
        }
        assert_eq!(
            Timestamp::parse("2011-08-18T19:03:37.010+01:00").map(|at| at.to_string()).as_deref(),
            Some("2011-08-18T19:03:37.01+01:00")
        );
    }

    #[test]
    fn durations_are_sums_of_units() {
        assert_eq!(parse_duration("1h2m3s4ms"), Some(3_723_004_000_000));
        assert_eq!(parse_duration("-1.5s"), Some(-1_500_000_000));
        for text in ["", "1", "1d", "1nns", "s", "99999999999999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        assert_eq!(format_duration(-1_500_000_000), "-1.5s");
    }
}
