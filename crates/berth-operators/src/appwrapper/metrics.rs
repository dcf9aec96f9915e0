//! The metric of AppWrappers: how often they enter each phase.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;

use super::types::Phase;

const NAME: &str = "appwrapper_phase_total";

/// Transitions by namespace and phase. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Transitions(Arc<Mutex<BTreeMap<(String, Phase), u64>>>);

impl Transitions {
    /// Counts a transition.
    pub fn count(&self, namespace: &str, phase: Phase) {
        *self.0.lock().entry((namespace.to_owned(), phase)).or_default() += 1;
    }

    /// The metric in the Prometheus text format.
    pub fn text(&self) -> String {
        let counts = self.0.lock();
        if counts.is_empty() {
            return String::new();
        }
        let mut text = format!("# HELP {NAME} Number of transitions of AppWrappers to a phase, per namespace\n");
        let _ = writeln!(text, "# TYPE {NAME} counter");
        for ((namespace, phase), count) in counts.iter() {
            let _ = writeln!(text, "{NAME}{{namespace=\"{namespace}\",phase=\"{}\"}} {count}", phase.as_str());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_are_counted_by_namespace_and_phase() {
        let transitions = Transitions::default();
        assert_eq!(transitions.text(), "");
        for phase in [Phase::Resuming, Phase::Running, Phase::Resuming] {
            transitions.count("blue", phase);
        }
        let text = transitions.text();
        assert!(text.ends_with(
            "appwrapper_phase_total{namespace=\"blue\",phase=\"Resuming\"} 2\n\
             appwrapper_phase_total{namespace=\"blue\",phase=\"Running\"} 1\n"
        ));
    }
}
