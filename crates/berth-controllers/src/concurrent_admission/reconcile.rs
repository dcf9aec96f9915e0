//! Reconciling a parent: which variants must exist, which of them may be queued, and whose
//! admission the parent takes over.
//!
//! Pure, like every reconcile here: caches in, plan out. The job integration starts and stops the
//! job by the parent alone. So when an admitted variant is evicted, the parent is evicted first;
//! the variant releases its quota once the parent has lost its admission, because only then has the
//! job stopped.

use berth_api::kueue::reasons::{admission, eviction};
use berth_api::kueue::v1beta2::{ClusterQueue, ConcurrentAdmissionMode, ConcurrentAdmissionPolicy, Workload};
use berth_api::kueue::{events, labels};
use berth_runtime::ObjectKey;
use kube::ResourceExt;

use super::turns::{self, TURN, Turn};
use super::variants::{follow, has_other_pod_sets, make};
use super::{flavor_of, flavors_of, is_parent, queue_of, variants_of};
use crate::conditions;
use crate::jobs::reconcile::Context;
use crate::plan::{Plan, PlannedEvent, Step};
use crate::workload::status::{self, Eviction};

/// Reason for evicting a parent: the variant that it runs as was evicted.
const VARIANT_EVICTED: &str = "VariantEvicted";
/// Reason why a parent has no quota, and of the event: an admission check rejected every variant.
const VARIANTS_REJECTED: &str = "VariantsRejected";
/// Reason why a parent has no quota: its variants are queued again after they were rejected.
const VARIANTS_WAIT: &str = "VariantsWait";
/// Reason for evicting a parent: the variant that it runs as no longer exists.
const NO_VARIANT: &str = "ConcurrentAdmission";

/// The plan for a parent and its variants.
pub fn reconcile(context: Context<'_>, parent: &Workload) -> Plan<Workload> {
    let nothing = Plan::default();
    if !is_parent(parent) || parent.metadata.deletion_timestamp.is_some() {
        return nothing;
    }
    let Some(queue) = queue_of(context.stores, parent) else { return nothing };
    let mut family = Family::new(context, parent, &queue);
    match &queue.spec.concurrent_admission_policy {
        Some(policy) => family.maintain(policy),
        None => family.delete_all_variants(),
    }
    family.plan
}

struct Family<'a> {
    context: Context<'a>,
    parent: Workload,
    /// Flavors of the queue, the most preferred first.
    flavors: Vec<String>,
    /// Variants in order of preference.
    variants: Vec<Workload>,
    /// Flavors of variants under deletion; new ones cannot be created before the deletion ends.
    deleting: Vec<String>,
    plan: Plan<Workload>,
}

impl<'a> Family<'a> {
    fn new(context: Context<'a>, parent: &Workload, queue: &ClusterQueue) -> Self {
        let found = variants_of(context.stores, parent);
        let (alive, deleting): (Vec<_>, Vec<_>) =
            found.iter().partition(|variant| variant.metadata.deletion_timestamp.is_none());
        let mut family = Family {
            context,
            parent: parent.clone(),
            flavors: flavors_of(queue),
            variants: alive.into_iter().map(|variant| (**variant).clone()).collect(),
            deleting: deleting.into_iter().map(|variant| flavor_of(variant).to_owned()).collect(),
            plan: Plan::default(),
        };
        let mut variants = std::mem::take(&mut family.variants);
        variants.sort_by_key(|variant| family.rank(variant));
        family.variants = variants;
        family
    }

    /// Position of a variant's flavor in the queue; the last if the queue lacks it.
    fn rank(&self, variant: &Workload) -> usize {
        self.rank_of(flavor_of(variant)).unwrap_or(usize::MAX)
    }

    fn rank_of(&self, flavor: &str) -> Option<usize> {
        self.flavors.iter().position(|known| known == flavor)
    }

    fn maintain(&mut self, policy: &ConcurrentAdmissionPolicy) {
        if status::is_finished(&self.parent) {
            return self.finish();
        }
        self.create_missing();
        self.delete_stale();
        self.follow_parent();
        if self.evictions() {
            return;
        }
        self.sync_active(policy);
        self.sync_admission();
        self.report_rejections();
        self.open_next_gate();
    }

