//! Decisions about a workload that were taken and written: the items of `decisions` in a
//! `WorkloadExplanation`, and the lines of a decision journal.
//!
//! A record shows what was known when the decision was taken. Every field is optional for readers,
//! as in [`super::explanation`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::explanation::{Amount, Held, Job, ObjectName, PodSetConsidered, VictimSearch};

/// A decision about a workload that was written to its object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionRecord {
    /// When the decision was written.
    pub time: Option<Time>,
    /// The Workload.
    pub workload: ObjectName,
    /// UID of the Workload. A later Workload of the same name has another UID.
    pub uid: String,
    /// The job of the Workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// The cluster queue that the workload waits in or holds quota of; empty if not known.
    pub cluster_queue: String,
    /// The decision.
    pub outcome: DecisionOutcome,
    /// Reason of the condition that shows it: `QuotaReserved`, `WaitingForQuota`, `Preempted`, …
    pub reason: String,
    /// Message of that condition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Flavors that were tried, per pod set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pod_sets: Vec<PodSetConsidered>,
    /// Searches for victims, in the order they were made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub victim_searches: Vec<VictimSearch>,
    /// How the workload was preempted, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption: Option<PreemptionRecord>,
    /// Quota and time that an eviction took from the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
}

/// The outcome of a decision about a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DecisionOutcome {
    /// It keeps waiting.
    #[default]
    Waiting,
    /// It keeps waiting, for victims that are evicted for it.
    Preempting,
    /// Its quota was reserved, and it waits for its admission checks.
    QuotaReserved,
    /// Its quota was reserved, and it was admitted.
    Admitted,
    /// It was evicted for another workload.
    Preempted,
    /// It was evicted for another reason.
    Evicted,
}

/// The preemption a workload was a victim of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreemptionRecord {
    /// The workload that needed quota; absent if the reader may not list workloads in its
    /// namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptor: Option<ObjectName>,
    /// UID of that workload.
    pub preemptor_uid: String,
    /// The cluster queue of that workload.
    pub preemptor_cluster_queue: String,
    /// Effective priority of that workload; absent if the workload is not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptor_priority: Option<i64>,
    /// Effective priority of the victim.
    pub priority: i64,
    /// The policy of the preemptor's cluster queue that allowed the preemption, as text.
    pub rule: String,
    /// Quota and shares of the affected queues and cohorts, the preemptor's side first.
    pub balances: Vec<BalanceRecord>,
    /// The search that chose the victims, with every candidate and its fate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<VictimSearch>,
}

/// Quota use of a queue or cohort before a preemption, and once it is complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BalanceRecord {
    /// Name of the queue or cohort.
    pub name: String,
    /// `ClusterQueue` or `Cohort`.
    pub kind: String,
    /// Quotas that the preemptor requested.
    pub quotas: Vec<QuotaChangeRecord>,
    /// Under fair sharing: the weighted share before, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_before: Option<i64>,
    /// Under fair sharing: the weighted share after, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_after: Option<i64>,
}

/// Use of one quota before and after a preemption.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaChangeRecord {
    /// Flavor.
    pub flavor: String,
    /// Resource.
    pub resource: String,
    /// Nominal quota; of a cohort, with what its children lend to it.
    pub quota: Amount,
    /// Amount in use before.
    pub before: Amount,
    /// Amount in use after.
    pub after: Amount,
}

/// Quota and time that an eviction took from a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lost {
    /// Quota that the workload held.
    pub holds: Vec<Held>,
    /// Time since which it held that quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Seconds from then to the eviction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
}

impl DecisionRecord {
    /// Withholds the names of other workloads of namespaces that `may_name` rejects: the preemptor
    /// is not named, and candidates become counts.
    pub fn withhold(&mut self, may_name: &mut dyn FnMut(&str) -> bool) {
        // Every field is listed, so that a new field does not compile before this function handles
        // it.
        let DecisionRecord {
            time: _,
            workload: _,
            uid: _,
            job: _,
            cluster_queue: _,
            outcome: _,
            reason: _,
            message: _,
            pod_sets: _,
            victim_searches,
            preemption,
            lost: _,
        } = self;
        for search in victim_searches {
            search.withhold(may_name);
        }
        if let Some(preemption) = preemption {
            let PreemptionRecord {
                preemptor,
                preemptor_uid: _,
                preemptor_cluster_queue: _,
                preemptor_priority,
                priority: _,
                rule: _,
                balances: _,
                search,
            } = preemption;
            if preemptor.take_if(|name| !may_name(&name.namespace)).is_some() {
                *preemptor_priority = None;
            }
            if let Some(search) = search {
                search.withhold(may_name);
            }
        }
    }
}
