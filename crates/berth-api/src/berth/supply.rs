//! The supply of a node pool: how many machines the cloud has over time, and when it takes machines
//! away.
//!
//! The types are parts of the NodePool, so that users can read and change the supply with kubectl.
//! The crate berth-cluster evaluates them.

use std::collections::BTreeSet;

use crate::JsonSchema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::Duration;

/// Longest notice before a machine is reclaimed.
const NOTICE_MAX_SECONDS: u64 = 120;
/// Minimum of `random.every` and of `reclaim.meanLifetime`. Each draw of random supply causes a
/// write of the pool's status.
const SLOT_MIN_SECONDS: u64 = 60;
/// Minutes of a day.
const DAY_MINUTES: u32 = 24 * 60;

/// The cloud's stock of a pool's machines over time. The first period that includes the time
/// applies, otherwise `random`, otherwise `machines`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Supply {
    /// Machines that the cloud has for the pool, including those in use. Default: no limit other
    /// than `maxNodes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<i32>,
    /// Times at which the cloud has another number of machines, such as a stock-out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub periods: Vec<SupplyPeriod>,
    /// A stock that changes at random.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random: Option<RandomSupply>,
    /// Whether the cloud takes machines back while they are in use. Default: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim: Option<Reclaim>,
}

/// A number of machines during a time: once (`start` and `end`), or every week (`days`, `from` and
/// `until`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SupplyPeriod {
    /// Machines that the cloud has during the period.
    pub machines: i32,
    /// Start of a period that happens once. Default: since ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Time>,
    /// End of a period that happens once. Default: it does not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Time>,
    /// Days of a weekly period, in UTC. Default: every day.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Weekday>,
    /// Time of the day at which a weekly period starts, in UTC, such as `08:00`. Default: `00:00`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Time of the day at which a weekly period ends, in UTC, at most `24:00`. Default: `24:00`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Weekday {
    /// Monday.
    Monday,
    /// Tuesday.
    Tuesday,
    /// Wednesday.
    Wednesday,
    /// Thursday.
    Thursday,
    /// Friday.
    Friday,
    /// Saturday.
    Saturday,
    /// Sunday.
    Sunday,
}

/// A stock that is drawn anew at regular intervals. The same seed gives the same stock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RandomSupply {
    /// Minimum number of machines.
    pub min: i32,
    /// Maximum number of machines.
    pub max: i32,
    /// Interval between two draws, at least 1 minute.
    pub every: Duration,
    /// Seed. Default: the seed of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// When the cloud takes machines back. A machine of a queued pool is taken back with all machines
/// of its ProvisioningRequest, and a machine of a TPU slice with the slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reclaim {
    /// Mean time after which a machine is taken back. The time of each machine is drawn between 0
    /// and twice the mean. Default: machines are only taken back when the stock falls below the
    /// number of machines in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_lifetime: Option<Duration>,
    /// Time from the notice (taint `cloud.google.com/impending-node-termination`) until the machine
    /// is taken away, 0 to 120 seconds. Default: 30 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<Duration>,
}

/// A scale-up that the cloud could not fulfil.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// Machines that the pool lacks now. 0 once the autoscaler has withdrawn the order.
    pub missing: i32,
    /// Time of the last order that failed.
    pub since: Time,
    /// Number of orders that failed without a success since.
    pub failures: i32,
}

/// What the machines of a pool have cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Billing {
    /// Machine time up to `upTo`, in seconds.
    pub machine_seconds: i64,
    /// Machines that run since `upTo`.
    pub machines: i32,
    /// Time up to which the machine time is counted.
    pub up_to: Time,
    /// Price of one machine in US dollars per hour.
    pub price_per_hour: String,
    /// Cost up to `upTo`, in US dollars.
    pub cost: String,
}

/// Pairs of a field and a message about what is wrong with it.
type FieldProblems = Vec<(String, String)>;

impl SupplyPeriod {
    /// True if the period repeats every week.
    pub fn is_weekly(&self) -> bool {
        self.start.is_none() && self.end.is_none()
    }

    /// The minutes of the day at which a weekly period starts and ends. An invalid time counts as
    /// absent; see [`Supply::problems`].
    pub fn minutes(&self) -> (u32, u32) {
        let read = |text: &Option<String>| text.as_deref().and_then(minute_of);
        (read(&self.from).unwrap_or(0), read(&self.until).unwrap_or(DAY_MINUTES))
    }

