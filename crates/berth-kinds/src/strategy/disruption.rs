//! PodDisruptionBudgets (policy/v1): validation.

use berth_apimachinery::field::{Error, Path};
use berth_apimachinery::meta::map_mut;
use berth_apimachinery::selector;
use berth_apimachinery::validation::NameCheck;
use serde_json::{Value, json};

use super::rules::supported;
use super::workloads::IntOrPercent;
use super::{Context, Strategy, non_negative};

pub(crate) struct DisruptionBudgets;

impl Strategy for DisruptionBudgets {
    /// As upstream, names are not validated.
    fn name_check(&self) -> NameCheck {
        |_| Vec::new()
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn prepare_create(&self, budget: &mut Value, _context: &Context<'_>) {
        let status = json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
        map_mut(budget).insert("status".to_owned(), status);
    }

    fn validate(&self, budget: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let (path, spec) = (Path::new("spec"), &budget["spec"]);
        let amounts = ["minAvailable", "maxUnavailable"];
        if amounts.iter().all(|field| !spec[*field].is_null()) {
            let detail = "minAvailable and maxUnavailable cannot be both set";
            errors.push(Error::invalid(&path, spec.clone(), detail));
        }
        for field in amounts.iter().filter(|field| !spec[**field].is_null()) {
            let amount = IntOrPercent { value: &spec[*field], path: path.child(field) };
            amount.check(&mut errors);
            amount.at_most_100_percent(&mut errors);
        }
        errors.extend(selector::validate_object(&spec["selector"], &path.child("selector")));
        supported(spec, "unhealthyPodEvictionPolicy", &["AlwaysAllow", "IfHealthyBudget"], &path, &mut errors);
        errors
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<Error> {
        let mut errors = Vec::new();
        let path = Path::new("status");
        for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
            non_negative(&new["status"][field], &path.child(field), &mut errors);
        }
        errors
    }
}
