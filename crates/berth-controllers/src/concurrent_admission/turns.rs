//! Decides which variant may preempt: one at a time, the most preferred first, each for a limited
//! time.
//!
//! Variants are created with a closed preemption gate. A variant that could be admitted by
//! preempting has the condition `BlockedOnPreemptionGates` and waits for its turn. Otherwise
//! several variants would preempt for the same job.

use std::time::Duration;

use berth_api::kueue::constants::CONCURRENT_ADMISSION_PREEMPTION_GATE;
use berth_api::kueue::v1beta2::{GatePosition, PreemptionGateState, Workload};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::conditions;
use crate::workload::status;

/// Time from opening one variant's gate until the next one may be opened.
pub const TURN: Duration = Duration::from_secs(5 * 60);

/// The next step for the preemption gates of a parent's variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// No variant waits for its gate.
    NotNeeded,
    /// A variant waits, and the current turn lasts for this long.
    After(Duration),
    /// Open the gate of the variant at this position.
    Open(usize),
}

/// A variant's state regarding preemption.
enum Stage {
    /// The variant is not queued, is already admitted, or is not blocked by its gate.
    Unaffected,
    /// The variant is blocked by its gate: it could be admitted by preempting.
    Blocked,
    /// The variant's gate has been open since this time.
    Preempting(Timestamp),
}

/// The next step; `variants` are in order of preference.
pub fn next(variants: &[Workload], now: Timestamp) -> Turn {
    let (mut waiting, mut last_turn) = (None, None);
    for (at, variant) in variants.iter().enumerate() {
        match stage(variant) {
            Stage::Unaffected => {}
            Stage::Blocked => waiting = waiting.or(Some(at)),
            Stage::Preempting(since) => last_turn = last_turn.max(Some(since)),
        }
    }
    let passed = last_turn.map_or(TURN, |since| Duration::try_from(now.duration_since(since)).unwrap_or_default());
    match (waiting, TURN.saturating_sub(passed)) {
        (None, _) => Turn::NotNeeded,
        (Some(at), Duration::ZERO) => Turn::Open(at),
        (Some(_), left) => Turn::After(left),
    }
}

fn stage(variant: &Workload) -> Stage {
    let queues = status::is_active(variant) && !status::is_finished(variant) && !status::has_quota_reservation(variant);
    if !queues || !has_gate(variant) {
        return Stage::Unaffected;
    }
    let is_blocked = status::true_condition(variant, conditions::BLOCKED_ON_PREEMPTION_GATES).is_some();
    match open_since(variant) {
        Some(since) => Stage::Preempting(since),
        None if is_blocked => Stage::Blocked,
        None => Stage::Unaffected,
    }
}

fn has_gate(variant: &Workload) -> bool {
    variant.spec.preemption_gates.iter().any(|gate| gate.name == CONCURRENT_ADMISSION_PREEMPTION_GATE)
}

fn open_since(variant: &Workload) -> Option<Timestamp> {
    let states = variant.status.iter().flat_map(|status| &status.preemption_gates);
    let mut of_turns = states.filter(|state| state.name == CONCURRENT_ADMISSION_PREEMPTION_GATE);
    let open = of_turns.find(|state| state.position == GatePosition::Open)?;
    Some(open.last_transition_time.0)
}

/// Opens the gate of a variant.
pub fn open(variant: &mut Workload, now: Timestamp) {
    let states = &mut status::status_mut(variant).preemption_gates;
    let state = PreemptionGateState {
        name: CONCURRENT_ADMISSION_PREEMPTION_GATE.to_owned(),
        position: GatePosition::Open,
        last_transition_time: Time(now),
    };
    match states.iter_mut().find(|known| known.name == state.name) {
        Some(known) => *known = state,
        None => states.push(state),
    }
}
