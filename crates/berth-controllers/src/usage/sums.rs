//! Sums of stays per team, user, queue or flavor.
//!
//! A workload uses its quota from its admission to its end or eviction. Amounts times seconds are
//! summed as integers, so that the parts of a period add up to the whole.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use berth_api::berth::explanation::{GROUP, VERSION};
use berth_api::berth::usage::{ResourceUse, Stay, StayState, UsageGroup, UsageReport, Waits};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::entry::Entry;
use super::quotas::Quotas;
use super::{By, Period};
use crate::translate::amounts;

/// Kind of the report.
const KIND: &str = "UsageReport";

/// Sums of the stays that were added.
#[derive(Clone, Debug)]
pub struct Sums {
    by: By,
    period: Period,
    groups: BTreeMap<Arc<str>, Group>,
    /// Sums of all stays, if they are in several groups; else the groups add up to it.
    total: Group,
    /// First end, in seconds since 1970.
    known_since: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    workloads: HashSet<u64>,
    succeeded: u64,
    failed: u64,
    preemptions: u64,
    evictions: u64,
    /// Seconds.
    waits: Vec<i64>,
    /// Use by flavor and resource.
    used: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Use>>,
}

/// Base units times seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    total: i128,
    preempted: i128,
    evicted: i128,
    failed: i128,
}

impl Sums {
    /// Sums without stays.
    pub fn new(by: By, period: Period) -> Self {
        Self { by, period, groups: BTreeMap::new(), total: Group::default(), known_since: None }
    }

    /// Adds a stay: a current one, or one that has ended.
    pub fn add(&mut self, stay: &Stay) {
        self.add_entry(&Entry::of(stay));
    }

    /// Adds the entry of a stay.
    pub fn add_entry(&mut self, entry: &Entry) {
        if let Some(ended) = entry.ended {
            self.known_since = Some(self.known_since.map_or(ended, |known| known.min(ended)));
        }
        let Some(part) = Part::of(entry, self.period) else { return };
        let name = match self.by {
            By::Team => &entry.names.namespace,
            By::User => &entry.names.user,
            By::Queue => &entry.names.cluster_queue,
            By::LocalQueue => &entry.names.local_queue,
            By::Flavor => {
                self.total.add(entry, &part, None);
                for (at, held) in entry.holds.iter().enumerate() {
                    if entry.holds[..at].iter().all(|before| before.flavor != held.flavor) {
                        group(&mut self.groups, &held.flavor).add(entry, &part, Some(&held.flavor));
                    }
                }
                return;
            }
        };
        group(&mut self.groups, name).add(entry, &part, None);
    }

    /// Adds the sums of other stays of the same period.
    pub fn merge(&mut self, other: Sums) {
        for (name, group) in other.groups {
            self.groups.entry(name).or_default().merge(&group);
        }
        self.total.merge(&other.total);
        self.known_since = self.known_since.into_iter().chain(other.known_since).min();
    }

    /// The report. `quotas` gives the groups' own quota; `None` if it is not known.
    pub fn report(mut self, quotas: Option<&Quotas>) -> UsageReport {
        let (by, period) = (self.by, self.period);
        if by != By::Flavor {
            self.groups.values().for_each(|group| self.total.merge(group));
        }
        let quota = |name: Option<&str>, flavor: &str, resource: &str| {
            let seconds = quotas?.seconds(by, name, flavor, resource, period)?;
            Some(hours(seconds, resource))
        };
        let groups = self.groups.into_iter().map(|(name, group)| {
            let of_group = |flavor: &str, resource: &str| quota(Some(&name), flavor, resource);
            let report = group.report(&of_group);
            UsageGroup { name: name.to_string(), ..report }
        });
        UsageReport {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            by: by.name().to_owned(),
            since: Some(Time(period.since)),
            until: Some(Time(period.until)),
            known_since: self.known_since.and_then(|it| Timestamp::from_second(it).ok()).map(Time),
            groups: groups.collect(),
            total: self.total.report(&|flavor, resource| quota(None, flavor, resource)),
            ..UsageReport::default()
        }
    }
}

/// The part of a stay within a period.
struct Part {
    /// Seconds of use.
    seconds: i64,
    /// Seconds that it waited, if it was admitted within the period.
    wait: Option<i64>,
    /// True if it ended within the period.
    ends: bool,
}

