//! The decisions of a Kueue-compatible batch queueing engine, as pure code: events in, decisions
//! out.
//!
//! One [`Engine`] holds the state of one cluster: queues, cohorts, flavors, nodes and every
//! workload that waits or holds quota. It reads no clock, draws no random number, does no I/O and
//! uses no Kubernetes type. Section numbers in its comments (§) are those of `docs/semantics`;
//! `docs/queueing-map.md` lists where each section is implemented.
//!
//! # The order of calls
//!
//! ```text
//! watch event of any object ──▶ translate ──▶ engine.apply(event, now)
//!                                                │  Effects: objects whose status to refresh
//! woken (by an event or next_wakeup) ──▶ engine.cycle(now)
//!                                                │  CycleOutcome { decisions, more, next_wakeup }
//!  write each decision to the API (Admit, Preempt, Wait, Evict), in any order:
//!    Admit written  → nothing: the watch delivers the object, which confirms the assumption
//!    Admit failed   → engine.apply(Event::AdmissionFailed(key), now), unless the object was
//!                     deleted: then Event::WorkloadRemoved follows
//!    Preempt failed → engine.apply(Event::PreemptionFailed(victim), now)
//!    Wait or Evict  → nothing: if the write fails, the next evaluation decides the same again
//! ```
//!
//! * **Send newest states.** [`Event::WorkloadUpserted`] is sent for every version that a watch
//!   delivers. At start it is sent for all workloads, before the first cycle. The engine derives
//!   from the object whether it waits, holds quota, was evicted, released its quota or finished. It
//!   frees quota and wakes exactly the queues that this can help.
//! * **Assume.** `cycle` counts an admission at once; an older version of the object that arrives
//!   later does not undo it. The assumption ends when the object shows the reservation, with
//!   `AdmissionFailed`, or with `WorkloadRemoved`.
//! * **Requeue.** The engine keeps the newest object itself. Inside `cycle`, a workload that was
//!   not admitted returns to its place in its queue; callers requeue nothing.
//! * **Parts.** [`Engine::cycle_part`] decides some cohort trees of a cycle at a time, with the
//!   same decisions. Its decisions can be written, and events can be applied, before the other
//!   trees are decided.
//! * **Wake.** Call `cycle` after every batch of events, again at once while `more` is true, and at
//!   [`Engine::next_wakeup`] (back-offs that end, flushes and second passes that are due).
//!   Conditions that depend on time alone (Requeued=True after a back-off, PodsReady timeouts,
//!   maximum execution time) belong to the workload controller, not to the engine.
//! * **Status.** [`Engine::cluster_queue_status`], [`Engine::local_queue_status`] and
//!   [`Engine::cohort_status`] return the counts and amounts in the objects' statuses. [`Effects`]
//!   lists the objects whose status an event or cycle may have changed.
//! * **Explain.** Decisions carry what was tried. [`Engine::explain`] computes on request why a
//!   workload waits: its position and the workloads ahead, the level of the tree at which quota is
//!   short, the workloads that hold it, and the policy that protects them. [`text::explanation`]
//!   renders it as text for users. [`Explanation::withhold`] replaces names that a reader may not
//!   see.
//!
//! The crate does not do API defaulting and validation, effective requests (§2, done by the
//! translator), conditions and events (rendered by the controllers from decisions), or the
//! reconciliation of jobs.
//!
//! # An example
//!
//! A queue with four cores admits the first of two workloads of three cores each.
//!
//! ```
//! use std::sync::Arc;
//!
//! use berth_engine::model::{
//!     ClusterQueue, FlavorQuotas, Labels, LocalQueue, PodSet, PodTemplate, Quota, ResourceFlavor, ResourceGroup,
//!     StopPolicy, Time, Workload,
//! };
//! use berth_engine::{Amount, Engine, EngineConfig, Event, Name, Verdict};
//!
//! let (cpu, team) = (Name::from("cpu"), Name::from("team"));
//! let mut engine = Engine::new(EngineConfig::default());
//! let now = Time::from_seconds(0);
//! engine.apply(Event::NamespaceUpserted { name: team.clone(), labels: Labels::new() }, now);
//! engine.apply(Event::FlavorUpserted(ResourceFlavor { name: Name::from("default"), ..ResourceFlavor::default() }), now);
//!
//! let quota = Quota { nominal: Amount::Bounded(4000), borrowing_limit: None, lending_limit: None };
//! let mut queue = ClusterQueue::new("research");
//! queue.resource_groups = vec![ResourceGroup {
//!     resources: vec![cpu.clone()],
//!     flavors: vec![FlavorQuotas { flavor: Name::from("default"), quotas: vec![(cpu.clone(), quota)] }],
//! }];
//! engine.apply(Event::ClusterQueueUpserted(queue), now);
//! engine.apply(
//!     Event::LocalQueueUpserted(LocalQueue {
//!         namespace: team.clone(),
//!         name: Name::from("main"),
//!         cluster_queue: Name::from("research"),
//!         stop_policy: StopPolicy::None,
//!         fair_weight_milli: 1000,
//!     }),
//!     now,
//! );
//!
//! for name in ["first", "second"] {
//!     let requests = [(cpu.clone(), 3000)];
//!     let mut workload = Workload::new("team", name);
//!     (workload.uid, workload.queue) = (Name::from(name), Name::from("main"));
//!     workload.pod_sets = vec![PodSet {
//!         name: Name::from("main"),
//!         count: 1,
//!         min_count: None,
//!         reclaimable: 0,
//!         requests: requests.clone().into(),
//!         template: Arc::new(PodTemplate { requests: requests.into(), ..PodTemplate::default() }),
//!         topology: None,
//!     }];
//!     engine.apply(Event::WorkloadUpserted(Box::new(workload)), now);
//! }
//!
//! let outcome = engine.cycle(now);
//! let admitted = outcome.decisions.iter().filter(|it| matches!(it.verdict, Verdict::Admit(_)));
//! assert_eq!(admitted.map(|it| &*it.workload.name).collect::<Vec<_>>(), ["first"]);
//! ```