    // -- writes -----------------------------------------------------------------------------------

    fn write_parent_status(&mut self) {
        self.plan.steps.push(Step::PatchStatus(Box::new(self.parent.clone())));
    }

    fn write(&mut self, at: usize) {
        self.plan.steps.push(Step::Patch(Box::new(self.variants[at].clone())));
    }

    fn write_status(&mut self, at: usize) {
        self.plan.steps.push(Step::PatchStatus(Box::new(self.variants[at].clone())));
    }

    fn report(&mut self, at: usize, reason: &str, message: impl Into<String>) {
        let about = Box::new(self.variants[at].clone());
        self.plan.steps.push(Step::EventAbout(about, PlannedEvent::normal(reason, message)));
    }

    fn delete(&mut self, variant: Workload, why: &str) {
        let message = format!("Variant Workload {:?} deleted; {why}", ObjectKey::of(&variant).to_string());
        self.plan.steps.push(Step::DeleteWorkload(Box::new(variant)));
        self.plan.steps.push(Step::Event(PlannedEvent::normal(events::DELETED_VARIANT, message)));
    }

    // -- which variants exist ---------------------------------------------------------------------

    /// Creates missing variants in order of preference, so that the most preferred is the oldest.
    fn create_missing(&mut self) {
        if !status::is_active(&self.parent) {
            return;
        }
        for flavor in &self.flavors {
            if self.deleting.contains(flavor) || self.variants.iter().any(|variant| flavor_of(variant) == flavor) {
                continue;
            }
            let variant = make(&self.parent, flavor, self.context.gates);
            let message = format!("Variant Workload {:?} created", ObjectKey::of(&variant).to_string());
            self.plan.steps.push(Step::CreateWorkload(Box::new(variant)));
            self.plan.steps.push(Step::Event(PlannedEvent::normal(events::CREATED_VARIANT, message)));
        }
    }

    fn delete_stale(&mut self) {
        let flavors = self.flavors.clone();
        let (kept, stale): (Vec<_>, Vec<_>) = std::mem::take(&mut self.variants)
            .into_iter()
            .partition(|variant| flavors.iter().any(|flavor| flavor == flavor_of(variant)));
        self.variants = kept;
        for variant in stale {
            let flavor = flavor_of(&variant).to_owned();
            self.delete(variant, &format!("flavor {flavor:?} no longer in ClusterQueue"));
        }
    }

    /// Handles a queue that has no policy or has lost its policy. The workload is queued itself,
    /// and keeps its quota.
    fn delete_all_variants(&mut self) {
        for variant in std::mem::take(&mut self.variants) {
            self.delete(variant, "its ClusterQueue has no concurrent admission");
        }
        self.parent.labels_mut().remove(labels::CONCURRENT_ADMISSION_PARENT);
        self.plan.steps.push(Step::Patch(Box::new(self.parent.clone())));
    }

    /// Copies the parent's pod sets and priority to its variants. Pod sets of variants with quota
    /// are immutable, so such variants are deleted and created again.
    fn follow_parent(&mut self) {
        let parent = self.parent.clone();
        let mut outdated = Vec::new();
        for at in 0..self.variants.len() {
            let variant = &mut self.variants[at];
            if !status::has_quota_reservation(variant) {
                if follow(variant, &parent) {
                    self.write(at);
                }
            } else if has_other_pod_sets(variant, &parent) {
                outdated.push(at);
            } else if variant.spec.priority != parent.spec.priority {
                variant.spec.priority = parent.spec.priority;
                variant.spec.priority_class_ref = parent.spec.priority_class_ref.clone();
                self.write(at);
            }
        }
        for at in outdated.into_iter().rev() {
            let variant = self.variants.remove(at);
            self.delete(variant, "its parent's pod sets changed");
        }
    }

    fn finish(&mut self) {
        let Some(finished) = status::true_condition(&self.parent, conditions::FINISHED).cloned() else { return };
        for at in 0..self.variants.len() {
            if status::finish(&mut self.variants[at], &finished.reason, &finished.message, self.context.now) {
                self.write_status(at);
            }
        }
    }

    // -- evictions --------------------------------------------------------------------------------

