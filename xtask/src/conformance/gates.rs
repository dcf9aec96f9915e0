//! Feature gates of cases: `featureGates` maps names to on or off.
//!
//! A runner applies the gates of its case. If it skipped an unknown name, the case would run with
//! other settings than upstream's test. [`check`] therefore rejects unknown names before the case
//! runs. [`missing_line`] counts the gates of features that Berth does not have.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Case;

/// Whether Berth has the feature of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "only suites of Kueue and JobSet have gates")]
enum Support {
    /// Berth has the feature.
    Present,
    /// Berth knows the gate, but does not have the feature, such as MultiKueue.
    Missing,
}

/// Looks a gate up in the table of the project that recorded the suite. Returns `None` if the table
/// lacks the gate, or if there is no table for the suite.
fn support(suite: &str, gate: &str) -> Option<Support> {
    #[cfg(feature = "jobset")]
    if super::jobset::runner(suite).is_some() {
        return super::jobset::GATES.contains(&gate).then_some(Support::Present);
    }
    #[cfg(feature = "kueue")]
    if super::kueue::runner(suite).or_else(|| super::kueue_controllers::runner(suite)).is_some() {
        let gate = berth_controllers::Gate::named(gate)?;
        let is_missing = gate.support() == berth_controllers::gates::Support::Missing;
        return Some(if is_missing { Support::Missing } else { Support::Present });
    }
    let _ = (suite, gate);
    None
}

/// The gates that a case sets, without counting as a read of the field.
fn set_by(case: &Case) -> impl Iterator<Item = (&String, &Value)> {
    let field = case.data.peek().find(|(key, _)| *key == "featureGates");
    field.and_then(|(_, gates)| gates.as_object()).into_iter().flatten()
}

/// Fails if the case sets a gate that is unknown, or sets a gate to a value other than on or off.
pub fn check(case: &Case) -> Result<(), String> {
    let problem = |(name, state): (&String, &Value)| {
        if support(&case.suite, name).is_none() {
            Some(format!("featureGates.{name}: unknown feature gate"))
        } else if !state.is_boolean() {
            Some(format!("featureGates.{name}: want true or false, got {state}"))
        } else {
            None
        }
    };
    let problems: Vec<String> = set_by(case).filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// A line that counts the cases per gate whose feature Berth does not have. `None` if no case sets
/// such a gate.
pub fn missing_line(cases: &[&Case]) -> Option<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for case in cases {
        for (name, _) in set_by(case).filter(|(name, _)| support(&case.suite, name) == Some(Support::Missing)) {
            *counts.entry(name).or_default() += 1;
        }
    }
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    (!counts.is_empty())
        .then(|| format!("cases that set a gate of a feature that Berth does not have: {}", counts.join(", ")))
}

#[cfg(all(test, feature = "kueue", feature = "jobset"))]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::super::{disagreements, judge};
    use super::*;

    /// A case that agrees, with the given gates.
    fn case(gates: &Value) -> Case {
        let data = json!({
            "featureGates": gates,
            "input": {"wl": {"metadata": {"name": "wl"}, "spec": {"podSets": []}}},
            "want": {"result": false},
        });
        Case::new("workload-is-on-hold".to_owned(), "case".to_owned(), PathBuf::new(), data)
    }

    fn verdict(gates: &Value) -> Result<(), String> {
        let ignored = disagreements::ignored().expect("the list is in the checkout");
        judge(&case(gates), &ignored, false)
    }

    #[test]
    fn a_case_with_an_unknown_feature_gate_fails() {
        assert_eq!(verdict(&json!({"PartialAdmission": false})), Ok(()));
        let unknown = json!({"PartialAdmission": false, "PartialAdmissions": false});
        let message = "featureGates.PartialAdmissions: unknown feature gate";
        assert_eq!(verdict(&unknown), Err(message.to_owned()));
        let message = "featureGates.PartialAdmission: want true or false, got \"off\"";
        assert_eq!(verdict(&json!({"PartialAdmission": "off"})), Err(message.to_owned()));
    }

    #[test]
    fn each_project_has_its_own_gates() {
        assert_eq!(support("jobset-controller-all-equal", "InPlaceRestart"), Some(Support::Present));
        assert_eq!(support("jobset-controller-all-equal", "PartialAdmission"), None);
        assert_eq!(support("workload-is-on-hold", "InPlaceRestart"), None);
        assert_eq!(support("quantity-parse", "PartialAdmission"), None);
    }

    #[test]
    fn gates_of_missing_features_are_counted() {
        let cases = [
            case(&json!({"MultiKueue": true, "PartialAdmission": true})),
            case(&json!({"MultiKueue": false, "SchedulerLibraryIntegration": true})),
        ];
        let line =
            "cases that set a gate of a feature that Berth does not have: MultiKueue 2, SchedulerLibraryIntegration 1";
        assert_eq!(missing_line(&cases.iter().collect::<Vec<_>>()).as_deref(), Some(line));
        assert_eq!(missing_line(&[&case(&json!({"PartialAdmission": true}))]), None);
    }
}
