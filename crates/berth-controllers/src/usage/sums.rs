//! Sums of stays per team, user, queue or flavor.
//!
//! A workload uses its quota from its admission to its end or eviction. Amounts times seconds are
//! summed as integers, so that the parts of a period add up to the whole.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use berth_api::berth::explanation::{GROUP, VERSION};
use berth_api::berth::usage::{ResourceUse, Stay, StayState, UsageGroup, UsageReport, Waits};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

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
    groups: BTreeMap<String, Group>,
    total: Group,
    known_since: Option<Timestamp>,
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
    used: BTreeMap<(String, String), Use>,
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

    /// Adds a stay, which may have ended or go on.
    pub fn add(&mut self, stay: &Stay) {
        if let Some(ended) = &stay.ended {
            self.known_since = Some(self.known_since.map_or(ended.0, |known| known.min(ended.0)));
        }
        let Some(part) = Part::of(stay, self.period) else { return };
        self.total.add(stay, &part, None);
        let flavors: BTreeMap<&str, ()> = stay.holds.iter().map(|held| (held.flavor.as_str(), ())).collect();
        let name = match self.by {
            By::Team => stay.workload.namespace.clone(),
            By::User => stay.user.clone(),
            By::Queue => stay.cluster_queue.clone(),
            By::LocalQueue => format!("{}/{}", stay.workload.namespace, stay.queue),
            By::Flavor => {
                for flavor in flavors.into_keys() {
                    self.groups.entry(flavor.to_owned()).or_default().add(stay, &part, Some(flavor));
                }
                return;
            }
        };
        self.groups.entry(name).or_default().add(stay, &part, None);
    }

    /// Adds the sums of other stays of the same period.
    pub fn merge(&mut self, other: Sums) {
        for (name, group) in other.groups {
            self.groups.entry(name).or_default().merge(group);
        }
        self.total.merge(other.total);
        self.known_since = self.known_since.into_iter().chain(other.known_since).min();
    }

    /// The report. `quotas` gives the groups' own quota; `None` if it is not known.
    pub fn report(self, quotas: Option<&Quotas>) -> UsageReport {
        let (by, period) = (self.by, self.period);
        let quota = |name: Option<&str>, flavor: &str, resource: &str| {
            let seconds = quotas?.seconds(by, name, flavor, resource, period)?;
            Some(hours(seconds, resource))
        };
        let groups = self.groups.into_iter().map(|(name, group)| {
            let of_group = |flavor: &str, resource: &str| quota(Some(&name), flavor, resource);
            let report = group.report(&of_group);
            UsageGroup { name, ..report }
        });
        UsageReport {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: KIND.to_owned(),
            by: by.name().to_owned(),
            since: Some(Time(period.since)),
            until: Some(Time(period.until)),
            known_since: self.known_since.map(Time),
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
    fn of(stay: &Stay, period: Period) -> Option<Self> {
        let ended = stay.ended.as_ref().map(|at| at.0);
        let ends = ended.is_some_and(|at| period.has(at));
        let admitted = stay.admitted.as_ref().map(|at| at.0);
        let seconds = admitted.map_or(0, |at| period.seconds(at, ended.unwrap_or(period.until)));
        let wait = admitted.filter(|at| period.has(*at)).map(|at| {
            let queued = stay.queued.as_ref().map_or(at, |queued| queued.0);
            (at.as_second() - queued.as_second()).max(0)
        });
        (ends || seconds > 0 || wait.is_some()).then_some(Self { seconds, wait, ends })
    }
}

impl Group {
    /// Adds a stay; only its amounts of one flavor if `flavor` is given.
    fn add(&mut self, stay: &Stay, part: &Part, flavor: Option<&str>) {
        let mut hasher = DefaultHasher::new();
        stay.uid.hash(&mut hasher);
        self.workloads.insert(hasher.finish());
        self.waits.extend(part.wait);
        if part.ends {
            match stay.state {
                StayState::Succeeded => self.succeeded += 1,
                StayState::Failed => self.failed += 1,
                StayState::Preempted => self.preemptions += 1,
                StayState::Evicted => self.evictions += 1,
                _ => {}
            }
        }
        for held in stay.holds.iter().filter(|held| flavor.is_none_or(|only| only == held.flavor)) {
            let amount = amounts::parse(&held.amount).map_or(0, |amount| amounts::request(&held.resource, &amount));
            let product = i128::from(amount) * i128::from(part.seconds);
            if product == 0 {
                continue;
            }
            let used = self.used.entry((held.flavor.clone(), held.resource.clone())).or_default();
            used.total += product;
            match stay.state {
                StayState::Preempted => used.preempted += product,
                StayState::Evicted => used.evicted += product,
                StayState::Failed => used.failed += product,
                _ => {}
            }
        }
    }

    fn merge(&mut self, other: Group) {
        self.workloads.extend(other.workloads);
        self.waits.extend(other.waits);
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.preemptions += other.preemptions;
        self.evictions += other.evictions;
        for (key, more) in other.used {
            let used = self.used.entry(key).or_default();
            used.total += more.total;
            used.preempted += more.preempted;
            used.evicted += more.evicted;
            used.failed += more.failed;
        }
    }

    fn report(self, quota: &dyn Fn(&str, &str) -> Option<f64>) -> UsageGroup {
        let used = self.used.into_iter().map(|((flavor, resource), used)| ResourceUse {
            hours: hours(used.total, &resource),
            lost_by_preemption: hours(used.preempted, &resource),
            lost_by_eviction: hours(used.evicted, &resource),
            lost_by_failure: hours(used.failed, &resource),
            quota_hours: quota(&flavor, &resource),
            flavor,
            resource,
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
