//! Suites of Kueue's configuration file: validation and feature gates.

use std::collections::BTreeMap;

use berth_apimachinery::field::Error;
use berth_controllers::configuration::{self, File};
use serde_json::Value;

use super::webhooks::{Compare, errors};
use super::{gates, input};
use crate::conformance::{Case, Runner, Verdict};

pub fn runner(suite: &str) -> Option<Runner> {
    Some(match suite {
        "config-validate" => |case| validated(case, Compare::Fields, |_| true),
        "config-validate-custom-labels" => {
            |case| validated(case, Compare::Exact, |error| error.field.starts_with("metrics.customLabels"))
        }
        "config-validate-device-class-mappings" => {
            |case| validated(case, Compare::Fields, |error| error.field.starts_with("resources.deviceClassMappings"))
        }
        "config-load-and-validate-feature-gates" => feature_gates,
        "config-wait-for-pods-ready-is-enabled" => waits_for_pods_ready,
        _ => return None,
    })
}

/// Compares the validation errors of a file that `is_relevant` selects.
fn validated(case: &Case, how: Compare, is_relevant: fn(&Error) -> bool) -> Verdict {
    let file: File = input(case, "cfg")?;
    let got = configuration::validate(&file, &gates(case)).into_iter().filter(is_relevant).collect();
    errors(case, "err", how, got)
}

fn feature_gates(case: &Case) -> Verdict {
    let map: BTreeMap<String, bool> = input(case, "featureGateMap")?;
    let on_command_line: String = input(case, "featureGatesCLI")?;
    let got: Vec<Error> = configuration::validate_gates(&map, &on_command_line).err().into_iter().collect();
    let wanted = &case.want["err"];
    // Upstream lists several problems in no certain order. Such cases have no detail.
    let detail = wanted.as_array().and_then(|list| list.first()).map_or("", |e| e["detail"].as_str().unwrap_or(""));
    errors(case, "err", if detail.is_empty() { Compare::Fields } else { Compare::Exact }, got)
}

fn waits_for_pods_ready(case: &Case) -> Verdict {
    let file: File = input(case, "cfg")?;
    let got = configuration::waits_for_pods_ready(&file, &gates(case));
    let want = case.want["result"] == Value::Bool(true);
    if got == want { Ok(()) } else { Err(format!("want {want}, got {got}")) }
}
