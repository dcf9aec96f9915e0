//! Renders an [`Explanation`] as text for users: first the state of the workload, then the reasons,
//! then the underlying amounts. The same explanation always gives the same bytes.

use super::quantity;
use crate::amount::Amount;
use crate::decision::WithheldCandidates;
use crate::decision::{
    AssignmentMode, Considered, ConsideredVictim, Exclusion, Finding, FlavorAttempt, PreemptionBar, PreemptionMode,
    PreemptionReason, SearchOutcome, TopologyProblem, TopologyShortage, VictimFate, VictimSearch,
};
use crate::explain::{Explanation, Holder, Level, NotQueued, Outlook, Preemptible, Shortage, Standing};
use crate::ids::Name;
use crate::model::{Admission, BorrowWithinCohort, PreemptionPolicies, PreemptionPolicy};
use crate::status::WeightedShare;
use crate::withheld::WithheldHolders;

/// Maximum number of names in one line.
const IN_LINE_MAX: usize = 5;
/// Maximum number of holders of a quota, and of candidates of a search, that are listed.
const LISTED_MAX: usize = 10;

/// An explanation as text for users: the state of the workload and, if it waits, what was tried,
/// the quota that is short, the workloads that hold it, and the candidates for preemption. Lines
/// end with a newline. Details are indented under the line that they belong to.
pub fn explanation(explanation: &Explanation) -> String {
    let mut page = Page::default();
    let queue = explanation.cluster_queue.as_deref().unwrap_or("");
    let name = &explanation.workload;
    match &explanation.standing {
        Standing::Holding { admitted, assumed, evicted, checks, admission } => {
            let state = match (evicted, admitted) {
                (Some(_), _) => "is being evicted from",
                (None, true) => "is admitted by",
                (None, false) => "holds quota, but is not admitted yet, in",
            };
            page.line(0, format!("{name} {state} ClusterQueue {queue}."));
            if let Some(reason) = evicted {
                page.line(1, format!("Evicted: {reason}. Its quota is counted until its pods have stopped."));
            }
            if *assumed {
                page.line(1, "The decision was just taken and is being written.");
            }
            if !checks.is_empty() {
                page.line(1, format!("Admission checks that are not Ready: {}.", list(checks)));
            }
            held(&mut page, admission);
        }
        Standing::Waiting { position, ahead, ahead_withheld, backing_off } => {
            page.line(0, format!("{name} waits in ClusterQueue {queue}."));
            page.line(
                1,
                format!(
                    "Place: {} in the ClusterQueue, {} in LocalQueue {}. Priority {}.",
                    ordinal(position.in_cluster_queue),
                    ordinal(position.in_local_queue),
                    position.local_queue,
                    position.priority
                ),
            );
            let listed = ahead.len() + ahead_withheld;
            if listed > 0 {
                let shown: Vec<String> = ahead.iter().take(IN_LINE_MAX).map(|key| key.to_string()).collect();
                let total = (position.in_cluster_queue as usize).max(listed);
                let line = match total - shown.len() {
                    0 => shown.join(", "),
                    _ if shown.is_empty() => count(total, "workload"),
                    more => format!("{} and {more} more", shown.join(", ")),
                };
                page.line(1, format!("Ahead of it: {line}."));
            }
            if *backing_off {
                page.line(1, "Not considered until its back-off expires.");
            } else if position.inadmissible {
                page.line(1, "Inadmissible when last tried; retried when quota, queues or nodes change.");
            }
        }
        Standing::NotQueued(reason) => {
            page.line(0, format!("{name} is not in a queue: {}.", not_queued(explanation, *reason)));
        }
    }
    if let Some(problem) = &explanation.queue_inactive {
        page.line(1, format!("ClusterQueue {queue} is inactive. {}", problem.message()));
    }
    if let Some(outlook) = &explanation.verdict {
        verdict(&mut page, queue, outlook);
    }
    page.text
}