mod afs;
mod amount;
mod assignment;
mod config;
mod cycle;
mod decision;
mod engine;
mod event;
mod explain;
mod ids;
#[cfg(feature = "lab")]
pub mod lab;
mod memory;
pub mod model;
mod ordered_set;
mod preemption;
mod quota;
mod status;
pub mod text;
mod topology;
mod waiting;
mod withheld;
mod world;

pub use afs::UsageSample;
pub use amount::{Amount, times};
pub use config::{
    AdmissionFairSharing, EngineConfig, FairSharing, FeatureGates, PreemptionStrategy, QuotaCheckStrategy,
    RequeuingTimestamp,
};
pub use decision::{
    Admit, AssignmentMode, Balance, Considered, ConsideredVictim, CycleOutcome, CycleResult, Decision, Eviction,
    Exclusion, Finding, FlavorAttempt, LayerShortage, LevelCapacity, PendingReason, PodSetConsidered, Preemption,
    PreemptionBar, PreemptionMode, PreemptionReason, Priority, QuotaChange, RequeueReason, SearchOutcome,
    TopologyProblem, TopologyShortage, Verdict, Victim, VictimFate, VictimSearch, Wait, WaitCause, WithheldCandidates,
};
pub use engine::{Effects, Engine, HEADS_PER_PART};
pub use event::Event;
pub use explain::{ComparedShares, Explanation, Holder, Level, NotQueued, Outlook, Preemptible, Shortage, Standing};
pub use ids::Name;
pub use memory::{ExactTimes, Memory, WaitingPreemptor};
pub use ordered_set::OrderedSet;
pub use status::{
    ClusterQueueFigures, ClusterQueueStatus, CohortFigures, CohortStatus, FlavorUsage, LocalQueueStatus, QueuePosition,
    QueueProblem, QueueReadiness, QuotaFigures, QuotaHolder, WeightedShare,
};
pub use withheld::WithheldHolders;
