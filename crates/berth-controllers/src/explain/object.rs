//! An explanation of the engine as the API object.

use berth_api::berth::explanation as api;
use berth_engine::model::WorkloadKey;
use berth_engine::{
    Amount, ComparedShares, ConsideredVictim, Explanation, Finding, FlavorAttempt, Holder, Level, PodSetConsidered,
    Preemptible, PreemptionMode, SearchOutcome, Shortage, Standing, TopologyShortage, VictimFate, VictimSearch,
    WithheldCandidates, WithheldHolders, text,
};

use crate::translate::amounts::to_quantity;

pub(crate) fn name_of(key: &WorkloadKey) -> api::ObjectName {
    api::ObjectName { namespace: key.namespace.to_string(), name: key.name.to_string() }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The queueing state of a workload.
pub fn standing(explanation: &Explanation) -> api::Standing {
    match &explanation.standing {
        Standing::Holding { admitted, assumed, evicted, checks, .. } => {
            let holding = api::Holding {
                being_written: *assumed,
                evicted: evicted.as_deref().map(str::to_owned),
                checks_not_ready: checks.iter().map(ToString::to_string).collect(),
            };
            if *admitted { api::Standing::Admitted(holding) } else { api::Standing::QuotaReserved(holding) }
        }
        Standing::Waiting { position, ahead, ahead_withheld, backing_off } => api::Standing::Waiting(api::Waiting {
            priority: position.priority,
            position_in_cluster_queue: position.in_cluster_queue,
            position_in_local_queue: position.in_local_queue,
            inadmissible: position.inadmissible,
            backing_off: *backing_off,
            ahead: ahead.iter().map(name_of).collect(),
            ahead_withheld: number(*ahead_withheld),
        }),
        Standing::NotQueued(reason) => {
            api::Standing::NotQueued { reason: format!("{reason:?}"), message: text::not_queued(explanation, *reason) }
        }
    }
}

/// The outcome for a waiting workload if it were evaluated now.
pub fn outlook(explanation: &Explanation) -> Option<api::Outlook> {
    let outlook = explanation.verdict.as_ref()?;
    let own_queue = explanation.cluster_queue.as_deref().unwrap_or_default();
    let (victims, withheld) = (outlook.victims.iter(), outlook.victims_withheld.iter());
    Some(api::Outlook {
        mode: outlook.mode.as_str().to_owned(),
        reason: outlook.reason().map(|reason| reason.as_str().to_owned()),
        message: outlook.message(),
        pod_sets: outlook.considered.pod_sets.iter().map(pod_set).collect(),
        shortages: outlook.shortages.iter().map(|it| shortage(it, own_queue)).collect(),
        victims: victims
            .map(|(key, reason)| api::PreemptedFor { workload: name_of(key), reason: reason.as_str().to_owned() })
            .collect(),
        victims_withheld: withheld
            .map(|(reason, workloads)| api::WithheldVictims {
                reason: reason.as_str().to_owned(),
                workloads: number(*workloads),
            })
            .collect(),
        victim_searches: outlook.considered.victim_searches.iter().map(search).collect(),
        shares: outlook.shares.iter().map(shares).collect(),
        unready: outlook.unready.iter().map(name_of).collect(),
        unready_withheld: number(outlook.unready_withheld),
        unready_unlisted: number(outlook.unready_unlisted),
    })
}

fn shares(compared: &ComparedShares) -> api::ComparedShares {
    api::ComparedShares {
        own: compared.own.to_string(),
        own_share: compared.own_share.value,
        other: compared.other.to_string(),
        other_share: compared.other_share.value,
    }
}

pub(crate) fn amount(resource: &str, amount: Amount) -> api::Amount {
    match amount {
        Amount::Unlimited => "Unlimited".to_owned(),
        Amount::Bounded(amount) => to_quantity(resource, amount).0,
    }
}

pub(crate) fn pod_set(set: &PodSetConsidered) -> api::PodSetConsidered {
    api::PodSetConsidered {
        name: set.pod_set.to_string(),
        flavors: set.attempts.iter().map(attempt).collect(),
        findings: set.other_findings().map(|it| finding(&it)).collect(),
    }
}

fn attempt(attempt: &FlavorAttempt) -> api::FlavorAttempt {
    let preemption_mode = match attempt.preemption {
        PreemptionMode::NoFit => "NoFit",
        PreemptionMode::NoPreemptionCandidates => "NoCandidates",
        PreemptionMode::Preempt => "Preempt",
        PreemptionMode::Reclaim => "Reclaim",
        PreemptionMode::Fit => "Fit",
    };
    api::FlavorAttempt {
        flavor: attempt.flavor.to_string(),
        mode: attempt.mode.as_str().to_owned(),
        preemption_mode: preemption_mode.to_owned(),
        borrowing_level: attempt.borrowing_level,
        reason: attempt.no_fit.map(|reason| reason.as_str().to_owned()),
        findings: attempt.findings.iter().map(finding).collect(),
    }
}

fn finding(finding: &Finding) -> api::Finding {
    let (quota, topology) = match finding {
        Finding::InsufficientQuota { resource, requested, available, short_at, forbidden, .. } => {
            let quota = api::QuotaFinding {
                resource: resource.to_string(),
                asked: to_quantity(resource, *requested),
                available: Some(amount(resource, *available)),
                maximum: None,
                short_at: short_at.to_string(),
                preemption_forbidden_by: forbidden.map(|bar| bar.policy().to_owned()),
            };
            (Some(quota), None)
        }
        Finding::ExceedsMaximum { resource, assumed, requested, maximum, short_at, .. } => {
            let quota = api::QuotaFinding {
                resource: resource.to_string(),
                asked: to_quantity(resource, assumed.saturating_add(*requested)),
                available: None,
                maximum: Some(amount(resource, *maximum)),
                short_at: short_at.to_string(),
                preemption_forbidden_by: None,
            };
            (Some(quota), None)
        }
        Finding::Topology(shortage) => (None, Some(topology(shortage))),
        _ => (None, None),
    };
    api::Finding { message: finding.to_string(), quota, topology }
}

fn topology(shortage: &TopologyShortage) -> api::TopologyFinding {
    let layers = shortage.layers.iter().map(|layer| api::LayerFinding {
        level: layer.level.to_string(),
        needed: layer.needed,
        fits: layer.fits,
    });
    let levels = shortage.levels.iter().map(|room| api::LevelRoom {
        level: room.level.to_string(),
        domains: room.domains,
        best: room.best,
        total: room.total,
    });
    let excluded = shortage.excluded.iter();
    api::TopologyFinding {
        topology: shortage.topology.to_string(),
        slice_size: shortage.slice_size,
        needed: shortage.needed,
        fits: shortage.fits,
        layers: layers.collect(),
        levels: levels.collect(),
        nodes: shortage.nodes,
        excluded: excluded
            .map(|(reason, nodes)| api::Excluded { nodes: *nodes, reason: text::exclusion(reason) })
            .collect(),
    }
}

fn shortage(shortage: &Shortage, own_queue: &str) -> api::Shortage {
    let resource = &*shortage.resource;
    let level = |level: &Level| api::Level {
        name: level.name.to_string(),
        kind: if level.is_cohort { "Cohort" } else { "ClusterQueue" }.to_owned(),
        nominal: amount(resource, level.nominal),
        subtree: amount(resource, level.subtree),
        in_use: amount(resource, level.in_use),
        borrowing_limit: level.borrowing_limit.map(|limit| amount(resource, limit)),
        lending_limit: level.lending_limit.map(|limit| amount(resource, limit)),
        available: amount(resource, level.available),
    };
    let holder = |holder: &Holder| api::Holder {
        workload: name_of(&holder.workload),
        cluster_queue: holder.cluster_queue.to_string(),
        amount: to_quantity(resource, holder.amount),
        priority: holder.priority,
        preemptible: preemptible(holder.preemptible).to_owned(),
        why: text::protection(&holder.cluster_queue, holder.preemptible, own_queue),
    };
    let withheld = |group: &WithheldHolders| api::WithheldHolders {
        cluster_queue: group.cluster_queue.to_string(),
        workloads: number(group.workloads),
        amount: to_quantity(resource, group.amount),
        preemptible: preemptible(group.preemptible).to_owned(),
        why: text::protection(&group.cluster_queue, group.preemptible, own_queue),
    };
    api::Shortage {
        pod_set: shortage.pod_set.to_string(),
        flavor: shortage.flavor.to_string(),
        resource: resource.to_owned(),
        asked: to_quantity(resource, shortage.asked),
        available: amount(resource, shortage.available),
        short_at: shortage.short_at.to_string(),
        levels: shortage.levels.iter().map(level).collect(),
        holders: shortage.holders.iter().map(holder).collect(),
        holders_withheld: shortage.holders_withheld.iter().map(withheld).collect(),
        holders_unlisted: number(shortage.holders_unlisted),
    }
}

fn preemptible(preemptible: Preemptible) -> &'static str {
    match preemptible {
        Preemptible::Yes => "Yes",
        Preemptible::IfSharesAllow => "IfSharesAllow",
        Preemptible::Leaving => "Leaving",
        Preemptible::Replaced => "Replaced",
        Preemptible::PolicyNever => "PolicyNever",
        Preemptible::PolicyExcludes(_) => "PolicyExcludes",
        Preemptible::WithinNominal => "WithinNominal",
    }
}

