//! The future of a state, computed from its objects, is what happens then.
//!
//! Random platforms with known run times run in virtual time. At one instant the objects are taken,
//! as a snapshot would, with their times in whole seconds and with what the engine knows beside
//! them. A change is made, and the future is computed from that. The original run gets the same
//! change at that instant and goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_engine::model::{
    BorrowWithinCohort, ClusterQueue, FlavorQuotas, Labels, LocalQueue, PodSet, PodTemplate, PreemptionPolicies,
    PreemptionPolicy, QueueingStrategy, Quota, ResourceFlavor, ResourceGroup, StopPolicy, Time, Workload,
};
use berth_engine::{Amount, Effects, Engine, EngineConfig, Event, Name};
use berth_foresight::forecast::estimate::random;
use berth_foresight::forward::{Forward, ForwardJob};
use berth_foresight::live::future::{Future, Until, run};
use berth_foresight::memory::Memory;
use berth_load::{Load, Probe, drive};
use serde_json::json;

/// Number of platforms in CI. `BERTH_PROPERTY_CASES` sets another number.
const PLATFORMS: u64 = 150;
/// Jobs are created before this time from the start, in milliseconds.
const CREATED_WITHIN: u64 = 600_000;
/// The objects are taken at this time from the start.
const CUT: Duration = Duration::from_millis(600_500);
const START: Time = Time(1_700_000_000_000_000_000);

/// Random numbers of one platform.
struct Dice {
    seed: u64,
    next: u64,
}

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.next += 1;
        random(self.seed, self.next) % bound
    }

    fn amount(&mut self, bound: u64) -> i64 {
        i64::try_from(self.below(bound)).expect("small") * 1000
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::try_from(self.below(values.len() as u64)).expect("small")]
    }
}

/// A platform: its configuration, its jobs, and the change at the cut.
struct Platform {
    objects: Vec<Event>,
    jobs: Vec<ForwardJob>,
    change: Event,
}

fn queue(dice: &mut Dice, name: &str, flavors: &[Name]) -> ClusterQueue {
    let cpu = Name::from("cpu");
    let mut queue = ClusterQueue::new(name);
    queue.cohort = (dice.below(4) > 0).then(|| Name::from("all"));
    queue.strategy = dice.one_of(&[QueueingStrategy::StrictFifo, QueueingStrategy::BestEffortFifo]);
    let quota = |dice: &mut Dice| Quota {
        nominal: Amount::Bounded(1000 + dice.amount(6)),
        borrowing_limit: (dice.below(3) == 0).then(|| Amount::Bounded(dice.amount(4))),
        lending_limit: None,
    };
    queue.resource_groups = vec![ResourceGroup {
        resources: vec![cpu.clone()],
        flavors: flavors
            .iter()
            .map(|flavor| FlavorQuotas { flavor: flavor.clone(), quotas: vec![(cpu.clone(), quota(dice))] })
            .collect(),
    }];
    if queue.cohort.is_none() {
        let quotas =
            queue.resource_groups.iter_mut().flat_map(|group| &mut group.flavors).flat_map(|it| &mut it.quotas);
        quotas.for_each(|(_, quota)| quota.borrowing_limit = None);
    }
    queue.preemption = PreemptionPolicies {
        within_cluster_queue: dice.one_of(&[PreemptionPolicy::Never, PreemptionPolicy::LowerPriority]),
        reclaim_within_cohort: dice.one_of(&[PreemptionPolicy::Never, PreemptionPolicy::LowerPriority]),
        borrow_within_cohort: BorrowWithinCohort::Never,
    };
    queue
}