    /// Propagates evictions between parent and variants. True while the parent waits to lose its
    /// admission.
    fn evictions(&mut self) -> bool {
        self.evict_with_parent();
        let leaving =
            |at: &usize| status::is_evicted(&self.variants[*at]) && status::has_quota_reservation(&self.variants[*at]);
        let leaving: Vec<usize> = (0..self.variants.len()).filter(leaving).collect();
        let holds = status::has_quota_reservation(&self.parent);
        let (running, idle): (Vec<usize>, Vec<usize>) = leaving.into_iter().partition(|at| holds && self.runs_as(*at));
        // No job runs as these variants, so their quota is released at once.
        for at in idle {
            self.release(at);
        }
        let parent_must_go = !running.is_empty();
        if parent_must_go && !status::is_evicted(&self.parent) {
            let message = "Admitted variant was evicted";
            status::set(&mut self.parent, conditions::EVICTED, true, VARIANT_EVICTED, message, self.context.now);
            self.write_parent_status();
        }
        parent_must_go
    }

    /// Evicts the variant that the parent runs as if the parent was evicted for a reason of its own
    /// (PodsReady timeout, deactivation).
    fn evict_with_parent(&mut self) {
        if !status::has_quota_reservation(&self.parent) {
            return;
        }
        let Some(evicted) = status::true_condition(&self.parent, conditions::EVICTED).cloned() else { return };
        if evicted.reason == VARIANT_EVICTED || evicted.reason == NO_VARIANT {
            return;
        }
        for at in 0..self.variants.len() {
            if !self.runs_as(at) || status::is_evicted(&self.variants[at]) {
                continue;
            }
            let why = Eviction { reason: &evicted.reason, cause: "", message: &evicted.message };
            status::evict(&mut self.variants[at], &why, self.context.gates, self.context.now);
            let back_off = self.parent.status.as_ref().and_then(|status| status.requeue_state.clone());
            status::status_mut(&mut self.variants[at]).requeue_state = back_off;
            self.write_status(at);
            self.report(at, &status::eviction_event(&evicted.reason), evicted.message.clone());
        }
    }

    /// Releases the quota of an evicted variant.
    fn release(&mut self, at: usize) {
        if status::release_after_eviction(&mut self.variants[at], self.context.gates, self.context.now) {
            self.write_status(at);
        }
    }

    /// True if the parent's admission is that of this variant.
    fn runs_as(&self, at: usize) -> bool {
        let admission = self.parent.status.as_ref().and_then(|status| status.admission.as_ref());
        let assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
        let flavor = flavor_of(&self.variants[at]);
        status::has_quota_reservation(&self.variants[at])
            && assignments.flat_map(|assignment| assignment.flavors.values()).any(|assigned| assigned == flavor)
    }

    // -- which variants are queued ----------------------------------------------------------------

    /// The admitted variant that limits the others: the one the parent runs as if the policy
    /// retains it, otherwise the most preferred one.
    fn admitted(&self, policy: Option<&ConcurrentAdmissionPolicy>) -> Option<usize> {
        let stands = |variant: &Workload| {
            status::is_admitted(variant) && !status::is_evicted(variant) && !status::is_finished(variant)
        };
        let mut all = (0..self.variants.len()).filter(|at| stands(&self.variants[*at]));
        let stays = policy.is_some_and(|it| it.migration.mode == ConcurrentAdmissionMode::RetainFirstAdmission);
        let current = all.clone().find(|at| stays && self.runs_as(*at));
        current.or_else(|| all.next())
    }

    /// Sets `spec.active` of every variant as parent and policy require.
    fn sync_active(&mut self, policy: &ConcurrentAdmissionPolicy) {
        let admitted = self.admitted(Some(policy));
        for at in 0..self.variants.len() {
            if !status::is_active(&self.parent) {
                self.clear_deactivation_cause(at);
            }
            let active = status::is_active(&self.variants[at]);
            match self.why_inactive(at, admitted, policy) {
                Some(why) if active => {
                    self.variants[at].spec.active = Some(false);
                    self.write(at);
                    self.report(at, events::DEACTIVATED_VARIANT, format!("Variant Workload deactivated due to {why}"));
                }
                None if !active && self.can_be_reactivated(at) => {
                    self.variants[at].spec.active = Some(true);
                    self.write(at);
                    let why = match admitted {
                        None => "no other Variant being admitted".to_owned(),
                        Some(other) => self.why_ahead(other, policy),
                    };
                    self.report(at, events::ACTIVATED_VARIANT, format!("Variant Workload activated due to {why}"));
                }
                _ => {}
            }
        }
    }

