//! Which variant may preempt: one at a time, the most preferred first, each for a while.
//!
//! Variants are made with a closed preemption gate. One that could be admitted by preempting says so (condition
//! `BlockedOnPreemptionGates`) and waits for its turn; otherwise several would preempt for one job.

use std::time::Duration;

use berth_api::kueue::constants::CONCURRENT_ADMISSION_PREEMPTION_GATE;
use berth_api::kueue::v1beta2::{GatePosition, PreemptionGateState, Workload};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::keys;
use crate::workload::status;

/// How long the variant whose gate was opened last has before it is another one's turn.
pub const TURN: Duration = Duration::from_secs(5 * 60);

/// What to do about a family's gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nobody waits for one, or somebody more preferred has not been looked at yet.
    Nobody,
    /// Somebody waits, and the last turn is not over for this long.
    After(Duration),
    /// Open the gate of the variant at this position.
    Open(usize),
}

/// Whose turn it is among variants in order of preference.
pub fn next(variants: &[Workload], now: Timestamp) -> Turn {
    let Some(chosen) = first_in_need(variants) else { return Turn::Nobody };
    let Some(last) = variants.iter().filter_map(open_since).max() else { return Turn::Open(chosen) };
    let passed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    match TURN.checked_sub(passed).filter(|left| !left.is_zero()) {
        Some(left) => Turn::After(left),
        None => Turn::Open(chosen),
    }
}

/// The most preferred variant that needs its gate open. One that has not been evaluated may yet turn out to need it more.
fn first_in_need(variants: &[Workload]) -> Option<usize> {
    let waits = |variant: &Workload| {
        status::is_active(variant) && !status::is_finished(variant) && !status::has_quota_reservation(variant)
    };
    for (at, variant) in variants.iter().enumerate() {
        if !waits(variant) || !has_gate(variant) || open_since(variant).is_some() {
            continue;
        }
        if status::true_condition(variant, keys::BLOCKED_ON_PREEMPTION_GATES).is_some() {
            return Some(at);
        }
        status::condition(variant, keys::QUOTA_RESERVED)?;
    }
    None
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
