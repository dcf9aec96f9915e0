//! Schedules of CronJobs: `*/5 9-17 * * MON-FRI`, `@hourly`, `@every 90m`.
//!
//! A schedule has five fields (minute, hour, day of month, month, day of week), or is a macro. It
//! is due at each minute whose local time matches every field. Local times that a change of the
//! clock skips are not due; local times that it repeats are due twice. If both day fields are
//! restricted, one of them has to match.
//!
//! Source: the syntax and the error messages of `ParseStandard` in robfig/cron v3.0.1, which
//! Kubernetes uses. One deliberate difference: where midnight does not exist, robfig/cron may
//! return a time on a day that the schedule excludes.

use std::fmt;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use crate::times;

/// A schedule that is not due within this many calendar years is never due.
const YEARS_MAX: i16 = 5;

/// A parsed schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Due at the minutes whose local time matches.
    Calendar(Calendar),
    /// Due again this long after the previous time, in whole seconds.
    Every(SignedDuration),
}

/// Fields of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    minutes: Field,
    hours: Field,
    days: Field,
    months: Field,
    weekdays: Field,
}

/// The set of values that one field matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    /// Bit `n` is set if value `n` matches.
    bits: u64,
    /// True if the field has a `*` or `?` without a step, so it restricts nothing.
    is_star: bool,
}

impl Field {
    fn matches(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.bits.checked_shr(value).is_some_and(|bits| bits & 1 == 1))
    }
}

/// The reason why a string is not a schedule, with robfig/cron's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleError(String);

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ScheduleError {}

fn fail<T>(message: String) -> Result<T, ScheduleError> {
    Err(ScheduleError(message))
}

/// Values that a field accepts, with their names.
struct Bounds {
    min: u64,
    max: u64,
    /// Names of the values from `min` on.
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAYS: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds = Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

impl Schedule {
    /// Parses a schedule.
    ///
    /// # Errors
    /// The string is not a schedule. A prefix `TZ=` or `CRON_TZ=` is not allowed.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let fields = match text {
            "" => return fail("empty spec string".to_owned()),
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            text if text.starts_with('@') => return every(text),
            text => text,
        };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let &[minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return fail(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        Ok(Self::Calendar(Calendar {
            minutes: field(minutes, &MINUTES)?,
            hours: field(hours, &HOURS)?,
            days: field(days, &DAYS)?,
            months: field(months, &MONTHS)?,
            weekdays: field(weekdays, &WEEKDAYS)?,
        }))
    }

    /// The first time after `after` at which the schedule is due in `zone`; `None` if there is none
    /// within five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let second = Timestamp::from_second(after.as_nanosecond().div_euclid(1_000_000_000).try_into().ok()?).ok()?;
        match self {
            Self::Every(delay) => second.checked_add(*delay).ok(),
            Self::Calendar(calendar) => calendar.next(second, zone),
        }
    }

    /// The last time up to and including `now` at which the schedule was due after `after`.
    pub fn latest(&self, after: Timestamp, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        if let Self::Every(delay) = self {
            let times = now.duration_since(after).as_secs() / delay.as_secs().max(1);
            let first = self.next(after, zone).filter(|first| *first <= now)?;
            let more = SignedDuration::from_secs(delay.as_secs().saturating_mul(times.max(1) - 1));
            return first.checked_add(more).ok().filter(|last| *last <= now).or(Some(first));
        }
        // Search backwards in windows of doubled length: a dense schedule has a time in the first.
        let mut window = SignedDuration::from_mins(2);
        let first = loop {
            let start = now.checked_sub(window).unwrap_or(after).max(after);
            match self.next(start, zone).filter(|at| *at <= now) {
                Some(at) => break at,
                None if start == after => return None,
                None => window = window.saturating_mul(2),
            }
        };
        let following = std::iter::successors(Some(first), |at| self.next(*at, zone).filter(|at| *at <= now));
        following.last()
    }
}