    /// Why a variant may be queued in addition to the admitted one, for the event.
    fn why_ahead(&self, admitted: usize, policy: &ConcurrentAdmissionPolicy) -> String {
        let ahead = format!("higher priority than admitted Variant {:?}", self.key(admitted));
        match &policy.migration.constraints {
            Some(it) => {
                format!("being at least lastAcceptableFlavor: {:?} and {ahead}", it.last_acceptable_flavor_name)
            }
            None => format!("being {ahead}"),
        }
    }

    fn key(&self, at: usize) -> String {
        ObjectKey::of(&self.variants[at]).to_string()
    }

    /// Why a variant must be inactive; `None` if it may be queued.
    fn why_inactive(&self, at: usize, admitted: Option<usize>, policy: &ConcurrentAdmissionPolicy) -> Option<String> {
        if !status::is_active(&self.parent) {
            let parent = ObjectKey::of(&self.parent).to_string();
            return Some(format!("Parent Workload {parent:?} not active"));
        }
        let admitted = admitted.filter(|other| *other != at)?;
        let other = self.key(admitted);
        if policy.migration.mode == ConcurrentAdmissionMode::RetainFirstAdmission {
            return Some(format!("RetainFirstAdmission: another Variant {other:?} is admitted"));
        }
        let last = policy.migration.constraints.as_ref().map(|it| it.last_acceptable_flavor_name.as_str());
        if let Some(last) =
            last.filter(|last| self.rank_of(last).is_some_and(|last| self.rank(&self.variants[at]) > last))
        {
            return Some(format!("being below lastAcceptableFlavor: {last:?} and another Variant admitted {other:?}"));
        }
        (at > admitted).then(|| format!("being lower priority than admitted Variant {other:?}"))
    }

    /// False for a variant that was deactivated for a cause (a check rejected it). It stays
    /// inactive until a user deactivates and reactivates the parent; see
    /// [`Family::clear_deactivation_cause`].
    fn can_be_reactivated(&self, at: usize) -> bool {
        rejection(&self.variants[at]).is_none()
    }

    /// Drops the cause of a variant's deactivation while the parent is inactive, so that
    /// reactivating the parent reactivates the variant.
    fn clear_deactivation_cause(&mut self, at: usize) {
        if self.can_be_reactivated(at) {
            return;
        }
        let message = "The parent workload is deactivated";
        status::set(
            &mut self.variants[at],
            conditions::EVICTED,
            true,
            eviction::DEACTIVATED,
            message,
            self.context.now,
        );
        self.write_status(at);
    }

    // -- which variant the parent runs as ---------------------------------------------------------

    fn sync_admission(&mut self) {
        let holds = status::has_quota_reservation(&self.parent);
        if holds && status::is_evicted(&self.parent) {
            return;
        }
        let stands = |at: &usize| {
            let variant = &self.variants[*at];
            status::is_admitted(variant) && !status::is_evicted(variant)
        };
        let current = (0..self.variants.len()).find(|at| holds && self.runs_as(*at) && stands(at));
        match current.or_else(|| self.admitted(None).filter(|_| !holds)) {
            Some(at) => {
                self.sync_progress(at);
                if holds { self.sync_assignment(at) } else { self.admit_as(at) }
            }
            None if holds => {
                let message = "No variant is running";
                status::set(&mut self.parent, conditions::EVICTED, true, NO_VARIANT, message, self.context.now);
                self.write_parent_status();
            }
            None => {}
        }
    }

