//! Queues, nodes and a history, in plain numbers.

use berth_engine::PreemptionStrategy;
use berth_engine::model::{
    BorrowWithinCohort, FungibilityPolicy, FungibilityPreference, PreemptionPolicy, QueueingStrategy,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Flavors: the first without labels and taints, the second with label `tier=f1`, the third with a
/// taint.
pub const FLAVORS: usize = 3;

/// Resources: cpu and memory, in this order.
pub const RESOURCES: usize = 2;

/// Maximum number of nodes of a plan.
pub const MACHINES: usize = 2;

/// Names of the resources.
pub const RESOURCE_NAMES: [&str; RESOURCES] = ["cpu", "memory"];

/// Quota of one node for one flavor and resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub nominal: i64,
    pub borrowing: Option<i64>,
    pub lending: Option<i64>,
}

/// A cohort: the earlier cohort that is its parent, its own quota per flavor, its weight.
#[derive(Debug, Clone)]
pub struct Cohort {
    pub parent: Option<usize>,
    pub quotas: Vec<(usize, [Quota; RESOURCES])>,
    pub weight: i64,
}

/// A cluster queue with a local queue of its own.
#[derive(Debug, Clone)]
pub struct Queue {
    pub cohort: Option<usize>,
    /// Flavors in declared order with the quota of both resources.
    pub flavors: Vec<(usize, [Quota; RESOURCES])>,
    pub weight: i64,
    pub strategy: QueueingStrategy,
    pub when_can_borrow: FungibilityPolicy,
    pub when_can_preempt: FungibilityPolicy,
    pub preference: FungibilityPreference,
    pub within_queue: PreemptionPolicy,
    pub reclaim: PreemptionPolicy,
    pub borrow: BorrowWithinCohort,
    pub stopped: bool,
}

/// A pod set: number of pods, minimum number, and the request of one pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodSet {
    pub count: i32,
    pub least: Option<i32>,
    pub requests: [i64; RESOURCES],
}

/// A workload.
#[derive(Debug, Clone)]
pub struct Job {
    pub queue: usize,
    pub priority: i64,
    pub sets: Vec<PodSet>,
    /// True if the pod set selects another tier than the second flavor's.
    pub selects: bool,
    /// True if the pod set tolerates the third flavor's taint.
    pub tolerates: bool,
    /// True if the pod set requests placement on nodes.
    pub placed: bool,
}

/// One step of a history.
#[derive(Debug, Clone)]
pub enum Step {
    /// A workload is created.
    Arrive(Job),
    /// The n-th workload (modulo their number) finishes.
    Finish(usize),
    /// A cycle runs.
    Cycle,
    /// Evicted workloads stop.
    Stop,
}

/// Queues, nodes and a history.
#[derive(Debug, Clone)]
pub struct Plan {
    pub fair: Option<Vec<PreemptionStrategy>>,
    pub cohorts: Vec<Cohort>,
    pub queues: Vec<Queue>,
    /// CPU and memory of the nodes of the first flavor. The flavor has a topology if there are
    /// nodes.
    pub nodes: Vec<[i64; RESOURCES]>,
    pub steps: Vec<Step>,
}

pub fn quota(limits: bool) -> impl Strategy<Value = Quota> {
    let limit = move |most: i64| if limits { option::weighted(0.15, 0..most).boxed() } else { Just(None).boxed() };
    (prop_oneof![2 => Just(0_i64), 5 => 1_i64..10], limit(9), limit(8))
        .prop_map(|(nominal, borrowing, lending)| Quota { nominal, borrowing, lending })
}

fn quotas(limits: bool, least: usize) -> impl Strategy<Value = Vec<(usize, [Quota; RESOURCES])>> {
    let order = prop_oneof![
        3 => Just((0..FLAVORS).collect::<Vec<usize>>()),
        2 => Just((0..FLAVORS).collect::<Vec<usize>>()).prop_shuffle(),
    ];
    (order, vec([quota(limits), quota(limits)], least..=FLAVORS))
        .prop_map(|(order, quotas)| order.into_iter().zip(quotas).collect())
}