/// The attempts per pod set and flavor and the searches for victims, as text for users.
pub fn considered(considered: &Considered) -> String {
    let mut page = Page::default();
    attempts(&mut page, considered);
    searches(&mut page, &considered.victim_searches);
    page.text.trim_start().to_owned()
}

#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn line(&mut self, depth: usize, text: impl AsRef<str>) {
        self.text.push_str(&"  ".repeat(depth));
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }

    fn heading(&mut self, text: impl AsRef<str>) {
        self.text.push('\n');
        self.line(0, text);
    }
}

fn held(page: &mut Page, admission: &Admission) {
    for set in &admission.pod_sets {
        let count =
            set.count.map_or(String::new(), |pods| format!(" ({pods} {})", if pods == 1 { "pod" } else { "pods" }));
        let parts: Vec<String> = set
            .flavors
            .iter()
            .map(|(resource, flavor)| {
                let amount = set.usage.get(resource).copied().unwrap_or(0);
                format!("{} {resource} of flavor {flavor}", quantity(resource, amount))
            })
            .collect();
        let what = if parts.is_empty() { "no quota".to_owned() } else { parts.join(", ") };
        page.line(1, format!("Pod set {}{count}: {what}", set.name));
        for domain in set.topology.iter().flat_map(|topology| &topology.domains).take(LISTED_MAX) {
            page.line(2, format!("{} on {}", domain.count, domain.values.join("/")));
        }
        let places = set.topology.as_ref().map_or(0, |topology| topology.domains.len());
        if places > LISTED_MAX {
            page.line(2, format!("and on {} more", places - LISTED_MAX));
        }
        if set.delayed_topology_pending == Some(true) {
            page.line(2, "Its nodes are chosen once its admission checks are Ready.");
        }
    }
}

/// Why a workload is not in a queue, as text for users.
pub fn not_queued(explanation: &Explanation, reason: NotQueued) -> String {
    let (local, namespace) = (&explanation.local_queue, &explanation.workload.namespace);
    let cluster = explanation.cluster_queue.as_deref().unwrap_or("");
    let text = match reason {
        NotQueued::Finished => "it has finished",
        NotQueued::Deleting => "it is being deleted (metadata.deletionTimestamp is set)",
        NotQueued::Inactive => "it is deactivated (spec.active is false)",
        NotQueued::AdmissionGated => "an admission gate is closed (annotation kueue.x-k8s.io/admission-gated-by)",
        NotQueued::OnHold => "it is on hold",
        NotQueued::WaitingForReplacementPods => "it waits for replacement pods",
        NotQueued::VariantsWait => "its variants, one per flavor, wait instead of it",
        NotQueued::NoLocalQueue if local.is_empty() => "it has no LocalQueue (label kueue.x-k8s.io/queue-name)",
        NotQueued::NoLocalQueue => {
            return format!("its LocalQueue {local} does not exist in namespace {namespace}");
        }
        NotQueued::LocalQueueStopped => {
            return format!("its LocalQueue {local} is stopped (spec.stopPolicy)");
        }
        NotQueued::NoClusterQueue => {
            return format!("ClusterQueue {cluster}, named by its LocalQueue {local}, does not exist");
        }
        NotQueued::NotSeenYet => "it was just submitted",
    };
    text.to_owned()
}