    fn problems(&self, field: &str) -> FieldProblems {
        let mut problems = FieldProblems::new();
        let mut problem = |name: &str, message: String| problems.push((format!("{field}.{name}"), message));
        if self.machines < 0 {
            problem("machines", format!("{} is less than 0", self.machines));
        }
        for (name, time) in [("from", &self.from), ("until", &self.until)] {
            if let Some(text) = time.as_ref().filter(|text| minute_of(text).is_none()) {
                problem(name, format!("{text:?} is not a time of the day: expected 00:00 to 24:00"));
            }
        }
        let (from, until) = self.minutes();
        if from >= until {
            problem("until", "must be later than from, on the same day".into());
        }
        if !self.is_weekly() && (!self.days.is_empty() || self.from.is_some() || self.until.is_some()) {
            problem("days", "a period is either weekly (days, from, until) or happens once (start, end)".into());
        }
        if let (Some(start), Some(end)) = (&self.start, &self.end)
            && start.0 >= end.0
        {
            problem("end", "must be later than start".into());
        }
        let mut days = BTreeSet::new();
        for day in self.days.iter().filter(|day| !days.insert(**day)) {
            problem("days", format!("{day:?} is listed twice"));
        }
        problems
    }
}

/// The minute of the day of a time such as `08:30`; `24:00` is the end of the day.
fn minute_of(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.len() == 2);
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let total = hours * 60 + minutes;
    (minutes < 60 && total <= DAY_MINUTES).then_some(total)
}

impl Supply {
    /// All errors of the supply, with fields relative to the pool's spec.
    pub(super) fn problems(&self) -> FieldProblems {
        let mut problems = FieldProblems::new();
        if let Some(machines) = self.machines.filter(|machines| *machines < 0) {
            problems.push(("supply.machines".into(), format!("{machines} is less than 0")));
        }
        for (i, period) in self.periods.iter().enumerate() {
            problems.extend(period.problems(&format!("supply.periods[{i}]")));
        }
        if let Some(random) = &self.random {
            let mut problem = |field: &str, message: String| problems.push((format!("supply.random.{field}"), message));
            if random.min < 0 {
                problem("min", format!("{} is less than 0", random.min));
            }
            if random.max < random.min {
                problem("max", format!("{} is less than min ({})", random.max, random.min));
            }
            if random.every.0.as_secs() < SLOT_MIN_SECONDS {
                problem("every", format!("{} is less than 1m", random.every));
            }
        }
        if let Some(reclaim) = &self.reclaim {
            let mut problem =
                |field: &str, message: String| problems.push((format!("supply.reclaim.{field}"), message));
            if let Some(notice) = reclaim.notice.filter(|notice| notice.0.as_secs() > NOTICE_MAX_SECONDS) {
                problem("notice", format!("{notice} is more than {NOTICE_MAX_SECONDS}s"));
            }
            if reclaim.mean_lifetime.is_some_and(|mean| mean.0.as_secs() < SLOT_MIN_SECONDS) {
                problem("meanLifetime", "must be at least 1m".into());
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(supply: Value) -> Vec<String> {
        let supply: Supply = serde_json::from_value(supply).unwrap();
        supply.problems().into_iter().map(|(field, message)| format!("{field}: {message}")).collect()
    }

    #[test]
    fn times_of_the_day_end_at_midnight() {
        for (text, minutes) in [("00:00", Some(0)), ("08:30", Some(510)), ("24:00", Some(1440))] {
            assert_eq!(minute_of(text), minutes);
        }
        for text in ["24:01", "8:00", "08:60", "0800", "-1:00", ""] {
            assert_eq!(minute_of(text), None, "{text}");
        }
    }

    #[test]
    fn impossible_supplies_are_reported_with_their_fields() {
        assert_eq!(problems(json!({ "machines": 3, "periods": [{ "machines": 0, "days": ["Tuesday"] }] })), [""; 0]);
        let found = problems(json!({
            "machines": -1,
            "periods": [
                { "machines": 0, "days": ["Monday", "Monday"], "from": "18:00", "until": "8:00" },
                { "machines": 0, "start": "2026-01-06T00:00:00Z", "end": "2026-01-05T00:00:00Z", "days": ["Friday"] },
                { "machines": 0, "from": "10:00", "until": "09:00" },
            ],
            "random": { "min": 4, "max": 2, "every": "1s" },
            "reclaim": { "notice": "121s", "meanLifetime": "1s" },
        }));
        assert_eq!(
            found,
            [
                "supply.machines: -1 is less than 0",
                "supply.periods[0].until: \"8:00\" is not a time of the day: expected 00:00 to 24:00",
                "supply.periods[0].days: Monday is listed twice",
                "supply.periods[1].days: a period is either weekly (days, from, until) or happens once (start, end)",
                "supply.periods[1].end: must be later than start",
                "supply.periods[2].until: must be later than from, on the same day",
                "supply.random.max: 2 is less than min (4)",
                "supply.random.every: 1s is less than 1m",
                "supply.reclaim.notice: 2m1s is more than 120s",
                "supply.reclaim.meanLifetime: must be at least 1m",
            ]
        );
    }
}