    fn admit_as(&mut self, at: usize) {
        let Some(admission) = self.variants[at].status.as_ref().and_then(|status| status.admission.clone()) else {
            return;
        };
        if !status::is_active(&self.parent) || status::is_on_hold(&self.parent) {
            return;
        }
        let message = format!("The variant {} is admitted", self.variants[at].name_any());
        // Nodes that failed under an earlier variant do not affect this one.
        status::status_mut(&mut self.parent).unhealthy_nodes.clear();
        status::set_quota_reservation(&mut self.parent, admission, self.context.now);
        status::set(&mut self.parent, conditions::ADMITTED, true, admission::ADMITTED, &message, self.context.now);
        self.write_parent_status();
    }

    /// Copies pod readiness and reclaimable pods, which the job reports on the parent, to the
    /// variant that holds the quota.
    fn sync_progress(&mut self, at: usize) {
        let before = self.variants[at].status.clone();
        if let Some(ready) = status::condition(&self.parent, conditions::PODS_READY).cloned() {
            let is_true = ready.status == "True";
            let now = self.context.now;
            status::set(&mut self.variants[at], conditions::PODS_READY, is_true, &ready.reason, &ready.message, now);
        }
        let reclaimable = self.parent.status.as_ref().map(|status| status.reclaimable_pods.clone()).unwrap_or_default();
        status::set_reclaimable_pods(&mut self.variants[at], reclaimable);
        if self.variants[at].status != before {
            self.write_status(at);
        }
    }

    /// Copies failed nodes from the parent, where they are detected, to the variant, where they are
    /// replaced, and the new assignment back.
    fn sync_assignment(&mut self, at: usize) {
        let (Some(of_parent), Some(of_variant)) = (&mut self.parent.status, &mut self.variants[at].status) else {
            return;
        };
        if of_parent.admission != of_variant.admission {
            of_parent.admission = of_variant.admission.clone();
            of_parent.unhealthy_nodes.clear();
            self.write_parent_status();
        } else if of_parent.unhealthy_nodes != of_variant.unhealthy_nodes {
            of_variant.unhealthy_nodes = of_parent.unhealthy_nodes.clone();
            self.write_status(at);
        }
    }

    /// Reports that no variant can be admitted, because an admission check rejected each of them.
    fn report_rejections(&mut self) {
        if status::has_quota_reservation(&self.parent) || !status::is_active(&self.parent) {
            return;
        }
        let rejections: Vec<String> = self.variants.iter().filter_map(rejection).collect();
        let known = status::condition(&self.parent, conditions::QUOTA_RESERVED);
        let was_rejected = known.is_some_and(|known| known.reason == VARIANTS_REJECTED);
        let is_rejected = !rejections.is_empty() && rejections.len() == self.flavors.len();
        let (reason, message) = match (is_rejected, was_rejected) {
            (true, _) => {
                let all = rejections.join("; ");
                let hint = "To try again, set spec.active of this Workload to false, and then to true.";
                (VARIANTS_REJECTED, format!("No variant can be admitted: {all}. {hint}"))
            }
            (false, true) => (VARIANTS_WAIT, "Variants are queued again".to_owned()),
            (false, false) => return,
        };
        if status::set(&mut self.parent, conditions::QUOTA_RESERVED, false, reason, &message, self.context.now) {
            self.write_parent_status();
            if is_rejected {
                self.plan.steps.push(Step::Event(PlannedEvent::warning(reason, message)));
            }
        }
    }

    // -- preemption -------------------------------------------------------------------------------

    fn open_next_gate(&mut self) {
        match turns::next(&self.variants, self.context.now) {
            Turn::NotNeeded => {}
            Turn::After(left) => self.plan.requeue_within(left),
            Turn::Open(at) => {
                turns::open(&mut self.variants[at], self.context.now);
                self.write_status(at);
                let message = format!("Opened preemption gate for variant workload {:?}", self.key(at));
                self.report(at, events::PREEMPTION_UNGATED_VARIANT, message);
                self.plan.requeue_within(TURN);
            }
        }
    }
}

/// The flavor of a variant that an admission check rejected, and why; `None` for other variants.
fn rejection(variant: &Workload) -> Option<String> {
    let evicted = status::true_condition(variant, conditions::EVICTED).filter(|_| !status::is_active(variant))?;
    let is_rejected = evicted.reason.starts_with(eviction::DEACTIVATED_DUE_TO);
    is_rejected.then(|| format!("flavor {}: {}", flavor_of(variant), evicted.message.trim_end_matches('.')))
}