fn platform(seed: u64, flavors_max: u64) -> Platform {
    let mut dice = Dice { seed, next: 0 };
    let namespace = Name::from("team");
    let mut objects = vec![Event::NamespaceUpserted { name: namespace.clone(), labels: Labels::new() }];
    let flavors: Vec<Name> =
        (0..=dice.below(flavors_max)).map(|number| Name::from(format!("flavor-{number}"))).collect();
    let flavor =
        |name: &Name| Event::FlavorUpserted(ResourceFlavor { name: name.clone(), ..ResourceFlavor::default() });
    objects.extend(flavors.iter().map(flavor));
    let queues: Vec<ClusterQueue> =
        (0..2 + dice.below(3)).map(|number| queue(&mut dice, &format!("queue-{number}"), &flavors)).collect();
    for queue in &queues {
        objects.push(Event::ClusterQueueUpserted(queue.clone()));
        objects.push(Event::LocalQueueUpserted(LocalQueue {
            namespace: namespace.clone(),
            name: queue.name.clone(),
            cluster_queue: queue.name.clone(),
            stop_policy: StopPolicy::None,
            fair_weight_milli: 1000,
        }));
    }
    let mut times: Vec<u64> = (0..10 + dice.below(25)).map(|_| dice.below(CREATED_WITHIN)).collect();
    times.sort_unstable();
    let jobs = times.into_iter().enumerate().map(|(number, at)| {
        let requests = [(Name::from("cpu"), 1000 + dice.amount(3))];
        let mut workload = Workload::new(namespace.clone(), format!("job-{number}"));
        workload.uid = Name::from(format!("{number:04}"));
        workload.queue = Name::from(format!("queue-{}", dice.below(queues.len() as u64)));
        workload.priority = i64::try_from(dice.below(3)).expect("small");
        workload.pod_sets = vec![PodSet {
            name: Name::from("main"),
            count: 1 + i32::try_from(dice.below(3)).expect("small"),
            min_count: None,
            reclaimable: 0,
            requests: requests.clone().into(),
            template: std::sync::Arc::new(PodTemplate { requests: requests.into(), ..PodTemplate::default() }),
            topology: None,
        }];
        let run_time = Duration::from_secs(20 + dice.below(900));
        ForwardJob { workload, created: Duration::from_millis(at), run_time }
    });
    let jobs = jobs.collect();
    let mut changed = queues[usize::try_from(dice.below(queues.len() as u64)).expect("small")].clone();
    let quota = &mut changed.resource_groups[0].flavors[0].quotas[0].1;
    quota.nominal = Amount::Bounded(dice.amount(12));
    Platform { objects, jobs, change: Event::ClusterQueueUpserted(changed) }
}

/// The original run: its jobs, and the change at the cut.
struct Original<'a>(&'a Platform);

impl Load for Original<'_> {
    fn start(&self) -> Time {
        START
    }

    fn objects(&self) -> Vec<Event> {
        self.0.objects.clone()
    }

    fn jobs(&self) -> usize {
        self.0.jobs.len()
    }

    fn created(&self, number: usize) -> Duration {
        self.0.jobs[number].created
    }

    fn workload(&self, number: usize) -> Workload {
        self.0.jobs[number].workload.clone()
    }

    fn run_time(&self, number: usize) -> Duration {
        self.0.jobs[number].run_time
    }

    fn changes(&self) -> Vec<(Duration, Event)> {
        vec![(CUT, self.0.change.clone())]
    }
}

/// What the watch of a client sees.
#[derive(Default)]
struct Watch {
    /// The objects before the cut.
    at_cut: BTreeMap<usize, Workload>,
    /// What the engine knew then.
    memory: berth_engine::Memory,
    /// Changes since then.
    later: BTreeMap<usize, Vec<(Time, Seen)>>,
}

/// A change of a job.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Admitted(Vec<Name>),
    Evicted,
    Ended,
}

fn seen(object: &Workload) -> Seen {
    match &object.admission {
        _ if object.finished => Seen::Ended,
        Some(admission) => {
            Seen::Admitted(admission.pod_sets.iter().flat_map(|set| set.flavors.values().cloned()).collect())
        }
        None => Seen::Evicted,
    }
}

