//! The metric of AppWrappers: how often they enter each phase.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_apimachinery::exposition::{Exposition, Family};
use parking_lot::Mutex;

use super::types::Phase;

const PHASE: Family =
    Family::counter("appwrapper_phase_total", "Number of transitions of AppWrappers to a phase, per namespace");

/// Transitions by namespace and phase. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Transitions(Arc<Mutex<BTreeMap<(String, Phase), u64>>>);

impl Transitions {
    /// Counts a transition.
    pub fn count(&self, namespace: &str, phase: Phase) {
        *self.0.lock().entry((namespace.to_owned(), phase)).or_default() += 1;
    }

    /// Writes the metric.
    pub fn write(&self, exposition: &mut Exposition) {
        for ((namespace, phase), count) in self.0.lock().iter() {
            exposition.add(&PHASE, &[("namespace", namespace), ("phase", phase.as_str())], *count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_are_counted_by_namespace_and_phase() {
        let transitions = Transitions::default();
        for phase in [Phase::Resuming, Phase::Running, Phase::Resuming] {
            transitions.count("blue", phase);
        }
        let text = Exposition::text(|exposition| transitions.write(exposition));
        assert!(text.ends_with(
            "appwrapper_phase_total{namespace=\"blue\",phase=\"Resuming\"} 2\n\
             appwrapper_phase_total{namespace=\"blue\",phase=\"Running\"} 1\n"
        ));
    }
}