fn verdict(page: &mut Page, own_queue: &str, outlook: &Outlook) {
    match (outlook.mode, outlook.reason()) {
        (_, None) => page.heading("If it were tried now, it would be admitted."),
        (AssignmentMode::Preempt, Some(_)) if !(outlook.victims.is_empty() && outlook.victims_withheld.is_empty()) => {
            let withheld: usize = outlook.victims_withheld.iter().map(|(_, workloads)| workloads).sum();
            let total = count(outlook.victims.len() + withheld, "workload");
            page.heading(format!("If it were tried now, it would preempt {total}:"));
            for (victim, reason) in &outlook.victims {
                page.line(1, format!("{victim}, by {} ({})", reason.human(), reason.as_str()));
            }
            for (reason, workloads) in &outlook.victims_withheld {
                page.line(1, format!("{}, by {} ({})", unnamed(*workloads), reason.human(), reason.as_str()));
            }
        }
        (_, Some(reason)) => {
            page.heading(format!("If it were tried now, it would keep waiting: {}", reason.as_str()));
            let message = outlook.message();
            if !message.is_empty() {
                page.line(1, message);
            }
        }
    }
    if !outlook.unready.is_empty() || outlook.unready_withheld > 0 {
        page.heading("Admission waits until the pods of these workloads are ready:");
        for workload in outlook.unready.iter().take(LISTED_MAX) {
            page.line(1, workload.to_string());
        }
        if outlook.unready_withheld > 0 {
            page.line(1, unnamed(outlook.unready_withheld));
        }
        let more = outlook.unready.len().saturating_sub(LISTED_MAX) + outlook.unready_unlisted;
        if more > 0 {
            page.line(1, format!("and {more} more"));
        }
    }
    attempts(page, &outlook.considered);
    for shortage in &outlook.shortages {
        quota(page, own_queue, shortage);
    }
    if !outlook.shares.is_empty() {
        page.heading(
            "Weighted shares, in thousandths of the quota that can be lent, as if this workload were admitted:",
        );
        for it in outlook.shares.iter().take(LISTED_MAX) {
            let (own, other) = (share(&it.own_share), share(&it.other_share));
            page.line(1, format!("{}: {own}; {}: {other}", it.own, it.other));
        }
        if outlook.shares.len() > LISTED_MAX {
            page.line(1, format!("and {} more", outlook.shares.len() - LISTED_MAX));
        }
    }
    searches(page, &outlook.considered.victim_searches);
}

/// A share as statuses show it, with the resource that determines it.
fn share(share: &WeightedShare) -> String {
    let value =
        if share.value == i64::MAX { "infinite, because its weight is 0".to_owned() } else { share.value.to_string() };
    share.dominant_resource.as_ref().map_or(value.clone(), |resource| format!("{value} ({resource})"))
}

fn attempts(page: &mut Page, considered: &Considered) {
    for set in &considered.pod_sets {
        let others: Vec<Finding> = set.other_findings().collect();
        if set.attempts.is_empty() && others.is_empty() {
            continue;
        }
        page.heading(format!("Pod set {}", set.pod_set));
        for it in others {
            page.line(1, it.to_string());
        }
        for attempt in &set.attempts {
            page.line(1, format!("flavor {}: {}", attempt.flavor, how_well(attempt)));
            for it in &attempt.findings {
                finding(page, it);
            }
        }
    }
}

fn how_well(attempt: &FlavorAttempt) -> String {
    let borrowing = match attempt.borrowing_level {
        _ if attempt.mode == AssignmentMode::NoFit => String::new(),
        0 => String::new(),
        1 => ", borrowing from its cohort".to_owned(),
        level => format!(", borrowing from a cohort {level} levels above"),
    };
    let how = match (attempt.mode, attempt.preemption) {
        (AssignmentMode::NoFit, _) => "does not fit",
        (_, PreemptionMode::Preempt) => "fits if workloads of its own ClusterQueue are preempted",
        (_, PreemptionMode::Reclaim) => "fits if quota is reclaimed from other ClusterQueues",
        (_, PreemptionMode::NoPreemptionCandidates) => "would fit, but there are no preemption candidates",
        (_, PreemptionMode::Fit | PreemptionMode::NoFit) => "fits",
    };
    format!("{how}{borrowing}")
}