impl Probe for Watch {
    fn apply(&mut self, engine: &mut Engine, event: Event, now: Time) -> Effects {
        if now == START.after(CUT) && matches!(event, Event::ClusterQueueUpserted(_)) {
            self.memory = engine.memory();
        }
        engine.apply(event, now)
    }

    fn changed(&mut self, number: usize, object: &Workload, now: Time) {
        if now < START.after(CUT) {
            self.at_cut.insert(number, object.clone());
        } else {
            self.later.entry(number).or_default().push((now, seen(object)));
        }
    }
}

/// Records the changes of a future, in the same way.
struct Ahead<'a> {
    numbers: &'a [usize],
    later: BTreeMap<usize, Vec<(Time, Seen)>>,
    is_created: Vec<bool>,
}

impl Probe for Ahead<'_> {
    fn changed(&mut self, number: usize, object: &Workload, now: Time) {
        // The first change is the creation, which is not one.
        if std::mem::replace(&mut self.is_created[number], true) {
            self.later.entry(self.numbers[number]).or_default().push((now, seen(object)));
        }
    }
}

/// A workload as its object shows it: in whole seconds.
fn shown(workload: &Workload) -> Workload {
    let mut shown = workload.clone();
    let evictions = [&mut shown.evicted, &mut shown.preempted].into_iter().flatten().map(|it| &mut it.at);
    let times = std::iter::once(&mut shown.created).chain(&mut shown.reserved_at).chain(evictions);
    times.for_each(|at| *at = Time::from_seconds(at.seconds()));
    shown
}

/// The state at the cut with the change, as a load, and the original numbers of its jobs.
fn changed_state(platform: &Platform, watch: &Watch, memory: &Memory) -> (Forward, Vec<usize>) {
    let mut objects = platform.objects.clone();
    let Event::ClusterQueueUpserted(new) = &platform.change else { panic!("the change is a queue") };
    for object in &mut objects {
        if matches!(object, Event::ClusterQueueUpserted(old) if old.name == new.name) {
            *object = platform.change.clone();
        }
    }
    let open: Vec<(usize, &Workload)> =
        watch.at_cut.iter().filter(|(_, object)| !object.finished).map(|(number, object)| (*number, object)).collect();
    let exact = memory.exact();
    let jobs = open.iter().map(|(number, object)| {
        let mut workload = shown(object);
        if let Some(times) = exact.get(&(&*workload.key.namespace, &*workload.key.name)).copied() {
            times.refine(&mut workload);
        }
        ForwardJob { workload, created: Duration::ZERO, run_time: platform.jobs[*number].run_time }
    });
    let forward = Forward { start: START.after(CUT), objects, jobs: jobs.collect(), restored: memory.events() };
    (forward, open.iter().map(|(number, _)| *number).collect())
}

/// The earliest change that one side has and the other has not.
fn first_difference(truth: &BTreeMap<usize, Vec<(Time, Seen)>>, ahead: &BTreeMap<usize, Vec<(Time, Seen)>>) -> String {
    let all = |of: &BTreeMap<usize, Vec<(Time, Seen)>>| -> Vec<(Time, usize, Seen)> {
        let flat = |(job, seen): (&usize, &Vec<(Time, Seen)>)| -> Vec<(Time, usize, Seen)> {
            seen.iter().map(|(at, seen)| (*at, *job, seen.clone())).collect()
        };
        of.iter().flat_map(flat).collect()
    };
    let (truth, ahead) = (all(truth), all(ahead));
    let only = |of: &[(Time, usize, Seen)], other: &[(Time, usize, Seen)]| {
        of.iter().filter(|it| !other.contains(it)).min_by_key(|it| it.0).cloned()
    };
    let seconds = |it: Option<(Time, usize, Seen)>| it.map(|(at, job, seen)| (START.until(at), job, seen));
    format!("true {:?}, ahead {:?}", seconds(only(&truth, &ahead)), seconds(only(&ahead, &truth)))
}

fn config() -> EngineConfig {
    EngineConfig { flush_delay: Duration::ZERO, ..EngineConfig::default() }
}

