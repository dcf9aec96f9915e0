//! Evaluates the supply of a pool: the stock at a time, its next change, and the end of a machine's
//! life.
//!
//! All values follow from the pool's spec, the seed, the time and the node, so a restart of Berth
//! does not change them.

use berth_api::berth::{ENDS_AT_ANNOTATION, ENDS_BECAUSE_ANNOTATION, NodePool, RandomSupply, SupplyPeriod, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::Site;
use crate::random::hash;

/// Taint of a machine that the cloud takes away soon.
pub const TERMINATION_TAINT: &str = "cloud.google.com/impending-node-termination";
/// Why a machine ends: the cloud takes it back.
pub const RECLAIMED: &str = "Reclaimed";
/// Why a machine ends: its maximum run time is over.
pub const MAX_RUN_DURATION: &str = "MaxRunDurationExceeded";
/// Default of `reclaim.notice`.
const NOTICE_DEFAULT: SignedDuration = SignedDuration::from_secs(30);
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Number of machines that the cloud has for the pool, including those in use; `None` if there is
/// no limit.
pub fn stock(pool: &NodePool, site: &Site, now: Timestamp) -> Option<i32> {
    let supply = pool.spec.supply.as_ref()?;
    if let Some(period) = supply.periods.iter().find(|period| includes(period, now)) {
        return Some(period.machines.max(0));
    }
    match &supply.random {
        Some(random) => Some(draw(random, pool, site, now)),
        None => supply.machines,
    }
}

/// Next time at which the stock may change.
pub fn next_change(pool: &NodePool, now: Timestamp) -> Option<Timestamp> {
    let supply = pool.spec.supply.as_ref()?;
    let of_periods = supply.periods.iter().filter_map(|period| next_edge(period, now));
    of_periods.chain(supply.random.as_ref().and_then(|random| next_draw(random, now))).min()
}

/// Number of machines that the cloud will have for the pool at a later time, including those in
/// use. `None` if the number will be drawn at random.
pub fn scheduled_stock(pool: &NodePool, at: Timestamp) -> Option<i32> {
    let Some(supply) = &pool.spec.supply else { return Some(i32::MAX) };
    match supply.periods.iter().find(|period| includes(period, at)) {
        Some(period) => Some(period.machines.max(0)),
        None if supply.random.is_some() => None,
        None => Some(supply.machines.unwrap_or(i32::MAX)),
    }
}

/// Next start or end of a period of the pool's supply.
pub fn next_period(pool: &NodePool, now: Timestamp) -> Option<Timestamp> {
    pool.spec.supply.as_ref()?.periods.iter().filter_map(|period| next_edge(period, now)).min()
}

/// When the cloud takes a machine away, and why, by the pool's spec; `None` if it keeps running.
pub fn natural_end(pool: &NodePool, node: &Node, site: &Site) -> Option<(Timestamp, &'static str)> {
    let started = node.metadata.creation_timestamp.as_ref()?.0;
    let limit = pool.spec.max_run_duration.and_then(|limit| SignedDuration::try_from(limit.0).ok());
    let limit = limit.and_then(|limit| started.checked_add(limit).ok()).map(|at| (at, MAX_RUN_DURATION));
    let mean = pool.spec.supply.as_ref().and_then(|supply| supply.reclaim.as_ref()?.mean_lifetime);
    let reclaimed = mean.and_then(|mean| {
        let seed = site.seed.to_string();
        let range = u64::try_from(mean.0.as_millis()).unwrap_or(u64::MAX).saturating_mul(2).max(1);
        let lives = hash(&["reclaim", &seed, &node.name_any()]) % range;
        let lives = SignedDuration::from_millis(i64::try_from(lives).unwrap_or(i64::MAX));
        started.checked_add(lives).ok()
    });
    limit.into_iter().chain(reclaimed.map(|at| (at, RECLAIMED))).min()
}

/// Time from the notice until the machine is taken away.
pub fn notice(pool: &NodePool) -> SignedDuration {
    let given = pool.spec.supply.as_ref().and_then(|supply| supply.reclaim.as_ref()?.notice);
    given.and_then(|notice| SignedDuration::try_from(notice.0).ok()).unwrap_or(NOTICE_DEFAULT)
}

/// The end of a machine of which the cloud has given notice, and the reason.
pub fn announced_end(node: &Node) -> Option<(Timestamp, String)> {
    let at = node.annotations().get(ENDS_AT_ANNOTATION)?.parse().ok()?;
    Some((at, node.annotations().get(ENDS_BECAUSE_ANNOTATION).cloned().unwrap_or_default()))
}

fn includes(period: &SupplyPeriod, now: Timestamp) -> bool {
    if !period.is_weekly() {
        return period.start.as_ref().is_none_or(|start| start.0 <= now)
            && period.end.as_ref().is_none_or(|end| now < end.0);
    }
    let (from, until) = period.minutes();
    let minute = u32::try_from(now.as_second().rem_euclid(24 * 3600) / 60).unwrap_or(0);
    is_on(period, now) && (from..until).contains(&minute)
}

/// True if a weekly period applies on the day of this time.
fn is_on(period: &SupplyPeriod, now: Timestamp) -> bool {
    period.days.is_empty() || period.days.contains(&weekday(now))
}

fn weekday(now: Timestamp) -> Weekday {
    use jiff::civil::Weekday as Day;
    match now.to_zoned(TimeZone::UTC).weekday() {
        Day::Monday => Weekday::Monday,
        Day::Tuesday => Weekday::Tuesday,
        Day::Wednesday => Weekday::Wednesday,
        Day::Thursday => Weekday::Thursday,
        Day::Friday => Weekday::Friday,
        Day::Saturday => Weekday::Saturday,
        Day::Sunday => Weekday::Sunday,
    }
}

/// The next start or end of a period.
fn next_edge(period: &SupplyPeriod, now: Timestamp) -> Option<Timestamp> {
    if !period.is_weekly() {
        return [&period.start, &period.end].into_iter().flatten().map(|time| time.0).filter(|at| *at > now).min();
    }
    let midnight = Timestamp::from_second(now.as_second().div_euclid(24 * 3600) * 24 * 3600).ok()?;
    let (from, until) = period.minutes();
    // The period starts or ends at least once in the next eight days.
    (0..=7).find_map(|day| {
        let midnight = midnight.checked_add(DAY * day).ok()?;
        let edges = [from, until].map(|minute| midnight.checked_add(SignedDuration::from_mins(i64::from(minute))).ok());
        edges.into_iter().flatten().find(|at| *at > now && is_on(period, midnight))
    })
}

/// Number of the slot of random supply that includes this time, and the slot's length in seconds.
/// One number is drawn per slot.
fn slot(random: &RandomSupply, now: Timestamp) -> (i64, i64) {
    let length = i64::try_from(random.every.0.as_secs()).unwrap_or(i64::MAX).max(1);
    (now.as_second().div_euclid(length), length)
}

fn draw(random: &RandomSupply, pool: &NodePool, site: &Site, now: Timestamp) -> i32 {
    let (slot, _) = slot(random, now);
    let seed = random.seed.unwrap_or(site.seed).to_string();
    let (min, max) = (random.min.max(0), random.max.max(random.min).max(0));
    let values = u64::try_from(max - min).unwrap_or(0) + 1;
    let drawn = hash(&["supply", &seed, &pool.name_any(), &slot.to_string()]) % values;
    min + i32::try_from(drawn).unwrap_or(0)
}

fn next_draw(random: &RandomSupply, now: Timestamp) -> Option<Timestamp> {
    let (slot, length) = slot(random, now);
    Timestamp::from_second((slot + 1).checked_mul(length)?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(supply: Value) -> NodePool {
        let spec = json!({ "machineType": "g2-standard-24", "maxNodes": 10, "supply": supply });
        let pool = NodePool::new("p", serde_json::from_value(spec).unwrap());
        assert_eq!(pool.spec.problems("spec"), []);
        pool
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Stock at a time, and its next change.
    fn seen(pool: &NodePool, time: &str) -> (Option<i32>, Option<String>) {
        (stock(pool, &Site::default(), at(time)), next_change(pool, at(time)).map(|at| at.to_string()))
    }

    #[test]
    fn a_weekly_stock_out_starts_and_ends_on_its_day() {
        let pool = pool(json!({ "machines": 6, "periods": [
            { "machines": 0, "days": ["Tuesday"], "from": "08:00", "until": "20:00" }] }));
        // 5 January 2026 is a Monday.
        let change = |text: &str| Some(text.to_owned());
        assert_eq!(seen(&pool, "2026-01-05T12:00:00Z"), (Some(6), change("2026-01-06T08:00:00Z")));
        assert_eq!(seen(&pool, "2026-01-06T08:00:00Z"), (Some(0), change("2026-01-06T20:00:00Z")));
        assert_eq!(seen(&pool, "2026-01-06T19:59:59Z"), (Some(0), change("2026-01-06T20:00:00Z")));
        assert_eq!(seen(&pool, "2026-01-06T20:00:00Z"), (Some(6), change("2026-01-13T08:00:00Z")));
        assert_eq!(seen(&pool, "2026-01-07T12:00:00Z"), (Some(6), change("2026-01-13T08:00:00Z")));
    }

    #[test]
    fn a_single_period_has_a_start_and_an_end_and_no_supply_means_no_limit() {
        let pool = pool(
            json!({ "periods": [{ "machines": 2, "start": "2026-01-06T00:00:00Z", "end": "2026-01-07T00:00:00Z" }] }),
        );
        assert_eq!(seen(&pool, "2026-01-05T00:00:00Z"), (None, Some("2026-01-06T00:00:00Z".into())));
        assert_eq!(seen(&pool, "2026-01-06T00:00:00Z"), (Some(2), Some("2026-01-07T00:00:00Z".into())));
        assert_eq!(seen(&pool, "2026-01-07T00:00:00Z"), (None, None));
    }

    #[test]
    fn random_stock_stays_within_its_bounds_and_depends_on_the_seed() {
        let draws = |seed: u64| -> Vec<i32> {
            let pool = pool(json!({ "random": { "min": 1, "max": 4, "every": "4h", "seed": seed } }));
            let start = at("2026-01-05T00:00:00Z");
            (0..42)
                .map(|slot| {
                    let now = start + SignedDuration::from_hours(4 * slot);
                    let value = stock(&pool, &Site::default(), now).unwrap();
                    let later = now + SignedDuration::from_hours(3);
                    assert_eq!(stock(&pool, &Site::default(), later), Some(value), "constant within a slot");
                    assert_eq!(next_change(&pool, later), Some(now + SignedDuration::from_hours(4)));
                    value
                })
                .collect()
        };
        let first = draws(1);
        assert!(first.iter().all(|value| (1..=4).contains(value)));
        assert!((1..=4).all(|value| first.contains(&value)), "{first:?}");
        assert_eq!(first, draws(1));
        assert_ne!(first, draws(2));
    }

    #[test]
    fn a_machine_ends_by_its_maximum_age_or_its_drawn_lifetime() {
        let mut pool = pool(json!({ "reclaim": { "meanLifetime": "10h" } }));
        let node = |name: &str| {
            let mut node = crate::pools::template(&pool, &Site::default(), "z", name);
            node.metadata.creation_timestamp = Some(berth_runtime::stamp(at("2026-01-05T00:00:00Z")));
            node
        };
        let nodes: Vec<Node> = (0..20).map(|i| node(&format!("n{i}"))).collect();
        let hours = |pool: &NodePool| -> Vec<(i64, &'static str)> {
            let end = |node| natural_end(pool, node, &Site::default()).unwrap();
            let since = |(end, why): (Timestamp, &'static str)| {
                (end.duration_since(at("2026-01-05T00:00:00Z")).as_hours(), why)
            };
            nodes.iter().map(end).map(since).collect()
        };
        let drawn = hours(&pool);
        assert!(drawn.iter().all(|(hours, why)| (0..20).contains(hours) && *why == RECLAIMED), "{drawn:?}");
        assert!(drawn.iter().any(|(hours, _)| *hours < 8) && drawn.iter().any(|(hours, _)| *hours > 12), "{drawn:?}");
        pool.spec.max_run_duration = Some("5h".parse().unwrap());
        let limited = hours(&pool);
        assert!(limited.iter().all(|(hours, _)| *hours <= 5));
        assert!(limited.contains(&(5, MAX_RUN_DURATION)));
        assert_eq!(notice(&pool), NOTICE_DEFAULT);
    }
}
