//! The decisions of a Kueue-compatible batch queueing engine, pure: events in, decisions out.
//!
//! One [`Engine`] holds the state of one platform: queues, cohorts, flavors, nodes and every
//! workload that waits or holds quota. It reads no clock, draws no random number, does no I/O and
//! knows no Kubernetes type. Section numbers in its comments (§) are those of
//! `docs/semantics`; `docs/queueing-map.md` lists where each is implemented.
//!
//! # The order of calls
//!
//! ```text
//! watch event of any object ──▶ translate ──▶ engine.apply(event, now)
//!                                                │  Effects: objects whose status to refresh
//! woken (an event came, or next_wakeup is due) ──▶ engine.cycle(now) ──▶ CycleOutcome { decisions, more, next_wakeup }
//!                                                        │
//!            for each decision: write to the API (Admit, Preempt, Wait, Evict), in any order, behind
//!                 Admit ok      → nothing: the watch brings the object back and confirms what was assumed
//!                 Admit failed  → engine.apply(Event::AdmissionFailed(key), now)   (skip it if the object is gone:
//!                                 WorkloadRemoved says so)
//!                 Preempt failed→ engine.apply(Event::PreemptionFailed(victim), now)
//!                 Wait / Evict  → nothing; the next evaluation says it again
//! ```
//!
//! * **Send newest states.** [`Event::WorkloadUpserted`] is sent for every version a watch
//!   delivers (also at start, for all of them, before the first cycle). The engine derives from
//!   the object whether it waits, holds quota, was evicted, released its quota or finished. It
//!   frees quota and wakes exactly the queues that this can help.
//! * **Assume.** `cycle` counts an admission at once; an older version of the object arriving
//!   meanwhile does not undo it. It ends by the object showing the reservation, by
//!   `AdmissionFailed`, or by `WorkloadRemoved`.
//! * **Requeue.** The engine keeps the newest object itself. A workload that was not admitted
//!   returns to its place in its queue inside `cycle`; callers requeue nothing.
//! * **Parts.** [`Engine::cycle_part`] decides a cycle some cohort trees at a time, with the same
//!   decisions. What was decided can be written, and events can be applied, before the other trees
//!   have their turn.
//! * **Wake.** Call `cycle` after every batch of events, again at once while `more` is true, and
//!   at [`Engine::next_wakeup`] (back-offs that end, flushes that were collected, second passes
//!   that are due). Conditions that depend on time alone (Requeued=True after a back-off,
//!   PodsReady timeouts, maximum execution time) belong to the workload controller, not to the
//!   engine.
//! * **Status.** [`Engine::cluster_queue_status`], [`Engine::local_queue_status`],
//!   [`Engine::cohort_status`] give the figures of the objects' statuses; [`Effects`] lists whose
//!   figures an event or cycle may have changed.
//!
//! * **Explain.** Decisions carry what was tried. [`Engine::explain`] answers on request why a
//!   workload waits: its position and the workloads ahead, what is short at which level of the
//!   tree, which workloads hold it, and which policy protects them. [`text::explanation`] renders
//!   that for people. [`Explanation::withhold`] replaces names that a reader may not know.
//!
//! What the crate does not do: API defaulting and validation, effective requests (§2, the
//! translator's part), conditions and events (rendered by the controllers from decisions),
//! reconciling jobs.
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
pub use ordered_set::OrderedSet;
pub use status::{
    ClusterQueueFigures, ClusterQueueStatus, CohortFigures, CohortStatus, FlavorUsage, LocalQueueStatus, QueuePosition,
    QueueProblem, QueueReadiness, QuotaFigures, QuotaHolder, WeightedShare,
};
pub use withheld::WithheldHolders;