impl Part {
    fn of(entry: &Entry, period: Period) -> Option<Self> {
        let ends = entry.ended.is_some_and(|second| period.has_second(second));
        let to = entry.ended.unwrap_or(period.until.as_second());
        let seconds = entry.admitted.map_or(0, |from| period.seconds(from, to));
        let wait = entry.admitted.filter(|second| period.has_second(*second));
        let wait = wait.map(|admitted| (admitted - entry.queued.unwrap_or(admitted)).max(0));
        (ends || seconds > 0 || wait.is_some()).then_some(Self { seconds, wait, ends })
    }
}

/// The group of a name.
fn group<'a>(groups: &'a mut BTreeMap<Arc<str>, Group>, name: &Arc<str>) -> &'a mut Group {
    groups.entry(name.clone()).or_default()
}

impl Group {
    /// Adds a stay; only its amounts of one flavor if `flavor` is given.
    fn add(&mut self, entry: &Entry, part: &Part, flavor: Option<&str>) {
        self.workloads.insert(entry.uid);
        self.waits.extend(part.wait);
        if part.ends {
            match entry.state {
                StayState::Succeeded => self.succeeded += 1,
                StayState::Failed => self.failed += 1,
                StayState::Preempted => self.preemptions += 1,
                StayState::Evicted => self.evictions += 1,
                _ => {}
            }
        }
        for held in entry.holds.iter().filter(|held| flavor.is_none_or(|only| *only == *held.flavor)) {
            let product = i128::from(held.amount) * i128::from(part.seconds);
            if product == 0 {
                continue;
            }
            let of_flavor = self.used.entry(held.flavor.clone()).or_default();
            let used = of_flavor.entry(held.resource.clone()).or_default();
            used.total += product;
            match entry.state {
                StayState::Preempted => used.preempted += product,
                StayState::Evicted => used.evicted += product,
                StayState::Failed => used.failed += product,
                _ => {}
            }
        }
    }

    fn merge(&mut self, other: &Group) {
        self.workloads.extend(&other.workloads);
        self.waits.extend(&other.waits);
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.preemptions += other.preemptions;
        self.evictions += other.evictions;
        for (flavor, resources) in &other.used {
            let of_flavor = self.used.entry(flavor.clone()).or_default();
            for (resource, more) in resources {
                let used = of_flavor.entry(resource.clone()).or_default();
                used.total += more.total;
                used.preempted += more.preempted;
                used.evicted += more.evicted;
                used.failed += more.failed;
            }
        }
    }

    fn report(self, quota: &dyn Fn(&str, &str) -> Option<f64>) -> UsageGroup {
        let of_flavors = self
            .used
            .iter()
            .flat_map(|(flavor, resources)| resources.iter().map(move |(resource, used)| (flavor, resource, used)));
        let used = of_flavors.map(|(flavor, resource, used)| ResourceUse {
            hours: hours(used.total, resource),
            lost_by_preemption: hours(used.preempted, resource),
            lost_by_eviction: hours(used.evicted, resource),
            lost_by_failure: hours(used.failed, resource),
            quota_hours: quota(flavor, resource),
            flavor: flavor.to_string(),
            resource: resource.to_string(),
        });
        UsageGroup {
            name: String::new(),
            jobs: self.workloads.len() as u64,
            succeeded: self.succeeded,
            failed: self.failed,
            preemptions: self.preemptions,
            evictions: self.evictions,
            used: used.collect(),
            wait: waits(self.waits),
        }
    }
}

/// Hours in the unit in which a resource is reported, of base units times seconds.
fn hours(base_seconds: i128, resource: &str) -> f64 {
    base_seconds as f64 / amounts::reported_unit(resource) as f64 / 3600.0
}

