//! What the machines of a pool have cost.

use berth_api::berth::Billing;
use berth_runtime::stamp;
use jiff::{SignedDuration, Timestamp};

/// Time since the last count after which the machine time of a pool with machines is counted again,
/// even if the number of machines has not changed.
const REFRESH: SignedDuration = SignedDuration::from_hours(1);

/// The bill of a pool that has `machines` machines at the time `now`. To write the pool rarely, it
/// changes only if the number of machines or the price changes, or after an hour if there are
/// machines.
pub fn billed(known: Option<&Billing>, machines: i32, price: f64, now: Timestamp) -> Billing {
    let price_per_hour = format!("{price:.2}");
    let Some(known) = known else {
        let cost = "0.00".to_owned();
        return Billing { machine_seconds: 0, machines, up_to: stamp(now), price_per_hour, cost };
    };
    let elapsed = now.duration_since(known.up_to.0);
    let is_current = known.machines == machines && known.price_per_hour == price_per_hour;
    if is_current && (elapsed < REFRESH || machines == 0) {
        return known.clone();
    }
    let seconds = i64::from(known.machines).saturating_mul(elapsed.as_secs().max(0));
    let machine_seconds = known.machine_seconds.saturating_add(seconds);
    // A changed price applies to the time since the last count.
    let before: f64 = known.cost.parse().unwrap_or(0.0);
    let exact = machine_seconds as f64 / 3600.0 * price;
    let cost = if known.price_per_hour == price_per_hour { exact } else { before + seconds as f64 / 3600.0 * price };
    Billing { machine_seconds, machines, up_to: stamp(now), price_per_hour, cost: format!("{cost:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn machine_time_is_counted_when_the_number_of_machines_changes() {
        let first = billed(None, 0, 2.0, at(0));
        let two = billed(Some(&first), 2, 2.0, at(600));
        assert_eq!((two.machine_seconds, two.cost.as_str()), (0, "0.00"));
        assert_eq!(billed(Some(&two), 2, 2.0, at(4199)), two, "the machine time is counted again only after an hour");
        let refreshed = billed(Some(&two), 2, 2.0, at(4200));
        assert_eq!((refreshed.machine_seconds, refreshed.cost.as_str()), (7200, "4.00"));
        let none = billed(Some(&refreshed), 0, 2.0, at(6000));
        assert_eq!((none.machine_seconds, none.machines, none.cost.as_str()), (10_800, 0, "6.00"));
        assert_eq!(billed(Some(&none), 0, 2.0, at(900_000)), none);
    }
}