pub(crate) fn search(search: &VictimSearch) -> api::VictimSearch {
    let outcome = match search.outcome {
        SearchOutcome::Found => "Found",
        SearchOutcome::Forbidden => "Forbidden",
        SearchOutcome::NoCandidates => "NoCandidates",
        SearchOutcome::NotEnough => "NotEnough",
        SearchOutcome::Protected => "Protected",
    };
    let only = search.only.as_ref();
    api::VictimSearch {
        flavor: only.map(|(flavor, _)| flavor.to_string()),
        resource: only.map(|(_, resource)| resource.to_string()),
        outcome: outcome.to_owned(),
        message: text::outcome(search.outcome).to_owned(),
        candidates: search.candidates.iter().map(candidate).collect(),
        candidates_withheld: search.withheld.iter().map(withheld_candidates).collect(),
        unlisted: search.unlisted,
    }
}

fn fate(fate: VictimFate) -> &'static str {
    match fate {
        VictimFate::Victim(_) => "Victim",
        VictimFate::GivenBack => "GivenBack",
        VictimFate::NotReached => "NotReached",
        VictimFate::NotEnough => "NotEnough",
        VictimFate::OnlyWithoutBorrowing => "OnlyWithoutBorrowing",
        VictimFate::WithinNominal => "WithinNominal",
        VictimFate::ShareTooSmall => "ShareTooSmall",
    }
}

fn candidate(candidate: &ConsideredVictim) -> api::Candidate {
    api::Candidate {
        workload: name_of(&candidate.workload),
        cluster_queue: candidate.cluster_queue.to_string(),
        priority: candidate.priority,
        fate: fate(candidate.fate).to_owned(),
        message: text::fate(candidate.fate),
    }
}

fn withheld_candidates(group: &WithheldCandidates) -> api::WithheldCandidates {
    api::WithheldCandidates {
        cluster_queue: group.cluster_queue.to_string(),
        workloads: number(group.workloads),
        fate: fate(group.fate).to_owned(),
        message: text::fate(group.fate),
    }
}