fn finding(page: &mut Page, finding: &Finding) {
    match finding {
        Finding::InsufficientQuota { resource, missing, requested, available, short_at, forbidden, .. } => {
            page.line(
                2,
                format!(
                    "{resource}: {} requested, {} available, {} more needed; quota is short in {short_at}",
                    quantity(resource, *requested),
                    amount(resource, *available),
                    quantity(resource, *missing),
                ),
            );
            if let Some(policy) = forbidden.map(PreemptionBar::policy) {
                page.line(2, format!("preemption is not tried: the workload would borrow, and {policy} is Never"));
            }
        }
        Finding::ExceedsMaximum { resource, assumed, requested, maximum, short_at, .. } => page.line(
            2,
            format!(
                "{resource}: {} requested, but {short_at} never allows more than {}",
                quantity(resource, assumed.saturating_add(*requested)),
                amount(resource, *maximum),
            ),
        ),
        Finding::Topology(shortage) => topology(page, shortage),
        Finding::TopologyRequest(TopologyProblem::FlavorWithoutLevel { level, levels, .. }) => {
            page.line(2, finding.to_string());
            page.line(2, format!("the pod set requests level {level}; the flavor's topology has {}", list(levels)));
        }
        other => page.line(2, other.to_string()),
    }
}

fn topology(page: &mut Page, shortage: &TopologyShortage) {
    let what =
        if shortage.slice_size > 1 { format!("slices of {} pods", shortage.slice_size) } else { "pods".to_owned() };
    let (needed, name) = (shortage.needed, &shortage.topology);
    page.line(2, format!("topology {name}: {} of {needed} {what} fit together", shortage.fits));
    for layer in &shortage.layers {
        page.line(3, format!("layer {}: {} of {} slices fit", layer.level, layer.fits, layer.needed));
    }
    for level in &shortage.levels {
        let domains = count(level.domains, "domain");
        page.line(
            3,
            format!("{}: {domains}; the largest fits {}, all together fit {}", level.level, level.best, level.total),
        );
    }
    let excluded: usize = shortage.excluded.iter().map(|(_, nodes)| nodes).sum();
    if excluded > 0 {
        page.line(3, format!("nodes excluded: {excluded} of {}", shortage.nodes));
    }
    for (reason, nodes) in &shortage.excluded {
        page.line(4, format!("{nodes}: {}", exclusion(reason)));
    }
}

/// Why a node cannot take any pod, as text for users.
pub fn exclusion(reason: &Exclusion) -> String {
    match reason {
        Exclusion::OtherDomain => "outside the domain that replacement pods must stay in".to_owned(),
        Exclusion::Taint(taint) => format!("taint {} is not tolerated", super::message::taint(taint)),
        Exclusion::NodeSelector => "excluded by the node selector".to_owned(),
        Exclusion::Affinity => "excluded by the node affinity".to_owned(),
        Exclusion::Resource(resource) => format!("not enough free {resource}"),
    }
}

fn quota(page: &mut Page, own_queue: &str, shortage: &Shortage) {
    let resource = &shortage.resource;
    page.heading(format!(
        "Quota of {resource} in flavor {}: {} requested for pod set {}, {} available",
        shortage.flavor,
        quantity(resource, shortage.asked),
        shortage.pod_set,
        amount(resource, shortage.available),
    ));
    for it in &shortage.levels {
        let mark = if it.name == shortage.short_at { "  <- short here" } else { "" };
        page.line(1, format!("{}{mark}", level(resource, it)));
    }
    if shortage.holders.is_empty() && shortage.holders_withheld.is_empty() {
        page.line(1, "No workload holds this quota.");
        return;
    }
    page.line(1, "Held by:");
    for holder in shortage.holders.iter().take(LISTED_MAX) {
        page.line(2, holder_text(resource, own_queue, holder));
    }
    for group in shortage.holders_withheld.iter().take(LISTED_MAX) {
        page.line(2, withheld_holders_text(resource, own_queue, group));
    }
    let groups: usize = shortage.holders_withheld.iter().skip(LISTED_MAX).map(|group| group.workloads).sum();
    let more = shortage.holders.len().saturating_sub(LISTED_MAX) + groups + shortage.holders_unlisted;
    if more > 0 {
        page.line(2, format!("and {more} more"));
    }
}

