//! Reconciles parents and variants given as manifests.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::kueue::v1beta2::{ClusterQueue, GatePosition, LocalQueue, Workload};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::reconcile::reconcile;
use super::variants::make;
use crate::configuration::Config;
use crate::gates::{Gate, Gates};
use crate::jobs::reconcile::Context;
use crate::plan::{Plan, Step};
use crate::stores::Stores;
use crate::workload::status;

const NOW: &str = "2026-01-01T01:00:00Z";
const KUEUE: &str = "kueue.x-k8s.io/v1beta2";

fn gates() -> Gates {
    Gates::default().with(Gate::ConcurrentAdmission, true)
}

/// Flavors `reservation`, `on-demand` and `spot`, the most preferred first.
fn queue(migration: Value) -> ClusterQueue {
    let flavors = ["reservation", "on-demand", "spot"].map(|name| json!({"name": name, "resources": []}));
    let mut queue = json!({
        "apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"},
        "spec": {"resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}]}});
    if !migration.is_null() {
        queue["spec"]["concurrentAdmissionPolicy"] = json!({"migration": migration});
    }
    serde_json::from_value(queue).expect("a queue")
}

fn preferred() -> Value {
    json!({"mode": "TryPreferredFlavors"})
}

fn parent() -> Workload {
    serde_json::from_value(json!({
        "apiVersion": KUEUE, "kind": "Workload",
        "metadata": {"name": "wl-12345", "namespace": "team", "uid": "parent-uid",
            "labels": {"kueue.x-k8s.io/concurrent-admission-parent": "true"}},
        "spec": {"queueName": "lq", "podSets": [{"name": "main", "count": 1, "template": {"spec": {"containers": []}}}]}
    }))
    .expect("a workload")
}

fn variant(flavor: &str) -> Workload {
    let mut variant = make(&parent(), flavor, &gates());
    variant.metadata.name = Some(flavor.to_owned());
    variant.metadata.uid = Some(flavor.to_owned());
    variant
}

trait WorkloadHistory: Sized {
    fn with(self, type_: &str, status: bool, reason: &str, at: &str) -> Self;
    fn admitted_on(self, flavor: &str) -> Self;
    fn gate(self, position: GatePosition, at: &str) -> Self;
    fn blocked(self) -> Self {
        self.with("BlockedOnPreemptionGates", true, "PreemptionGated", "2026-01-01T00:30:00Z")
    }
    fn evicted(self, reason: &str) -> Self {
        self.with("Evicted", true, reason, "2026-01-01T00:30:00Z")
    }
}

impl WorkloadHistory for Workload {
    fn with(mut self, type_: &str, value: bool, reason: &str, at: &str) -> Self {
        status::set(&mut self, type_, value, reason, "why", at.parse().expect("a time"));
        self
    }

    fn admitted_on(mut self, flavor: &str) -> Self {
        let admission = json!({"clusterQueue": "cq", "podSetAssignments": [
            {"name": "main", "flavors": {"cpu": flavor}, "resourceUsage": {"cpu": "1"}, "count": 1}]});
        status::status_mut(&mut self).admission = Some(serde_json::from_value(admission).expect("an admission"));
        let at = "2026-01-01T00:20:00Z";
        self.with("QuotaReserved", true, "QuotaReserved", at).with("Admitted", true, "Admitted", at)
    }

    fn gate(mut self, position: GatePosition, at: &str) -> Self {
        super::turns::open(&mut self, at.parse().expect("a time"));
        status::status_mut(&mut self).preemption_gates[0].position = position;
        self
    }
}

/// The result of a reconcile.
struct Outcome {
    objects: BTreeMap<String, Workload>,
    created: Vec<Workload>,
    deleted: Vec<String>,
    events: Vec<String>,
    requeue_after: Option<Duration>,
}

impl Outcome {
    fn active(&self) -> Vec<&str> {
        let of_family = self.objects.values().filter(|it| it.name_any() != "wl-12345");
        let mut active: Vec<&str> =
            of_family.filter(|it| status::is_active(it)).filter_map(|it| it.metadata.name.as_deref()).collect();
        active.sort_unstable();
        active
    }

    /// Status and reason of a condition, or nothing.
    fn condition(&self, name: &str, type_: &str) -> String {
        let condition = status::condition(&self.objects[name], type_);
        condition.map(|it| format!("{}/{}", it.status, it.reason)).unwrap_or_default()
    }

    fn open_gates(&self) -> Vec<&str> {
        let is_open = |it: &&Workload| {
            it.status.iter().flat_map(|it| &it.preemption_gates).any(|gate| gate.position == GatePosition::Open)
        };
        self.objects.values().filter(is_open).filter_map(|it| it.metadata.name.as_deref()).collect()
    }
}

fn reconcile_family(policy: Value, parent: Workload, variants: Vec<Workload>) -> Outcome {
    let stores = Stores::by_hand();
    stores.cluster_queues.observe(queue(policy));
    let local: LocalQueue = serde_json::from_value(json!({"apiVersion": KUEUE, "kind": "LocalQueue",
        "metadata": {"name": "lq", "namespace": "team"}, "spec": {"clusterQueue": "cq"}}))
    .expect("a queue");
    stores.local_queues.observe(local);
    let mut objects: BTreeMap<String, Workload> = BTreeMap::new();
    for workload in variants.into_iter().chain([parent.clone()]) {
        stores.workloads.observe(workload.clone());
        objects.insert(workload.name_any(), workload);
    }
    let (config, gates) = (Config::default(), gates());
    let context = Context { stores: &stores, config: &config, gates: &gates, now: NOW.parse().expect("a time") };
    let Plan { steps, error, requeue_after } = reconcile(context, &parent);
    assert_eq!(error, None);
    let mut seen = Outcome { objects, created: Vec::new(), deleted: Vec::new(), events: Vec::new(), requeue_after };
    for step in steps {
        match step {
            Step::Patch(after) => {
                let known = seen.objects.get_mut(&after.name_any()).expect("it exists");
                assert_eq!(known.status, after.status, "a write of the spec must not hide one of the status");
                *known = *after;
            }
            Step::PatchStatus(after) => {
                let known = seen.objects.get_mut(&after.name_any()).expect("it exists");
                assert_eq!(known.spec, after.spec, "a write of the status must not hide one of the spec");
                *known = *after;
            }
            Step::CreateWorkload(made) => seen.created.push(*made),
            Step::DeleteWorkload(gone) => {
                seen.objects.remove(&gone.name_any());
                seen.deleted.push(gone.name_any());
            }
            Step::Event(event) => seen.events.push(format!("{}: {}", event.reason, event.message)),
            Step::EventAbout(about, event) => {
                seen.events.push(format!("{} {}: {}", about.name_any(), event.reason, event.message));
            }
            other => panic!("{other:?}"),
        }
    }
    seen
}

#[test]
fn a_parent_gets_one_variant_per_flavor_with_a_closed_preemption_gate() {
    let mut parent = parent();
    parent.annotations_mut().insert("provreq.kueue.x-k8s.io/maxRunDurationSeconds".to_owned(), "60".to_owned());
    let seen = reconcile_family(preferred(), parent, vec![variant("spot")]);
    assert_eq!(seen.created.iter().map(super::flavor_of).collect::<Vec<_>>(), ["reservation", "on-demand"]);
    // Kueue's name for the variant of a parent without a UID.
    let mut unborn = super::tests::parent();
    unborn.metadata.uid = None;
    assert_eq!(make(&unborn, "on-demand", &gates()).name_any(), "wl-variant-on-demand-480a3");
    let made = &seen.created[1];
    assert_eq!(made.annotations()["kueue.x-k8s.io/workload-allowed-resource-flavors"], "on-demand");
    assert_eq!(made.annotations()["provreq.kueue.x-k8s.io/maxRunDurationSeconds"], "60");
    assert!(!made.labels().contains_key("kueue.x-k8s.io/concurrent-admission-parent"));
    assert_eq!(made.spec.preemption_gates[0].name, "kueue.x-k8s.io/concurrent-admission");
    assert_eq!((made.spec.queue_name.as_str(), made.owner_references()[0].uid.as_str()), ("lq", "parent-uid"));
    let name = made.name_any();
    assert!(name.starts_with("wl-variant-on-demand-") && name != "wl-variant-on-demand-480a3");
    assert_eq!(seen.events[1], format!(r#"CreatedVariant: Variant Workload "team/{name}" created"#));
}

fn all() -> Vec<Workload> {
    ["reservation", "on-demand", "spot"].map(variant).to_vec()
}

/// All variants, one of them changed.
fn with(flavor: &str, change: impl FnOnce(Workload) -> Workload) -> Vec<Workload> {
    let mut variants = all();
    let at = variants.iter().position(|it| it.name_any() == flavor).expect("a flavor");
    let changed = change(variants.remove(at));
    variants.insert(at, changed);
    variants
}

#[test]
fn a_variant_whose_flavor_was_removed_is_deleted_and_its_parent_evicted() {
    let mut variants = all();
    variants.push(variant("stale").admitted_on("stale"));
    let seen = reconcile_family(preferred(), parent().admitted_on("stale"), variants);
    assert_eq!(seen.deleted, ["stale"]);
    assert_eq!(
        seen.events,
        [r#"DeletedVariant: Variant Workload "team/stale" deleted; flavor "stale" no longer in ClusterQueue"#]
    );
    assert_eq!(seen.condition("wl-12345", "Evicted"), "True/ConcurrentAdmission");
}

#[test]
fn the_parent_takes_over_the_admission_of_a_variant() {
    let seen = reconcile_family(preferred(), parent(), with("spot", |it| it.admitted_on("spot")));
    assert_eq!(seen.condition("wl-12345", "QuotaReserved"), "True/QuotaReserved");
    let admitted = status::condition(&seen.objects["wl-12345"], "Admitted").expect("a condition");
    assert_eq!(admitted.message, "The variant spot is admitted");
    let of = |name: &str| seen.objects[name].status.as_ref().and_then(|status| status.admission.clone());
    assert_eq!(of("wl-12345"), of("spot"));
    assert_eq!(seen.active(), ["on-demand", "reservation", "spot"]);
}

#[test]
fn after_an_admission_only_variants_the_policy_allows_stay_active() {
    let last = json!({"mode": "TryPreferredFlavors", "constraints": {"lastAcceptableFlavorName": "reservation"}});
    let retain = json!({"mode": "RetainFirstAdmission"});
    let below = |flavor: &str, admitted: &str| {
        format!(
            "{flavor} DeactivatedVariant: Variant Workload deactivated due to being below lastAcceptableFlavor: \
             \"reservation\" and another Variant admitted \"team/{admitted}\""
        )
    };
    for (policy, admitted, active, first_event) in [
        (
            preferred(),
            "on-demand",
            vec!["on-demand", "reservation"],
            "spot DeactivatedVariant: Variant Workload \
          deactivated due to being lower priority than admitted Variant \"team/on-demand\""
                .to_owned(),
        ),
        (
            preferred(),
            "reservation",
            vec!["reservation"],
            "on-demand DeactivatedVariant: Variant Workload deactivated \
          due to being lower priority than admitted Variant \"team/reservation\""
                .to_owned(),
        ),
        (last.clone(), "spot", vec!["reservation", "spot"], below("on-demand", "spot")),
        (last, "on-demand", vec!["on-demand", "reservation"], below("spot", "on-demand")),
        (
            retain,
            "spot",
            vec!["spot"],
            "reservation DeactivatedVariant: Variant Workload deactivated due to \
          RetainFirstAdmission: another Variant \"team/spot\" is admitted"
                .to_owned(),
        ),
    ] {
        let seen = reconcile_family(policy, parent(), with(admitted, |it| it.admitted_on(admitted)));
        assert_eq!(seen.active(), active);
        assert_eq!(seen.events[0], first_event);
    }
}

#[test]
fn an_evicted_variant_holds_its_quota_until_its_parent_has_lost_admission() {
    let evicted = || with("spot", |it| it.admitted_on("spot").evicted("Preempted"));
    let mut variants = evicted();
    variants[1].spec.active = Some(false);
    let first = reconcile_family(preferred(), parent().admitted_on("spot"), variants.clone());
    assert_eq!(first.condition("wl-12345", "Evicted"), "True/VariantEvicted");
    assert_eq!(first.condition("spot", "QuotaReserved"), "True/QuotaReserved");
    assert_eq!(first.active(), ["reservation", "spot"]);
    let then = reconcile_family(preferred(), parent().evicted("VariantEvicted"), variants);
    assert_eq!(then.condition("spot", "QuotaReserved"), "False/PendingEvaluation");
    assert_eq!(then.condition("spot", "Requeued"), "True/Preempted");
    assert_eq!(then.active(), ["on-demand", "reservation", "spot"]);
    assert_eq!(
        then.events,
        ["on-demand ActivatedVariant: Variant Workload activated due to no other Variant being admitted"]
    );
}

#[test]
fn a_variant_that_was_evicted_for_a_preferred_one_is_requeued() {
    let seen =
        reconcile_family(preferred(), parent(), with("spot", |it| it.admitted_on("spot").evicted("FlavorMigration")));
    assert_eq!(seen.condition("spot", "Requeued"), "True/FlavorMigration");
}

#[test]
fn a_variant_that_never_ran_is_released_beside_the_running_one() {
    let mut variants = with("spot", |it| it.admitted_on("spot"));
    variants[0] = variant("reservation").admitted_on("reservation").with("Admitted", false, "UnsatisfiedChecks", NOW);
    variants[0] = variants[0].clone().evicted("AdmissionCheck");
    let seen = reconcile_family(preferred(), parent().admitted_on("spot"), variants);
    assert_eq!(seen.condition("wl-12345", "Evicted"), "");
    assert_eq!(seen.condition("reservation", "QuotaReserved"), "False/PendingEvaluation");
    assert_eq!(seen.condition("reservation", "Requeued"), "False/AdmissionCheck");
}

#[test]
fn an_eviction_of_the_parent_evicts_the_variant_it_runs_as() {
    let mut gone = parent().admitted_on("spot").evicted("PodsReadyTimeout");
    status::set_requeue_state(&mut gone, "2026-01-01T02:00:00Z".parse().expect("a time"), true);
    let seen = reconcile_family(preferred(), gone.clone(), with("spot", |it| it.admitted_on("spot")));
    assert_eq!(seen.condition("spot", "Evicted"), "True/PodsReadyTimeout");
    let back_off = |workload: &Workload| workload.status.as_ref().and_then(|status| status.requeue_state.clone());
    assert_eq!(back_off(&seen.objects["spot"]), back_off(&gone));
}

#[test]
fn a_parent_without_an_admitted_variant_is_evicted() {
    let seen = reconcile_family(preferred(), parent().admitted_on("spot"), all());
    let evicted = status::condition(&seen.objects["wl-12345"], "Evicted").expect("a condition");
    assert_eq!((evicted.reason.as_str(), evicted.message.as_str()), ("ConcurrentAdmission", "No variant is running"));
}

#[test]
fn variants_of_a_finished_or_inactive_parent_are_finished_or_inactive() {
    let done = reconcile_family(preferred(), parent().with("Finished", true, "Succeeded", NOW), all());
    assert!(["reservation", "spot"].iter().all(|name| done.condition(name, "Finished") == "True/Succeeded"));
    let mut inactive = parent();
    inactive.spec.active = Some(false);
    let seen = reconcile_family(preferred(), inactive, all());
    assert_eq!(seen.active(), Vec::<&str>::new());
    assert_eq!(
        seen.events[0],
        r#"reservation DeactivatedVariant: Variant Workload deactivated due to Parent Workload "team/wl-12345" not active"#
    );
}

#[test]
fn a_rejected_variant_stays_inactive_until_the_parent_is_reactivated() {
    let rejected = || {
        with("spot", |mut it| {
            it.spec.active = Some(false);
            it.evicted("DeactivatedDueToAdmissionCheck")
        })
    };
    assert_eq!(reconcile_family(preferred(), parent(), rejected()).active(), ["on-demand", "reservation"]);
    let mut inactive = parent();
    inactive.spec.active = Some(false);
    let mut seen = reconcile_family(preferred(), inactive, rejected());
    assert_eq!(seen.condition("spot", "Evicted"), "True/Deactivated");
    let cleared = seen.objects.remove("spot").expect("a variant");
    let again = reconcile_family(preferred(), parent(), with("spot", |_| cleared));
    assert_eq!(again.active(), ["on-demand", "reservation", "spot"]);
    assert_eq!(
        again.events,
        ["spot ActivatedVariant: Variant Workload activated due to no other Variant being admitted"]
    );
}

#[test]
fn a_parent_whose_variants_are_all_rejected_says_so_once() {
    let rejected = |mut it: Workload| {
        it.spec.active = Some(false);
        it.evicted("DeactivatedDueToAdmissionCheck")
    };
    let variants = || all().into_iter().map(rejected).collect::<Vec<_>>();
    let mut seen = reconcile_family(preferred(), parent(), variants());
    assert_eq!(seen.condition("wl-12345", "QuotaReserved"), "False/VariantsRejected");
    let expected = "VariantsRejected: No variant can be admitted: flavor reservation: why; flavor on-demand: why; flavor \
                    spot: why. To try again, set spec.active of this Workload to false, and then to true.";
    assert_eq!(seen.events, [expected]);
    let reported = seen.objects.remove("wl-12345").expect("the parent");
    assert!(reconcile_family(preferred(), reported.clone(), variants()).events.is_empty());
    let again = reconcile_family(preferred(), reported, all());
    assert_eq!(again.condition("wl-12345", "QuotaReserved"), "False/VariantsWait");
}

#[test]
fn the_open_gate_of_an_admitted_variant_does_not_delay_other_variants() {
    let reservation = variant("reservation").with("QuotaReserved", false, "WaitingForQuota", NOW).blocked();
    let spot = variant("spot").gate(GatePosition::Open, "2026-01-01T00:59:00Z").admitted_on("spot");
    let on_demand = variant("on-demand").with("QuotaReserved", false, "WaitingForQuota", NOW);
    let seen = reconcile_family(preferred(), parent().admitted_on("spot"), vec![reservation, on_demand, spot]);
    assert_eq!((seen.open_gates(), seen.requeue_after), (vec!["reservation", "spot"], Some(Duration::from_secs(300))));
}

#[test]
fn a_variant_is_created_again_after_its_predecessor_is_deleted() {
    let going = with("spot", |mut it| {
        it.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).expect("a time");
        it
    });
    assert!(reconcile_family(preferred(), parent(), going).created.is_empty());
    let two: Vec<Workload> = all().into_iter().filter(|it| it.name_any() != "spot").collect();
    let made = reconcile_family(preferred(), parent(), two).created;
    assert_eq!(made.iter().map(super::flavor_of).collect::<Vec<_>>(), ["spot"]);
}

#[test]
fn readiness_and_failed_nodes_are_copied_between_parent_and_variant() {
    let ready = parent().admitted_on("spot").with("PodsReady", true, "Started", NOW);
    let seen = reconcile_family(
        preferred(),
        ready,
        with("spot", |it| it.admitted_on("spot").with("PodsReady", false, "W", NOW)),
    );
    assert_eq!(seen.condition("spot", "PodsReady"), "True/Started");

    let mut failed = parent().admitted_on("spot");
    let nodes = json!([{"name": "n1"}]);
    status::status_mut(&mut failed).unhealthy_nodes = serde_json::from_value(nodes.clone()).expect("nodes");
    let outcome = reconcile_family(preferred(), failed.clone(), with("spot", |it| it.admitted_on("spot")));
    assert_eq!(json!(outcome.objects["spot"].status.as_ref().expect("a status").unhealthy_nodes), nodes);
    let mended = with("spot", |it| {
        let mut it = it.admitted_on("spot");
        let admission = status::status_mut(&mut it).admission.as_mut().expect("an admission");
        admission.pod_set_assignments[0].count = Some(2);
        it
    });
    let seen = reconcile_family(preferred(), failed, mended);
    let status = seen.objects["wl-12345"].status.as_ref().expect("a status");
    assert_eq!(status.admission.as_ref().expect("an admission").pod_set_assignments[0].count, Some(2));
    assert_eq!(status.unhealthy_nodes, []);
}

#[test]
fn variants_preempt_one_at_a_time_the_most_preferred_first() {
    use GatePosition::{Closed, Open};
    let waits = |flavor: &str| variant(flavor).with("QuotaReserved", false, "WaitingForQuota", NOW);
    let turn = Some(Duration::from_secs(300));
    for (reservation, spot, open, again) in [
        // First no variant is blocked, then only a less preferred one, and then both, of which the
        // preferred one preempts.
        (waits("reservation"), waits("spot"), vec![], None),
        (variant("reservation"), waits("spot").blocked(), vec!["spot"], turn),
        (waits("reservation"), waits("spot").blocked(), vec!["spot"], turn),
        (waits("reservation").blocked(), waits("spot").blocked().gate(Closed, NOW), vec!["reservation"], turn),
        // First the turn of the preferred variant has not ended, then it has.
        (
            waits("reservation").blocked().gate(Open, "2026-01-01T00:59:00Z"),
            waits("spot").blocked(),
            vec!["reservation"],
            Some(Duration::from_secs(240)),
        ),
        (
            waits("reservation").blocked().gate(Open, "2026-01-01T00:55:00Z"),
            waits("spot").blocked(),
            vec!["reservation", "spot"],
            turn,
        ),
    ] {
        let mut between = waits("on-demand");
        between.spec.active = Some(false);
        let between = between.evicted("DeactivatedDueToAdmissionCheck");
        let seen = reconcile_family(preferred(), parent(), vec![reservation, between, spot]);
        assert_eq!((seen.open_gates(), seen.requeue_after), (open, again));
    }
}

#[test]
fn variants_follow_changes_of_the_parent() {
    let mut grown = parent();
    grown.spec.pod_sets[0].count = 3;
    grown.spec.priority = Some(7);
    let seen = reconcile_family(preferred(), grown, with("spot", |it| it.admitted_on("spot")));
    let asked = &seen.objects["reservation"].spec;
    assert_eq!((asked.pod_sets[0].count, asked.priority), (3, Some(7)));
    assert_eq!(asked.preemption_gates.len(), 1);
    // The variant with quota is created again.
    assert_eq!(seen.deleted, ["spot"]);
}

#[test]
fn without_a_policy_the_workload_is_queued_itself() {
    let seen = reconcile_family(Value::Null, parent(), all());
    assert_eq!(seen.deleted, ["reservation", "on-demand", "spot"]);
    assert_eq!(seen.objects["wl-12345"].labels().len(), 0);
}