/// The changes that a platform's original run and the future computed at the cut have since then,
/// with what `remember` keeps of the engine's memory.
fn both(platform: &Platform, remember: impl Fn(Memory) -> Memory) -> [BTreeMap<usize, Vec<(Time, Seen)>>; 2] {
    let mut watch = Watch::default();
    drive::run(&Original(platform), config(), &mut watch);
    let written = json!(Memory::from(&watch.memory));
    let memory = remember(serde_json::from_value(written).expect("it was written so"));
    let (forward, numbers) = changed_state(platform, &watch, &memory);
    let mut ahead = Ahead { numbers: &numbers, later: BTreeMap::new(), is_created: vec![false; numbers.len()] };
    drive::run(&forward, config(), &mut ahead);
    [watch.later, ahead.later]
}

/// Compares the original runs of platforms with the computed futures.
fn compare(flavors_max: u64) {
    let platforms = std::env::var("BERTH_PROPERTY_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(PLATFORMS);
    let (mut wrong, mut admitted, mut evicted) = (Vec::new(), 0, 0);
    for seed in 0..platforms {
        let [truth, ahead] = both(&platform(seed, flavors_max), |memory| memory);
        let all = truth.values().flatten();
        admitted += all.clone().filter(|(_, seen)| matches!(seen, Seen::Admitted(_))).count();
        evicted += all.filter(|(_, seen)| *seen == Seen::Evicted).count();
        if ahead != truth {
            wrong.push(format!("platform {seed}: {}", first_difference(&truth, &ahead)));
        }
    }
    assert!(admitted > usize::try_from(platforms).expect("small"), "the platforms do something: {admitted}");
    assert!(evicted > 0, "some platforms preempt");
    assert!(wrong.is_empty(), "{} of {platforms} platforms differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn what_if_on_random_platforms_is_what_happens_then() {
    compare(1);
}

#[test]
fn what_if_with_a_choice_of_flavors_is_what_happens_then() {
    compare(2);
}

/// In this platform, a workload goes first because it has preempted others, which no object shows.
#[test]
fn a_workload_that_waits_for_its_preemptions_goes_first_in_the_future_too() {
    let platform = platform(549, 1);
    let [truth, ahead] = both(&platform, |memory| memory);
    assert_eq!(ahead, truth);
    let [truth, ahead] = both(&platform, |memory| Memory { preemptors: Vec::new(), ..memory });
    assert_ne!(ahead, truth);
}

/// In this platform, the change evicts a job, which is admitted again at once.
#[test]
fn a_job_that_loses_its_quota_at_the_first_instant_runs_from_its_next_admission_on() {
    let [truth, ahead] = both(&platform(961, 2), |memory| memory);
    assert!(
        truth
            .values()
            .any(|changes| matches!(changes[..], [(at, Seen::Evicted), (again, Seen::Admitted(_)), ..] if at == again))
    );
    assert_eq!(ahead, truth);
}

#[test]
fn a_future_has_the_next_admission_the_end_and_the_evictions_of_each_job() {
    let platform = platform(3, 2);
    let forward =
        Forward { start: START, objects: platform.objects.clone(), jobs: platform.jobs.clone(), restored: Vec::new() };
    let future: Future = run(&forward, &config(), None, Until::TheEnd);
    let history = drive::run(&forward, config(), &mut berth_load::Untimed);
    for (job, record) in future.jobs.iter().zip(&history.jobs) {
        assert_eq!((job.admitted, job.ended, job.evictions), (record.first_started, record.ended, record.evictions));
        assert_eq!(job.lost, record.lost);
    }
    assert_eq!(future.history.wall, history.wall);
    let first = run(&forward, &config(), None, Until::AllStarted { starts_max: usize::MAX });
    for (early, whole) in first.jobs.iter().zip(&future.jobs).filter(|(early, _)| early.admitted.is_some()) {
        assert_eq!(early.admitted, whole.admitted);
    }
}