impl Calendar {
    /// As [`Schedule::next`], for an `after` in whole seconds.
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let minutes = |count: i64| SignedDuration::from_mins(count);
        let first = after.as_second().div_euclid(60) + 1;
        let mut at = Timestamp::from_second(first.checked_mul(60)?).ok()?;
        let last_year = after.to_zoned(zone.clone()).year().saturating_add(YEARS_MAX);
        loop {
            let local = at.to_zoned(zone.clone());
            if local.year() > last_year {
                return None;
            }
            let later = if !self.months.matches(local.month()) {
                local.date().first_of_month().checked_add(1.month()).ok()?.to_zoned(zone.clone()).ok()?.timestamp()
            } else if !self.is_day(&local) {
                local.date().tomorrow().ok()?.to_zoned(zone.clone()).ok()?.timestamp()
            } else if !self.hours.matches(local.hour()) {
                // If the clock changes before the end of this hour, the search continues minute by
                // minute.
                let end = at.checked_add(minutes(60 - i64::from(local.minute()))).ok()?;
                if zone.to_offset(end) == local.offset() { end } else { at.checked_add(minutes(1)).ok()? }
            } else if !self.minutes.matches(local.minute()) {
                at.checked_add(minutes(1)).ok()?
            } else {
                return Some(at);
            };
            // A day may begin in the repeated part of the day before.
            at = later.max(at.checked_add(minutes(1)).ok()?);
        }
    }

    fn is_day(&self, local: &jiff::Zoned) -> bool {
        let of_month = self.days.matches(local.day());
        let of_week = self.weekdays.matches(local.weekday().to_sunday_zero_offset());
        if self.days.is_star || self.weekdays.is_star { of_month && of_week } else { of_month || of_week }
    }
}

/// Parses `@every` with a duration as in Go. Fractions of a second are truncated.
fn every(text: &str) -> Result<Schedule, ScheduleError> {
    let Some(delay) = text.strip_prefix("@every ") else {
        return fail(format!("unrecognized descriptor: {text}"));
    };
    match times::parse_duration(delay) {
        Ok(delay) => Ok(Schedule::Every(SignedDuration::from_secs(delay.as_secs().max(1)))),
        Err(error) => fail(format!("failed to parse duration {text}: {error}")),
    }
}

/// Parses a field: ranges separated by commas.
fn field(text: &str, bounds: &Bounds) -> Result<Field, ScheduleError> {
    let mut all = Field { bits: 0, is_star: false };
    for range in text.split(',').filter(|range| !range.is_empty()) {
        let Field { bits, is_star } = parse_range(range, bounds)?;
        all = Field { bits: all.bits | bits, is_star: all.is_star || is_star };
    }
    Ok(all)
}

/// Parses one range: `*`, `?`, `n`, `n-m`, each with an optional `/step`. `n/step` ends at the
/// largest value of the field.
fn parse_range(range: &str, bounds: &Bounds) -> Result<Field, ScheduleError> {
    let parts: Vec<&str> = range.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let is_star = matches!(ends[0], "*" | "?");
    let (start, mut end) = match ends.as_slice() {
        _ if is_star => (bounds.min, bounds.max),
        [one] => {
            let one = value(one, bounds.names, bounds.min)?;
            (one, one)
        }
        [low, high] => (value(low, bounds.names, bounds.min)?, value(high, bounds.names, bounds.min)?),
        _ => return fail(format!("too many hyphens: {range}")),
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if ends.len() == 1 {
                end = bounds.max;
            }
            step
        }
        _ => return fail(format!("too many slashes: {range}")),
    };
    if start < bounds.min {
        return fail(format!("beginning of range ({start}) below minimum ({}): {range}", bounds.min));
    }
    if end > bounds.max {
        return fail(format!("end of range ({end}) above maximum ({}): {range}", bounds.max));
    }
    if start > end {
        return fail(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    if step == 0 {
        return fail(format!("step of range should be a positive number: {range}"));
    }
    let values = (start..=end).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    Ok(Field { bits: values.fold(0, |bits, value| bits | 1 << value), is_star: is_star && step == 1 })
}

fn value(text: &str, names: &[&str], first: u64) -> Result<u64, ScheduleError> {
    match names.iter().zip(first..).find(|(name, _)| text.eq_ignore_ascii_case(name)) {
        Some((_, value)) => Ok(value),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, ScheduleError> {
    match text.parse::<i64>() {
        Ok(negative) if negative < 0 => fail(format!("negative number ({negative}) not allowed: {text}")),
        Ok(number) => Ok(number.unsigned_abs()),
        Err(error) => {
            let cause = match error.kind() {
                std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            let quoted = crate::field::quote(text);
            fail(format!("failed to parse int from {text}: strconv.Atoi: parsing {quoted}: {cause}"))
        }
    }
}

#[cfg(test)]
mod tests;