/// Mostly one or two flavors, because queues with many flavors seldom preempt.
fn queue_flavors() -> impl Strategy<Value = Vec<(usize, [Quota; RESOURCES])>> {
    (quotas(true, 1), prop_oneof![4 => Just(1_usize), 3 => Just(2), 1 => Just(3)]).prop_map(|(mut quotas, most)| {
        quotas.truncate(most);
        quotas
    })
}

/// Removes the borrowing and lending limits, which only have a meaning if there is a parent.
fn lift_limits(quotas: &mut [(usize, [Quota; RESOURCES])]) {
    for quota in quotas.iter_mut().flat_map(|(_, quotas)| quotas) {
        (quota.borrowing, quota.lending) = (None, None);
    }
}

/// Weights in thousandths. Zero is a special case.
fn weight() -> impl Strategy<Value = i64> {
    prop_oneof![6 => Just(1000_i64), 1 => Just(0), 2 => Just(500), 2 => Just(3000)]
}

fn cohort(at: usize) -> impl Strategy<Value = Cohort> {
    let parent = if at == 0 { Just(None).boxed() } else { option::weighted(0.95, 0..at).boxed() };
    let own = prop_oneof![3 => Just(Vec::new()), 2 => quotas(at > 0, 1)];
    (parent, own, weight()).prop_map(|(parent, mut quotas, weight)| {
        if parent.is_none() {
            lift_limits(&mut quotas);
        }
        Cohort { parent, quotas, weight }
    })
}

fn fungibility() -> impl Strategy<Value = FungibilityPolicy> {
    prop_oneof![Just(FungibilityPolicy::MayStopSearch), Just(FungibilityPolicy::TryNextFlavor)]
}

fn borrow() -> impl Strategy<Value = BorrowWithinCohort> {
    prop_oneof![
        1 => Just(BorrowWithinCohort::Never),
        2 => option::of(0_i64..6).prop_map(|max_priority_threshold| {
            BorrowWithinCohort::LowerPriority { max_priority_threshold }
        }),
    ]
}

fn queue(cohorts: usize) -> impl Strategy<Value = Queue> {
    use PreemptionPolicy::{Any, LowerOrNewerEqualPriority, LowerPriority, Never};
    let parent = if cohorts == 0 { Just(None).boxed() } else { option::weighted(0.95, 0..cohorts).boxed() };
    let strategy = prop_oneof![1 => Just(QueueingStrategy::StrictFifo), 3 => Just(QueueingStrategy::BestEffortFifo)];
    let preference = prop_oneof![
        3 => Just(FungibilityPreference::BorrowingOverPreemption),
        1 => Just(FungibilityPreference::PreemptionOverBorrowing),
    ];
    let within = prop_oneof![Just(Never), Just(LowerPriority), Just(LowerOrNewerEqualPriority)];
    let reclaim =
        prop_oneof![1 => Just(Never), 2 => Just(LowerPriority), 1 => Just(LowerOrNewerEqualPriority), 2 => Just(Any)];
    let policies = (strategy, fungibility(), fungibility(), preference, within, reclaim, borrow());
    (parent, queue_flavors(), weight(), policies).prop_map(|(cohort, mut flavors, weight, policies)| {
        let (strategy, when_can_borrow, when_can_preempt, preference, within_queue, reclaim, borrow) = policies;
        if cohort.is_none() {
            lift_limits(&mut flavors);
        }
        Queue {
            cohort,
            flavors,
            weight,
            strategy,
            when_can_borrow,
            when_can_preempt,
            preference,
            within_queue,
            reclaim,
            borrow,
            stopped: false,
        }
    })
}

fn pod_set() -> impl Strategy<Value = PodSet> {
    (1_i32..4, option::weighted(0.25, 1_i32..3), 0_i64..4, 0_i64..3).prop_map(|(count, least, cpu, memory)| PodSet {
        count,
        least: least.filter(|least| *least < count),
        requests: [cpu, memory],
    })
}

