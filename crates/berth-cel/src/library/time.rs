//! Functions on timestamps and durations.

use berth_apimachinery::times::time_zone;
use jiff::civil::DateTime;

use super::{Implementation, no_overload};
use crate::error::EvalError;
use crate::value::{CYCLE_YEARS, Outcome, Value, offset_of};

pub(super) fn implementation(name: &str) -> Option<Implementation> {
    Some(match name {
        "getFullYear" => |_, args| part(args, |civil| (civil.year() + CYCLE_YEARS).into()),
        "getMonth" => |_, args| part(args, |civil| i64::from(civil.month()) - 1),
        "getDayOfYear" => |_, args| part(args, |civil| i64::from(civil.day_of_year()) - 1),
        "getDayOfMonth" => |_, args| part(args, |civil| i64::from(civil.day()) - 1),
        "getDate" => |_, args| part(args, |civil| civil.day().into()),
        "getDayOfWeek" => |_, args| part(args, |civil| civil.weekday().to_sunday_zero_offset().into()),
        "getHours" => |_, args| amount(args, 3_600_000_000_000, |civil| civil.hour().into()),
        "getMinutes" => |_, args| amount(args, 60_000_000_000, |civil| civil.minute().into()),
        "getSeconds" => |_, args| amount(args, 1_000_000_000, |civil| civil.second().into()),
        "getMilliseconds" => |_, args| amount(args, 1_000_000, |civil| civil.millisecond().into()),
        _ => return None,
    })
}

/// A duration in whole units of `unit` nanoseconds, or the part of a timestamp that `take` returns.
fn amount<'a>(args: &[Value<'a>], unit: i64, take: fn(&DateTime) -> i64) -> Outcome<'a> {
    match args {
        [Value::Duration(nanos)] => Ok(Value::Int(nanos / unit)),
        _ => part(args, take),
    }
}

/// A part of a timestamp: in UTC, or in the zone that the second argument names.
fn part<'a>(args: &[Value<'a>], take: fn(&DateTime) -> i64) -> Outcome<'a> {
    let (at, offset) = match args {
        [Value::Timestamp(at)] => (at, 0),
        [Value::Timestamp(at), Value::String(zone)] => (at, offset_at(zone, at.seconds)?),
        _ => return no_overload(),
    };
    Ok(Value::Int(take(&at.civil(offset))))
}

fn unknown_zone(zone: &str) -> EvalError {
    EvalError::message(format!("unknown time zone {zone}"))
}

/// Seconds by which a zone is ahead of UTC at a time in seconds since 1970. `zone` is `[+-]HH:MM`
/// or a name of the IANA database.
fn offset_at(zone: &str, seconds: i64) -> Result<i64, EvalError> {
    if matches!(zone, "UTC" | "GMT" | "Z" | "") {
        return Ok(0);
    }
    if zone.contains(':') {
        return offset_of(zone).ok_or_else(|| unknown_zone(zone));
    }
    let named = time_zone(zone).ok_or_else(|| unknown_zone(zone))?;
    // The last day of the year 9999 exceeds jiff's range; its offset is that of the day before.
    let at = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    Ok(named.to_offset(at).seconds().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Timestamp;

    #[test]
    fn zones_are_known_by_name_and_change_with_the_season() {
        fn hour(text: &str, zone: &str) -> Option<i64> {
            let at = Timestamp::parse(text).expect("a timestamp");
            match part(&[Value::Timestamp(at), Value::from(zone)], |civil| civil.hour().into()) {
                Ok(Value::Int(hour)) => Some(hour),
                _ => None,
            }
        }
        let is = |text: &str, zone: &str, expected: i64| {
            assert_eq!(hour(text, zone), Some(expected), "{text} in {zone}");
        };
        is("2026-01-15T12:00:00Z", "America/Los_Angeles", 4);
        is("2026-07-15T12:00:00Z", "America/Los_Angeles", 5);
        // Both times are in the hour that is repeated when summer time ends.
        is("2026-10-25T00:30:00Z", "Europe/Berlin", 2);
        is("2026-10-25T01:30:00Z", "Europe/Berlin", 2);
        is("2026-01-15T12:00:00Z", "Asia/Kolkata", 17);
        is("9999-12-31T12:00:00Z", "Asia/Tokyo", 21);
        is("2026-01-15T12:00:00Z", "-02:30", 9);
        for unknown in ["Mars/Olympus_Mons", "europe/berlin", "25", "+2:xx"] {
            assert_eq!(hour("2026-01-15T12:00:00Z", unknown), None, "{unknown}");
        }
    }
}
