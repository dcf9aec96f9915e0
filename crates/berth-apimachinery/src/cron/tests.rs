use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::Value;

use super::Schedule;

fn zone(name: &str) -> TimeZone {
    crate::times::time_zone(name).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Schedules and the results of robfig/cron v3.0.1: an error, or the next times.
#[test]
fn recorded_schedules_have_the_recorded_times_and_errors() {
    let cases: Vec<Value> =
        include_str!("recorded.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for case in &cases {
        let text = case["schedule"].as_str().unwrap();
        let schedule = match (Schedule::parse(text), case["error"].as_str()) {
            (Err(error), Some(expected)) => {
                assert_eq!(error.to_string(), expected, "{text:?}");
                continue;
            }
            (Ok(schedule), None) => schedule,
            (parsed, expected) => panic!("{text:?}: {parsed:?} instead of {expected:?}"),
        };
        let (zone, mut after) = (zone(case["zone"].as_str().unwrap()), at(case["after"].as_str().unwrap()));
        let expected: Vec<Timestamp> =
            case["next"].as_array().into_iter().flatten().map(|time| at(time.as_str().unwrap())).collect();
        for expected in &expected {
            after = schedule.next(after, &zone).unwrap_or_else(|| panic!("{case}: ends before {expected}"));
            assert_eq!(after, *expected, "{case}");
        }
        if expected.len() < 4 {
            assert_eq!(schedule.next(after, &zone), None, "{case}");
        }
    }
    assert!(cases.len() > 200, "only {} cases", cases.len());
}

#[test]
fn a_time_that_the_clock_skips_is_not_due_and_a_repeated_one_is_due_twice() {
    let new_york = zone("America/New_York");
    let schedule = Schedule::parse("30 2 * * *").unwrap();
    assert_eq!(schedule.next(at("2026-03-07T08:00:00Z"), &new_york), Some(at("2026-03-09T06:30:00Z")));
    let schedule = Schedule::parse("30 1 1 11 *").unwrap();
    let first = schedule.next(at("2026-10-31T12:00:00Z"), &new_york).unwrap();
    assert_eq!(first, at("2026-11-01T05:30:00Z"));
    assert_eq!(schedule.next(first, &new_york), Some(at("2026-11-01T06:30:00Z")));
}

#[test]
fn a_day_without_midnight_begins_at_its_first_hour() {
    let sao_paulo = zone("America/Sao_Paulo");
    // On 4 November 2018, 00:00 to 01:00 did not exist.
    let daily = Schedule::parse("0 0 * * *").unwrap();
    assert_eq!(daily.next(at("2018-11-03T12:00:00Z"), &sao_paulo), Some(at("2018-11-05T02:00:00Z")));
    let one = Schedule::parse("0 1 4 * *").unwrap();
    assert_eq!(one.next(at("2018-11-03T12:00:00Z"), &sao_paulo), Some(at("2018-11-04T03:00:00Z")));
    let not_the_third = Schedule::parse("0 5 3 * *").unwrap();
    assert_eq!(not_the_third.next(at("2018-11-03T12:00:00Z"), &sao_paulo), Some(at("2018-12-03T07:00:00Z")));
}

#[test]
fn the_latest_time_is_found_however_many_were_missed() {
    let utc = TimeZone::UTC;
    let latest = |text: &str, after: &str, now: &str| Schedule::parse(text).unwrap().latest(at(after), at(now), &utc);
    let (start, later) = ("2020-01-01T00:00:00Z", "2026-02-03T04:05:06Z");
    assert_eq!(latest("* * * * *", start, later), Some(at("2026-02-03T04:05:00Z")));
    assert_eq!(latest("0 0 29 2 *", start, later), Some(at("2024-02-29T00:00:00Z")));
    assert_eq!(latest("0 0 31 2 *", start, later), None);
    assert_eq!(latest("@every 1h", start, "2020-01-01T03:59:59Z"), Some(at("2020-01-01T03:00:00Z")));
    assert_eq!(latest("@every 1h", start, "2020-01-01T00:59:59Z"), None);
    assert_eq!(latest("0 * * * *", start, "2020-01-01T01:00:00Z"), Some(at("2020-01-01T01:00:00Z")));
}

/// A field of numbers, ranges, steps and stars.
fn a_field(low: u8, high: u8) -> impl Strategy<Value = String> {
    prop_oneof![
        3 => Just("*".to_owned()),
        1 => (1..20_u8).prop_map(|step| format!("*/{step}")),
        2 => (low..=high).prop_map(|one| one.to_string()),
        1 => (low..=high, low..=high).prop_map(|(a, b)| format!("{},{}", a, b)),
        1 => (low..=high, low..=high, 1..5_u8).prop_map(|(a, b, step)| format!("{}-{}/{step}", a.min(b), a.max(b))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The oracle steps minute by minute and tests only whether a minute matches.
    #[test]
    fn the_next_time_is_the_first_matching_minute(
        minute in a_field(0, 59), hour in a_field(0, 23), day in a_field(1, 31), weekday in a_field(0, 6),
        start in 1_772_000_000_i64..1_804_000_000,
        place in prop::sample::select(vec!["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    ) {
        let zone = zone(place);
        let schedule = Schedule::parse(&format!("{minute} {hour} {day} * {weekday}")).unwrap();
        let Schedule::Calendar(calendar) = &schedule else { unreachable!("five fields") };
        let after = Timestamp::from_second(start).unwrap();
        let days = 3;
        let first = Timestamp::from_second((start / 60 + 1) * 60).unwrap();
        let expected = (0..days * 24 * 60).map(|minutes| first + SignedDuration::from_mins(minutes)).find(|time| {
            let local = time.to_zoned(zone.clone());
            calendar.minutes.matches(local.minute()) && calendar.hours.matches(local.hour()) && calendar.is_day(&local)
        });
        let limit = first + SignedDuration::from_mins(days * 24 * 60);
        prop_assert_eq!(schedule.next(after, &zone).filter(|time| *time < limit), expected);
        // The last time before a moment is the one whose successor is after that moment.
        if let Some(last) = schedule.latest(after, limit, &zone) {
            prop_assert!(last > after && last <= limit);
            prop_assert!(schedule.next(last, &zone).is_none_or(|next| next > limit));
        } else {
            prop_assert_eq!(expected.filter(|time| *time <= limit), None);
        }
    }
}
