//! Usage by team, user, queue or flavor: sums over the stays of workloads ([`sums`]), and the
//! history of one workload ([`history`]). Pure functions: the controllers apply them to the stays
//! that they know, and the command line to the files of a journal.

pub mod entry;
pub mod history;
pub mod quotas;
pub mod sums;

use std::str::FromStr;

use berth_api::berth::usage::Stay;
use berth_apimachinery::percent::decode_component;
use berth_apimachinery::times;
use jiff::Timestamp;

use entry::Entry;

/// What a usage report groups by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The namespace of the workload.
    Team,
    /// The user that created the job.
    User,
    /// The cluster queue.
    Queue,
    /// The local queue, as `NAMESPACE/NAME`.
    LocalQueue,
    /// The flavor: a workload with quota of several flavors is in several groups.
    Flavor,
}

impl By {
    /// All, in the order in which messages list them.
    pub const ALL: [By; 5] = [By::Team, By::User, By::Queue, By::LocalQueue, By::Flavor];

    /// The name in options and responses.
    pub fn name(self) -> &'static str {
        match self {
            By::Team => "team",
            By::User => "user",
            By::Queue => "queue",
            By::LocalQueue => "localqueue",
            By::Flavor => "flavor",
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        By::ALL.into_iter().find(|by| by.name() == text).ok_or_else(|| {
            let names = By::ALL.map(By::name);
            format!("by: invalid value {text:?}, expected one of {}", names.join(", "))
        })
    }
}

/// A period of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Start.
    pub since: Timestamp,
    /// End, which is not part of it.
    pub until: Timestamp,
}

impl Period {
    /// The period of a query string: parameters `since` and `until`, which are RFC 3339 times. The
    /// end is at most `now`; the start is 30 days before the end if it is absent.
    ///
    /// # Errors
    /// The message names the parameter.
    pub fn parse(query: &str, now: Timestamp) -> Result<Self, String> {
        let time = |name: &str| -> Result<Option<Timestamp>, String> {
            let given = parameter(query, name).map(|text| times::parse_time(&text));
            given.transpose().map_err(|problem| format!("{name}: {problem}"))
        };
        let until = time("until")?.map_or(now, |until| until.min(now));
        let since = time("since")?.unwrap_or_else(|| default_start(until));
        if since >= until {
            return Err(format!(
                "since: {} is not before the end of the period, {}",
                times::time(since),
                times::time(until)
            ));
        }
        Ok(Self { since, until })
    }

    /// True if the instant is part of the period.
    pub fn has(self, at: Timestamp) -> bool {
        self.since <= at && at < self.until
    }

    /// True if the second is part of the period.
    fn has_second(self, second: i64) -> bool {
        Timestamp::from_second(second).is_ok_and(|at| self.has(at))
    }

    /// Seconds that a span between two seconds shares with the period.
    fn seconds(self, from: i64, to: i64) -> i64 {
        (to.min(self.until.as_second()) - from.max(self.since.as_second())).max(0)
    }

    /// True if the stay took place in the period, at least in part. A stay ends at its last
    /// instant.
    pub fn touches(self, stay: &Stay) -> bool {
        let starts = stay.queued.as_ref().or(stay.reserved.as_ref()).is_none_or(|at| at.0 < self.until);
        starts && stay.ended.as_ref().is_none_or(|at| at.0 >= self.since)
    }

    /// Like [`Period::touches`].
    pub fn touches_entry(self, entry: &Entry) -> bool {
        let starts = entry.began.is_none_or(|second| second < self.until.as_second());
        starts && entry.ended.is_none_or(|second| second >= self.since.as_second())
    }
}

/// Start of a period without one: 30 days before its end.
fn default_start(until: Timestamp) -> Timestamp {
    Timestamp::from_second(until.as_second().saturating_sub(30 * 86_400)).unwrap_or(Timestamp::MIN)
}

/// A parameter of a query string.
pub fn parameter(query: &str, name: &str) -> Option<String> {
    let given = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(decode_component(given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_a_start_before_its_end() {
        let now: Timestamp = "2026-02-01T00:00:00Z".parse().expect("a time");
        let period = Period::parse("by=team", now).expect("a period");
        assert_eq!((times::time(period.since), period.until), ("2026-01-02T00:00:00Z".to_owned(), now));
        let period = Period::parse("since=2026-01-01T00%3A00%3A00Z&until=2027-01-01T00:00:00Z", now).expect("a period");
        assert_eq!((times::time(period.since), period.until), ("2026-01-01T00:00:00Z".to_owned(), now));
        let error = Period::parse("since=2026-03-01T00:00:00Z", now).expect_err("it starts later");
        assert!(error.starts_with("since: 2026-03-01T00:00:00Z is not before"), "{error}");
        assert!(Period::parse("until=yesterday", now).expect_err("no time").starts_with("until: "));
        assert!("gpu".parse::<By>().expect_err("unknown").contains("team, user, queue, localqueue, flavor"));
    }
}