fn level(resource: &Name, level: &Level) -> String {
    let kind = if level.is_cohort { "Cohort" } else { "ClusterQueue" };
    let mut text = format!("{kind} {}: nominal {}", level.name, amount(resource, level.nominal));
    if level.subtree != level.nominal {
        text.push_str(&format!(", {} with the quota that its members lend", amount(resource, level.subtree)));
    }
    text.push_str(&format!(
        ", {} in use, {} available",
        amount(resource, level.in_use),
        amount(resource, level.available)
    ));
    if let Some(limit) = level.borrowing_limit {
        text.push_str(&format!(", borrowing limit {}", amount(resource, limit)));
    }
    if let Some(limit) = level.lending_limit {
        text.push_str(&format!(", lending limit {}", amount(resource, limit)));
    }
    text
}

fn holder_text(resource: &Name, own_queue: &str, holder: &Holder) -> String {
    format!(
        "{}: {} in ClusterQueue {}, priority {}; {}",
        holder.workload,
        quantity(resource, holder.amount),
        holder.cluster_queue,
        holder.priority,
        protection(&holder.cluster_queue, holder.preemptible, own_queue)
    )
}

fn withheld_holders_text(resource: &Name, own_queue: &str, group: &WithheldHolders) -> String {
    format!(
        "{}: {} in ClusterQueue {}; {}",
        unnamed(group.workloads),
        quantity(resource, group.amount),
        group.cluster_queue,
        protection(&group.cluster_queue, group.preemptible, own_queue)
    )
}

/// A number of workloads whose names are withheld.
fn unnamed(workloads: usize) -> String {
    format!("{} not named here", count(workloads, "workload"))
}

/// Text for users: whether a holder in `cluster_queue` could be preempted for a workload of
/// `own_queue`, or else the policy that protects it.
pub fn protection(cluster_queue: &str, preemptible: Preemptible, own_queue: &str) -> String {
    let policy = if cluster_queue == own_queue { "withinClusterQueue" } else { "reclaimWithinCohort" };
    match preemptible {
        Preemptible::Yes => "may be preempted".to_owned(),
        Preemptible::IfSharesAllow => "may be preempted if the fair shares allow it".to_owned(),
        Preemptible::Leaving => "is already being evicted".to_owned(),
        Preemptible::Replaced => "is the workload slice that this workload replaces".to_owned(),
        Preemptible::PolicyNever => format!("protected: {policy} is Never"),
        Preemptible::PolicyExcludes(rule) => format!("protected: {policy} is {}", policy_name(rule)),
        Preemptible::WithinNominal => "protected: its ClusterQueue or cohort does not borrow".to_owned(),
    }
}

/// The policy of the preemptor's cluster queue that allows a victim to be preempted, as text for
/// users (§9.2, §10.7).
pub fn rule(reason: PreemptionReason, policies: &PreemptionPolicies, queue: &str) -> String {
    let reclaim =
        || format!("reclaimWithinCohort of ClusterQueue {queue} is {}", policy_name(policies.reclaim_within_cohort));
    match reason {
        PreemptionReason::InClusterQueue => {
            format!("withinClusterQueue of ClusterQueue {queue} is {}", policy_name(policies.within_cluster_queue))
        }
        PreemptionReason::InCohortReclamation => reclaim(),
        PreemptionReason::InCohortFairSharing => format!("{}, and the weighted shares allow it", reclaim()),
        PreemptionReason::InCohortReclaimWhileBorrowing => {
            let threshold = match policies.borrow_within_cohort {
                BorrowWithinCohort::LowerPriority { max_priority_threshold: Some(most) } => {
                    format!(" up to maxPriorityThreshold {most}")
                }
                BorrowWithinCohort::LowerPriority { max_priority_threshold: None } | BorrowWithinCohort::Never => {
                    String::new()
                }
            };
            format!("borrowWithinCohort of ClusterQueue {queue} is LowerPriority{threshold}, and {}", reclaim())
        }
    }
}