fn waits(mut seconds: Vec<i64>) -> Waits {
    seconds.sort_unstable();
    let Some(last) = seconds.last().copied() else { return Waits::default() };
    let at = |percent: usize| seconds[(seconds.len() * percent / 100).min(seconds.len() - 1)] as f64;
    let sum: i128 = seconds.iter().map(|it| i128::from(*it)).sum();
    Waits {
        admissions: seconds.len() as u64,
        mean: sum as f64 / seconds.len() as f64,
        p50: at(50),
        p90: at(90),
        p99: at(99),
        max: last as f64,
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::explanation::{Held, ObjectName};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    fn time(hour: f64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + (hour * 3600.0) as i64).expect("in range")
    }

    fn day() -> Period {
        Period { since: time(0.0), until: time(24.0) }
    }

    /// A stay in hours of the day: queued, admitted and ended.
    fn stay(uid: &str, user: &str, state: StayState, hours: [f64; 3]) -> Stay {
        let held = |flavor: &str, resource: &str, amount: &str| Held {
            flavor: flavor.to_owned(),
            resource: resource.to_owned(),
            amount: Quantity(amount.to_owned()),
        };
        let [queued, admitted, ended] = hours.map(|hour| Some(Time(time(hour))));
        Stay {
            workload: ObjectName { namespace: "team".to_owned(), name: uid.to_owned() },
            uid: uid.to_owned(),
            user: user.to_owned(),
            cluster_queue: "cq".to_owned(),
            queued,
            admitted,
            ended: ended.filter(|_| state.is_end()),
            state,
            holds: vec![held("cpu", "cpu", "500m"), held("l4", "nvidia.com/gpu", "2"), held("cpu", "memory", "2Gi")],
            ..Stay::default()
        }
    }

    fn of<'a>(group: &'a UsageGroup, resource: &str) -> &'a ResourceUse {
        group.used.iter().find(|it| it.resource == resource).expect("it is used")
    }

    fn stays() -> Vec<Stay> {
        vec![
            stay("a", "alice", StayState::Preempted, [1.0, 2.0, 6.0]),
            stay("a", "alice", StayState::Succeeded, [6.0, 8.0, 10.0]),
            stay("b", "bob", StayState::Failed, [-5.0, -2.0, 3.0]),
            stay("c", "bob", StayState::Running, [20.0, 22.0, 0.0]),
        ]
    }

    fn report(by: By, period: Period) -> UsageReport {
        let mut sums = Sums::new(by, period);
        stays().iter().for_each(|stay| sums.add(stay));
        sums.report(None)
    }

    #[test]
    fn use_counts_from_admission_to_the_end_within_the_period() {
        let report = report(By::User, day());
        let [alice, bob] = report.groups.as_slice() else { panic!("{report:#?}") };
        assert_eq!((alice.name.as_str(), alice.jobs, alice.succeeded, alice.preemptions), ("alice", 1, 1, 1));
        let gpus = of(alice, "nvidia.com/gpu");
        assert_eq!((gpus.hours, gpus.lost_by_preemption, gpus.lost_by_failure), (12.0, 8.0, 0.0));
        assert_eq!((of(alice, "cpu").hours, of(alice, "memory").hours), (3.0, 12.0));
        let gpus = of(bob, "nvidia.com/gpu");
        assert_eq!((gpus.hours, gpus.lost_by_failure), (10.0, 6.0), "3 hours of b and 2 of c, which still runs");
        assert_eq!((bob.jobs, bob.failed, bob.wait.admissions), (2, 1, 1), "b was admitted on the day before");
        assert_eq!((alice.wait.mean, alice.wait.p50, alice.wait.max), (5400.0, 7200.0, 7200.0));
        assert_eq!((of(&report.total, "nvidia.com/gpu").hours, report.total.jobs), (22.0, 3));
    }

    #[test]
    fn a_flavor_has_only_its_own_resources() {
        let report = report(By::Flavor, day());
        let of_flavor = |name: &str| {
            let group = report.groups.iter().find(|group| group.name == name).expect("a group");
            (group.jobs, group.used.iter().map(|it| it.resource.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(of_flavor("cpu"), (3, vec!["cpu", "memory"]));
        assert_eq!(of_flavor("l4"), (3, vec!["nvidia.com/gpu"]));
    }

    #[test]
    fn the_parts_of_a_period_add_up_to_the_whole() {
        let hours = |since: f64, until: f64| {
            let period = Period { since: time(since), until: time(until) };
            of(&report(By::Team, period).total, "nvidia.com/gpu").hours
        };
        assert_eq!(hours(0.0, 24.0), hours(0.0, 2.5) + hours(2.5, 9.0) + hours(9.0, 24.0));
        let (mut one, mut other) = (Sums::new(By::Team, day()), Sums::new(By::Team, day()));
        for (at, stay) in stays().iter().enumerate() {
            if at % 2 == 0 { one.add(stay) } else { other.add(stay) }
        }
        one.merge(other);
        assert_eq!(one.report(None), report(By::Team, day()));
    }
}