fn job(queues: usize) -> impl Strategy<Value = Job> {
    let priority = prop_oneof![3 => Just(0_i64), 2 => Just(5), 1 => Just(10)];
    (0..queues, priority, vec(pod_set(), 1..3), any::<bool>(), any::<bool>()).prop_map(
        |(queue, priority, sets, selects, tolerates)| Job { queue, priority, sets, selects, tolerates, placed: false },
    )
}

fn step(queues: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        9 => job(queues).prop_map(Step::Arrive),
        1 => (0_usize..30).prop_map(Step::Finish),
        10 => Just(Step::Cycle),
        3 => Just(Step::Stop),
    ]
}

fn strategies() -> impl Strategy<Value = Option<Vec<PreemptionStrategy>>> {
    use PreemptionStrategy::{LessThanInitialShare, LessThanOrEqualToFinalShare};
    prop_oneof![
        4 => Just(None),
        2 => Just(Some(vec![LessThanOrEqualToFinalShare, LessThanInitialShare])),
        1 => Just(Some(vec![LessThanOrEqualToFinalShare])),
        1 => Just(Some(vec![LessThanInitialShare])),
    ]
}

/// Plans with up to three cohorts, two to four queues and this number of steps.
pub fn plan(steps: std::ops::Range<usize>) -> impl Strategy<Value = Plan> {
    (prop_oneof![1 => Just(0_usize), 5 => Just(1), 2 => Just(2), 2 => Just(3)], 2_usize..5).prop_flat_map(
        move |(cohorts, queues)| {
            let tree: Vec<_> = (0..cohorts).map(cohort).collect();
            let leaves: Vec<_> = (0..queues).map(|_| queue(cohorts)).collect();
            (strategies(), tree, leaves, vec(step(queues), steps.clone()))
                .prop_map(|(fair, cohorts, queues, steps)| Plan { fair, cohorts, queues, nodes: Vec::new(), steps })
        },
    )
}

/// Plans with more trees: some cohorts and queues have no parent. More workloads arrive between two
/// cycles, so that more queues have a head. Some plans have a single flavor, with less capacity on
/// nodes than quota.
pub fn wide_plan(steps: std::ops::Range<usize>) -> impl Strategy<Value = Plan> {
    let nodes = prop_oneof![3 => Just(Vec::new()), 2 => vec([1_i64..6, 2_i64..7], 1..=MACHINES)];
    let apart = || vec(proptest::bool::weighted(0.5), 5);
    let chosen = |part: f64| vec(proptest::bool::weighted(part), 60);
    (plan(steps), apart(), apart(), nodes, chosen(0.9), chosen(0.3)).prop_map(
        |(mut plan, cohorts_apart, queues_apart, nodes, placed, kept)| {
            let mut kept = kept.into_iter();
            plan.steps.retain(|step| !matches!(step, Step::Cycle) || kept.next().unwrap_or(true));
            for (cohort, _) in plan.cohorts.iter_mut().zip(cohorts_apart).filter(|(_, apart)| *apart) {
                cohort.parent = None;
                lift_limits(&mut cohort.quotas);
            }
            for (queue, _) in plan.queues.iter_mut().zip(queues_apart).filter(|(_, apart)| *apart) {
                queue.cohort = None;
                lift_limits(&mut queue.flavors);
            }
            for queue in plan.queues.iter_mut().filter(|_| !nodes.is_empty()) {
                let plenty = Quota { nominal: 20, borrowing: None, lending: None };
                queue.flavors = vec![(0, [plenty; RESOURCES])];
            }
            let jobs = plan.steps.iter_mut().filter_map(|step| match step {
                Step::Arrive(job) => Some(job),
                _ => None,
            });
            jobs.zip(placed).for_each(|(job, placed)| job.placed = placed && !nodes.is_empty());
            Plan { nodes, ..plan }
        },
    )
}