fn policy_name(policy: PreemptionPolicy) -> &'static str {
    match policy {
        PreemptionPolicy::Never => "Never",
        PreemptionPolicy::LowerPriority => "LowerPriority",
        PreemptionPolicy::LowerOrNewerEqualPriority => "LowerOrNewerEqualPriority",
        PreemptionPolicy::Any => "Any",
    }
}

fn searches(page: &mut Page, searches: &[VictimSearch]) {
    for search in searches {
        let what = match &search.only {
            Some((flavor, resource)) => format!("{resource} in flavor {flavor}"),
            None => "all resources that are short".to_owned(),
        };
        page.heading(format!("Preemption for {what}: {}", outcome(search.outcome)));
        for candidate in search.candidates.iter().take(LISTED_MAX) {
            page.line(1, candidate_text(candidate));
        }
        for group in search.withheld.iter().take(LISTED_MAX) {
            let WithheldCandidates { cluster_queue, fate: what, workloads } = group;
            page.line(1, format!("{} in ClusterQueue {cluster_queue}: {}", unnamed(*workloads), fate(*what)));
        }
        let groups: usize = search.withheld.iter().skip(LISTED_MAX).map(|group| group.workloads).sum();
        let left_out = search.candidates.len().saturating_sub(LISTED_MAX) + groups + search.unlisted as usize;
        if left_out > 0 {
            page.line(1, format!("and {left_out} more"));
        }
    }
}

/// Outcome of a search for victims, as text for users.
pub fn outcome(outcome: SearchOutcome) -> &'static str {
    match outcome {
        SearchOutcome::Found => "enough victims were found",
        SearchOutcome::Forbidden => "withinClusterQueue and reclaimWithinCohort are Never",
        SearchOutcome::NoCandidates => "the policies protect every workload that holds this quota",
        SearchOutcome::NotEnough => "preempting every candidate would not free enough quota",
        SearchOutcome::Protected => "every candidate is protected by its priority, its nominal quota or its share",
    }
}

fn candidate_text(candidate: &ConsideredVictim) -> String {
    let ConsideredVictim { workload, cluster_queue, priority, fate: what } = candidate;
    format!("{workload} in ClusterQueue {cluster_queue}, priority {priority}: {}", fate(*what))
}

/// Outcome of a search for victims for one candidate, as text for users.
pub fn fate(fate: VictimFate) -> String {
    match fate {
        VictimFate::Victim(reason) => format!("victim, by {}", reason.human()),
        VictimFate::GivenBack => "not needed: the other victims free enough quota".to_owned(),
        VictimFate::NotReached => "not needed: earlier candidates free enough quota".to_owned(),
        VictimFate::NotEnough => "may be preempted, but that does not free enough quota".to_owned(),
        VictimFate::OnlyWithoutBorrowing => "protected by its priority while the preemptor would borrow".to_owned(),
        VictimFate::WithinNominal => "protected: its ClusterQueue or cohort would no longer borrow".to_owned(),
        VictimFate::ShareTooSmall => "protected: its share is not far enough above the preemptor's".to_owned(),
    }
}

fn amount(resource: &Name, amount: Amount) -> String {
    match amount {
        Amount::Bounded(amount) => quantity(resource, amount),
        Amount::Unlimited => "unlimited".to_owned(),
    }
}

fn list(names: &[Name]) -> String {
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    names.join(", ")
}

fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A position counted from 0, as an ordinal number counted from 1.
fn ordinal(place: u32) -> String {
    let place = u64::from(place) + 1;
    let suffix = match (place % 10, place % 100) {
        (1, tens) if tens != 11 => "st",
        (2, tens) if tens != 12 => "nd",
        (3, tens) if tens != 13 => "rd",
        _ => "th",
    };
    format!("{place}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_shown_from_first() {
        let shown: Vec<String> = [0, 1, 2, 3, 10, 11, 12, 20, 100, 110].into_iter().map(ordinal).collect();
        assert_eq!(shown, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "101st", "111th"]);
    }
}
